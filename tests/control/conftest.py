"""What the control plane's tests are given: a control plane each, copied from one that was built once."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.control.metering import Metering
from tests.control.services.harness import Harness, make_template, settings
from tests.store.migrated import make_ledger

from tollgate.control import service_context


@pytest.fixture(autouse=True)
def _no_even_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests do not measure how long an answer takes."""
    monkeypatch.setattr(service_context, "CONSTANT_SECONDS", 0.0)


@pytest.fixture(scope="session")
def stores(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A store with all people in it, and an empty ledger."""
    folder = tmp_path_factory.mktemp("stores")
    return make_template(folder), make_ledger(folder)


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_template(tmp_path_factory.mktemp("template"))


@pytest.fixture
def harness(template: Path, tmp_path: Path, loop: asyncio.Runner) -> Iterator[Harness]:
    built = Harness(template, tmp_path, loop, settings())
    yield built
    built.close()


@pytest.fixture
def metering(stores: tuple[Path, Path], tmp_path: Path, loop: asyncio.Runner) -> Iterator[Metering]:
    built = Metering(*stores, tmp_path, loop, settings())
    yield built
    built.close()
