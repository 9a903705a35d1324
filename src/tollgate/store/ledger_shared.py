"""Shared blocks in the ledger's database: what small teams add in a commit, until it is sorted into their blocks.

When there are enough commits or rows, a chore sorts the oldest into blocks of one team each, in the tables of
their day. One that is damaged stays, so that `doctor` goes on to name it, and the others are sorted without it.

Within the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec import Struct
from sqlalchemy import Connection

from tollgate import log
from tollgate.core.blocks import OpenBlock
from tollgate.core.shared_blocks import Content, SharedBlock, Stored, read_parts, sorted_out
from tollgate.core.zstandard import SHORT_LIVED, ZstdError, compress, decompress
from tollgate.store.ledger_blocks import DayBlocks
from tollgate.store.ledger_engine import engine_of

# Commits that wait to be sorted, and rows: a page of a small team looks at each.
MAX_COMMITS, MAX_ROWS = 16, 32_000
# Rows that are sorted at once, and a few more.
SLICE_ROWS = 32_000
_log = log.get("ledger")


class Waiting(Struct, frozen=True):
    """What is to be sorted."""

    commits: int
    rows: int

    def and_more(self, blocks: Sequence[SharedBlock]) -> Waiting:
        """With those of one commit more."""
        if not blocks:
            return self
        return Waiting(self.commits + 1, self.rows + sum([block.rows for block in blocks]))

    @property
    def is_enough(self) -> bool:
        """Whether it is worth while, or has to be."""
        return self.commits >= MAX_COMMITS or self.rows >= MAX_ROWS


class SharedBlocks:
    """The shared blocks of all days. `contents` are those of some, by their parts."""

    def __init__(self, connection: Connection, contents: Mapping[bytes, Content] | None = None) -> None:
        self._execute = connection.exec_driver_sql
        self._connection = connection
        self._contents = contents or {}

    def add(self, day: str, blocks: Sequence[SharedBlock], committed_at: float) -> None:
        """Write those of a commit."""
        last = self._execute("SELECT commit_no FROM shared_blocks ORDER BY id DESC LIMIT 1").scalar() or 0
        rows = [
            (
                day, last + 1, False, block.rows, block.records, block.errors, block.least_at, block.greatest_at,
                committed_at, block.parts, compress(block.content.data, SHORT_LIVED),
            )
            for block in blocks
        ]  # fmt: skip
        engine_of(self._connection).append(self._connection, "shared_blocks", _NEW_COLUMNS, rows)

    def waiting(self) -> Waiting:
        """What is to be sorted."""
        query = "SELECT count(DISTINCT commit_no), coalesce(sum(rows), 0) FROM shared_blocks WHERE NOT is_damaged"
        return Waiting(*self._execute(query).one())

    def sort_out(self, *, before: str | None = None) -> bool:
        """Sort the oldest, up to a slice of one day, where there are some (before a day); whether there were."""
        rows = self._oldest(before)
        if not rows:
            return False
        try:
            blocks = DayBlocks(self._connection, rows[0][1])
            blocks.write_open(sorted_out(map(self._sortable, rows)), level=1)
        except (ZstdError, ValueError):
            self._leave(rows)
            return True
        self._execute("DELETE FROM shared_blocks WHERE id = ?", [(row[0],) for row in rows])
        return True

    def recent(self, since: float) -> list[OpenBlock]:
        """Rows that were committed since a time, without those that are damaged."""
        query = f"SELECT {_COLUMNS} FROM shared_blocks WHERE committed_at >= ? AND NOT is_damaged"  # noqa: S608
        found = []
        for row in self._execute(query, (since,)):
            # What is damaged is named when it is sorted.
            with suppress(ZstdError, ValueError):
                block = _stored(row)
                found += [block.opened(part) for part in read_parts(block.parts).values()]
        return found

    def drop(self, before: str) -> None:
        """Delete those of days before one."""
        self._execute("DELETE FROM shared_blocks WHERE day < ?", (before,))

    def _oldest(self, before: str | None) -> list[Any]:
        query = f"SELECT {_COLUMNS} FROM shared_blocks WHERE NOT is_damaged ORDER BY id"  # noqa: S608
        found: list[Any] = []
        size = 0
        with self._execute(query) as result:
            for row in result:
                if size >= SLICE_ROWS or (found and row[1] != found[0][1]) or (before and row[1] >= before):
                    break
                found.append(row)
                size += row[2]
        return found

    def _leave(self, rows: Sequence[Any]) -> None:
        """Leave those that cannot be sorted where they are."""
        for row in rows:
            try:
                list(sorted_out([self._sortable(row)]))
            except (ZstdError, ValueError) as error:
                _log.error("a shared block is damaged", day=row[1], id=row[0], why=str(error))
                self._execute("UPDATE shared_blocks SET is_damaged = true WHERE id = ?", (row[0],))

    def _sortable(self, row: Any) -> tuple[Content, float]:
        return self._contents.get(row[5]) or _stored(row).content(), row[4]


def _stored(row: Any) -> Stored:
    _, _, rows, records, _, parts, data = row
    return Stored(rows, records, parts, decompress(data))


_COLUMNS = "id, day, rows, records, committed_at, parts, data"
_NEW_COLUMNS = (
    "day", "commit_no", "is_damaged", "rows", "records", "errors", "least_at", "greatest_at", "committed_at",
    "parts", "data",
)  # fmt: skip
