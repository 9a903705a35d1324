"""Reports what teams owe to a payment service: each final invoice once, across restarts and lost responses.

Each report has a unique row, whose id holds the idempotency key. It is written before the first attempt and
completed after the last. While the service remembers keys, an attempt with an unknown result is repeated with the
same key; after that it is left to a person, because not charging is better than charging twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from tollgate import log
from tollgate.control.service_context import ServiceContext, required
from tollgate.control.stripe import KEYS_KEPT_SECONDS, InvoiceItem, Payments, StripeRefused, StripeUnsure
from tollgate.core import secrets
from tollgate.core.invoices import CUSTOMER, INVOICE_ITEM, Invoice, Report
from tollgate.core.months import end_of, month_of, previous_month, start_of
from tollgate.store.base import AccountBook, Conflict

EVERY_SECONDS = 600.0
# Of one month. More teams than this need another design.
MAX_INVOICES = 100_000
# An operator who enables the payment service does not want years to be charged at once.
MONTHS_BACK = 2
_log = log.get("reports")


class Reports:
    """Reports final invoices."""

    def __init__(self, context: ServiceContext, book: AccountBook | None, payments: Payments) -> None:
        self._context = context
        self._book = book
        self._payments = payments

    async def run(self) -> None:
        """Report every final invoice that is not reported yet."""
        month = month_of(self._context.now())
        for _ in range(MONTHS_BACK):
            month = previous_month(month)
            for invoice in await required(self._book).invoices(MAX_INVOICES, month=month):
                if invoice.total_cents > 0:
                    await self._report(invoice)

    async def _report(self, invoice: Invoice) -> None:
        try:
            team_id = invoice.team_id
            # Of a team that was deleted, no one else can be asked.
            email = next(iter(invoice.emails), "")
            customer = await self._once(
                team_id,
                "",
                CUSTOMER,
                lambda key: self._payments.create_customer(team_id, invoice.team, key, email),
            )
            if customer is None:
                return
            item = InvoiceItem(
                customer=customer,
                cents=invoice.total_cents,
                text=f"{invoice.billable:,} requests in {invoice.month} ({invoice.number})",
                number=invoice.number,
                start=int(start_of(invoice.month)),
                end=int(end_of(invoice.month)),
            )
            await self._once(
                team_id, invoice.month, INVOICE_ITEM, lambda key: self._payments.create_item(item, key)
            )
        except (StripeRefused, StripeUnsure) as error:
            _log.error("an invoice could not be reported", invoice=invoice.number, why=str(error))

    async def _once(
        self, team_id: str, month: str, kind: str, send: Callable[[str], Awaitable[str]]
    ) -> str | None:
        """Do something once; return the payment service's id of it, or None if a person has to look."""
        report = await self._known(team_id, month, kind)
        if report.reference:
            return report.reference
        now = self._context.now()
        if report.tried_at is not None and now - report.tried_at > KEYS_KEPT_SECONDS:
            message = "it is unknown whether this was charged: look for it at the payment service"
            _log.error(message, team=team_id, month=month, kind=kind, key=report.id)
            return None
        tried = report if report.tried_at is not None else replace(report, tried_at=now)
        await self._write(tried)
        try:
            reference = await send(report.id)
        except StripeRefused:
            # It remains unknown what an earlier attempt did.
            await self._write(report)
            raise
        await self._write(replace(tried, reference=reference))
        return reference

    async def _known(self, team_id: str, month: str, kind: str) -> Report:
        where = {"team_id": team_id, "month": month, "kind": kind}
        made = Report(secrets.new_id("rep"), team_id, month, kind, self._context.now())
        try:
            async with self._context.store.changing() as records:
                found = await records.reports.find(**where)
                if found is None:
                    await records.reports.add(made)
                return found or made
        except Conflict:
            async with self._context.store.reading() as records:
                return await records.reports.find(**where) or made

    async def _write(self, report: Report) -> None:
        async with self._context.store.changing() as records:
            await records.reports.replace(report)
