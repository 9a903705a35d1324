"""A team's request logs."""

from __future__ import annotations

from typing import Any

from litestar import Response
from msgspec.structs import asdict

from tollgate.api import logs
from tollgate.api.logs import Log, LogFilters, LogPage, LogQuery
from tollgate.control.api import exports
from tollgate.control.api.access import CurrentActor, Part, Plane
from tollgate.control.api.operations import EXPORT_COST, EXPORT_SEARCH_COST, LOGS, serves
from tollgate.control.api.reading import Wanted
from tollgate.control.api.render import unstored
from tollgate.control.problems import Busy, RoleNeeded

SEARCHED_BY = ("network", "method", "status", "errors")


@serves(logs.LIST, RoleNeeded, tag=LOGS, searched_by=SEARCHED_BY)
async def list_logs(plane: Plane, actor: CurrentActor, team: Part, wanted: Wanted[LogQuery]) -> Response[LogPage]:
    """List the calls of a team, newest first.

    In the order in which they were committed, within 2 seconds of the call. The first page fixes the newest entry
    and the start of `since`, so every existing entry appears once, whatever arrives in the meantime. A page may be
    short, even empty, before the end: a filter that rarely matches searches for about a second, and `next`
    continues from there. Continue until `next` is null. To follow new calls, poll with the `newer` of the last
    page.
    """
    found = await plane.logs.page(actor, team, wanted)
    items = [exports.shown(each, plane.logs, found.team.name) for each in found.rows]
    return unstored(LogPage(items, found.next, found.newer))


@serves(logs.SHOW, RoleNeeded, tag=LOGS)
async def get_log(plane: Plane, actor: CurrentActor, team: Part, entry: Part) -> Response[Log]:
    """Show one call of a team."""
    found, call = await plane.logs.entry(actor, team, entry)
    return unstored(exports.shown(call, plane.logs, found.name))


@serves(
    logs.EXPORT,
    RoleNeeded,
    Busy,
    tag=LOGS,
    cost=EXPORT_COST,
    searched_by=SEARCHED_BY,
    search_cost=EXPORT_SEARCH_COST,
)
async def export_logs(
    plane: Plane,
    actor: CurrentActor,
    team: Part,
    format: Part,  # noqa: A002 - its name in the path
    wanted: Wanted[LogFilters],
) -> Response[Any]:
    """Export the calls of a team, newest first.

    As `csv` (RFC 4180, escaped against formula injection by an apostrophe) or as `jsonl`, one object a line. At
    most 100,000 entries: narrow the filters.
    """
    form = exports.form_of(format)
    query = LogQuery(**asdict(wanted), limit=exports.PAGE_ROWS)
    # Before the response starts: a caller without the right gets a refusal, not an empty file.
    first = await plane.logs.page(actor, team, query)
    return exports.answer(plane.logs, actor, first, query, form)
