"""Rounds of load, interleaved over servers and cases so that a drift of the machine meets all alike."""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from bench import processes
from bench.load import Subject, load, look
from bench.plan import BenchError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.plan import Case

WARM_UP_SECONDS = 1
SETTLE_SECONDS = 0.05  # the connections of the round before are closed


@dataclass(frozen=True, slots=True)
class Round:
    """One short run of wrk against one server.

    `cpu_us` is the cost of a request in all processes of the server, `worker_us` in those that answer: without
    Tollgate's collector, which reads a record when its call has long been answered.
    `busy` is the share of the time that the workers ran; `waited` the share that they could have run while other
    work had their core. Where that is much, something else was going on and the figures are too high.
    """

    requests_per_second: float
    p50_us: int
    p99_us: int
    cpu_us: float
    worker_us: float
    busy: float
    waited: float
    rss: int
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """A server in a case: medians of its rounds. `spread` of the CPU cost: (largest - smallest) / median."""

    subject: str
    workers: int
    body: str
    connections: int
    requests_per_second: float
    p50_us: float
    p99_us: float
    cpu_us: float
    worker_us: float
    spread: float
    busy: float
    waited: float
    rss: int
    problems: tuple[str, ...]
    rounds: tuple[Round, ...]


def middle(values: Sequence[float]) -> tuple[float, float]:
    """Return the median and twice its standard error, from absolute deviations: outliers weigh little.

    1.4826 makes a standard deviation of the median deviation, 1.2533 a median's error of a mean's.
    """
    found = median(values)
    deviation = 1.4826 * median(abs(value - found) for value in values)
    return found, 2 * 1.2533 * deviation / math.sqrt(len(values))


def one_round(subject: Subject, case: Case, seconds: int, size: int) -> Round:
    """Load one server and divide the CPU time of all its processes by the requests done."""
    time.sleep(SETTLE_SECONDS)
    pids = processes.tree(subject.pid)
    cores = os.sched_getaffinity(subject.workers[0])
    meter, of_workers = processes.Meter(pids, cores), processes.Meter(subject.workers, cores)
    started = time.monotonic()
    seen = load(subject, case.body, case.connections, seconds, size)
    spent, in_workers, wall = meter.read(), of_workers.read(), time.monotonic() - started
    problems = seen.problems
    still = processes.tree(subject.pid)
    if not set(subject.workers) <= set(still):
        raise BenchError(f"{subject.name}: a worker died under load ({case.body.name}, {case.connections})")
    if still != pids:
        problems = (*problems, "a process of the server came or went")
    return Round(
        requests_per_second=seen.requests / seen.seconds,
        p50_us=seen.p50_us,
        p99_us=seen.p99_us,
        cpu_us=spent.ran * 1e6 / max(seen.requests, 1),
        worker_us=in_workers.ran * 1e6 / max(seen.requests, 1),
        busy=in_workers.ran / wall,
        waited=in_workers.waited / wall,
        rss=max(processes.memory(pid).rss for pid in subject.workers),
        problems=problems,
    )


def alternate(
    subjects: Sequence[Subject],
    cases: Sequence[Case],
    seconds: int,
    rounds: int,
    progress: Callable[[str], None],
) -> list[list[Row]]:
    """Measure every server in its cases, after a warm-up; return the rows by case, in the servers' order."""
    pairs = [(i, case) for case in cases for i, subject in enumerate(subjects) if case.body.name in subject.paths]
    sizes = {(i, case): look(subjects[i], case.body).size for i, case in pairs}
    done: dict[tuple[int, Case], list[Round]] = {pair: [] for pair in pairs}
    order = list(range(len(subjects)))
    for number in range(rounds + 1):
        progress(f"round {number} of {rounds}" if number else "warm-up")
        for i, case in ((i, case) for case in cases for i in order if (i, case) in done):
            duration = seconds if number else WARM_UP_SECONDS
            done[i, case].append(one_round(subjects[i], case, duration, sizes[i, case]))
        order = order[1:] + order[:1]
    return [[_row(subjects[i], case, done[i, case][1:]) for i, of in pairs if of == case] for case in cases]


def _row(subject: Subject, case: Case, rounds: Sequence[Round]) -> Row:
    costs = [one.cpu_us for one in rounds]
    return Row(
        subject=subject.name,
        workers=len(subject.workers),
        body=case.body.name,
        connections=case.connections,
        requests_per_second=median(one.requests_per_second for one in rounds),
        p50_us=median(one.p50_us for one in rounds),
        p99_us=median(one.p99_us for one in rounds),
        cpu_us=median(costs),
        worker_us=median(one.worker_us for one in rounds),
        spread=(max(costs) - min(costs)) / median(costs),
        busy=median(one.busy for one in rounds),
        waited=median(one.waited for one in rounds),
        rss=max(one.rss for one in rounds),
        problems=tuple(problem for one in rounds for problem in one.problems),
        rounds=tuple(rounds),
    )
