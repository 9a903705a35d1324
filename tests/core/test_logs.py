"""Rows of request logs as values."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tollgate.api.logs import AttemptVerdict
from tollgate.core.entries import AttemptEntry
from tollgate.core.logs import LogEntry, csv_cell, without_names

ROW = LogEntry(
    seq=1, at=1.0, request_id="r", team_id="team_1", source_id="tok_1", source_name="ci", address="", agent="",
    origin="", network="eth/mainnet", method="eth_call", status=200, outcome="ok", code=None, request_bytes=1,
    response_bytes=1, duration_micros=900, upstream="", attempts=(), cache="hit", billable=True, cost=0,
    month="2026-11", stands_for=1,
)  # fmt: skip


def attempts(*names: str) -> tuple[AttemptEntry, ...]:
    return tuple(
        AttemptEntry(name, 10 * place, 10 * place + 9, AttemptVerdict.STATUS, 503)
        for place, name in enumerate(names)
    )


def test_upstreams_are_numbered_in_the_order_in_which_they_were_called_first() -> None:
    row = replace(ROW, upstream="beta", attempts=attempts("acme-node", "beta", "acme-node"))
    assert without_names(row) == replace(
        row, upstream="upstream 2", attempts=attempts("upstream 1", "upstream 2", "upstream 1")
    )


def test_row_that_called_no_upstream_names_none() -> None:
    assert without_names(ROW) == ROW


def test_upstream_of_another_call_is_numbered_without_attempts() -> None:
    assert without_names(replace(ROW, upstream="beta", cache="coalesced")).upstream == "upstream 1"


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("x;=1+1", "x;'=1+1"),
        ('x;"=1+1";-2', "x;'\"=1+1\";'-2"),
        ("x; +1", "x;' +1"),
        ("a\n=1", "a\n'=1"),
        ("a\t@SUM(1)", "a\t'@SUM(1)"),
        ("x;\uff1d1", "x;'\uff1d1"),
        ("text/html; q=1, a-b", "text/html; q=1, a-b"),
        ("a;b", "a;b"),
        ("", ""),
    ],
)
def test_cell_starts_no_formula_also_where_semicolons_separate(text: str, cell: str) -> None:
    assert csv_cell(text) == cell
