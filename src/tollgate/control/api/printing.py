"""Invoices for spreadsheets and for paper, made from the API's JSON, so that all formats agree."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
from importlib import resources
from itertools import zip_longest

from jinja2 import Environment, StrictUndefined
from litestar import Response
from msgspec import Struct

from tollgate.control.api import pdf
from tollgate.control.api.money import InvoiceView
from tollgate.control.problems import NotFound
from tollgate.control.services.billing import BillingTerms
from tollgate.settings.model import PricingSettings

CSV, HTML, PDF = "text/csv", "text/html", "application/pdf"

_FILES = resources.files("tollgate.control.api")
_STYLE = _FILES.joinpath("invoice.css").read_text("utf-8")
_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()

HEADERS = {
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


def csv_of(invoice: InvoiceView) -> bytes:
    """Write a table: a row for each line, and one for the total (RFC 4180)."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(COLUMNS)
    head = [invoice.number, invoice.status, invoice.team, invoice.month]
    for place, line in enumerate(invoice.lines, 1):
        rest = [line.kind, line.text, line.of_month, line.requests, line.amount_micros, invoice.currency]
        writer.writerow(map(cell, [*head, place, *rest]))
    total = ["total", "Total", None, invoice.billable_requests, invoice.total_cents * 10_000, invoice.currency]
    writer.writerow(map(cell, [*head, len(invoice.lines) + 1, *total]))
    return out.getvalue().encode()


def cell(value: str | int | None) -> str | int | None:
    """A text that no spreadsheet calculates; numbers are ours, and may be negative."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


class Parties(Struct, frozen=True):
    """Who sells and who buys, line by line, as operator and team have written it."""

    seller: str = ""
    seller_tax_number: str = ""
    buyer: str = ""
    buyer_tax_number: str = ""

    @classmethod
    def of(cls, settings: PricingSettings, terms: BillingTerms) -> Parties:
        """From the settings of both."""
        return cls(settings.seller, settings.seller_tax_number, terms.buyer, terms.tax_number)

    def lines(self, who: str, otherwise: str) -> list[str]:
        """Name, address and tax number of the seller or the buyer."""
        text, tax = (
            (self.seller, self.seller_tax_number) if who == "seller" else (self.buyer, self.buyer_tax_number)
        )
        return [*(text or otherwise).splitlines(), *([f"Tax number {tax}"] if tax else [])]


def file_of(invoice: InvoiceView, parties: Parties, form: str, base_url: str) -> Response[bytes]:
    """An invoice in one of the forms that are not JSON."""
    plain = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    named = {**plain, "Content-Disposition": f'attachment; filename="{invoice.number}.{form}"'}
    if form == "csv":
        return Response(csv_of(invoice), media_type=CSV, headers=named)
    if form == "pdf":
        return Response(pdf_of(invoice, parties, base_url), media_type=PDF, headers=named)
    if form == "html":
        return Response(page_of(invoice, base_url, parties), media_type=HTML, headers={**plain, **HEADERS})
    raise NotFound("An invoice is had as html, pdf or csv.")


def pdf_of(invoice: InvoiceView, parties: Parties, base_url: str) -> bytes:
    """Write the same as PDF."""
    right = pdf.WIDTH - pdf.MARGIN
    left, middle = pdf.MARGIN, pdf.WIDTH // 2
    issued = f"Issued {invoice.issued_at:%Y-%m-%d}" if invoice.issued_at else "Draft: more may be added"
    lines: list[pdf.Line] = [
        [pdf.Text(left, "Invoice", 20, bold=True), pdf.Text(right, invoice.number, right=True)],
        [
            pdf.Text(
                left, f"{invoice.period_start:%Y-%m-%d} up to, not including, {invoice.period_end:%Y-%m-%d} (UTC)"
            )
        ],
        [pdf.Text(left, issued)],
        [],
        [pdf.Text(left, "From", bold=True), pdf.Text(middle, "To", bold=True)],
    ]
    seller, buyer = parties.lines("seller", base_url), parties.lines("buyer", invoice.team)
    for ours, theirs in zip_longest(seller, buyer, fillvalue=""):
        lines.append([pdf.Text(left, ours), pdf.Text(middle, theirs)])
    lines += [
        [],
        [
            pdf.Text(left, "What", bold=True),
            pdf.Text(right - 100, "Requests", bold=True, right=True),
            pdf.Text(right, "Amount (USD)", bold=True, right=True),
        ],
        pdf.Rule(),
    ]
    for line in invoice.lines:
        requests = "" if line.requests is None else f"{line.requests:,}"
        lines.append(
            [
                pdf.Text(left, line.text),
                pdf.Text(right - 100, requests, right=True),
                pdf.Text(right, line.amount, right=True),
            ]
        )
    lines += [
        pdf.Rule(),
        [pdf.Text(left, "Total", 12, bold=True), pdf.Text(right, invoice.total, 12, bold=True, right=True)],
    ]
    return pdf.document(f"Invoice {invoice.number}", lines)


def page_of(invoice: InvoiceView, base_url: str, parties: Parties | None = None) -> bytes:
    """Write a page to print: one file, no script, nothing from elsewhere."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["number"] = lambda value: f"{value:,}"
    environment.filters["day"] = lambda moment: moment.strftime("%Y-%m-%d")
    template = environment.from_string(_FILES.joinpath("invoice.html").read_text("utf-8"))
    parties = parties or Parties()
    return template.render(
        invoice=invoice,
        style=_STYLE,
        seller=parties.lines("seller", base_url),
        buyer=parties.lines("buyer", invoice.team),
    ).encode()
