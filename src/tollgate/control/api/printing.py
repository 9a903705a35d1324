"""Invoices for spreadsheets and for paper. Made from what the API shows as JSON, so that they say the same."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
from importlib import resources

from jinja2 import Environment, StrictUndefined

from tollgate.control.api.money import Invoice

CSV, HTML = "text/csv", "text/html"

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


def csv_of(invoice: Invoice) -> bytes:
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


def page_of(invoice: Invoice, base_url: str) -> bytes:
    """Write a page to print: one file, no script, nothing from elsewhere."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["number"] = lambda value: f"{value:,}"
    environment.filters["day"] = lambda moment: moment.strftime("%Y-%m-%d")
    template = environment.from_string(_FILES.joinpath("invoice.html").read_text("utf-8"))
    return template.render(invoice=invoice, base_url=base_url, style=_STYLE).encode()
