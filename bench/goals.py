"""PURE: what a run has to reach, and whether it did. Figures in, verdicts out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.plan import CONNECTIONS, MANY_TOKENS, OPEN_CONNECTIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.cache import Miss
    from bench.rounds import Row
    from bench.scale import Growth, Weight

SINGLE_TO_NGINX = 2.5
BATCH_TO_SINGLE = 1.6
HIT_TO_NGINX = 1.6
MISS_US = 4.0
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


def ratio_to_nginx(row: Row, rows: Sequence[Row]) -> float | None:
    """Divide a server's CPU cost of a request by that of nginx in the same case."""
    nginx = _find(rows, "nginx", row.body, row.connections)
    return row.cpu_us / nginx.cpu_us if nginx else None


def goals(rows: Sequence[Row], misses: Sequence[Miss], growth: Growth | None, weight: Weight | None) -> list[Goal]:
    """Hold the figures of a run against every bar."""
    found = []
    for connections in CONNECTIONS:
        single, nginx = (_find(rows, name, "single", connections) for name in ("tollgate", "nginx"))
        name = f"CPU of a single call / nginx, {connections} connections"
        found.append(_ratio(name, SINGLE_TO_NGINX, single, nginx))
    for connections in CONNECTIONS:
        batch, single = (_find(rows, "tollgate", body, connections) for body in ("batch10", "single"))
        name = f"CPU of a batch of 10 / single call, {connections} connections"
        found.append(_ratio(name, BATCH_TO_SINGLE, batch, single))
    for connections in CONNECTIONS:
        hit, nginx = (_find(rows, name, "hit", connections) for name in ("tollgate", "nginx"))
        name = f"CPU of a call answered from the cache, in the worker / nginx, {connections} connections"
        found.append(_ratio(name, HIT_TO_NGINX, hit, nginx, lambda row: row.worker_us))
    found += [_miss(misses, connections) for connections in CONNECTIONS]
    return [*found, _memory(weight), _growth(growth)]


def _find(rows: Sequence[Row], subject: str, body: str, connections: int) -> Row | None:
    key = (subject, body, connections)
    return next((row for row in rows if (row.subject, row.body, row.connections) == key), None)


def _ratio(
    name: str,
    bar: float,
    row: Row | None,
    base: Row | None,
    cost: Callable[[Row], float] = lambda row: row.cpu_us,
) -> Goal:
    if row is None or base is None:
        return _goal(name, bar, "x", None, sound=True)
    return _goal(name, bar, "x", cost(row) / cost(base), sound=not (row.problems or base.problems))


def _miss(misses: Sequence[Miss], connections: int) -> Goal:
    name = f"CPU that the cache adds to a call it cannot answer, {connections} connections"
    cost = next((miss.cost for miss in misses if miss.connections == connections), None)
    if cost is None:
        return _goal(name, MISS_US, "µs", None, sound=True)
    return _goal(name, MISS_US, "µs", cost.added, sound=not cost.problems, margin=cost.margin)


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
    return _goal(name, GROWTH_PERCENT, "%", growth.change * 100, sound=sound)


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
