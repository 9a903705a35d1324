"""What an operator sees and does."""

import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from msgspec.structs import replace
from tests.control.metering import DOLLAR, Metering
from tests.control.services.harness import ACME, PEOPLE, RIVAL

from tollgate.api.operator import ServiceUsageQuery, TeamsQuery, TeamUsageQuery, TermsChange
from tollgate.api.usage import UsageQuery
from tollgate.control.problems import InvalidInput, NotFound, RoleNeeded
from tollgate.control.service_context import Actor, PageRequest
from tollgate.control.services.operator import Operator, TeamUse
from tollgate.core.models import Team
from tollgate.core.months import end_of, month_of


def service(metering: Metering) -> Operator:
    return Operator(metering.plane.context, metering.plane.networks, metering.book)


def operator(metering: Metering) -> Actor:
    actor = metering.actor("loner")
    assert actor.account is not None
    return replace(actor, account=replace(actor.account, operator=True))


DEEDS: dict[str, Callable[[Operator, Actor], Coroutine[Any, Any, object]]] = {
    "upstreams": lambda seen, actor: seen.upstreams(actor),
    "history": lambda seen, actor: seen.history(actor),
    "processes": lambda seen, actor: seen.processes(actor),
    "spool": lambda seen, actor: seen.spool(actor),
    "examine": lambda seen, actor: seen.examine(actor),
    "nodes": lambda seen, actor: seen.nodes(actor),
    "teams": lambda seen, actor: seen.teams(actor, PageRequest()),
    "team": lambda seen, actor: seen.team(actor, ACME.name),
    "usage": lambda seen, actor: seen.usage(actor),
    "team usage": lambda seen, actor: seen.team_usage(actor, ACME.name),
    "terms": lambda seen, actor: seen.set_terms(actor, ACME.name, TermsChange(suspended=True)),
}


@pytest.mark.parametrize("deed", DEEDS)
def test_account_that_is_no_operator_is_refused(metering: Metering, deed: str) -> None:
    program, _ = metering.program("owner")
    assert program.login is not None
    assert program.account is not None
    marked = replace(program.account, operator=True)
    of_a_team = replace(program, account=marked, login=replace(program.login, team_id=ACME.id))
    for actor in (metering.actor("owner"), metering.actor("loner"), Actor(None), of_a_team):
        metering.refused(RoleNeeded, DEEDS[deed](service(metering), actor))
    assert metering.team() == ACME


def test_account_becomes_an_operator_and_stops_being_one(metering: Metering) -> None:
    metering.do(metering.plane.admin.mark(PEOPLE["loner"], operator=True))
    metering.do(service(metering).teams(metering.actor("loner"), PageRequest()))
    metering.do(metering.plane.admin.mark(PEOPLE["loner"], operator=False))
    metering.refused(RoleNeeded, service(metering).teams(metering.actor("loner"), PageRequest()))
    assert metering.actions() == ["account.operator", "account.no_operator"]


def test_teams_are_listed_with_their_month(metering: Metering) -> None:
    metering.call(7)
    listed = metering.do(service(metering).teams(operator(metering), PageRequest())).items
    assert {use.team.name: use.billable for use in listed}[ACME.name] == 7


def test_teams_are_listed_page_by_page_also_those_that_called_nothing(metering: Metering) -> None:
    metering.charge(free_requests=0, micros_per_million=DOLLAR)
    metering.call(7)
    someone, seen = operator(metering), service(metering)
    first = metering.do(seen.teams(someone, PageRequest(1), TeamsQuery("active")))
    rest = metering.do(seen.teams(someone, PageRequest(1, first.next), TeamsQuery("active")))
    assert rest.next is None
    assert {(use.team.name, use.billable, use.cost) for use in first.items + rest.items} == {
        (ACME.name, 7, 7),
        (RIVAL.name, 0, 0),
    }
    used = metering.do(seen.team(someone, RIVAL.name))
    assert (used.billable, used.cost) == (0, 0)
    # A cursor of one list is no cursor of another.
    metering.refused(InvalidInput, seen.teams(someone, PageRequest(1, first.next), TeamsQuery("capped")))
    metering.refused(InvalidInput, seen.teams(someone, PageRequest(1, first.next)))


def set_terms(metering: Metering, team: str = ACME.name, **terms: Any) -> Team:
    return metering.do(service(metering).set_terms(operator(metering), team, TermsChange(**terms))).team


def test_team_is_suspended_limited_and_resumed(metering: Metering) -> None:
    suspended = set_terms(metering, suspended=True, suspended_reason=" unpaid ")
    assert (suspended.suspended_at, suspended.suspended_reason) == (metering.clock.now, "unpaid")
    limited = set_terms(metering, ACME.id, requests_per_second=5)
    assert (limited.suspended_at, limited.requests_per_second) == (metering.clock.now, 5)
    assert [use.team.name for use in listed(metering, "suspended")] == [ACME.name]
    assert ACME.name not in [use.team.name for use in listed(metering, "active")]
    lifted = set_terms(metering, suspended=False)
    assert (lifted.suspended_at, lifted.suspended_reason) == (None, "")


def listed(metering: Metering, state: str) -> list[TeamUse]:
    return metering.do(service(metering).teams(operator(metering), PageRequest(), TeamsQuery(state))).items


@pytest.mark.parametrize(
    "terms",
    [
        {"requests_per_second": 0},
        {"free_requests": -1},
        {"micros_per_million": 10**12 + 1},
        {"operator_cap_micros": -1},
        {"suspended": True, "suspended_reason": "x" * 201},
        {"suspended": True, "suspended_reason": "\x1b[31m"},
    ],
)
def test_terms_out_of_bounds_are_refused_and_change_nothing(metering: Metering, terms: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        set_terms(metering, **terms)
    assert metering.team() == ACME


def test_terms_may_be_as_low_as_their_bounds(metering: Metering) -> None:
    lowest: dict[str, Any] = {
        "requests_per_second": 1,
        "free_requests": 0,
        "micros_per_million": 0,
        "operator_cap_micros": 0,
    }
    team = set_terms(metering, **lowest)
    assert (team.requests_per_second, team.free_requests) == (1, 0)
    assert (team.micros_per_million, team.operator_cap) == (0, 0)


def test_unknown_team_and_state_are_refused_with_what_to_do(metering: Metering) -> None:
    with pytest.raises(NotFound, match="tollgate admin teams"):
        set_terms(metering, "unknown", suspended=True)
    with pytest.raises(InvalidInput, match="active, suspended, capped"):
        listed(metering, "asleep")


def test_audit_log_shows_what_was_changed_from_what_to_what(metering: Metering) -> None:
    set_terms(metering, free_requests=7, operator_cap_micros=5 * DOLLAR)
    metering.clock.now += 1
    set_terms(metering, free_requests=None)
    newest = metering.write(lambda records: records.audit.page(1, newest_first=True, team_id=ACME.id))[0]
    details = json.loads(newest.details)
    assert newest.action == "team.terms"
    assert (details["before"]["free_requests"], details["after"]["free_requests"]) == (7, None)
    assert details["before"]["operator_cap_micros"] == details["after"]["operator_cap_micros"] == 5 * DOLLAR
    assert not details["before"]["suspended"] | details["after"]["suspended"]
    metering.clock.now += 1
    set_terms(metering, suspended=True, suspended_reason="")
    newest = metering.write(lambda records: records.audit.page(1, newest_first=True, team_id=ACME.id))[0]
    details = json.loads(newest.details)
    assert (details["before"]["suspended"], details["after"]["suspended"]) == (False, True)


def test_team_is_suspended_while_the_ledger_is_away(metering: Metering) -> None:
    without = Operator(metering.plane.context, metering.plane.networks, None)
    terms = TermsChange(suspended=True, operator_cap_micros=5)
    use = metering.do(without.set_terms(operator(metering), ACME.name, terms))
    assert (use.team.suspended_at, use.billable, use.cost) == (metering.clock.now, None, None)
    assert (metering.team().operator_cap, metering.team().suspended_at) == (5, metering.clock.now)


# --- Prices and caps of one team ---------------------------------------------------------------------------


def test_own_price_applies_to_calls_from_then_on_and_changes_nothing_before(metering: Metering) -> None:
    metering.charge(free_requests=10, micros_per_million=5 * DOLLAR)
    metering.call(20)
    assert metering.do(service(metering).team(operator(metering), ACME.name)).cost == 50
    set_terms(metering, micros_per_million=2 * DOLLAR)
    assert metering.do(service(metering).team(operator(metering), ACME.name)).cost == 50
    metering.call(5)
    set_terms(metering, free_requests=100)
    metering.call(5)
    used = metering.do(metering.plane.usage.of_team(metering.actor("owner"), ACME.name))
    assert (used.billable_requests, used.cost_micros, used.free_requests, used.free_left) == (30, 60, 100, 70)


def test_usage_and_draft_of_a_month_that_is_over_are_reported_by_its_price(metering: Metering) -> None:
    metering.charge(free_requests=0, micros_per_million=5 * DOLLAR)
    set_terms(metering, micros_per_million=2 * DOLLAR)
    metering.call(10)
    month = month_of(metering.clock.now)
    metering.clock.now = end_of(month)
    set_terms(metering, micros_per_million=9 * DOLLAR, free_requests=3)
    draft = metering.do(metering.plane.invoices.show(metering.actor("owner"), ACME.name, month))
    assert (draft.micros_per_million, draft.free_requests, draft.cost) == (2 * DOLLAR, 0, 20)
    assert [line.kind for line in draft.lines] == ["billed", "rounding"]
    used = metering.do(metering.plane.usage.of_team(metering.actor("owner"), ACME.name, UsageQuery(month)))
    assert used.free_requests == 0
    metering.clock.now += 3 * 86_400
    metering.books.sql("UPDATE state SET seen_at = NULL, doubted_at = NULL")
    assert month in metering.do(metering.plane.invoices.close_due())
    final = metering.do(metering.plane.invoices.show(metering.actor("owner"), ACME.name, month))
    assert (final.is_final, final.lines) == (True, draft.lines)


def test_price_that_was_set_last_is_in_force_also_after_the_clock_was_set_back(metering: Metering) -> None:
    for price, seconds in ((2 * DOLLAR, 100), (3 * DOLLAR, -50), (4 * DOLLAR, 100)):
        set_terms(metering, micros_per_million=price)
        metering.clock.now += seconds
    draft = metering.do(
        metering.plane.invoices.show(metering.actor("owner"), ACME.name, month_of(metering.clock.now))
    )
    assert draft.micros_per_million == 4 * DOLLAR


def test_price_that_changed_within_a_month_is_a_line_of_the_invoice(metering: Metering) -> None:
    metering.charge(free_requests=0, micros_per_million=5 * DOLLAR)
    metering.call(10)
    set_terms(metering, micros_per_million=2 * DOLLAR)
    metering.call(10)
    draft = metering.do(
        metering.plane.invoices.show(metering.actor("owner"), ACME.name, month_of(metering.clock.now))
    )
    amounts = {line.kind: line.amount for line in draft.lines}
    assert (draft.cost, amounts["billed"], amounts["adjustment"]) == (70, 40, 30)


def test_operators_cap_stops_a_team_in_the_same_change_and_a_cheaper_price_lets_it_go_on(
    metering: Metering,
) -> None:
    metering.charge(free_requests=0, micros_per_million=5 * DOLLAR)
    metering.call(4)
    set_terms(metering, operator_cap_micros=20)
    assert metering.team().capped_until is not None
    metering.reconcile()
    assert metering.team().capped_until is not None
    set_terms(metering, micros_per_million=0)
    assert metering.team().capped_until is None
    metering.call(3)
    assert metering.do(service(metering).team(operator(metering), ACME.name)).cost == 20
    assert listed(metering, "capped") == []


def test_operators_cap_of_zero_leaves_free_requests_to_a_team_that_has_called_nothing_yet(
    metering: Metering,
) -> None:
    metering.charge(free_requests=1)
    terms = TermsChange(operator_cap_micros=0)
    use = metering.do(service(metering).set_terms(operator(metering), ACME.name, terms))
    assert (use.team.capped_until, use.billable, use.cost) == (None, 0, 0)


def test_team_cannot_raise_its_cap_beyond_the_operators(metering: Metering) -> None:
    metering.charge(free_requests=0, micros_per_million=5 * DOLLAR)
    set_terms(metering, operator_cap_micros=7)
    metering.set_billing(spending_cap_micros=DOLLAR)
    metering.call(5)
    used = metering.do(metering.plane.usage.of_team(metering.actor("owner"), ACME.name))
    assert (used.cost_micros, used.spending_cap_micros, used.capped) == (7, 7, True)


# --- Usage of the whole service ----------------------------------------------------------------------------


def test_usage_of_all_teams_begins_with_those_that_paid_most(metering: Metering) -> None:
    metering.charge(free_requests=2, micros_per_million=DOLLAR)
    metering.call(3)
    metering.call(9, team="team_gone", source="tok_gone")
    found = metering.do(service(metering).usage(operator(metering)))
    assert [(each.name, each.billable_requests, each.cost_micros) for each in found.items] == [
        ("team_gone", 9, 7),
        (ACME.name, 3, 1),
    ]
    assert (found.teams, found.billable_requests, found.cost_micros) == (2, 12, 8)
    assert len(metering.do(service(metering).usage(operator(metering), ServiceUsageQuery(limit=1))).items) == 1
    assert metering.do(service(metering).usage(operator(metering), ServiceUsageQuery("2026-01"))).items == []


def test_usage_of_one_team_is_shown_without_its_tokens_and_domains(metering: Metering) -> None:
    metering.call(3)
    used = metering.do(service(metering).team_usage(operator(metering), ACME.name, TeamUsageQuery(by="method")))
    assert sum(item.requests for item in used.items) == 3
    with pytest.raises(InvalidInput):
        metering.do(service(metering).team_usage(operator(metering), ACME.name, TeamUsageQuery(by="token")))
