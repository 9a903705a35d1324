"""Reporting to a payment service: each invoice once, against a scripted one that remembers keys as Stripe does."""

from __future__ import annotations

from contextlib import suppress

import pytest
from tests.control.services.house import ACME, DAY, HOUR, RIVAL
from tests.control.till import Till
from tests.store.account_rows import BEFORE, MONTH

from tollgate.control.services.reports import Reports
from tollgate.control.stripe import InvoiceItem, StripeRefused, StripeUnsure
from tollgate.core.invoices import CUSTOMER, INVOICE_ITEM, Report
from tollgate.core.months import end_of, start_of
from tollgate.core.pricing import MILLION


class Killed(BaseException):
    """The process dies."""


class Scripted:
    """Does a thing once for each key. `before` and `after` are raised before and after it does the next one."""

    def __init__(self) -> None:
        self.customers: dict[str, str] = {}
        self.items: dict[str, InvoiceItem] = {}
        self.before: list[BaseException] = []
        self.after: list[BaseException] = []
        self.asked = 0

    def forget(self) -> None:
        """Forget all keys, but not what was done."""
        self.customers = {f"forgotten {key}": made for key, made in self.customers.items()}
        self.items = {f"forgotten {key}": made for key, made in self.items.items()}

    def _begin(self) -> None:
        self.asked += 1
        if self.before:
            raise self.before.pop()

    def _end(self) -> None:
        if self.after:
            raise self.after.pop()

    async def create_customer(self, team_id: str, name: str, key: str) -> str:
        self._begin()
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
def payments(till: Till) -> Scripted:
    """A month is closed, in which acme owes five dollars and rival nothing."""
    till.call(2 * MILLION)
    till.call(3, team=RIVAL.id)
    till.clock.now = end_of(MONTH) + 48 * HOUR
    till.do(till.plane.invoices.close_due())
    return Scripted()


def run(till: Till, payments: Scripted) -> None:
    """As a process does that was just started."""
    till.do(Reports(till.plane.context, till.book, payments).run())


def rows(till: Till) -> list[Report]:
    return till.write(lambda records: records.reports.page(10))


def test_an_invoice_is_reported_once_whatever_is_restarted(till: Till, payments: Scripted) -> None:
    for _ in range(3):
        run(till, payments)
        till.clock.advance(HOUR)
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
    assert payments.asked == 2
    assert sorted((row.kind, row.month) for row in rows(till)) == [(CUSTOMER, ""), (INVOICE_ITEM, MONTH)]


def test_nothing_is_reported_of_a_month_that_is_open(till: Till) -> None:
    till.call(2 * MILLION)
    payments = Scripted()
    run(till, payments)
    assert payments.asked == 0


def test_the_next_month_goes_to_the_same_customer(till: Till, payments: Scripted) -> None:
    run(till, payments)
    till.call(2 * MILLION)
    till.clock.now = end_of("2026-12") + 48 * HOUR
    till.do(till.plane.invoices.close_due())
    run(till, payments)
    assert len(payments.customers) == 1
    assert [item.number[:10] for item in payments.items.values()] == ["TG-2026-11", "TG-2026-12"]


def test_years_of_old_invoices_are_left_alone(till: Till, payments: Scripted) -> None:
    till.clock.now = start_of("2027-03")
    run(till, payments)
    assert payments.asked == 0


@pytest.mark.parametrize("lost", [StripeUnsure("no answer"), Killed()])
def test_an_answer_that_was_lost_is_asked_for_again_with_the_same_key(
    till: Till, payments: Scripted, lost: BaseException
) -> None:
    run_until_item(till, payments)
    payments.after.append(lost)
    _survive(till, payments)
    till.clock.advance(HOUR)
    run(till, payments)
    assert len(payments.items) == 1
    assert all(row.reference for row in rows(till))


def run_until_item(till: Till, payments: Scripted) -> None:
    """Let there be a customer, but no item yet."""
    payments.before = [StripeRefused("not now")]
    run(till, payments)
    assert payments.customers == {}
    run_once = Reports(till.plane.context, till.book, payments)
    till.do(run_once._once(ACME.id, "", CUSTOMER, lambda key: payments.create_customer(ACME.id, "acme", key)))


def _survive(till: Till, payments: Scripted) -> None:
    with suppress(Killed):
        run(till, payments)


@pytest.mark.parametrize("lost", [StripeUnsure("no answer"), Killed()])
def test_when_keys_are_forgotten_nobody_is_charged_twice(
    till: Till, payments: Scripted, lost: BaseException
) -> None:
    run_until_item(till, payments)
    payments.after.append(lost)
    _survive(till, payments)
    payments.forget()
    till.clock.advance(DAY)
    run(till, payments)
    assert len(payments.items) == 1


def test_what_was_refused_is_tried_for_as_long_as_it_takes(till: Till, payments: Scripted) -> None:
    for _ in range(5):
        payments.before = [StripeRefused("no such thing")]
        run(till, payments)
        till.clock.advance(DAY)
    run(till, payments)
    assert len(payments.items) == 1


def test_one_team_s_failure_does_not_hold_up_the_others(till: Till) -> None:
    till.call(2 * MILLION, start_of(BEFORE))
    till.call(2 * MILLION, start_of(BEFORE), team=RIVAL.id)
    till.do(till.plane.invoices.close_due())
    payments = Scripted()
    payments.before = [StripeRefused("no such thing")]
    run(till, payments)
    assert [item.customer for item in payments.items.values()] == [f"cus_{RIVAL.id}"]


def test_two_at_once_charge_once(till: Till, payments: Scripted) -> None:
    till.at_once(*(Reports(till.plane.context, till.book, payments).run() for _ in range(4)))
    run(till, payments)
    assert (len(payments.customers), len(payments.items)) == (1, 1)
