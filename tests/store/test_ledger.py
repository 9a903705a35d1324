"""The ledger as the collector writes it: one transaction or nothing, days, and numbers that never repeat."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from sqlalchemy.exc import IntegrityError
from tests.store.migrated import make_ledger
from tests.store.stored_blocks import batch_of, stored_blocks, stored_rows

from tollgate.core.blocks import ENOUGH_ENTRIES, Run
from tollgate.core.clock import Clock
from tollgate.core.entries import CallEntry, Entry, pack
from tollgate.core.latencies import bucket_of
from tollgate.core.months import month_of
from tollgate.core.posting import Opening, Posting, Rules, post
from tollgate.core.pricing import MILLION, Price
from tollgate.core.shared_blocks import Part
from tollgate.store import ledger as storing
from tollgate.store import ledger_blocks, ledger_engine, ledger_shared, ledger_usage, sqlite
from tollgate.store.base import Mark
from tollgate.store.ledger import LedgerBehind, LedgerStore, open_ledger
from tollgate.store.ledger_blocks import DayBlocks, Joining
from tollgate.store.ledger_tables import FINAL

NOON = 1_794_744_000.0  # 2026-11-15T12:00:00Z
DAY = 86_400.0
ID = b"\1" * 16


def entry(*outcomes: str, at: float = NOON, team: str = "team_1", source: str = "tok_1", **more: Any) -> Entry:
    calls = tuple(CallEntry("eth_call", outcome) for outcome in outcomes or ("ok",))
    usual: dict[str, Any] = {"request_id": b"rid", "source_name": "ci", "network": "eth/mainnet", "status": 200}
    return Entry(at=at, team_id=team, source_id=source, calls=calls, **{**usual, **more})


class Ledger:
    """A ledger, written by the store and read by SQL of the test's own."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "ledger.db"
        self.store: LedgerStore = open_ledger(sqlite.ledger_url(folder))
        self.now = NOON

    def commit(
        self,
        *entries: Entry,
        marks: dict[bytes, Mark] | None = None,
        known: dict[bytes, Mark] | None = None,
    ) -> Posting:
        batch = batch_of(entries)
        rules = Rules(lambda _: Price(free_requests=2, micros_per_million=MILLION), lambda at, _: month_of(at))
        return self.store.commit(
            marks or {}, batch.teams(), lambda opening: post(batch, opening, rules), self.now, known=known
        )

    def restart(self) -> None:
        """Forget what is remembered."""
        self.store.close()
        self.store = open_ledger(sqlite.ledger_url(self.path.parent))

    def rows(self, columns: str) -> list[tuple[Any, ...]]:
        return [tuple(getattr(row, name) for name in columns.split(", ")) for row in stored_rows(self.path)]

    def chores(self) -> None:
        """Do all chores to their end."""
        for chore in (self.store.join, self.store.settle, self.store.fold, lambda: self.store.sweep(0)):
            while chore():
                pass

    def sql(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path, timeout=0.1)) as connection, connection:
            return connection.execute(query, values).fetchall()

    def everything(self) -> list[list[tuple[Any, ...]]]:
        names = [name for (name,) in self.sql("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
        return [self.sql(f"SELECT * FROM {name}") for name in names]


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    make_ledger(tmp_path)
    made = Ledger(tmp_path)
    yield made
    made.store.close()


# --- One transaction ---------------------------------------------------------------------------------------


def test_batch_is_written_with_its_usage_its_months_and_its_marks(ledger: Ledger) -> None:
    ledger.commit(entry("ok", "node_error", "rate_limited"), marks={ID: Mark(77)})
    ledger.commit(entry("ok"), entry("ok", source="dom_1"), marks={ID: Mark(99, done=True)})
    assert ledger.rows("seq, outcome, cost") == [
        (1, "ok", 0),
        (2, "node_error", 0),
        (3, "rate_limited", 0),
        (4, "ok", 1),
        (5, "ok", 1),
    ]
    assert ledger.sql(
        "SELECT source_id, outcome, sum(requests), sum(cost) FROM usage_all GROUP BY 1, 2 ORDER BY 1, 2"
    ) == [
        ("dom_1", "ok", 1, 1),
        ("tok_1", "node_error", 1, 0),
        ("tok_1", "ok", 2, 1),
        ("tok_1", "rate_limited", 1, 0),
    ]
    assert ledger.store.team_months("2026-11", {"team_1": ""}) == {"team_1": (4, 2, 2, 2, 0)}
    assert ledger.store.source_months("2026-11", ["tok_1", "dom_1", "tok_2"]) == {"tok_1": 3, "dom_1": 1}
    assert ledger.store.marks() == {ID: Mark(99, done=True)}
    assert ledger.sql("SELECT id, next_no FROM teams") == [("team_1", 6)]


def test_batch_that_cannot_be_posted_leaves_nothing(ledger: Ledger) -> None:
    before = ledger.everything()

    def fail(_: Opening) -> Posting:
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError):
        ledger.store.commit({ID: Mark(5)}, [], fail, NOON)
    assert ledger.everything() == before


def test_failure_after_the_rows_takes_them_back(ledger: Ledger) -> None:
    ledger.commit(entry())
    before = ledger.everything()
    with pytest.raises(IntegrityError) as failure:
        ledger.commit(entry(), entry(team="team_2"), marks={ID: Mark(cast("int", None))})
    assert ledger.everything() == before
    assert repr(ID) not in str(failure.value), "no recorded value is in an error's text"


def test_ledger_is_locked_for_writing_from_the_first_read_on(ledger: Ledger) -> None:
    def look(opening: Opening) -> Posting:
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            ledger.sql("INSERT INTO closed_months VALUES ('2026-11', 1)")
        seen.append(opening.closed)
        return Posting()

    seen: list[frozenset[str]] = []
    ledger.store.commit({ID: Mark(5)}, ["team_1"], look, NOON)
    ledger.sql("INSERT INTO closed_months VALUES ('2026-10', 1)")
    ledger.store.commit({ID: Mark(5)}, ["team_1"], look, NOON)
    assert seen == [frozenset(), frozenset({"2026-10"})]


@pytest.mark.parametrize(
    ("stored", "known"),
    [
        (None, {ID: Mark(5)}),
        (Mark(5), {}),
        (Mark(5), {ID: Mark(6)}),
        (Mark(5), {ID: Mark(5, done=True)}),
        (Mark(5, done=True), {ID: Mark(5)}),
    ],
)
def test_batch_that_was_read_from_elsewhere_is_refused_whole(
    ledger: Ledger, stored: Mark | None, known: dict[bytes, Mark]
) -> None:
    if stored is not None:
        ledger.commit(marks={ID: stored})
    before = ledger.everything()
    with pytest.raises(LedgerBehind):
        ledger.commit(entry(), marks={ID: Mark(9)}, known=known)
    assert ledger.everything() == before
    ledger.commit(entry(), marks={ID: Mark(9)}, known={} if stored is None else {ID: stored})
    assert ledger.store.marks() == {ID: Mark(9)}


def test_commit_survives_a_power_cut(ledger: Ledger) -> None:
    with ledger.store._engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2  # FULL
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"


def test_collector_waits_while_a_month_is_closed(ledger: Ledger) -> None:
    with ledger.store._engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar() == storing.BUSY_MILLISECONDS


@pytest.mark.e2e  # as many as a statement may not name at once: some seconds
def test_batches_of_very_many_teams_and_segments_are_fine(ledger: Ledger) -> None:
    marks = {number.to_bytes(16, "big"): Mark(number) for number in range(33_000)}
    posting = ledger.commit(*(entry(team=f"team_{number}") for number in range(33_000)), marks=marks, known={})
    assert posting.entries == 33_000
    ledger.commit(entry(team="team_7"), marks=marks, known=marks)
    assert ledger.sql("SELECT sum(requests), max(requests), count(*) FROM months") == [(33_001, 2, 33_000)]
    assert len(ledger.store.source_months("2026-11", [f"tok_{number}" for number in range(33_000)])) == 1


# --- Days --------------------------------------------------------------------------------------------------


def test_rows_belong_to_the_day_of_their_commit_not_of_their_time(ledger: Ledger) -> None:
    ledger.commit(entry(at=NOON - 3 * DAY))
    ledger.now += DAY
    ledger.commit(entry(), entry())
    assert [block[:4] for block in stored_blocks(ledger.path)] == [
        ("20261115", "team_1", 1, 1),
        ("20261116", "team_1", 2, 2),
    ]


def test_clock_that_is_set_back_does_not_reopen_a_day(ledger: Ledger) -> None:
    ledger.now += DAY
    ledger.commit(entry())
    ledger.now -= DAY
    ledger.commit(entry())
    assert ledger.sql("SELECT day FROM days") == [("20261116",)]
    assert ledger.rows("seq") == [(1,), (2,)]


def test_times_of_commits_never_go_back_although_the_clock_was_seen_to(ledger: Ledger) -> None:
    ledger.now += 3_600
    ledger.commit(entry())
    ledger.store.tick(NOON)
    ledger.now -= 3_000
    ledger.commit(entry())
    assert ledger.sql("SELECT committed_at FROM shared_blocks") == [(NOON + 3_600,)] * 2


def test_time_is_noted_by_commits_and_also_while_nothing_is_committed(ledger: Ledger) -> None:
    assert ledger.store.clock() == Clock()
    assert ledger.store.tick(NOON) == ledger.store.clock() == Clock(NOON)
    ledger.now += 2 * DAY
    ledger.commit(entry())
    ledger.store.tick(NOON + 4 * DAY)
    assert ledger.store.clock() == Clock(NOON + 4 * DAY)
    ledger.now += 40 * DAY
    ledger.commit(entry())
    assert ledger.store.clock() == Clock(ledger.now, doubted_at=ledger.now), "it jumped"


def test_old_days_are_dropped_and_numbers_go_on(ledger: Ledger) -> None:
    for _ in range(3):
        ledger.commit(entry())
        ledger.now += DAY
    assert ledger.store.drop_days("20261117") == ["20261115", "20261116"]
    assert ledger.rows("seq") == [(3,)], "gone for readers at once"
    ledger.chores()
    tables = [
        name for (name,) in ledger.sql("SELECT name FROM sqlite_master WHERE name GLOB '*_2026*' ORDER BY 1")
    ]
    assert tables == ["blocks_20261117", "data_20261117", "ix_blocks_20261117_open"]
    ledger.commit(entry())
    assert ledger.rows("seq") == [(3,), (4,)]
    assert ledger.sql("SELECT sum(requests) FROM usage_all") == [(4,)], "usage is kept for ever"


def test_dropped_day_is_deleted_in_slices(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_engine, "SLICE_DATA", 2)
    for _ in range(5):
        ledger.commit(*(entry() for _ in range(ENOUGH_ENTRIES)))
    ledger.commit(entry())
    ledger.store.drop_days("20270101")
    assert ledger.sql("SELECT count(*) FROM shared_blocks") == [(0,)]
    left = []
    while ledger.store.sweep(0):
        with suppress(sqlite3.OperationalError):
            left.append(ledger.sql("SELECT count(*) FROM data_20261115")[0][0])
    assert left == [3, 1]


def test_headers_of_a_dropped_day_are_deleted_in_slices(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_engine, "SLICE_HEADERS", 2)
    for _ in range(5):
        ledger.commit(*(entry() for _ in range(ENOUGH_ENTRIES)))
    headers = "SELECT count(*) FROM blocks_20261115"
    assert ledger.sql(headers) == [(5,)]
    ledger.store.drop_days("20270101")
    left = []
    while ledger.store.sweep(0):
        with suppress(sqlite3.OperationalError):
            left.append(ledger.sql(headers)[0][0])
    assert left == [3, 1]
    assert ledger.sql("SELECT name FROM sqlite_master WHERE name GLOB '*_2026*'") == []


def test_numbers_go_on_also_after_the_last_day_was_dropped(ledger: Ledger) -> None:
    ledger.commit(entry(), entry())
    assert ledger.store.drop_days("20270101") == ["20261115"]
    assert ledger.store.drop_days("20270101") == []
    ledger.now += 60 * DAY
    assert ledger.commit(entry()).next_no == {"team_1": 4}


# --- Blocks ------------------------------------------------------------------------------------------------


def check_commits(ledger: Ledger) -> None:
    """Each block was committed when the newest of its rows was, of which there are two a second."""
    found = ledger.sql("SELECT first_no + rows - 1, committed_at FROM blocks_20261115")
    assert found == [(last, NOON + (last - 1) // 2) for last, _ in found]


def test_small_blocks_of_teams_are_joined_level_by_level_and_nothing_else_changes(ledger: Ledger) -> None:
    teams = [f"team_{number}" for number in range(6)]
    for number in range(ledger_blocks.FAN * 3):
        ledger.now = NOON + number
        ledger.commit(*(entry("ok", "node_error", team=team, request_id=b"%d" % number) for team in teams))
    before = sorted(stored_rows(ledger.path), key=lambda row: (row.team_id, row.seq))
    count = len(stored_blocks(ledger.path))
    while ledger.store.join():
        pass
    blocks = stored_blocks(ledger.path)
    assert len(blocks) <= count // ledger_blocks.FAN + len(teams)
    check_commits(ledger)
    assert sorted(stored_rows(ledger.path), key=lambda row: (row.team_id, row.seq)) == before
    ledger.now += DAY
    ledger.commit(entry(team="team_9"))
    ledger.chores()
    settled = [block for block in stored_blocks(ledger.path) if block[0] == "20261115"]
    assert [block[1:4] for block in settled] == [(team, 1, 2 * 3 * ledger_blocks.FAN) for team in teams]
    assert {block[4] for block in settled} == {FINAL}
    check_commits(ledger)
    rows = [row for row in stored_rows(ledger.path) if row.team_id != "team_9"]
    assert sorted(rows, key=lambda row: (row.team_id, row.seq)) == before
    assert ledger.sql("SELECT sum(blocks) FROM data_20261115") == [(len(teams),)], "no data without a block"


def open_blocks(ledger: Ledger) -> list[tuple[Any, ...]]:
    return ledger.sql("SELECT team_id, first_no, rows, level FROM blocks_20261115 ORDER BY 1, 2")


def commit_and_sort(ledger: Ledger, times: int) -> None:
    """Commit two rows of one team and one of another, and do what is to be done, so many times."""
    for _ in range(times):
        ledger.commit(entry(), entry(), entry(team="team_2"))
        while ledger.store.join():
            pass


def test_blocks_of_a_team_are_joined_when_their_level_has_enough_generations(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_shared, "MAX_COMMITS", 1)
    monkeypatch.setattr(storing, "FAN", 3)
    commit_and_sort(ledger, 5)
    assert open_blocks(ledger) == [
        ("team_1", 1, 6, 2), ("team_1", 7, 2, 1), ("team_1", 9, 2, 1),
        ("team_2", 1, 3, 2), ("team_2", 4, 1, 1), ("team_2", 5, 1, 1),
    ]  # fmt: skip
    commit_and_sort(ledger, 4)
    assert open_blocks(ledger) == [("team_1", 1, 18, 3), ("team_2", 1, 9, 3)]
    assert ledger.sql("SELECT blocks FROM data_20261115") == [(2,)], "no data without a block"
    assert len(stored_rows(ledger.path)) == 27


@pytest.mark.parametrize(
    ("limits", "places"),
    [
        ((4, 9), [("team_1", 3), ("team_2", 2)]),
        ((9, 2), [("team_1", 3), ("team_2", 1), ("team_2", 3)]),
        ((9, 6), [("team_2", 3)]),
        ((10, 7), []),
    ],
)
def test_slice_ends_with_the_block_that_fills_it_and_the_next_begins_behind_it(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int], places: list[tuple[str, int]]
) -> None:
    monkeypatch.setattr(ledger_shared, "MAX_COMMITS", 1)
    commit_and_sort(ledger, 3)
    monkeypatch.setattr(ledger_blocks, "SLICE_ENTRIES", limits[0])
    monkeypatch.setattr(ledger_blocks, "SLICE_BLOCKS", limits[1])
    with ledger.store._engine.connect() as connection:
        blocks = DayBlocks(connection, "20261115")
        joining: Joining | None = Joining(1, generation=0)
        found: list[tuple[str, int]] = []
        while (joining := blocks.join(cast("Joining", joining))) is not None:
            found.append(joining.after)
    assert found == places


def test_joining_is_done_in_slices_beside_which_commits_go_on(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_blocks, "SLICE_ENTRIES", 3)
    monkeypatch.setattr(ledger_shared, "SLICE_ENTRIES", 3)
    monkeypatch.setattr(ledger_shared, "MAX_COMMITS", 1)
    teams = [f"team_{number}" for number in range(4)]
    for _ in range(ledger_blocks.FAN):
        ledger.commit(*(entry(team=team) for team in teams))
    slices = 0
    while ledger.store.join():
        slices += 1
        if slices <= len(teams):
            ledger.commit(*(entry(team=team) for team in teams))
    assert slices > len(teams)
    numbers: dict[str, list[int]] = {}
    for team, seq in sorted(ledger.rows("team_id, seq")):
        numbers.setdefault(team, []).append(seq)
    assert all(each == list(range(1, ledger_blocks.FAN + len(teams) + 1)) for each in numbers.values())


@pytest.mark.parametrize(("limit", "bound"), [("MAX_ENTRIES", 6), ("MAX_COMMITS", 2)])
def test_shared_blocks_are_sorted_as_soon_as_there_are_enough(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, limit: str, bound: int
) -> None:
    monkeypatch.setattr(ledger_shared, limit, bound)
    ledger.chores()
    commit_and_sort(ledger, 1)
    assert open_blocks(ledger) == []
    commit_and_sort(ledger, 1)
    assert open_blocks(ledger) == [("team_1", 1, 4, 1), ("team_2", 1, 2, 1)]
    assert ledger.sql("SELECT * FROM shared_blocks") == []


def test_shared_blocks_are_sorted_in_slices_of_the_oldest(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        ledger.commit(entry("ok", "ok"))
    monkeypatch.setattr(ledger_shared, "MAX_COMMITS", 1)
    monkeypatch.setattr(ledger_shared, "SLICE_ENTRIES", 4)
    assert ledger.store.join()
    assert open_blocks(ledger) == [("team_1", 1, 4, 1)]
    assert ledger.sql("SELECT id FROM shared_blocks") == [(3,)]


def test_large_block_is_final_at_once_and_a_larger_batch_is_several_of_one_size(ledger: Ledger) -> None:
    ledger.commit(*(entry() for _ in range(2_500)))
    assert [(rows, level) for *_, rows, level in stored_blocks(ledger.path)] == [(834, 9), (834, 9), (832, 9)]


def test_usage_is_folded_and_the_view_shows_the_same_before_and_after(ledger: Ledger) -> None:
    view = "SELECT team_id, hour, method, outcome, sum(requests), sum(cost) FROM usage_all GROUP BY 1, 2, 3, 4"
    for _ in range(3):
        ledger.commit(entry("ok", "node_error"), entry("rate_limited", team="team_2"))
    before = ledger.sql(view)
    while ledger.store.fold():
        pass
    assert ledger.sql(view) == before
    folded = ledger.sql("SELECT team_id, outcome, buckets FROM latencies ORDER BY 1, 2")
    assert [(team, outcome, sum(msgspec.msgpack.decode(each).values())) for team, outcome, each in folded] == [
        ("team_1", "node_error", 3),
        ("team_1", "ok", 3),
        ("team_2", "rate_limited", 3),
    ]
    assert ledger.sql("SELECT count(*) FROM usage_new UNION ALL SELECT count(*) FROM latencies_new") == [
        (0,),
        (0,),
    ]
    assert ledger.sql("SELECT count(*) FROM usage") == [(3,)]


def test_what_was_appended_is_folded_in_slices_and_adds_up(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_usage, "SLICE_LINES", 2)
    left = "SELECT (SELECT count(*) FROM usage_new), (SELECT count(*) FROM latencies_new)"
    for micros in (10, 10, 900):
        ledger.commit(entry("ok", "node_error", duration_micros=micros))
    slices = []
    while ledger.store.fold():
        slices += ledger.sql(left)
    assert slices == [(2, 3), (1, 3), (0, 3), (0, 2), (0, 1)]
    assert ledger.sql(left) == [(0, 0)]
    assert ledger.sql("SELECT outcome, requests FROM usage ORDER BY outcome") == [("node_error", 3), ("ok", 3)]
    buckets = {bucket_of(10): 2, bucket_of(900): 1}
    found = {
        outcome: msgspec.msgpack.decode(each)
        for outcome, each in ledger.sql("SELECT outcome, buckets FROM latencies")
    }
    assert found == {"node_error": buckets, "ok": buckets}


# --- Segments ----------------------------------------------------------------------------------------------


def test_marks_of_some_segments(ledger: Ledger) -> None:
    other = b"\2" * 16
    ledger.commit(marks={ID: Mark(5), other: Mark(7, done=True)})
    assert ledger.store.marks([other, b"\3" * 16]) == {other: Mark(7, done=True)}
    assert ledger.store.marks([]) == {}


def test_only_finished_segments_are_forgotten_after_long(ledger: Ledger) -> None:
    done, going, young = (bytes([number]) * 16 for number in (1, 2, 3))
    ledger.commit(marks={done: Mark(1, done=True), going: Mark(1)})
    ledger.now += 10
    ledger.commit(marks={young: Mark(1, done=True)})
    ledger.store.forget_segments(NOON + 5)
    assert set(ledger.store.marks()) == {going, young}


# --- Uses --------------------------------------------------------------------------------------------------


def test_last_uses_are_those_of_the_last_seconds_before_the_newest_commit(ledger: Ledger) -> None:
    assert ledger.store.last_uses(10.0) == {}
    ledger.commit(entry(source="tok_old", at=NOON - 1))
    ledger.now += 30
    ledger.commit(entry(source="tok_1", at=NOON + 25), entry(source="tok_2", at=NOON + 29))
    ledger.now += 5
    ledger.commit(entry(source="tok_1", at=NOON + 20))
    assert ledger.store.last_uses(10.0) == {"tok_1": NOON + 25, "tok_2": NOON + 29}
    ledger.now = NOON + DAY
    ledger.commit(entry(source="tok_3", at=NOON + DAY))
    assert ledger.store.last_uses(10.0) == {"tok_3": NOON + DAY}
    assert ledger.store.last_uses(2 * DAY)["tok_old"] == NOON - 1


def test_last_uses_are_found_in_the_blocks_of_two_days_and_without_those_that_are_damaged(ledger: Ledger) -> None:
    for source in ("tok_1", "tok_2"):
        ledger.commit(*(entry(source=source) for _ in range(ENOUGH_ENTRIES)))
    ledger.now += DAY
    ledger.commit(entry(source="tok_3", at=ledger.now))
    everything = {"tok_1": NOON, "tok_2": NOON, "tok_3": ledger.now}
    assert ledger.store.last_uses(DAY) == everything, "the new day has no block of its own yet"
    ledger.now += DAY
    ledger.commit(*(entry(source="tok_4", at=ledger.now) for _ in range(ENOUGH_ENTRIES)))
    assert ledger.store.last_uses(2 * DAY) == {**everything, "tok_4": ledger.now}
    spoil(ledger, "data_20261115", 1)
    assert ledger.store.last_uses(2 * DAY).keys() == {"tok_2", "tok_3", "tok_4"}


def test_months_are_read_again_where_another_collector_has_added_to_them(ledger: Ledger) -> None:
    ledger.commit(entry())
    remembers, ledger.store = ledger.store, open_ledger(sqlite.ledger_url(ledger.path.parent))
    ledger.commit(entry())
    ledger.store.close()
    ledger.store = remembers
    ledger.commit(entry())
    assert ledger.rows("seq, cost") == [(1, 0), (2, 0), (3, 1)], "two are free"


def test_what_is_remembered_of_a_month_goes_on_from_commit_to_commit(ledger: Ledger) -> None:
    for _ in range(6):
        ledger.commit(entry(cap=3))
    assert ledger.rows("seq, cost") == [(1, 0), (2, 0), (3, 1), (4, 1), (5, 1), (6, 0)], "two are free, three paid"
    assert ledger.store.team_months("2026-11", {"team_1": ""}) == {"team_1": (6, 3, 4, 2, 0)}


def test_months_of_a_team_that_were_forgotten_are_read_again(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_usage, "MAX_MONTHS", 1)
    for team in ("team_1", "team_1", "team_2", "team_2", "team_1"):
        ledger.commit(entry(team=team))
    assert ledger.store.team_months("2026-11", {"team_1": "", "team_2": ""}) == {
        "team_1": (3, 1, 1, 2, 0),
        "team_2": (2, 0, 0, 2, 0),
    }


def test_more_months_than_are_remembered_are_read_again(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_usage, "MAX_MONTHS", 0)
    for _ in range(4):
        ledger.commit(entry())
    assert ledger.rows("seq, cost") == [(1, 0), (2, 0), (3, 1), (4, 1)]


# --- Damage ------------------------------------------------------------------------------------------------


def spoil(ledger: Ledger, table: str, key: int) -> None:
    (data,) = ledger.sql(f"SELECT data FROM {table} WHERE id = ?", key)[0]
    ledger.sql(f"UPDATE {table} SET data = ? WHERE id = ?", data[:-6] + b"\xff\xff" + data[-4:], key)


def test_damaged_shared_block_stays_and_the_others_are_sorted(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_shared, "MAX_COMMITS", 3)
    for _ in range(3):
        ledger.commit(entry(), entry(team="team_2"))
    spoil(ledger, "shared_blocks", 2)
    ledger.restart()
    ledger.chores()
    assert ledger.sql("SELECT id, is_damaged FROM shared_blocks ORDER BY id") == [(1, 0), (2, 1), (3, 0)]
    ledger.commit(entry(), entry(team="team_2"))
    ledger.chores()
    assert ledger.sql("SELECT id, is_damaged FROM shared_blocks") == [(2, 1)]
    blocks = ledger.sql("SELECT team_id, first_no, rows, level FROM blocks_20261115 ORDER BY 1, 2")
    assert blocks == [(team, *rest, 1) for team in ("team_1", "team_2") for rest in ((1, 1), (3, 2))]


def test_shared_block_that_is_damaged_while_it_is_remembered_is_sorted_whole(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_shared, "MAX_COMMITS", 2)
    for _ in range(2):
        ledger.commit(entry())
    spoil(ledger, "shared_blocks", 1)
    ledger.chores()
    assert ledger.sql("SELECT * FROM shared_blocks") == []
    assert ledger.rows("seq, outcome") == [(1, "ok"), (2, "ok")]


def test_shared_block_whose_parts_do_not_lie_in_it_stays_and_the_others_are_sorted(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_shared, "MAX_COMMITS", 2)
    for _ in range(2):
        ledger.commit(entry())
    parts = pack({"team_1": Part(1, Run(1, "2026-11", 0), 5, 1)})
    ledger.sql("UPDATE shared_blocks SET parts = ? WHERE id = 1", parts)
    ledger.chores()
    assert ledger.sql("SELECT id, is_damaged FROM shared_blocks ORDER BY id") == [(1, 1), (2, 0)]


def test_last_uses_are_known_also_where_a_shared_block_is_damaged(ledger: Ledger) -> None:
    ledger.commit(entry(source="tok_1", at=NOON))
    ledger.commit(entry(source="tok_2", at=NOON + 1))
    spoil(ledger, "shared_blocks", 1)
    assert ledger.store.last_uses(10.0) == {"tok_2": NOON + 1}


def test_damaged_data_of_small_blocks_is_not_joined_and_does_not_stop_others(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_shared, "MAX_COMMITS", 1)
    monkeypatch.setattr(storing, "FAN", 3)
    for _ in range(2):
        ledger.commit(entry())
        ledger.chores()
    spoil(ledger, "data_20261115", 2)
    ledger.commit(entry(), entry(team="team_2"))
    ledger.chores()
    blocks = ledger.sql("SELECT team_id, first_no, rows, level FROM blocks_20261115 ORDER BY 1, 2")
    assert blocks == [("team_1", 1, 1, 2), ("team_1", 2, 1, FINAL), ("team_1", 3, 1, 2), ("team_2", 1, 1, 2)]
