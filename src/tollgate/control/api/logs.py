"""A team's request logs."""

from __future__ import annotations

import re

import msgspec

from tollgate.control.api import exports, reading, shapes
from tollgate.control.api.access import CurrentActor, HttpRequest, Part, Plane
from tollgate.control.api.operations import LOGS, SEARCH_COST, Operation, Query, endpoint
from tollgate.control.api.render import Answer, shown
from tollgate.control.problems import Busy, InvalidInput, RoleNeeded
from tollgate.control.services.logs import LogQuery, LogResults, LogService
from tollgate.core.entries import MAX_METHOD_BYTES, MAX_TEXT_BYTES

LONGEST_NAME = 300
_NETWORK = re.compile(r"[a-z0-9-]{1,32}/[a-z0-9-]{1,32}")
_STATUS = re.compile(r"[1-5][0-9]{2}")
_TRUTH = {"true": True, "false": False}

_QUERY = (
    Query(
        "newer",
        "Instead of `after`: what was committed since, oldest first; the `newer` of an earlier part.",
        {"type": "string"},
    ),
    Query(
        "since",
        "Only entries of this last time, by their own time. An `after` keeps the start of its first part.",
        reading.DURATION,
    ),
    Query("network", "Only this network.", {"type": "string", "pattern": f"^{_NETWORK.pattern}$"}),
    Query("method", "Only this method.", {"type": "string", "minLength": 1, "maxLength": MAX_METHOD_BYTES}),
    Query("status", "Only this HTTP status.", {"type": "integer", "minimum": 100, "maximum": 599}),
    Query("errors", "Only what did not succeed: refusals and the node's own errors.", {"type": "boolean"}),
    Query("token", "Only calls with this API token: its id, deleted or not, or its name.", {"type": "string"}),
    Query("request_id", "Only the calls of this request.", {"type": "string", "minLength": 1, "maxLength": 256}),
    Query("domain", "Only calls of this whitelisted domain: the entry's id, or the domain.", {"type": "string"}),
    Query("until", "Only entries before this time.", {"type": "string", "format": "date-time"}),
)


@endpoint(
    "GET",
    "/teams/{team}/logs",
    Operation(
        id="listLogs",
        tag=LOGS,
        summary="List the calls of a team, newest first",
        description=(
            "In the order in which they were committed, within 2 seconds of the call. The first part fixes the "
            "newest entry and the start of `since`; so every entry that was there appears once, whatever comes "
            "meanwhile. A part may be short, even empty, while there is more: a filter that seldom fits looks for "
            "about a second, and `next` goes on from there. Go on until `next` is null. To follow what comes, "
            "give the `newer` of any part again and again."
        ),
        lists=True,
        query=_QUERY,
        gives=shapes.LogPage,
        raises=(RoleNeeded,),
        searched_by=("network", "method", "status", "errors"),
        search_cost=SEARCH_COST,
    ),
)
async def list_logs(request: HttpRequest, plane: Plane, actor: CurrentActor, team: Part) -> Answer:
    page = await plane.logs.page(actor, team, _query(request))
    return shown(_shape(page, plane.logs))


@endpoint(
    "GET",
    "/teams/{team}/logs/{entry}",
    Operation(id="getLog", tag=LOGS, summary="Show one call of a team", gives=shapes.Log, raises=(RoleNeeded,)),
)
async def show(plane: Plane, actor: CurrentActor, team: Part, entry: Part) -> Answer:
    found, row = await plane.logs.entry(actor, team, entry)
    return shown(shapes.log(row, plane.logs.cursors.id_of(row), found.name))


@endpoint(
    "GET",
    "/teams/{team}/logs/export/{format}",
    Operation(
        id="exportLogs",
        tag=LOGS,
        summary="Export the calls of a team, newest first",
        description=(
            "As `csv` (RFC 4180; a text that a spreadsheet would take for a formula begins with an apostrophe) or "
            f"as `jsonl`, one object a line. At most {exports.MAX_ROWS:,} entries: narrow the filters."
        ),
        query=_QUERY[1:],
        gives=str,
        media_type=exports.MEDIA_TYPES["csv"],
        also_text=(exports.MEDIA_TYPES["jsonl"],),
        raises=(InvalidInput, RoleNeeded, Busy),
    ),
)
async def export(request: HttpRequest, plane: Plane, actor: CurrentActor, team: Part, format: Part) -> Answer:  # noqa: A002
    form = exports.form_of(format)
    query = _query(request)
    # Before the answer begins: whoever may not read them gets a refusal, not an empty file.
    first = await plane.logs.page(actor, team, msgspec.structs.replace(query, limit=exports.PAGE_ROWS))
    return exports.answer(plane.logs, actor, first, query, form)


def _query(request: HttpRequest) -> LogQuery:
    part = reading.page(request)
    newer = reading.query(request, "newer")
    if newer is not None and part.after is not None:
        raise InvalidInput("`after` goes back and `newer` goes on: give one of the two.", field="newer")
    status = _formed(request, "status", _STATUS, "an HTTP status such as 200")
    return LogQuery(
        part.limit,
        part.after,
        newer,
        since=reading.duration(request, "since"),
        network=_formed(request, "network", _NETWORK, "family/network, such as eth/mainnet"),
        method=_short(request, "method", MAX_METHOD_BYTES),
        status=None if status is None else int(status),
        errors=_truth(request, "errors"),
        token=_short(request, "token", LONGEST_NAME),
        domain=_short(request, "domain", LONGEST_NAME),
        until=reading.moment(request, "until"),
        request_id=_short(request, "request_id", MAX_TEXT_BYTES),
    )


def _formed(request: HttpRequest, name: str, form: re.Pattern[str], accepted: str) -> str | None:
    given = reading.query(request, name)
    if given is not None and not form.fullmatch(given):
        raise InvalidInput(f"`{name}` is {accepted}.", field=name)
    return given


def _short(request: HttpRequest, name: str, longest: int) -> str | None:
    given = reading.query(request, name)
    if given is not None and not 1 <= len(given) <= longest:
        raise InvalidInput(f"`{name}` has 1 to {longest} characters.", field=name)
    return given


def _truth(request: HttpRequest, name: str) -> bool:
    given = reading.query(request, name)
    if given is not None and given not in _TRUTH:
        raise InvalidInput(f"`{name}` is true or false.", field=name)
    return _TRUTH[given or "false"]


def _shape(page: LogResults, logs: LogService) -> shapes.LogPage:
    items = [shapes.log(row, logs.cursors.id_of(row), page.team.name) for row in page.rows]
    return shapes.LogPage(items, page.next, page.newer)


HANDLERS = [list_logs, show, export]
