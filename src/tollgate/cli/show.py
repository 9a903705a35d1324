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

# C0 and C1 controls, line and paragraph separators, bidirectional marks, lone surrogates.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")

_GAP = "  "
_STEPS = (("year", 31_536_000), ("month", 2_592_000), ("day", 86_400), ("hour", 3_600), ("minute", 60))


def note(text: str) -> None:
    """Print a message to stderr, so that stdout has only data."""
    click.echo(clean(text, keep="\n"), err=True)


def clean(text: str, *, keep: str = "") -> str:
    """Write control characters as escapes."""

    def escape(found: re.Match[str]) -> str:
        character = found[0]
        if character in keep:
            return character
        code = ord(character)
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"

    return _UNSAFE.sub(escape, text)


def on_terminal() -> bool:
    """Whether stdout is a terminal."""
    return sys.stdout.isatty()


def has_reader() -> bool:
    """Whether stdout or stderr is a terminal."""
    return on_terminal() or sys.stderr.isatty()


def as_json(value: Any, *, in_one_line: bool = False) -> None:
    """Print a value for programs."""
    text = json.dumps(value, indent=None if in_one_line else 2, ensure_ascii=False)
    click.echo(escaped(text))


def escaped(text: str) -> str:
    """JSON without control characters. They occur only inside strings, where an escape means the same."""
    return _UNSAFE.sub(lambda found: found[0] if found[0] == "\n" else f"\\u{ord(found[0]):04x}", text)


def table(titles: Sequence[str], rows: Iterable[Sequence[Cell]], *, drop: Sequence[str] = ()) -> None:
    """Print rows under their titles; nothing if there are none.

    On a narrow terminal, the columns of `drop` are omitted, the first of them first.
    """
    now = datetime.datetime.now(datetime.UTC)
    pretty = for_people()
    lines = [[spelled(cell, now if pretty else None) for cell in row] for row in rows]
    if not lines:
        return
    if pretty:
        _rich_table(*fitting(list(titles), lines, drop, shutil.get_terminal_size().columns))
        return
    for line in aligned([list(titles), *lines]):
        click.echo(line)


def fitting(
    titles: list[str], lines: list[list[str]], drop: Sequence[str], columns: int
) -> tuple[list[str], list[list[str]]]:
    """Omit columns until the table fits, or no more may be omitted."""
    for title in drop:
        widths = [max(map(_width, column)) for column in zip(titles, *lines, strict=True)]
        if sum(widths) + len(_GAP) * (len(widths) - 1) <= columns:
            break
        if title in titles:
            place = titles.index(title)
            titles = [*titles[:place], *titles[place + 1 :]]
            lines = [[*line[:place], *line[place + 1 :]] for line in lines]
    return titles, lines


BAR = ""
"""The title of a column of bars, which is shown only on a terminal."""
_BAR_COLUMNS = 20
_LANE_COLUMNS = 32


def bar_title() -> tuple[str, ...]:
    return (BAR,) if for_people() else ()


def bar(value: int, most: int) -> tuple[str, ...]:
    """A cell with a bar, in eighths of a column: the largest value is the longest."""
    if not for_people():
        return ()
    eighths = round(8 * _BAR_COLUMNS * value / most) if most else 0
    # Any value above 0 is visible.
    whole, rest = divmod(max(eighths, 1 if value else 0), 8)
    return ("█" * whole + " ▏▎▍▌▋▊▉"[rest].strip() or " ",)


def lane(start: int, end: int, whole: int) -> tuple[str, ...]:
    """A cell with the part of a whole from `start` to `end`, drawn to scale."""
    if not for_people():
        return ()
    before = min(_LANE_COLUMNS * start // whole, _LANE_COLUMNS - 1) if whole else 0
    length = max(1, round(_LANE_COLUMNS * (end - start) / whole)) if whole else 1
    return (f"{' ' * before}{'█' * min(length, _LANE_COLUMNS - before)}".ljust(_LANE_COLUMNS),)


# Colours of states, by the first words of cells.
_GOOD = frozenset({"active", "up", "ok", "yes", "final", "paid", "closed", "200"})
_DOUBTFUL = frozenset(
    {"lagging", "syncing", "unknown", "draft", "half", "capped", "disabled", "inactive", "expired"}
)
_BAD = frozenset({"down", "forked", "wrong_chain", "open", "failed", "suspended", "stopped"})


def colour_of(cell: str) -> str:
    """Return the colour of a state or an HTTP status; empty for other cells."""
    first = cell.partition(" ")[0]
    if first in _GOOD:
        return "green"
    if first in _DOUBTFUL:
        return "yellow"
    if first in _BAD or (len(first) == 3 and first.isdecimal() and "400" <= first <= "599"):
        return "red"
    return ""


def fields(pairs: Sequence[tuple[str, Cell]]) -> None:
    """Print one resource, a line for each member."""
    now = datetime.datetime.now(datetime.UTC) if for_people() else None
    bold = wants_colour()
    width = max(len(name) for name, _ in pairs)
    for name, cell in pairs:
        label = click.style(f"{name:{width}}", bold=True) if bold else f"{name:{width}}"
        click.echo(f"{label}{_GAP}{spelled(cell, now)}", color=bold)


def spelled(cell: Cell, now: datetime.datetime | None) -> str:
    """Format a value; times relative to `now`, or in RFC 3339 without it."""
    if cell is None or cell in ("", []):
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, datetime.datetime):
        return relative(cell, now) if now else rfc3339(cell)
    if isinstance(cell, list):
        return clean(", ".join(cell))
    return clean(str(cell))


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


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align rows in columns."""
    widths = [max(_width(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        _GAP.join(cell + " " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _width(text: str) -> int:
    """Count the terminal's columns: two for wide characters, none for combining ones."""
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )


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


def _rich_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    drawn = rich.table.Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title in titles:
        # Folded, never truncated: a truncated id is useless. The first column is the id.
        drawn.add_column(title, overflow="fold", no_wrap=title == titles[0])
    for row in rows:
        drawn.add_row(*(rich.text.Text(cell, style=colour_of(cell)) for cell in row))
    colour = wants_colour()
    console = rich.console.Console(
        file=sys.stdout,
        no_color=not colour,
        force_terminal=colour or None,
        highlight=False,
        emoji=False,
        markup=False,
    )
    console.print(drawn)
