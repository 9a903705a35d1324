"""The log explorer: filters in the URL, an entry opened beside the list, exports.

The attempts of the opened entry are lanes on one scale.
"""

from __future__ import annotations

import asyncio
import shlex
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from litestar import Response
from msgspec import Struct
from msgspec.structs import replace

from tollgate.api.logs import AttemptVerdict, LogQuery
from tollgate.control.api import exports
from tollgate.control.api.operations import COST, EXPORT_SEARCH_COST, SEARCH_COST
from tollgate.control.commands import from_query
from tollgate.control.console.charts import ceiling
from tollgate.control.console.frame import Frame, open_frame, page
from tollgate.control.console.paths import HttpRequest, Part, Plane, shown
from tollgate.control.plane import ControlPlane
from tollgate.control.problems import InvalidInput, Problem
from tollgate.control.service_context import PageRequest
from tollgate.control.services.logs import LogResults
from tollgate.core.entries import AttemptEntry
from tollgate.core.logs import LogEntry

ROWS = 50
SINCE = (
    ("15m", "Last 15 minutes"),
    ("1h", "Last hour"),
    ("24h", "Last 24 hours"),
    ("7d", "Last 7 days"),
    ("", "All kept"),
)
FILTERS = ("method", "request_id", "network", "source", "status", "since", "until", "errors")
MAX_PARAMETER = 300
STATUSES = ("200", "400", "401", "402", "403", "404", "413", "415", "429", "500", "502", "503", "504")


class LogLine(Struct, frozen=True):
    """An entry as the list shows it."""

    id: str
    entry: LogEntry
    tone: str
    bar: int
    """How wide its duration is drawn, in pixels."""


@shown("/teams/{team:str}/logs", opt={COST: SEARCH_COST})
async def logs_page(request: HttpRequest, plane: Plane, team: Part) -> Response[str]:
    frame = await open_frame(request, plane, team, here="logs")
    given = given_of(request)
    after, entry = (request.query_params.get(name, "")[:MAX_PARAMETER] for name in ("after", "entry"))
    # Concurrently: each queries the store or the ledger.
    (found, problem), opened, names, networks = await asyncio.gather(
        _found(frame, plane, team, given, after),
        _opened(frame, plane, team, entry),
        _sources(frame, plane, team),
        plane.networks.list(),
    )
    frame.commands = (_command(team, given),)
    return page(
        frame,
        "logs.html",
        problem=problem,
        lines=[line_of(plane, each) for each in found.rows] if found else [],
        given={name: given.get(name, "") for name in FILTERS},
        filtered=bool(given),
        query=urlencode(given),
        after=after,
        next=_address(given, after=found.next) if found and found.next else "",
        first=_address(given) if after else "",
        opened=opened,
        trace=waterfall(opened.entry) if opened else None,
        close=_address(given, after=after) if after else _address(given),
        networks=[each.network for each in networks],
        sources=names,
        since=SINCE,
        statuses=STATUSES,
    )


@shown("/teams/{team:str}/logs/export/{form:str}", opt={COST: EXPORT_SEARCH_COST})
async def export(request: HttpRequest, plane: Plane, team: Part, form: Part) -> Response[Any]:
    """The matching entries, as a file."""
    frame = await open_frame(request, plane, team)
    query = query_of(given_of(request))
    first = await plane.logs.page(frame.actor, team, replace(query, limit=exports.PAGE_ROWS))
    return exports.answer(plane.logs, frame.actor, first, query, exports.form_of(form))


def line_of(plane: ControlPlane, entry: LogEntry) -> LogLine:
    tone = "good" if entry.outcome == "ok" else "bad" if entry.status >= 500 else "warn"
    return LogLine(plane.logs.cursors.id_of(entry), entry, tone, min(60, 3 + entry.duration_micros // 12_000))


def query_of(given: dict[str, str]) -> LogQuery:
    """The query of the filters; raises if one is invalid."""
    source = given.get("source", "")
    wanted: dict[str, object] = {name: given[name] for name in given if name in LogQuery.__struct_fields__}
    if source:
        wanted["domain" if source.startswith("dom_") else "token"] = source
    if "errors" in given:
        wanted["errors"] = "true"
    if "until" in given:
        wanted["until"] = _moment(given["until"])
    return from_query(wanted, LogQuery)


def given_of(request: HttpRequest) -> dict[str, str]:
    """The filters that are set. Links from other pages give a token or a domain."""
    query = {name: str(value).strip()[:MAX_PARAMETER] for name, value in request.query_params.items()}
    query.setdefault("source", query.get("token") or query.get("domain") or "")
    return {name: query[name] for name in FILTERS if query.get(name)}


def _moment(text: str) -> datetime:
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput("Write a time such as 2026-11-15T12:00 (UTC).", field="until") from None
    return given if given.tzinfo else given.replace(tzinfo=UTC)


def _address(given: dict[str, str], **more: str | None) -> str:
    query = {**given, **{name: value for name, value in more.items() if value}}
    return f"?{urlencode(query)}" if query else "?"


async def _found(
    frame: Frame, plane: ControlPlane, team: str, given: dict[str, str], after: str
) -> tuple[LogResults | None, Problem | None]:
    try:
        query = replace(query_of(given), limit=ROWS, after=after or None)
        return await plane.logs.page(frame.actor, team, query), None
    except Problem as refused:
        return None, refused


async def _opened(frame: Frame, plane: ControlPlane, team: str, entry: str) -> LogLine | None:
    if not entry:
        return None
    try:
        return line_of(plane, (await plane.logs.entry(frame.actor, team, entry))[1])
    except Problem:
        return None


async def _sources(frame: Frame, plane: ControlPlane, team: str) -> list[tuple[str, str]]:
    tokens = await plane.tokens.list(frame.actor, team, PageRequest(200))
    domains = await plane.domains.list(frame.actor, team, PageRequest(200))
    return [
        *((token.id, token.name) for token in tokens.items),
        *((entry.id, entry.domain) for entry in domains.items),
    ]


def _command(team: str, given: dict[str, str]) -> str:
    argv = ["tollgate", "rpc", "logs", "--team", team]
    for name in ("since", "network", "method", "status", "request_id", "until"):
        if name in given:
            argv += [f"--{name.replace('_', '-')}", given[name]]
    if "errors" in given:
        argv.append("--errors")
    if source := given.get("source"):
        argv += ["--domain" if source.startswith("dom_") else "--token", source]
    # Filters may come from another person's link, and the command is meant to be pasted.
    return shlex.join(argv)


# --- The attempts of a request -----------------------------------------------------------------------------

# Of a lane, in units of its drawing.
WIDTH = 1000
# A bar is never narrower: the shortest attempt is seen.
_LEAST_WIDTH = 6
_QUARTERS = 4
_MILLI = 1_000

_TONES = {
    AttemptVerdict.ANSWERED: "good",
    AttemptVerdict.HEDGE_WON: "good",
    AttemptVerdict.HEDGE_LOST: "late",
    AttemptVerdict.CANCELLED: "late",
}
_WORDS = {
    AttemptVerdict.OTHER: "No answer",
    AttemptVerdict.ANSWERED: "Answered",
    AttemptVerdict.HEDGE_WON: "Answered first",
    AttemptVerdict.HEDGE_LOST: "Another attempt was quicker",
    AttemptVerdict.STATUS: "HTTP status",
    AttemptVerdict.NODE_ERROR: "Error of the node",
    AttemptVerdict.TIMEOUT: "Timeout",
    AttemptVerdict.QUOTA: "Quota used up",
    AttemptVerdict.OUT_OF_STEP: "Answer out of step with the chain",
    AttemptVerdict.CONNECTION: "Connection failed",
    AttemptVerdict.INVALID: "No JSON-RPC response",
    AttemptVerdict.TOO_LARGE: "Response too large",
    AttemptVerdict.BUSY: "Connections in use, not sent",
    AttemptVerdict.CANCELLED: "Cancelled",
}


class Lane(Struct, frozen=True):
    """One attempt."""

    attempt: AttemptEntry
    x: int
    width: int
    tone: str
    """`good`, `bad`, or `late` for what was not waited for."""
    words: str
    is_hedge: bool
    goes_on: bool
    """Whether it failed and another attempt followed."""


class Waterfall(Struct, frozen=True):
    """All attempts of a request."""

    lanes: list[Lane]
    ticks: list[str]
    """Of the scale, from the beginning of the request on."""


def waterfall(entry: LogEntry) -> Waterfall:
    """The attempts of a request; no lanes where it called no upstream."""
    top = ceiling(max([entry.duration_micros, *(each.end_micros for each in entry.attempts)]))
    last_start = max((each.start_micros for each in entry.attempts), default=0)
    return Waterfall([_lane(each, top, last_start) for each in entry.attempts], _ticks(top))


def _lane(attempt: AttemptEntry, top: int, last_start: int) -> Lane:
    x = min(WIDTH * attempt.start_micros // top, WIDTH - _LEAST_WIDTH)
    width = WIDTH * (attempt.end_micros - attempt.start_micros) // top
    tone = _TONES.get(attempt.verdict, "bad")
    return Lane(
        attempt,
        x,
        min(max(width, _LEAST_WIDTH), WIDTH - x),
        tone,
        f"HTTP {attempt.status}" if attempt.status else _WORDS[attempt.verdict],
        attempt.verdict is AttemptVerdict.HEDGE_WON,
        tone == "bad" and last_start >= attempt.end_micros,
    )


def _ticks(top: int) -> list[str]:
    unit, name = (_MILLI, "ms") if top >= _QUARTERS * _MILLI else (1, "µs")
    ticks = [f"{top * quarter / _QUARTERS / unit:,g}" for quarter in range(_QUARTERS + 1)]
    return [*ticks[:-1], f"{ticks[-1]} {name}"]
