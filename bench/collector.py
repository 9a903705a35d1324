"""What the collector adds to a call: its CPU while a worker is under load and until all is collected, shared out.

Measured by itself, because it reads a record when its call has long been answered: a round of load ends before.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench import processes
from bench.load import load, look, metrics
from bench.plan import BATCH, CONNECTIONS, SINGLE, BenchError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.load import Subject
    from bench.plan import Body, Plan

    Progress = Callable[[str], None]

COLLECTOR = "tg-collector"
# Until the last record is in the ledger. Longer means that the collector falls behind.
MAX_SECONDS = 10.0
LOOK_SECONDS = 0.1
# Looks that see no more rows: longer than from one commit to the next.
_STILL = 12
_ROWS = re.compile(r"^tollgate_ledger_rows_total (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Share:
    """What the collector took for each request of one body, in µs of CPU."""

    body: str
    requests: int
    cpu_us: float
    problems: tuple[str, ...]


def shares(subject: Subject, plan: Plan, progress: Progress) -> list[Share]:
    """Put Tollgate under load with each body, and wait each time until everything is collected."""
    found = []
    for body in (SINGLE, BATCH):
        progress(f"collector, {body.name}")
        found.append(_share(subject, body, plan.rounds * plan.seconds))
    return found


def _share(subject: Subject, body: Body, seconds: int) -> Share:
    (pid,) = _pids(subject)
    size = look(subject, body).size
    _settle(subject)
    before = _rows(subject)
    meter = processes.Meter([pid], os.sched_getaffinity(pid))
    seen = load(subject, body, CONNECTIONS[0], seconds, size)
    collected = _settle(subject) - before
    spent = meter.read()
    expected = seen.requests * len(body.ids)
    problems = seen.problems
    # wrk leaves those uncounted that it has sent when its time is over.
    if not expected <= collected <= expected + 2 * CONNECTIONS[0] * len(body.ids):
        problems = (*problems, f"{collected:,} log rows where {expected:,} were expected")
    if _pids(subject) != [pid]:
        problems = (*problems, "the collector was replaced")
    return Share(body.name, seen.requests, spent.ran * 1e6 / max(seen.requests, 1), problems)


def _pids(subject: Subject) -> list[int]:
    found = processes.named(processes.tree(subject.pid)[1:], COLLECTOR)
    if not found:
        raise BenchError(f"{subject.name}: no process is named {COLLECTOR}")
    return found


def _settle(subject: Subject) -> int:
    """Wait until nothing more is collected; how many log rows there are."""
    end = time.monotonic() + MAX_SECONDS
    seen: Sequence[int] = ()
    while len(seen) < _STILL or len(set(seen)) > 1:
        if time.monotonic() > end:
            raise BenchError(f"{subject.name}: the collector was not done {MAX_SECONDS:.0f} s after the load")
        time.sleep(LOOK_SECONDS)
        seen = [*seen, _rows(subject)][-_STILL:]
    return seen[-1]


def _rows(subject: Subject) -> int:
    return sum(round(float(count)) for count in _ROWS.findall(metrics(subject)))
