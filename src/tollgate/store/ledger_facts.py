"""The ledger's sums, computed in several ways, for checks that they agree. Opens it read-only.

Synchronous, and as slow as reading everything is: an operator's tool. All sums come from one moment.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Struct
from sqlalchemy import Connection, Engine, create_engine, func, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import StaticPool

from tollgate.core import entries
from tollgate.core.blocks import OpenBlock, read_facts
from tollgate.core.clock import Clock
from tollgate.core.entries import BILLABLE
from tollgate.core.invoices import Invoice
from tollgate.core.posting import MonthKey
from tollgate.core.shared_blocks import Stored, read_parts
from tollgate.core.zstandard import ZstdError, decompress
from tollgate.store import ledger_tables as tables
from tollgate.store.base import Mark, StoreUnavailable, cause_of
from tollgate.store.ledger_usage import USAGE_SUMS
from tollgate.store.statements import statement

BUSY_SECONDS = 10.0


class Sums(Struct, frozen=True):
    """Requests of a team in a month, those that count, and their cost."""

    requests: int
    billable: int
    cost: int


class LedgerState(Struct, frozen=True):
    """All sums of the ledger."""

    marks: dict[bytes, Mark]
    usage: dict[MonthKey, Sums]
    logs: dict[MonthKey, Sums]
    dropped_before: str | None
    """The day before which logs were dropped, `20261115`; None where none were."""
    damaged: list[str]
    """Blocks and records that cannot be read, each with its place and what is wrong."""
    clock: Clock
    months: dict[MonthKey, tuple[int, int]]
    used_by_source: dict[MonthKey, int]
    source_months: dict[MonthKey, int]
    closed: frozenset[str]
    invoices: dict[MonthKey, Invoice]


class LedgerFacts:
    """Reads the ledger."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def close(self) -> None:
        self._engine.dispose()

    def read(self) -> LedgerState:
        with self._reading() as connection:
            usage = tables.usage_all.c
            state = connection.execute(select(tables.state)).first()
            damaged: list[str] = []
            table = tables.months.c
            sources = tables.source_months_all.c
            return LedgerState(
                marks=_marks(connection),
                usage=_sums(connection, select(usage.team_id, usage.month, *USAGE_SUMS), "team_id"),
                logs=_logs(connection, damaged),
                dropped_before=None if state is None else state.dropped_before,
                damaged=damaged,
                clock=Clock() if state is None else Clock(state.seen_at, state.doubted_at),
                months={
                    (row.team_id, row.month): (row.requests, row.cost)
                    for row in connection.execute(select(table.team_id, table.month, table.requests, table.cost))
                },
                used_by_source={
                    key: sums.billable
                    for key, sums in _sums(
                        connection, select(usage.source_id, usage.month, *USAGE_SUMS), "source_id"
                    ).items()
                    if sums.billable
                },
                source_months={
                    (row.source_id, row.month): int(row.requests)
                    for row in connection.execute(
                        select(
                            sources.source_id, sources.month, func.sum(sources.requests).label("requests")
                        ).group_by(sources.source_id, sources.month)
                    )
                },
                closed=frozenset(connection.execute(select(tables.closed_months.c.month)).scalars()),
                invoices=_invoices(connection),
            )

    def marks(self) -> dict[bytes, Mark]:
        with self._reading() as connection:
            return _marks(connection)

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        try:
            with self._engine.connect() as connection:
                if connection.dialect.name == "sqlite":
                    connection.exec_driver_sql("BEGIN")
                yield connection
        except (SQLAlchemyError, sqlite3.Error, msgspec.MsgspecError) as error:
            raise StoreUnavailable(
                f"The ledger cannot be read: {cause_of(error)}. Check that it is a Tollgate's ledger of this "
                "version; `tollgate serve` and `tollgate collect --once` bring an older one up to date."
            ) from error


def read_only(file: Path) -> Engine:
    """Open a ledger's file to read alone."""

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(
            f"file:{quote(str(file))}?mode=ro", uri=True, timeout=BUSY_SECONDS, isolation_level=None
        )

    return create_engine("sqlite://", creator=connect, poolclass=StaticPool)


_usage = tables.usage_all.c


def _sums(connection: Connection, query: Any, name: str) -> dict[MonthKey, Sums]:
    grouped = query.group_by(_usage[name], _usage.month)
    return {
        (row._mapping[name], row.month): Sums(row.requests, row.billable, row.cost)
        for row in connection.execute(grouped)
    }


def _logs(connection: Connection, damaged: list[str]) -> dict[MonthKey, Sums]:
    found: dict[MonthKey, list[int]] = {}
    for day in connection.execute(select(tables.days.c.day).order_by(tables.days.c.day)).scalars().all():
        query = statement(
            "SELECT team_id, first_no, rows, records, facts, start, size, data_id, data "
            "FROM blocks_{day} JOIN data_{day} ON id = data_id ORDER BY data_id",
            day=day,
        )
        held: tuple[int, bytes] = (0, b"")
        for row in connection.execution_options(stream_results=True).exec_driver_sql(query):
            team_id, first_no, rows, records, facts, start, size, data_id, content = row
            try:
                if held[0] != data_id:
                    held = (data_id, decompress(content))
                data = held[1][start : start + size]
                block = OpenBlock(first_no, rows, records, read_facts(facts), data)
            except (ZstdError, ValueError) as error:
                damaged.append(f"day {day}, {team_id}, rows {first_no} to {first_no + rows - 1}: {error}")
                continue
            _add_block(f"day {day}, {team_id}", block, found, damaged)
    _add_shared(connection, found, damaged)
    return {key: Sums(*sums) for key, sums in found.items()}


def _add_shared(connection: Connection, found: dict[MonthKey, list[int]], damaged: list[str]) -> None:
    """What small teams have added since it was last sorted into blocks."""
    query = "SELECT id, day, rows, records, parts, data FROM shared_blocks ORDER BY id"
    for key, day, rows, records, parts, content in connection.execution_options(
        stream_results=True
    ).exec_driver_sql(query):
        try:
            listed = read_parts(parts)
        except ValueError as error:
            damaged.append(f"day {day}, shared block {key}: {error}")
            continue
        data: bytes | ZstdError
        try:
            data = decompress(content)
        except ZstdError as error:
            data = error
        for team_id, part in listed.items():
            place = f"day {day}, {team_id}"
            try:
                if isinstance(data, ZstdError):
                    raise data
                block = Stored(rows, records, parts, data).opened(part)
            except (ZstdError, ValueError) as error:
                damaged.append(f"{place}, rows {part.first_no} to {part.first_no + part.run.entries - 1}: {error}")
                continue
            _add_block(place, block, found, damaged)


def _add_block(place: str, block: OpenBlock, found: dict[MonthKey, list[int]], damaged: list[str]) -> None:
    for first_no, payload in block.records():
        try:
            entries.decode(payload)
        except ValueError as error:
            damaged.append(f"{place}, row {first_no}: {str(error).splitlines()[0]}")
        try:
            subject = entries.read_subject(entries.read_counted(payload).subject)
        except ValueError:
            continue
        for no, (_, outcome) in enumerate(subject.calls, first_no):
            billable = outcome in BILLABLE
            cost, month = block.price(no, subject.stands_for, is_billable=billable)
            sums = found.setdefault((subject.team_id, month), [0, 0, 0])
            sums[0] += subject.stands_for
            sums[1] += subject.stands_for if billable else 0
            sums[2] += cost


def _marks(connection: Connection) -> dict[bytes, Mark]:
    table = tables.segments.c
    rows = connection.execute(select(table.id, table.offset, table.done))
    return {row.id: Mark(row.offset, row.done) for row in rows}


def _invoices(connection: Connection) -> dict[MonthKey, Invoice]:
    table = tables.invoices.c
    rows = connection.execute(select(table.team_id, table.month, table.document))
    return {(row.team_id, row.month): msgspec.json.decode(row.document, type=Invoice) for row in rows}
