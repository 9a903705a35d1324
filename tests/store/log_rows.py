"""A ledger to read from: rows of several teams, committed by the real store under a clock of the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.store.migrated import make_ledger
from tests.store.stored_blocks import batch_of

from tollgate.core.entries import BILLABLE, CallEntry, Entry, attempts_of
from tollgate.core.logs import LogEntry, LogFilter
from tollgate.core.months import month_of
from tollgate.core.posting import Rules, post
from tollgate.core.pricing import Price
from tollgate.store import sqlite
from tollgate.store.ledger import open_ledger
from tollgate.store.logbook import CLOCK_SLACK_SECONDS, SqlLogBook

NOON = 1_794_744_000.0  # 2026-11-15T12:00:00Z
DAY = 86_400.0
ACME, RIVAL = "team_acme000000000", "team_rival00000000"
CI, WEB, THEIRS = "tok_ci00000000000000", "dom_web0000000000000", "tok_theirs0000000000"
TEAM_OF = {CI: ACME, WEB: ACME, THEIRS: RIVAL}


def entry(at: float, source: str = CI, **more: Any) -> Entry:
    """One request with one call, of the team that owns the token or domain."""
    outcome = more.pop("outcome", "ok")
    calls = more.pop("calls", None) or (
        CallEntry(more.pop("method", "eth_call"), outcome, more.pop("code", None)),
    )
    usual: dict[str, Any] = {"request_id": b"req-1", "network": "eth/mainnet", "status": 200}
    return Entry(
        at=at,
        team_id=more.pop("team_id", TEAM_OF.get(source, ACME)),
        source_id=source,
        source_name=more.pop("source_name", source[4:8].rstrip("0")),
        calls=calls,
        **{**usual, **more},
    )


def fits(row: LogEntry, wanted: LogFilter) -> bool:
    """Whether a row fits the filter, implemented a second time."""
    return (
        row.team_id == wanted.team_id
        and wanted.source_id in (None, row.source_id)
        and (wanted.since is None or row.at >= wanted.since)
        and wanted.network in (None, row.network)
        and wanted.method in (None, row.method)
        and wanted.status in (None, row.status)
        and wanted.request_id in (None, row.request_id)
        and not (wanted.errors and row.outcome == "ok")
    )


class Ledger:
    """The ledger of a folder, as the collector writes it."""

    def __init__(self, folder: Path) -> None:
        self.url = sqlite.ledger_url(folder)
        if not (folder / "ledger.db").exists():
            make_ledger(folder)
        self.store = open_ledger(self.url)
        self.now = self._latest = NOON
        self.rows: list[LogEntry] = []
        """All that was ever committed, in that order, as plain rows."""
        self._day_of: list[str] = []

    def commit(self, *entries: Entry) -> list[LogEntry]:
        """Commit a batch, now; return its rows."""
        batch = batch_of(entries)
        rules = Rules(lambda _: Price(), lambda at, _: month_of(at))
        self.store.commit({}, batch.teams(), lambda opening: post(batch, opening, rules), self.now)
        numbers = {row.team_id: row.seq for row in self.rows}
        rows = []
        for each in entries:
            for call in each.calls:
                numbers[each.team_id] = numbers.get(each.team_id, 0) + 1
                rows.append(_row(numbers[each.team_id], each, call))
        self.rows += rows
        self._day_of += [self._today()] * len(rows)
        return rows

    def tidy(self) -> None:
        """Do the chores of the collector."""
        for chore in (self.store.join, self.store.settle, self.store.fold, lambda: self.store.sweep(0)):
            while chore():
                pass

    def wait(self, seconds: float) -> None:
        """Let time pass; backwards only as far as a clock may be set back."""
        self.now = max(self.now + seconds, self._latest - CLOCK_SLACK_SECONDS)
        self._latest = max(self._latest, self.now)

    def kept(self, wanted: LogFilter) -> list[int]:
        """The rows that fit and are still there, newest first."""
        return [row.seq for row, day in zip(self.rows, self._day_of, strict=True) if day and fits(row, wanted)][
            ::-1
        ]

    def drop_oldest_day(self) -> None:
        """Drop a day, as retention does; the newest always stays."""
        days = sorted(set(self._day_of) - {""})
        if len(days) > 1:
            assert self.store.drop_days(days[1]) == days[:1]
            self._day_of = ["" if day == days[0] else day for day in self._day_of]

    def close(self) -> None:
        self.store.close()

    def _today(self) -> str:
        day = datetime.fromtimestamp(self.now, UTC).strftime("%Y%m%d")
        return max([day, *self._day_of])


def _row(seq: int, entry: Entry, call: CallEntry) -> LogEntry:
    """A call as a plain row; of the free million."""
    texts = (entry.agent.decode("utf-8", "replace"), entry.origin.decode("utf-8", "replace"))
    attempts = attempts_of(entry.attempts, entry.upstream, entry.duration_micros, call.outcome)
    return LogEntry(
        seq, entry.at, entry.request_id.decode("utf-8", "replace"), entry.team_id, entry.source_id,
        entry.source_name, entry.address, *texts, entry.network, call.method, entry.status, call.outcome,
        call.code, entry.request_bytes // len(entry.calls), call.response_bytes, entry.duration_micros,
        entry.upstream, attempts, entry.cache, call.outcome in BILLABLE, 0, month_of(entry.at),
        entry.stands_for,
    )  # fmt: skip


class Reader:
    """A log book, and the loop that it is read in. `blocks` bounds how many blocks a page may open."""

    def __init__(self, ledger: Ledger, loop: asyncio.Runner, blocks: int | None = None) -> None:
        self._loop = loop
        self._ticks = 0
        self.book: SqlLogBook = (
            sqlite.open_logbook(ledger.url, look_seconds=3600)
            if blocks is None
            else sqlite.open_logbook(ledger.url, look_seconds=blocks, clock=self._tick)
        )

    def _tick(self) -> float:
        """A clock that advances by a second at each read; it is read once before each block."""
        self._ticks += 1
        return float(self._ticks)

    def newest(self, team_id: str = ACME) -> int:
        return self._loop.run(self.book.newest(team_id))

    def older(self, wanted: LogFilter, below: int, limit: int) -> tuple[list[int], int | None]:
        found = self._loop.run(self.book.older(wanted, below, limit))
        return [row.seq for row in found.entries], found.position

    def newer(self, wanted: LogFilter, above: int, limit: int) -> tuple[list[int], int]:
        rows, position = self._loop.run(self.book.newer(wanted, above, limit))
        return [row.seq for row in rows], position

    def all_older(
        self,
        wanted: LogFilter,
        limit: int,
        between: Callable[[], object] = int,
        from_newest: int | None = None,
    ) -> list[int]:
        """Read to the end, with something done between pages."""
        newest = self.newest(wanted.team_id) if from_newest is None else from_newest
        seen, position = [], newest + 1
        while True:
            rows, following = self.older(wanted, position, limit)
            seen += rows
            if following is None:
                return seen
            assert following < position
            position = following
            between()

    def close(self) -> None:
        self._loop.run(self.book.close())
