"""A spool and a ledger for each test; the ledger is migrated once and copied."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.ledger.harness import Harness

from tollgate.store import sqlite, upgrade


@pytest.fixture(scope="session")
def blank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger without a row."""
    folder = tmp_path_factory.mktemp("blank")
    upgrade.migrate(sqlite.ledger_url(folder), upgrade.LEDGER)
    return folder / "ledger.db"


@pytest.fixture
def harness(tmp_path: Path, blank: Path) -> Iterator[Harness]:
    shutil.copy(blank, tmp_path / "ledger.db")
    made = Harness(tmp_path)
    yield made
    made.close()
