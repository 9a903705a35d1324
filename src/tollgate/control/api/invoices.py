"""Invoices as JSON, as CSV for spreadsheets and as a page to print, all made from the API's answer."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime
from typing import Any

from litestar import Response
from msgspec import UNSET, Struct
from msgspec.structs import asdict

from tollgate.api import invoices
from tollgate.api.base import CSV, HTML, JSON
from tollgate.api.invoices import Invoice, InvoiceHead, InvoiceLine, InvoicePage, InvoiceQuery
from tollgate.control.api.access import CurrentActor, HttpRequest, Part, Plane
from tollgate.control.api.errors import NO_STORE
from tollgate.control.api.operations import INVOICES, serves
from tollgate.control.api.reading import Wanted, WantedPage
from tollgate.control.api.render import StandalonePage, page_of, unstored
from tollgate.control.problems import InvalidInput, NotFound, RoleNeeded
from tollgate.control.services.billing import BillingTerms
from tollgate.core import invoices as core
from tollgate.core.logs import csv_cell
from tollgate.core.months import end_of, start_of
from tollgate.core.pricing import dollars
from tollgate.settings.model import PricingSettings

COLUMNS = (
    *("number", "status", "team", "month", "line", "kind", "text", "of_month"),
    *("requests", "amount_micros", "currency"),
)
_PAGE = StandalonePage(
    "invoice", number=lambda value: f"{value:,}", day=lambda moment: moment.strftime("%Y-%m-%d")
)


@serves(invoices.LIST, RoleNeeded, tag=INVOICES)
async def list_invoices(plane: Plane, actor: CurrentActor, team: Part, page: WantedPage) -> Response[InvoicePage]:
    """List a team's invoices, newest first.

    The current month is a draft, and so is the previous one during its grace period.
    """
    return page_of(InvoicePage, await plane.invoices.list(actor, team, page), lambda listed: _head(listed.invoice))


@serves(invoices.SHOW, InvalidInput, RoleNeeded, tag=INVOICES)
async def get_invoice(
    request: HttpRequest, plane: Plane, actor: CurrentActor, team: Part, month: Part, wanted: Wanted[InvoiceQuery]
) -> Response[Invoice]:
    """Show the invoice of a month.

    As CSV with `format=csv` or `Accept: text/csv`; as a page to print, or to save as PDF, with `format=html`.
    """
    form = _accepted(request) if wanted.format is UNSET else wanted.format
    found = shown(await plane.invoices.show(actor, team, month))
    if form == "json":
        return unstored(found)
    parties = Parties.of(plane.settings.billing, await plane.billing.show(actor, team))
    return file_of(found, parties, form, plane.base_url)


def _accepted(request: HttpRequest) -> str:
    """The format by the `Accept` header: JSON if both JSON and CSV are accepted."""
    accepted = [part.partition(";")[0].strip().lower() for part in request.headers.get("accept", "").split(",")]
    return "csv" if CSV in accepted and JSON not in accepted else "json"


def _head(invoice: core.Invoice) -> InvoiceHead:
    return InvoiceHead(
        number=invoice.number,
        month=invoice.month,
        status="final" if invoice.is_final else "draft",
        issued_at=None if invoice.issued_at is None else datetime.fromtimestamp(invoice.issued_at, UTC),
        requests=invoice.requests,
        billable_requests=invoice.billable,
        cost_micros=invoice.cost,
        total_cents=invoice.total_cents,
        total=dollars(invoice.total),
    )


def shown(invoice: core.Invoice) -> Invoice:
    """An invoice as the API shows it."""
    return Invoice(
        **asdict(_head(invoice)),
        team_id=invoice.team_id,
        team=invoice.team,
        period_start=datetime.fromtimestamp(start_of(invoice.month), UTC),
        period_end=datetime.fromtimestamp(end_of(invoice.month), UTC),
        currency="usd",
        plan=invoice.plan,
        free_requests=invoice.free_requests,
        micros_per_million=invoice.micros_per_million,
        spending_cap_micros=invoice.spending_cap,
        lines=[
            InvoiceLine(each.kind, each.text, each.of_month, each.requests, each.amount, dollars(each.amount))
            for each in invoice.lines
        ],
    )


class Parties(Struct, frozen=True):
    """Seller and buyer, as the operator and the team wrote them, line by line."""

    seller: str = ""
    seller_tax_number: str = ""
    buyer: str = ""
    buyer_tax_number: str = ""

    @classmethod
    def of(cls, settings: PricingSettings, terms: BillingTerms) -> Parties:
        return cls(settings.seller, settings.seller_tax_number, terms.buyer, terms.tax_number)


def file_of(invoice: Invoice, parties: Parties, form: str, base_url: str) -> Response[Any]:
    """An invoice as CSV, or as a page to print: one file without scripts that loads nothing."""
    headers = {**NO_STORE, "X-Content-Type-Options": "nosniff"}
    if form == "csv":
        headers["Content-Disposition"] = f'attachment; filename="{invoice.number}.csv"'
        return Response(csv_of(invoice), media_type=CSV, headers=headers)
    if form == "html":
        page = _PAGE.render(
            invoice=invoice,
            seller=_lines(parties.seller or base_url, parties.seller_tax_number),
            buyer=_lines(parties.buyer or invoice.team, parties.buyer_tax_number),
        )
        return Response(page, media_type=HTML, headers=headers | _PAGE.headers)
    raise NotFound("An invoice is available as html or csv.")


def _lines(party: str, tax_number: str) -> list[str]:
    return [*party.splitlines(), *([f"Tax number {tax_number}"] if tax_number else [])]


def csv_of(invoice: Invoice) -> bytes:
    """Write a table: a row for each line, and one for the total (RFC 4180)."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(COLUMNS)
    head = [invoice.number, invoice.status, invoice.team, invoice.month]
    for place, line in enumerate(invoice.lines, 1):
        rest = [line.kind, line.text, line.of_month, line.requests, line.amount_micros, invoice.currency]
        writer.writerow(map(csv_cell, [*head, place, *rest]))
    total = ["total", "Total", None, invoice.billable_requests, invoice.total_cents * 10_000, invoice.currency]
    writer.writerow(map(csv_cell, [*head, len(invoice.lines) + 1, *total]))
    return out.getvalue().encode()
