"""The backends that pass the contract. A new one is a class with these three methods, and one line below."""

import functools
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

from tollgate.store import sqlite, upgrade
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

    def break_down(self, how: str) -> None:
        """Become unusable for whoever connects from now on."""
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

    def break_down(self, how: str) -> None:
        shutil.rmtree(self._folder)
        if how == "garbage":
            self._folder.mkdir()
            (self._folder / "control.db").write_bytes(b"this is no database\n" * 1_000)
        elif how == "empty":
            self._folder.mkdir()


BACKENDS: dict[str, Callable[[Path], Backend]] = {"sqlite": Sqlite}
