"""What recording and collecting cost: the CPU that recording adds to a call, and the collector's for each record.

A worker under load records in every other slice of time (`slices.py`). The collector is run over a spool that was
written before, each case in a process of its own, as many records at a time as one commit takes.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import resource
import sqlite3
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

from bench import machine, nginx, processes, slices
from bench.goals import Goal, verdict
from bench.plan import SINGLE, Case
from bench.report import RESULTS
from bench.rounds import WARM_UP_SECONDS
from tollgate.core.entries import encode
from tollgate.ledger.spool import Spool
from tollgate.processes.bootstrap import prepare
from tollgate.processes.collector import CollectorLoop
from tollgate.settings.model import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.plan import Plan
    from bench.slices import Compared

    Tell = Callable[[str], None]

METHODS = ("eth_call", "eth_getBalance", "eth_blockNumber", "eth_chainId", "eth_getLogs")
TOKENS_OF_A_TEAM = 4
RECORDS_OF_A_TURN = 20
WORKERS = 2
BAR_US, BAR_BYTES, BAR_MB, BAR_GROWTH = 6.0, 65.0, 100.0, 1.1
CASE = Case(SINGLE, 32)
DEFAULT_ROWS = 1_000_000


@dataclass(frozen=True, slots=True)
class Load:
    """What the collector is given, and the bar of a record in microseconds of CPU."""

    name: str
    commit: int
    bar: float
    teams: int = 50
    calls: int = 1


LOADS = (
    Load("a record, 20,000 a commit", 20_000, 4.0),
    Load("a record, 2,000 a commit", 2_000, 6.0),
    Load("a batch of ten, 2,000 a commit", 2_000, 20.0, calls=10),
    Load("a record, 1,000 teams, 2,000 a commit", 2_000, 25.0, teams=1_000),
)


@dataclass(frozen=True, slots=True)
class Collected:
    """What the collector took for one load."""

    load: str
    records: int
    rows: int
    cpu_us: float
    """For a record, chores included, after the first tenth."""
    first_us: float
    last_us: float
    """Of the first and the last tenth of the commits."""
    bytes_a_row: float
    peak_mb: float


def collect(load: Load, records: int) -> Collected:
    """Collect so many records, in this process."""
    with tempfile.TemporaryDirectory(prefix="tollgate-bench-ledger-") as folder:
        bootstrap = prepare(Settings(data_dir=folder))
        # The same records come again: making millions of them would take longer than all else.
        chance = random.Random(load.name)
        prepared = [[_record(chance, load, number) for number in range(load.commit)] for _ in range(2)]
        spools = [
            Spool(
                bootstrap.spool_dir,
                segment_bytes=16 << 20,
                segment_seconds=10,
                max_held_bytes=1 << 30,
                now=time.time,
            )
            for _ in range(WORKERS)
        ]
        loop = CollectorLoop(bootstrap)
        loop.turn()
        gc.freeze()
        gc.disable()
        spent: list[float] = []
        for number in range(max(10, records // load.commit)):
            _write(spools, prepared[number % len(prepared)])
            began = time.process_time()
            loop.turn()
            spent.append(time.process_time() - began)
        began = time.process_time()
        while loop.turn() or loop._ledger.join() or loop._ledger.fold():
            pass
        rest = time.process_time() - began
        loop.close()
        for spool in spools:
            spool.close()
        tenth = max(1, len(spent) // 10)
        figures = [
            sum(some) / len(some) / load.commit * 1e6 for some in (spent[tenth:], spent[:tenth], spent[-tenth:])
        ]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return Collected(
            load.name,
            len(spent) * load.commit,
            loop.rows,
            figures[0] + rest / len(spent) / load.commit * 1e6,
            figures[1],
            figures[2],
            _used_bytes(Path(str(bootstrap.ledger_url.database))) / loop.rows,
            peak,
        )


def _write(spools: list[Spool], records: list[bytes]) -> None:
    """Write records as workers do, some in each turn of their loops."""
    for number in range(0, len(records), RECORDS_OF_A_TURN):
        spool = spools[number // RECORDS_OF_A_TURN % len(spools)]
        for record in records[number : number + RECORDS_OF_A_TURN]:
            spool.append(record)
        spool.write()
    for spool in spools:
        spool.tick()


def _record(chance: random.Random, load: Load, number: int) -> bytes:
    team = chance.randrange(load.teams)
    token = f"tok_{team * TOKENS_OF_A_TEAM + chance.randrange(TOKENS_OF_A_TEAM):020d}"
    calls = [(chance.choice(METHODS), "ok", None, 120) for _ in range(load.calls)]
    duration = int(chance.expovariate(1 / 1_500))
    return encode(
        (
            time.time() - 1 + number * 1e-5, f"team_{team:020d}", token, "eth/mainnet", "backend", 200, 1, None,
            calls, duration, 110 * load.calls, b"%032x" % chance.getrandbits(128), "stub", 1, "bypass",
            "203.0.113.7", b"python-requests/2.32.3", b"",
        )
    )  # fmt: skip


def _used_bytes(database: Path) -> int:
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        size, pages, free = (
            connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_size", "page_count", "freelist_count")
        )
    return int(size * (pages - free))


def recording(seconds: int, tell: Tell) -> Compared:
    """Put a worker under load that records half of the time."""
    cores = processes.Cores.choose()
    os.sched_setaffinity(0, {cores.load})
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tollgate-bench-")))
        stub = stack.enter_context(nginx.stub(folder, cores.load))
        halved = stack.enter_context(slices.serve(folder, cores, stub.port))
        tell("warm-up")
        halved.warm_up(CASE, WARM_UP_SECONDS)
        tell(f"{seconds} s of load")
        return halved.measure(CASE, seconds)


def run(plan: Plan, rows: int, output: Path | None, tell: Tell) -> int:
    """Measure, print and write; return the exit code."""
    about = machine.describe()
    found: list[Collected] = []
    for load in LOADS:
        records = rows if load is LOADS[0] else min(rows, 50 * load.commit)
        runs = []
        for number in range(1 if records > DEFAULT_ROWS else plan.rounds):
            tell(f"collector, {load.name}, {records:,} records, run {number + 1}")
            with ProcessPoolExecutor(1, get_context("spawn")) as child:
                runs.append(child.submit(collect, load, records).result())
        found.append(sorted(runs, key=lambda each: each.cpu_us)[len(runs) // 2])
    compared = recording(plan.slices_seconds(), tell)
    goals = [*_collected(found), _added(compared)]
    print(_text(found, compared, goals))
    path = output or RESULTS / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-ledger.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    values = {
        "machine": about,
        "goals": [*map(asdict, goals)],
        "collector": [*map(asdict, found)],
        "recording": asdict(compared),
    }
    path.write_text(json.dumps(values, indent=1) + "\n")
    print(f"\nwritten: {path}")
    return 1 if compared.problems else 0


def _collected(found: list[Collected]) -> list[Goal]:
    bars = {load.name: load.bar for load in LOADS}
    goals = [_goal(f"collector, CPU of {each.load}", bars[each.load], "µs", each.cpu_us) for each in found]
    first = found[0]
    growth = first.last_us / first.first_us
    return [
        *goals,
        _goal("ledger, bytes a row", BAR_BYTES, "B", first.bytes_a_row),
        _goal("collector, peak memory", BAR_MB, "MB", max(each.peak_mb for each in found)),
        _goal(f"collector, last tenth of {first.records:,} records / first tenth", BAR_GROWTH, "", growth),
    ]


def _goal(name: str, bar: float, unit: str, value: float) -> Goal:
    return Goal(name, bar, unit, value, "reached" if value <= bar else "missed")


def _added(found: Compared) -> Goal:
    judged = "invalid" if found.problems else verdict(found.added, BAR_US, found.margin)
    return Goal("CPU that recording adds to a call in the worker", BAR_US, "µs", found.added, judged)


def _text(found: list[Collected], compared: Compared, goals: list[Goal]) -> str:
    lines = [
        f"collector, {each.load}: {each.cpu_us:.1f} µs of CPU, {each.bytes_a_row:.0f} bytes a row, "
        f"{each.peak_mb:.0f} MB, {each.records:,} records"
        for each in found
    ]
    lines.append(
        f"a call in the worker: {compared.with_it:.1f} µs of CPU with recording, {compared.without:.1f} without; "
        f"added {compared.added:.1f} ± {compared.margin:.1f} µs ({compared.slices} slices)"
    )
    verdicts = [
        f"{goal.verdict:<12} {goal.value:.2f} {goal.unit} (bar {goal.bar:g} {goal.unit})  {goal.name}"
        for goal in goals
    ]
    return "\n".join([*lines, "", *verdicts])
