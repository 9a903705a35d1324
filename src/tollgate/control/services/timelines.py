"""A team's requests over time, split by network, outcome or source, and how long they took."""

from __future__ import annotations

from msgspec import Struct

from tollgate.api.usage import Split, TimelineQuery, TimeRange
from tollgate.control.commands import checked
from tollgate.control.service_context import Actor, ServiceContext, required
from tollgate.core.entries import BILLABLE
from tollgate.core.latencies import percentile
from tollgate.core.months import end_of, last_months, month_of, previous_month, start_of
from tollgate.core.roles import Action
from tollgate.core.usage import Point
from tollgate.store.base import AccountBook

HOUR, DAY_HOURS = 3_600, 24
THIS_MONTH = TimelineQuery()


_STEPS = {TimeRange.DAY: "hour", TimeRange.WEEK: "day", TimeRange.MONTH: "day", TimeRange.YEAR: "month"}


class UsageStep(Struct, frozen=True):
    """One step of a timeline."""

    start: float
    requests: dict[str, int]
    """By network, outcome or source."""

    @property
    def total(self) -> int:
        return sum(self.requests.values())


class UsageTimeline(Struct, frozen=True):
    """Requests over time. Steps without requests are included; of a month also those still to come."""

    span: TimeRange
    split: Split
    step: str
    """`hour`, `day` or `month`."""
    keys: list[str]
    """The keys of the split, the busiest first."""
    steps: list[UsageStep]

    @property
    def total(self) -> int:
        return sum(step.total for step in self.steps)

    def of(self, key: str) -> int:
        return sum(step.requests.get(key, 0) for step in self.steps)


class Latency(Struct, frozen=True):
    """How long answered calls took, in microseconds; None where there were none."""

    p50: int | None
    p95: int | None


class Timelines:
    """Reads usage over time."""

    def __init__(self, context: ServiceContext, book: AccountBook | None) -> None:
        self._context = context
        self._book = book

    async def of_team(self, actor: Actor, team: str, query: TimelineQuery = THIS_MONTH) -> UsageTimeline:
        query = checked(query)
        wanted, by = TimeRange(query.range), Split(query.split)
        membership = await self._context.member(actor, team, Action.SEE_USAGE)
        starts, end = _starts(wanted, self._context.now())
        hours = (int(starts[0]) // HOUR, int(end) // HOUR)
        step = {"hour": 1, "day": DAY_HOURS, "month": 0}[_STEPS[wanted]]
        points = await required(self._book).series(
            membership.team.id, _months(starts[0], self._context.now()), hours, step, by
        )
        return _timeline(wanted, by, starts, points)

    async def latency(self, actor: Actor, team: str, span: TimeRange = TimeRange.MONTH) -> Latency:
        """Percentiles of the durations of answered calls, without refusals."""
        membership = await self._context.member(actor, team, Action.SEE_USAGE)
        starts, end = _starts(span, self._context.now())
        found = await required(self._book).latencies(
            membership.team.id, int(starts[0]) // HOUR, int(end) // HOUR - 1
        )
        total: dict[int, int] = {}
        for (_, outcome), buckets in found.items():
            if outcome in BILLABLE:
                for bucket, count in buckets.items():
                    total[bucket] = total.get(bucket, 0) + count
        return Latency(percentile(total, 50), percentile(total, 95))


def _timeline(span: TimeRange, split: Split, starts: list[float], points: list[Point]) -> UsageTimeline:
    found: dict[float, dict[str, int]] = {start: {} for start in starts}
    totals: dict[str, int] = {}
    for point in points:
        step = found.get(float(point.start * HOUR))
        if step is None:
            continue  # a late record of a month outside the range
        step[point.key] = step.get(point.key, 0) + point.requests
        totals[point.key] = totals.get(point.key, 0) + point.requests
    keys = sorted(totals, key=lambda key: (-totals[key], key))
    return UsageTimeline(span, split, _STEPS[span], keys, [UsageStep(start, found[start]) for start in starts])


def _starts(span: TimeRange, now: float) -> tuple[list[float], float]:
    """The starts of the steps of a range, and its end."""
    if span is TimeRange.DAY:
        last = now // HOUR * HOUR
        return [last - HOUR * back for back in range(23, -1, -1)], last + HOUR
    day = HOUR * DAY_HOURS
    if span is TimeRange.WEEK:
        last = now // day * day
        return [last - day * back for back in range(6, -1, -1)], last + day
    month = month_of(now)
    if span is TimeRange.MONTH:
        start, end = start_of(month), end_of(month)
        return [start + day * count for count in range(int((end - start) // day))], end
    return [start_of(each) for each in reversed(last_months(month, 12))], end_of(month)


def _months(start: float, now: float) -> list[str]:
    """The billing months that calls since a moment may be in."""
    first, months = month_of(start), [month_of(now)]
    while months[-1] > first:
        months.append(previous_month(months[-1]))
    return months
