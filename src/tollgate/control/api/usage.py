"""What a team uses."""

from __future__ import annotations

from tollgate.control.api import money, reading
from tollgate.control.api.access import Asked, Part, Plane, Who
from tollgate.control.api.operations import USAGE, Operation, Query, endpoint
from tollgate.control.api.render import Answer, shown
from tollgate.control.problems import InvalidRequest
from tollgate.core import months
from tollgate.core.usage import By


@endpoint(
    "GET",
    "/teams/{team}/usage",
    Operation(
        id="getUsage",
        tag=USAGE,
        summary="Show what a team used in a month, and what it costs",
        description=(
            "Of the billing month: calls whose records came after their own month was closed are in the next. "
            "The items add up to the month exactly; of more than 1,000 the least stand together."
        ),
        query=(
            Query(
                "month",
                "A calendar month in UTC. Left out: the current one.",
                {"type": "string", "pattern": f"^{months.PATTERN}$", "examples": ["2026-11"]},
            ),
            Query(
                "by",
                "What the items are.",
                {"type": "string", "enum": [by.value for by in By], "default": By.DAY.value},
            ),
        ),
        gives=money.Usage,
        raises=(InvalidRequest,),
    ),
)
async def show(request: Asked, plane: Plane, actor: Who, team: Part) -> Answer:
    """Show what a team used."""
    month, by = reading.query(request, "month"), reading.query(request, "by")
    found = await plane.usage.of_team(actor, team, month, By.DAY if by is None else by)
    return shown(money.usage(found))


HANDLERS = [show]
