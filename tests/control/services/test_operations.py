"""What an operator sees and does."""

import json
from typing import Any

import pytest
from msgspec.structs import replace
from tests.control.services.house import ACME
from tests.control.till import DOLLAR, Till

from tollgate.control.problems import InvalidInput, NotFound, RoleNeeded
from tollgate.control.service_context import Actor, PageRequest
from tollgate.control.services.billing import BillingUpdate
from tollgate.control.services.operations import Operations, TeamTerms, TeamUse
from tollgate.core.models import Team
from tollgate.core.months import end_of, month_of


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


def set_terms(till: Till, team: str = ACME.name, **terms: Any) -> Team:
    return till.do(service(till).set_terms(operator(till), team, TeamTerms(**terms))).team


def test_team_is_suspended_limited_and_let_go(till: Till) -> None:
    suspended = set_terms(till, suspended=True, suspended_reason=" unpaid ")
    assert (suspended.suspended_at, suspended.suspended_reason) == (till.clock.now, "unpaid")
    limited = set_terms(till, ACME.id, requests_per_second=5)
    assert (limited.suspended_at, limited.requests_per_second) == (till.clock.now, 5)
    assert [use.team.name for use in listed(till, "suspended")] == [ACME.name]
    assert ACME.name not in [use.team.name for use in listed(till, "active")]
    lifted = set_terms(till, suspended=False)
    assert (lifted.suspended_at, lifted.suspended_reason) == (None, "")


def listed(till: Till, state: str) -> list[TeamUse]:
    return till.do(service(till).teams(operator(till), PageRequest(), state)).items


@pytest.mark.parametrize(
    "terms",
    [
        {"requests_per_second": 0},
        {"free_requests": -1},
        {"micros_per_million": 10**12 + 1},
        {"operator_cap": -1},
        {"suspended": True, "suspended_reason": "x" * 201},
        {"suspended": True, "suspended_reason": "\x1b[31m"},
    ],
)
def test_terms_out_of_bounds_are_refused_and_change_nothing(till: Till, terms: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        set_terms(till, **terms)
    assert till.team() == ACME


def test_unknown_team_and_state_are_refused_with_what_to_do(till: Till) -> None:
    with pytest.raises(NotFound, match="tollgate admin teams"):
        set_terms(till, "nobody", suspended=True)
    with pytest.raises(InvalidInput, match="active, suspended, capped"):
        listed(till, "asleep")


def test_audit_log_says_what_was_changed_from_what_to_what(till: Till) -> None:
    set_terms(till, free_requests=7, operator_cap=5 * DOLLAR)
    till.clock.now += 1
    set_terms(till, free_requests=None)
    newest = till.write(lambda records: records.audit.page(1, newest_first=True, team_id=ACME.id))[0]
    details = json.loads(newest.details)
    assert newest.action == "team.terms"
    assert (details["before"]["free_requests"], details["after"]["free_requests"]) == (7, None)
    assert details["before"]["operator_cap_micros"] == details["after"]["operator_cap_micros"] == 5 * DOLLAR


def test_team_is_suspended_while_the_ledger_is_away(till: Till) -> None:
    without = Operations(till.plane.context, till.plane.networks, None)
    use = till.do(without.set_terms(operator(till), ACME.name, TeamTerms(suspended=True)))
    assert (use.team.suspended_at, use.billable, use.cost) == (till.clock.now, None, None)


# --- Prices and caps of one team ---------------------------------------------------------------------------


def test_own_price_applies_to_calls_from_then_on_and_changes_nothing_before(till: Till) -> None:
    till.charge(free_requests=10, micros_per_million=5 * DOLLAR)
    till.call(20)
    assert till.do(service(till).team(operator(till), ACME.name)).cost == 50
    set_terms(till, micros_per_million=2 * DOLLAR)
    assert till.do(service(till).team(operator(till), ACME.name)).cost == 50
    till.call(5)
    set_terms(till, free_requests=100)
    till.call(5)
    used = till.do(till.plane.usage.of_team(till.actor("owner"), ACME.name))
    assert (used.billable, used.cost, used.free_requests, used.free_left) == (30, 60, 100, 70)


def test_usage_and_draft_of_a_month_that_is_over_are_told_by_its_price(till: Till) -> None:
    till.charge(free_requests=0, micros_per_million=5 * DOLLAR)
    set_terms(till, micros_per_million=2 * DOLLAR)
    till.call(10)
    month = month_of(till.clock.now)
    till.clock.now = end_of(month) + 60
    set_terms(till, micros_per_million=9 * DOLLAR, free_requests=3)
    draft = till.do(till.plane.invoices.show(till.actor("owner"), ACME.name, month))
    assert (draft.micros_per_million, draft.free_requests, draft.cost) == (2 * DOLLAR, 0, 20)
    assert [line.kind for line in draft.lines] == ["billed", "rounding"]
    assert till.do(till.plane.usage.of_team(till.actor("owner"), ACME.name, month)).free_requests == 0
    till.clock.now += 3 * 86_400
    till.books.sql("UPDATE state SET seen_at = NULL, doubted_at = NULL")
    assert month in till.do(till.plane.invoices.close_due())
    final = till.do(till.plane.invoices.show(till.actor("owner"), ACME.name, month))
    assert (final.is_final, final.lines) == (True, draft.lines)


def test_price_that_changed_within_a_month_is_a_line_of_the_invoice(till: Till) -> None:
    till.charge(free_requests=0, micros_per_million=5 * DOLLAR)
    till.call(10)
    set_terms(till, micros_per_million=2 * DOLLAR)
    till.call(10)
    draft = till.do(till.plane.invoices.show(till.actor("owner"), ACME.name, month_of(till.clock.now)))
    amounts = {line.kind: line.amount for line in draft.lines}
    assert (draft.cost, amounts["billed"], amounts["adjustment"]) == (70, 40, 30)


def test_operators_cap_stops_a_team_in_the_same_change_and_a_cheaper_price_lets_it_go_on(till: Till) -> None:
    till.charge(free_requests=0, micros_per_million=5 * DOLLAR)
    till.call(4)
    set_terms(till, operator_cap=20)
    assert till.team().capped_until is not None
    till.reconcile()
    assert till.team().capped_until is not None
    set_terms(till, micros_per_million=0)
    assert till.team().capped_until is None
    till.call(3)
    assert till.do(service(till).team(operator(till), ACME.name)).cost == 20
    assert listed(till, "capped") == []


def test_team_cannot_raise_its_cap_beyond_the_operators(till: Till) -> None:
    till.charge(free_requests=0, micros_per_million=5 * DOLLAR)
    set_terms(till, operator_cap=7)
    till.do(till.plane.billing.change(till.actor("owner"), ACME.name, BillingUpdate(spending_cap=DOLLAR)))
    till.call(5)
    used = till.do(till.plane.usage.of_team(till.actor("owner"), ACME.name))
    assert (used.cost, used.spending_cap, used.capped) == (7, 7, True)


# --- Usage of the whole service ----------------------------------------------------------------------------


def test_usage_of_all_teams_begins_with_those_that_paid_most(till: Till) -> None:
    till.charge(free_requests=2, micros_per_million=DOLLAR)
    till.call(3)
    till.call(9, team="team_gone", source="tok_gone")
    found = till.do(service(till).usage(operator(till)))
    assert [(use.team.name, use.billable, use.cost) for use in found.teams] == [
        ("team_gone", 9, 7),
        (ACME.name, 3, 1),
    ]
    assert (found.total.teams, found.total.billable, found.total.cost) == (2, 12, 8)
    assert len(till.do(service(till).usage(operator(till), limit=1)).teams) == 1
    assert till.do(service(till).usage(operator(till), "2026-01")).teams == []


def test_usage_of_one_team_is_shown_without_its_tokens_and_domains(till: Till) -> None:
    till.call(3)
    used = till.do(service(till).team_usage(operator(till), ACME.name, by="method"))
    assert sum(item.requests for item in used.items) == 3
    with pytest.raises(InvalidInput):
        till.do(service(till).team_usage(operator(till), ACME.name, by="token"))
