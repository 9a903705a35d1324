"""Ledgers of each backend, and what a collector and the control plane do with them."""

from __future__ import annotations

import asyncio
import functools
import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from sqlalchemy.engine import URL
from tests.store.migrated import make_ledger
from tests.store.stored_blocks import batch_of

from parts.postgres import cluster, pooler
from tollgate.api.usage import By
from tollgate.core.entries import CallEntry, Entry
from tollgate.core.logs import LogEntry, LogFilter
from tollgate.core.models import Team
from tollgate.core.months import month_of
from tollgate.core.posting import Opening, Posting, Rules, post
from tollgate.core.pricing import MILLION, Price
from tollgate.processes.collector import billing_month
from tollgate.store import engines, postgresql, sqlite, upgrade
from tollgate.store.base import AccountBook, LogBook, Mark
from tollgate.store.ledger import LedgerStore, open_ledger
from tollgate.store.ledger_facts import LedgerState

NOON = 1_794_744_000.0  # 2026-11-15T12:00:00Z
DAY = 86_400.0
MONTH = month_of(NOON)
TEAMS = ("team_Acme", "team_acme", "team_beta", "team_zeta")
METHODS = ("eth_call", "eth_getLogs", "eth_blockNumber")
PRICE = Price(free_requests=50, micros_per_million=MILLION)


class Home(Protocol):
    """Where a ledger lives."""

    url: URL

    def by_hand(self, statement: str) -> list[Any]:
        """Run SQL past all our code."""

    def close(self) -> None: ...


class SqliteHome:
    """A file."""

    def __init__(self, folder: Path) -> None:
        self.url = sqlite.ledger_url(folder)
        self._file = make_ledger(folder)

    def by_hand(self, statement: str) -> list[Any]:
        with closing(sqlite3.connect(self._file)) as connection, connection:
            return connection.execute(statement).fetchall()

    def close(self) -> None:
        """It goes with its folder."""


@functools.cache
def _template() -> str:
    server = cluster()
    name = server.make()
    for folder in (upgrade.CONTROL, upgrade.LEDGER):
        upgrade.migrate(postgresql.checked(server.url(name)), folder)
    return name


class PostgresHome:
    """A database of the shared server."""

    def __init__(self, _folder: Path) -> None:
        self._database = cluster().make(_template())
        self.url = postgresql.checked(cluster().url(self._database))

    def by_hand(self, statement: str) -> list[Any]:
        schema = postgresql.LEDGER_SCHEMA
        return cluster().execute(f"SET search_path TO {schema}; {statement}", self._database)

    def close(self) -> None:
        cluster().drop(self._database)


class PooledHome(PostgresHome):
    """A database behind PgBouncer in transaction mode."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.url = self.url.set(port=pooler())


HOMES: dict[str, Callable[[Path], Home]] = {
    "sqlite": SqliteHome,
    "postgresql": PostgresHome,
    "pgbouncer": PooledHome,
}


def entry(team: str = TEAMS[0], at: float = NOON, *, outcome: str = "ok", **more: Any) -> Entry:
    """A request with one call."""
    usual: dict[str, Any] = {
        "source_id": f"tok_{team[5:]}", "source_name": "ci", "network": "eth/mainnet", "status": 200,
        "request_id": b"req", "calls": (CallEntry(more.pop("method", "eth_call"), outcome),),
    }  # fmt: skip
    return Entry(at=at, team_id=team, **{**usual, **more})


class LedgerHarness:
    """A collector and the control plane at one ledger."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.store: LedgerStore = open_ledger(home.url)
        self.now = NOON

    def another(self) -> LedgerHarness:
        """A second collector at the same ledger."""
        return LedgerHarness(self.home)

    def close(self) -> None:
        self.store.close()

    def commit(
        self,
        *entries: Entry,
        marks: dict[bytes, Mark] | None = None,
        known: dict[bytes, Mark] | None = None,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> Posting:
        """Commit a batch; `meanwhile` is done within its transaction."""
        batch = batch_of(entries)

        def posted(opening: Opening) -> Posting:
            meanwhile()
            return post(batch, opening, Rules(lambda _: PRICE, billing_month))

        return self.store.commit(marks or {}, batch.teams(), posted, self.now, payers=batch.payers(), known=known)

    def chores(self) -> None:
        """Do all chores to their end."""
        chores = (self.store.join, self.store.settle, self.store.fold, lambda: self.store.sweep(0))
        for chore in chores:
            while chore():
                pass

    def facts(self) -> LedgerState:
        """Everything, added up."""
        facts = engines.open_facts(self.home.url)
        try:
            return facts.read()
        finally:
            facts.close()

    def read(self, query: Callable[[LogBook], Any]) -> Any:
        """Query the log book."""

        async def whole() -> Any:
            book = engines.open_logbook(self.home.url)
            book._look_seconds = 3_600.0
            try:
                return await query(book)
            finally:
                await book.close()

        return asyncio.run(whole())

    def account(self, query: Callable[[AccountBook], Any]) -> Any:
        """Query the account book."""

        async def whole() -> Any:
            book = engines.open_accountbook(self.home.url)
            try:
                return await query(book)
            finally:
                await book.close()

        return asyncio.run(whole())

    def logs(self, team: str, **wanted: Any) -> list[LogEntry]:
        """All rows of a team, newest first, read page by page."""

        async def pages(book: LogBook) -> list[LogEntry]:
            rows: list[LogEntry] = []
            below: int | None = await book.newest(team) + 1
            while below is not None:
                found = await book.older(LogFilter(team, **wanted), below, 7)
                rows += found.entries
                below = found.position
            return rows

        found: list[LogEntry] = self.read(pages)
        return found

    def seen(self) -> dict[str, Any]:
        """All that readers get to see."""
        found: dict[str, Any] = {}
        for team in TEAMS:
            found[f"logs {team}"] = self.logs(team)
            found[f"errors {team}"] = self.logs(team, errors=True, method="eth_call")
            for by in By:
                found[f"{by} {team}"] = self.account(partial(_usage, team, by))
            found[f"bill {team}"] = self.account(partial(_bill, team))
            found[f"latencies {team}"] = self.account(partial(_latencies, team))
        found["spent"] = self.account(lambda book: book.spent(MONTH, [Team(team, team) for team in TEAMS]))
        found["months"] = self.account(lambda book: book.open_months("2999-01"))
        found["team months"] = self.store.team_months(MONTH, dict.fromkeys(TEAMS, ""))
        found["source months"] = self.store.source_months(MONTH, [f"tok_{team[5:]}" for team in TEAMS])
        found["last uses"] = self.store.last_uses(3_600.0)
        found["marks"] = self.store.marks()
        facts = self.facts()
        found["facts"] = (facts.usage, facts.logs, facts.months, facts.damaged, facts.used_by_source)
        assert facts.usage == facts.logs or facts.dropped_before
        assert facts.used_by_source == facts.source_months
        return found


def _usage(team: str, by: By, book: AccountBook) -> Any:
    return book.usage(team, MONTH, by)


def _bill(team: str, book: AccountBook) -> Any:
    return book.bill(team, MONTH)


def _latencies(team: str, book: AccountBook) -> Any:
    hour = int(NOON) // 3_600
    return book.latencies(team, hour - 48, hour + 480)


def history(ledger: LedgerHarness, seed: int) -> None:
    """Simulate some days: commits large and small, chores, days that are dropped."""
    chance = random.Random(seed)
    offset = 0
    for turn in range(40):
        ledger.now += chance.choice((0.5, 30.0, 3_000.0, DAY / 3))
        entries = [
            entry(
                chance.choice(TEAMS), ledger.now - chance.random(), outcome=chance.choice(("ok", "node_error")),
                method=chance.choice(METHODS), duration_micros=chance.randrange(1_000_000),
            )
            for _ in range(chance.choice((1, 3, 40, 700 if turn % 13 == 0 else 5)))
        ]  # fmt: skip
        known = {b"\1" * 16: Mark(offset)} if offset else {}
        offset += 100
        ledger.commit(*entries, marks={b"\1" * 16: Mark(offset)}, known=known)
        if chance.random() < 0.3:
            ledger.chores()
        while chance.random() < 0.5 and ledger.store.join():
            pass
