"""The log book: pages, days, time, filters, whose rows, through which index, and outages."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event
from tests.store.log_rows import ACME, CI, DAY, NOON, RIVAL, THEIRS, WEB, Ledger, Reader, entry

from tollgate.api.logs import AttemptVerdict
from tollgate.core import posting
from tollgate.core.blocks import ENOUGH_ENTRIES
from tollgate.core.entries import AttemptEntry, CallEntry
from tollgate.core.logs import LogEntry, LogFilter
from tollgate.store import ledger_engine, logbook, sqlite
from tollgate.store.base import StoreUnavailable
from tollgate.store.logbook import CLOCK_SLACK_SECONDS, _Search

ALL = LogFilter(ACME)
ATTEMPTS = (
    AttemptEntry("node-0", 0, 1_200, AttemptVerdict.STATUS, 503),
    AttemptEntry("node-1", 1_250, 4_400, AttemptVerdict.ANSWERED),
)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger(tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def reader(ledger: Ledger, loop: asyncio.Runner) -> Iterator[Reader]:
    opened = Reader(ledger, loop)
    yield opened
    opened.close()


@pytest.fixture
def short_sighted(ledger: Ledger, loop: asyncio.Runner) -> Iterator[Reader]:
    """Opens two blocks at most for a page."""
    opened = Reader(ledger, loop, blocks=2)
    yield opened
    opened.close()


def test_rows_that_arrive_all_the_time_never_disturb_a_page(ledger: Ledger, reader: Reader) -> None:
    """A writer commits as fast as it can; every seventh batch is that of an ended worker."""
    for _ in range(20):
        ledger.commit(*(entry(ledger.now - 1, source) for source in (CI, WEB, THEIRS) for _ in range(10)))
        ledger.now += DAY / 8
    there = ledger.kept(ALL)
    stop, batches = threading.Event(), 0

    def write() -> None:
        nonlocal batches
        while not stop.is_set():
            age = 5 * DAY if batches % 7 == 0 else 0.2
            ledger.commit(*(entry(ledger.now - age) for _ in range(100)))
            batches += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for size in (1, 7, 100):
            assert reader.all_older(ALL, size, from_newest=there[0]) == there
    finally:
        stop.set()
        writer.join(30)
    assert batches > 0


# --- Pages --------------------------------------------------------------------------------------------------


def test_a_row_comes_back_with_all_its_fields(ledger: Ledger, loop: asyncio.Runner, reader: Reader) -> None:
    (written,) = ledger.commit(
        entry(
            NOON - 1.25, WEB, method="eth_getLogs", status=200, outcome="node_error", code=-32000,
            request_id=b"req-\xff", request_bytes=120, duration_micros=4_500, upstream="node-1", attempts=ATTEMPTS,
            address="2001:db8::1", agent="Mozilla/5.0 (ü)".encode(), origin=b"https://app.example.com",
        )
    )  # fmt: skip
    row = loop.run(reader.book.older(ALL, 2, 10)).entries[0]
    assert row == written
    assert row == LogEntry(
        1, NOON - 1.25, "req-\ufffd", ACME, WEB, "web", "2001:db8::1", "Mozilla/5.0 (ü)",
        "https://app.example.com", "eth/mainnet", "eth_getLogs", 200, "node_error", -32000, 120, 0, 4_500,
        "node-1", ATTEMPTS, "bypass", True, 0, "2026-11", 1,
    )  # fmt: skip


def test_an_empty_ledger_has_empty_pages(reader: Reader) -> None:
    assert reader.newest() == 0
    assert reader.older(ALL, 1, 10) == ([], None)
    assert reader.newer(ALL, 0, 10) == ([], 0)


def test_a_page_that_takes_the_last_row_is_the_last(ledger: Ledger, reader: Reader) -> None:
    ledger.commit(*(entry(NOON) for _ in range(6)))
    assert reader.older(ALL, 7, 3) == ([6, 5, 4], 4)
    assert reader.older(ALL, 4, 3) == ([3, 2, 1], None)
    assert reader.older(ALL, 7, 6)[1] is None


def test_calls_of_a_batch_are_rows_of_their_own(ledger: Ledger, loop: asyncio.Runner, reader: Reader) -> None:
    ledger.commit(entry(NOON, calls=(CallEntry("eth_call", "ok"), CallEntry("eth_chainId", "ok"))))
    rows = loop.run(reader.book.older(ALL, 3, 10)).entries
    assert [(row.seq, row.method) for row in rows] == [(2, "eth_chainId"), (1, "eth_call")]


def test_a_page_goes_on_over_days(ledger: Ledger, reader: Reader) -> None:
    for _ in range(4):
        ledger.commit(entry(ledger.now), entry(ledger.now, THEIRS), entry(ledger.now))
        ledger.now += DAY
    assert reader.all_older(ALL, 3) == [8, 7, 6, 5, 4, 3, 2, 1], "numbers of the team alone"
    assert reader.newer(ALL, 3, 3) == ([4, 5, 6], 6)
    assert reader.newer(ALL, 6, 3) == ([7, 8], 8)


def test_days_without_rows_of_the_team_are_passed_over_many_at_once(
    ledger: Ledger, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(posting, "OWN_ENTRIES", 1)
    monkeypatch.setattr(ledger_engine, "DAYS_AT_ONCE", 4)
    for source in (WEB, CI, *[THEIRS] * 9):
        ledger.commit(entry(ledger.now, source))
        ledger.now += DAY
    looks: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        looks.extend([statement] if "EXISTS (SELECT 1 FROM blocks_" in statement else [])

    with listening("after_cursor_execute", note):
        assert reader.all_older(ALL, 10) == [2, 1]
        assert len(looks) == 3, "the newest day is read; of the other ten four are looked at, four, and two"
        assert reader.older(ALL, 1, 10) == ([], None)
        assert len(looks) == 6


def test_a_day_dropped_between_pages_is_no_longer_shown(ledger: Ledger, reader: Reader) -> None:
    for _ in range(3):
        ledger.commit(entry(ledger.now), entry(ledger.now))
        ledger.now += DAY
    assert reader.all_older(ALL, 2, between=ledger.drop_oldest_day) == [6, 5, 4, 3]


def test_a_day_dropped_in_the_middle_of_a_page_is_still_read(ledger: Ledger, reader: Reader) -> None:
    for _ in range(3):
        ledger.commit(entry(ledger.now), entry(ledger.now))
        ledger.now += DAY
    dropped: list[list[str]] = []

    def drop(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "FROM days" in statement and not dropped:
            dropped.append([])  # dropping reads the days, too
            dropped[0] = ledger.store.drop_days("20991231")

    with listening("after_cursor_execute", drop):
        assert reader.older(ALL, 7, 10)[0] == [6, 5, 4, 3, 2, 1]
    assert dropped == [["20261115", "20261116", "20261117"]]
    assert reader.older(ALL, 7, 10) == ([], None)
    assert reader.newest() == 6


def test_blocks_of_one_team_and_shared_ones_are_read_in_the_order_of_rows(
    ledger: Ledger, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(posting, "OWN_ENTRIES", 5)
    starts = [1]
    for counts in ((2, 5, 1, 1, 6), (), (5, 1)):
        for count in counts:
            ledger.commit(*[entry(ledger.now)] * count)
            starts.append(starts[-1] + count)
        ledger.commit(*[entry(ledger.now, THEIRS)] * 5)
        ledger.wait(DAY)
    rows = ledger.kept(ALL)
    for no in range(starts[-1] + 1):
        assert reader.older(ALL, no, 4)[0] == [row for row in rows if row < no][:4]
        assert reader.newer(ALL, no, 4)[0] == [row for row in rows[::-1] if row > no][:4]


def test_rows_of_others_are_never_shown(ledger: Ledger, reader: Reader) -> None:
    ledger.commit(entry(NOON), entry(NOON, THEIRS), entry(NOON, WEB))
    assert reader.all_older(ALL, 10) == [2, 1]
    assert reader.all_older(LogFilter(RIVAL), 10) == [1]
    assert reader.all_older(LogFilter(ACME, CI), 10) == [1]
    assert reader.newest(RIVAL) == 1


def test_the_token_of_another_team_shows_nothing_and_costs_nothing(ledger: Ledger, short_sighted: Reader) -> None:
    """Not even a page that ends early, which would show how much the others call."""
    ledger.commit(*(entry(NOON, THEIRS) for _ in range(50)))
    for wanted in (LogFilter(ACME, THEIRS), LogFilter(ACME, THEIRS, errors=True)):
        assert short_sighted.older(wanted, 51, 10) == ([], None)
        assert short_sighted.newer(wanted, 0, 10) == ([], 0)


# --- Since --------------------------------------------------------------------------------------------------


def test_since_is_about_the_time_of_the_row_itself(ledger: Ledger, reader: Reader) -> None:
    ledger.commit(entry(NOON - 5 * 3600))
    ledger.now += 100
    ledger.commit(entry(NOON + 100), entry(NOON - 3 * 3600), entry(NOON + 50))
    assert reader.all_older(LogFilter(ACME, since=NOON), 10) == [4, 2]
    assert reader.all_older(LogFilter(ACME, since=NOON + 50), 1) == [4, 2]
    assert reader.all_older(LogFilter(ACME, since=NOON + 51), 10) == [2]
    assert reader.all_older(LogFilter(ACME, CI, since=NOON - 4 * 3600), 10) == [4, 3, 2]
    assert reader.newer(LogFilter(ACME, since=NOON), 0, 10) == ([2, 4], 4)


def test_since_begins_at_its_first_batch_and_looks_at_nothing_before(
    ledger: Ledger, short_sighted: Reader
) -> None:
    for _ in range(30):
        ledger.commit(entry(NOON))
    ledger.now += 3600
    ledger.commit(entry(ledger.now), entry(ledger.now))
    assert short_sighted.older(LogFilter(ACME, since=ledger.now), 33, 10) == ([32, 31], None)
    assert short_sighted.older(LogFilter(ACME, since=ledger.now + 60), 33, 10) == ([], None)


def test_batches_of_the_same_moment_all_count(ledger: Ledger, reader: Reader) -> None:
    for _ in range(5):
        ledger.commit(entry(NOON))
    assert reader.all_older(LogFilter(ACME, since=NOON), 2) == [5, 4, 3, 2, 1]


def test_a_clock_that_was_set_back_a_little_hides_nothing(ledger: Ledger, reader: Reader) -> None:
    ledger.commit(entry(NOON))
    ledger.now -= 8
    ledger.commit(entry(NOON + 0.5), entry(NOON - 9))
    ledger.now += 4
    ledger.commit(entry(NOON - 4), entry(NOON + 1))
    assert reader.all_older(LogFilter(ACME, since=NOON), 10) == [5, 2, 1]


def test_a_row_that_came_as_early_as_clocks_may_differ_is_found(ledger: Ledger, reader: Reader) -> None:
    ledger.commit(entry(NOON + CLOCK_SLACK_SECONDS))
    assert reader.all_older(LogFilter(ACME, since=NOON + CLOCK_SLACK_SECONDS), 10) == [1]


def test_a_row_committed_after_the_clock_was_set_back_is_found(ledger: Ledger, reader: Reader) -> None:
    ledger.now -= 8
    ledger.commit(entry(NOON + 0.5))
    ledger.now += 10
    ledger.commit(entry(NOON + 2))
    assert reader.all_older(LogFilter(ACME, since=NOON), 10) == [2, 1]


def test_a_clock_that_was_set_back_by_an_hour_hides_nothing(ledger: Ledger, reader: Reader) -> None:
    ledger.commit(entry(NOON))
    ledger.now += 3600
    ledger.commit(entry(NOON + 3600))
    ledger.now -= 3000
    ledger.commit(entry(NOON + 600))
    assert reader.all_older(LogFilter(ACME, since=NOON + 300), 10) == [3, 2]


def test_until_is_about_the_time_of_the_row_and_blocks_behind_it_are_not_opened(
    ledger: Ledger, short_sighted: Reader
) -> None:
    for hour in range(5):
        ledger.commit(*(entry(NOON + hour * 3600 + at) for at in range(ENOUGH_ENTRIES)))
    newest = 5 * ENOUGH_ENTRIES
    for wanted in (LogFilter(ACME, until=NOON + 2), LogFilter(ACME, since=NOON, until=NOON + 2)):
        assert short_sighted.older(wanted, newest + 1, 5) == ([2, 1], None)
        assert short_sighted.newer(wanted, 0, 5) == ([1, 2], newest)


# --- Filters ------------------------------------------------------------------------------------------------


def test_blocks_whose_facts_show_that_nothing_fits_are_not_opened(ledger: Ledger, short_sighted: Reader) -> None:
    ledger.commit(entry(NOON, WEB, method="eth_chainId"), *(entry(NOON, CI) for _ in range(ENOUGH_ENTRIES)))
    for _ in range(9):
        ledger.commit(*(entry(NOON, CI) for _ in range(ENOUGH_ENTRIES)))
    newest = 10 * ENOUGH_ENTRIES + 1
    for wanted in (LogFilter(ACME, WEB), LogFilter(ACME, method="eth_chainId")):
        assert short_sighted.older(wanted, newest + 1, 5) == ([1], None)
    for more in ({"method": "eth_getCode"}, {"status": 404}, {"network": "eth/sepolia"}, {"errors": True}):
        assert short_sighted.older(LogFilter(ACME, **more), newest + 1, 5) == ([], None)


def test_page_stops_by_time_and_shows_how_far_it_has_looked(ledger: Ledger, short_sighted: Reader) -> None:
    for number in range(6):
        ledger.commit(entry(NOON, CI, outcome="node_error"), entry(NOON, WEB, request_id=b"r%d" % number))
    wanted = LogFilter(ACME, WEB, errors=True)
    seen: list[int | None] = []
    position: int | None = 13
    while position is not None:
        rows, following = short_sighted.older(wanted, position, 5)
        assert rows == []
        assert following is None or following < position
        seen.append(following)
        position = following
    assert seen == [9, 5, None]
    assert short_sighted.newer(wanted, 0, 5) == ([], 4)
    assert short_sighted.newer(wanted, 4, 5) == ([], 8)
    assert short_sighted.newer(wanted, 8, 5) == ([], 12)


def test_page_that_opens_no_block_looks_at_the_clock_now_and_then(
    ledger: Ledger, short_sighted: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(posting, "OWN_ENTRIES", 1)
    monkeypatch.setattr(logbook, "HEADERS_AT_ONCE", 2)
    for _ in range(7):
        ledger.commit(entry(NOON, CI))
    assert short_sighted.older(LogFilter(ACME, WEB), 8, 5) == ([], 4), "the second look, after four blocks"
    assert short_sighted.newer(LogFilter(ACME, WEB), 0, 5) == ([], 4)


def test_request_id_is_found_in_any_block(ledger: Ledger, reader: Reader) -> None:
    for number in range(5):
        ledger.commit(*(entry(NOON, request_id=b"req-%d-%d" % (number, each)) for each in range(300)))
    assert reader.all_older(LogFilter(ACME, request_id="req-1-7"), 10) == [308]
    assert reader.all_older(LogFilter(ACME, request_id="req-1-"), 10) == [], "the whole of it"


def test_methods_that_are_too_many_for_the_facts_are_found_all_the_same(ledger: Ledger, reader: Reader) -> None:
    ledger.commit(*(entry(NOON, method=f"made_up_{number}") for number in range(300)))
    assert reader.all_older(LogFilter(ACME, method="made_up_77"), 10) == [78]
    assert reader.all_older(LogFilter(ACME, CI, method="made_up_999"), 10) == []


def test_method_that_was_cut_is_found_by_what_is_shown_of_it(ledger: Ledger, reader: Reader) -> None:
    ledger.commit(entry(NOON, method="é" * 64), entry(NOON, method="x" * 200), entry(NOON, method="é" * 20))
    for method, row in (("é" * 32, 1), ("x" * 64, 2), ("é" * 20, 3)):
        assert reader.all_older(LogFilter(ACME, method=method), 10) == [row]


@pytest.mark.parametrize(
    ("wanted", "rows"),
    [
        (LogFilter(ACME, network="eth/sepolia"), [2]),
        (LogFilter(ACME, method="eth_chainId"), [3]),
        (LogFilter(ACME, status=429), [4]),
        (LogFilter(ACME, errors=True), [5, 4]),
        (LogFilter(ACME, WEB, errors=True), [5]),
        (LogFilter(ACME, CI, status=429, errors=True, network="eth/mainnet"), [4]),
        (LogFilter(ACME, method="eth_"), []),
    ],
)
def test_filters(ledger: Ledger, reader: Reader, wanted: LogFilter, rows: list[int]) -> None:
    ledger.commit(
        entry(NOON),
        entry(NOON, network="eth/sepolia"),
        entry(NOON, method="eth_chainId"),
        entry(NOON, status=429, outcome="rate_limited"),
        entry(NOON, WEB, outcome="node_error"),
    )
    assert reader.all_older(wanted, 1) == rows


# --- What it costs ------------------------------------------------------------------------------------------


@contextmanager
def listening(name: str, listener: Callable[..., None]) -> Iterator[None]:
    """Record what the log book sends to its database."""
    event.listen(Engine, name, listener)
    try:
        yield
    finally:
        event.remove(Engine, name, listener)


@pytest.mark.parametrize("more", [{}, {"since": NOON - 60}, {"errors": True, "method": "x"}, {"source_id": CI}])
def test_pages_are_read_through_the_key_of_blocks_in_its_order(ledger: Ledger, more: dict[str, Any]) -> None:
    ledger.commit(*(entry(NOON, each) for each in (CI, WEB, THEIRS) for _ in range(20)))
    queries: list[tuple[str, Any]] = []

    class Watched(_Search):
        def _stream(self, query: str, values: tuple[Any, ...]) -> Iterator[Any]:
            queries.append((query, values))
            return super()._stream(query, values)

    with sqlite.open_logbook(ledger.url)._engine.connect() as connection:
        search = Watched(connection, LogFilter(ACME, **more), lambda: False)
        search.older(40, 5)
        search.newer(2, 5)
        steps = [
            step[3]
            for query, values in queries
            for step in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {query}", values)
        ]
    assert len(steps) == 4
    assert steps[::2] == ["SCAN shared_blocks"] * 2, "those of a few commits"
    for step in steps[1::2]:
        assert step.startswith("SEARCH blocks_20261115 USING PRIMARY KEY (team_id=? AND first_no"), step


# --- Outages ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", ["garbage", "empty", "gone"])
def test_a_ledger_that_cannot_be_read_is_an_outage(tmp_path: Path, loop: asyncio.Runner, broken: str) -> None:
    folder = tmp_path / "data"
    if broken != "gone":
        folder.mkdir()
    if broken == "garbage":
        (folder / "ledger.db").write_bytes(b"this is no database\n" * 1_000)
    book = sqlite.open_logbook(sqlite.ledger_url(folder))
    for work in (book.newest(ACME), book.older(ALL, 10, 5), book.newer(ALL, 1, 5)):
        with pytest.raises(StoreUnavailable, match="the ledger cannot be read"):
            loop.run(work)
    loop.run(book.close())
