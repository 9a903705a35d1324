"""A page of text as PDF (ISO 32000): one A4 page after another, in the fonts that every reader has. No dependency.

Text is written in WinAnsi; a letter that it lacks becomes a question mark.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

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


def document(title: str, lines: Sequence[Line]) -> bytes:
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
