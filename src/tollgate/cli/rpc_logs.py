"""`tollgate rpc logs`: the calls of a team, page by page, or as they arrive.

Owns the output and the columns of this command, and how it follows: `following` decides, without a clock, a socket
or a sleep; `_follow` does the I/O.
"""

from __future__ import annotations

import datetime
import io
import re
import time
from typing import TYPE_CHECKING, Any, cast

import click

from tollgate.cli import show
from tollgate.cli.failures import Failure, Lost, NoServer, TooSlow
from tollgate.cli.lazy import Group, LazyCommand
from tollgate.cli.options import Since, Until, alone, complete_networks, complete_tokens, for_team, page_options
from tollgate.lazy_module import LazyModule

if TYPE_CHECKING:
    import csv
    from collections.abc import Callable, Generator, Iterator, Mapping

    from msgspec import structs

    from tollgate.api import logs as api
    from tollgate.api.base import Page
    from tollgate.cli.answers import ApiAnswer
    from tollgate.cli.session import Session
    from tollgate.core import logs as log_rules
    from tollgate.core import pricing
else:
    # Not for help.
    csv, structs, api = LazyModule("csv"), LazyModule("msgspec.structs"), LazyModule("tollgate.api.logs")
    log_rules, pricing = LazyModule("tollgate.core.logs"), LazyModule("tollgate.core.pricing")

# Widths of a stream's columns, whose longest line is not known; 0: unlimited.
COLUMNS = {
    "time": 24,
    "method": 26,
    "network": 16,
    "status": 28,
    "duration": 8,
    "caller": 16,
    "cost": 12,
    "request": 36,
    "upstream": 16,
    "cache": 9,
    "address": 0,
    "id": 36,
}
USUAL = ("time", "method", "network", "status", "duration", "caller", "cost")

# Together with the collector's delay under load, a call is shown within 1.5 s.
POLL_SECONDS = 0.75
MAX_AT_ONCE = 1_000
# A server that is unavailable for longer is not being restarted.
PATIENCE_SECONDS = 300.0
# How long a page is searched for.
SEARCH_SECONDS = 30.0
_MAX_PAUSE = 10.0
AWAY = "Tollgate does not answer. Calls in the meantime are shown when it does."
BACK = "Tollgate answers again."
_PASSING = frozenset({"unavailable", "store_unavailable", "busy", "rate_limited"})

_NETWORK = re.compile(r"[a-z0-9-]{1,32}/[a-z0-9-]{1,32}")


def _network(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    if value is not None and not _NETWORK.fullmatch(value):
        raise click.BadParameter(f"{value!r} is not a network: write family/network, such as eth/mainnet.")
    return value


def _columns(_ctx: click.Context, _param: click.Parameter, value: str | None) -> tuple[str, ...]:
    if value is None:
        return USUAL
    names = tuple(dict.fromkeys(name.strip().lower() for name in value.split(",")))
    for name in names:
        if name not in COLUMNS:
            raise click.BadParameter(f"there is no column {name!r}. Columns: {', '.join(COLUMNS)}.")
    return names


@click.group(
    cls=Group,
    invoke_without_command=True,
    lazy={
        "show": LazyCommand("tollgate.cli.rpc_logs_show:show_log", "Show one call and its attempts at upstreams.")
    },
    epilog="Example: tollgate rpc logs --team acme --since 1h --errors",
)
@alone("filters the list")
@page_options
# Hidden ones are named in the lines of others: the page must fit a screen.
@click.option(
    "--since", type=Since(), metavar="WHEN", help="Only the last 30m, 24h, or since 2026-11-15; --until: before."
)
@click.option(
    "--until", type=Until(), metavar="WHEN", hidden=True, help="Only before 2026-11-15T06:00:00Z, or 30m ago."
)
@click.option(
    "--network",
    callback=_network,
    metavar="F/N",
    help="Only this network, such as eth/mainnet.",
    shell_complete=complete_networks,
)
@click.option("--method", metavar="NAME", help="Only this method; --request-id ID: only this request.")
@click.option("--status", type=click.IntRange(100, 599), metavar="CODE", help="Only this HTTP status.")
@click.option("--errors", is_flag=True, help="Only refusals and errors of nodes.")
@click.option(
    "--token",
    metavar="TOKEN",
    help="Only this token: id or name; --domain: only this domain.",
    shell_complete=complete_tokens,
)
@click.option("--domain", metavar="DOMAIN", hidden=True, help="Only calls of this domain: id or name.")
@click.option("--request-id", metavar="ID", hidden=True, help="Only the calls of this request.")
@click.option("--all", "whole", is_flag=True, help="Print all matches, one per line; --csv: as CSV.")
@click.option(
    "--csv",
    "as_csv",
    is_flag=True,
    hidden=True,
    help="Print all matches as CSV, escaped against formula injection.",
)
@click.option("--columns", callback=_columns, hidden=True, help="Which columns, in this order.")
@click.option("--follow", "-f", is_flag=True, help="Keep printing new calls as they arrive.")
@for_team
def logs(
    session: Session,
    limit: int,
    after: str | None,
    follow: bool,
    whole: bool,
    as_csv: bool,
    columns: tuple[str, ...],
    **given: Any,
) -> None:
    """Show calls, newest first; choose with --columns time,method,status,request."""
    if given["token"] is not None and given["domain"] is not None:
        raise click.UsageError("A call has a token or a domain: give one of --token and --domain.")
    given["errors"] = "true" if given["errors"] else None
    filters = {name: str(value) for name, value in given.items() if value is not None}
    if follow:
        if whole or as_csv or after is not None:
            older = "--all and --csv print" if whole or as_csv else "--after prints"
            raise click.UsageError(f"{older} older calls, --follow prints new ones: give one of them.")
        _follow(session, filters, limit, columns)
        return
    if as_csv:
        _print_csv(session, filters, after)
        return
    if whole:
        if not session.as_json:
            click.echo(_titles(columns))
        for each in _pages(session, filters, after):
            _print(session, each, columns)
        return
    answer = _page(session, filters, limit, after)
    rows = [cells(log, columns) for log in answer.value.items]
    if columns == USUAL and show.for_people():
        rows = _without_today(rows)
    page = cast("ApiAnswer[Page[api.Log]]", answer)
    # Columns given by name are kept even if they do not fit.
    drop = ("COST", "CALLER", "DURATION", "NETWORK") if columns == USUAL else ()
    empty = f"No calls yet. Send one to {session.url}/x/<family>/<network>, with a token of the team."
    if answer.value.next is not None:
        empty = "None of the newest calls match. Continue with --after."
    elif filters:
        empty = "No calls match."
    session.page(page, [name.upper() for name in columns], rows, empty=empty, drop=drop)


def _page(
    session: Session,
    filters: Mapping[str, Any],
    limit: int,
    after: str | None,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> ApiAnswer[api.LogPage]:
    """One page. If few calls match, the server ends a page early: continue for a while."""
    end = clock() + SEARCH_SECONDS
    answer = _fetched(session, filters, limit, after)
    while answer.value.next is not None and len(answer.value.items) < limit and clock() < end:
        left = limit - len(answer.value.items)
        more = _fetched(session, filters, left, answer.value.next)
        if more.value.next == answer.value.next:
            break
        value = structs.replace(answer.value, items=[*answer.value.items, *more.value.items], next=more.value.next)
        raw = {**answer.raw, "items": [*answer.raw["items"], *more.raw["items"]]}
        answer = structs.replace(answer, value=value, raw=raw)
    return answer


def _fetched(
    session: Session, filters: Mapping[str, Any], limit: int, after: str | None = None, newer: str | None = None
) -> ApiAnswer[api.LogPage]:
    return session.client.call(api.LIST, session.team, limit=limit, after=after, newer=newer, **filters)


def _pages(session: Session, filters: Mapping[str, Any], after: str | None) -> Iterator[ApiAnswer[api.LogPage]]:
    """All matches, page by page."""
    while True:
        answer = _fetched(session, filters, MAX_AT_ONCE, after)
        yield answer
        if answer.value.next is None or answer.value.next == after:
            return
        after = answer.value.next


def _print_csv(session: Session, filters: Mapping[str, Any], after: str | None) -> None:
    """Print all matches as CSV (RFC 4180), newest first, escaped against formula injection (OWASP)."""

    def cell(value: object) -> object:
        return log_rules.csv_cell(show.clean(value)) if isinstance(value, str) else value

    names: list[str] = []
    for answer in _pages(session, filters, after):
        page = io.StringIO()
        writer = csv.writer(page, lineterminator="\r\n")
        for item in answer.raw["items"]:
            if not names:
                # `attempts` counts what the trace lists.
                names = [name for name in item if name != "trace"]
                writer.writerow(names)
            writer.writerow([cell(item.get(name)) for name in names])
        click.echo(page.getvalue(), nl=False)


def cells(log: api.Log, columns: tuple[str, ...]) -> tuple[str, ...]:
    at = log.time.astimezone(datetime.UTC)
    outcome = "" if log.outcome in ("", "ok") else log.outcome
    code = "" if log.error_code is None else str(log.error_code)
    times = f"x{log.count}" if log.count > 1 else ""
    cells = {
        # Exact, even on a terminal, to tell calls of the same minute apart.
        "time": f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z",
        "method": log.method,
        "network": f"{log.family}/{log.network}",
        "status": " ".join(filter(None, (str(log.status), outcome, code, times))),
        "duration": duration(log.duration_us),
        "caller": log.token_name or log.token_id or log.domain or log.domain_id,
        "cost": pricing.dollars(log.cost_micros) if log.billable else "",
        "request": log.request_id,
        "upstream": log.upstream,
        "cache": log.cache,
        "address": log.address,
        "id": log.id,
    }
    return tuple(cells[name] or "" for name in columns)


def _without_today(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Omit today's date if all calls are of today, to save space."""
    today = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}T"
    if not all(row[0].startswith(today) for row in rows):
        return rows
    return [(row[0].removeprefix(today), *row[1:]) for row in rows]


def duration(micros: int) -> str:
    """Format a duration with about three digits."""
    if micros < 1_000:
        return f"{micros} µs"
    if micros < 1_000_000:
        return f"{micros / 1_000:.3g} ms" if micros < 999_500 else "1 s"
    return f"{micros / 1_000_000:.3g} s" if micros < 999_500_000 else f"{micros // 1_000_000} s"


# ---- following


def following() -> Generator[tuple[float, str], tuple[Failure | None, bool, float], None]:
    """Yield how long to wait before the next poll, and a note to print; take the result of the last poll.

    That is: its failure, if any; whether there is more now; the time. An unavailable server is polled at growing
    intervals, from the last position; the failure is raised after `PATIENCE_SECONDS`.
    """
    pause, text, away_since = POLL_SECONDS, "", None
    while True:
        failure, more, now = yield pause, text
        if failure is None:
            text = "" if away_since is None else BACK
            pause, away_since = 0.0 if more else POLL_SECONDS, None
            continue
        if away_since is None:
            text, away_since = AWAY, now
        else:
            text = ""
        if not _passing(failure) or now - away_since >= PATIENCE_SECONDS:
            raise failure
        pause = min(max(pause, POLL_SECONDS) * 1.5, _MAX_PAUSE)


def _passing(failure: Failure) -> bool:
    """Whether a retry makes sense: the server is unavailable, overloaded, or restarting."""
    return isinstance(failure, NoServer | Lost | TooSlow) or failure.reason in _PASSING


def _follow(session: Session, filters: Mapping[str, Any], limit: int, columns: tuple[str, ...]) -> None:
    """Print the newest calls, oldest first, then new ones, until interrupted."""
    # The first page fixes the start of `since`, so it is not sent again.
    rest = {name: value for name, value in filters.items() if name != "since"}
    answer = _fetched(session, filters, limit)
    if not session.as_json:
        click.echo(_titles(columns))
    _print(session, answer, columns, newest_first=True)
    place = _place(answer)
    steps = following()
    pause, _ = next(steps)
    while True:
        time.sleep(pause)
        failure, more = None, False
        try:
            answer = _fetched(session, rest, MAX_AT_ONCE, newer=place)
        except Failure as error:
            failure = error
        else:
            _print(session, answer, columns)
            place = _place(answer)
            more = len(answer.value.items) >= MAX_AT_ONCE
        pause, text = steps.send((failure, more, time.monotonic()))
        if text:
            show.note(text)


def _place(answer: ApiAnswer[api.LogPage]) -> str:
    if not answer.value.newer:
        raise Failure("This Tollgate does not support --follow: it is older than the tool.")
    return answer.value.newer


def _print(
    session: Session, answer: ApiAnswer[api.LogPage], columns: tuple[str, ...], *, newest_first: bool = False
) -> None:
    step = -1 if newest_first else 1
    if session.as_json:
        for item in answer.raw["items"][::step]:
            show.as_json(item, in_one_line=True)
    else:
        for log in answer.value.items[::step]:
            line = _line(cells(log, columns), columns)
            colour = show.colour_of("STATUS", str(log.status)) if show.wants_colour() else ""
            click.echo(click.style(line, fg=colour) if colour == "red" else line)


def _titles(columns: tuple[str, ...]) -> str:
    return _line(tuple(name.upper() for name in columns), columns)


def _line(cells: tuple[str, ...], columns: tuple[str, ...]) -> str:
    widths = [COLUMNS[name] for name in columns[:-1]]
    return "  ".join(
        _cut(show.spelled(cell, None), width) for cell, width in zip(cells, [*widths, 0], strict=True)
    ).rstrip()


def _cut(text: str, width: int) -> str:
    """Pad a cell to its width, or cut it: a stream's columns are fixed."""
    return text if not width else f"{text:{width}}" if len(text) <= width else f"{text[: width - 1]}…"
