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
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from heapq import merge
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from tollgate import log
from tollgate.core.blocks import Facts, OpenBlock, may_hold, read_facts
from tollgate.core.entries import pack
from tollgate.core.logs import LogEntry, LogFilter, LogSlice
from tollgate.core.shared_blocks import Part, Stored, part_of
from tollgate.core.zstandard import ZstdError, decompress
from tollgate.store.base import StoreUnavailable
from tollgate.store.ledger_engine import HEADERS_AT_ONCE, engine_of, fetched
from tollgate.store.statements import statement

DEADLINE_SECONDS = 10.0
THREADS = 4
# How long a page looks for entries that seldom fit.
LOOK_SECONDS = 0.012
# An entry is committed after its own time, so `since` need not look at what was committed before. The clock may
# have been set back in between, by this much at most.
CLOCK_SLACK_SECONDS = 10.0
_OLDER = "SELECT {columns} FROM blocks_{day} WHERE team_id = ? AND first_no < ? ORDER BY first_no DESC"
_NEWER = "SELECT {columns} FROM blocks_{day} WHERE team_id = ? AND first_no >= ? ORDER BY first_no"
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
        return await self._read(partial(_newest, team_id=team_id))

    async def older(self, wanted: LogFilter, below: int, limit: int) -> LogSlice:
        return await self._read(lambda connection: self._search(connection, wanted).older(below, limit))

    async def newer(self, wanted: LogFilter, above: int, limit: int) -> tuple[list[LogEntry], int]:
        return await self._read(lambda connection: self._search(connection, wanted).newer(above, limit))

    def _search(self, connection: Connection, wanted: LogFilter) -> _Search:
        end = self._clock() + self._look_seconds
        return _Search(connection, wanted, lambda: self._clock() >= end)

    async def _read(self, work: Callable[[Connection], Found]) -> Found:
        """Read a snapshot in a thread. Exceptions of the database are mapped here, and nowhere else."""

        def whole() -> Found:
            with self._engine.connect() as connection:
                return work(connection)

        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                return await asyncio.get_running_loop().run_in_executor(self._threads, whole)
        except (SQLAlchemyError, sqlite3.Error, OSError) as error:
            raise StoreUnavailable(f"{type(error).__name__}: the ledger cannot be read") from error


class _StoredHeader(NamedTuple):
    """What is read of a block before its data: columns of a day's table of blocks."""

    first_no: int
    rows: int
    records: int
    errors: int
    least_at: float
    greatest_at: float
    committed_at: float
    facts: bytes
    data_id: int
    start: int
    size: int


class _PartHeader(NamedTuple):
    """The same of a team's part of a shared block. It lists no facts, and the times are those of the block."""

    first_no: int
    rows: int
    part: Part
    errors: int
    least_at: float
    greatest_at: float
    committed_at: float
    facts: bytes
    data_id: int
    block_rows: int
    block_records: int


_Header = _StoredHeader | _PartHeader
# In the place of a day: of a shared block.
_SHARED = ""


def _first_no(found: tuple[str, _Header]) -> int:
    return found[1].first_no


class _Search:
    """Goes through the blocks of a team until it has enough entries, or has looked for long enough."""

    def __init__(self, connection: Connection, wanted: LogFilter, is_late: Callable[[], bool]) -> None:
        self._connection = connection
        self._wanted = wanted
        self._is_late = is_late
        self._held: tuple[tuple[str, int] | None, bytes] = (None, b"")
        """The data that was read last: small blocks share theirs."""

    def older(self, below: int, limit: int) -> LogSlice:
        found: list[LogEntry] = []
        wanted, since = self._wanted, self._wanted.since
        for count, (day, header) in enumerate(self._headers_down(below)):
            if since is not None and header.committed_at < since - CLOCK_SLACK_SECONDS:
                return LogSlice(found, None)
            holds = self._may_hold(header) and (since is None or header.greatest_at >= since)
            if count and self._stops(count, opens=holds):
                return LogSlice(found, header.first_no + header.rows)
            if not holds:
                continue
            for entry in self._open(day, header, lambda block: block.older(wanted, below)):
                # One more than requested, to see whether there is more.
                if len(found) == limit:
                    return LogSlice(found, found[-1].seq)
                found.append(entry)
        return LogSlice(found, None)

    def newer(self, above: int, limit: int) -> tuple[list[LogEntry], int]:
        found: list[LogEntry] = []
        newest = _newest(self._connection, self._wanted.team_id)
        for count, (day, header) in enumerate(self._headers_up(above)):
            holds = self._may_hold(header)
            if count and self._stops(count, opens=holds):
                return found, header.first_no - 1
            if not holds:
                continue
            found += self._open(day, header, lambda block: block.newer(self._wanted, above))
            if len(found) >= limit:
                return found[:limit], found[limit - 1].seq
        return found, max(newest, above)

    def _may_hold(self, header: _Header) -> bool:
        until = self._wanted.until
        return may_hold(self._wanted, header.facts, header.errors) and (until is None or header.least_at < until)

    def _stops(self, count: int, *, opens: bool) -> bool:
        """Whether enough time has passed. The clock is looked at before a block is opened, and now and then."""
        return (opens or count % HEADERS_AT_ONCE == 0) and self._is_late()

    def _headers_down(self, below: int) -> Iterable[tuple[str, _Header]]:
        """Headers of blocks that have an entry below a number, the newest first."""
        shared = [(_SHARED, header) for header in reversed(self._shared()) if header.first_no < below]
        return merge(shared, self._stored_down(below), key=_first_no, reverse=True)

    def _stored_down(self, below: int) -> Iterator[tuple[str, _Header]]:
        team_id = self._wanted.team_id
        days = _days(self._connection)
        while days:
            day, *days = days
            is_empty = True
            for row in self._stream(statement(_OLDER, columns=_StoredHeader._fields, day=day), (team_id, below)):
                is_empty = False
                yield day, _StoredHeader._make(row)
            if is_empty and days:
                days = engine_of(self._connection).days_below(self._connection, days, team_id, below)

    def _shared(self) -> list[_PartHeader]:
        """Headers of the team's parts of shared blocks, the oldest first."""
        found = []
        query = "SELECT id, rows, records, errors, greatest_at, committed_at, parts FROM shared_blocks ORDER BY id"
        for data_id, rows, records, errors, greatest_at, committed_at, parts in self._stream(query, ()):
            try:
                part = part_of(self._wanted.team_id, parts)
            except ValueError as error:
                _log.error("a shared block cannot be read", id=data_id, why=str(error))
                continue
            if part is not None:
                facts = pack(Facts([part.run], None, None, None, None, None))
                found.append(
                    _PartHeader(
                        part.first_no, part.run.entries, part, errors, 0.0, greatest_at, committed_at, facts,
                        data_id, rows, records,
                    )
                )  # fmt: skip
        return found

    def _headers_up(self, above: int) -> Iterable[tuple[str, _Header]]:
        """Headers of blocks that have an entry above a number, the oldest first."""
        shared = [(_SHARED, each) for each in self._shared() if each.first_no + each.rows > above + 1]
        return merge(shared, self._stored_up(above), key=_first_no)

    def _stored_up(self, above: int) -> Iterator[tuple[str, _Header]]:
        team_id = self._wanted.team_id
        days: list[tuple[str, int]] = []
        for day in _days(self._connection):
            query = statement(
                "SELECT max(first_no) FROM blocks_{day} WHERE team_id = ? AND first_no <= ?", day=day
            )
            first = self._connection.exec_driver_sql(query, (team_id, above + 1)).scalar()
            days.append((day, above + 1 if first is None else first))
            if first is not None:
                break
        for day, first in reversed(days):
            query = statement(_NEWER, columns=_StoredHeader._fields, day=day)
            for header in map(_StoredHeader._make, self._stream(query, (team_id, first))):
                if header.first_no + header.rows > above + 1:
                    yield day, header

    def _stream(self, query: str, values: tuple[Any, ...]) -> Iterator[Any]:
        return engine_of(self._connection).stream(self._connection, query, values)

    def _open(
        self, day: str, header: _Header, read: Callable[[OpenBlock], Iterator[LogEntry] | list[LogEntry]]
    ) -> Iterator[LogEntry]:
        """Entries of a block; none of one that is damaged, which `doctor` names."""
        try:
            yield from read(self._opened(day, header))
        except (ZstdError, ValueError) as error:
            _log.error(
                "a block cannot be read", day=day, data=header.data_id, first=header.first_no, why=str(error)
            )

    def _opened(self, day: str, header: _Header) -> OpenBlock:
        data = self._data(day, header.data_id)
        if isinstance(header, _PartHeader):
            return Stored(header.block_rows, header.block_records, b"", data).opened(header.part)
        own = data[header.start : header.start + header.size]
        return OpenBlock(header.first_no, header.rows, header.records, read_facts(header.facts), own)

    def _data(self, day: str, data_id: int) -> bytes:
        if self._held[0] != (day, data_id):
            table = "shared_blocks" if day == _SHARED else f"data_{day}"
            query = statement("SELECT data FROM {table} WHERE id = ?", table=table)
            content = self._connection.exec_driver_sql(query, (data_id,)).scalar_one()
            self._held = ((day, data_id), decompress(content))
        return self._held[1]


def _newest(connection: Connection, team_id: str) -> int:
    following = connection.exec_driver_sql("SELECT next_no FROM teams WHERE id = ?", (team_id,)).scalar()
    return int(following or 1) - 1


def _days(connection: Connection) -> list[str]:
    """Days, newest first."""
    return [day for (day,) in fetched(connection.exec_driver_sql("SELECT day FROM days ORDER BY day DESC"))]
