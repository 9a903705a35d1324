"""A team's requests over time."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct

from tollgate.control.api import reading, shapes
from tollgate.control.api.access import CurrentActor, HttpRequest, Part, Plane
from tollgate.control.api.operations import USAGE, Operation, Query, endpoint
from tollgate.control.api.render import Answer, shown
from tollgate.control.problems import InvalidInput
from tollgate.control.services.timelines import Span
from tollgate.core.usage import Split


class Step(Struct, frozen=True):
    """One hour, day or month."""

    start: datetime
    requests: int
    by: Annotated[dict[str, int], Meta(description="By network, outcome, or the id of a token or domain.")]


class Timeline(Struct, frozen=True):
    """Requests over time."""

    range: str
    split: str
    step: Annotated[str, Meta(extra_json_schema={"enum": ["hour", "day", "month"]})]
    p50_us: Annotated[int | None, Meta(description="The median duration; null where it is not known.")]
    p95_us: int | None
    steps: list[Step]


@endpoint(
    "GET",
    "/teams/{team}/usage/timeline",
    Operation(
        id="getTimeline",
        tag=USAGE,
        summary="Show a team's requests over time",
        description="Steps without requests are listed too; of a month also those that are still to come.",
        query=(
            Query(
                "range",
                "The last 24 hours by hour, 7 days or this month by day, or 12 months by month.",
                {"type": "string", "enum": [span.value for span in Span], "default": Span.MONTH.value},
            ),
            Query(
                "split",
                "What each step is split by; a source is a token or a domain.",
                {"type": "string", "enum": [split.value for split in Split], "default": Split.NETWORK.value},
            ),
        ),
        gives=Timeline,
        raises=(InvalidInput,),
    ),
)
async def show(request: HttpRequest, plane: Plane, actor: CurrentActor, team: Part) -> Answer:
    """Show requests over time."""
    span = reading.query(request, "range") or Span.MONTH.value
    split = reading.query(request, "split") or Split.NETWORK.value
    found = await plane.timelines.of_team(actor, team, span, split)
    took = await plane.timelines.latency(actor, team, span)
    steps = []
    for each in found.steps:
        start = shapes.moment(each.start)
        assert start is not None  # noqa: S101 - narrows the type
        steps.append(Step(start, each.total, each.requests))
    return shown(
        Timeline(
            range=found.span.value,
            split=found.split.value,
            step=found.step,
            p50_us=took.p50,
            p95_us=took.p95,
            steps=steps,
        )
    )


HANDLERS = [show]
