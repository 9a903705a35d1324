"""The backends that pass the contract. A new one is a class with these three methods, and one line below."""

import asyncio
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Protocol

import pytest

from tollgate.store import sqlite, upgrade
from tollgate.store.base import Directory, Registry


class Store(Directory, Registry, Protocol):
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


class Sqlite:
    """A file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "sqlite"
        self._folder.mkdir()
        self._url = sqlite.store_url("", self._folder)
        upgrade.migrate(self._url)

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


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    return BACKENDS[request.param](tmp_path)


@pytest.fixture
def store(backend: Backend, loop: asyncio.Runner) -> Iterator[Store]:
    opened = backend.open()
    yield opened
    loop.run(opened.close())


@pytest.fixture
def directory(store: Store) -> Directory:
    return store


@pytest.fixture
def registry(store: Store) -> Registry:
    return store


@pytest.fixture
def by_hand(backend: Backend) -> Callable[[str], None]:
    return backend.by_hand


@pytest.fixture
def another_worker(backend: Backend, loop: asyncio.Runner) -> Iterator[Directory]:
    """A second connection to the same data."""
    opened = backend.open()
    yield opened
    loop.run(opened.close())


@pytest.fixture(params=["gone", "garbage", "empty"])
def broken(request: pytest.FixtureRequest, backend: Backend, loop: asyncio.Runner) -> Iterator[Store]:
    """A store that cannot be used: its place gone, something else in it, or nothing."""
    backend.break_down(request.param)
    opened = backend.open()
    others = set(threading.enumerate())
    yield opened
    loop.run(opened.close())
    # aiosqlite tells the loop of a failed connection's end from its thread, which nobody awaits.
    for thread in set(threading.enumerate()) - others:
        thread.join(timeout=5)


@pytest.fixture
def broken_directory(broken: Store) -> Directory:
    return broken


@pytest.fixture
def broken_registry(broken: Store) -> Registry:
    return broken
