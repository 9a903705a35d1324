"""What the cache saves and what it costs: hits beside nginx's proxied call, misses beside calls without a cache.

A miss is a question that nobody has asked before: looked for, asked, and marked as asked. The cache is full, as it
is in a service that has run for a while, so the answer comes in only when it is asked again. `slices.py` turns it
on and off.
"""

from __future__ import annotations

import http.client
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bench import gateway, rounds, slices
from bench.load import TIMEOUT
from bench.plan import HITS, MISSES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from bench.load import Subject
    from bench.plan import Case, Plan
    from bench.processes import Cores
    from bench.rounds import Row
    from bench.slices import Compared, Halved

    Tell = Callable[[str], None]

_HOW = re.compile(r'^tollgate_cache_total\{family="eth",how="(\w+)",network="cached"\} (\S+)$', re.MULTILINE)
_BYTES = re.compile(r'^tollgate_cache_bytes\{family="eth",network="cached"\} (\S+)$', re.MULTILINE)
# At most so many seconds until the cache is full. It is when it has not grown for three looks, because the service
# tells it once a second or a little later; an answer more or less makes no difference.
FILL_SECONDS = 60
LOOKS = 3
MAX_APART = 1_000
# The share of calls that may go another way than is measured.
ODD = 0.001


@dataclass(frozen=True, slots=True)
class Miss:
    """What the cache adds to a call that it cannot answer."""

    connections: int
    cost: Compared


def hits(proxy: Subject, tollgate: Subject, cores: Cores, plan: Plan, tell: Tell) -> list[Row]:
    """Measure a call that is answered from memory, and the same call through nginx."""
    gateway.leave_alone(tollgate, cores.load)
    before = _counted(tollgate)
    by_case = rounds.alternate([proxy, tollgate], HITS, plan.seconds, plan.rounds, tell)
    problems = odd(before, _counted(tollgate), {"hit"})
    return [
        replace(row, problems=(*row.problems, *problems)) if row.subject == tollgate.name else row
        for rows in by_case
        for row in rows
    ]


def misses(folder: Path, cores: Cores, stub_port: int, plan: Plan, tell: Tell) -> list[Miss]:
    """Measure calls that are all different, with a cache and without."""
    with slices.serve("caching", folder, cores, stub_port) as halved:
        problems = _fill(halved, tell)
        costs = [_missed(halved, case, plan.slices_seconds(), tell) for case in MISSES]
    return [
        Miss(case.connections, replace(cost, problems=(*problems, *cost.problems)))
        for case, cost in zip(MISSES, costs, strict=True)
    ]


def _fill(halved: Halved, tell: Tell) -> tuple[str, ...]:
    """Miss until the cache is full; say so where that took too long."""
    tell("misses, until the cache is full")
    used: list[int] = []
    for _ in range(FILL_SECONDS):
        halved.warm_up(MISSES[0], rounds.WARM_UP_SECONDS)
        used.append(_used(halved.subject))
        if is_full(used):
            return ()
    return (f"the cache held {used[-1]:,} bytes after {FILL_SECONDS} s of misses and was not full",)


def is_full(used: Sequence[int]) -> bool:
    """Say whether a cache that was so large, look after look, does not grow any more."""
    last = used[-LOOKS:]
    return len(last) == LOOKS and min(last) > 0 and max(last) - min(last) <= MAX_APART


def _missed(halved: Halved, case: Case, seconds: int, tell: Tell) -> Compared:
    tell(f"{seconds} s of misses, {case.connections} connections")
    before = _counted(halved.subject)
    cost = halved.measure(case, seconds)
    return replace(cost, problems=(*cost.problems, *odd(before, _counted(halved.subject), {"miss", "bypass"})))


def odd(before: dict[str, int], after: dict[str, int], wanted: set[str]) -> tuple[str, ...]:
    """Say which calls went another way than those that are measured."""
    ways = {how: count - before.get(how, 0) for how, count in after.items()}
    total = sum(ways.values())
    astray = {how: count for how, count in ways.items() if count and how not in wanted}
    missing = [how for how in sorted(wanted) if not ways.get(how)]
    found = [f"no {how} in {total:,} calls" for how in missing]
    if sum(astray.values()) > ODD * total:
        found += [f"{count:,} of {total:,} calls were {how}" for how, count in sorted(astray.items())]
    return tuple(found)


def _counted(subject: Subject) -> dict[str, int]:
    return {how: round(float(count)) for how, count in _HOW.findall(_metrics(subject))}


def _used(subject: Subject) -> int:
    return sum(round(float(count)) for count in _BYTES.findall(_metrics(subject)))


def _metrics(subject: Subject) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", subject.metrics_port, timeout=TIMEOUT)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    finally:
        connection.close()
