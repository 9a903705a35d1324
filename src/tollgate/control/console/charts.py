"""Charts as SVG, drawn here: bars by hour, day or month, and sparklines. Pure: numbers in, markup out.

Colours are classes, because the Content-Security-Policy allows no inline style.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from markupsafe import Markup, escape
from msgspec import Struct

from tollgate.control.services.timelines import UsageTimeline
from tollgate.core.upstream_history import STEP_SECONDS, STEPS, HistoryStep

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 1090, 230, 46, 24, 8
MAX_KEYS = 5
OTHERS = "others"
# Shares of failed calls from which a step of 15 minutes is bad, or a warning.
MAX_FAILED, SOME_FAILED = 0.2, 0.02
# Temporary states; all others except `up` are faults.
_PASSING = frozenset({"unknown", "lagging", "syncing"})
_HEIGHT = HEIGHT - BOTTOM - TOP


class Chart(Struct, frozen=True):
    """A chart with its legend and its numbers."""

    svg: Markup
    legend: list[tuple[str, int]]
    """The keys of the split, each with the number of its colour."""
    rows: list[tuple[str, list[int], int]]
    """Each step with its numbers, in the order of the legend, and their sum."""
    has_forecast: bool = False


def bars(timeline: UsageTimeline, now: float, tones: dict[str, int] | None = None) -> Chart:
    """Draw requests over time; the rest of a month is a forecast, drawn pale."""
    keys = timeline.keys[:MAX_KEYS]
    others = len(timeline.keys) > MAX_KEYS
    names = [*keys, OTHERS] if others else keys
    colours = [(tones or {}).get(key, place + 1) for place, key in enumerate(keys)] + ([6] if others else [])
    table = [_values(step.requests, keys, others) for step in timeline.steps]
    started = sum(1 for step in timeline.steps if step.start <= now)
    future = _expected(table, started) if timeline.span == "month" else []
    drawn = table[:started] + [future] * (len(table) - started) if future else table
    top = ceiling(max((sum(values) for values in drawn), default=0))
    parts = [_lines(top)]
    pace = (WIDTH - LEFT) / max(1, len(table))
    for place, (step, values) in enumerate(zip(timeline.steps, drawn, strict=True)):
        pale = bool(future) and place >= started
        label = _label(step.start, timeline.step)
        tip = f"{label}: {sum(values):,}" + (" expected" if pale else "")
        parts.append(_bar(LEFT + place * pace, pace, values, colours, top, tip, pale=pale))
        if place % _every(len(table)) == 0:
            x = LEFT + place * pace + pace / 2
            parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 6}" text-anchor="middle">{escape(label)}</text>')
    name = f"Requests by {timeline.step}, split by {timeline.split.value}. The numbers are in the table below."
    svg = (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(name)}">'
        f"{''.join(parts)}</svg>"
    )
    rows = [
        (_label(step.start, timeline.step), values, sum(values))
        for step, values in zip(timeline.steps[:started], table, strict=False)
    ]
    legend = list(zip(names, colours, strict=True))
    return Chart(Markup(svg), legend, rows, bool(future) and started < len(table))  # noqa: S704 - escaped above


def sparkline(values: Sequence[int]) -> Markup:
    top = max([*values, 1])
    pace = 94 / max(1, len(values) - 1)
    points = " ".join(f"{1 + place * pace:.1f},{22 - 20 * value / top:.1f}" for place, value in enumerate(values))
    tip = f"{sum(values):,} requests in the last 24 hours"
    return Markup(  # noqa: S704 - only numbers
        f'<svg class="spark{"" if any(values) else " none"}" viewBox="0 0 96 24" role="img" aria-label="{tip}">'
        f'<polyline points="{points}"/></svg>'
    )


def strip(steps: Sequence[HistoryStep], now: float) -> Markup:
    """Draw the last day of an upstream as a strip: good, warning or bad in steps of 15 minutes."""
    last = int(now) // STEP_SECONDS * STEP_SECONDS
    known = {step.start: step for step in steps}
    parts, good = [], 0
    for place in range(STEPS):
        step = known.get(last - STEP_SECONDS * (STEPS - 1 - place))
        if step is None or (step.state == "unknown" and not step.calls):
            parts.append(f'<rect class="none" x="{place * 3}" y="4" width="2" height="16"/>')
            continue
        share = step.failures / step.calls if step.calls else 0.0
        tone = "good"
        if share > MAX_FAILED or not (step.state == "up" or step.state in _PASSING):
            tone = "bad"
        elif share > SOME_FAILED or step.state != "up":
            tone = "warn"
        good += tone == "good"
        tip = f"{_label(step.start, 'hour')}: {step.state.replace('_', ' ')}, {step.calls:,} calls, " + (
            f"{100 * share:.1f} % failed" if step.calls else "none failed"
        )
        parts.append(
            f'<rect class="{tone}" x="{place * 3}" y="2" width="2" height="20"><title>{escape(tip)}</title></rect>'
        )
    tip = f"Last 24 hours: {good} of {len(known)} known steps of 15 minutes without a fault"
    return Markup(  # noqa: S704 - escaped above
        f'<svg class="strip" viewBox="0 0 {STEPS * 3} 24" preserveAspectRatio="none" role="img" '
        f'aria-label="{tip}">{"".join(parts)}</svg>'
    )


def _values(requests: dict[str, int], keys: Sequence[str], others: bool) -> list[int]:
    values = [requests.get(key, 0) for key in keys]
    return [*values, sum(requests.values()) - sum(values)] if others else values


def _expected(table: list[list[int]], started: int) -> list[int]:
    """The mean of the past days; on the first day, the day itself."""
    whole = table[: max(1, started - 1)]
    if not whole or not whole[0]:
        return []
    return [sum(values) // len(whole) for values in zip(*whole, strict=True)]


def ceiling(value: int) -> int:
    """The smallest round number that is not below a value."""
    unit = 1
    while True:
        for step in (1, 2, 3, 4, 5, 6, 8, 10):
            if step * unit * 4 >= max(value, 4) and step * unit % 1 == 0:
                return step * unit * 4
        unit *= 10


def _lines(top: int) -> str:
    lines = []
    for quarter in range(5):
        y = TOP + _HEIGHT - _HEIGHT * quarter / 4
        lines.append(
            f'<line x1="{LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{_short(top * quarter // 4)}</text>'
        )
    return "".join(lines)


def _bar(x: float, pace: float, values: list[int], colours: list[int], top: int, tip: str, *, pale: bool) -> str:
    width = min(pace * 0.62, 56)
    left, y = x + (pace - width) / 2, float(TOP + _HEIGHT)
    rects = []
    for value, colour in zip(values, colours, strict=True):
        if value:
            height = max(_HEIGHT * value / top, 0.6)
            y -= height
            rects.append(
                f'<rect class="k{colour}" x="{left:.1f}" y="{y:.1f}" width="{width:.1f}" '
                f'height="{max(height - 1, 0.6):.1f}" rx="1.5"/>'
            )
    return f'<g class="bar{" pale" if pale else ""}"><title>{escape(tip)}</title>{"".join(rects)}</g>'


def _every(count: int) -> int:
    return 1 if count <= 12 else 3 if count <= 24 else 5


def _label(start: float, step: str) -> str:
    moment = datetime.fromtimestamp(start, UTC)
    if step == "hour":
        return moment.strftime("%H:%M")
    return f"{moment.day} {moment:%b}" if step == "day" else moment.strftime("%b %Y")


def _short(value: int) -> str:
    if value >= 1_000_000:
        return f"{value / 1_000_000:g}M"
    return f"{value / 1_000:g}k" if value >= 1_000 else str(value)
