"""A team's requests over time, split by network, outcome or source, and how long they took.

A range is turned into a `Window` once, by `window_of`; what is shown of a range is read with the same window.
"""

from __future__ import annotations

from datetime import UTC, datetime

from msgspec import UNSET, Struct, UnsetType

from tollgate.api.usage import MAX_CUSTOM_DAYS, Split, TimelineQuery, TimeRange
from tollgate.control.commands import checked
from tollgate.control.problems import InvalidInput
from tollgate.control.service_context import Actor, ServiceContext, required
from tollgate.core.entries import BILLABLE
from tollgate.core.latencies import percentile
from tollgate.core.months import end_of, last_months, month_of, previous_month, start_of
from tollgate.core.roles import Action
from tollgate.core.usage import Point
from tollgate.store.base import AccountBook

HOUR, DAY_HOURS = 3_600, 24
DAY = HOUR * DAY_HOURS
# A custom range of so many days is shown by the hour.
MAX_DAYS_BY_HOUR = 2
THIS_MONTH = TimelineQuery()


class Window(Struct, frozen=True):
    """A range of time in steps. Starts are on the hour, those of days and months at 00:00 UTC."""

    range: TimeRange
    step: str
    """`hour`, `day` or `month`."""
    starts: list[float]
    end: float
    before: tuple[float, float]
    """The same part of the period before, to compare with: until now, if the range has not ended."""

    @property
    def start(self) -> float:
        return self.starts[0]

    @property
    def previous(self) -> Window:
        """The period before as one step."""
        return Window(self.range, self.step, [self.before[0]], self.before[1], self.before)

    @property
    def hours(self) -> tuple[int, int]:
        return int(self.start) // HOUR, int(self.end) // HOUR

    def months(self, now: float) -> list[str]:
        """The billing months that its calls may be in: a late record is in a later one than its call."""
        first, months = month_of(self.start), [month_of(now)]
        while months[-1] > first:
            months.append(previous_month(months[-1]))
        return months


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
        return await self.within(actor, team, window_of(query, self._context.now()), Split(query.split))

    async def within(self, actor: Actor, team: str, window: Window, split: Split) -> UsageTimeline:
        membership = await self._context.member(actor, team, Action.SEE_USAGE)
        one_step = len(window.starts) == 1
        hours = window.hours
        step = hours[1] - hours[0] if one_step else {"hour": 1, "day": DAY_HOURS, "month": 0}[window.step]
        points = await required(self._book).series(
            membership.team.id, window.months(self._context.now()), hours, step, split
        )
        return _timeline(window, split, points)

    async def latency(self, actor: Actor, team: str, window: Window | None = None) -> Latency:
        """Percentiles of the durations of answered calls, without refusals; by default of this month."""
        window = window or window_of(THIS_MONTH, self._context.now())
        membership = await self._context.member(actor, team, Action.SEE_USAGE)
        first, end = window.hours
        found = await required(self._book).latencies(membership.team.id, first, end - 1)
        total: dict[int, int] = {}
        for (_, outcome), buckets in found.items():
            if outcome in BILLABLE:
                for bucket, count in buckets.items():
                    total[bucket] = total.get(bucket, 0) + count
        return Latency(percentile(total, 50), percentile(total, 95))


def _timeline(window: Window, split: Split, points: list[Point]) -> UsageTimeline:
    found: dict[float, dict[str, int]] = {start: {} for start in window.starts}
    totals: dict[str, int] = {}
    for point in points:
        step = found.get(float(point.start * HOUR))
        if step is None:
            continue  # a late record of a month outside the range
        step[point.key] = step.get(point.key, 0) + point.requests
        totals[point.key] = totals.get(point.key, 0) + point.requests
    keys = sorted(totals, key=lambda key: (-totals[key], key))
    steps = [UsageStep(start, found[start]) for start in window.starts]
    return UsageTimeline(window.range, split, window.step, keys, steps)


def window_of(query: TimelineQuery, now: float) -> Window:
    """The window of a query; `since` alone makes its range a custom one."""
    query = checked(query)
    span = TimeRange(query.range)
    if query.since is not UNSET or query.until is not UNSET or span is TimeRange.CUSTOM:
        return _custom(query.since, query.until, now)
    if span is TimeRange.DAY:
        last = now // HOUR * HOUR
        return _even(span, "hour", last - 23 * HOUR, last + HOUR, HOUR, now)
    if span is TimeRange.WEEK:
        last = now // DAY * DAY
        return _even(span, "day", last - 6 * DAY, last + DAY, DAY, now)
    month = month_of(now)
    if span is TimeRange.MONTH:
        before = start_of(previous_month(month))
        return _even(span, "day", start_of(month), end_of(month), DAY, now, before)
    starts = [start_of(each) for each in reversed(last_months(month, 12))]
    before = start_of(last_months(previous_month(month_of(starts[0])), 12)[-1])
    return Window(span, "month", starts, end_of(month), _part(before, starts[0], now - starts[0]))


def _custom(since: str | UnsetType, until: str | UnsetType, now: float) -> Window:
    if since is UNSET:
        raise InvalidInput("A custom range needs its first day: `since`, such as 2026-11-01.", field="since")
    first = _day_of(since, "since")
    last = now // DAY * DAY if until is UNSET else _day_of(until, "until")
    if last < first:
        raise InvalidInput("The last day of the range is before its first: exchange the two.", field="until")
    days = int((last - first) // DAY) + 1
    if days > MAX_CUSTOM_DAYS:
        raise InvalidInput(
            f"The range has {days:,} days; {MAX_CUSTOM_DAYS} are the maximum: choose a shorter one, or `year`.",
            field="since",
        )
    step, seconds = ("hour", HOUR) if days <= MAX_DAYS_BY_HOUR else ("day", DAY)
    return _even(TimeRange.CUSTOM, step, first, last + DAY, seconds, now)


def _even(
    span: TimeRange, step: str, start: float, end: float, seconds: int, now: float, before: float | None = None
) -> Window:
    """A window of equal steps; the period before has the same length unless its start is given."""
    starts = [start + seconds * count for count in range(int((end - start) // seconds))]
    earlier = start - (end - start) if before is None else before
    return Window(span, step, starts, end, _part(earlier, start, min(now, end) - start))


def _part(before: float, start: float, elapsed: float) -> tuple[float, float]:
    """As much of the period before as has elapsed of the current one, in whole hours, at least one."""
    hours = max(1, -int(-elapsed // HOUR))
    return before, min(before + hours * HOUR, start)


def _day_of(text: str, field: str) -> float:
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise InvalidInput(f"{text[:20]!r} is not a day: write one such as 2026-11-01.", field=field) from None
