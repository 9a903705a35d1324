"""What an operator sees and does."""

import pytest
from msgspec.structs import replace
from tests.control.services.house import ACME
from tests.control.till import Till

from tollgate.control.problems import InvalidInput, RoleNeeded
from tollgate.control.service_context import Actor, PageRequest
from tollgate.control.services.operations import Operations, TeamTerms


def service(till: Till) -> Operations:
    return Operations(till.plane.context, till.plane.networks, till.book)


def operator(till: Till) -> Actor:
    actor = till.actor("loner")
    assert actor.account is not None
    return replace(actor, account=replace(actor.account, operator=True))


def test_whoever_is_not_marked_is_refused(till: Till) -> None:
    for role in ("owner", "loner"):
        with pytest.raises(RoleNeeded):
            till.do(service(till).teams(till.actor(role), PageRequest()))


def test_teams_are_listed_with_their_month(till: Till) -> None:
    till.call(7)
    listed = till.do(service(till).teams(operator(till), PageRequest())).items
    assert {use.team.name: use.billable for use in listed}[ACME.name] == 7


def test_team_is_suspended_limited_and_let_go(till: Till) -> None:
    suspended = till.do(service(till).set_terms(operator(till), ACME.name, TeamTerms(suspended=True)))
    assert suspended.suspended_at == till.clock.now
    limited = till.do(service(till).set_terms(operator(till), ACME.id, TeamTerms(requests_per_second=5)))
    assert (limited.suspended_at, limited.requests_per_second) == (till.clock.now, 5)
    lifted = till.do(service(till).set_terms(operator(till), ACME.name, TeamTerms(suspended=False)))
    assert lifted.suspended_at is None
    with pytest.raises(InvalidInput):
        till.do(service(till).set_terms(operator(till), ACME.name, TeamTerms(requests_per_second=0)))
