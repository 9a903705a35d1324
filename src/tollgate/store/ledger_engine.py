"""What the ledger does in each database's own way; everything else is the same statements for both.

SQLite gives one writer the whole file: nothing else is to be locked. PostgreSQL lets several collectors commit at
once: each locks the segments and the teams of its commit, in order, and shares a lock that the closing of a month
takes for itself; chores are done by one at a time. There, rows are written by COPY, days are partitions, and a day
is dropped as a whole.

Within the caller's transaction.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    CursorResult,
    Float,
    Integer,
    LargeBinary,
    String,
    Table,
)
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.expression import FunctionElement

from tollgate.lazy_module import LazyModule
from tollgate.store import postgresql
from tollgate.store.ledger_tables import FINAL
from tollgate.store.postgresql import BYTES, NUMBERS, TEXTS, TIMES, Array
from tollgate.store.statements import Sql, slots, statement

if TYPE_CHECKING:
    import psycopg
else:
    psycopg = LazyModule("psycopg")

# Rows that are fetched at once where not all may be needed.
HEADERS_AT_ONCE = 64
# Days that one statement looks at; SQLite takes at most 500 parts.
DAYS_AT_ONCE = 100
_IS_BELOW = "SELECT '{day}' WHERE EXISTS (SELECT 1 FROM blocks_{day} WHERE team_id = ? AND first_no < ?)"
_INSERT = "INSERT INTO {table} ({names}) VALUES ({slots}) {conflict}"
_COPY = "COPY {table} ({names}) FROM STDIN (FORMAT BINARY)"
# Deleted at once, of a day that was dropped.
SLICE_DATA, SLICE_HEADERS = 100, 10_000
# In PostgreSQL these are partitions of tables that the migration makes.
_DAY_TABLES = (
    """
    CREATE TABLE blocks_{day} (
        team_id VARCHAR(32) NOT NULL, first_no BIGINT NOT NULL, rows INTEGER NOT NULL, records INTEGER NOT NULL,
        errors INTEGER NOT NULL, level INTEGER NOT NULL, generation BIGINT NOT NULL, least_at FLOAT NOT NULL,
        greatest_at FLOAT NOT NULL, committed_at FLOAT NOT NULL, facts BLOB NOT NULL, data_id BIGINT NOT NULL,
        start BIGINT NOT NULL, size BIGINT NOT NULL, PRIMARY KEY (team_id, first_no)
    ) WITHOUT ROWID
    """,
    "CREATE INDEX ix_blocks_{day}_open ON blocks_{day} (level, team_id, first_no) WHERE level < {final}",
    "CREATE TABLE data_{day} (id INTEGER PRIMARY KEY, blocks INTEGER NOT NULL, data BLOB NOT NULL)",
)
_DAY_PARTITIONS = (
    """
    CREATE TABLE blocks_{day} PARTITION OF blocks (day DEFAULT '{day}', PRIMARY KEY (team_id, first_no))
    FOR VALUES IN ('{day}')
    """,
    "CREATE TABLE data_{day} PARTITION OF data (day DEFAULT '{day}', PRIMARY KEY (id)) FOR VALUES IN ('{day}')",
    "CREATE INDEX ON blocks_{day} (level, team_id, first_no) WHERE level < {final}",
    # Compressed already.
    "ALTER TABLE data_{day} ALTER COLUMN data SET STORAGE EXTERNAL",
)


class LedgerEngine(Protocol):
    """What differs."""

    named: Sql
    """A query for the names in a JSON array."""

    def begin(self, connection: Connection) -> None:
        """Begin a transaction that writes."""

    def begin_commit(
        self, connection: Connection, segments: Iterable[bytes], teams: str, payers: Iterable[str]
    ) -> dict[str, int]:
        """Lock what a commit is about: segments, teams, named as a JSON array, and payers.

        Return the next numbers of the teams.
        """

    def begin_chore(self, connection: Connection) -> bool:
        """Whether this transaction may do chores."""

    def begin_leasing(self, connection: Connection) -> None:
        """Lock all leases of calls."""

    def begin_closing(self, connection: Connection) -> None:
        """Lock all months: no collector adds to one until the transaction ends."""

    def make_day(self, connection: Connection, day: str) -> None:
        """Make the tables of a day, where it has none."""

    def sweep_day(self, connection: Connection) -> bool:
        """Delete a slice of what belongs to no day; whether there was something."""

    def data_ids(self, connection: Connection, day: str, count: int) -> Sequence[int]:
        """Numbers for new data of a day, ascending, above all that were given."""

    def data(self, connection: Connection, day: str, ids: Sequence[int]) -> dict[int, bytes]: ...

    def release(self, connection: Connection, day: str, counts: Mapping[int, int]) -> None:
        """Take so many blocks from data of a day; delete what no block points to any more."""

    def append(
        self, connection: Connection, table: str, names: tuple[str, ...], rows: Sequence[Sequence[Any]]
    ) -> None:
        """Write new rows."""

    def upsert(self, connection: Connection, table: Table, conflict: Sql, rows: Sequence[Sequence[Any]]) -> None:
        """Write rows, with what is to be done where there is one already."""

    def remove(self, connection: Connection, table: str, keys: Sequence[tuple[str, int]]) -> None:
        """Delete the headers of blocks, by team and first number."""

    def days_below(self, connection: Connection, days: list[str], team_id: str, below: int) -> list[str]:
        """Days, newest first, from the first one on that has a block of a team below a number."""

    def stream(
        self, connection: Connection, query: str, values: tuple[Any, ...] = ()
    ) -> Generator[Any, None, None]:
        """Rows as they are needed."""


def fetched(result: CursorResult[Any]) -> Sequence[Any]:
    """All rows as the driver gives them: there may be thousands in each commit."""
    return result.cursor.fetchall()


def engine_of(connection: Connection) -> LedgerEngine:
    """What differs for the database of a connection."""
    return _ENGINES[connection.dialect.name]


def _make_day(connection: Connection, day: str, templates: Iterable[str]) -> None:
    execute = connection.exec_driver_sql
    if execute("SELECT 1 FROM days WHERE day = ?", (day,)).first() is None:
        for template in templates:
            execute(statement(template, day=day, final=FINAL))
        execute("INSERT INTO days VALUES (?)", (day,))


class Sqlite:
    """One writer, a table a day."""

    named = Sql("SELECT value FROM json_each(?)")

    def begin(self, connection: Connection) -> None:
        # By itself, Python's driver begins a transaction only at the first change, after what was read.
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    def begin_commit(
        self,
        connection: Connection,
        segments: Iterable[bytes],  # noqa: ARG002 - the only writer
        teams: str,
        payers: Iterable[str],  # noqa: ARG002 - the only writer
    ) -> dict[str, int]:
        query = "SELECT teams.id, next_no FROM json_each(?) AS listed CROSS JOIN teams ON teams.id = listed.value"
        return dict(fetched(connection.exec_driver_sql(query, (teams,))))

    def begin_chore(self, connection: Connection) -> bool:  # noqa: ARG002 - the only writer
        return True

    def begin_leasing(self, connection: Connection) -> None:
        """Nothing to lock: there is no other writer."""

    def begin_closing(self, connection: Connection) -> None:
        """Nothing to lock: there is no other writer."""

    def make_day(self, connection: Connection, day: str) -> None:
        _make_day(connection, day, _DAY_TABLES)

    def sweep_day(self, connection: Connection) -> bool:
        """Slice by slice: one statement for the whole table reads all of it, and nothing is collected then."""
        execute = connection.exec_driver_sql
        name = execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name GLOB 'data_[0-9]*' "
            "AND substr(name, 6) NOT IN (SELECT day FROM days) LIMIT 1"
        ).scalar()
        if name is None:
            return False
        day = name.removeprefix("data_")
        delete = "DELETE FROM data_{day} WHERE id IN (SELECT id FROM data_{day} LIMIT {count})"
        if execute(statement(delete, day=day, count=SLICE_DATA)).rowcount == SLICE_DATA:
            return True
        query = "SELECT team_id, first_no FROM blocks_{day} ORDER BY team_id, first_no LIMIT 1 OFFSET {count}"
        following = execute(statement(query, day=day, count=SLICE_HEADERS)).first()
        if following is not None:
            delete = "DELETE FROM blocks_{day} WHERE (team_id, first_no) < (?, ?)"
            execute(statement(delete, day=day), tuple(following))
            return True
        for table in ("blocks", "data"):
            execute(statement("DROP TABLE {table}_{day}", table=table, day=day))
        return True

    def data_ids(self, connection: Connection, day: str, count: int) -> Sequence[int]:
        newest = connection.exec_driver_sql(statement("SELECT max(id) FROM data_{day}", day=day)).scalar() or 0
        return range(newest + 1, newest + 1 + count)

    def data(self, connection: Connection, day: str, ids: Sequence[int]) -> dict[int, bytes]:
        query = statement("SELECT data FROM data_{day} WHERE id = ?", day=day)
        return {each: connection.exec_driver_sql(query, (each,)).scalar_one() for each in ids}

    def release(self, connection: Connection, day: str, counts: Mapping[int, int]) -> None:
        less = statement("UPDATE data_{day} SET blocks = blocks - ? WHERE id = ?", day=day)
        gone = statement("DELETE FROM data_{day} WHERE id = ? AND blocks <= 0", day=day)
        connection.exec_driver_sql(less, [(count, each) for each, count in counts.items()])
        connection.exec_driver_sql(gone, [(each,) for each in counts])

    def append(
        self, connection: Connection, table: str, names: tuple[str, ...], rows: Sequence[Sequence[Any]]
    ) -> None:
        connection.exec_driver_sql(
            statement(_INSERT, table=table, names=names, slots=slots(names), conflict=Sql()),
            list(map(tuple, rows)),
        )

    def upsert(self, connection: Connection, table: Table, conflict: Sql, rows: Sequence[Sequence[Any]]) -> None:
        names = tuple(column.name for column in table.columns)
        connection.exec_driver_sql(
            statement(_INSERT, table=table.name, names=names, slots=slots(names), conflict=conflict),
            list(map(tuple, rows)),
        )

    def remove(self, connection: Connection, table: str, keys: Sequence[tuple[str, int]]) -> None:
        delete = statement("DELETE FROM {table} WHERE team_id = ? AND first_no = ?", table=table)
        connection.exec_driver_sql(delete, list(keys))

    def days_below(self, connection: Connection, days: list[str], team_id: str, below: int) -> list[str]:
        """In few statements: one for each day takes as long as reading the page."""
        for start in range(0, len(days), DAYS_AT_ONCE):
            some = days[start : start + DAYS_AT_ONCE]
            query = " UNION ALL ".join([statement(_IS_BELOW, day=day) for day in some]) + " LIMIT 1"
            newest = connection.exec_driver_sql(query, (team_id, below) * len(some)).scalar()
            if newest is not None:
                return days[days.index(newest) :]
        return []

    def stream(
        self, connection: Connection, query: str, values: tuple[Any, ...] = ()
    ) -> Generator[Any, None, None]:
        """Past the library's own way, which would read all of them first."""
        cursor = connection.connection.cursor()
        try:
            cursor.execute(query, values)
            while some := cursor.fetchmany(HEADERS_AT_ONCE):
                yield from some
        finally:
            cursor.close()


class Postgresql:
    """Several writers, a partition a day."""

    named = Sql("SELECT json_array_elements_text(?::json)")

    def begin(self, connection: Connection) -> None:
        """Nothing to do: the engine begins transactions."""

    def begin_commit(
        self, connection: Connection, segments: Iterable[bytes], teams: str, payers: Iterable[str]
    ) -> dict[str, int]:
        """Lock in the order that all transactions use: open months, segments, teams, payers."""
        postgresql.lock(connection, postgresql.LOCK_MONTHS, shared=True)
        execute = connection.exec_driver_sql
        if ids := sorted(segments):
            execute(
                "SELECT pg_advisory_xact_lock(hashtextextended(encode(id, 'hex'), 1)) "
                "FROM (SELECT id FROM unnest(?::bytea[]) AS id ORDER BY id) AS listed",
                (ids,),
            )
        insert = "INSERT INTO teams SELECT id, 1 FROM ({named}) AS listed (id) ORDER BY id ON CONFLICT DO NOTHING"
        query = "SELECT id, next_no FROM teams WHERE id IN ({named}) ORDER BY id FOR UPDATE"
        execute(statement(insert, named=self.named), (teams,))
        numbers = dict(fetched(execute(statement(query, named=self.named), (teams,))))
        if named := sorted(payers):
            execute(
                "SELECT pg_advisory_xact_lock(hashtextextended(payer, 2)) "
                "FROM (SELECT payer FROM unnest(?::text[]) AS payer ORDER BY payer) AS listed",
                (named,),
            )
        return numbers

    def begin_chore(self, connection: Connection) -> bool:
        # What a chore adds up must not be in a month that is being closed.
        if not postgresql.try_lock(connection, postgresql.LOCK_CHORES):
            return False
        # A chore that a crash takes back is done again: it need not wait for the disk.
        connection.exec_driver_sql("SET LOCAL synchronous_commit TO off")
        postgresql.lock(connection, postgresql.LOCK_MONTHS, shared=True)
        return True

    def begin_leasing(self, connection: Connection) -> None:
        postgresql.lock(connection, postgresql.LOCK_LEASES)

    def begin_closing(self, connection: Connection) -> None:
        postgresql.lock(connection, postgresql.LOCK_MONTHS)

    def make_day(self, connection: Connection, day: str) -> None:
        postgresql.lock(connection, postgresql.LOCK_DAYS)
        _make_day(connection, day, _DAY_PARTITIONS)

    def sweep_day(self, connection: Connection) -> bool:
        """A partition is dropped at once, whatever its size."""
        execute = connection.exec_driver_sql
        execute(f"SET LOCAL lock_timeout TO {LOCK_MILLISECONDS}")
        # The list of partitions is current, that of days as of the statement's start: a day that is created in
        # between would be taken for one that was dropped.
        postgresql.lock(connection, postgresql.LOCK_DAYS)
        name = execute(
            "SELECT relid::regclass::text FROM pg_partition_tree('data') WHERE isleaf "
            "AND right(relid::regclass::text, 8) NOT IN (SELECT day FROM days) LIMIT 1"
        ).scalar()
        if name is None:
            return False
        execute(statement("DROP TABLE blocks_{day}, data_{day}", day=name.rpartition("_")[2]))
        return True

    def data_ids(self, connection: Connection, day: str, count: int) -> Sequence[int]:  # noqa: ARG002 - of all days
        query = "SELECT nextval('data_ids') FROM generate_series(1, ?)"
        return [row[0] for row in connection.exec_driver_sql(query, (count,))]

    def data(self, connection: Connection, day: str, ids: Sequence[int]) -> dict[int, bytes]:
        query = statement("SELECT id, data FROM data_{day} WHERE id = ANY({ids})", day=day, ids=NUMBERS.sql)
        return dict(fetched(connection.exec_driver_sql(query, (NUMBERS.text(ids),))))

    def release(self, connection: Connection, day: str, counts: Mapping[int, int]) -> None:
        ids = NUMBERS.text(counts)
        less = (
            "UPDATE data_{day} SET blocks = blocks - fewer.count "
            "FROM unnest({numbers}, {numbers}) AS fewer (id, count) WHERE data_{day}.id = fewer.id"
        )
        gone = "DELETE FROM data_{day} WHERE id = ANY({numbers}) AND blocks <= 0"
        execute = connection.exec_driver_sql
        execute(statement(less, day=day, numbers=NUMBERS.sql), (ids, NUMBERS.text(counts.values())))
        execute(statement(gone, day=day, numbers=NUMBERS.sql), (ids,))

    def append(
        self, connection: Connection, table: str, names: tuple[str, ...], rows: Sequence[Sequence[Any]]
    ) -> None:
        if not rows:
            return
        kinds = [_kind(name, value) for name, value in zip(names, rows[0], strict=True)]
        cursor = connection.connection.cursor()
        try:
            with cursor.copy(statement(_COPY, table=table, names=names)) as copy:
                copy.set_types(kinds)
                for row in rows:
                    copy.write_row(row)
        except psycopg.Error as error:
            # As the library would have wrapped it, which knows no COPY.
            raise OperationalError("COPY", None, error) from error
        finally:
            cursor.close()

    def upsert(self, connection: Connection, table: Table, conflict: Sql, rows: Sequence[Sequence[Any]]) -> None:
        """In one statement, with a column of all rows as one value."""
        kinds = [_ARRAYS[type(column.type)] for column in table.columns]
        upsert = statement(
            "INSERT INTO {table} ({names}) SELECT * FROM unnest({arrays}) {conflict}",
            table=table.name,
            names=tuple(column.name for column in table.columns),
            arrays=tuple(kind.sql for kind in kinds),
            conflict=conflict,
        )
        values = tuple(kind.text(column) for kind, column in zip(kinds, zip(*rows, strict=True), strict=True))
        connection.exec_driver_sql(upsert, values)

    def remove(self, connection: Connection, table: str, keys: Sequence[tuple[str, int]]) -> None:
        delete = statement(
            "DELETE FROM {table} USING unnest({teams}, {numbers}) AS gone (team, number) "
            "WHERE team_id = gone.team AND first_no = gone.number",
            table=table,
            teams=TEXTS.sql,
            numbers=NUMBERS.sql,
        )
        teams, numbers = zip(*keys, strict=True)
        connection.exec_driver_sql(delete, (TEXTS.text(teams), NUMBERS.text(numbers)))

    def days_below(self, connection: Connection, days: list[str], team_id: str, below: int) -> list[str]:
        """In one statement: to look at each takes a millisecond."""
        query = "SELECT day FROM blocks WHERE team_id = ? AND first_no < ? ORDER BY first_no DESC LIMIT 1"
        newest = connection.exec_driver_sql(query, (team_id, below)).scalar()
        return [] if newest is None else [day for day in days if day <= newest]

    def stream(
        self, connection: Connection, query: str, values: tuple[Any, ...] = ()
    ) -> Generator[Any, None, None]:
        options = {"stream_results": True, "max_row_buffer": HEADERS_AT_ONCE}
        with connection.exec_driver_sql(query, values, execution_options=options) as rows:
            yield from rows


# How long the dropping of a day waits for those who still read it; it is tried again.
LOCK_MILLISECONDS = 1_000
_ENGINES: dict[str, LedgerEngine] = {"sqlite": Sqlite(), "postgresql": Postgresql()}
_ARRAYS: dict[type[Any], Array] = {
    Float: TIMES,
    String: TEXTS,
    Integer: NUMBERS._replace(sql=Sql("?::int4[]")),
    BigInteger: NUMBERS,
    LargeBinary: BYTES,
}
_INT4 = frozenset({"rows", "records", "errors", "level", "blocks", "hour"})


def _kind(name: str, value: Any) -> str:
    """The type of a column, by its name and a value."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int4" if name in _INT4 else "int8"
    return {float: "float8", bytes: "bytea", str: "text"}[type(value)]


class _Names(FunctionElement[str]):
    """The names in a JSON array."""

    inherit_cache = True


@compiles(_Names, "sqlite")
def _names_in_sqlite(element: Any, compiler: Any, **options: Any) -> str:
    return f"({Sqlite.named.replace('?', compiler.process(element.clauses, **options))})"


@compiles(_Names, "postgresql")
def _names_in_postgresql(element: Any, compiler: Any, **options: Any) -> str:
    return f"(SELECT json_array_elements_text(CAST({compiler.process(element.clauses, **options)} AS json)))"


def among(column: ColumnElement[str], names: Iterable[str]) -> ColumnElement[bool]:
    """Whether a column has one of these names, however many: they are one value of the statement."""
    found: ColumnElement[bool] = column.op("IN", is_comparison=True)(_Names(json.dumps(list(names))))
    return found
