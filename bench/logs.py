"""What a page of request logs costs, at any depth of a ledger with millions of rows.

Seeds `ledger.db` straight, without spool and collector, and asks the API for pages in this process: routing,
credentials, the look at both databases, sealing and JSON are in the figure, the socket is not.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import httpx
from sqlalchemy.schema import CreateIndex, CreateTable

from bench import machine
from bench.goals import Goal
from bench.report import RESULTS
from tollgate.control.app import control_app
from tollgate.control.plane import ControlPlane
from tollgate.control.services.logs import LogPosition, filters_of
from tollgate.core import secrets
from tollgate.core.logs import LogFilter
from tollgate.core.models import Team
from tollgate.core.people import PERSONAL, Account, Login, Member
from tollgate.processes.bootstrap import Bootstrap, prepare
from tollgate.settings.model import Settings
from tollgate.store import ledger_tables as tables
from tollgate.store import sqlite

if TYPE_CHECKING:
    from tollgate.store.base import Repositories

BAR_MS = 20.0
LIMIT = 100
ROUNDS, PAGES = 5, 10
DAYS = 30
DAY = 86_400
BATCH = 200
"""Rows of one commit: five commits a second at a thousand rows a second."""
DEPTHS = (0.0, 0.25, 0.5, 0.75, 0.999)

TEAM, OTHERS = "team_bench00000000", "team_others0000000"
# A token that makes most of the calls, one of some, one of few; and somebody else's.
MOST, SOME, FEW, THEIRS = (f"tok_{name:0<16}" for name in ("most", "some", "few", "theirs"))

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Case:
    """A filter; a bound one must reach the bar."""

    name: str
    query: str = ""
    source_id: str | None = None
    since: int | None = None
    errors: bool = False
    bound: bool = True


CASES = (
    Case("all"),
    Case("token, most rows", f"&token={MOST}", MOST),
    Case("token, every 50th row", f"&token={SOME}", SOME),
    Case("token, every 10,000th row", f"&token={FEW}", FEW),
    Case("since 60d", "&since=60d", since=60 * DAY),
    Case("since 60d, token, most rows", f"&token={MOST}&since=60d", MOST, since=60 * DAY),
    Case("since 24h", "&since=24h", since=DAY),
    Case("errors, every 500th row", "&errors=true", errors=True, bound=False),
)


@dataclass(frozen=True, slots=True)
class Row:
    """Pages of one filter from one depth on, in milliseconds."""

    case: str
    depth: float
    rows: int
    cold: float
    """The first one, with nothing of the file in memory."""
    median: float
    p95: float
    most: float
    cpu: float
    """Of this process, its threads included: what other work on the machine cannot change."""
    bound: bool


# --- Seeding ------------------------------------------------------------------------------------------------


def seed(bootstrap: Bootstrap, count: int, now: float, tell: Tell) -> None:
    """Fill the ledger with rows of the last days, as evenly as they come."""
    with closing(sqlite3.connect(str(bootstrap.ledger_url.database), isolation_level=None)) as connection:
        # A crash loses a file that nobody needs.
        for pragma in ("synchronous=OFF", "journal_mode=WAL", "cache_size=-262144"):
            connection.execute(f"PRAGMA {pragma}")
        bounds = [1 + count * number // DAYS for number in range(DAYS + 1)]
        for number, (first, end) in enumerate(pairwise(bounds)):
            if first < end:
                _day(connection, first, end, now - (DAYS - number) * DAY, DAY / (end - first))
            if number % 5 == 4:
                tell(f"{end - 1:,} rows are seeded")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _day(connection: sqlite3.Connection, first: int, end: int, start: float, pace: float) -> None:
    day = datetime.fromtimestamp(start, UTC).strftime("%Y%m%d")
    table = tables.log_table(day)
    columns, slots = ", ".join(tables.LOG_COLUMNS), ", ".join("?" * len(tables.LOG_COLUMNS))
    connection.execute("BEGIN")
    connection.execute(str(CreateTable(table)))
    connection.execute("INSERT INTO days (day, first_seq) VALUES (?, ?)", (day, first))
    connection.executemany(f"INSERT INTO log_{day} ({columns}) VALUES ({slots})", _rows(first, end, start, pace))
    for index in table.indexes:
        connection.execute(str(CreateIndex(index)))
    connection.executemany(
        "INSERT INTO batches (first_seq, committed_at, next_seq) VALUES (?, ?, ?)",
        (
            (seq, start + (seq - first) * pace, min(seq + BATCH, end))
            for seq in range(first, end, BATCH)
        ),
    )  # fmt: skip
    connection.execute("COMMIT")


def _rows(first: int, end: int, start: float, pace: float) -> Iterator[tuple[Any, ...]]:
    agent = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0 Safari/537.36"
    methods = ("eth_call", "eth_getLogs", "eth_blockNumber", "eth_getBalance", "eth_chainId")
    month = datetime.fromtimestamp(start, UTC).strftime("%Y-%m")
    for seq in range(first, end):
        # A batch is committed with the rows of the time before it.
        at = start + ((seq - first) // BATCH * BATCH) * pace - 0.2
        source = FEW if seq % 10_000 == 0 else SOME if seq % 50 == 0 else THEIRS if seq % 7 == 0 else MOST
        failed = seq % 500 == 1
        yield (
            seq, at, f"{seq * 2654435761 % 2**64:016x}", OTHERS if source == THEIRS else TEAM, source, "token",
            "203.0.113.7", agent, "", "eth/mainnet", methods[seq % 5], 200, "node_error" if failed else "ok",
            3 if failed else None, 120, 90, 4_200, "node-1", 1, "bypass", True, 5, month, 1,
        )  # fmt: skip


async def _people(records: Repositories, digest: bytes, now: float) -> None:
    await records.teams.add(Team(TEAM, "bench", created_at=now))
    account = Account(secrets.new_id("acc"), "bench@example.com", now, verified_at=now)
    await records.accounts.add(account)
    await records.members.add(Member(secrets.new_id("mem"), TEAM, account.id, "owner", now))
    await records.logins.add(Login(secrets.new_id("log"), account.id, PERSONAL, "bench", now, digest))


# --- Measuring ----------------------------------------------------------------------------------------------


class Api:
    """The API, asked in this process."""

    def __init__(self, bootstrap: Bootstrap, now: float) -> None:
        self._database = str(bootstrap.ledger_url.database)
        self._now = now
        self._secret = secrets.new_token(secrets.PERSONAL)
        self.digest = secrets.digest(self._secret.encode(), bootstrap.pepper)
        self.store = sqlite.open_store(bootstrap.store_url)
        self._book = sqlite.open_logbook(bootstrap.ledger_url)
        self.plane = ControlPlane(
            self.store, bootstrap.settings, bootstrap.pepper, "https://x", lambda: now, logbook=self._book
        )
        self._client = httpx.AsyncClient(
            transport=httpx.ASGITransport(cast("Any", control_app(self.plane))),
            base_url="https://x",
            headers={"Authorization": f"Bearer {self._secret}"},
        )

    async def page(self, case: Case, cursor: str | None) -> tuple[dict[str, Any], float]:
        """One page, and the milliseconds that it took."""
        after = f"&after={cursor}" if cursor else ""
        began = time.perf_counter()
        answer = await self._client.get(f"/api/v1/teams/bench/logs?limit={LIMIT}{case.query}{after}")
        spent = (time.perf_counter() - began) * 1e3
        body: dict[str, Any] = answer.raise_for_status().json()
        return body, spent

    async def at(self, case: Case, depth: float) -> str | None:
        """The cursor of a reader who has come to this depth."""
        if not depth:
            return None
        newest = await self._book.newest()
        least = newest - newest // DAYS if case.since == DAY else 0
        wanted = LogFilter(TEAM, case.source_id, errors=case.errors)
        start = self._now - case.since if case.since else float("-inf")
        position = newest - int((newest - least) * depth)
        return self.plane.logs.cursors.write(
            "after", TEAM, LogPosition(position, newest, start, case.since or 0, filters_of(wanted))
        )

    def forget(self) -> None:
        """Let the kernel drop what it holds of the ledger."""
        descriptor = os.open(self._database, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)

    async def close(self) -> None:
        await self._client.aclose()
        await self.plane.close()


class Sample:
    """What pages of one filter from one depth on took, over all rounds."""

    def __init__(self, case: Case, depth: float) -> None:
        self.case, self.depth = case, depth
        self._rows, self._cold = 0, 0.0
        self._rounds: list[list[float]] = []
        self._cpu: list[float] = []

    async def first(self, api: Api) -> None:
        """Ask for a page that nobody has in memory."""
        api.forget()
        body, self._cold = await api.page(self.case, await api.at(self.case, self.depth))
        self._rows = len(body["items"])

    async def round(self, api: Api) -> None:
        """Ask for some pages in a row."""
        cursor = await api.at(self.case, self.depth)
        times = []
        for _ in range(PAGES):
            began = time.process_time()
            body, spent = await api.page(self.case, cursor)
            self._cpu.append((time.process_time() - began) * 1e3)
            times.append(spent)
            cursor = body["next"] or cursor
        self._rounds.append(times)

    def row(self) -> Row:
        """The figures: the median of the rounds' medians, so that one restless moment does not decide."""
        ordered = sorted(spent for times in self._rounds for spent in times)
        return Row(
            self.case.name,
            self.depth,
            self._rows,
            self._cold,
            statistics.median(map(statistics.median, self._rounds)),
            ordered[int(0.95 * len(ordered))],
            ordered[-1],
            statistics.median(self._cpu),
            self.case.bound,
        )


async def _measure(api: Api, tell: Tell) -> list[Row]:
    async with api.store.changing() as records:
        await _people(records, api.digest, time.time())
    await api.page(CASES[0], None)  # what is made once is made now
    samples = [Sample(case, depth) for case in CASES for depth in DEPTHS]
    for sample in samples:
        await sample.first(api)
    for number in range(ROUNDS):
        for sample in samples:
            await sample.round(api)
        tell(f"round {number + 1} of {ROUNDS} is done")
    await api.close()
    return [sample.row() for sample in samples]


def run(count: int, output: Path | None, tell: Tell) -> int:
    """Seed, measure, print and write; return the exit code."""
    now = time.time()
    about = machine.describe()
    with tempfile.TemporaryDirectory(prefix="tollgate-bench-logs-") as folder:
        bootstrap = prepare(Settings(data_dir=folder))
        seed(bootstrap, count, now, tell)
        seconds, size = time.time() - now, Path(str(bootstrap.ledger_url.database)).stat().st_size
        tell(f"seeded in {seconds:.0f} s: {size / 1e9:.2f} GB")
        rows = asyncio.run(_whole(bootstrap, now, tell))
    worst = max(row.median for row in rows if row.bound)
    goal = Goal(
        f"a page of {LIMIT} of {count:,} log rows, slowest median of any depth and indexed filter",
        BAR_MS,
        "ms",
        worst,
        "reached" if worst <= BAR_MS else "missed",
    )
    print(_text(rows, goal))
    path = output or RESULTS / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-logs.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    found = {"machine": about, "rows": count, "bytes": size, "goal": asdict(goal), "pages": [*map(asdict, rows)]}
    path.write_text(json.dumps(found, indent=1) + "\n")
    print(f"\nwritten: {path}")
    return 0


async def _whole(bootstrap: Bootstrap, now: float, tell: Tell) -> list[Row]:
    return await _measure(Api(bootstrap, now), tell)


def _text(rows: list[Row], goal: Goal) -> str:
    line = "{:<28} {:>6} {:>5} {:>8} {:>8} {:>8} {:>8} {:>8}"
    lines = [line.format("filter", "depth", "rows", "cold ms", "p50 ms", "p95 ms", "max ms", "CPU ms")]
    for row in rows:
        figures = (f"{value:.1f}" for value in (row.cold, row.median, row.p95, row.most, row.cpu))
        lines.append(line.format(row.case, f"{row.depth:.1%}", row.rows, *figures))
    verdict = f"{goal.verdict:<12} {goal.value:.1f} {goal.unit} (bar {goal.bar:g} {goal.unit})  {goal.name}"
    return "\n".join([*lines, "", verdict])
