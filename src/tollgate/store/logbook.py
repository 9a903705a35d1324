"""Reading the ledger: pages of logs. For the control plane; never writes.

Rows are read in the order of their commit, through the index of a team or of a token or domain, day by day; so a
page costs the same at any depth. Other filters look at the rows that this gives, at most `MAX_LOOKED_AT` of them
for one page. A page is read in one transaction, so that no day is thrown away under it, and in one go by a thread:
a token that is seldom used asks every day, and each hop to a thread and back would cost more than the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import TypeVar

from sqlalchemy import ColumnElement, Connection, Engine, Table, bindparam, func, select
from sqlalchemy.exc import SQLAlchemyError

from tollgate.core.logs import LogFilter, LogRow, LogSlice
from tollgate.store import ledger_tables as tables
from tollgate.store.base import StoreUnavailable

DEADLINE_SECONDS = 10.0
THREADS = 4
MAX_LOOKED_AT = 50_000
# Most pages are full after this many.
FIRST_LOOK = 1_000
# A row is committed after its own time, so `since` need not look at what was committed before. The clock may have
# been set back in between, by this much at most.
CLOCK_SLACK_SECONDS = 10.0

Found = TypeVar("Found")


class SqlLogBook:
    """What the ledger says."""

    def __init__(
        self, engine: Engine, *, first_look: int = FIRST_LOOK, max_looked_at: int = MAX_LOOKED_AT
    ) -> None:
        self._engine = engine
        self._looks = (first_look, max_looked_at)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="logbook")

    async def close(self) -> None:
        """Close all connections."""
        # Not on the loop: what is being read is read to its end, which is bounded.
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)
        self._engine.dispose()

    async def newest(self) -> int:
        """The newest row that is committed; 0 before the first."""
        return await self._read(_newest)

    async def older(self, wanted: LogFilter, below: int, limit: int) -> LogSlice:
        """Rows that fit, newest first, from below a row on."""
        return await self._read(partial(_older, wanted=wanted, below=below, limit=limit, looks=self._looks))

    async def newer(self, wanted: LogFilter, above: int, limit: int) -> tuple[list[LogRow], int]:
        """Rows that fit, oldest first, from above a row on, and the row above which to go on."""
        return await self._read(partial(_newer, wanted=wanted, above=above, limit=limit, looks=self._looks))

    async def _read(self, work: Callable[[Connection], Found]) -> Found:
        """Read in a thread, as everything stood at one moment. The one border of the database's exceptions."""

        def whole() -> Found:
            with self._engine.connect() as connection:
                return work(connection)

        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                return await asyncio.get_running_loop().run_in_executor(self._threads, whole)
        except (SQLAlchemyError, OSError) as error:
            raise StoreUnavailable(f"{type(error).__name__}: the ledger cannot be read") from error


def _older(
    connection: Connection, *, wanted: LogFilter, below: int, limit: int, looks: tuple[int, int]
) -> LogSlice:
    least = 0 if wanted.since is None else _first_since(connection, wanted.since)
    # One more than is wanted tells whether there is more.
    search = _Search(connection, wanted, limit + 1, looks, upwards=False)
    for day, first in _days(connection, below):
        search.day(day, max(least, first), below)
        if search.is_over or first <= least:
            break
    rows = search.rows[:limit]
    if len(search.rows) > limit:
        return LogSlice(rows, rows[-1].seq)
    return LogSlice(rows, search.last if search.is_over else None)


def _newer(
    connection: Connection, *, wanted: LogFilter, above: int, limit: int, looks: tuple[int, int]
) -> tuple[list[LogRow], int]:
    newest = _newest(connection)
    search = _Search(connection, wanted, limit, looks, upwards=True)
    for day in _days_above(connection, above, newest):
        search.day(day, above + 1, newest + 1)
        if search.is_over:
            break
    if len(search.rows) >= limit:
        return search.rows, search.rows[-1].seq
    return search.rows, search.last if search.is_over else max(newest, above)


class _Queries:
    """What is asked of one day for one kind of filter. Made once: making a query costs more than its answer."""

    def __init__(self, day: str, column: str, kinds: tuple[str, ...], *, upwards: bool) -> None:
        table = tables.log_table(day)
        seq = table.c.seq
        order = seq if upwards else seq.desc()
        indexed = table.c[column] == bindparam(column)
        span = (indexed, seq >= bindparam("least"), seq < bindparam("below"))
        self.owner = select(table.c.team_id).where(indexed).limit(1)
        looked = select(seq).where(*span).order_by(order).limit(bindparam("window")).subquery()
        far = func.max(looked.c.seq) if upwards else func.min(looked.c.seq)
        self.looked = select(func.count(), far).select_from(looked)
        others = (_OTHERS[kind](table) for kind in kinds)
        self.rows = select(table).where(*span, *others).order_by(order).limit(bindparam("limit"))


# Conditions that no index answers.
_OTHERS: dict[str, Callable[[Table], ColumnElement[bool]]] = {
    "since": lambda table: table.c.at >= bindparam("since"),
    "network": lambda table: table.c.network == bindparam("network"),
    "method": lambda table: table.c.method == bindparam("method"),
    "status": lambda table: table.c.status == bindparam("status"),
    "errors": lambda table: table.c.outcome != "ok",
}

_queries = lru_cache(maxsize=500)(_Queries)


class _Search:
    """Goes through days in one direction until it has enough rows, or has looked at enough."""

    def __init__(
        self, connection: Connection, wanted: LogFilter, limit: int, looks: tuple[int, int], *, upwards: bool
    ) -> None:
        self._connection = connection
        self._wanted = wanted
        self._limit = limit
        self._first_look, self._left = looks
        self._upwards = upwards
        self._column = "team_id" if wanted.source_id is None else "source_id"
        self._kinds = tuple(kind for kind in _OTHERS if getattr(wanted, kind) not in (None, False))
        names = (self._column, *(kind for kind in self._kinds if kind != "errors"))
        self._values = {name: getattr(wanted, name) for name in names}
        self._owner = wanted.team_id if wanted.source_id is None else ""
        """Whose rows these are, once that is known."""
        self.rows: list[LogRow] = []
        self.last = 0
        """The last row that was looked at."""

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to be looked at."""
        return len(self.rows) >= self._limit or self._left <= 0

    def day(self, day: str, least: int, below: int) -> None:
        """Look through a day, at the rows of this span."""
        queries = _queries(day, self._column, self._kinds, upwards=self._upwards)
        if not self._is_ours(queries):
            return
        if self._kinds:
            self._look(queries, least, below)
        else:
            self.rows += self._fitting(queries, least, below)

    def _is_ours(self, queries: _Queries) -> bool:
        """Whether a token or domain is the team's, told by any of its rows: it never belongs to two.

        As a condition of each row the team would lead through all rows of a stranger, or away from the index.
        """
        if not self._owner:
            self._owner = self._connection.scalar(queries.owner, self._values) or ""
        return self._owner == self._wanted.team_id

    def _look(self, queries: _Queries, least: int, below: int) -> None:
        """Look at a first few rows of a day, and at as many as we may only where those were not enough."""
        window = min(self._first_look, self._left)
        while True:
            values = {**self._values, "least": least, "below": below, "window": window}
            count, last = self._connection.execute(queries.looked, values).one()
            if not count:
                return
            span = (least, last + 1) if self._upwards else (last, below)
            rows = self._fitting(queries, *span)
            if len(self.rows) + len(rows) >= self._limit or count < window or window == self._left:
                break
            window = self._left
        self.rows += rows
        self.last = int(last)
        self._left -= int(count)

    def _fitting(self, queries: _Queries, least: int, below: int) -> list[LogRow]:
        values = {**self._values, "least": least, "below": below, "limit": self._limit - len(self.rows)}
        return [LogRow(*row) for row in self._connection.execute(queries.rows, values)]


def _newest(connection: Connection) -> int:
    table = tables.batches
    # The last batch by its key: the largest `next_seq` would be looked for in all of them.
    following = connection.scalar(select(table.c.next_seq).order_by(table.c.first_seq.desc()).limit(1))
    return int(following or 1) - 1


def _first_since(connection: Connection, at: float) -> int:
    """A row before which none has this time or a later one."""
    table = tables.batches
    committed_at = table.c.committed_at
    earliest = connection.scalar(select(func.min(committed_at)).where(committed_at >= at - CLOCK_SLACK_SECONDS))
    if earliest is None:
        return _newest(connection) + 1
    # The first by its place need not be the first by its time, but it is near.
    near = committed_at.between(earliest, earliest + CLOCK_SLACK_SECONDS)
    return int(connection.scalar(select(func.min(table.c.first_seq)).where(near)) or 0)


def _days(connection: Connection, below: int) -> Sequence[tuple[str, int]]:
    """Days with rows below a row, newest first, each with its first row."""
    table = tables.days
    query = select(table.c.day, table.c.first_seq).where(table.c.first_seq < below).order_by(table.c.day.desc())
    return [(row.day, row.first_seq) for row in connection.execute(query)]


def _days_above(connection: Connection, above: int, newest: int) -> Sequence[str]:
    """Days with rows above a row, oldest first."""
    found = []
    for day, first in _days(connection, newest + 1):
        found.append(day)
        if first <= above + 1:
            break
    return found[::-1]
