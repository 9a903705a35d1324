"""Blocks of one team: how they are joined, searched and read, against rows that are read a second way."""

from __future__ import annotations

import itertools
import sys
from array import array
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.store.stored_blocks import rows_of_block

from tollgate.core import blocks
from tollgate.core.blocks import (
    MAX_WORDS,
    Broken,
    Facts,
    LogBlock,
    OpenBlock,
    Run,
    facts_of,
    groups,
    joined,
    may_hold,
    read_facts,
    split,
    words,
    written,
)
from tollgate.core.entries import MAX_METHOD_BYTES, CallEntry, Entry, encode, pack, read_counted, read_subject
from tollgate.core.logs import LogEntry, LogFilter

TEAM = "team_1"
LONG = "m" * MAX_METHOD_BYTES


def entry(at: float, *calls: str, **more: Any) -> Entry:
    """A request with these calls, each a method and, unless it is `ok`, an outcome."""
    made = [CallEntry(method, outcome or "ok") for method, _, outcome in (each.partition(" ") for each in calls)]
    usual: dict[str, Any] = {"source_id": "tok_1", "source_name": "ci", "network": "eth/mainnet", "status": 200}
    return Entry(at=at, team_id=TEAM, calls=tuple(made), request_id=b"req-%d" % at, **{**usual, **more})


def block(first_no: int, runs: list[Run], *records: Entry | bytes) -> LogBlock:
    """A block of these requests."""
    payloads = [each if isinstance(each, bytes) else encode(each) for each in records]
    counted = [read_counted(each) for each in payloads]
    subjects = [read_subject(each.subject) for each in counted]
    counts = [len(subject.calls) for subject in subjects]
    rows, times = sum(counts), [each.at for each in counted]
    errors = sum(outcome != "ok" for subject in subjects for _, outcome in subject.calls)
    data = written(payloads, None if rows == len(payloads) else counts)
    facts = pack(facts_of(runs, subjects))
    return LogBlock(TEAM, first_no, rows, len(payloads), errors, min(times), max(times), facts, data)


def test_format_of_version_2_is_pinned() -> None:
    """Blocks of this version must be read by every later one. A change of the format needs a new version."""
    assert blocks.VERSION == 2
    assert written([b"a", b"bc"], None) == bytes.fromhex("02 01000000 02000000 616263")
    assert written([b"a", b"bc"], [1, 2]) == bytes.fromhex("02 01000000 02000000 0100 0200 616263")
    facts = Facts([Run(2, "2026-11", 5), Run(1, "2026-12", [7])], ["tok_1"], None, ["m"], [200], ["ok"])
    plain = ([(2, "2026-11", 5), (1, "2026-12", [7])], ["tok_1"], None, ["m"], [200], ["ok"])
    assert pack(facts) == msgspec.msgpack.encode(plain)
    assert read_facts(msgspec.msgpack.encode(plain)) == facts


@pytest.mark.parametrize("data", [b"", bytes.fromhex("01 01000000 61")])
def test_data_of_another_version_is_broken(data: bytes) -> None:
    with pytest.raises(Broken, match="not of version 2"):
        split(data, 1, 1)


def opened(one: LogBlock) -> OpenBlock:
    return OpenBlock(one.first_no, one.entries, one.records, read_facts(one.facts), one.data)


# --- Facts and joining -------------------------------------------------------------------------------------


def test_words_are_listed_once_and_in_order_unless_there_are_too_many() -> None:
    assert words(["b", "b"]) == ["b"]
    assert words([8, 1, 8]) == [1, 8], "as a set they come the other way round"
    assert words(range(MAX_WORDS)) == list(range(MAX_WORDS))
    assert words(range(MAX_WORDS + 1)) is None


SINGLE = (entry(5, "a"), entry(3, "b node_error", status=400))
BATCH = (entry(9, "a", "b", "c timeout", source_id="tok_2"), entry(8, "d", network="eth/sepolia"))


@pytest.mark.parametrize("parts", [(SINGLE, SINGLE), (SINGLE, BATCH), (BATCH, SINGLE), (BATCH, BATCH, SINGLE)])
def test_joined_block_is_the_one_of_all_records(parts: Sequence[tuple[Entry, ...]]) -> None:
    made, no = [], 7
    for records in parts:
        rows = sum(len(each.calls) for each in records)
        made.append(block(no, [Run(rows, "2026-11", 4)], *records))
        no += rows
    whole = block(7, [Run(no - 7, "2026-11", 4)], *itertools.chain(*parts))
    assert joined(made) == whole
    assert joined(made[:1]) is made[0]


def test_kind_that_one_block_does_not_list_is_not_listed_by_the_joined_one() -> None:
    many = block(1, [Run(MAX_WORDS + 1, "m", 0)], *[entry(n, "a", source_id=f"{n}") for n in range(MAX_WORDS + 1)])
    few = block(MAX_WORDS + 2, [Run(1, "m", 0)], entry(1, "b"))
    facts = read_facts(joined([many, few]).facts)
    assert (facts.sources, facts.methods, facts.networks) == (None, ["a", "b"], ["eth/mainnet"])


@pytest.mark.parametrize(
    ("runs", "one"),
    [
        ([(1, "m", 4), (2, "m", 4)], [(3, "m", 4)]),
        ([(1, "m", 4), (2, "m", 5)], None),
        ([(1, "m", 4), (2, "n", 4)], None),
        ([(1, "m", [4]), (2, "m", [4, 5])], [(3, "m", [4, 4, 5])]),
        ([(1, "m", [4]), (2, "n", [4, 5])], None),
        ([(1, "m", [4]), (1, "m", [4])], [(2, "m", [4, 4])]),
        ([(1, "m", [4]), (2, "m", 4), (1, "m", [5])], None),
    ],
)
def test_runs_with_a_month_and_a_kind_of_cost_in_common_become_one(runs: list[Any], one: list[Any] | None) -> None:
    found = blocks.joined_runs(Run(*each) for each in runs)
    assert found == [Run(*each) for each in one or runs]


@pytest.mark.parametrize(
    ("parts", "found"),
    [
        ([], []),
        ([(1, 4), (5, 5), (10, 1), (11, 9), (20, 1)], [[1, 5, 10], [11, 20]]),
        ([(1, 10), (11, 9), (20, 1), (21, 1)], [[1], [11, 20], [21]]),
        ([(1, 4), (6, 4), (10, 9), (19, 1)], [[1], [6, 10], [19]]),
    ],
    ids=["none", "at least enough", "just enough", "a gap"],
)
def test_blocks_are_grouped_side_by_side_until_there_are_enough_rows(
    parts: list[tuple[int, int]], found: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "ENOUGH_ENTRIES", 10)
    assert [[first for first, _ in group] for group in groups(parts, lambda part: part)] == found


@pytest.mark.parametrize(
    ("data", "records", "rows"),
    [
        (written([b"ab", b"c"], None) + b"d", 2, 2),
        (written([b"ab", b"c"], [1, 2]), 2, 4),
        (written([b"ab", b"c"], [1, 2])[:-1], 2, 3),
        (written([], None), 1, 1),
    ],
    ids=["more bytes", "other rows", "fewer bytes", "fewer records"],
)
def test_data_that_its_records_do_not_fill_is_refused(data: bytes, records: int, rows: int) -> None:
    with pytest.raises(Broken):
        split(data, records, rows)


def test_numbers_are_stored_the_same_way_on_every_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = array("I", [1, 2])
    little = blocks.as_bytes(numbers)
    swapped = {"little": "big", "big": "little"}[sys.byteorder]
    monkeypatch.setattr(blocks, "sys", SimpleNamespace(byteorder=swapped))
    assert little == b"\1\0\0\0\2\0\0\0"
    assert blocks.as_bytes(numbers) == b"\0\0\0\1\0\0\0\2"
    assert blocks.numbers_of("I", b"\0\0\0\1\0\0\0\2") == numbers == array("I", [1, 2])


# --- Reading -----------------------------------------------------------------------------------------------

READ = block(
    40,
    [Run(2, "2026-10", 7), Run(3, "2026-11", [1, 2, 3]), Run(6, "2026-11", 9)],
    entry(1, "eth_call", status=429, stands_for=3),
    entry(2, "eth_call", "eth_chainId node_error", source_id="dom_1"),
    entry(3, "a timeout", "b", request_bytes=11, network="eth/sepolia"),
    entry(4, LONG + "more", source_id="tok_2", stands_for=2),
    entry(5, "eth_call", status=503, network="eth/sepolia"),
    entry(2, "eth_chainId node_error", stands_for=2),
    entry(7, "eth_call refused", stands_for=5, upstream="n0"),
    entry(8, "n" * 60),
    entry(9, "n" * 61 + "\U0001f680"),
)
ONE_EACH = block(5, [Run(4, "2026-11", 4)], *SINGLE, *SINGLE)


def plain(one: LogBlock) -> list[LogEntry]:
    """The rows of a block, read a second way."""
    rows = rows_of_block(one.first_no, one.entries, one.records, one.facts, one.data)
    return [
        msgspec.structs.replace(row, method=row.method.encode()[:MAX_METHOD_BYTES].decode(errors="ignore"))
        for row in rows
    ]


FILTERS = [
    LogFilter(TEAM, **each)
    for each in (
        {}, {"since": 3.0}, {"until": 3.0}, {"request_id": "req-2"}, {"request_id": "req-1"}, {"request_id": "7"},
        {"source_id": "tok_1"}, {"source_id": "tok_2"}, {"source_id": "tok_1", "lineage": ("tok_2", "tok_0")},
        {"source_id": "tok_0"}, {"method": "eth_call"}, {"method": LONG}, {"method": "n" * 61}, {"status": 429},
        {"status": 200}, {"errors": True}, {"errors": True, "network": "eth/sepolia"}, {"network": "eth/mainnet"},
        {"network": "eth/sepolia"}, {"request_id": "\ufffd"},
    )
]  # fmt: skip


@pytest.mark.parametrize("unlisted", [False, True], ids=["facts", "no facts"])
@pytest.mark.parametrize("one", [READ, ONE_EACH], ids=["batches", "single calls"])
def test_rows_from_any_number_on_are_those_that_fit(one: LogBlock, *, unlisted: bool) -> None:
    facts = read_facts(one.facts)
    if unlisted:
        facts = Facts(facts.runs, None, None, None, None, None)
    found = OpenBlock.of(one.first_no, facts, *split(one.data, one.records, one.entries))
    end = one.first_no + one.entries
    for wanted in FILTERS:
        fit = [row for row in plain(one) if wanted.fits(row)]
        for no in (one.first_no - 2, *range(one.first_no, end, 1 + unlisted), end + 1):
            assert list(found.older(wanted, no)) == [row for row in fit[::-1] if row.seq < no], (wanted, no)
            assert found.newer(wanted, no) == [row for row in fit if row.seq > no], (wanted, no)


def test_time_wanted_begins_with_its_first_moment_and_ends_before_its_last() -> None:
    rows = plain(READ)
    assert [row.at for row in rows if LogFilter(TEAM, since=2.0, until=5.0).fits(row)] == [2, 2, 3, 3, 4, 2]


def test_records_come_with_the_number_of_their_first_row() -> None:
    assert [first for first, _ in opened(ONE_EACH).records()] == [5, 6, 7, 8]
    found = dict(opened(READ).records())
    assert list(found) == [40, 41, 43, 45, 46, 47, 48, 49, 50]
    assert read_counted(found[43]).at == 3


def test_search_decodes_only_records_that_may_have_what_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []
    entries_at = OpenBlock._entries

    def noted(self: OpenBlock, place: int) -> list[LogEntry]:
        decoded.append(place)
        return entries_at(self, place)

    monkeypatch.setattr(OpenBlock, "_entries", noted)
    searched: tuple[tuple[str, Any, list[int]], ...] = (
        ("request_id", "req-2", [5, 1]), ("request_id", "req-9", [8]), ("source_id", "dom_1", [1]),
        ("method", "eth_chainId", [5, 1]), ("method", "n" * 60, [7]), ("status", 429, [0]),
        ("errors", True, [6, 5, 2, 1]), ("network", "eth/sepolia", [4, 2]),
        ("since", 0.0, [8, 7, 6, 5, 4, 3, 2, 1, 0]),
    )  # fmt: skip
    for kind, value, places in searched:
        found = opened(READ)
        # The second record has the rows 41 and 42.
        for below, last in ((100, 8), (50, 7), (43, 1), (42, 1), (41, 0)):
            list(found.older(LogFilter(TEAM, **{kind: value}), below))
            assert decoded == [place for place in places if place <= last], (kind, below)
            decoded.clear()
        for above, first in ((0, 0), (40, 1), (41, 1), (42, 2)):
            found.newer(LogFilter(TEAM, **{kind: value}), above)
            assert decoded == [place for place in places[::-1] if place >= first], (kind, above)
            decoded.clear()


def test_search_that_finds_nothing_does_not_even_note_where_records_begin() -> None:
    found = opened(READ)
    assert not list(found.older(LogFilter(TEAM, request_id="none"), READ.first_no + READ.entries))
    assert "_starts" not in vars(found)


def test_rows_of_a_record_that_cannot_be_read_whole_are_what_was_counted() -> None:
    whole = entry(1, "eth_call", "a timeout", agent=b"curl")
    at, subject, duration, details, *rest = msgspec.msgpack.decode(encode(whole))
    torn = pack((at, subject, duration, details[:1], *rest))
    bad = pack((at, subject, duration, "none", *rest))
    made = block(1, [Run(6, "2026-11", 4)], whole, torn, bad)
    rows = list(opened(made).older(LogFilter(TEAM), 9))[::-1]
    assert [(row.seq, row.method, row.outcome, row.cost, row.agent) for row in rows] == [
        (1, "eth_call", "ok", 4, "curl"), (2, "a", "timeout", 0, "curl"),
        (3, "eth_call", "ok", 4, ""), (4, "a", "timeout", 0, ""),
        (5, "eth_call", "ok", 4, ""), (6, "a", "timeout", 0, ""),
    ]  # fmt: skip
    data = written([b"\xc1" * 9, encode(whole)], [1, 2])
    rest_of = OpenBlock(1, 3, 2, read_facts(made.facts), data)
    assert [row.seq for row in rest_of.older(LogFilter(TEAM), 9)] == [3, 2], "of what is no record: nothing"


# --- Passing over blocks -----------------------------------------------------------------------------------

ALL_KINDS: dict[str, Any] = {"source_id": "tok_1", "network": "eth/mainnet", "method": "eth_call", "status": 200}
OTHERS: dict[str, Any] = {"source_id": "tok_9", "network": "eth/holesky", "method": "eth_none", "status": 418}


@pytest.mark.parametrize("unlisted", [None, *range(1, 5)])
def test_block_is_passed_over_by_each_kind_that_it_lists(unlisted: int | None) -> None:
    values: list[Any] = [[], ["tok_1"], ["eth/mainnet"], ["eth_call"], [200], ["ok"]]
    if unlisted is not None:
        values[unlisted] = None
    facts = pack(values)
    assert may_hold(LogFilter(TEAM), facts, 0)
    assert may_hold(LogFilter(TEAM, **ALL_KINDS), facts, 0)
    for place, (kind, other) in enumerate(OTHERS.items(), 1):
        assert may_hold(LogFilter(TEAM, **{kind: ALL_KINDS[kind]}), facts, 0)
        assert may_hold(LogFilter(TEAM, **{kind: other}), facts, 0) == (place == unlisted)
        assert may_hold(LogFilter(TEAM, **{**ALL_KINDS, kind: other}), facts, 0) == (place == unlisted)


def test_block_without_errors_is_passed_over_where_they_are_wanted() -> None:
    facts = pack([[], ["tok_1"], ["eth/mainnet"], ["eth_call"], [200], ["ok"]])
    assert [may_hold(LogFilter(TEAM, errors=True), facts, errors) for errors in (0, 1)] == [False, True]
    assert may_hold(LogFilter(TEAM), facts, 0)


@pytest.mark.parametrize("methods", [["eth_call"], None])
@pytest.mark.parametrize(
    ("source", "lineage", "is_held"),
    [("tok_1", ("tok_8",), True), ("tok_9", ("tok_1",), True), ("tok_9", ("tok_8",), False), ("tok_9", (), False)],
)
def test_block_is_passed_over_where_it_has_nothing_of_a_lineage(
    source: str, lineage: tuple[str, ...], methods: list[str] | None, *, is_held: bool
) -> None:
    wanted = LogFilter(TEAM, source_id=source, lineage=lineage)
    assert may_hold(wanted, pack([[], ["tok_1"], ["eth/mainnet"], methods, [200], ["ok"]]), 0) == is_held
    assert may_hold(wanted, pack([[], None, ["eth/mainnet"], methods, [200], ["ok"]]), 0)
    narrow = LogFilter(TEAM, source_id=source, lineage=lineage, network="eth/holesky")
    assert not may_hold(narrow, pack([[], ["tok_1"], ["eth/mainnet"], methods, [200], ["ok"]]), 0)
