"""Reporting to a payment service: each invoice once, against a scripted one that remembers keys as Stripe does."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from tests.control.metering import Metering
from tests.control.services.harness import ACME, DAY, HOUR, RIVAL
from tests.store.account_rows import BEFORE, MONTH

from tollgate.control.services.reports import Reports
from tollgate.control.stripe import InvoiceItem, StripeRefused, StripeUnsure
from tollgate.core.invoices import CUSTOMER, INVOICE_ITEM, Report
from tollgate.core.months import end_of, start_of
from tollgate.core.pricing import MILLION
from tollgate.store.repository import SqlRepository


class Killed(BaseException):
    """Raised in place of a kill."""


class Scripted:
    """Does a thing once for each key. `before` and `after` are raised before and after it does the next one."""

    def __init__(self) -> None:
        self.customers: dict[str, str] = {}
        self.items: dict[str, InvoiceItem] = {}
        self.before: list[BaseException] = []
        self.after: list[BaseException] = []
        self.attempts = 0
        self.emails: list[str] = []

    def forget(self) -> None:
        """Forget all keys, but not what was done."""
        self.customers = {f"forgotten {key}": made for key, made in self.customers.items()}
        self.items = {f"forgotten {key}": made for key, made in self.items.items()}

    def _begin(self) -> None:
        self.attempts += 1
        if self.before:
            raise self.before.pop()

    def _end(self) -> None:
        if self.after:
            raise self.after.pop()

    async def create_customer(self, team_id: str, name: str, key: str, email: str = "") -> str:
        self._begin()
        self.emails.append(email)
        made = self.customers.setdefault(key, team_id)
        self._end()
        return f"cus_{made}"

    async def create_item(self, item: InvoiceItem, key: str) -> str:
        self._begin()
        self.items.setdefault(key, item)
        self._end()
        return f"ii_{key}"

    async def close(self) -> None:
        pass


@pytest.fixture
def payments(metering: Metering) -> Scripted:
    """A month is closed, in which acme owes five dollars and rival nothing."""
    metering.call(2 * MILLION)
    metering.call(3, team=RIVAL.id)
    metering.clock.now = end_of(MONTH) + 48 * HOUR
    metering.do(metering.plane.invoices.close_due())
    return Scripted()


def run(metering: Metering, payments: Scripted) -> None:
    """As a process does that was just started."""
    metering.do(Reports(metering.plane.context, metering.book, payments).run())


def rows(metering: Metering) -> list[Report]:
    return metering.write(lambda records: records.reports.page(10))


def test_an_invoice_is_reported_once_whatever_is_restarted(metering: Metering, payments: Scripted) -> None:
    for _ in range(3):
        run(metering, payments)
        metering.clock.advance(HOUR)
    assert list(payments.customers.values()) == [ACME.id]
    assert list(payments.items.values()) == [
        InvoiceItem(
            customer=f"cus_{ACME.id}",
            cents=500,
            text="2,000,000 requests in 2026-11 (TG-2026-11-acme000000000)",
            number="TG-2026-11-acme000000000",
            start=int(start_of(MONTH)),
            end=int(end_of(MONTH)),
        )
    ]
    assert payments.attempts == 2
    assert sorted((row.kind, row.month) for row in rows(metering)) == [(CUSTOMER, ""), (INVOICE_ITEM, MONTH)]


def test_an_invoice_of_one_cent_is_reported(metering: Metering) -> None:
    metering.call(MILLION + 2_000)
    metering.clock.now = end_of(MONTH) + 48 * HOUR
    metering.do(metering.plane.invoices.close_due())
    payments = Scripted()
    run(metering, payments)
    assert [item.cents for item in payments.items.values()] == [1]


def test_a_node_that_finds_another_at_the_same_report_goes_on_with_its_key(
    metering: Metering, payments: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a key of its own it would charge twice."""
    theirs = [Report("rep_1", ACME.id, "", CUSTOMER, 0.0), Report("rep_2", ACME.id, MONTH, INVOICE_ITEM, 0.0)]
    find, unseen = SqlRepository.find, {row.kind for row in theirs}

    async def find_too_early(repository: SqlRepository[Any], **where: Any) -> object:
        if where.get("kind") in unseen:
            unseen.remove(where["kind"])
            return None
        return await find(repository, **where)

    for row in theirs:
        metering.write(lambda records, row=row: records.reports.add(row))  # type: ignore[misc]
    monkeypatch.setattr(SqlRepository, "find", find_too_early)
    run(metering, payments)
    assert (list(payments.customers), list(payments.items)) == (["rep_1"], ["rep_2"])
    assert not unseen


def test_nothing_is_reported_of_a_month_that_is_open(metering: Metering) -> None:
    metering.call(2 * MILLION)
    payments = Scripted()
    run(metering, payments)
    assert payments.attempts == 0


def test_the_next_month_goes_to_the_same_customer(metering: Metering, payments: Scripted) -> None:
    run(metering, payments)
    metering.call(2 * MILLION)
    metering.clock.now = end_of("2026-12") + 48 * HOUR
    metering.do(metering.plane.invoices.close_due())
    run(metering, payments)
    assert len(payments.customers) == 1
    assert [item.number[:10] for item in payments.items.values()] == ["TG-2026-11", "TG-2026-12"]


def test_years_of_old_invoices_are_left_alone(metering: Metering, payments: Scripted) -> None:
    metering.clock.now = start_of("2027-03")
    run(metering, payments)
    assert payments.attempts == 0


@pytest.mark.parametrize("lost", [StripeUnsure("no answer"), Killed()])
def test_an_answer_that_was_lost_is_requested_again_with_the_same_key(
    metering: Metering, payments: Scripted, lost: BaseException
) -> None:
    run_until_item(metering, payments)
    payments.after.append(lost)
    _survive(metering, payments)
    metering.clock.advance(HOUR)
    run(metering, payments)
    assert len(payments.items) == 1
    assert all(row.reference for row in rows(metering))


def run_until_item(metering: Metering, payments: Scripted) -> None:
    """Let there be a customer, but no item yet."""
    payments.before = [StripeRefused("not now")]
    run(metering, payments)
    assert payments.customers == {}
    run_once = Reports(metering.plane.context, metering.book, payments)
    metering.do(run_once._once(ACME.id, "", CUSTOMER, lambda key: payments.create_customer(ACME.id, "acme", key)))


def _survive(metering: Metering, payments: Scripted) -> None:
    with suppress(Killed):
        run(metering, payments)


@pytest.mark.parametrize("lost", [StripeUnsure("no answer"), Killed()])
def test_no_team_is_charged_twice_when_keys_have_expired(
    metering: Metering, payments: Scripted, lost: BaseException
) -> None:
    run_until_item(metering, payments)
    payments.after.append(lost)
    _survive(metering, payments)
    payments.forget()
    metering.clock.advance(DAY)
    run(metering, payments)
    assert len(payments.items) == 1


def test_refused_report_is_retried_until_it_succeeds(metering: Metering, payments: Scripted) -> None:
    for _ in range(5):
        payments.before = [StripeRefused("no such thing")]
        run(metering, payments)
        metering.clock.advance(DAY)
    run(metering, payments)
    assert len(payments.items) == 1


def test_one_team_s_failure_does_not_hold_up_the_others(metering: Metering) -> None:
    metering.call(2 * MILLION, start_of(BEFORE))
    metering.call(2 * MILLION, start_of(BEFORE), team=RIVAL.id)
    metering.do(metering.plane.invoices.close_due())
    payments = Scripted()
    payments.before = [StripeRefused("no such thing")]
    run(metering, payments)
    assert [item.customer for item in payments.items.values()] == [f"cus_{RIVAL.id}"]


def test_two_at_once_charge_once(metering: Metering, payments: Scripted) -> None:
    metering.at_once(*(Reports(metering.plane.context, metering.book, payments).run() for _ in range(4)))
    run(metering, payments)
    assert (len(payments.customers), len(payments.items)) == (1, 1)
