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
import statistics
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
from tollgate.core.entries import CallEntry, Entry, encode
from tollgate.ledger.spool import Spool
from tollgate.processes.bootstrap import prepare
from tollgate.processes.collector import CollectorLoop
from tollgate.settings.model import Settings
from tollgate.store.ledger_shared import MAX_COMMITS

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.plan import Plan
    from bench.slices import Compared
    from tollgate.processes.bootstrap import Bootstrap

    Progress = Callable[[str], None]

METHODS = ("eth_call", "eth_getBalance", "eth_blockNumber", "eth_chainId", "eth_getLogs")
TOKENS_OF_A_TEAM = 4
RECORDS_OF_A_TURN = 20
WORKERS = 2
BAR_US, BAR_BYTES, BAR_MB, BAR_GROWTH = 6.0, 65.0, 100.0, 1.1
CASE = Case(SINGLE, 32)
DEFAULT_ROWS = 1_000_000
GROWN_COMMITS = 50
# Whole ones, so that each commit has its share of the sorting that follows every so many.
ROUNDS_OF_CHORES = 6


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
        prepared, spools = records_of(load), open_spools(bootstrap)
        loop = CollectorLoop(bootstrap)
        loop.tick()
        gc.freeze()
        gc.disable()
        spent: list[float] = []
        for number in range(max(10, records // load.commit)):
            write(spools, prepared[number % len(prepared)])
            started = time.process_time()
            loop.tick()
            spent.append(time.process_time() - started)
        started = time.process_time()
        while loop.tick() or loop._ledger.join() or loop._ledger.fold():
            pass
        rest = time.process_time() - started
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
            loop.entries,
            figures[0] + rest / len(spent) / load.commit * 1e6,
            figures[1],
            figures[2],
            _used_bytes(Path(str(bootstrap.ledger_url.database))) / loop.entries,
            peak,
        )


def records_of(load: Load) -> list[list[bytes]]:
    """Records of two commits. The same come again: making millions of them would take longer than all else."""
    chance = random.Random(load.name)
    return [[_record(chance, load, number) for number in range(load.commit)] for _ in range(2)]


def open_spools(bootstrap: Bootstrap) -> list[Spool]:
    return [
        Spool(
            bootstrap.spool_dir,
            segment_bytes=16 << 20,
            segment_seconds=10,
            max_held_bytes=1 << 30,
            now=time.time,
        )
        for _ in range(WORKERS)
    ]


@dataclass(frozen=True, slots=True)
class Grown:
    """What a record costs in a small ledger and in a large one, in µs of CPU: commit by commit in turn."""

    small_rows: int
    large_rows: int
    small_us: float
    large_us: float


def grown(load: Load, rows: int) -> Grown:
    """Collect upon two ledgers in turn, so that other work on the machine meets both alike.

    The large one is filled by the collector and then doubled by SQL, with other teams, until it has enough rows.
    """
    with (
        tempfile.TemporaryDirectory(prefix="tollgate-bench-small-") as small,
        tempfile.TemporaryDirectory(prefix="tollgate-bench-large-") as large,
    ):
        ledgers = [prepare(Settings(data_dir=folder)) for folder in (small, large)]
        prepared = records_of(load)
        for bootstrap in ledgers:
            loop, spools = CollectorLoop(bootstrap), open_spools(bootstrap)
            for number in range(DEFAULT_ROWS // load.commit):
                write(spools, prepared[number % len(prepared)])
                loop.tick()
            while loop.tick() or loop._ledger.fold():
                pass
            loop.close()
            for spool in spools:
                spool.close()
        total = DEFAULT_ROWS
        while total < rows:
            total = _double(Path(str(ledgers[1].ledger_url.database)))
        loops = [(CollectorLoop(bootstrap), open_spools(bootstrap)) for bootstrap in ledgers]
        gc.collect()
        gc.freeze()
        gc.disable()
        spent: list[list[float]] = [[], []]
        for number in range(GROWN_COMMITS):
            for (loop, spools), times in zip(loops, spent, strict=True):
                write(spools, prepared[number % len(prepared)])
                started = time.process_time()
                loop.tick()
                times.append(time.process_time() - started)
        for loop, spools in loops:
            loop.close()
            for spool in spools:
                spool.close()
    small_us, large_us = (statistics.median(times[1:]) / load.commit * 1e6 for times in spent)
    return Grown(DEFAULT_ROWS, total, small_us, large_us)


def _double(database: Path) -> int:
    """Add to a ledger what it has, for other teams; how many log rows there are then."""
    with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as connection:
        execute = connection.execute
        execute("PRAGMA synchronous=OFF")
        execute("BEGIN")
        (count,) = execute("SELECT count(*) FROM teams").fetchone()
        total = 0
        for (day,) in execute("SELECT day FROM days").fetchall():
            (last,) = execute(f"SELECT coalesce(max(id), 0) FROM data_{day}").fetchone()
            execute(f"INSERT INTO data_{day} SELECT id + {last}, blocks, data FROM data_{day} WHERE id <= {last}")
            columns = (
                "first_no, rows, records, errors, level, generation, least_at, greatest_at, committed_at, facts"
            )
            execute(
                f"INSERT INTO blocks_{day} (team_id, {columns}, data_id, start, size) "
                f"SELECT team_id || '.{count}', {columns}, data_id + {last}, start, size FROM blocks_{day}"
            )
            total += execute(f"SELECT coalesce(sum(rows), 0) FROM blocks_{day}").fetchone()[0]
        for table, key in (
            ("teams", "id"),
            ("months", "team_id"),
            ("usage", "team_id"),
            ("source_months", "source_id"),
        ):
            names = [name for _, name, *_ in execute(f"PRAGMA table_info({table})")]
            copied = ", ".join(f"{name} || '.{count}'" if name == key else name for name in names)
            execute(f"INSERT INTO {table} SELECT {copied} FROM {table}")
        execute("COMMIT")
        execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return int(total)


def write(spools: list[Spool], records: list[bytes]) -> None:
    """Write records as workers do, some in each tick of their loops."""
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
    return encode(
        Entry(
            at=time.time() - 1 + number * 1e-5,
            team_id=f"team_{team:020d}",
            source_id=token,
            network="eth/mainnet",
            source_name="backend",
            status=200,
            calls=tuple(CallEntry(chance.choice(METHODS), "ok", None, 120) for _ in range(load.calls)),
            duration_micros=int(chance.expovariate(1 / 1_500)),
            request_bytes=110 * load.calls,
            request_id=b"%032x" % chance.getrandbits(128),
            upstream="stub",
            attempts=1,
            address="203.0.113.7",
            agent=b"python-requests/2.32.3",
        )
    )


def _used_bytes(database: Path) -> int:
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        size, pages, free = (
            connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_size", "page_count", "freelist_count")
        )
    return int(size * (pages - free))


def recording(seconds: int, progress: Progress) -> Compared:
    """Put a worker under load that records half of the time."""
    cores = processes.Cores.choose()
    os.sched_setaffinity(0, {cores.load})
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tollgate-bench-")))
        stub = stack.enter_context(nginx.stub(folder, cores.load))
        halved = stack.enter_context(slices.serve(folder, cores, stub.port))
        progress("warm-up")
        halved.warm_up(CASE, WARM_UP_SECONDS)
        progress(f"{seconds} s of load")
        return halved.measure(CASE, seconds)


def run(plan: Plan, rows: int, output: Path | None, progress: Progress) -> int:
    """Measure, print and write; return the exit code."""
    about = machine.describe()
    found: list[Collected] = []
    for load in LOADS:
        records = DEFAULT_ROWS if load is LOADS[0] else ROUNDS_OF_CHORES * MAX_COMMITS * load.commit
        runs = []
        for number in range(plan.rounds):
            progress(f"collector, {load.name}, {records:,} records, run {number + 1}")
            with ProcessPoolExecutor(1, get_context("spawn")) as child:
                runs.append(child.submit(collect, load, records).result())
        found.append(sorted(runs, key=lambda each: each.cpu_us)[len(runs) // 2])
    size = None
    if rows > DEFAULT_ROWS:
        progress(f"collector, {LOADS[0].name}, upon {rows:,} rows")
        with ProcessPoolExecutor(1, get_context("spawn")) as child:
            size = child.submit(grown, LOADS[0], rows).result()
    compared = recording(plan.slices_seconds(), progress)
    goals = [*_collected(found), *([_grown(size)] if size else []), _added(compared)]
    print(_text(found, size, compared, goals))
    path = output or RESULTS / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-ledger.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    values = {
        "machine": about,
        "goals": [*map(asdict, goals)],
        "collector": [*map(asdict, found)],
        "grown": asdict(size) if size else None,
        "recording": asdict(compared),
    }
    path.write_text(json.dumps(values, indent=1) + "\n")
    print(f"\nwritten: {path}")
    return 1 if compared.problems else 0


def _collected(found: list[Collected]) -> list[Goal]:
    bars = {load.name: load.bar for load in LOADS}
    goals = [_goal(f"collector, CPU of {each.load}", bars[each.load], "µs", each.cpu_us) for each in found]
    return [
        *goals,
        _goal("ledger, bytes a row", BAR_BYTES, "B", found[0].bytes_a_row),
        _goal("collector, peak memory", BAR_MB, "MB", max(each.peak_mb for each in found)),
    ]


def _grown(size: Grown) -> Goal:
    name = f"collector, CPU of a record upon {size.large_rows:,} rows : {size.small_rows:,} rows"
    return _goal(name, BAR_GROWTH, "x", size.large_us / size.small_us)


def _goal(name: str, bar: float, unit: str, value: float) -> Goal:
    return Goal(name, bar, unit, value, "reached" if value <= bar else "missed")


def _added(found: Compared) -> Goal:
    judged = "invalid" if found.problems else verdict(found.added, BAR_US, found.margin)
    return Goal("CPU that recording adds to a call in the worker", BAR_US, "µs", found.added, judged)


def _text(found: list[Collected], size: Grown | None, compared: Compared, goals: list[Goal]) -> str:
    lines = [
        f"collector, {each.load}: {each.cpu_us:.1f} µs of CPU, {each.bytes_a_row:.0f} bytes a row, "
        f"{each.peak_mb:.0f} MB, {each.records:,} records"
        for each in found
    ]
    if size is not None:
        lines.append(
            f"collector, {LOADS[0].name}, in turn: {size.small_us:.2f} µs of CPU upon {size.small_rows:,} rows, "
            f"{size.large_us:.2f} upon {size.large_rows:,}"
        )
    lines.append(
        f"a call in the worker: {compared.with_it:.1f} µs of CPU with recording, {compared.without:.1f} without; "
        f"added {compared.added:.1f} ± {compared.margin:.1f} µs ({compared.slices} slices)"
    )
    verdicts = [
        f"{goal.verdict:<12} {goal.value:.2f} {goal.unit} (bar {goal.bar:g} {goal.unit})  {goal.name}"
        for goal in goals
    ]
    return "\n".join([*lines, "", *verdicts])
