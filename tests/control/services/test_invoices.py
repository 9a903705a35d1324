"""Invoices: drafts while a month is open, final after its grace, then unchangeable."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from typing import Any

import pytest
from tests.control.metering import DOLLAR, Metering
from tests.control.services.harness import ACME, ALL, DAY, HOUR
from tests.store.account_rows import AFTER, BEFORE, MONTH, RIVAL

from tollgate.api.billing import BillingChange
from tollgate.api.invoices import LineKind
from tollgate.api.teams import TeamChange
from tollgate.control.problems import InvalidInput, NoSuchTeam, NotFound, RoleNeeded
from tollgate.control.service_context import PageRequest
from tollgate.core.invoices import Invoice
from tollgate.core.months import end_of, start_of
from tollgate.core.pricing import MILLION

GRACE = 48 * HOUR
_SEVERAL = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def show(metering: Metering, month: str = MONTH, who: str = "owner") -> Invoice:
    return metering.do(metering.plane.invoices.show(metering.actor(who), "acme", month))


def listed(metering: Metering, wanted: PageRequest = ALL) -> list[tuple[str, bool]]:
    page = metering.do(metering.plane.invoices.list(metering.actor("owner"), "acme", wanted))
    return [(each.invoice.month, each.invoice.is_final) for each in page.items]


def close(metering: Metering) -> list[str]:
    return list(metering.do(metering.plane.invoices.close_due()))


def test_the_current_month_is_a_draft_also_without_a_call(metering: Metering) -> None:
    draft = show(metering)
    assert (draft.is_final, draft.team, draft.number) == (False, "acme", "TG-2026-11-acme000000000")
    assert [(line.kind, line.requests, line.amount) for line in draft.lines] == [
        (LineKind.FREE, 0, 0),
        (LineKind.ROUNDING, None, 0),
    ]
    assert listed(metering) == [(MONTH, False)]


def test_a_draft_grows_with_the_month(metering: Metering) -> None:
    metering.call(MILLION + 1_000)
    assert show(metering).cost == 5_000
    metering.call(1_000)
    assert show(metering).cost == 10_000


def test_a_month_becomes_final_when_its_grace_is_over_and_not_before(metering: Metering) -> None:
    metering.call(MILLION + 1_000)
    metering.clock.now = end_of(MONTH) + GRACE - 1
    assert MONTH not in close(metering)
    assert not show(metering).is_final
    metering.clock.now = end_of(MONTH) + GRACE
    assert close(metering) == [MONTH]
    assert (show(metering).is_final, show(metering).issued_at) == (True, metering.clock.now)
    assert close(metering) == []


def test_late_records_within_the_grace_still_count(metering: Metering) -> None:
    metering.call(MILLION)
    metering.clock.now = end_of(MONTH) + HOUR
    metering.call(1_000, end_of(MONTH) - 1)
    assert show(metering).cost == 5_000
    assert metering.do(metering.plane.invoices.show(metering.actor("owner"), "acme", AFTER)).billable == 0


def test_later_records_are_lines_of_the_next_invoice(metering: Metering) -> None:
    metering.call(MILLION)
    metering.clock.now = end_of(MONTH) + GRACE
    close(metering)
    metering.call(7, end_of(MONTH) - 1)
    metering.call(9)
    assert show(metering).billable == MILLION
    following = show(metering, AFTER)
    assert [(line.text, line.requests) for line in following.lines[:2]] == [
        ("Free requests, late requests of 2026-11", 7),
        ("Free requests", 9),
    ]
    metering.clock.now = end_of(AFTER) + GRACE
    assert close(metering) == [AFTER]
    assert show(metering, AFTER).lines == following.lines


def test_missed_months_are_closed_later(metering: Metering) -> None:
    for month in ("2026-08", BEFORE, MONTH):
        metering.call(5, start_of(month))
    metering.clock.now = start_of("2027-01") + GRACE
    # The last one as well, in which nothing happened.
    assert close(metering) == ["2026-08", BEFORE, MONTH, AFTER]
    assert listed(metering) == [("2027-01", False), (MONTH, True), (BEFORE, True), ("2026-08", True)]


def test_a_grace_of_zero_closes_at_once(metering: Metering) -> None:
    metering.charge(grace_hours=0)
    metering.call(5, start_of(BEFORE))
    assert close(metering) == [BEFORE]
    metering.clock.now = end_of(MONTH)
    assert close(metering) == [MONTH]


def test_the_month_before_is_a_draft_during_its_grace(metering: Metering) -> None:
    metering.call(5)
    metering.clock.now = end_of(MONTH) + HOUR
    assert listed(metering) == [(AFTER, False), (MONTH, False)]


def test_a_final_invoice_stays_the_same_under_new_prices_caps_and_names(metering: Metering) -> None:
    metering.set_billing(spending_cap_micros=DOLLAR)
    metering.call(2 * MILLION)
    metering.clock.now = end_of(MONTH) + GRACE
    close(metering)
    final = show(metering)
    assert [(line.kind, line.amount) for line in final.lines] == [
        (LineKind.FREE, 0),
        (LineKind.BILLED, 5 * DOLLAR),
        (LineKind.CAP, -4 * DOLLAR),
        (LineKind.ROUNDING, 0),
    ]
    metering.charge(micros_per_million=9 * DOLLAR, plan="per_started_million", free_requests=0)
    metering.do(metering.plane.teams.update(metering.actor("owner"), "acme", TeamChange("acme-two")))
    metering.do(
        metering.plane.billing.change(metering.actor("owner"), "acme-two", BillingChange(spending_cap_micros=None))
    )
    assert metering.do(metering.plane.invoices.show(metering.actor("owner"), "acme-two", MONTH)) == final


def test_a_team_that_is_gone_still_has_its_invoice(metering: Metering) -> None:
    metering.call(3)
    metering.call(4, team="team_gone00000000")
    metering.clock.now = end_of(MONTH) + GRACE
    close(metering)
    made = metering.do(metering.book.invoices(10, month=MONTH))
    assert [(each.team, each.billable) for each in made] == [("acme", 3), ("team_gone00000000", 4)]


@pytest.mark.parametrize("size", [1, 2])
def test_pages_have_every_invoice_once_newest_first(metering: Metering, size: int) -> None:
    for number in range(1, 10):
        metering.call(number, start_of(f"2026-{number:02d}"))
    close(metering)
    found: list[str] = []
    wanted = PageRequest(size)
    while len(found) < 20:
        page = metering.do(metering.plane.invoices.list(metering.actor("owner"), "acme", wanted))
        found += [each.invoice.month for each in page.items]
        if page.next is None:
            break
        wanted = PageRequest(size, page.next)
    assert found == [MONTH, *(f"2026-{number:02d}" for number in range(9, 0, -1))]


@pytest.mark.parametrize("month", [BEFORE, AFTER, "1999-01"])
def test_a_month_without_usage_has_no_invoice(metering: Metering, month: str) -> None:
    metering.refused(NotFound, metering.plane.invoices.show(metering.actor("owner"), "acme", month))


def test_a_closed_month_without_usage_has_none_either(metering: Metering) -> None:
    metering.call(5, team=RIVAL)
    metering.clock.now = end_of(MONTH) + GRACE
    close(metering)
    metering.refused(NotFound, metering.plane.invoices.show(metering.actor("owner"), "acme", MONTH))
    assert listed(metering) == [(AFTER, False)]


def test_a_bad_month_names_the_accepted_form(metering: Metering) -> None:
    refusal = metering.refused(InvalidInput, metering.plane.invoices.show(metering.actor("owner"), "acme", "last"))
    assert MONTH in refusal.detail


@pytest.mark.parametrize("who", ["owner", "admin", "billing"])
def test_owners_admins_and_billing_members_may_see_invoices(metering: Metering, who: str) -> None:
    assert show(metering, who=who).team == "acme"


@pytest.mark.parametrize(
    ("who", "problem"), [("developer", RoleNeeded), ("viewer", RoleNeeded), ("outsider", NoSuchTeam)]
)
def test_other_roles_may_not_see_invoices(metering: Metering, who: str, problem: type[Exception]) -> None:
    metering.refused(problem, metering.plane.invoices.show(metering.actor(who), "acme", MONTH))
    metering.refused(problem, metering.plane.invoices.list(metering.actor(who), "acme", ALL))


# ---- immutable


async def _whatever(work: Awaitable[Any]) -> None:
    try:
        await work
    except Exception:  # noqa: BLE001 - that something is refused is no matter here
        return


def _guess(name: str, metering: Metering) -> Any:
    """Something that fits a parameter of that name."""
    known: dict[str, Any] = {
        "actor": metering.actor("owner"),
        "team": "acme",
        "month": MONTH,
        "page": ALL,
        "change": BillingChange(spending_cap_micros=0, alert_webhook="https://hooks.example/", alert_emails=False),
        "by": "day",
        "name": "acme",
        "if_match": None,
    }
    return known.get(name)


def test_no_method_of_any_service_changes_what_is_final(metering: Metering) -> None:
    metering.call(MILLION + 123_457)
    metering.clock.now = end_of(MONTH) + GRACE
    close(metering)
    final, stored = show(metering), metering.books.sql("SELECT * FROM invoices")
    tried = 0
    for service in vars(metering.plane).values():
        for name, method in inspect.getmembers(service, inspect.iscoroutinefunction):
            if name.startswith("_") or name == "close":
                continue
            metering.clock.advance(DAY)
            given = inspect.signature(method).parameters.values()
            values = {each.name: _guess(each.name, metering) for each in given if each.kind not in _SEVERAL}
            metering.do(_whatever(method(**values)))
            tried += 1
    assert tried > 50
    metering.call(5, end_of(MONTH) - 1)
    metering.clock.now = start_of("2027-06")
    close(metering)
    assert metering.books.sql("SELECT * FROM invoices WHERE month = ?", MONTH) == stored
    assert metering.do(metering.book.bill(ACME.id, MONTH)).invoice == final


def test_deleted_team_that_owes_is_invoiced_as_it_was_addressed(metering: Metering) -> None:
    owner = metering.actor("owner")
    change = BillingChange(spending_cap_micros=50 * DOLLAR, buyer="Acme Ltd\n1 Quay", tax_number="IE1")
    metering.do(metering.plane.billing.change(owner, "acme", change))
    metering.call(MILLION + 1_000)
    metering.do(metering.plane.teams.delete(owner, "acme"))
    metering.clock.now = end_of(MONTH) + GRACE
    assert close(metering) == [MONTH]
    (invoice,) = metering.do(metering.book.invoices(10, team_id=ACME.id))
    assert (invoice.team, invoice.buyer, invoice.tax_number) == ("acme", "Acme Ltd\n1 Quay", "IE1")
    assert (invoice.cost, invoice.spending_cap) == (5_000, 50 * DOLLAR)
    assert invoice.emails == ("owner@acme.example", "billing@acme.example")
