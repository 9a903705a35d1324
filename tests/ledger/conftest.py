"""A spool and a ledger for each test; the ledger is migrated once and copied."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.ledger.harness import Harness
from tests.store.migrated import make_ledger


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    make_ledger(tmp_path)
    made = Harness(tmp_path)
    yield made
    made.close()
