"""Shared blocks in the ledger's database: what small teams add in a commit, until it is sorted into their blocks.

When there are enough commits or log entries, a chore sorts the oldest into blocks of one team each, in the tables
of their day. One that is damaged stays, so that `doctor` still names it, and the others are sorted without it.

Within the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from msgspec import Struct
from sqlalchemy import Connection

from tollgate import log
from tollgate.core.blocks import OpenBlock
from tollgate.core.shared_blocks import Content, SharedBlock, Stored, read_parts, sorted_out
from tollgate.core.zstandard import SHORT_LIVED, ZstdError, compress, decompress
from tollgate.store.ledger_blocks import DayBlocks
from tollgate.store.ledger_engine import engine_of
from tollgate.store.statements import statement

# Commits that wait to be sorted, and log entries: a page of a small team looks at each.
MAX_COMMITS, MAX_ENTRIES = 16, 32_000
# Entries that are sorted at once, and a few more.
SLICE_ENTRIES = 32_000
_log = log.get("ledger")


class Waiting(Struct, frozen=True):
    """What is to be sorted."""

    commits: int
    entries: int

    def and_more(self, blocks: Sequence[SharedBlock]) -> Waiting:
        """With those of one commit more."""
        if not blocks:
            return self
        return Waiting(self.commits + 1, self.entries + sum([block.entries for block in blocks]))

    @property
    def is_enough(self) -> bool:
        """Whether it is worth while, or has to be."""
        return self.commits >= MAX_COMMITS or self.entries >= MAX_ENTRIES


class _Header(NamedTuple):
    """What is read of a row of `shared_blocks`."""

    id: int
    day: str
    rows: int
    records: int
    committed_at: float
    parts: bytes
    data: bytes


class SharedBlocks:
    """The shared blocks of all days. `contents` are those of some, by their parts."""

    def __init__(self, connection: Connection, contents: Mapping[bytes, Content] | None = None) -> None:
        self._execute = connection.exec_driver_sql
        self._connection = connection
        self._contents = contents or {}

    def add(self, day: str, blocks: Sequence[SharedBlock], committed_at: float) -> None:
        last = self._execute("SELECT commit_no FROM shared_blocks ORDER BY id DESC LIMIT 1").scalar() or 0
        rows = [
            (
                day, last + 1, False, block.entries, block.records, block.errors, block.least_at,
                block.greatest_at, committed_at, block.parts, compress(block.content.data, SHORT_LIVED),
            )
            for block in blocks
        ]  # fmt: skip
        engine_of(self._connection).append(self._connection, "shared_blocks", _NEW_COLUMNS, rows)

    def waiting(self) -> Waiting:
        query = "SELECT count(DISTINCT commit_no), coalesce(sum(rows), 0) FROM shared_blocks WHERE NOT is_damaged"
        return Waiting(*self._execute(query).one())

    def sort_out(self, *, before: str | None = None) -> bool:
        """Sort the oldest, up to a slice of one day, where there are some (before a day); whether there were."""
        headers = self._oldest(before)
        if not headers:
            return False
        try:
            blocks = DayBlocks(self._connection, headers[0].day)
            blocks.write_open(sorted_out(map(self._sortable, headers)), level=1)
        except (ZstdError, ValueError):
            self._mark_damaged(headers)
            return True
        self._execute("DELETE FROM shared_blocks WHERE id = ?", [(header.id,) for header in headers])
        return True

    def recent(self, since: float) -> list[OpenBlock]:
        """Entries that were committed since a time, without those that are damaged."""
        query = statement(
            "SELECT {columns} FROM shared_blocks WHERE committed_at >= ? AND NOT is_damaged",
            columns=_Header._fields,
        )
        found = []
        for header in map(_Header._make, self._execute(query, (since,))):
            # Damage is logged when the block is sorted.
            with suppress(ZstdError, ValueError):
                block = _stored(header)
                found += [block.opened(part) for part in read_parts(block.parts).values()]
        return found

    def drop(self, before: str) -> None:
        self._execute("DELETE FROM shared_blocks WHERE day < ?", (before,))

    def _oldest(self, before: str | None) -> list[_Header]:
        query = statement(
            "SELECT {columns} FROM shared_blocks WHERE NOT is_damaged ORDER BY id", columns=_Header._fields
        )
        found: list[_Header] = []
        entries = 0
        with self._execute(query) as result:
            for header in map(_Header._make, result):
                if (
                    entries >= SLICE_ENTRIES
                    or (found and header.day != found[0].day)
                    or (before and header.day >= before)
                ):
                    break
                found.append(header)
                entries += header.rows
        return found

    def _mark_damaged(self, headers: Sequence[_Header]) -> None:
        """Mark those that cannot be sorted; they stay where they are."""
        for header in headers:
            try:
                list(sorted_out([self._sortable(header)]))
            except (ZstdError, ValueError) as error:
                _log.error("a shared block is damaged", day=header.day, id=header.id, why=str(error))
                self._execute("UPDATE shared_blocks SET is_damaged = true WHERE id = ?", (header.id,))

    def _sortable(self, header: _Header) -> tuple[Content, float]:
        return self._contents.get(header.parts) or _stored(header).content(), header.committed_at


def _stored(header: _Header) -> Stored:
    return Stored(header.rows, header.records, header.parts, decompress(header.data))


_NEW_COLUMNS = (
    "day", "commit_no", "is_damaged", "rows", "records", "errors", "least_at", "greatest_at", "committed_at",
    "parts", "data",
)  # fmt: skip
