"""Reading the ledger: pages of logs. For the control plane; never writes.

A page goes through the headers of a team's blocks, and of its parts of shared ones, in the order of their commit,
skips those whose facts exclude a match, and searches the others. So a page costs the same at any
depth; a filter that seldom fits looks for a bounded time, and the page has the position that was reached. A page
is read in one transaction, so that no block is joined or dropped under it, and in one go by a thread: each hop to
a thread and back would cost more than the answer.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from tollgate import log
from tollgate.core.blocks import Facts, OpenBlock, may_hold, read_facts
from tollgate.core.entries import pack
from tollgate.core.logs import LogFilter, LogRow, LogSlice
from tollgate.core.shared_blocks import Stored, part_of
from tollgate.core.zstandard import ZstdError, decompress
from tollgate.store.base import StoreUnavailable
from tollgate.store.ledger_engine import HEADERS_AT_ONCE, engine_of, fetched

DEADLINE_SECONDS = 10.0
THREADS = 4
# How long a page looks for rows that seldom fit.
LOOK_SECONDS = 0.012
# A row is committed after its own time, so `since` need not look at what was committed before. The clock may have
# been set back in between, by this much at most.
CLOCK_SLACK_SECONDS = 10.0
# In the place of a day: of a shared block.
_SHARED = ""
_COLUMNS = "first_no, rows, records, errors, greatest_at, committed_at, facts, data_id, start, size, least_at"
_log = log.get("logbook")

Found = TypeVar("Found")


class SqlLogBook:
    """What the ledger has of logs."""

    def __init__(
        self, engine: Engine, *, look_seconds: float = LOOK_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._engine = engine
        self._look_seconds = look_seconds
        self._clock = clock
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="logbook")

    async def close(self) -> None:
        # Not on the loop: what is being read is read to its end, which is bounded.
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)
        self._engine.dispose()

    async def newest(self, team_id: str) -> int:
        """The newest row of a team that is committed; 0 before the first."""
        return await self._read(partial(_newest, team_id=team_id))

    async def older(self, wanted: LogFilter, below: int, limit: int) -> LogSlice:
        """Rows that fit, newest first, from below a row on."""
        return await self._read(lambda connection: self._search(connection, wanted).older(below, limit))

    async def newer(self, wanted: LogFilter, above: int, limit: int) -> tuple[list[LogRow], int]:
        """Rows that fit, oldest first, from above a row on, and the row above which to go on."""
        return await self._read(lambda connection: self._search(connection, wanted).newer(above, limit))

    def _search(self, connection: Connection, wanted: LogFilter) -> _Search:
        end = self._clock() + self._look_seconds
        return _Search(connection, wanted, lambda: self._clock() >= end)

    async def _read(self, work: Callable[[Connection], Found]) -> Found:
        """Read in a thread, as everything stood at one moment. The one border of the database's exceptions."""

        def whole() -> Found:
            with self._engine.connect() as connection:
                return work(connection)

        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                return await asyncio.get_running_loop().run_in_executor(self._threads, whole)
        except (SQLAlchemyError, sqlite3.Error, OSError) as error:
            raise StoreUnavailable(f"{type(error).__name__}: the ledger cannot be read") from error


class _Search:
    """Goes through the blocks of a team until it has enough rows, or has looked for long enough."""

    def __init__(self, connection: Connection, wanted: LogFilter, is_late: Callable[[], bool]) -> None:
        self._connection = connection
        self._wanted = wanted
        self._is_late = is_late
        self._held: tuple[tuple[str, int] | None, bytes] = (None, b"")
        """The data that was read last: small blocks share theirs."""

    def older(self, below: int, limit: int) -> LogSlice:
        """Rows that fit, newest first, from below a row on."""
        rows: list[LogRow] = []
        wanted, since = self._wanted, self._wanted.since
        for count, (day, header) in enumerate(self._headers_down(below)):
            first_no, greatest_at, committed_at = header[0], header[4], header[5]
            if since is not None and committed_at < since - CLOCK_SLACK_SECONDS:
                return LogSlice(rows, None)
            holds = self._may_hold(header) and (since is None or greatest_at >= since)
            if count and self._stops(count, opens=holds):
                return LogSlice(rows, first_no + header[1])
            if not holds:
                continue
            for row in self._open(day, header, lambda block: block.older(wanted, below)):
                # One more than requested, to see whether there is more.
                if len(rows) == limit:
                    return LogSlice(rows, rows[-1].seq)
                rows.append(row)
        return LogSlice(rows, None)

    def newer(self, above: int, limit: int) -> tuple[list[LogRow], int]:
        """Rows that fit, oldest first, from above a row on."""
        rows: list[LogRow] = []
        newest = _newest(self._connection, self._wanted.team_id)
        for count, (day, header) in enumerate(self._headers_up(above)):
            first_no = header[0]
            holds = self._may_hold(header)
            if count and self._stops(count, opens=holds):
                return rows, first_no - 1
            if not holds:
                continue
            rows += self._open(day, header, lambda block: block.newer(self._wanted, above))
            if len(rows) >= limit:
                return rows[:limit], rows[limit - 1].seq
        return rows, max(newest, above)

    def _may_hold(self, header: Any) -> bool:
        until = self._wanted.until
        return may_hold(self._wanted, header[6], header[3]) and (until is None or header[10] < until)

    def _stops(self, count: int, *, opens: bool) -> bool:
        """Whether enough time has passed. The clock is looked at before a block is opened, and now and then."""
        return (opens or count % HEADERS_AT_ONCE == 0) and self._is_late()

    def _headers_down(self, below: int) -> Iterator[tuple[str, Any]]:
        """Headers of blocks that have a row below a number, the newest first."""
        shared = [header for header in self._shared() if header[0] < below]
        for each in self._stored_down(below):
            while shared and shared[-1][0] > each[1][0]:
                yield _SHARED, shared.pop()
            yield each
        for header in reversed(shared):
            yield _SHARED, header

    def _stored_down(self, below: int) -> Iterator[tuple[str, Any]]:
        team_id = self._wanted.team_id
        days = _days(self._connection)
        while days:
            day, *days = days
            query = (
                f"SELECT {_COLUMNS} FROM blocks_{day} "  # noqa: S608 - names of our own
                "WHERE team_id = ? AND first_no < ? ORDER BY first_no DESC"
            )
            is_empty = True
            for header in self._rows(query, (team_id, below)):
                is_empty = False
                yield day, header
            if is_empty and days:
                days = engine_of(self._connection).days_below(self._connection, days, team_id, below)

    def _shared(self) -> list[Any]:
        """Headers of the team's parts of shared blocks, the oldest first.

        They have the part in the place of its records, and what the whole block has in the place of its data's.
        """
        found = []
        query = "SELECT id, rows, records, errors, greatest_at, committed_at, parts FROM shared_blocks ORDER BY id"
        for data_id, rows, records, errors, greatest_at, committed_at, parts in self._rows(query, ()):
            try:
                part = part_of(self._wanted.team_id, parts)
            except ValueError as error:
                _log.error("a shared block cannot be read", id=data_id, why=str(error))
                continue
            if part is not None:
                facts = pack(Facts([part.run], None, None, None, None, None))
                found.append(
                    (
                        part.first_no, part.run.rows, part, errors, greatest_at, committed_at, facts, data_id,
                        rows, records, 0.0,
                    )
                )  # fmt: skip
        return found

    def _headers_up(self, above: int) -> Iterator[tuple[str, Any]]:
        """Headers of blocks that have a row above a number, the oldest first."""
        shared = [header for header in reversed(self._shared()) if header[0] + header[1] > above + 1]
        for each in self._stored_up(above):
            while shared and shared[-1][0] < each[1][0]:
                yield _SHARED, shared.pop()
            yield each
        for header in reversed(shared):
            yield _SHARED, header

    def _stored_up(self, above: int) -> Iterator[tuple[str, Any]]:
        team_id = self._wanted.team_id
        days: list[tuple[str, int]] = []
        for day in _days(self._connection):
            query = f"SELECT max(first_no) FROM blocks_{day} WHERE team_id = ? AND first_no <= ?"  # noqa: S608
            first = self._connection.exec_driver_sql(query, (team_id, above + 1)).scalar()
            days.append((day, above + 1 if first is None else first))
            if first is not None:
                break
        for day, first in reversed(days):
            query = (
                f"SELECT {_COLUMNS} FROM blocks_{day} "  # noqa: S608 - names of our own
                "WHERE team_id = ? AND first_no >= ? ORDER BY first_no"
            )
            for header in self._rows(query, (team_id, first)):
                if header[0] + header[1] > above + 1:
                    yield day, header

    def _rows(self, query: str, values: tuple[Any, ...]) -> Iterator[Any]:
        """Rows as they are needed."""
        return engine_of(self._connection).stream(self._connection, query, values)

    def _open(
        self, day: str, header: Any, rows: Callable[[OpenBlock], Iterator[LogRow] | list[LogRow]]
    ) -> Iterator[LogRow]:
        """Rows of a block; none of one that is damaged, which `doctor` names."""
        first_no, data_id = header[0], header[7]
        try:
            yield from rows(self._opened(day, header))
        except (ZstdError, ValueError) as error:
            _log.error("a block cannot be read", day=day, data=data_id, first=first_no, why=str(error))

    def _opened(self, day: str, header: Any) -> OpenBlock:
        first_no, count, records, _, _, _, facts, data_id, start, size, _ = header
        data = self._data(day, data_id)
        if day == _SHARED:
            return Stored(start, size, b"", data).opened(records)
        return OpenBlock(first_no, count, records, read_facts(facts), data[start : start + size])

    def _data(self, day: str, data_id: int) -> bytes:
        if self._held[0] != (day, data_id):
            table = "shared_blocks" if day == _SHARED else f"data_{day}"
            query = f"SELECT data FROM {table} WHERE id = ?"  # noqa: S608 - a day of our own
            content = self._connection.exec_driver_sql(query, (data_id,)).scalar_one()
            self._held = ((day, data_id), decompress(content))
        return self._held[1]


def _newest(connection: Connection, team_id: str) -> int:
    following = connection.exec_driver_sql("SELECT next_no FROM teams WHERE id = ?", (team_id,)).scalar()
    return int(following or 1) - 1


def _days(connection: Connection) -> list[str]:
    """Days, newest first."""
    return [day for (day,) in fetched(connection.exec_driver_sql("SELECT day FROM days ORDER BY day DESC"))]
