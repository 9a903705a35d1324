"""What collectors and readers of the ledger get from every backend: the same, to the last row."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError
from tests.contract.backends import params
from tests.contract.ledgers import DAY, HOMES, MONTH, NOON, PRICE, TEAMS, LedgerHarness, SqliteHome, entry, history

from tollgate.api.usage import By
from tollgate.core.invoices import Invoice, draw
from tollgate.core.pricing import MonthUse
from tollgate.core.usage import TeamMonth
from tollgate.store.base import AccountBook, Mark
from tollgate.store.ledger import LedgerBehind

ID = b"\1" * 16


@pytest.fixture(params=params(HOMES))
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LedgerHarness]:
    home = HOMES[request.param](tmp_path)
    made = LedgerHarness(home)
    yield made
    made.close()
    home.close()


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[LedgerHarness]:
    """SQLite's, to compare with; its own tests are in tests/store."""
    folder = tmp_path / "plain"
    folder.mkdir()
    made = LedgerHarness(SqliteHome(folder))
    yield made
    made.close()


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("ledger", "seed"), [("postgresql", 0), ("postgresql", 1), ("pgbouncer", 2)], indirect=["ledger"]
)
def test_readers_see_the_same_as_on_sqlite(ledger: LedgerHarness, plain: LedgerHarness, seed: int) -> None:
    for each in (ledger, plain):
        history(each, seed)
    assert ledger.seen() == plain.seen()
    for each in (ledger, plain):
        each.chores()
    assert ledger.seen() == plain.seen()
    assert ledger.store.drop_days("20261117") == plain.store.drop_days("20261117") != []
    for each in (ledger, plain):
        each.chores()
    assert ledger.seen() == plain.seen()


def test_batch_that_cannot_be_posted_leaves_nothing(ledger: LedgerHarness) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ledger.commit(entry(), marks={ID: Mark(99)}, meanwhile=fail)
    assert ledger.store.marks() == {}
    assert ledger.logs(TEAMS[0]) == []


@pytest.mark.parametrize("known", [{}, {ID: Mark(50)}, {ID: Mark(100, done=True)}])
def test_segment_that_was_read_from_elsewhere_is_refused_whole(
    ledger: LedgerHarness, known: dict[bytes, Mark]
) -> None:
    ledger.commit(entry(), marks={ID: Mark(100)}, known={})
    with pytest.raises(LedgerBehind):
        ledger.commit(entry(), marks={ID: Mark(200)}, known=known)
    assert ledger.store.marks() == {ID: Mark(100)}
    assert len(ledger.logs(TEAMS[0])) == 1


def test_of_two_collectors_that_read_the_same_segment_one_is_refused(ledger: LedgerHarness) -> None:
    """Both have looked before either has committed."""
    other = ledger.another()
    outcomes: list[object] = []

    def commit(by: LedgerHarness) -> None:
        try:
            by.commit(entry(), marks={ID: Mark(100)}, known={})
            outcomes.append("committed")
        except LedgerBehind:
            outcomes.append("refused")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(commit, (ledger, other)))
    other.close()
    assert sorted(map(str, outcomes)) == ["committed", "refused"]
    assert len(ledger.logs(TEAMS[0])) == 1


def test_collectors_at_once_number_rows_without_gaps_and_count_each_once(ledger: LedgerHarness) -> None:
    """With chores beside them: nothing of what is appended meanwhile may be lost."""
    others = [ledger.another() for _ in range(3)]

    def collect(number: int, by: LedgerHarness) -> None:
        for turn in range(15):
            teams = TEAMS if (turn + number) % 2 else tuple(reversed(TEAMS))
            by.commit(*(entry(team, NOON + turn) for team in teams for _ in range(3)))
            if turn % 3 == number:
                by.chores()

    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(collect, number, by) for number, by in enumerate(others)]:
            done.result()
    ledger.chores()
    for team in TEAMS:
        assert [row.seq for row in ledger.logs(team)] == list(range(135, 0, -1))
        assert sum(sums.requests for key, sums in ledger.facts().usage.items() if key[0] == team) == 135
    facts = ledger.facts()
    assert facts.usage == facts.logs
    assert {key: sums.cost for key, sums in facts.usage.items()} == {
        key: cost for key, (_, cost) in facts.months.items()
    }
    for each in others:
        each.close()


def test_new_day_that_several_begin_at_once_is_made_once(ledger: LedgerHarness) -> None:
    others = [ledger.another() for _ in range(3)]
    start = threading.Barrier(3)

    def collect(by: LedgerHarness, team: str) -> None:
        by.now = NOON + DAY
        start.wait(30)
        by.commit(entry(team))

    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(collect, by, team) for by, team in zip(others, TEAMS, strict=False)]:
            done.result()
    assert [len(ledger.logs(team)) for team in TEAMS] == [1, 1, 1, 0]
    for each in others:
        each.close()


# --- Months ------------------------------------------------------------------------------------------------


def closed(ledger: LedgerHarness, month: str = MONTH) -> list[Invoice] | None:
    def final(used: TeamMonth) -> Invoice:
        return draw(used, used.team_id, PRICE, issued_at=ledger.now)

    now = ledger.now  # whether a month is over is decided by the service
    found: list[Invoice] | None = ledger.account(lambda book: book.close_month(month, now, final))
    return found


def test_closed_month_has_all_that_was_committed_and_takes_nothing_more(ledger: LedgerHarness) -> None:
    ledger.commit(*(entry(team) for team in TEAMS for _ in range(60)))
    invoices = closed(ledger)
    assert invoices is not None
    assert [(each.team_id, each.billable, each.cost) for each in invoices] == [(team, 60, 10) for team in TEAMS]
    assert closed(ledger) is None
    before = ledger.account(lambda book: book.bill(TEAMS[0], MONTH))
    ledger.commit(entry())
    assert ledger.account(lambda book: book.bill(TEAMS[0], MONTH)) == before
    assert ledger.account(lambda book: book.usage(TEAMS[0], "2026-12", By.METHOD))[0].requests == 1


def test_commit_that_is_under_way_is_in_the_invoice_of_a_month_that_is_closed_meanwhile(
    ledger: LedgerHarness,
) -> None:
    other = ledger.another()
    inside, released = threading.Event(), threading.Event()

    def slowly() -> None:
        inside.set()
        released.wait(30)

    def close() -> list[Invoice] | None:
        inside.wait(30)
        # By then the closing waits for the commit; where it did not, it would be over.
        threading.Timer(0.3, released.set).start()
        return closed(ledger)

    with ThreadPoolExecutor(2) as pool:
        commit = pool.submit(other.commit, entry(), meanwhile=slowly)
        invoices = pool.submit(close).result()
        commit.result()
    other.close()
    assert invoices is not None
    assert [each.billable for each in invoices] == [1]


def test_month_that_is_closed_by_several_at_once_while_collectors_go_on_is_closed_once_and_exactly(
    ledger: LedgerHarness,
) -> None:
    collectors, turns = [ledger.another() for _ in range(2)], 20
    half = threading.Barrier(6)

    def collect(by: LedgerHarness) -> None:
        for turn in range(turns):
            if turn == turns // 2:
                half.wait(30)
            by.commit(*(entry(team) for team in TEAMS for _ in range(3)))
            by.chores()

    def close(_: int) -> list[Invoice] | None:
        half.wait(30)
        return closed(ledger)

    with ThreadPoolExecutor(6) as pool:
        collecting = [pool.submit(collect, by) for by in collectors]
        (invoices,) = [drawn for drawn in pool.map(close, range(4)) if drawn is not None]
        for collected in collecting:
            collected.result()
    for by in collectors:
        by.close()
    assert [invoice.team_id for invoice in invoices] == list(TEAMS)
    assert ledger.account(lambda book: book.invoices(100)) == invoices
    for invoice in invoices:
        billed = ledger.account(partial(_billed, invoice.team_id, MONTH))
        assert billed == (invoice.billable, invoice.cost) == (invoice.billable, invoice.billable - 50)
        late = ledger.account(partial(_billed, invoice.team_id, "2026-12"))
        assert invoice.billable + late[0] == 2 * turns * 3
    facts = ledger.facts()
    assert facts.usage == facts.logs


async def _billed(team: str, month: str, book: AccountBook) -> tuple[int, int]:
    used = (await book.bill(team, month)).used
    return used.billable, used.cost


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE invoices SET cost = 0",
        "DELETE FROM invoices",
        "DELETE FROM closed_months",
        "UPDATE usage SET requests = 0",
        "DELETE FROM usage",
        "UPDATE months SET requests = 0",
        f"INSERT INTO months VALUES ('team_x', '{MONTH}', 1, 1, 1, 0)",
        f"INSERT INTO usage_new (month, hour, lines) VALUES ('{MONTH}', 1, '{{}}')",
    ],
)
def test_database_itself_refuses_to_change_what_is_final(ledger: LedgerHarness, statement: str) -> None:
    ledger.commit(entry())
    closed(ledger)
    with pytest.raises(Exception, match=r"final|closed"):
        ledger.home.by_hand(statement)


# --- Retention ---------------------------------------------------------------------------------------------


def test_dropped_days_are_gone_for_readers_at_once_and_from_the_database_after_a_chore(
    ledger: LedgerHarness,
) -> None:
    for day in range(3):
        ledger.now = NOON + day * DAY
        ledger.commit(*(entry() for _ in range(300)))
    ledger.chores()
    assert ledger.store.drop_days("20261117") == ["20261115", "20261116"]
    assert len(ledger.logs(TEAMS[0])) == 300
    ledger.chores()
    with pytest.raises((DBAPIError, Exception), match=r"blocks_20261115"):
        ledger.home.by_hand("SELECT * FROM blocks_20261115")
    ledger.commit(entry())
    assert ledger.logs(TEAMS[0])[0].seq == 901


def test_clock_of_one_collector_behind_the_other_does_not_disorder_pages(ledger: LedgerHarness) -> None:
    other = ledger.another()
    ledger.now, other.now = NOON + DAY / 2 + 5, NOON + DAY / 2 - 5
    for _ in range(4):
        ledger.commit(entry())
        other.commit(entry())
    assert [row.seq for row in ledger.logs(TEAMS[0])] == list(range(8, 0, -1))
    rows: Any = ledger.logs(TEAMS[0], since=NOON - 1)
    assert len(rows) == 8
    other.close()


# --- Payers and leases of calls ----------------------------------------------------------------------------


def test_collectors_at_once_give_a_payer_its_free_requests_once(ledger: LedgerHarness) -> None:
    """Each commits calls of another team of the same payer."""
    collectors = [ledger, *(ledger.another() for _ in range(2))]
    barrier = threading.Barrier(len(collectors))

    def work(collector: LedgerHarness, team: str) -> None:
        barrier.wait()
        for _ in range(5):
            collector.commit(*[entry(team, payer="acc_1")] * PRICE.free_requests)

    with ThreadPoolExecutor(len(collectors)) as pool:
        for done in [pool.submit(work, *pair) for pair in zip(collectors, TEAMS, strict=False)]:
            done.result()
    uses = ledger.store.team_months(MONTH, dict.fromkeys(TEAMS[:3], "acc_1"))
    assert sum(use.free for use in uses.values()) == PRICE.free_requests
    assert sum(use.cost for use in uses.values()) == PRICE.total(15 * PRICE.free_requests)
    assert [use.others_free + use.free for use in uses.values()] == [PRICE.free_requests] * 3
    for each in collectors[1:]:
        each.close()


def test_leases_of_calls_add_up_to_what_is_left(ledger: LedgerHarness) -> None:
    other = ledger.another()

    def lease(collector: LedgerHarness, node: str, now: float, most: int = 1_000) -> int:
        def share(_team: str, use: MonthUse, others: int, _is_alone: bool) -> int:
            return min(most, max(0, 100 - use.requests - others))

        return collector.store.lease_calls(node, MONTH, {TEAMS[0]: ""}, share, now, now + 60.0)[TEAMS[0]]

    assert lease(ledger, "one", NOON, 70) == 70
    assert lease(other, "two", NOON + 1) == 30
    ledger.commit(*[entry()] * 40)
    assert lease(ledger, "one", NOON + 2) == 30
    assert lease(other, "two", NOON + 3) == 30
    assert lease(other, "two", NOON + 70) == 60, "the lease of a node that is gone has ended"
    other.close()


def test_node_knows_whether_others_lease(ledger: LedgerHarness) -> None:
    seen: list[bool] = []

    def share(_team: str, _use: MonthUse, _others: int, is_alone: bool) -> int:
        seen.append(is_alone)
        return 0

    for node in ("one", "two", "one"):
        ledger.store.lease_calls(node, MONTH, {TEAMS[0]: ""}, share, NOON, NOON + 60.0)
    assert seen == [True, False, False]
