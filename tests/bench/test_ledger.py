"""Tests of the benchmark of the ledger: that it can still be run, on small ledgers."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from bench.ledger import Load, collect, grown

from bench import ledger

LOAD = Load("a record", 200, 4.0, teams=1)


@pytest.fixture(autouse=True)
def _collecting_garbage() -> Iterator[None]:
    """What is measured turns it off, in a process of its own."""
    yield
    gc.unfreeze()
    gc.enable()


def test_collected_records_are_rows_of_the_ledger() -> None:
    found = collect(LOAD, 2_000)
    assert (found.records, found.rows) == (2_000, 2_000)
    assert found.bytes_a_row > 0


@pytest.mark.e2e
def test_ledger_is_doubled_until_it_has_enough_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "DEFAULT_ROWS", 400)
    monkeypatch.setattr(ledger, "GROWN_COMMITS", 3)
    found = grown(LOAD, 1_000)
    assert (found.small_rows, found.large_rows) == (400, 1_600)
