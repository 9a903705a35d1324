"""What the tool prints: tables and fields for people, columns for pipes, JSON for programs; messages to stderr.

Owns formatting only: routes and commands must not enter. `rich` is imported only when a table is drawn on a
terminal. Text from a server is escaped first, so that no name can move the cursor.
"""

from __future__ import annotations

import datetime
import os
import re
import sys
from typing import TYPE_CHECKING, Any

import click

from tollgate.lazy_module import LazyModule

if TYPE_CHECKING:
    import json
    import shutil
    import unicodedata
    from collections.abc import Iterable, Sequence

    import rich.console
    import rich.table
    import rich.text
else:
    # Not for help; rich only for a table on a terminal.
    json, rich, shutil, unicodedata = (LazyModule(name) for name in ("json", "rich", "shutil", "unicodedata"))

Cell = str | int | float | bool | datetime.datetime | None | list[str]

BAR = ""
"""The title of a column of bars, which is shown only to people."""

# C0 and C1 controls, line and paragraph separators, bidirectional marks, lone surrogates.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
_GAP = "  "
_BAR_COLUMNS = 20
_LANE_COLUMNS = 32
_STEPS = (("year", 31_536_000), ("month", 2_592_000), ("day", 86_400), ("hour", 3_600), ("minute", 60))
# Columns of states, whose cells are coloured by their first words. In others, a name may be such a word too.
_STATES = frozenset({"STATE", "STATUS", "BREAKER"})
_GOOD = ("active", "up", "ok", "yes", "final", "paid", "closed", "200")
_DOUBTFUL = ("lagging", "syncing", "unknown", "draft", "half", "capped", "disabled", "inactive", "expired")
_BAD = ("down", "forked", "wrong_chain", "open", "failed", "suspended", "stopped")
_COLOURS = {
    word: colour for colour, words in {"green": _GOOD, "yellow": _DOUBTFUL, "red": _BAD}.items() for word in words
}


# ---- where output goes


def on_terminal() -> bool:
    return sys.stdout.isatty()


def has_reader() -> bool:
    """Whether stdout or stderr is a terminal."""
    return on_terminal() or sys.stderr.isatty()


def wants_colour() -> bool:
    """Whether colours are wanted: https://no-color.org and the CLICOLOR convention."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("CLICOLOR_FORCE", "0") not in ("", "0"):
        return True
    return on_terminal() and os.environ.get("TERM") != "dumb"


def for_people() -> bool:
    """Whether output is for a person: on a terminal, or with colours forced."""
    return on_terminal() or wants_colour()


# ---- messages and JSON


def note(text: str) -> None:
    """Print a message to stderr, so that stdout has only data."""
    click.echo(clean(text, keep="\n"), err=True)


def as_json(value: Any, *, in_one_line: bool = False) -> None:
    click.echo(escaped(json.dumps(value, indent=None if in_one_line else 2, ensure_ascii=False)))


def clean(text: str, *, keep: str = "") -> str:
    """Write control characters as escapes."""

    def escape(found: re.Match[str]) -> str:
        code = ord(found[0])
        return found[0] if found[0] in keep else f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"

    return _UNSAFE.sub(escape, text)


def escaped(text: str) -> str:
    """JSON without control characters. They occur only inside strings, where an escape means the same."""
    return _UNSAFE.sub(lambda found: found[0] if found[0] == "\n" else f"\\u{ord(found[0]):04x}", text)


# ---- values


def spelled(cell: Cell, now: datetime.datetime | None) -> str:
    """Format a value; times relative to `now`, or in RFC 3339 without it."""
    if cell is None or cell in ("", []):
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, datetime.datetime):
        return relative(cell, now) if now else rfc3339(cell)
    return clean(", ".join(cell) if isinstance(cell, list) else str(cell))


def rfc3339(moment: datetime.datetime) -> str:
    """Format a time in UTC, to the second."""
    return moment.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def relative(moment: datetime.datetime, now: datetime.datetime) -> str:
    """Format a time relative to now: `3 minutes ago`, `in 2 days`."""
    seconds = (moment - now).total_seconds()
    for unit, size in _STEPS:
        number = int(abs(seconds) // size)
        if number:
            span = f"{number} {unit}{'s' if number > 1 else ''}"
            return f"in {span}" if seconds > 0 else f"{span} ago"
    return "in less than a minute" if seconds > 0 else "just now"


def bar(value: int, peak: int) -> str:
    """A bar in eighths of a column: the largest value is the longest."""
    eighths = round(8 * _BAR_COLUMNS * value / peak) if peak else 0
    # Any value above 0 is visible.
    whole, rest = divmod(max(eighths, 1 if value else 0), 8)
    return "█" * whole + " ▏▎▍▌▋▊▉"[rest].strip() or " "


def lane(start: int, end: int, whole: int) -> str:
    """The part of a whole from `start` to `end`, drawn to scale."""
    before = min(_LANE_COLUMNS * start // whole, _LANE_COLUMNS - 1) if whole else 0
    length = max(1, round(_LANE_COLUMNS * (end - start) / whole)) if whole else 1
    return f"{' ' * before}{'█' * min(length, _LANE_COLUMNS - before)}".ljust(_LANE_COLUMNS)


def colour_of(title: str, cell: str) -> str:
    """Return the colour of a state or an HTTP status; empty for cells of other columns."""
    if title not in _STATES:
        return ""
    first = cell.partition(" ")[0]
    is_failure = len(first) == 3 and first.isdecimal() and "400" <= first <= "599"
    return "red" if is_failure else _COLOURS.get(first, "")


# ---- resources and tables


def fields(pairs: Sequence[tuple[str, Cell]]) -> None:
    """Print one resource, a line for each member."""
    now = datetime.datetime.now(datetime.UTC) if for_people() else None
    bold = wants_colour()
    width = max(len(name) for name, _ in pairs)
    for name, cell in pairs:
        label = click.style(f"{name:{width}}", bold=True) if bold else f"{name:{width}}"
        click.echo(f"{label}{_GAP}{spelled(cell, now)}", color=bold)


def table(titles: Sequence[str], rows: Iterable[Sequence[Cell]], *, drop: Sequence[str] = ()) -> None:
    """Print rows under their titles; nothing if there are none.

    On a narrow terminal, the columns of `drop` are omitted, the first of them first.
    """
    now = datetime.datetime.now(datetime.UTC) if for_people() else None
    lines = [[spelled(cell, now) for cell in row] for row in rows]
    if not lines:
        return
    columns = list(zip((title.upper() for title in titles), *lines, strict=True))
    if now is None:
        for line in aligned(list(zip(*_without(BAR, columns), strict=True))):
            click.echo(line)
        return
    for title in drop:
        widths = [max(map(_width, column)) for column in columns]
        if sum(widths) + len(_GAP) * (len(widths) - 1) <= shutil.get_terminal_size().columns:
            break
        columns = _without(title, columns)
    _draw(columns)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(_width, column)) for column in zip(*rows, strict=True)]
    return [
        _GAP.join(cell + " " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _without(title: str, columns: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    return [column for column in columns if column[0] != title]


def _width(text: str) -> int:
    """Count the terminal's columns: two for wide characters, none for combining ones."""
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )


def _draw(columns: list[tuple[str, ...]]) -> None:
    drawn = rich.table.Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for place, column in enumerate(columns):
        # Folded, never truncated: a truncated id is useless. The first column is the id.
        drawn.add_column(column[0], overflow="fold", no_wrap=place == 0)
    titles = [column[0] for column in columns]
    for row in zip(*(column[1:] for column in columns), strict=True):
        cells = zip(titles, row, strict=True)
        drawn.add_row(*(rich.text.Text(cell, style=colour_of(title, cell)) for title, cell in cells))
    colour = wants_colour()
    rich.console.Console(
        file=sys.stdout,
        no_color=not colour,
        force_terminal=colour or None,
        highlight=False,
        emoji=False,
        markup=False,
    ).print(drawn)
