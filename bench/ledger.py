"""What recording costs: the CPU that it adds to a call, and how fast the collector catches up.

A worker under load records in every other slice of time (`slices.py`). The collector is run over a spool that was
written before, in this process.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from bench import machine, nginx, processes, slices
from bench.goals import Goal, verdict
from bench.plan import SINGLE, Case
from bench.report import RESULTS
from bench.rounds import WARM_UP_SECONDS
from tollgate.core.entries import encode
from tollgate.ledger.spool import Spool
from tollgate.processes.bootstrap import Bootstrap, prepare
from tollgate.processes.collector import CollectorLoop
from tollgate.settings.model import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.plan import Plan
    from bench.slices import Compared

    Tell = Callable[[str], None]

RECORDS = 100_000
TEAMS, TOKENS_OF_A_TEAM = 50, 4
METHODS = ("eth_call", "eth_getBalance", "eth_blockNumber", "eth_chainId", "eth_getLogs")
BAR_US = 6.0
BAR_A_SECOND = 30_000
CASE = Case(SINGLE, 32)


@dataclass(frozen=True, slots=True)
class CatchUp:
    """One run of the collector over a full spool."""

    records: int
    seconds: float
    cpu_seconds: float


def catch_up(records: int) -> CatchUp:
    """Fill a spool as two workers would, and collect it."""
    with tempfile.TemporaryDirectory(prefix="tollgate-bench-ledger-") as folder:
        bootstrap = prepare(Settings(data_dir=folder))
        for worker in range(2):
            _fill(bootstrap, records // 2, worker)
        loop = CollectorLoop(bootstrap)
        began, cpu = time.perf_counter(), time.process_time()
        while loop.turn():
            pass
        found = CatchUp(loop.rows, time.perf_counter() - began, time.process_time() - cpu)
        loop.close()
    return found


def _fill(bootstrap: Bootstrap, records: int, worker: int) -> None:
    chance = random.Random(worker)
    spool = Spool(
        bootstrap.spool_dir, segment_bytes=16 << 20, segment_seconds=3600, max_held_bytes=1 << 30, now=time.time
    )
    now = time.time() - 60
    for number in range(records):
        team = chance.randrange(TEAMS)
        token = f"tok_{team * TOKENS_OF_A_TEAM + chance.randrange(TOKENS_OF_A_TEAM):020d}"
        calls = ((chance.choice(METHODS), "ok", None, 120),)
        spool.append(
            encode(
                (
                    now + number / records * 60, f"team_{team:020d}", token, "eth/mainnet", "backend", 200, 1,
                    None, calls, 1_234, 110, b"%08x%024x" % (worker, number), "stub", 1, "bypass", "203.0.113.7",
                    b"python-requests/2.32.3", b"",
                )
            )
        )  # fmt: skip
        if number % 20 == 0:
            spool.write()
    spool.close()


def recording(seconds: int, tell: Tell) -> Compared:
    """Put a worker under load that records half of the time."""
    cores = processes.Cores.choose()
    os.sched_setaffinity(0, {cores.load})
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tollgate-bench-")))
        stub = stack.enter_context(nginx.stub(folder, cores.load))
        halved = stack.enter_context(slices.serve("recording", folder, cores, stub.port))
        tell("warm-up")
        halved.warm_up(CASE, WARM_UP_SECONDS)
        tell(f"{seconds} s of load")
        return halved.measure(CASE, seconds)


def run(plan: Plan, output: Path | None, tell: Tell) -> int:
    """Measure, print and write; return the exit code."""
    about = machine.describe()
    runs = []
    for number in range(plan.rounds):
        tell(f"collector, {RECORDS:,} records, run {number + 1} of {plan.rounds}")
        runs.append(catch_up(RECORDS))
    found = recording(plan.slices_seconds(), tell)
    goals = [_collected(runs), _added(found)]
    print(_text(runs, found, goals))
    path = output or RESULTS / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-ledger.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    values = {
        "machine": about,
        "goals": [*map(asdict, goals)],
        "collector": [*map(asdict, runs)],
        "recording": asdict(found),
    }
    path.write_text(json.dumps(values, indent=1) + "\n")
    print(f"\nwritten: {path}")
    return 1 if found.problems else 0


def _collected(runs: list[CatchUp]) -> Goal:
    """The bar is a rate; a goal is a figure that should be small, so it is the time for a record."""
    value, bar = median(each.seconds * 1e6 / each.records for each in runs), 1e6 / BAR_A_SECOND
    name = f"collector, wall time for a record ({BAR_A_SECOND:,} a second)"
    return Goal(name, round(bar, 1), "µs", value, "reached" if value <= bar else "missed")


def _added(found: Compared) -> Goal:
    judged = "invalid" if found.problems else verdict(found.added, BAR_US, found.margin)
    return Goal("CPU that recording adds to a call in the worker", BAR_US, "µs", found.added, judged)


def _text(runs: list[CatchUp], found: Compared, goals: list[Goal]) -> str:
    lines = [
        f"collector: {each.records / each.seconds:,.0f} records a second, "
        f"{each.records / each.cpu_seconds:,.0f} for a second of CPU"
        for each in runs
    ]
    lines.append(
        f"a call in the worker: {found.with_it:.1f} µs of CPU with recording, {found.without:.1f} without; "
        f"added {found.added:.1f} ± {found.margin:.1f} µs ({found.slices} slices)"
    )
    verdicts = [
        f"{goal.verdict:<12} {goal.value:.2f} {goal.unit} (bar {goal.bar:g} {goal.unit})  {goal.name}"
        for goal in goals
    ]
    return "\n".join([*lines, "", *verdicts])
