"""What stands in the ledger, added up in several ways, for whoever checks that they agree. Opens it to read alone.

Synchronous, and as slow as reading everything is: an operator's tool. All sums come from one moment.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Struct
from sqlalchemy import Connection, Engine, case, create_engine, func, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import StaticPool

from tollgate.core.invoices import Invoice
from tollgate.core.posting import BILLABLE, MonthKey
from tollgate.store import ledger_tables as tables
from tollgate.store.base import Mark, StoreUnavailable

BUSY_SECONDS = 10.0


class Sums(Struct, frozen=True):
    """Requests of a team in a month, those that count, and their cost."""

    requests: int
    billable: int
    cost: int

    def __add__(self, other: Sums) -> Sums:
        return Sums(self.requests + other.requests, self.billable + other.billable, self.cost + other.cost)


class Facts(Struct, frozen=True):
    """What stands in the ledger."""

    marks: dict[bytes, Mark]
    usage: dict[MonthKey, Sums]
    logs: dict[MonthKey, Sums]
    first_day: str | None
    """The first day whose log rows are kept, `20261115`; None where there are none."""
    whole: bool
    """Whether no log row was ever thrown away."""
    months: dict[MonthKey, tuple[int, int]]
    used_by_source: dict[MonthKey, int]
    source_months: dict[MonthKey, int]
    closed: frozenset[str]
    invoices: dict[MonthKey, Invoice]


class LedgerFacts:
    """Reads the ledger of a data folder."""

    def __init__(self, file: Path) -> None:
        self._engine = _read_only(file)

    def close(self) -> None:
        """Give everything back."""
        self._engine.dispose()

    def read(self) -> Facts:
        """Add everything up."""
        with self._reading() as connection:
            days = connection.execute(
                select(tables.days.c.day, tables.days.c.first_seq).order_by(tables.days.c.day)
            ).all()
            usage = tables.usage.c
            table = tables.months.c
            sources = tables.token_months.c
            return Facts(
                marks=_marks(connection),
                usage=_sums(connection, select(usage.team_id, usage.month, *_USED), "team_id"),
                logs=_logs(connection, [row.day for row in days]),
                first_day=days[0].day if days else None,
                whole=not days or days[0].first_seq == 1,
                months={
                    (row.team_id, row.month): (row.requests, row.cost)
                    for row in connection.execute(select(table.team_id, table.month, table.requests, table.cost))
                },
                used_by_source={
                    key: sums.billable
                    for key, sums in _sums(
                        connection, select(usage.source_id, usage.month, *_USED), "source_id"
                    ).items()
                    if sums.billable
                },
                source_months={
                    (row.token_id, row.month): row.requests
                    for row in connection.execute(select(sources.token_id, sources.month, sources.requests))
                },
                closed=frozenset(connection.execute(select(tables.closed_months.c.month)).scalars()),
                invoices=_invoices(connection),
            )

    def marks(self) -> dict[bytes, Mark]:
        """How far segments were read, as of now."""
        with self._reading() as connection:
            return _marks(connection)

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        try:
            with self._engine.connect() as connection:
                connection.exec_driver_sql("BEGIN")
                yield connection
                connection.rollback()
        except (SQLAlchemyError, sqlite3.Error, msgspec.MsgspecError) as error:
            cause = str(getattr(error, "orig", None) or error).splitlines()[0]
            raise StoreUnavailable(
                f"The ledger cannot be read: {cause}. Check that it is a Tollgate's ledger.db of this version; "
                "`tollgate serve` and `tollgate collect --once` bring an older one up to date."
            ) from error


def _read_only(file: Path) -> Engine:
    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"file:{quote(str(file))}?mode=ro", uri=True, timeout=BUSY_SECONDS, isolation_level=None
        )
        connection.execute("PRAGMA query_only=ON")
        return connection

    return create_engine("sqlite://", creator=connect, poolclass=StaticPool)


_usage = tables.usage.c
_USED = (
    func.sum(_usage.requests).label("requests"),
    func.coalesce(func.sum(case((_usage.outcome.in_(sorted(BILLABLE)), _usage.requests))), 0).label("billable"),
    func.sum(_usage.cost).label("cost"),
)


def _sums(connection: Connection, query: Any, name: str) -> dict[MonthKey, Sums]:
    grouped = query.group_by(_usage[name], _usage.month)
    return {
        (row._mapping[name], row.month): Sums(row.requests, row.billable, row.cost)
        for row in connection.execute(grouped)
    }


def _logs(connection: Connection, days: Sequence[str]) -> dict[MonthKey, Sums]:
    found: dict[MonthKey, Sums] = {}
    for day in days:
        log = tables.log_table(day).c
        query = select(
            log.team_id,
            log.month,
            func.sum(log.stands_for).label("requests"),
            func.coalesce(func.sum(case((log.billable, log.stands_for))), 0).label("billable"),
            func.sum(log.cost).label("cost"),
        ).group_by(log.team_id, log.month)
        for row in connection.execute(query):
            sums = Sums(row.requests, row.billable, row.cost)
            before = found.get((row.team_id, row.month))
            found[row.team_id, row.month] = sums if before is None else before + sums
    return found


def _marks(connection: Connection) -> dict[bytes, Mark]:
    table = tables.segments.c
    rows = connection.execute(select(table.id, table.offset, table.done))
    return {row.id: Mark(row.offset, row.done) for row in rows}


def _invoices(connection: Connection) -> dict[MonthKey, Invoice]:
    table = tables.invoices.c
    rows = connection.execute(select(table.team_id, table.month, table.document))
    return {(row.team_id, row.month): msgspec.json.decode(row.document, type=Invoice) for row in rows}
