"""A team's month at a glance."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from litestar import Response

from tollgate.api.logs import LogQuery
from tollgate.api.usage import By, Split, TimelineQuery, TimeRange, Usage, UsageQuery
from tollgate.control.console import charts
from tollgate.control.console.frame import Frame, open_frame, page
from tollgate.control.console.paths import HttpRequest, Part, Plane, shown
from tollgate.control.plane import ControlPlane
from tollgate.control.services.timelines import UsageTimeline
from tollgate.core.entries import BILLABLE
from tollgate.core.months import end_of
from tollgate.store.base import StoreUnavailable

RANGES = (
    (TimeRange.DAY, "24 hours"),
    (TimeRange.WEEK, "7 days"),
    (TimeRange.MONTH, "Month"),
    (TimeRange.YEAR, "Year"),
)
SPLITS = ((Split.NETWORK, "Network"), (Split.OUTCOME, "Outcome"))
# Answers are green, errors of nodes amber, refusals and failures red, at the bottom.
TONES = {"ok": 1, "node_error": 3, "rate_limited": 2, "spending_cap": 4, "upstream_error": 5}
TOP = 5
# Only single calls record whether the cache answered.
SAMPLE = 200
# Refusals that are the service's fault, not the caller's.
OURS = frozenset({"upstream_unavailable", "upstream_error", "upstream_timeout", "overloaded", "internal_error"})


@shown("/teams/{team:str}")
async def overview_page(request: HttpRequest, plane: Plane, team: Part) -> Response[str]:
    span = _one_of(RANGES, request.query_params.get("range", ""), TimeRange.MONTH)
    split = _one_of(SPLITS, request.query_params.get("split", ""), Split.NETWORK)
    frame = await open_frame(request, plane, team, here="overview")
    name, actor = frame.team_name, frame.actor
    # Concurrently: each sums a month of usage.
    (usage, tokens, domains), (timeline, outcomes), took, sample, networks = await asyncio.gather(
        asyncio.gather(
            *(plane.usage.of_team(actor, name, UsageQuery(by=by)) for by in (By.METHOD, By.TOKEN, By.DOMAIN))
        ),
        asyncio.gather(
            plane.timelines.of_team(actor, name, TimelineQuery(span, split)),
            plane.timelines.of_team(actor, name, TimelineQuery(split=Split.OUTCOME)),
        ),
        plane.timelines.latency(actor, name, TimeRange.MONTH),
        _sample(frame, plane, name),
        plane.networks.list(),
    )
    frame.commands = (f"tollgate usage --team {name}",)
    return page(
        frame,
        "overview.html",
        usage=usage,
        period=_period(frame.now, usage.month),
        ranges=RANGES,
        splits=SPLITS,
        span=span,
        split=split,
        chart=charts.bars(timeline, frame.now, TONES if split == Split.OUTCOME else None),
        timeline=timeline,
        errors=_errors(outcomes),
        p50=took.p50,
        p95=took.p95,
        sample=sample,
        methods=_top(usage),
        tokens=_top(tokens),
        domains=_top(domains),
        networks=networks,
    )


def _errors(outcomes: UsageTimeline) -> dict[str, int]:
    bad = {key: outcomes.of(key) for key in outcomes.keys if key != "ok"}
    return {
        "all": sum(bad.values()),
        "ours": sum(count for key, count in bad.items() if key in OURS),
        "refused": sum(count for key, count in bad.items() if key not in BILLABLE and key not in OURS),
        "total": outcomes.total,
    }


async def _sample(frame: Frame, plane: ControlPlane, team: str) -> dict[str, float]:
    """The share of the newest calls that the cache answered; usage does not have it."""
    nothing = {"calls": 0, "cached": 0.0}
    if not frame.may("SEE_LOGS"):
        return nothing
    try:
        newest = (await plane.logs.page(frame.actor, team, LogQuery(limit=SAMPLE))).rows
    except StoreUnavailable:
        return nothing
    answered = [entry for entry in newest if entry.billable]
    hits = sum(1 for entry in answered if entry.cache in ("hit", "coalesced"))
    return {"calls": len(answered), "cached": hits / len(answered)} if answered else nothing


def _top(usage: Usage) -> list[tuple[str, int]]:
    named = [(item.name or item.key, item.requests) for item in usage.items if item.key]
    return sorted(named, key=lambda each: -each[1])[:TOP]


def _period(now: float, month: str) -> str:
    today, last = (datetime.fromtimestamp(at, UTC) for at in (now, end_of(month) - 1))
    return f"1 to {today.day} {last:%B %Y}, UTC"


def _one_of(choices: tuple[tuple[str, str], ...], given: str, usual: str) -> str:
    return given if given in [choice for choice, _ in choices] else usual
