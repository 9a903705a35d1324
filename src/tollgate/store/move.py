"""Moves an installation from SQLite to PostgreSQL: all control data and the ledger, while no service runs on it.

Table by table, in pages by primary key. How far it has come is written into the target with each page, so a move
that was interrupted continues where it was. In the end both sides are counted and added up, and compared.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, MetaData, Table, create_engine, func, insert, select, tuple_
from sqlalchemy.engine import URL

from tollgate.errors import StartError
from tollgate.store import engines, ledger_tables, postgresql, tables
from tollgate.store.ledger import open_ledger
from tollgate.store.ledger_engine import engine_of
from tollgate.store.ledger_tables import BlockHeader
from tollgate.store.postgresql import CONTROL_SCHEMA, LEDGER_SCHEMA
from tollgate.store.statements import Sql, slots, statement

PAGE_ROWS = 5_000
# Pages of compressed data are large.
PAGE_DATA = 200
_PROGRESS = "move "
_NOTE = statement(
    "INSERT INTO {schema}.facts (name, value) VALUES (?, ?) "
    "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
    schema=CONTROL_SCHEMA,
)
# Changes are for workers that run. Days are made; what is appended was added up before.
_LEFT_OUT = frozenset({"changes", "facts", "days", "usage_new", "latencies_new", "nodes", "leases"})
# Last: they close what the others have to be written to.
_LAST = ("closed_months", "invoices")


class MoveFailed(StartError):
    """The installation was not moved, or not wholly."""


class Move:
    """One move."""

    def __init__(self, control: URL, target: URL, report: Callable[[str], None]) -> None:
        folder = Path(control.database or "").parent
        self._urls = control, URL.create("sqlite", database=str(folder / "ledger.db"))
        self._target_url = target
        self._report = report
        self._sources: tuple[Engine, Engine] = (create_engine(self._urls[0]), create_engine(self._urls[1]))
        self._target = postgresql.make_engine(target, f"{CONTROL_SCHEMA}, {LEDGER_SCHEMA}", pool_size=1, seconds=0)

    def close(self) -> None:
        for each in (*self._sources, self._target):
            each.dispose()

    def run(self) -> None:
        self._settle_source()
        self._begin()
        for schema, source, metadata in self._parts():
            with source.connect() as reading:
                for table in _in_order(metadata):
                    self._copy_table(reading, schema, table)
                if schema == LEDGER_SCHEMA:
                    self._copy_days(reading)
        self._set_sequences()
        self._compare()
        self._end()

    def _parts(self) -> tuple[tuple[str, Engine, MetaData], ...]:
        control, ledger = self._sources
        return (CONTROL_SCHEMA, control, tables.metadata), (LEDGER_SCHEMA, ledger, ledger_tables.metadata)

    def _settle_source(self) -> None:
        """Add up what was appended."""
        store = open_ledger(self._urls[1])
        try:
            while store.fold():
                pass
        finally:
            store.close()

    def _begin(self) -> None:
        """Continue our own move, or begin one where nothing is."""
        facts = tables.facts
        with self._target.begin() as connection:
            started = connection.execute(select(facts.c.value).where(facts.c.name == _PROGRESS)).scalar()
            used = connection.exec_driver_sql(
                statement(
                    "SELECT (SELECT count(*) FROM {schema}.facts) + (SELECT count(*) FROM {schema}.accounts) "
                    "+ (SELECT count(*) FROM {schema}.teams)",
                    schema=CONTROL_SCHEMA,
                )
            ).scalar_one()
            if started is None and used:
                raise MoveFailed(
                    "The PostgreSQL database is in use by a Tollgate already: give one that has not served yet."
                )
            if started is None:
                connection.execute(insert(facts).values(name=_PROGRESS, value="started"))
            else:
                self._report("continuing a move that was interrupted")

    def _end(self) -> None:
        """Take the notes of the move away, and write the facts of the store: from now on it can be served."""
        facts = tables.facts
        with self._sources[0].connect() as reading:
            kept = [dict(row) for row in reading.execute(select(facts)).mappings()]
        with self._target.begin() as connection:
            connection.execute(facts.delete().where(facts.c.name.startswith(_PROGRESS)))
            if kept:
                connection.execute(insert(facts), kept)

    # --- Copying -----------------------------------------------------------------------------------------------

    def _copy_table(self, reading: Connection, schema: str, table: Table) -> None:
        placed = table.to_metadata(MetaData(), schema=schema)
        keys = list(table.primary_key)

        def page(after: Sequence[Any] | None) -> tuple[list[Any], Sequence[Any]]:
            query = select(table).order_by(*keys).limit(PAGE_ROWS)
            if after is not None:
                query = query.where(tuple_(*keys) > tuple_(*(_read(each) for each in after)))
            rows = list(reading.execute(query).mappings())
            return rows, [_written(rows[-1][key.name]) for key in keys] if rows else ()

        def write(connection: Connection, rows: list[Any]) -> None:
            connection.execute(insert(placed), [dict(row) for row in rows])

        self._copy(f"{schema[9:] or 'c'}.{table.name}", page, write)

    def _copy_days(self, reading: Connection) -> None:
        for day in reading.execute(select(ledger_tables.days.c.day).order_by("day")).scalars().all():
            with self._target.begin() as connection:
                connection.exec_driver_sql(f"SET LOCAL search_path TO {LEDGER_SCHEMA}")
                engine_of(connection).make_day(connection, day)
            self._copy_rows(reading, f"data_{day}", ("id", "blocks", "data"), ("id",), PAGE_DATA)
            self._copy_rows(reading, f"blocks_{day}", BlockHeader._fields, ("team_id", "first_no"), PAGE_ROWS)

    def _copy_rows(
        self, reading: Connection, table: str, names: tuple[str, ...], keys: tuple[str, ...], count: int
    ) -> None:
        """Copy the rows of a day, as they are."""
        places = [names.index(key) for key in keys]
        where = statement("WHERE ({keys}) > ({slots})", keys=keys, slots=slots(keys))

        def page(after: Sequence[Any] | None) -> tuple[list[Any], Sequence[Any]]:
            query = statement(
                "SELECT {names} FROM {table} {where} ORDER BY {keys} LIMIT {count}",
                names=names,
                table=table,
                where=Sql() if after is None else where,
                keys=keys,
                count=count,
            )
            rows = list(reading.exec_driver_sql(query, tuple(after or ())))
            return rows, [rows[-1][place] for place in places] if rows else ()

        def write(connection: Connection, rows: list[Any]) -> None:
            engine_of(connection).append(connection, f"{LEDGER_SCHEMA}.{table}", names, rows)

        self._copy(table, page, write)

    def _copy(
        self,
        name: str,
        page: Callable[[Sequence[Any] | None], tuple[list[Any], Sequence[Any]]],
        write: Callable[[Connection, list[Any]], None],
    ) -> None:
        """Copy page by page; each page and the note of how far it goes are one transaction."""
        facts, note = tables.facts, f"{_PROGRESS}{name}"
        with self._target.connect() as connection:
            known = connection.execute(select(facts.c.value).where(facts.c.name == note)).scalar()
        after: Sequence[Any] | None = None if known is None else json.loads(known)
        count = 0
        while True:
            rows, last = page(after)
            if not rows:
                break
            with self._target.begin() as connection:
                write(connection, rows)
                connection.exec_driver_sql(_NOTE, (note, json.dumps(last)))
            after = last
            count += len(rows)
        if count:
            self._report(f"{name}: {count} rows")

    def _set_sequences(self) -> None:
        with self._target.begin() as connection:
            execute = connection.exec_driver_sql
            execute("SELECT setval('data_ids', (SELECT coalesce(max(id), 0) + 1 FROM data))")
            execute(
                "SELECT setval(pg_get_serial_sequence('shared_blocks', 'id'), "
                "(SELECT coalesce(max(id), 0) + 1 FROM shared_blocks))"
            )

    # --- Comparing ---------------------------------------------------------------------------------------------

    def _compare(self) -> None:
        wrong: list[str] = []
        for schema, source, metadata in self._parts():
            for table in _in_order(metadata):
                counts = (
                    _count(source, table),
                    _count(self._target, table.to_metadata(MetaData(), schema=schema)),
                )
                if counts[0] != counts[1]:
                    wrong.append(f"{table.name}: {counts[0]} rows here, {counts[1]} there")
        sums = []
        for url in (self._urls[1], self._target_url):
            facts = engines.open_facts(url)
            try:
                sums.append(facts.read())
            finally:
                facts.close()
        names = ("usage", "logs", "months", "source_months", "closed", "invoices", "marks", "damaged")
        here, there = sums
        wrong += [f"{name}: the sums differ" for name in names if getattr(here, name) != getattr(there, name)]
        if wrong:
            raise MoveFailed(f"The copy differs, so nothing is switched: {'; '.join(wrong)}.")
        self._report("both sides have the same counts and the same sums")


def _in_order(metadata: MetaData) -> list[Table]:
    listed = [table for table in metadata.sorted_tables if table.name not in _LEFT_OUT]
    return sorted(listed, key=lambda table: table.name in _LAST)


def _count(engine: Engine, table: Table) -> int:
    with engine.connect() as connection:
        return int(connection.execute(select(func.count()).select_from(table)).scalar_one())


def _written(value: Any) -> Any:
    """A part of a key, as it is noted."""
    return {"hex": value.hex()} if isinstance(value, bytes) else value


def _read(value: Any) -> Any:
    return bytes.fromhex(value["hex"]) if isinstance(value, dict) else value
