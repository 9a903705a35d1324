"""What a page of request logs costs, at any depth of a ledger with millions of rows.

Fills `ledger.db` by the collector's own code, without a spool, and reads pages from the log book in this process,
as the API does. What the API adds (routing, credentials, sealing, JSON) is measured for unfiltered pages.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import httpx

from bench import machine
from bench.goals import Goal
from bench.report import RESULTS
from tollgate.control.app import control_app
from tollgate.control.plane import ControlPlane
from tollgate.core import secrets
from tollgate.core.entries import pack
from tollgate.core.logs import LogFilter, LogSlice
from tollgate.core.models import Team
from tollgate.core.months import month_of
from tollgate.core.people import PERSONAL, Account, Login, Member
from tollgate.core.posting import Rules, post
from tollgate.core.pricing import Price
from tollgate.core.subjects import Batch, Subjects
from tollgate.processes.bootstrap import Bootstrap, prepare
from tollgate.settings.model import Settings
from tollgate.store import sqlite
from tollgate.store.ledger import open_ledger

if TYPE_CHECKING:
    from tollgate.store.base import Repositories
    from tollgate.store.logbook import SqlLogBook

BAR_PLAIN_MS, BAR_MS, BAR_P99_MS, BAR_DROP_MS = 2.0, 20.0, 100.0, 10.0
LIMIT = 100
ROUNDS, PAGES = 5, 10
DAYS = 30
DAY = 86_400
COMMIT = 20_000
METHODS = ("eth_call", "eth_getCode", "eth_blockNumber", "eth_getBalance", "eth_chainId")
AGENT = b"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0 Safari/537.36"
DEPTHS = (0.0, 0.25, 0.5, 0.75, 0.999)

TEAM, OTHERS = "team_bench00000000", "team_others0000000"
# A token that makes most of the calls, one of some, one of few; and somebody else's.
MOST, SOME, FEW, THEIRS = (f"tok_{name:0<16}" for name in ("most", "some", "few", "theirs"))

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Case:
    """A filter."""

    name: str
    source_id: str | None = None
    since: int | None = None
    network: str | None = None
    method: str | None = None
    status: int | None = None
    errors: bool = False
    request_id: str | None = None

    def wanted(self, now: float) -> LogFilter:
        """As the log book takes it."""
        fields = asdict(self)
        del fields["name"]
        return LogFilter(TEAM, **{**fields, "since": None if self.since is None else now - self.since})


CASES = (
    Case("all"),
    Case("token, most rows", source_id=MOST),
    Case("token, every 50th row", source_id=SOME),
    Case("token, every 2,000th row", source_id=FEW),
    Case("method, every 5th row", method="eth_call"),
    Case("method, every 300th row", method="eth_getLogs"),
    Case("network, all rows", network="eth/mainnet"),
    Case("status 429, every 500th row", status=429),
    Case("errors, every 500th row", errors=True),
    Case("errors of a token, every 25,000th row", source_id=SOME, errors=True),
    Case("request id, one row", request_id="no-such-request"),
    Case("since 60d", since=60 * DAY),
    Case("since 24h, token, every 50th row", source_id=SOME, since=DAY),
)


@dataclass(frozen=True, slots=True)
class Row:
    """Pages of one filter from one depth on, in milliseconds."""

    case: str
    depth: float
    rows: int
    """Of the first page."""
    cold: float
    """The first one, with nothing of the file in memory."""
    p50: float
    p99: float
    most: float
    cpu: float
    """What a page took of the processor, the median: the other figures grow with other work on the machine."""


# --- Seeding ------------------------------------------------------------------------------------------------


def seed(bootstrap: Bootstrap, count: int, now: float, progress: Progress, commit: int = COMMIT) -> None:
    """Fill the ledger with rows of the last days, as evenly as they come."""
    store = open_ledger(bootstrap.ledger_url)
    rules = Rules(lambda _: Price(), lambda at, _: month_of(at))
    subjects = Subjects(lambda _, method: method)
    for first in range(0, count, commit):
        at = now - DAYS * DAY * (1 - first / count)
        batch = Batch(subjects)
        batch.add([_record(number, at) for number in range(first, min(first + commit, count))])
        store.commit({}, batch.teams(), lambda opening, batch=batch: post(batch, opening, rules), at)  # type: ignore[misc]
        while store.join() or store.settle():
            pass
        if first // commit % 50 == 49:
            while store.fold():
                pass
            progress(f"{first + commit:,} rows are written")
    store.close()
    if bootstrap.ledger_url.get_backend_name() == "sqlite":
        with closing(sqlite3.connect(str(bootstrap.ledger_url.database))) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


@cache
def _subject(source: str, method: str, status: int, outcome: str) -> bytes:
    team = OTHERS if source == THEIRS else TEAM
    return pack((team, source, "eth/mainnet", "token", status, 1, None, [(method, outcome)]))


def _record(number: int, at: float) -> bytes:
    source = FEW if number % 2_000 == 0 else SOME if number % 50 == 0 else THEIRS if number % 7 == 0 else MOST
    method = "eth_getLogs" if number % 300 == 3 else METHODS[number % 5]
    failed = number % 500 == (50 if number % 25_000 == 50 else 1)
    subject = _subject(source, method, 429 if failed else 200, "rate_limited" if failed else "ok")
    request_id = b"%016x%016x" % (number * 2654435761 % 2**64, number * 40503 % 2**64)
    return pack(
        (
            at,
            subject,
            900 + number % 997,
            [(None, 90)],
            120,
            request_id,
            "node-1",
            1,
            "bypass",
            "203.0.113.7",
            AGENT,
            b"",
        )
    )


async def add_people(records: Repositories, digest: bytes, now: float) -> None:
    """A team, and somebody who may read its logs."""
    await records.teams.add(Team(TEAM, "bench", created_at=now))
    account = Account(secrets.new_id("acc"), "bench@example.com", now, verified_at=now)
    await records.accounts.add(account)
    await records.members.add(Member(secrets.new_id("mem"), TEAM, account.id, "owner", now))
    await records.logins.add(Login(secrets.new_id("log"), account.id, PERSONAL, "bench", now, digest))


# --- Measuring ----------------------------------------------------------------------------------------------


class Pages(Protocol):
    """What pages are read from."""

    now: float
    book: SqlLogBook

    def forget(self) -> None:
        """Let nothing of the ledger be in memory."""


class Api:
    """The API, called in this process."""

    def __init__(self, bootstrap: Bootstrap, now: float) -> None:
        self._database = str(bootstrap.ledger_url.database)
        self.now = now
        self._secret = secrets.new_token(secrets.PERSONAL)
        self.digest = secrets.digest(self._secret.encode(), bootstrap.pepper)
        self.store = sqlite.open_store(bootstrap.store_url)
        self.book = sqlite.open_logbook(bootstrap.ledger_url)
        self.plane = ControlPlane(
            self.store, bootstrap.settings, bootstrap.pepper, "https://x", lambda: now, logbook=self.book
        )
        self._client = httpx.AsyncClient(
            transport=httpx.ASGITransport(cast("Any", control_app(self.plane))),
            base_url="https://x",
            headers={"Authorization": f"Bearer {self._secret}"},
        )

    async def page(self) -> float:
        """The milliseconds of one unfiltered page."""
        started = time.perf_counter()
        answer = await self._client.get(f"/api/v1/teams/bench/logs?limit={LIMIT}")
        spent = (time.perf_counter() - started) * 1e3
        answer.raise_for_status()
        return spent

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
        self._times: list[float] = []
        self._cpu: list[float] = []

    async def first(self, api: Pages) -> None:
        """Read a page that nobody has in memory."""
        api.forget()
        (found, self._cold, _) = await self._page(api, await self._start(api))
        self._rows = len(found.entries)

    async def round(self, api: Pages) -> None:
        """Read some pages in a row."""
        start = position = await self._start(api)
        for _ in range(PAGES):
            found, spent, cpu = await self._page(api, position)
            self._times.append(spent)
            self._cpu.append(cpu)
            position = found.position or start

    async def _start(self, api: Pages) -> int:
        newest = await api.book.newest(TEAM)
        return newest + 1 - int(newest * self.depth / (DAYS if self.case.since == DAY else 1))

    async def _page(self, api: Pages, below: int) -> tuple[LogSlice, float, float]:
        started, ran = time.perf_counter(), time.process_time()
        found = await api.book.older(self.case.wanted(api.now), below, LIMIT)
        return found, (time.perf_counter() - started) * 1e3, (time.process_time() - ran) * 1e3

    def row(self) -> Row:
        """The figures."""
        ordered = sorted(self._times)
        p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
        p50, cpu = statistics.median(ordered), statistics.median(self._cpu)
        return Row(self.case.name, self.depth, self._rows, self._cold, p50, p99, ordered[-1], cpu)


async def _measure(api: Api, progress: Progress) -> tuple[list[Row], float]:
    async with api.store.changing() as records:
        await add_people(records, api.digest, time.time())
    await api.page()  # what is made once is made now
    # As the control plane does when it has started.
    gc.collect()
    gc.freeze()
    samples = [Sample(case, depth) for case in CASES for depth in DEPTHS]
    for sample in samples:
        await sample.first(api)
    for number in range(ROUNDS):
        for sample in samples:
            await sample.round(api)
        progress(f"round {number + 1} of {ROUNDS} is done")
    whole = statistics.median([await api.page() for _ in range(ROUNDS * PAGES)])
    await api.close()
    return [sample.row() for sample in samples], whole


@dataclass(frozen=True, slots=True)
class Dropped:
    """What dropping the oldest day took, in milliseconds: for readers, and the longest slice of deleting it."""

    drop: float
    slowest_slice: float
    slices: int


def drop_oldest(bootstrap: Bootstrap) -> Dropped:
    """Drop the oldest day, as retention does."""
    store = open_ledger(bootstrap.ledger_url)
    with closing(sqlite3.connect(str(bootstrap.ledger_url.database))) as connection:
        days = [day for (day,) in connection.execute("SELECT day FROM days ORDER BY day")]
    store.clock()  # what is opened once is opened now
    started = time.perf_counter()
    store.drop_days(days[1])
    drop = (time.perf_counter() - started) * 1e3
    slices = []
    more = True
    while more:
        started = time.perf_counter()
        more = store.sweep(0)
        slices.append((time.perf_counter() - started) * 1e3)
    store.close()
    return Dropped(drop, max(slices), len(slices))


def run(count: int, output: Path | None, progress: Progress) -> int:
    """Seed, measure, print and write; return the exit code."""
    now = time.time()
    about = machine.describe()
    with tempfile.TemporaryDirectory(prefix="tollgate-bench-logs-") as folder:
        bootstrap = prepare(Settings(data_dir=folder))
        seed(bootstrap, count, now, progress)
        seconds, size = time.time() - now, Path(str(bootstrap.ledger_url.database)).stat().st_size
        progress(f"seeded in {seconds:.0f} s: {size / 1e9:.2f} GB")
        rows, whole = asyncio.run(_whole(bootstrap, now, progress))
        dropped = drop_oldest(bootstrap)
    goals = _goals(rows, dropped, count)
    print(_text(rows, whole, dropped, goals))
    path = output or RESULTS / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-logs.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    found = {
        "machine": about,
        "rows": count,
        "bytes": size,
        "api_ms": whole,
        "goals": [*map(asdict, goals)],
        "pages": [*map(asdict, rows)],
        "dropped": asdict(dropped),
    }
    path.write_text(json.dumps(found, indent=1) + "\n")
    print(f"\nwritten: {path}")
    return 0


async def _whole(bootstrap: Bootstrap, now: float, progress: Progress) -> tuple[list[Row], float]:
    return await _measure(Api(bootstrap, now), progress)


def _goals(rows: list[Row], dropped: Dropped, count: int) -> list[Goal]:
    plain = [row for row in rows if row.case == "all"]
    page = f"a page of {LIMIT} of {count:,} rows"
    figures = (
        (f"{page}, unfiltered, slowest p50 of any depth", BAR_PLAIN_MS, max(row.p50 for row in plain)),
        (f"{page}, slowest p50 of any filter and depth", BAR_MS, max(row.p50 for row in rows)),
        (f"{page}, slowest p99 of any filter and depth", BAR_P99_MS, max(row.p99 for row in rows)),
        (f"{page}, slowest cold page of any filter and depth", BAR_P99_MS, max(row.cold for row in rows)),
        (f"a day of {count // DAYS:,} rows is dropped", BAR_DROP_MS, dropped.drop),
    )
    return [Goal(name, bar, "ms", value, "reached" if value <= bar else "missed") for name, bar, value in figures]


def _text(rows: list[Row], whole: float, dropped: Dropped, goals: list[Goal]) -> str:
    line = "{:<38} {:>6} {:>5} {:>8} {:>8} {:>8} {:>8} {:>8}"
    lines = [line.format("filter", "depth", "rows", "cold ms", "p50 ms", "p99 ms", "max ms", "CPU ms")]
    for row in rows:
        figures = (f"{value:.1f}" for value in (row.cold, row.p50, row.p99, row.most, row.cpu))
        lines.append(line.format(row.case, f"{row.depth:.1%}", row.rows, *figures))
    lines.append(f"through the API, unfiltered: p50 {whole:.1f} ms")
    lines.append(
        f"the oldest day: dropped in {dropped.drop:.1f} ms, deleted in {dropped.slices} slices of at most "
        f"{dropped.slowest_slice:.0f} ms"
    )
    verdicts = [
        f"{goal.verdict:<12} {goal.value:.1f} {goal.unit} (bar {goal.bar:g} {goal.unit})  {goal.name}"
        for goal in goals
    ]
    return "\n".join([*lines, "", *verdicts])
