"""The backends that pass the contract. A new one is a class with these methods, and one line below."""

import functools
import shutil
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Protocol

import pytest
from _pytest.mark import ParameterSet
from tests.store.migrated import make_control

from parts.postgres import cluster, pooler
from tollgate.store import postgresql, sqlite, upgrade
from tollgate.store.base import ControlStore, Directory


class Store(Directory, ControlStore, Protocol):
    """What every backend is."""


class Backend(Protocol):
    """One installation of a backend, empty and migrated."""

    def open(self) -> Store:
        """Connect, as a worker does."""

    def by_hand(self, statement: str) -> None:
        """Run SQL past all our code, as an operator might."""

    def add_column(self, table: str, column: str) -> None:
        """Change the schema, as a later version would."""

    def blob(self, content: bytes) -> str:
        """Bytes, as a literal of such a statement."""

    def break_down(self, how: str) -> None:
        """Become unusable for new connections."""

    def close(self) -> None:
        """End this installation."""


class Sqlite:
    """A file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "sqlite"
        self._folder.mkdir()
        self._url = sqlite.store_url("", self._folder)
        make_control(self._folder)

    def open(self) -> Store:
        return sqlite.open_store(self._url)

    def by_hand(self, statement: str) -> None:
        with closing(sqlite3.connect(self._folder / "control.db")) as connection:
            connection.execute("PRAGMA foreign_keys=ON")
            connection.execute(statement)
            connection.commit()

    def add_column(self, table: str, column: str) -> None:
        self.by_hand(f"ALTER TABLE {table} ADD COLUMN {column}")

    def blob(self, content: bytes) -> str:
        return f"x'{content.hex()}'"

    def close(self) -> None:
        """Its folder goes with the test."""

    def break_down(self, how: str) -> None:
        shutil.rmtree(self._folder)
        if how == "garbage":
            self._folder.mkdir()
            (self._folder / "control.db").write_bytes(b"this is no database\n" * 1_000)
        elif how == "empty":
            self._folder.mkdir()


@functools.cache
def _template() -> str:
    """A migrated database of the shared server, of which others are copies."""
    server = cluster()
    name = server.make()
    upgrade.migrate(postgresql.checked(server.url(name)))
    return name


@functools.cache
def _emptying() -> str:
    """The statements that make a migrated database empty again: copying the template takes far longer."""
    schema = postgresql.CONTROL_SCHEMA
    tables = cluster().execute(
        f"SELECT tablename FROM pg_tables WHERE schemaname = '{schema}' AND tablename != 'alembic_version'",
        _template(),
    )
    sequences = cluster().execute(
        f"SELECT sequencename FROM pg_sequences WHERE schemaname = '{schema}'", _template()
    )
    return "; ".join([
        f"SET search_path TO {schema}",
        "SET lock_timeout TO '10s'",
        "SET session_replication_role TO replica",  # without triggers
        *(f"DELETE FROM {name}" for (name,) in tables),
        *(f"ALTER SEQUENCE {name} RESTART" for (name,) in sequences),
    ])  # fmt: skip


_empty: list[str] = []


class Postgresql:
    """A database of the shared server, which the next test gets emptied unless this one broke it."""

    def __init__(self, _folder: Path) -> None:
        self._server = cluster()
        self._database = _empty.pop() if _empty else self._server.make(_template())
        self._broken = False
        self._url = postgresql.checked(self._server.url(self._database))

    def open(self) -> Store:
        return postgresql.open_store(self._url)

    def by_hand(self, statement: str) -> None:
        self._server.execute(f"SET search_path TO {postgresql.CONTROL_SCHEMA}; {statement}", self._database)

    def add_column(self, table: str, column: str) -> None:
        self._broken = True
        self.by_hand(f"ALTER TABLE {table} ADD COLUMN {column}")

    def blob(self, content: bytes) -> str:
        return f"'\\x{content.hex()}'"

    def break_down(self, how: str) -> None:
        self._broken = True
        if how == "garbage":
            for table in ("teams", "changes", "failures"):
                self.by_hand(f"ALTER TABLE {table} RENAME TO {table}_of_others")
        elif how == "empty":
            self._server.execute(f"DROP SCHEMA {postgresql.CONTROL_SCHEMA} CASCADE", self._database)
        else:
            self.close()

    def close(self) -> None:
        if self._broken:
            self._server.drop(self._database)
        else:
            self._server.execute(_emptying(), self._database)
            _empty.append(self._database)


class Pooled(Postgresql):
    """A database behind PgBouncer in transaction mode."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._url = self._url.set(port=pooler())


BACKENDS: dict[str, Callable[[Path], Backend]] = {
    "sqlite": Sqlite,
    "postgresql": Postgresql,
    "pgbouncer": Pooled,
}

_IN_PROCESS = ("sqlite", "memory")


def params(names: Iterable[str]) -> list[ParameterSet]:
    """Parameters of a fixture; those that need a server are end-to-end tests."""
    return [pytest.param(name, marks=() if name in _IN_PROCESS else pytest.mark.e2e) for name in names]
