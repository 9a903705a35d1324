"""Blocks in the ledger's database: written by each commit, joined later, dropped by the day.

A block with many rows has compressed data of its own. Small ones, which come from shared blocks
(`store/ledger_shared.py`), share theirs and are open, at level 1. When a level has open blocks of `FAN`
generations, they are joined team by team into blocks of the next level, until they are large enough to be final;
when a day is over, whatever is open becomes final. Joining is done in slices, each a transaction of its own,
between which collecting goes on. Nothing of it changes a row or its number. A damaged block is not joined.

Works within the caller's transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from msgspec import Struct
from sqlalchemy import Connection

from tollgate import log
from tollgate.core.blocks import ENOUGH_ROWS, OpenBlock, RowBlock, groups, joined, read_facts
from tollgate.core.shared_blocks import SHARED_ROWS
from tollgate.core.zstandard import ZstdError, compress, decompress
from tollgate.store.ledger_engine import checked, engine_of
from tollgate.store.ledger_tables import BLOCK_COLUMNS, FINAL

FAN = 8
# One slice of work.
SLICE_BLOCKS, SLICE_ROWS = 4_000, 20_000
FIRST = ("", 0)
_log = log.get("ledger")


class Joining(Struct, frozen=True):
    """Where the joining of a level stands."""

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
        """The day that rows are written to; made where it is new.

        A clock that was set back must not put rows into an older day: pages read days in order.
        """
        if newest is not None and day <= newest:
            return newest
        self.make(day)
        return day

    def make(self, day: str) -> None:
        """Make the tables of a day, where it has none."""
        engine_of(self._connection).make_day(self._connection, checked(day))

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
        self._day = checked(day)
        self._columns = ", ".join(BLOCK_COLUMNS)

    def add(self, blocks: Iterable[RowBlock], committed_at: float) -> None:
        """Write blocks that stay as they are."""
        self.write_open(((block, committed_at) for block in blocks), FINAL)

    def generations(self) -> dict[int, int]:
        """How many generations of open blocks each level has."""
        query = (
            f"SELECT level, count(DISTINCT generation) FROM blocks_{self._day} "  # noqa: S608 - a day of our own
            f"WHERE level < {FINAL} GROUP BY level"
        )
        return {row[0]: row[1] for row in self._connection.exec_driver_sql(query)}

    def newest_generation(self) -> int:
        return int(self._connection.exec_driver_sql(f"SELECT max(id) FROM data_{self._day}").scalar() or 0)  # noqa: S608

    def join(self, joining: Joining) -> Joining | None:
        """Join a slice of the open blocks of a level; where to go on, None at the end."""
        level = joining.level
        query = (
            f"SELECT {self._columns} FROM blocks_{self._day} "  # noqa: S608 - names of our own
            f"WHERE level = ? AND level < {FINAL} AND (team_id, first_no) > (?, ?) "
            f"ORDER BY team_id, first_no LIMIT {SLICE_BLOCKS}"
        )
        rows, last = self._slice(query, (level, *joining.after))
        self._rewrite([row for row in rows if row[6] <= joining.generation], min(level + 1, FINAL))
        return None if last is None else Joining(level, joining.generation, last)

    def settle(self, after: tuple[str, int] = FIRST) -> tuple[str, int] | None:
        """Make a slice of what is open final, when the day is over; where to go on, None at the end."""
        query = (
            f"SELECT {self._columns} FROM blocks_{self._day} "  # noqa: S608 - names of our own
            f"WHERE (team_id, first_no) > (?, ?) AND level < {FINAL} "
            f"ORDER BY team_id, first_no LIMIT {SLICE_BLOCKS}"
        )
        rows, last = self._slice(query, after)
        self._rewrite(rows, FINAL)
        return last

    def recent(self, since: float) -> list[OpenBlock]:
        """Blocks that were committed since a time."""
        query = f"SELECT {self._columns} FROM blocks_{self._day} WHERE committed_at >= ?"  # noqa: S608 - names of our own
        rows = self._connection.exec_driver_sql(query, (since,)).all()
        data = self._data({row[11] for row in rows})
        blocks = [_block(row, data[row[11]]) for row in rows if row[11] in data]
        return [
            OpenBlock(each.first_no, each.rows, each.records, read_facts(each.facts), each.data) for each in blocks
        ]

    def is_empty(self) -> bool:
        return self._connection.exec_driver_sql(f"SELECT 1 FROM blocks_{self._day} LIMIT 1").first() is None  # noqa: S608

    def has_open(self) -> bool:
        """Whether some block is not final."""
        query = f"SELECT 1 FROM blocks_{self._day} WHERE level < {FINAL} LIMIT 1"  # noqa: S608 - a day of our own
        return self._connection.exec_driver_sql(query).first() is not None

    def _slice(self, query: str, values: tuple[Any, ...]) -> tuple[list[Any], tuple[str, int] | None]:
        """Headers for one slice of work, and the last of them where there may be more."""
        rows, size = [], 0
        with closing(engine_of(self._connection).stream(self._connection, query, values)) as found:
            for row in found:
                rows.append(row)
                size += row[2]
                if size >= SLICE_ROWS:
                    break
        is_all = size < SLICE_ROWS and len(rows) < SLICE_BLOCKS
        return rows, None if is_all else (rows[-1][0], rows[-1][1])

    def _rewrite(self, headers: Sequence[Any], level: int) -> None:
        """Put joined blocks in the place of these, which are in the order of teams and numbers."""
        data = self._data({row[11] for row in headers})
        sound = [row for row in headers if row[11] in data]
        damaged = [row for row in headers if row[11] not in data]
        if damaged:
            self._connection.exec_driver_sql(
                f"UPDATE blocks_{self._day} SET level = {FINAL} WHERE team_id = ? AND first_no = ?",  # noqa: S608
                [(row[0], row[1]) for row in damaged],
            )
        if sound:
            self._remove(sound)
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

    def _remove(self, headers: Sequence[Any]) -> None:
        engine, connection, day = engine_of(self._connection), self._connection, self._day
        engine.remove(connection, f"blocks_{day}", [(row[0], row[1]) for row in headers])
        engine.release(connection, day, Counter([row[11] for row in headers]))

    def write_open(self, blocks: Iterable[tuple[RowBlock, float]], level: int) -> None:
        """Write blocks with their times of commit: large ones with data of their own, small ones together."""
        headers: list[list[Any]] = []
        stored: list[tuple[int, bytes]] = []
        for place, (group, is_final) in enumerate(_shelves(blocks)):
            start = 0
            for block, committed_at in group:
                headers.append(
                    [
                        block.team_id, block.first_no, block.rows, block.records, block.errors,
                        FINAL if is_final else level, 0, block.least_at, block.greatest_at, committed_at,
                        block.facts, place, start, len(block.data),
                    ]
                )  # fmt: skip
                start += len(block.data)
            stored.append((len(group), compress(b"".join([block.data for block, _ in group]))))
        if not headers:
            return
        engine, connection = engine_of(self._connection), self._connection
        ids = engine.data_ids(connection, self._day, len(stored))
        for header in headers:
            header[6], header[11] = ids[0], ids[header[11]]
        rows = [(data_id, *rest) for data_id, rest in zip(ids, stored, strict=True)]
        engine.append(connection, f"data_{self._day}", ("id", "blocks", "data"), rows)
        engine.append(connection, f"blocks_{self._day}", BLOCK_COLUMNS, headers)


def _joined(headers: Sequence[Any], data: Mapping[int, bytes]) -> Iterator[tuple[RowBlock, float]]:
    """Joined blocks of these, which are in the order of teams and numbers."""
    by_team: dict[str, list[Any]] = {}
    for row in headers:
        by_team.setdefault(row[0], []).append(row)
    for rows in by_team.values():
        committed = {row[1]: row[9] for row in rows}
        for group in groups([_block(row, data[row[11]]) for row in rows], ENOUGH_ROWS):
            yield joined(group), max(committed[part.first_no] for part in group)


def _shelves(blocks: Iterable[tuple[RowBlock, float]]) -> Iterator[tuple[list[tuple[RowBlock, float]], bool]]:
    """Blocks as they are stored together, and whether they are large enough to stay as they are."""
    shelf: list[tuple[RowBlock, float]] = []
    rows = 0
    for block, committed_at in blocks:
        if block.rows >= ENOUGH_ROWS:
            yield [(block, committed_at)], True
            continue
        shelf.append((block, committed_at))
        rows += block.rows
        if rows >= SHARED_ROWS:
            yield shelf, False
            shelf, rows = [], 0
    if shelf:
        yield shelf, False


def _block(row: Any, data: bytes) -> RowBlock:
    team_id, first_no, rows, records, errors, _, _, least_at, greatest_at, _, facts, _, start, size = row
    return RowBlock(
        team_id, first_no, rows, records, errors, least_at, greatest_at, facts, data[start : start + size]
    )
