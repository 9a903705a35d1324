"""Blocks in the ledger's database: written by each commit, joined later, dropped by the day.

A block with many log entries has compressed data of its own. Small ones, which come from shared blocks
(`store/ledger_shared.py`), share theirs and are open, at level 1. When a level has open blocks of `FAN`
generations, they are joined team by team into blocks of the next level, until they are large enough to be final;
when a day is over, whatever is open becomes final. Joining is done in slices, each a transaction of its own,
between which collecting continues. Nothing of it changes an entry or its number. A damaged block is not joined.

Works within the caller's transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import groupby
from operator import attrgetter
from typing import Any

from msgspec import Struct
from sqlalchemy import Connection, CursorResult

from tollgate import log
from tollgate.core.blocks import ENOUGH_ENTRIES, LogBlock, OpenBlock, groups, joined, read_facts
from tollgate.core.shared_blocks import SHARED_ENTRIES
from tollgate.core.zstandard import ZstdError, compress, decompress
from tollgate.store.ledger_engine import engine_of, fetched
from tollgate.store.ledger_tables import FINAL, BlockHeader
from tollgate.store.statements import Sql, statement

FAN = 8
# One slice of work.
SLICE_BLOCKS, SLICE_ENTRIES = 4_000, 20_000
FIRST = ("", 0)
_log = log.get("ledger")


class Joining(Struct, frozen=True):
    """How far the joining of a level is."""

    level: int
    generation: int
    """The newest that is part of it."""
    after: tuple[str, int] = FIRST
    """The team and number of the last block that was looked at."""


class Days:
    """The days that have blocks."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def listed(self) -> list[str]:
        """Days, oldest first."""
        return [row[0] for row in self._connection.exec_driver_sql("SELECT day FROM days ORDER BY day")]

    def newest(self) -> str | None:
        return self._connection.exec_driver_sql("SELECT max(day) FROM days").scalar()

    def at(self, day: str, newest: str | None) -> str:
        """The day that entries are written to; made where it is new.

        A clock that was set back must not put entries into an older day: pages read days in order.
        """
        if newest is not None and day <= newest:
            return newest
        engine_of(self._connection).make_day(self._connection, day)
        return day

    def drop(self, before: str) -> list[str]:
        """Take the days before one away from all readers, at once; `sweep` gives their room back."""
        gone = [day for day in self.listed() if day < before]
        self._connection.exec_driver_sql("DELETE FROM days WHERE day < ?", (before,))
        return gone

    def sweep(self) -> bool:
        """Delete a slice of what belongs to no day; whether there may be more."""
        return engine_of(self._connection).sweep_day(self._connection)


class DayBlocks:
    """The blocks of one day."""

    def __init__(self, connection: Connection, day: str) -> None:
        self._connection = connection
        self._day = day

    def add(self, blocks: Iterable[LogBlock], committed_at: float) -> None:
        """Write blocks that stay as they are."""
        self.write_open(((block, committed_at) for block in blocks), FINAL)

    def generations(self) -> dict[int, int]:
        """How many generations of open blocks each level has."""
        query = "SELECT level, count(DISTINCT generation) FROM blocks_{day} WHERE level < {final} GROUP BY level"
        return dict(fetched(self._execute(query)))

    def newest_generation(self) -> int:
        return int(self._execute("SELECT max(id) FROM data_{day}").scalar() or 0)

    def join(self, joining: Joining) -> Joining | None:
        """Join a slice of the open blocks of a level; where to continue, None at the end."""
        level = joining.level
        headers, last = self._slice(Sql("level = ? AND"), (level, *joining.after))
        self._rewrite([each for each in headers if each.generation <= joining.generation], min(level + 1, FINAL))
        return None if last is None else Joining(level, joining.generation, last)

    def settle(self, after: tuple[str, int] = FIRST) -> tuple[str, int] | None:
        """Make a slice of what is open final, when the day is over; where to continue, None at the end."""
        headers, last = self._slice(Sql(), after)
        self._rewrite(headers, FINAL)
        return last

    def recent(self, since: float) -> list[OpenBlock]:
        """Blocks that were committed since a time."""
        query = "SELECT {columns} FROM blocks_{day} WHERE committed_at >= ?"
        headers = [BlockHeader._make(row) for row in self._execute(query, (since,))]
        data = self._data({header.data_id for header in headers})
        blocks = [_block(header, data[header.data_id]) for header in headers if header.data_id in data]
        return [
            OpenBlock(each.first_no, each.entries, each.records, read_facts(each.facts), each.data)
            for each in blocks
        ]

    def is_empty(self) -> bool:
        return self._execute("SELECT 1 FROM blocks_{day} LIMIT 1").first() is None

    def has_open(self) -> bool:
        """Whether some block is not final."""
        return self._execute("SELECT 1 FROM blocks_{day} WHERE level < {final} LIMIT 1").first() is not None

    def _execute(self, query: str, values: Any = ()) -> CursorResult[Any]:
        return self._connection.exec_driver_sql(self._statement(query), values)

    def _statement(self, template: str, **parts: Sql) -> str:
        return statement(template, day=self._day, final=FINAL, columns=BlockHeader._fields, **parts)

    def _slice(self, condition: Sql, values: tuple[Any, ...]) -> tuple[list[BlockHeader], tuple[str, int] | None]:
        """Headers of open blocks for one slice of work, and the last of them where there may be more.

        They meet a condition, and follow a team and number, which are the last two values.
        """
        query = self._statement(
            "SELECT {columns} FROM blocks_{day} WHERE {condition} level < {final} "
            "AND (team_id, first_no) > (?, ?) ORDER BY team_id, first_no LIMIT {count}",
            condition=condition,
            count=Sql(SLICE_BLOCKS),
        )
        headers: list[BlockHeader] = []
        entries = 0
        with closing(engine_of(self._connection).stream(self._connection, query, values)) as found:
            for header in map(BlockHeader._make, found):
                headers.append(header)
                entries += header.rows
                if entries >= SLICE_ENTRIES:
                    break
        is_all = entries < SLICE_ENTRIES and len(headers) < SLICE_BLOCKS
        return headers, None if is_all else (headers[-1].team_id, headers[-1].first_no)

    def _rewrite(self, headers: Sequence[BlockHeader], level: int) -> None:
        """Replace these by joined blocks. They are in the order of teams and numbers."""
        data = self._data({header.data_id for header in headers})
        sound = [header for header in headers if header.data_id in data]
        damaged = [header for header in headers if header.data_id not in data]
        if damaged:
            self._execute(
                "UPDATE blocks_{day} SET level = {final} WHERE team_id = ? AND first_no = ?",
                [(header.team_id, header.first_no) for header in damaged],
            )
        if sound:
            engine, connection, day = engine_of(self._connection), self._connection, self._day
            engine.remove(connection, f"blocks_{day}", [(header.team_id, header.first_no) for header in sound])
            engine.release(connection, day, Counter([header.data_id for header in sound]))
            self.write_open(_joined(sound, data), level)

    def _data(self, ids: Iterable[int]) -> dict[int, bytes]:
        """Data by id, without what is damaged."""
        found = {}
        stored = engine_of(self._connection).data(self._connection, self._day, sorted(ids))
        for each, content in stored.items():
            try:
                found[each] = decompress(content)
            except ZstdError as error:
                _log.error("data of blocks is damaged", day=self._day, data=each, why=str(error))
        return found

    def write_open(self, blocks: Iterable[tuple[LogBlock, float]], level: int) -> None:
        """Write blocks with their times of commit: large ones with data of their own, small ones together."""
        stored = list(_stored_together(blocks))
        if not stored:
            return
        engine, connection = engine_of(self._connection), self._connection
        ids = engine.data_ids(connection, self._day, len(stored))
        headers: list[BlockHeader] = []
        data: list[tuple[int, int, bytes]] = []
        for data_id, (group, is_final) in zip(ids, stored, strict=True):
            start = 0
            for block, committed_at in group:
                headers.append(
                    BlockHeader(
                        block.team_id, block.first_no, block.entries, block.records, block.errors,
                        FINAL if is_final else level, ids[0], block.least_at, block.greatest_at, committed_at,
                        block.facts, data_id, start, len(block.data),
                    )
                )  # fmt: skip
                start += len(block.data)
            data.append((data_id, len(group), compress(b"".join([block.data for block, _ in group]))))
        engine.append(connection, f"data_{self._day}", ("id", "blocks", "data"), data)
        engine.append(connection, f"blocks_{self._day}", BlockHeader._fields, headers)


def _joined(headers: Sequence[BlockHeader], data: Mapping[int, bytes]) -> Iterator[tuple[LogBlock, float]]:
    """Joined blocks of these, which are in the order of teams and numbers."""
    for _, its in groupby(headers, attrgetter("team_id")):
        of_team = list(its)
        committed = {header.first_no: header.committed_at for header in of_team}
        blocks = [_block(header, data[header.data_id]) for header in of_team]
        for group in groups(blocks, lambda block: (block.first_no, block.entries)):
            yield joined(group), max(committed[part.first_no] for part in group)


def _stored_together(
    blocks: Iterable[tuple[LogBlock, float]],
) -> Iterator[tuple[list[tuple[LogBlock, float]], bool]]:
    """Blocks that share their data, and whether they are large enough to be final."""
    group: list[tuple[LogBlock, float]] = []
    entries = 0
    for block, committed_at in blocks:
        if block.entries >= ENOUGH_ENTRIES:
            yield [(block, committed_at)], True
            continue
        group.append((block, committed_at))
        entries += block.entries
        if entries >= SHARED_ENTRIES:
            yield group, False
            group, entries = [], 0
    if group:
        yield group, False


def _block(header: BlockHeader, data: bytes) -> LogBlock:
    return LogBlock(
        header.team_id,
        header.first_no,
        header.rows,
        header.records,
        header.errors,
        header.least_at,
        header.greatest_at,
        header.facts,
        data[header.start : header.start + header.size],
    )
