"""A ledger to read from: rows of several teams, committed by the real store under a clock of the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tollgate.core.entries import CallEntry, Entry
from tollgate.core.logs import LogFilter
from tollgate.core.months import month_of
from tollgate.core.posting import MonthKey, Posting, Terms, post
from tollgate.core.pricing import Price
from tollgate.store import sqlite, upgrade
from tollgate.store.ledger import open_ledger
from tollgate.store.logbook import CLOCK_SLACK_SECONDS, SqlLogBook

NOON = 1_794_744_000.0  # 2026-11-15T12:00:00Z
DAY = 86_400.0
ACME, RIVAL = "team_acme000000000", "team_rival00000000"
CI, WEB, THEIRS = "tok_ci00000000000000", "dom_web0000000000000", "tok_theirs0000000000"
TEAM_OF = {CI: ACME, WEB: ACME, THEIRS: RIVAL}


def entry(at: float, source: str = CI, **more: Any) -> Entry:
    """One request with one call, of whoever owns its token or domain."""
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


def fits(row: tuple[Any, ...], wanted: LogFilter) -> bool:
    """Whether a row, as the ledger writes it, is wanted: written down a second time, without SQL."""
    _, at, _, team, source, _, _, _, _, network, method, status, outcome, *_ = row
    return (
        team == wanted.team_id
        and (wanted.source_id is None or source == wanted.source_id)
        and (wanted.since is None or at >= wanted.since)
        and (wanted.network is None or network == wanted.network)
        and (wanted.method is None or method == wanted.method)
        and (wanted.status is None or status == wanted.status)
        and (not wanted.errors or outcome != "ok")
    )


class Ledger:
    """The ledger of a folder, as the collector writes it."""

    def __init__(self, folder: Path) -> None:
        self.url = sqlite.ledger_url(folder)
        upgrade.migrate(self.url, upgrade.LEDGER)
        self.store = open_ledger(self.url)
        self.now = self._latest = NOON
        self.rows: list[tuple[Any, ...]] = []
        """All that was ever committed, in that order."""
        self._day_of: list[str] = []

    def commit(self, *entries: Entry) -> list[tuple[Any, ...]]:
        """Commit a batch, now; return its rows."""

        def posted(first_seq: int, before: dict[MonthKey, int]) -> Posting:
            return post(
                entries,
                first_seq,
                before,
                terms=lambda _: Terms(Price()),
                month_for=month_of,
                label=lambda _, method: method,
            )

        rows = self.store.commit({}, {each.team_id for each in entries}, posted, self.now).rows
        self.rows += rows
        self._day_of += [self._today()] * len(rows)
        return rows

    def wait(self, seconds: float) -> None:
        """Let time pass; backwards only as far as a clock may be set back."""
        self.now = max(self.now + seconds, self._latest - CLOCK_SLACK_SECONDS)
        self._latest = max(self._latest, self.now)

    def kept(self, wanted: LogFilter) -> list[int]:
        """The rows that fit and are still there, newest first."""
        return [row[0] for row, day in zip(self.rows, self._day_of, strict=True) if day and fits(row, wanted)][
            ::-1
        ]

    def drop_oldest_day(self) -> None:
        """Throw a day away, as retention does; the newest always stays."""
        days = sorted(set(self._day_of) - {""})
        if len(days) > 1:
            assert self.store.drop_days(days[1]) == days[:1]
            self._day_of = ["" if day == days[0] else day for day in self._day_of]

    def close(self) -> None:
        self.store.close()

    def _today(self) -> str:
        day = datetime.fromtimestamp(self.now, UTC).strftime("%Y%m%d")
        return max([day, *self._day_of])


class Reader:
    """A log book, and the loop that it is read in."""

    def __init__(self, ledger: Ledger, loop: asyncio.Runner, **looks: int) -> None:
        self._loop = loop
        self.book: SqlLogBook = sqlite.open_logbook(ledger.url, **looks)

    def newest(self) -> int:
        return self._loop.run(self.book.newest())

    def older(self, wanted: LogFilter, below: int, limit: int) -> tuple[list[int], int | None]:
        found = self._loop.run(self.book.older(wanted, below, limit))
        return [row.seq for row in found.rows], found.position

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
        seen, position = [], (self.newest() if from_newest is None else from_newest) + 1
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
