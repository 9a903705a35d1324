"""Invoices for spreadsheets and for paper, made from the API's JSON, so that all formats agree."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from itertools import zip_longest

from litestar import Response
from msgspec import Struct

from tollgate.control.api.money import InvoiceView
from tollgate.control.api.render import StandalonePage
from tollgate.control.problems import NotFound
from tollgate.control.services.billing import BillingTerms
from tollgate.core.logs import csv_text
from tollgate.settings.model import PricingSettings

CSV, HTML, PDF = "text/csv", "text/html", "application/pdf"
_PAGE = StandalonePage(
    "invoice", number=lambda value: f"{value:,}", day=lambda moment: moment.strftime("%Y-%m-%d")
)

COLUMNS = (
    *("number", "status", "team", "month", "line", "kind", "text", "of_month"),
    *("requests", "amount_micros", "currency"),
)


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
    return csv_text(value) if isinstance(value, str) else value


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
        return Response(page_of(invoice, base_url, parties), media_type=HTML, headers={**plain, **_PAGE.headers})
    raise NotFound("An invoice is had as html, pdf or csv.")


def pdf_of(invoice: InvoiceView, parties: Parties, base_url: str) -> bytes:
    """Write the same as PDF."""
    right = WIDTH - MARGIN
    left, middle = MARGIN, WIDTH // 2
    issued = f"Issued {invoice.issued_at:%Y-%m-%d}" if invoice.issued_at else "Draft: more may be added"
    lines: list[Line] = [
        [Text(left, "Invoice", 20, bold=True), Text(right, invoice.number, right=True)],
        [Text(left, f"{invoice.period_start:%Y-%m-%d} up to, not including, {invoice.period_end:%Y-%m-%d} (UTC)")],
        [Text(left, issued)],
        [],
        [Text(left, "From", bold=True), Text(middle, "To", bold=True)],
    ]
    seller, buyer = parties.lines("seller", base_url), parties.lines("buyer", invoice.team)
    for ours, theirs in zip_longest(seller, buyer, fillvalue=""):
        lines.append([Text(left, ours), Text(middle, theirs)])
    lines += [
        [],
        [
            Text(left, "What", bold=True),
            Text(right - 100, "Requests", bold=True, right=True),
            Text(right, "Amount (USD)", bold=True, right=True),
        ],
        Rule(),
    ]
    for line in invoice.lines:
        requests = "" if line.requests is None else f"{line.requests:,}"
        lines.append(
            [
                Text(left, line.text),
                Text(right - 100, requests, right=True),
                Text(right, line.amount, right=True),
            ]
        )
    lines += [
        Rule(),
        [Text(left, "Total", 12, bold=True), Text(right, invoice.total, 12, bold=True, right=True)],
    ]
    return _pdf(f"Invoice {invoice.number}", lines)


def page_of(invoice: InvoiceView, base_url: str, parties: Parties | None = None) -> bytes:
    """Write a page to print: one file, no script, nothing from elsewhere."""
    parties = parties or Parties()
    return _PAGE.render(
        invoice=invoice,
        seller=parties.lines("seller", base_url),
        buyer=parties.lines("buyer", invoice.team),
    )


WIDTH, HEIGHT, MARGIN = 595, 842, 56
# Of Helvetica, for a thousandth of the size: digits and what stands between them are all that is aligned right.
_WIDTHS = {**dict.fromkeys("0123456789$-", 556), **dict.fromkeys(",. ", 278)}
_USUAL_WIDTH = 556
LINES_PER_PAGE = 40


class Text(Struct, frozen=True):
    """A piece of text: where it begins, or, aligned right, where it ends."""

    x: int
    text: str
    size: int = 10
    bold: bool = False
    right: bool = False


class Rule(Struct, frozen=True):
    """A line across the page."""


Line = Sequence[Text] | Rule


def _pdf(title: str, lines: Sequence[Line]) -> bytes:
    """Write a document of these lines, from top to bottom."""
    pages = [lines[start : start + LINES_PER_PAGE] for start in range(0, max(1, len(lines)), LINES_PER_PAGE)]
    kids = " ".join(f"{5 + 2 * place} 0 R" for place in range(len(pages)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica-Bold /Encoding /WinAnsiEncoding >>",
    ]
    for place, part in enumerate(pages):
        content = _content(part)
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 {WIDTH} {HEIGHT}] /Contents {6 + 2 * place} 0 R "
            "/Resources << /Font << /F1 3 0 R /F2 4 0 R >> >> >>".encode()
        )
        objects.append(b"<< /Length %d >>\nstream\n%b\nendstream" % (len(content), content))
    objects.append(b"<< /Title (%b) /Producer (Tollgate) >>" % _escaped(title))
    return _file(objects)


def _content(lines: Sequence[Line]) -> bytes:
    y, parts = HEIGHT - MARGIN - 20, []
    for line in lines:
        if isinstance(line, Rule):
            parts.append(b"0.8 G %d %d m %d %d l S" % (MARGIN, y + 8, WIDTH - MARGIN, y + 8))
            y -= 10
            continue
        for each in line:
            x = each.x - _width(each) if each.right else each.x
            parts.append(
                b"BT /F%d %d Tf %.1f %d Td (%b) Tj ET"
                % (2 if each.bold else 1, each.size, x, y, _escaped(each.text))
            )
        y -= 8 + max((each.size for each in line), default=10)
    return b"\n".join(parts)


def _width(each: Text) -> float:
    return each.size * sum(_WIDTHS.get(letter, _USUAL_WIDTH) for letter in each.text) / 1000


def _escaped(text: str) -> bytes:
    written = text.encode("cp1252", "replace")
    for mark in (b"\\", b"(", b")"):
        written = written.replace(mark, b"\\" + mark)
    return written


def _file(objects: Sequence[bytes]) -> bytes:
    out = bytearray(b"%PDF-1.4\n")
    places = []
    for number, content in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%b\nendobj\n" % (number, content)
    table = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % place for place in places)
    out += b"trailer\n<< /Size %d /Root 1 0 R /Info %d 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (
        len(objects) + 1,
        len(objects),
        table,
    )
    return bytes(out)
