"""The backends that pass the contract. A new one is a class with these methods, and one line below."""

import functools
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

from parts.postgres import cluster, pooler
from tollgate.store import postgresql, sqlite, upgrade
from tollgate.store.base import ControlStore, Directory


class Store(Directory, ControlStore, Protocol):
    """What every backend is."""


class Backend(Protocol):
    """One installation of a backend, empty and migrated."""

    def open(self) -> Store:
        """Connect, as a worker does."""
        ...

    def by_hand(self, statement: str) -> None:
        """Run SQL past all our code, as an operator might."""
        ...

    def blob(self, content: bytes) -> str:
        """Bytes, as they stand in such a statement."""
        ...

    def break_down(self, how: str) -> None:
        """Become unusable for whoever connects from now on."""
        ...

    def close(self) -> None:
        """End this installation."""
        ...


@functools.cache
def _migrated() -> bytes:
    """An empty database; made once, because migrating takes a while."""
    with TemporaryDirectory() as folder:
        upgrade.migrate(sqlite.store_url("", Path(folder)))
        return (Path(folder) / "control.db").read_bytes()


class Sqlite:
    """A file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "sqlite"
        self._folder.mkdir()
        self._url = sqlite.store_url("", self._folder)
        (self._folder / "control.db").write_bytes(_migrated())

    def open(self) -> Store:
        return sqlite.open_store(self._url)

    def by_hand(self, statement: str) -> None:
        with closing(sqlite3.connect(self._folder / "control.db")) as connection:
            connection.execute("PRAGMA foreign_keys=ON")
            connection.execute(statement)
            connection.commit()

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


class Postgresql:
    """A database of the shared server."""

    def __init__(self, _folder: Path) -> None:
        self._server = cluster()
        self._database = self._server.make(_template())
        self._url = postgresql.checked(self._server.url(self._database))

    def open(self) -> Store:
        return postgresql.open_store(self._url)

    def by_hand(self, statement: str) -> None:
        self._server.execute(f"SET search_path TO {postgresql.CONTROL_SCHEMA}; {statement}", self._database)

    def blob(self, content: bytes) -> str:
        return f"'\\x{content.hex()}'"

    def break_down(self, how: str) -> None:
        if how == "garbage":
            for table in ("teams", "changes", "failures"):
                self.by_hand(f"ALTER TABLE {table} RENAME TO {table}_of_others")
        elif how == "empty":
            self._server.execute(f"DROP SCHEMA {postgresql.CONTROL_SCHEMA} CASCADE", self._database)
        else:
            self.close()

    def close(self) -> None:
        self._server.drop(self._database)


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
