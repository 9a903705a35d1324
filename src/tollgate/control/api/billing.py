"""What a team uses, its spending cap and alerts, and its invoices: as JSON, for spreadsheets, and to print.

An invoice's table and page are made from what the API shows as JSON, so that they say the same.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
from importlib import resources

from jinja2 import Environment, StrictUndefined
from litestar import Response

from tollgate.control.api import bodies, money, reading
from tollgate.control.api.access import Asked, Part, Plane, Who
from tollgate.control.api.errors import NO_STORE
from tollgate.control.api.operations import INVOICES, USAGE, Operation, Query, endpoint
from tollgate.control.api.render import Answer, listed, shown
from tollgate.control.problems import InvalidInput, RoleNeeded
from tollgate.control.services.billing import BillingUpdate
from tollgate.control.services.invoices import Listed
from tollgate.core import months
from tollgate.core.usage import By

FORMATS = ("json", "csv", "html")
CSV, HTML = "text/csv", "text/html"

_FILES = resources.files("tollgate.control.api")
_STYLE = _FILES.joinpath("invoice.css").read_text("utf-8")
_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()

PAGE_HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}

COLUMNS = (
    *("number", "status", "team", "month", "line", "kind", "text", "of_month"),
    *("requests", "amount_micros", "currency"),
)
# What spreadsheets take for the beginning of a formula (OWASP, CSV injection).
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


@endpoint(
    "GET",
    "/teams/{team}/usage",
    Operation(
        id="getUsage",
        tag=USAGE,
        summary="Show what a team used in a month, and what it costs",
        description=(
            "Of the billing month: calls whose records came after their own month was closed are in the next. "
            "The items add up to the month exactly; of more than 1,000 the least stand together."
        ),
        query=(
            Query(
                "month",
                "A calendar month in UTC. Left out: the current one.",
                {"type": "string", "pattern": f"^{months.PATTERN}$", "examples": ["2026-11"]},
            ),
            Query(
                "by",
                "What the items are.",
                {"type": "string", "enum": [by.value for by in By], "default": By.DAY.value},
            ),
        ),
        gives=money.Usage,
        raises=(InvalidInput,),
    ),
)
async def show_usage(request: Asked, plane: Plane, actor: Who, team: Part) -> Answer:
    month, by = reading.query(request, "month"), reading.query(request, "by")
    found = await plane.usage.of_team(actor, team, month, By.DAY if by is None else by)
    return shown(money.usage(found))


@endpoint(
    "GET",
    "/teams/{team}/billing",
    Operation(
        id="getBilling",
        tag=USAGE,
        summary="Show a team's spending cap and alerts",
        gives=money.Billing,
        tagged=True,
        raises=(RoleNeeded,),
    ),
)
async def show_billing(plane: Plane, actor: Who, team: Part) -> Answer:
    terms = await plane.billing.show(actor, team)
    return shown(money.billing(terms), terms)


@endpoint(
    "PATCH",
    "/teams/{team}/billing",
    Operation(
        id="updateBilling",
        tag=USAGE,
        summary="Set the spending cap and the alerts",
        description=(
            "What is left out stays as it is. A cap takes effect within 5 seconds: calls are then refused with "
            "402 until the month ends or the cap is raised, and nothing above it is charged. The receiver of "
            "the webhook checks `X-Tollgate-Signature: t=<unix time>,v1=<hex>`: the HMAC-SHA-256, under the "
            "secret, of the time, a dot and the body. Setting a webhook again makes another secret."
        ),
        takes=bodies.BillingChange,
        conditional=True,
        gives=money.BillingWithSecret,
        tagged=True,
        raises=(RoleNeeded,),
    ),
)
async def update_billing(request: Asked, plane: Plane, actor: Who, team: Part) -> Answer:
    sent = await reading.body(request, bodies.BillingChange)
    change = BillingUpdate(sent.spending_cap_micros, sent.alert_webhook, sent.alert_emails)
    terms, secret = await plane.billing.change(actor, team, change, reading.if_match(request))
    return shown(money.billing_with_secret(terms, secret), terms)


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
    return listed(await plane.invoices.list(actor, team, reading.page(request)), _invoice_head)


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
        gives=money.InvoiceView,
        also_text=(CSV, HTML),
        raises=(InvalidInput, RoleNeeded),
    ),
)
async def show_invoice(request: Asked, plane: Plane, actor: Who, team: Part, month: Part) -> Answer:
    form = _format(request)
    found = money.invoice(await plane.invoices.show(actor, team, month))
    if form == "csv":
        name = f'attachment; filename="{found.number}.csv"'
        headers = {**NO_STORE, "Content-Disposition": name, "X-Content-Type-Options": "nosniff"}
        return Response(csv_of(found), media_type=CSV, headers=headers)
    if form == "html":
        headers = {**NO_STORE, **PAGE_HEADERS}
        return Response(page_of(found, plane.base_url), media_type=HTML, headers=headers)
    return shown(found)


def _format(request: Asked) -> str:
    """What the query wants, or without it the header, where JSON goes before CSV if both are welcome."""
    chosen = reading.query(request, "format")
    if chosen is None:
        accepted = [
            part.partition(";")[0].strip().lower() for part in request.headers.get("accept", "").split(",")
        ]
        return "csv" if CSV in accepted and reading.JSON not in accepted else "json"
    if chosen not in FORMATS:
        raise InvalidInput(f"`format` is one of {', '.join(FORMATS)}.", field="format")
    return chosen


def _invoice_head(row: Listed) -> money.InvoiceHead:
    return money.invoice_head(row.invoice)


def csv_of(invoice: money.InvoiceView) -> bytes:
    """Write a table: a row for each line, and one for the total (RFC 4180)."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(COLUMNS)
    head = [invoice.number, invoice.status, invoice.team, invoice.month]
    for place, line in enumerate(invoice.lines, 1):
        rest = [line.kind, line.text, line.of_month, line.requests, line.amount_micros, invoice.currency]
        writer.writerow(map(_cell, [*head, place, *rest]))
    total = ["total", "Total", None, invoice.billable_requests, invoice.total_cents * 10_000, invoice.currency]
    writer.writerow(map(_cell, [*head, len(invoice.lines) + 1, *total]))
    return out.getvalue().encode()


def _cell(value: str | int | None) -> str | int | None:
    """A text that no spreadsheet calculates; numbers are ours, and may be negative."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def page_of(invoice: money.InvoiceView, base_url: str) -> bytes:
    """Write a page to print: one file, no script, nothing from elsewhere."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["number"] = lambda value: f"{value:,}"
    environment.filters["day"] = lambda moment: moment.strftime("%Y-%m-%d")
    template = environment.from_string(_FILES.joinpath("invoice.html").read_text("utf-8"))
    return template.render(invoice=invoice, base_url=base_url, style=_STYLE).encode()


HANDLERS = [show_usage, show_billing, update_billing, list_invoices, show_invoice]
