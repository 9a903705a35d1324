"""The ledger's store, as the collector writes it: one transaction takes rows, usage, costs and the read offsets.

Whoever writes here holds the database from its first look on (`BEGIN IMMEDIATE`), so nothing that a batch is
posted by can change before it is committed. A segment that was read from elsewhere than where the ledger stands is
refused (`OutOfStep`): two collectors cannot count a record twice, whatever brought them together.

Synchronous: the collector is a process of its own that does nothing else. Reading is in `store/logbook.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice

from sqlalchemy import URL, ColumnElement, Connection, Engine, Table, create_engine, delete, func, select
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.schema import CreateIndex, CreateTable, DropTable

from tollgate.core.posting import MonthKey, Posting
from tollgate.errors import TollgateError
from tollgate.store import ledger_tables as tables
from tollgate.store import sqlite
from tollgate.store.base import Mark

BUSY_MILLISECONDS = 10_000
# Values that one statement may name; SQLite takes 32,766.
_MAX_NAMED = 10_000


class LedgerBehind(TollgateError):
    """Another collector has been at work on the same segments."""


def open_ledger(url: URL) -> LedgerStore:
    """Open the ledger for the collector."""
    engine = create_engine(url, hide_parameters=True)
    sqlite.set_pragmas(engine, BUSY_MILLISECONDS)
    sqlite.run_on_connect(
        engine,
        # A segment is deleted when its rows are committed: they must outlive a power cut as it would have.
        "synchronous=FULL",
        # Pages that every commit touches, those of indexes, are kept at hand and written back now and then.
        "wal_autocheckpoint=8000",
        "cache_size=-32000",
        # Many builds write zeros over what is deleted: 7 times the time, and a WAL as large as the dropped day.
        "secure_delete=FAST",
    )
    return LedgerStore(engine)


class LedgerStore:
    """What the collector writes to."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def close(self) -> None:
        """Give everything back."""
        self._engine.dispose()

    def marks(self, ids: Iterable[bytes] | None = None) -> dict[bytes, Mark]:
        """How far segments were read: these, as far as they are known, or all."""
        with self._engine.connect() as connection:
            return _marks(connection, ids)

    def closed_months(self) -> frozenset[str]:
        """Billing months that take nothing more."""
        with self._engine.connect() as connection:
            return frozenset(connection.execute(select(tables.closed_months.c.month)).scalars())

    def commit(
        self,
        marks: Mapping[bytes, Mark],
        teams: Iterable[str],
        post: Callable[[int, dict[MonthKey, int]], Posting],
        now: float,
        *,
        known: Mapping[bytes, Mark] | None = None,
    ) -> Posting:
        """Post a batch and note how far its segments were read: both, or neither.

        `known` is where its segments were read from; `OutOfStep` where the ledger stands elsewhere.
        """
        with self._writing() as connection:
            if known is not None and _marks(connection, marks) != known:
                raise LedgerBehind("Another collector works on this spool: stop one of them.")
            posting = post(_next_seq(connection), _requests(connection, set(teams)))
            if posting.rows:
                _write_rows(connection, posting, now)
                _add(connection, posting)
            rows = [
                {"id": key, "offset": mark.offset, "done": mark.done, "updated_at": now}
                for key, mark in marks.items()
            ]
            if rows:
                statement = insert(tables.segments)
                changed = {name: statement.excluded[name] for name in ("offset", "done", "updated_at")}
                connection.execute(statement.on_conflict_do_update(index_elements=["id"], set_=changed), rows)
        return posting

    def team_months(self, month: str) -> dict[str, tuple[int, int]]:
        """Billable requests and cost of every team in a month."""
        table = tables.months
        with self._engine.connect() as connection:
            rows = connection.execute(
                select(table.c.team_id, table.c.requests, table.c.cost).where(table.c.month == month)
            )
            return {row.team_id: (row.requests, row.cost) for row in rows}

    def token_months(self, month: str, ids: Iterable[str]) -> dict[str, int]:
        """Billable requests of tokens in a month."""
        table = tables.token_months
        query = select(table.c.token_id, table.c.requests).where(
            table.c.month == month, among(table.c.token_id, ids)
        )
        with self._engine.connect() as connection:
            return {row.token_id: row.requests for row in connection.execute(query)}

    def last_uses(self, seconds: float) -> dict[str, float]:
        """When tokens and domains were last used, by the rows of the seconds up to the last commit."""
        batches = tables.batches
        found: dict[str, float] = {}
        with self._engine.connect() as connection:
            newest = connection.execute(select(func.max(batches.c.committed_at))).scalar()
            if newest is None:
                return {}
            query = select(func.min(batches.c.first_seq)).where(batches.c.committed_at >= newest - seconds)
            first = connection.execute(query).scalar_one()
            for day in connection.execute(select(tables.days.c.day).order_by(tables.days.c.day.desc())).scalars():
                table = tables.log_table(day)
                uses = select(table.c.source_id, func.max(table.c.at).label("at")).where(table.c.seq >= first)
                rows = connection.execute(uses.group_by(table.c.source_id)).all()
                if not rows:
                    break
                found.update({row.source_id: max(row.at, found.get(row.source_id, 0.0)) for row in rows})
        return found

    def drop_days(self, before: str) -> list[str]:
        """Throw away the log rows that were committed before a day; return the days."""
        with self._writing() as connection:
            gone = list(
                connection.execute(
                    select(tables.days.c.day).where(tables.days.c.day < before).order_by(tables.days.c.day)
                ).scalars()
            )
            for day in gone:
                connection.execute(DropTable(tables.log_table(day), if_exists=True))
                connection.execute(delete(tables.days).where(tables.days.c.day == day))
            if gone:
                first = connection.execute(select(func.min(tables.days.c.first_seq))).scalar()
                if first is not None:
                    connection.execute(delete(tables.batches).where(tables.batches.c.next_seq <= first))
        return gone

    def forget_segments(self, before: float) -> None:
        """Forget segments that have been gone for long."""
        table = tables.segments
        with self._writing() as connection:
            connection.execute(delete(table).where(table.c.done, table.c.updated_at < before))

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        with self._engine.begin() as connection:
            # By itself, Python's driver begins a transaction only at the first change, after what was read.
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            yield connection


def _marks(connection: Connection, ids: Iterable[bytes] | None) -> dict[bytes, Mark]:
    table = tables.segments
    query = select(table.c.id, table.c.offset, table.c.done)
    queries = [query] if ids is None else [query.where(table.c.id.in_(some)) for some in _in_parts(ids)]
    return {row.id: Mark(row.offset, row.done) for each in queries for row in connection.execute(each)}


def _in_parts(ids: Iterable[bytes]) -> Iterator[list[bytes]]:
    """As many ids at once as one statement may name."""
    rest = iter(ids)
    while part := list(islice(rest, _MAX_NAMED)):
        yield part


def among(column: ColumnElement[str], names: Iterable[str]) -> ColumnElement[bool]:
    """Whether a column has one of these names, however many: they are one value of the statement."""
    each = func.json_each(json.dumps(list(names))).table_valued("value")
    return column.in_(select(each.c.value))


def _next_seq(connection: Connection) -> int:
    newest = _newest_batch(connection)
    return newest[0] if newest else 1


def _newest_batch(connection: Connection) -> tuple[int, float] | None:
    """Where the last batch ends, and when it was committed."""
    table = tables.batches
    query = select(table.c.next_seq, table.c.committed_at).order_by(table.c.first_seq.desc()).limit(1)
    row = connection.execute(query).first()
    return (row.next_seq, row.committed_at) if row else None


def _requests(connection: Connection, teams: set[str]) -> dict[MonthKey, int]:
    table = tables.months
    query = select(table.c.team_id, table.c.month, table.c.requests).where(among(table.c.team_id, teams))
    return {(row.team_id, row.month): row.requests for row in connection.execute(query)}


def _write_rows(connection: Connection, posting: Posting, now: float) -> None:
    day = datetime.fromtimestamp(now, UTC).strftime("%Y%m%d")
    first, last = posting.rows[0][0], posting.rows[-1][0]
    newest = connection.execute(select(func.max(tables.days.c.day))).scalar()
    # A clock that was set back must not put rows into an older day: pages read days in order.
    day = max(day, newest or day)
    if day != newest:
        table = tables.log_table(day)
        connection.execute(CreateTable(table, if_not_exists=True))
        for index in table.indexes:
            connection.execute(CreateIndex(index, if_not_exists=True))
        connection.execute(tables.days.insert().values(day=day, first_seq=first))
    columns = ", ".join(tables.LOG_COLUMNS)
    slots = ", ".join("?" * len(tables.LOG_COLUMNS))
    connection.exec_driver_sql(
        f"INSERT INTO log_{day} ({columns}) VALUES ({slots})",  # noqa: S608 - a day and columns of our own
        posting.rows,
    )
    # Times of commits never go back, whatever the clock does: `--since` looks for its first row by them.
    before = _newest_batch(connection)
    committed_at = max(now, before[1]) if before else now
    connection.execute(
        tables.batches.insert().values(first_seq=first, committed_at=committed_at, next_seq=last + 1)
    )


def _adding(table: Table) -> str:
    """The statement that adds to the sums of a table, or begins them."""
    names = [column.name for column in table.columns]
    keys = [column.name for column in table.primary_key]
    sums = ", ".join(f"{name} = {name} + excluded.{name}" for name in names if name not in keys)
    slots = ", ".join("?" * len(names))
    return (
        f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({slots}) "  # noqa: S608 - names of our own
        f"ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {sums}"
    )


_ADD_USAGE, _ADD_MONTHS, _ADD_TOKENS = map(_adding, (tables.usage, tables.months, tables.token_months))


def _add(connection: Connection, posting: Posting) -> None:
    # Past the expression language, as rows are: there may be a line for every record.
    for statement, values in (
        (_ADD_USAGE, [(*key, *sums) for key, sums in posting.usage.items()]),
        (_ADD_MONTHS, [(*key, *sums) for key, sums in posting.months.items() if sums[0]]),
        (_ADD_TOKENS, [(*key, requests) for key, requests in posting.tokens.items()]),
    ):
        if values:
            connection.exec_driver_sql(statement, values)
