"""Invoices: drafts while a month is open, final after its grace, then out of everybody's reach."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from typing import Any

import pytest
from tests.control.services.house import ACME, ALL, DAY, HOUR
from tests.control.till import DOLLAR, Till
from tests.store.account_rows import AFTER, BEFORE, MONTH, RIVAL

from tollgate.control.problems import InvalidInput, NoSuchTeam, NotFound, RoleNeeded
from tollgate.control.service_context import PageRequest
from tollgate.control.services.billing import BillingUpdate
from tollgate.core.invoices import Invoice, LineKind
from tollgate.core.months import end_of, start_of
from tollgate.core.pricing import MILLION

GRACE = 48 * HOUR
_SEVERAL = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def show(till: Till, month: str = MONTH, who: str = "owner") -> Invoice:
    return till.do(till.plane.invoices.show(till.actor(who), "acme", month))


def listed(till: Till, ask: PageRequest = ALL) -> list[tuple[str, bool]]:
    page = till.do(till.plane.invoices.list(till.actor("owner"), "acme", ask))
    return [(each.invoice.month, each.invoice.is_final) for each in page.items]


def close(till: Till) -> list[str]:
    return list(till.do(till.plane.invoices.close_due()))


def test_the_current_month_is_a_draft_also_without_a_call(till: Till) -> None:
    draft = show(till)
    assert (draft.is_final, draft.team, draft.number) == (False, "acme", "TG-2026-11-acme000000000")
    assert [(line.kind, line.requests, line.amount) for line in draft.lines] == [
        (LineKind.FREE, 0, 0),
        (LineKind.ROUNDING, None, 0),
    ]
    assert listed(till) == [(MONTH, False)]


def test_a_draft_grows_with_the_month(till: Till) -> None:
    till.call(MILLION + 1_000)
    assert show(till).cost == 5_000
    till.call(1_000)
    assert show(till).cost == 10_000


def test_a_month_becomes_final_when_its_grace_is_over_and_not_before(till: Till) -> None:
    till.call(MILLION + 1_000)
    till.clock.now = end_of(MONTH) + GRACE - 1
    assert MONTH not in close(till)
    assert not show(till).is_final
    till.clock.now = end_of(MONTH) + GRACE
    assert close(till) == [MONTH]
    assert (show(till).is_final, show(till).issued_at) == (True, till.clock.now)
    assert close(till) == []


def test_late_records_within_the_grace_still_count(till: Till) -> None:
    till.call(MILLION)
    till.clock.now = end_of(MONTH) + HOUR
    till.call(1_000, end_of(MONTH) - 1)
    assert show(till).cost == 5_000
    assert till.do(till.plane.invoices.show(till.actor("owner"), "acme", AFTER)).billable == 0


def test_later_records_are_lines_of_the_next_invoice(till: Till) -> None:
    till.call(MILLION)
    till.clock.now = end_of(MONTH) + GRACE
    close(till)
    till.call(7, end_of(MONTH) - 1)
    till.call(9)
    assert show(till).billable == MILLION
    following = show(till, AFTER)
    assert [(line.text, line.requests) for line in following.lines[:2]] == [
        ("Free requests, late requests of 2026-11", 7),
        ("Free requests", 9),
    ]
    till.clock.now = end_of(AFTER) + GRACE
    assert close(till) == [AFTER]
    assert show(till, AFTER).lines == following.lines


def test_months_that_were_missed_are_made_up_for(till: Till) -> None:
    for month in ("2026-08", BEFORE, MONTH):
        till.call(5, start_of(month))
    till.clock.now = start_of("2027-01") + GRACE
    # The last one as well, in which nothing happened.
    assert close(till) == ["2026-08", BEFORE, MONTH, AFTER]
    assert listed(till) == [("2027-01", False), (MONTH, True), (BEFORE, True), ("2026-08", True)]


def test_a_grace_of_nothing_closes_at_once(till: Till) -> None:
    till.charge(grace_hours=0)
    till.call(5, start_of(BEFORE))
    assert close(till) == [BEFORE]
    till.clock.now = end_of(MONTH)
    assert close(till) == [MONTH]


def test_the_month_before_is_a_draft_during_its_grace(till: Till) -> None:
    till.call(5)
    till.clock.now = end_of(MONTH) + HOUR
    assert listed(till) == [(AFTER, False), (MONTH, False)]


def test_what_an_invoice_says_outlives_new_prices_caps_and_names(till: Till) -> None:
    till.do(till.plane.billing.change(till.actor("owner"), "acme", BillingUpdate(spending_cap=DOLLAR)))
    till.call(2 * MILLION)
    till.clock.now = end_of(MONTH) + GRACE
    close(till)
    final = show(till)
    assert [(line.kind, line.amount) for line in final.lines] == [
        (LineKind.FREE, 0),
        (LineKind.BILLED, 5 * DOLLAR),
        (LineKind.CAP, -4 * DOLLAR),
        (LineKind.ROUNDING, 0),
    ]
    till.charge(micros_per_million=9 * DOLLAR, plan="per_started_million", free_requests=0)
    till.do(till.plane.teams.rename(till.actor("owner"), "acme", "acme-two"))
    till.do(till.plane.billing.change(till.actor("owner"), "acme-two", BillingUpdate(spending_cap=None)))
    assert till.do(till.plane.invoices.show(till.actor("owner"), "acme-two", MONTH)) == final


def test_a_team_that_is_gone_still_has_its_invoice(till: Till) -> None:
    till.call(3)
    till.call(4, team="team_gone00000000")
    till.clock.now = end_of(MONTH) + GRACE
    close(till)
    made = till.do(till.book.invoices(10, month=MONTH))
    assert [(each.team, each.billable) for each in made] == [("acme", 3), ("team_gone00000000", 4)]


def test_pages_have_every_invoice_once_newest_first(till: Till) -> None:
    for number in range(1, 10):
        till.call(number, start_of(f"2026-{number:02d}"))
    close(till)
    found: list[str] = []
    ask = PageRequest(2)
    while True:
        page = till.do(till.plane.invoices.list(till.actor("owner"), "acme", ask))
        found += [each.invoice.month for each in page.items]
        if page.next is None:
            break
        ask = PageRequest(2, page.next)
    assert found == [MONTH, *(f"2026-{number:02d}" for number in range(9, 0, -1))]


@pytest.mark.parametrize("month", [BEFORE, AFTER, "1999-01"])
def test_a_month_without_usage_has_no_invoice(till: Till, month: str) -> None:
    till.refused(NotFound, till.plane.invoices.show(till.actor("owner"), "acme", month))


def test_a_closed_month_without_usage_has_none_either(till: Till) -> None:
    till.call(5, team=RIVAL)
    till.clock.now = end_of(MONTH) + GRACE
    close(till)
    till.refused(NotFound, till.plane.invoices.show(till.actor("owner"), "acme", MONTH))
    assert listed(till) == [(AFTER, False)]


def test_a_bad_month_names_the_accepted_form(till: Till) -> None:
    refusal = till.refused(InvalidInput, till.plane.invoices.show(till.actor("owner"), "acme", "last"))
    assert MONTH in refusal.detail


@pytest.mark.parametrize("who", ["owner", "admin", "billing"])
def test_whoever_leads_or_pays_may_see(till: Till, who: str) -> None:
    assert show(till, who=who).team == "acme"


@pytest.mark.parametrize(
    ("who", "problem"), [("developer", RoleNeeded), ("viewer", RoleNeeded), ("stranger", NoSuchTeam)]
)
def test_others_may_not(till: Till, who: str, problem: type[Exception]) -> None:
    till.refused(problem, till.plane.invoices.show(till.actor(who), "acme", MONTH))
    till.refused(problem, till.plane.invoices.list(till.actor(who), "acme", ALL))


# ---- immutable


async def _whatever(work: Awaitable[Any]) -> None:
    try:
        await work
    except Exception:  # noqa: BLE001 - that something is refused is no matter here
        return


def _guess(name: str, till: Till) -> Any:
    """Something that fits a parameter of that name."""
    known: dict[str, Any] = {
        "actor": till.actor("owner"),
        "team": "acme",
        "month": MONTH,
        "ask": ALL,
        "change": BillingUpdate(spending_cap=0, alert_webhook="https://hooks.example/", alert_emails=False),
        "by": "day",
        "name": "acme",
        "if_match": None,
    }
    return known.get(name)


def test_no_method_of_any_service_changes_what_is_final(till: Till) -> None:
    till.call(MILLION + 123_457)
    till.clock.now = end_of(MONTH) + GRACE
    close(till)
    final, stored = show(till), till.books.sql("SELECT * FROM invoices")
    tried = 0
    for service in vars(till.plane).values():
        for name, method in inspect.getmembers(service, inspect.iscoroutinefunction):
            if name.startswith("_") or name == "close":
                continue
            till.clock.advance(DAY)
            given = inspect.signature(method).parameters.values()
            values = {each.name: _guess(each.name, till) for each in given if each.kind not in _SEVERAL}
            till.do(_whatever(method(**values)))
            tried += 1
    assert tried > 50
    till.call(5, end_of(MONTH) - 1)
    till.clock.now = start_of("2027-06")
    close(till)
    assert till.books.sql("SELECT * FROM invoices WHERE month = ?", MONTH) == stored
    assert till.do(till.book.bill(ACME.id, MONTH)).invoice == final
