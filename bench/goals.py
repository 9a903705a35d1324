"""PURE: what a run has to reach, and whether it did. Figures in, verdicts out."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from bench.plan import CONNECTIONS, FAILURES, MANY_TOKENS, OPEN_CONNECTIONS, REVERTS
from bench.rounds import middle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.collector import Share
    from bench.rounds import Row
    from bench.scale import Growth, Weight

# CPU of the worker : nginx's, by body.
TO_NGINX = {"single": 1.7, "miss": 2.3, "hit": 1.0}
TITLES = {
    "single": "a call",
    "miss": "a call with two upstreams and a cache that misses",
    "hit": "a call answered from the cache",
}
BATCH_TO_SINGLE = 1.9
MIXED_TO_HEALTHY = 1.25
# CPU of the collector for a request, in µs, by body.
COLLECTOR_US = {"single": 5.0, "batch10": 20.0}
COLLECTED = {"single": "a call", "batch10": "a batch of 10"}
# At these connections, and one worker.
BARRED = CONNECTIONS[0]
RSS_MB = 80.0
GROWTH_PERCENT = 5.0


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure and its bar; no figure means that it was not measured."""

    name: str
    bar: float
    unit: str
    value: float | None
    verdict: str


def ratios_to_nginx(row: Row, rows: Sequence[Row]) -> tuple[float, float] | None:
    """Divide the CPU cost of a request in the worker, and in all processes, by that of nginx in the same case."""
    nginx = _find(rows, "nginx", row.body, row.connections, row.workers)
    if nginx is None:
        return None
    pairs = list(zip(row.rounds, nginx.rounds, strict=True))
    return (
        median(own.worker_us / other.worker_us for own, other in pairs),
        median(own.cpu_us / other.cpu_us for own, other in pairs),
    )


def goals(
    rows: Sequence[Row], growth: Growth | None, weight: Weight | None, shares: Sequence[Share] = ()
) -> list[Goal]:
    """Hold the figures of a run against every bar."""
    found = []
    for body, bar in TO_NGINX.items():
        tollgate, nginx = (_find(rows, name, body, BARRED) for name in ("tollgate", "nginx"))
        found.append(_ratio(f"worker : nginx, {TITLES[body]}, {BARRED} connections", bar, tollgate, nginx))
    batch, single = (_find(rows, "tollgate", body, BARRED) for body in ("batch10", "single"))
    found.append(_ratio(f"worker, batch of 10 : call, {BARRED} connections", BATCH_TO_SINGLE, batch, single))
    mixed, healthy = (_find(rows, "tollgate", body, BARRED) for body in ("mixed", "healthy"))
    name = f"worker, {REVERTS} reverts and {FAILURES} failed attempts : none, {BARRED} connections"
    found.append(_ratio(name, MIXED_TO_HEALTHY, mixed, healthy))
    found += [_collector(body, bar, shares) for body, bar in COLLECTOR_US.items()]
    return [*found, _memory(weight), _growth(growth)]


def _find(rows: Sequence[Row], subject: str, body: str, connections: int, workers: int = 1) -> Row | None:
    key = (subject, body, connections, workers)
    return next((row for row in rows if (row.subject, row.body, row.connections, row.workers) == key), None)


def _ratio(name: str, bar: float, row: Row | None, base: Row | None) -> Goal:
    if row is None or base is None:
        return _goal(name, bar, "x", None, sound=True)
    # Round by round: the two were a moment apart, so that a drift of the machine affects both.
    pairs = zip(row.rounds, base.rounds, strict=True)
    value, margin = middle([own.worker_us / other.worker_us for own, other in pairs])
    return _goal(name, bar, "x", value, sound=not (row.problems or base.problems), margin=margin)


def _collector(body: str, bar: float, shares: Sequence[Share]) -> Goal:
    name = f"collector, CPU that it adds to {COLLECTED[body]}"
    share = next((each for each in shares if each.body == body), None)
    if share is None:
        return _goal(name, bar, "µs", None, sound=True)
    return _goal(name, bar, "µs", share.cpu_us, sound=not share.problems)


def _memory(weight: Weight | None) -> Goal:
    name = f"RSS of a worker, {MANY_TOKENS:,} tokens, {OPEN_CONNECTIONS:,} connections"
    if weight is None:
        return _goal(name, RSS_MB, "MB", None, sound=True)
    return _goal(name, RSS_MB, "MB", weight.rss / 1e6, sound=not weight.problems)


def _growth(growth: Growth | None) -> Goal:
    name = f"CPU of a call with {MANY_TOKENS:,} tokens, more than with 10"
    if growth is None:
        return _goal(name, GROWTH_PERCENT, "%", None, sound=True)
    sound = not (growth.few.problems or growth.many.problems)
    return _goal(name, GROWTH_PERCENT, "%", growth.change * 100, sound=sound, margin=growth.margin * 100)


def _goal(name: str, bar: float, unit: str, value: float | None, *, sound: bool, margin: float = 0.0) -> Goal:
    if value is None:
        found = "not measured"
    elif not sound:
        found = "invalid"
    else:
        found = verdict(value, bar, margin)
    return Goal(name, bar, unit, value, found)


def verdict(value: float, bar: float, margin: float = 0.0) -> str:
    """Hold a figure against its bar: within the margin of error it is on neither side of it."""
    if value + margin <= bar:
        return "reached"
    return "missed" if value - margin > bar else "unclear"
