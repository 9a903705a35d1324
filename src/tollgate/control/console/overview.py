"""A team's activity at a glance: one range for the whole page, compared with the period before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from urllib.parse import urlencode

from litestar import Response
from msgspec import UNSET, Struct

from tollgate.api.logs import LogQuery
from tollgate.api.usage import By, Split, TimelineQuery, TimeRange, Usage, UsageItem, UsageQuery
from tollgate.control.console import charts, render
from tollgate.control.console.frame import Frame, open_frame, page
from tollgate.control.console.paths import HttpRequest, Part, Plane, shown
from tollgate.control.plane import ControlPlane
from tollgate.control.problems import InvalidInput, Problem
from tollgate.control.services.timelines import Latency, UsageTimeline, Window, window_of
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


class Totals(Struct, frozen=True):
    """What the tiles show of a period."""

    requests: int
    errors: int
    ours: int
    cost: int
    p50: int | None
    p95: int | None

    @property
    def error_rate(self) -> float:
        return self.errors / self.requests if self.requests else 0.0


class Change(Struct, frozen=True):
    """How a value differs from that of the period before."""

    text: str
    tone: str
    """`better`, `worse` or `same`."""
    before: str


@shown("/teams/{team:str}")
async def overview_page(request: HttpRequest, plane: Plane, team: Part) -> Response[str]:
    given = request.query_params
    split = Split(_one_of(SPLITS, given.get("split", ""), Split.NETWORK))
    frame = await open_frame(request, plane, team, here="overview")
    name, actor = frame.team_name, frame.actor
    query, window, problem = _window(given, frame.now)
    # Concurrently: each sums the usage of the range.
    (took, before), (methods, sources), outcomes, chart, (sample, networks) = await asyncio.gather(
        asyncio.gather(plane.timelines.latency(actor, name, window), _before(frame, plane, window.previous)),
        asyncio.gather(_methods(frame, plane, window), plane.usage.within(actor, name, window, Split.SOURCE)),
        plane.timelines.within(actor, name, window, Split.OUTCOME),
        _split(frame, plane, window, split),
        asyncio.gather(_sample(frame, plane, name, window), plane.networks.list()),
    )
    items, usage = methods
    timeline = chart or outcomes
    by_outcome = {key: outcomes.of(key) for key in outcomes.keys}
    totals = _totals(by_outcome, sum(item.cost_micros for item in items), took)
    frame.commands = (_command(name, query, split),)
    return page(
        frame,
        "overview.html",
        problem=problem,
        usage=usage,
        period=_period(window, frame.now),
        ranges=RANGES,
        splits=SPLITS,
        query=query,
        custom={key: given.get(key, "") for key in ("since", "until")},
        span=window.range,
        address=_address(query),
        split=split,
        chart=charts.bars(timeline, frame.now, TONES if split == Split.OUTCOME else None),
        timeline=timeline,
        totals=totals,
        before=_period(window.previous, frame.now),
        changes=_changes(totals, before),
        sample=sample,
        methods=_top(items),
        tokens=_top([item for item in sources if item.key.startswith("tok_")]),
        domains=_top([item for item in sources if item.key.startswith("dom_")]),
        networks=networks,
    )


def _window(given: Mapping[str, str], now: float) -> tuple[TimelineQuery, Window, Problem | None]:
    """The range of the whole page. A custom one that cannot be shown leaves the month, with the reason."""
    query = TimelineQuery(_one_of(RANGES, given.get("range", ""), TimeRange.MONTH))
    if given.get("range") == TimeRange.CUSTOM:
        query = TimelineQuery(
            TimeRange.CUSTOM, since=given.get("since") or UNSET, until=given.get("until") or UNSET
        )
    try:
        return query, window_of(query, now), None
    except InvalidInput as problem:
        query = TimelineQuery()
        return query, window_of(query, now), problem


async def _split(frame: Frame, plane: ControlPlane, window: Window, split: Split) -> UsageTimeline | None:
    """The requests of the chart; None by outcome, which the totals need anyway."""
    if split is Split.OUTCOME:
        return None
    return await plane.timelines.within(frame.actor, frame.team_name, window, split)


async def _methods(frame: Frame, plane: ControlPlane, window: Window) -> tuple[list[UsageItem], Usage | None]:
    """What was called; of a month also free requests, forecast and cap, which are those of a month."""
    if window.range is TimeRange.MONTH:
        usage = await plane.usage.of_team(frame.actor, frame.team_name, UsageQuery(by=By.METHOD))
        return usage.items, usage
    return await plane.usage.within(frame.actor, frame.team_name, window, By.METHOD), None


async def _before(frame: Frame, plane: ControlPlane, window: Window) -> Totals:
    items, took = await asyncio.gather(
        plane.usage.within(frame.actor, frame.team_name, window, Split.OUTCOME),
        plane.timelines.latency(frame.actor, frame.team_name, window),
    )
    cost = sum(item.cost_micros for item in items)
    return _totals({item.key: item.requests for item in items}, cost, took)


def _totals(outcomes: Mapping[str, int], cost: int, took: Latency) -> Totals:
    bad = {key: count for key, count in outcomes.items() if key != "ok"}
    return Totals(
        requests=sum(outcomes.values()),
        errors=sum(bad.values()),
        ours=sum(count for key, count in bad.items() if key in OURS),
        cost=cost,
        p50=took.p50,
        p95=took.p95,
    )


def _changes(now: Totals, before: Totals) -> dict[str, Change | None]:
    """What changed since the period before; None where one of the two has no value."""
    points = 100 * (now.error_rate - before.error_rate)
    rate = None
    if now.requests and before.requests:
        tone = "same" if round(points, 2) == 0 else "worse" if points > 0 else "better"
        rate = Change(f"{_arrow(round(points, 2))} {abs(points):.2f} pt", tone, render.percent(before.error_rate))
    return {
        "requests": _relative(now.requests, before.requests, render.number, better=None),
        "errors": rate,
        "latency": _relative(now.p95, before.p95, render.millis, better=False),
        "cost": _relative(now.cost, before.cost, render.money, better=None),
    }


def _relative(
    now: int | None, before: int | None, show: Callable[[int], str], *, better: bool | None
) -> Change | None:
    """The change of a value; `better`: whether more of it is, or None where it is neither."""
    if now is None or not before:
        return None
    share = round(100 * (now - before) / before, 1)
    rises = share > 0
    tone = "same" if share == 0 or better is None else "better" if rises == better else "worse"
    return Change(f"{_arrow(share)} {abs(share):,.1f} %", tone, show(before))


def _arrow(change: float) -> str:
    return "=" if change == 0 else "▲" if change > 0 else "▼"


async def _sample(frame: Frame, plane: ControlPlane, team: str, window: Window) -> dict[str, float]:
    """The share of the newest calls of a window that the cache answered; usage does not have it."""
    nothing = {"calls": 0, "cached": 0.0}
    if not frame.may("SEE_LOGS"):
        return nothing
    try:
        since = f"{max(1, int(frame.now - window.start))}s"
        until = datetime.fromtimestamp(window.end, UTC) if window.end < frame.now else None
        newest = (await plane.logs.page(frame.actor, team, LogQuery(limit=SAMPLE, since=since, until=until))).rows
    except StoreUnavailable:
        return nothing
    answered = [entry for entry in newest if entry.billable]
    hits = sum(1 for entry in answered if entry.cache in ("hit", "coalesced"))
    return {"calls": len(answered), "cached": hits / len(answered)} if answered else nothing


def _top(items: list[UsageItem]) -> list[tuple[str, int]]:
    named = [(item.name or item.key, item.requests) for item in items if item.key]
    return sorted(named, key=lambda each: -each[1])[:TOP]


def _period(window: Window, now: float) -> str:
    """A window in words, up to now where it has not ended."""
    first, last = (datetime.fromtimestamp(at, UTC) for at in (window.start, min(now, window.end - 1)))
    if window.step == "hour":
        return f"{first.day} {first:%B %H:%M} to {last.day} {last:%B %Y %H:%M}, UTC"
    if window.step == "month":
        return f"{first:%B %Y} to {last:%B %Y}, UTC"
    if (first.month, first.year) == (last.month, last.year):
        return f"{first.day} to {last.day} {last:%B %Y}, UTC"
    return f"{first.day} {first:%B %Y} to {last.day} {last:%B %Y}, UTC"


def _address(query: TimelineQuery) -> str:
    """The query of the page's own links, so that one choice keeps the others."""
    days = {key: day for key, day in (("since", query.since), ("until", query.until)) if day is not UNSET}
    return urlencode({"range": query.range, **days})


def _command(team: str, query: TimelineQuery, split: Split) -> str:
    days = [f" --{key} {day}" for key, day in (("since", query.since), ("until", query.until)) if day is not UNSET]
    span = "".join(days) or f" --range {query.range}"
    return f"tollgate usage timeline --team {team}{span} --split {split.value}"


def _one_of(choices: tuple[tuple[str, str], ...], given: str, usual: str) -> str:
    return given if given in [choice for choice, _ in choices] else usual
