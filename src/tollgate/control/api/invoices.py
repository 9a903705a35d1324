"""Invoices, as JSON, as a table for spreadsheets, and as a page to print."""

from __future__ import annotations

from litestar import Response

from tollgate.control.api import money, printing, reading
from tollgate.control.api.access import Asked, Part, Plane, Who
from tollgate.control.api.errors import NO_STORE
from tollgate.control.api.operations import INVOICES, Operation, Query, endpoint
from tollgate.control.api.render import Answer, listed, shown
from tollgate.control.problems import InvalidRequest, RoleNeeded
from tollgate.control.services.invoices import Listed

FORMATS = ("json", "csv", "html")


@endpoint(
    "GET",
    "/teams/{team}/invoices",
    Operation(
        id="listInvoices",
        tag=INVOICES,
        summary="List a team's invoices, newest first",
        description="The current month is a draft, and so is the one before while late records still count.",
        lists=True,
        gives=money.InvoicePage,
        raises=(RoleNeeded,),
    ),
)
async def list_invoices(request: Asked, plane: Plane, actor: Who, team: Part) -> Answer:
    """List a team's invoices."""
    return listed(await plane.invoices.list(actor, team, reading.page(request)), _head)


@endpoint(
    "GET",
    "/teams/{team}/invoices/{month}",
    Operation(
        id="getInvoice",
        tag=INVOICES,
        summary="Show the invoice of a month",
        description="As CSV with `format=csv` or `Accept: text/csv`; as a page to print with `format=html`.",
        query=(
            Query(
                "format",
                "How it is shown.",
                {"type": "string", "enum": list(FORMATS), "default": FORMATS[0]},
            ),
        ),
        gives=money.Invoice,
        also_text=(printing.CSV, printing.HTML),
        raises=(InvalidRequest, RoleNeeded),
    ),
)
async def show(request: Asked, plane: Plane, actor: Who, team: Part, month: Part) -> Answer:
    """Show the invoice of a month."""
    form = _format(request)
    found = money.invoice(await plane.invoices.show(actor, team, month))
    if form == "csv":
        name = f'attachment; filename="{found.number}.csv"'
        headers = {**NO_STORE, "Content-Disposition": name, "X-Content-Type-Options": "nosniff"}
        return Response(printing.csv_of(found), media_type=printing.CSV, headers=headers)
    if form == "html":
        headers = {**NO_STORE, **printing.HEADERS}
        return Response(printing.page_of(found, plane.base_url), media_type=printing.HTML, headers=headers)
    return shown(found)


def _format(request: Asked) -> str:
    """What the query wants, or without it the header, where JSON goes before CSV if both are welcome."""
    chosen = reading.query(request, "format")
    if chosen is None:
        accepted = [
            part.partition(";")[0].strip().lower() for part in request.headers.get("accept", "").split(",")
        ]
        return "csv" if printing.CSV in accepted and reading.JSON not in accepted else "json"
    if chosen not in FORMATS:
        raise InvalidRequest(f"`format` is one of {', '.join(FORMATS)}.", field="format")
    return chosen


def _head(row: Listed) -> money.InvoiceHead:
    return money.invoice_head(row.invoice)


HANDLERS = [list_invoices, show]
