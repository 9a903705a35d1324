"""Pages of logs: every row of before the first page, once, whatever is committed or dropped meanwhile."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.store.log_rows import ACME, CI, DAY, THEIRS, WEB, Ledger, Reader, entry

from tollgate.core.logs import LogFilter

AGES = st.sampled_from([0.0, 0.5, 3.0, 3_600.0, 3 * DAY])
SOURCES = st.sampled_from([CI, CI, WEB, THEIRS])
METHODS, STATUSES = st.sampled_from(["eth_call", "eth_chainId"]), st.sampled_from([200, 429])
OUTCOMES = st.sampled_from(["ok", "ok", "node_error"])
ENTRIES = st.lists(st.tuples(AGES, SOURCES, METHODS, STATUSES, OUTCOMES), min_size=2, max_size=12)
COMMIT = st.tuples(st.just("commit"), ENTRIES)
WAIT = st.tuples(st.just("wait"), st.sampled_from([0.0, 1.0, 30.0, DAY / 2, DAY, -5.0]))
DROP, TIDY = st.just(("drop", None)), st.just(("tidy", None))
FILTERS = st.builds(
    LogFilter,
    st.just(ACME),
    source_id=st.sampled_from([None, None, CI, WEB, THEIRS]),
    since=st.none() | st.sampled_from([0.0, 60.0, 7_200.0, 2 * DAY]),
    method=st.sampled_from([None, None, "eth_chainId"]),
    status=st.sampled_from([None, None, 429]),
    errors=st.booleans(),
)
LOOKS = st.none() | st.integers(1, 3)
"""Blocks that a page may open."""


@contextmanager
def fresh(looks: int | None) -> Iterator[tuple[Ledger, Reader]]:
    """A ledger of its own for one example."""
    with tempfile.TemporaryDirectory() as name, asyncio.Runner() as loop:
        ledger = Ledger(Path(name))
        reader = Reader(ledger, loop, looks)
        try:
            yield ledger, reader
        finally:
            reader.close()
            ledger.close()


def act(ledger: Ledger, step: tuple[str, Any]) -> None:
    kind, what = step
    if kind == "wait":
        ledger.wait(what)
    elif kind == "drop":
        ledger.drop_oldest_day()
    elif kind == "tidy":
        ledger.tidy()
    else:
        ledger.commit(
            *(
                entry(ledger.now - age, source, method=method, status=status, outcome=outcome)
                for age, source, method, status, outcome in what
            )
        )


@settings(max_examples=settings().max_examples // 2)
@given(
    before=st.lists(COMMIT | COMMIT | WAIT | DROP | TIDY, min_size=3, max_size=12),
    meanwhile=st.lists(st.lists(COMMIT | WAIT | DROP | TIDY, max_size=3), max_size=20),
    filters=FILTERS,
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    looks=LOOKS,
)
def test_every_row_of_before_the_first_page_appears_once(
    before: list[tuple[str, Any]],
    meanwhile: list[list[tuple[str, Any]]],
    filters: LogFilter,
    sizes: list[int],
    looks: int | None,
) -> None:
    with fresh(looks) as (ledger, reader):
        for step in before:
            act(ledger, step)
        start = None if filters.since is None else ledger.now - filters.since
        wanted = LogFilter(ACME, filters.source_id, start, None, filters.method, filters.status, filters.errors)
        there = ledger.kept(wanted)
        position: int | None = reader.newest() + 1
        seen: list[int] = []
        for turn in range(1_000):
            if position is None:
                break
            rows, position = reader.older(wanted, position, sizes[turn % len(sizes)])
            assert len(rows) <= sizes[turn % len(sizes)]
            seen += rows
            for step in meanwhile[turn] if turn < len(meanwhile) else ():
                act(ledger, step)
        assert position is None
        assert seen == sorted(set(seen), reverse=True)
        assert set(seen) <= set(there)
        # Only rows that retention dropped meanwhile may be missing.
        assert set(there) - set(seen) <= set(there) - set(ledger.kept(wanted))


@settings(max_examples=settings().max_examples // 2)
@given(
    steps=st.lists(COMMIT | COMMIT | WAIT | TIDY, min_size=3, max_size=12),
    filters=FILTERS,
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    looks=LOOKS,
)
def test_follower_sees_every_new_row_once_in_order(
    steps: list[tuple[str, Any]],
    filters: LogFilter,
    sizes: list[int],
    looks: int | None,
) -> None:
    with fresh(looks) as (ledger, reader):
        ledger.commit(entry(ledger.now), entry(ledger.now, THEIRS))
        start = None if filters.since is None else ledger.now - filters.since
        wanted = LogFilter(ACME, filters.source_id, start, None, filters.method, filters.status, filters.errors)
        first = position = reader.newest()
        seen: list[int] = []
        for turn in range(1_000):
            if turn < len(steps):
                act(ledger, steps[turn])
            elif position == reader.newest():
                break
            rows, following = reader.newer(wanted, position, sizes[turn % len(sizes)])
            assert following >= position
            seen, position = seen + rows, following
        assert seen == [seq for seq in ledger.kept(wanted)[::-1] if seq > first]
