"""What an installation on PostgreSQL and Valkey costs: records, pages of logs, and calls of gateway nodes.

Records are collected as `ledger.py` does, with the server on another core. Logs are filled by the collector's own
code and then multiplied by SQL, data and all. Calls are counted in instructions, and measured by `nodes.py`.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import asdict, astuple, dataclass
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import psycopg

from bench import instructions, logs, machine, nodes, postgresql_server, processes
from bench.drive import SHARED
from bench.goals import Goal, verdict
from bench.ledger import Load, open_spools, records_of, write
from bench.report import RESULTS
from tollgate.processes.bootstrap import prepare
from tollgate.processes.collector import CollectorLoop
from tollgate.settings.model import Settings
from tollgate.store import engines

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.logs import Row
    from bench.nodes import Compared
    from bench.plan import Plan
    from bench.postgresql_server import Server
    from bench.valkey import Slowdown

    Progress = Callable[[str], None]

BAR_RECORD_US, BAR_RATE, BAR_PAGE_MS, BAR_CALL_PERCENT = 6.0, 100_000, 20.0, 3.0
BAR_SLOWER_MS = 5.0
LOADS = tuple(
    Load(f"a record, {teams:,} teams, 20,000 a commit", 20_000, BAR_RECORD_US, teams=teams)
    for teams in (100, 2_000)
)
COMMITS, WARM_UP_COMMITS = 25, 3
DEFAULT_ROWS = 10_000_000
# So many times the rows that the collector's code has written.
COPIES, COMMIT = 20, 10_000
DEPTHS = (0.0, 0.5, 0.999)
ROUNDS = 3
COUNTED = ("call", "miss", "hit")


@dataclass(frozen=True, slots=True)
class Collected:
    """What a record took, chores included, in µs of CPU, and how many came a second."""

    load: str
    collector_us: float
    server_us: float
    rate: float
    undisturbed_rate: float
    """Without the time for which other work had the cores of collector and server."""


def settings_on(url: str, folder: str) -> Settings:
    """Return settings for a store on a server."""
    settings = Settings(data_dir=folder)
    replace = msgspec.structs.replace
    return replace(
        settings, store=replace(settings.store, url=url), secrets=replace(settings.secrets, pepper=nodes.PEPPER)
    )


# --- Records ------------------------------------------------------------------------------------------------


def collect(load: Load, url: str, server: Server, core: int) -> Collected:
    """Collect some commits, in this process."""
    os.sched_setaffinity(0, {core})
    with tempfile.TemporaryDirectory(prefix="tollgate-bench-ledger-") as folder:
        bootstrap = prepare(settings_on(url, folder))
        prepared, spools = records_of(load), open_spools(bootstrap)
        loop = CollectorLoop(bootstrap)
        loop.tick()
        gc.freeze()
        gc.disable()
        spent: list[Spent] = []
        for number in range(WARM_UP_COMMITS + COMMITS):
            write(spools, prepared[number % len(prepared)])
            spent.append(_spent(loop.tick, server, core))
        spent.append(_spent(lambda: _finish(loop), server, core))
        loop.close()
        for spool in spools:
            spool.close()
    records = COMMITS * load.commit
    ran, served, wall, waited = map(sum, zip(*map(astuple, spent[WARM_UP_COMMITS:]), strict=True))
    return Collected(
        load.name, ran / records * 1e6, served / records * 1e6, records / wall, records / max(wall - waited, 0.001)
    )


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds: CPU of this process and of the server, and how long it took; in part because of other work."""

    ran: float
    served: float
    wall: float
    waited: float


def _spent(work: Callable[[], object], server: Server, core: int) -> Spent:
    meter = processes.Meter([os.getpid(), *server.backends()], {core})
    served, ran, started = server.seconds(), time.process_time(), time.monotonic()
    work()
    wall, ran = time.monotonic() - started, time.process_time() - ran
    return Spent(ran, server.seconds() - served, wall, min(wall, meter.read().waited))


def _finish(loop: CollectorLoop) -> None:
    """Do the chores that are left, as the collector would later."""
    while loop.tick() or loop._ledger.join() or loop._ledger.fold():
        pass


# --- Pages --------------------------------------------------------------------------------------------------


class Book:
    """The log book, on a server with nothing in memory."""

    def __init__(self, server: Server, now: float) -> None:
        self.now = now
        self.book = engines.open_logbook(engines.store_url(server.url("logs"), Path()))

    def forget(self) -> None:
        """Nothing is there yet."""


def pages(folder: Path, cores: set[int], rows: int, progress: Progress) -> list[Row]:
    """Fill a ledger and read pages of it: once after a start of the server, then some in a row."""
    now = time.time()
    with postgresql_server.serve(folder, cores) as server:
        _fill(server, rows, now, progress)
    samples = [logs.Sample(case, depth) for case in logs.CASES for depth in DEPTHS]
    progress("pages, each after a start of the server")
    for sample in samples:
        with postgresql_server.serve(folder, cores) as server:
            asyncio.run(_read(Book(server, now), sample, cold=True))
    with postgresql_server.serve(folder, cores) as server:
        asyncio.run(_rounds(Book(server, now), samples, progress))
    return [sample.row() for sample in samples]


async def _read(book: Book, sample: logs.Sample, *, cold: bool) -> None:
    await book.book.newest("nobody")  # a connection is made
    await (sample.first(book) if cold else sample.round(book))
    await book.book.close()


async def _rounds(book: Book, samples: list[logs.Sample], progress: Progress) -> None:
    for number in range(1 + ROUNDS):
        for sample in samples:
            if number:
                await sample.round(book)
            else:
                await sample.first(book)
        progress(f"round {number} of {ROUNDS}" if number else "warm-up")
    await book.book.close()


def _fill(server: Server, rows: int, now: float, progress: Progress) -> None:
    """Write some rows by the collector's code, then copy them with their data, numbered on."""
    url = server.make("logs")
    with tempfile.TemporaryDirectory(prefix="tollgate-bench-logs-") as folder:
        progress(f"{rows // COPIES:,} rows of logs are written")
        logs.seed(prepare(settings_on(url, folder)), rows // COPIES, now, progress, COMMIT)
    progress(f"they are copied {COPIES - 1} times")
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        execute = connection.execute
        execute("SET search_path TO tollgate_ledger")
        execute("SET synchronous_commit TO off")
        (last,) = execute("SELECT max(last_value) FROM data_ids").fetchone() or (0,)
        for (day,) in execute("SELECT day FROM days ORDER BY day").fetchall():
            for statement in _copying(day, last):
                execute(statement)
        execute(f"UPDATE teams SET next_no = (next_no - 1) * {COPIES} + 1")
        execute("VACUUM ANALYZE")
        execute("CHECKPOINT")
        (count,) = execute("SELECT sum(rows) FROM blocks").fetchone() or (0,)
        progress(f"there are {count:,} rows")


def _copying(day: str, last: int) -> tuple[str, ...]:
    """Statements that copy the blocks of a day: its rows are numbered on from its first, team by team."""
    columns = "rows, records, errors, level, generation, least_at, greatest_at, committed_at, facts"
    number = f"(base - 1) * {COPIES} + 1 + copy * span + first_no - base"
    keep = (
        "CREATE TEMP TABLE copied AS SELECT *, min(first_no) OVER (PARTITION BY team_id) AS base, "
        f"sum(rows) OVER (PARTITION BY team_id) AS span FROM blocks_{day}"
    )
    copy_headers = (
        f"INSERT INTO blocks_{day} (team_id, first_no, {columns}, data_id, start, size) "
        f"SELECT team_id, {number}, {columns}, data_id + copy * {last}, start, size "
        f"FROM copied, generate_series(0, {COPIES - 1}) AS copy ORDER BY copy, team_id, first_no"
    )
    copy_data = (
        f"INSERT INTO data_{day} (id, blocks, data) SELECT id + copy * {last}, blocks, data "
        f"FROM data_{day}, generate_series(1, {COPIES - 1}) AS copy"
    )
    return ("DROP TABLE IF EXISTS copied", keep, f"TRUNCATE blocks_{day}", copy_headers, copy_data)


# --- All of it ----------------------------------------------------------------------------------------------


def run(plan: Plan, rows: int, output: Path | None, progress: Progress) -> int:
    """Measure, print and write; return the exit code."""
    about = machine.describe()
    cores = processes.Cores.choose()
    progress("instructions of a call, with limits shared and without")
    counted = instructions.count([f"{case}{shared}" for case in COUNTED for shared in ("", SHARED)])
    found = []
    with postgresql_server.made() as folder:
        for number, load in enumerate(LOADS):
            with postgresql_server.serve(folder, {cores.load}) as server:
                progress(f"collector, {load.name}")
                with ProcessPoolExecutor(1, get_context("spawn")) as child:
                    url = server.make(f"collected_{number}")
                    found.append(child.submit(collect, load, url, server, cores.server).result())
        with postgresql_server.serve(folder, {cores.load}) as server:
            compared, slowdowns = nodes.compare(server.make("nodes"), cores, plan, progress)
        read = pages(folder, set(cores.all), rows, progress)
    goals = [
        *_counted(counted),
        *_compared(compared),
        *_slowdowns(slowdowns),
        *_collected(found),
        *_read_pages(read, rows),
    ]
    print(_text(counted, compared, slowdowns, found, read, goals))
    path = output or RESULTS / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-postgresql.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    values = {
        "machine": about,
        "goals": [*map(asdict, goals)],
        "instructions": counted,
        "calls": [*map(asdict, compared)],
        "valkey": [*map(asdict, slowdowns)],
        "collector": [*map(asdict, found)],
        "rows": rows,
        "pages": [*map(asdict, read)],
    }
    path.write_text(json.dumps(values, indent=1) + "\n")
    print(f"\nwritten: {path}")
    return 1 if any(goal.verdict == "invalid" for goal in goals) else 0


def _counted(counted: dict[str, int]) -> list[Goal]:
    return [
        _goal(
            f"instructions of a {case} with shared limits, more than without",
            BAR_CALL_PERCENT,
            "%",
            (counted[case + SHARED] / counted[case] - 1) * 100,
        )
        for case in COUNTED
    ]


def _compared(compared: list[Compared]) -> list[Goal]:
    return [
        Goal(
            f"CPU of a call, {each.name}",
            BAR_CALL_PERCENT,
            "%",
            each.change * 100,
            "invalid" if each.problems else verdict(each.change * 100, BAR_CALL_PERCENT, each.margin * 100),
        )
        for each in compared
    ]


def _slowdowns(slowdowns: list[Slowdown]) -> list[Goal]:
    return [
        Goal(
            f"the slowest call, {each.name}, slower than before",
            BAR_SLOWER_MS,
            "ms",
            each.slower_ms,
            "invalid" if each.problems else verdict(each.slower_ms, BAR_SLOWER_MS, each.margin),
        )
        for each in slowdowns
    ]


def _collected(found: list[Collected]) -> list[Goal]:
    return [
        goal
        for each in found
        for goal in (
            _goal(
                f"collector and server, CPU of {each.load}",
                BAR_RECORD_US,
                "µs",
                each.collector_us + each.server_us,
            ),
            Goal(
                f"records, {each.load}, without waiting for cores",
                BAR_RATE,
                "/s",
                each.undisturbed_rate,
                "reached" if each.undisturbed_rate >= BAR_RATE else "missed",
            ),
        )
    ]


def _read_pages(read: list[Row], rows: int) -> list[Goal]:
    page = f"a page of {logs.LIMIT} of {rows:,} rows, slowest"
    plain = [row for row in read if row.case == "all"]
    return [
        _goal(f"{page} p50, unfiltered", BAR_PAGE_MS, "ms", max(row.p50 for row in plain)),
        _goal(f"{page} p50 of any filter and depth", BAR_PAGE_MS, "ms", max(row.p50 for row in read)),
        _goal(f"{page} after a start of the server", BAR_PAGE_MS, "ms", max(row.cold for row in read)),
    ]


def _goal(name: str, bar: float, unit: str, value: float) -> Goal:
    return Goal(name, bar, unit, value, "reached" if value <= bar else "missed")


def _text(
    counted: dict[str, int],
    compared: list[Compared],
    slowdowns: list[Slowdown],
    found: list[Collected],
    read: list[Row],
    goals: list[Goal],
) -> str:
    lines = [f"{case}: {count:,} instructions" for case, count in counted.items()]
    lines += [
        f"a call, {each.name}: {each.before_us:.1f} µs and {each.after_us:.1f} µs of CPU in the worker, "
        f"{each.change:+.1%} ± {each.margin:.1%}"
        for each in compared
    ]
    lines += [
        f"{each.name}: the slowest call took {each.before_ms:.1f} ms before, {each.slower_ms:+.1f} ± "
        f"{each.margin:.1f} ms with it{''.join(f', {problem}' for problem in each.problems)}"
        for each in slowdowns
    ]
    lines += [
        f"{each.load}: {each.collector_us:.1f} µs of CPU in the collector, {each.server_us:.1f} in the server; "
        f"{each.rate:,.0f} a second, {each.undisturbed_rate:,.0f} without waiting for cores"
        for each in found
    ]
    line = "{:<38} {:>6} {:>5} {:>8} {:>8} {:>8} {:>8}"
    lines.append(line.format("filter", "depth", "rows", "cold ms", "p50 ms", "p99 ms", "CPU ms"))
    for row in read:
        figures = (f"{value:.1f}" for value in (row.cold, row.p50, row.p99, row.cpu))
        lines.append(line.format(row.case, f"{row.depth:.1%}", row.rows, *figures))
    verdicts = [
        f"{goal.verdict:<12} {goal.value:,.2f} {goal.unit} (bar {goal.bar:,g} {goal.unit})  {goal.name}"
        for goal in goals
    ]
    return "\n".join([*lines, "", *verdicts])
