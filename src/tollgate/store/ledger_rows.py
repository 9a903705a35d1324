"""Rows of the ledger's first version, a table of rows for each day, and how they become blocks.

Converted by the collector in slices, the newest first, while new blocks are written and pages are read. A slice is
one transaction, and how far it went is part of it. A row becomes a record with one call; its month and its cost
are kept as they were decided. Teams' rows are numbered downwards from where their new ones began.

Within the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection

from tollgate.core.blocks import FULL_ROWS, Facts, RowBlock, Run, words, written
from tollgate.core.entries import encode, pack
from tollgate.store.ledger_blocks import DayBlocks, Days

SLICE_ROWS = 8_192
SECONDS_OF_DAY = 86_400.0
# Deleted at once, of a day that was dropped before it was converted.
SLICE_DELETED = 20_000
_COLUMNS = (
    "seq", "at", "request_id", "team_id", "source_id", "source_name", "address", "agent", "origin", "network",
    "method", "status", "outcome", "code", "request_bytes", "response_bytes", "duration_micros", "upstream",
    "attempts", "cache", "cost", "month", "stands_for",
)  # fmt: skip


class OldRows:
    """What is left of the first version."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._execute = connection.exec_driver_sql

    def convert(self) -> bool:
        """Convert the newest slice; whether there may be more."""
        left = self._execute("SELECT day, below_seq FROM row_days ORDER BY day DESC LIMIT 1").first()
        if left is None:
            return False
        day, below = left
        rows = self._execute(
            f"SELECT {', '.join(_COLUMNS)} FROM log_{day} WHERE seq < ? ORDER BY seq DESC LIMIT {SLICE_ROWS}",  # noqa: S608
            (below,),
        ).all()
        if not rows:
            # Its table is deleted by `sweep`.
            self._execute("DELETE FROM row_days WHERE day = ?", (day,))
            return True
        self._write(day, rows)
        self._execute("UPDATE row_days SET below_seq = ? WHERE day = ?", (rows[-1].seq, day))
        return True

    def drop(self, before: str) -> list[str]:
        """Take days before one away; `sweep` deletes them."""
        gone = [row[0] for row in self._execute("SELECT day FROM row_days WHERE day < ?", (before,))]
        self._execute("DELETE FROM row_days WHERE day < ?", (before,))
        return gone

    def sweep(self) -> bool:
        """Delete a slice of rows that were converted or dropped; whether there may be more."""
        if self._connection.dialect.name != "sqlite":
            return False  # it never had any
        name = self._execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name GLOB 'log_[0-9]*' "
            "AND substr(name, 5) NOT IN (SELECT day FROM row_days) LIMIT 1"
        ).scalar()
        if name is None:
            return False
        removed = self._execute(
            f"DELETE FROM {name} WHERE seq IN (SELECT seq FROM {name} LIMIT {SLICE_DELETED})"  # noqa: S608
        )
        if removed.rowcount < SLICE_DELETED:
            self._execute(f"DROP TABLE {name}")
        return True

    def _write(self, day: str, rows: Sequence[Any]) -> None:
        """Make blocks of rows, which come newest first, below what their teams have."""
        by_team: dict[str, list[Any]] = {}
        for row in rows:
            by_team.setdefault(row.team_id, []).append(row)
        blocks = []
        for team_id, newest_first in by_team.items():
            oldest = self._execute("SELECT oldest_no FROM teams WHERE id = ?", (team_id,)).scalar_one()
            for start in range(0, len(newest_first), FULL_ROWS):
                some = newest_first[start : start + FULL_ROWS][::-1]
                oldest -= len(some)
                blocks.append(_block(team_id, oldest, some))
            self._execute("UPDATE teams SET oldest_no = ? WHERE id = ?", (oldest, team_id))
        Days(self._connection).make(day)
        # As of the end of its day: when a row was committed is not known any more.
        DayBlocks(self._connection, day).add(blocks, _end_of(day))


def _end_of(day: str) -> float:
    return datetime.strptime(day, "%Y%m%d").replace(tzinfo=UTC).timestamp() + SECONDS_OF_DAY


def _block(team_id: str, first_no: int, rows: Sequence[Any]) -> RowBlock:
    runs: list[Run] = []
    for row in rows:
        if not runs or runs[-1].month != row.month:
            runs.append(Run(0, row.month, []))
        run = runs[-1]
        run.rows += 1
        if isinstance(run.costs, list):
            run.costs.append(row.cost)
    facts = Facts(
        runs,
        words(row.source_id for row in rows),
        words(row.network for row in rows),
        words(row.method for row in rows),
        words(row.status for row in rows),
        words(row.outcome for row in rows),
    )
    return RowBlock(
        team_id,
        first_no,
        len(rows),
        len(rows),
        sum(row.outcome != "ok" for row in rows),
        min(row.at for row in rows),
        max(row.at for row in rows),
        pack(facts),
        written([_record(row) for row in rows], None),
    )


def _record(row: Any) -> bytes:
    call = (row.method, row.outcome, row.code, row.response_bytes)
    return encode(
        (
            row.at, row.team_id, row.source_id, row.network, row.source_name, row.status, row.stands_for, None,
            None, [call], row.duration_micros, row.request_bytes, row.request_id.encode(), row.upstream,
            row.attempts, row.cache, row.address, row.agent.encode(), row.origin.encode(),
        )
    )  # fmt: skip
