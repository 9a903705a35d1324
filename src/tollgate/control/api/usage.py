"""A team's usage: a month, and its requests over time."""

from __future__ import annotations

from datetime import UTC, datetime

from litestar import Response

from tollgate.api import usage
from tollgate.api.usage import Step, Timeline, TimelineQuery, TimeRange, Usage, UsageQuery
from tollgate.control.api.access import CurrentActor, Part, Plane
from tollgate.control.api.operations import USAGE, serves
from tollgate.control.api.reading import Wanted
from tollgate.control.api.render import unstored


@serves(usage.SHOW, tag=USAGE)
async def get_usage(plane: Plane, actor: CurrentActor, team: Part, wanted: Wanted[UsageQuery]) -> Response[Usage]:
    """Show a team's usage of a month, and its cost.

    Of the billing month: calls whose records arrived after their own month was closed are in the next. The items
    add up to the month exactly (by `month` they are this month and the eleven before); beyond 1,000 the smallest
    are summed in one. With `token`, `free_left` and the cap are the team's, and all else is the token's. A rotated
    token is listed as its newest successor.
    """
    return unstored(await plane.usage.of_team(actor, team, wanted))


@serves(usage.TIMELINE, tag=USAGE)
async def get_timeline(
    plane: Plane, actor: CurrentActor, team: Part, wanted: Wanted[TimelineQuery]
) -> Response[Timeline]:
    """Show a team's requests over time.

    Steps without requests are listed too; of a month also future ones.
    """
    found = await plane.timelines.of_team(actor, team, wanted)
    took = await plane.timelines.latency(actor, team, TimeRange(wanted.range))
    steps = [Step(datetime.fromtimestamp(each.start, UTC), each.total, each.requests) for each in found.steps]
    return unstored(Timeline(found.span.value, found.split.value, found.step, took.p50, took.p95, steps))


HANDLERS = [get_usage, get_timeline]
