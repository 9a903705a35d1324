"""What the contract's tests are given: an installation of each backend, connections to it, and broken ones."""

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from tests.contract.backends import BACKENDS, Backend, Store, params

from tollgate.store.base import Directory


@pytest.fixture(params=params(BACKENDS))
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    made = BACKENDS[request.param](tmp_path)
    yield made
    made.close()


@pytest.fixture
async def store(backend: Backend) -> AsyncIterator[Store]:
    opened = backend.open()
    yield opened
    await opened.close()


@pytest.fixture
def directory(store: Store) -> Directory:
    return store


@pytest.fixture
def by_hand(backend: Backend) -> Callable[[str], None]:
    return backend.by_hand


@pytest.fixture
async def another_worker(backend: Backend) -> AsyncIterator[Store]:
    """A second connection to the same data."""
    opened = backend.open()
    yield opened
    await opened.close()


@pytest.fixture(params=["gone", "garbage", "empty"])
async def broken(request: pytest.FixtureRequest, backend: Backend) -> AsyncIterator[Store]:
    """A store that cannot be used: its place gone, something else in it, or nothing."""
    backend.break_down(request.param)
    opened = backend.open()
    others = set(threading.enumerate())
    yield opened
    await opened.close()
    # aiosqlite notifies the loop of a failed connection's end from its thread, which is not awaited.
    for thread in set(threading.enumerate()) - others:
        thread.join(timeout=30)
