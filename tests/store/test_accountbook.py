"""Usage and invoices in the ledger: exact sums, months that close for good, and races with the collector."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from sqlalchemy.exc import IntegrityError
from tests.store.account_rows import (
    ACME,
    AFTER,
    BEFORE,
    CD,
    CI,
    MONTH,
    NOON,
    RIVAL,
    WEB,
    Books,
    calls,
)
from tests.store.migrated import make_ledger
from tests.store.stored_blocks import stored_rows

from tollgate.api.usage import By, Split
from tollgate.core.invoices import Invoice, draw
from tollgate.core.latencies import bucket_of
from tollgate.core.models import Team
from tollgate.core.months import end_of, start_of
from tollgate.core.pricing import MILLION, MonthUse, Price
from tollgate.core.usage import MonthTotals, Period, Point, TeamMonth, UsageItem
from tollgate.store import sqlite
from tollgate.store.accountbook import SqlAccountBook
from tollgate.store.base import StoreUnavailable

DAY = 86_400.0
CLOSED_AT = end_of(MONTH) + 2 * DAY


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Books]:
    make_ledger(tmp_path)
    made = Books(tmp_path)
    yield made
    made.close()


@pytest.fixture
async def book(books: Books) -> AsyncIterator[SqlAccountBook]:
    opened = sqlite.open_accountbook(books.url)
    yield opened
    await opened.close()


def final(used: TeamMonth) -> Invoice:
    return draw(used, "acme", Price(), issued_at=CLOSED_AT)


# ---- usage


async def test_usage_by_each_of_the_five_views(books: Books, book: SqlAccountBook) -> None:
    books.commit(
        calls(3, source=CI),
        calls(4, source=CD, method="eth_chainId", at=NOON + DAY),
        calls(5, source=WEB, network="eth/sepolia"),
        calls(7, source=CI, outcome="rate_limited"),
        calls(100, team=RIVAL),
    )
    found = {by: await book.usage(ACME, MONTH, by) for by in By}
    assert found[By.TOKEN] == [UsageItem("", 5, 5, 0), UsageItem(CD, 4, 4, 0), UsageItem(CI, 10, 3, 0)]
    assert found[By.DOMAIN] == [UsageItem("", 14, 7, 0), UsageItem(WEB, 5, 5, 0)]
    assert found[By.NETWORK] == [UsageItem("eth/mainnet", 14, 7, 0), UsageItem("eth/sepolia", 5, 5, 0)]
    assert found[By.METHOD] == [UsageItem("eth_call", 15, 8, 0), UsageItem("eth_chainId", 4, 4, 0)]
    assert found[By.DAY] == [UsageItem("2026-11-15", 15, 8, 0), UsageItem("2026-11-16", 4, 4, 0)]


async def test_every_way_of_listing_adds_up_to_the_month(books: Books, book: SqlAccountBook) -> None:
    for number in range(50):
        source = (CI, CD, WEB)[number % 3]
        books.commit(calls(99_991, NOON + number * 7_000, source=source, outcome=("ok", "node_error")[number % 2]))
    month = (await book.spent(MONTH, [Team(ACME, "acme")]))[ACME][:2]
    assert month == (50 * 99_991, (50 * 99_991 - MILLION) * 5)
    for by in By:
        items = await book.usage(ACME, MONTH, by)
        assert (sum(item.billable for item in items), sum(item.cost for item in items)) == month
        assert sum(item.requests for item in items) == 50 * 99_991


async def test_a_month_without_usage_is_empty(book: SqlAccountBook) -> None:
    assert await book.usage(ACME, MONTH, By.DAY) == []
    assert await book.spent(MONTH, [Team(ACME, "acme")]) == {ACME: MonthUse()}
    bill = await book.bill(ACME, MONTH)
    assert (bill.used, bill.closed, bill.invoice) == (TeamMonth(ACME, MONTH), False, None)


async def test_series_is_the_sums_of_its_steps(books: Books, book: SqlAccountBook) -> None:
    first = int(NOON) // 3_600
    for place, count in ((0, 1), (1, 2), (2, 4), (5, 8), (6, 16), (-1, 32)):
        books.commit(calls(count, NOON + 3_600 * place))
    found = await book.series(ACME, [MONTH], (first, first + 6), 2, Split.NETWORK)
    expected = [
        Point(first, "eth/mainnet", 3),
        Point(first + 2, "eth/mainnet", 4),
        Point(first + 4, "eth/mainnet", 8),
    ]
    assert sorted(found, key=lambda point: point.start) == expected
    later = await book.series(ACME, [MONTH], (first + 1, first + 7), 3, Split.NETWORK)
    expected = [Point(first + 1, "eth/mainnet", 6), Point(first + 4, "eth/mainnet", 24)]
    assert sorted(later, key=lambda point: point.start) == expected
    whole = await book.series(ACME, [MONTH], (first, first), 0, Split.NETWORK)
    assert whole == [Point(int(start_of(MONTH)) // 3_600, "eth/mainnet", 63)]


async def test_spenders_are_those_to_whom_a_month_cost_most(books: Books, book: SqlAccountBook) -> None:
    books.commit(calls(MILLION + 5, team=RIVAL), calls(MILLION + 7), calls(3, team="team_none"))
    expected = {ACME: (MILLION + 7, 35), RIVAL: (MILLION + 5, 25)}
    total, found = await book.spenders(MONTH, 2)
    assert (total.teams, total.billable, total.cost) == (3, 2 * MILLION + 15, 60)
    assert list(found.items()) == list(expected.items())
    assert await book.spenders(BEFORE, 2) == (MonthTotals(0, 0, 0), {})


async def test_latencies_are_those_of_a_team_and_some_hours_folded_or_not(
    books: Books, book: SqlAccountBook
) -> None:
    hour = int(NOON) // 3_600
    for _ in range(2):
        while books.ledger.fold():
            pass
        books.commit(
            *(calls(1, NOON + 3_600 * place, micros=10) for place in (-1, 0, 1, 2)),
            calls(1, micros=900),
            calls(1, micros=10, outcome="node_error"),
            calls(1, micros=10, team=RIVAL),
        )
    assert await book.latencies(ACME, hour, hour + 1) == {
        ("eth/mainnet", "ok"): {bucket_of(10): 4, bucket_of(900): 2},
        ("eth/mainnet", "node_error"): {bucket_of(10): 2},
    }
    assert await book.latencies("team_none", hour, hour + 1) == {}


# ---- closing


async def test_closing_writes_one_invoice_for_each_team_that_used_something(
    books: Books, book: SqlAccountBook
) -> None:
    books.commit(calls(MILLION + 2), calls(3, team=RIVAL, outcome="rate_limited"), calls(9, start_of(BEFORE)))
    assert await book.open_months(AFTER) == [BEFORE, MONTH]
    assert await book.open_months(MONTH) == [BEFORE]
    drawn = await book.close_month(MONTH, CLOSED_AT, final)
    assert drawn is not None
    assert [(each.team_id, each.requests, each.billable, each.cost) for each in drawn] == [
        (ACME, MILLION + 2, MILLION + 2, 10),
        (RIVAL, 3, 0, 0),
    ]
    assert await book.invoices(10, team_id=ACME) == drawn[:1]
    assert await book.invoices(10, month=MONTH) == drawn
    assert (await book.bill(ACME, MONTH)).invoice == drawn[0]
    assert (await book.is_closed(MONTH), await book.is_closed(BEFORE)) == (True, False)
    assert await book.open_months(AFTER) == [BEFORE]


async def test_a_month_closes_once(books: Books, book: SqlAccountBook) -> None:
    books.commit(calls(3))
    first = await book.close_month(MONTH, CLOSED_AT, final)
    assert await book.close_month(MONTH, CLOSED_AT + 1, final) is None
    assert await book.invoices(10) == first


async def test_of_two_that_close_at_once_one_does(books: Books, book: SqlAccountBook) -> None:
    books.commit(calls(3), calls(4, team=RIVAL))
    both = await asyncio.gather(*(book.close_month(MONTH, CLOSED_AT, final) for _ in range(2)))
    assert sorted(len(each) if each is not None else -1 for each in both) == [-1, 2]
    assert len(await book.invoices(10)) == 2


async def test_a_month_in_which_nothing_happened_closes_too(books: Books, book: SqlAccountBook) -> None:
    assert await book.close_month(MONTH, CLOSED_AT, final) == []
    books.commit(calls(3), now=CLOSED_AT)
    assert await book.spent(AFTER, [Team(ACME, "acme")]) == {ACME: MonthUse(3, free=3)}
    assert (await book.bill(ACME, MONTH)).closed


async def test_a_failing_invoice_leaves_the_month_open(books: Books, book: SqlAccountBook) -> None:
    books.commit(calls(3), calls(4, team=RIVAL))

    def broken(used: TeamMonth) -> Invoice:
        if used.team_id == RIVAL:
            raise ArithmeticError
        return final(used)

    with pytest.raises(ArithmeticError):
        await book.close_month(MONTH, CLOSED_AT, broken)
    assert not await book.is_closed(MONTH)
    assert await book.invoices(10) == []
    assert await book.close_month(MONTH, CLOSED_AT, final) is not None


async def test_what_comes_late_is_billed_in_the_next_month_and_distinguished(
    books: Books, book: SqlAccountBook
) -> None:
    books.commit(calls(3))
    await book.close_month(MONTH, CLOSED_AT, final)
    books.commit(calls(5), calls(6, end_of(MONTH) - 0.001), calls(7, end_of(MONTH)), now=CLOSED_AT)
    bill = await book.bill(ACME, AFTER)
    assert bill.used.periods == (Period(MONTH, 11, 11, 0), Period(AFTER, 7, 7, 0))
    assert [line.of_month for line in draw(bill.used, "acme", Price()).lines] == [MONTH, None, None]
    assert (await book.bill(ACME, MONTH)).used.requests == 3


# ---- the race with the collector


async def test_a_collector_that_did_not_see_the_closing_cannot_commit_to_the_month(
    books: Books, book: SqlAccountBook
) -> None:
    books.commit(calls(3))
    stale: frozenset[str] = frozenset()
    drawn = await book.close_month(MONTH, CLOSED_AT, final)
    before = books.sql("SELECT * FROM usage")
    with pytest.raises(IntegrityError, match="the month is closed"):
        books.commit(calls(5), closed=stale)
    assert books.sql("SELECT * FROM usage") == before
    assert [row.stands_for for row in stored_rows(books.folder / "ledger.db")] == [3]
    assert await book.invoices(10) == drawn
    books.commit(calls(5), now=CLOSED_AT)
    assert await book.spent(AFTER, [Team(ACME, "acme")]) == {ACME: MonthUse(5, free=5)}


async def test_closing_waits_for_a_commit_under_way_and_counts_it(books: Books, book: SqlAccountBook) -> None:
    async def race() -> list[Invoice] | None:
        closing: list[asyncio.Task[list[Invoice] | None]] = []
        started = asyncio.Event()

        def meanwhile() -> None:
            def begin() -> None:
                closing.append(loop_.create_task(book.close_month(MONTH, CLOSED_AT, final)))
                started.set()

            asyncio.run_coroutine_threadsafe(_call(begin), loop_).result(5)

        loop_ = asyncio.get_running_loop()
        await asyncio.to_thread(lambda: books.commit(calls(5), now=CLOSED_AT, meanwhile=meanwhile))
        await started.wait()
        return await closing[0]

    drawn = await race()
    assert drawn is not None
    assert [each.billable for each in drawn] == [5]


async def _call(work: object) -> None:
    assert callable(work)
    work()


async def test_no_call_falls_between_two_months_while_a_busy_collector_goes_on(
    books: Books, book: SqlAccountBook
) -> None:
    batches, half = 120, threading.Event()
    refused: list[IntegrityError] = []

    def collect() -> None:
        busy = Books(books.folder)
        for number in range(batches):
            if number == batches // 2:
                half.set()
            while True:
                try:
                    busy.commit(calls(number + 1, team=(ACME, RIVAL)[number % 2]), now=CLOSED_AT)
                    break
                except IntegrityError as error:  # it read before the month was closed: it reads again
                    refused.append(error)
        busy.close()

    working = asyncio.get_running_loop().run_in_executor(None, collect)
    await asyncio.to_thread(half.wait, 30)
    drawn = await book.close_month(MONTH, CLOSED_AT, final)
    await working
    assert drawn is not None
    assert len(refused) <= 1
    counted = {}
    for team, start in ((ACME, 1), (RIVAL, 2)):
        in_time, late = [(await book.bill(team, month)).used.billable for month in (MONTH, AFTER)]
        assert in_time + late == sum(range(start, batches + 1, 2))
        counted[team] = in_time
    assert {each.team_id: each.billable for each in drawn} == counted


# ---- what is final


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE invoices SET cost = 0",
        "DELETE FROM invoices",
        "UPDATE closed_months SET month = '2020-01'",
        "DELETE FROM closed_months",
        "UPDATE usage SET requests = requests + 1 WHERE month = '2026-11'",
        "DELETE FROM usage WHERE month = '2026-11'",
        "INSERT INTO usage SELECT team_id, month, hour + 1, source_id, network, method, outcome, 1, 1 FROM usage",
        "UPDATE months SET cost = 0 WHERE month = '2026-11'",
        "DELETE FROM months WHERE month = '2026-11'",
        "INSERT INTO months VALUES ('team_new', '2026-11', 1, 1, 1, 0)",
        "INSERT OR REPLACE INTO months SELECT * FROM months WHERE month = '2026-11'",
    ],
)
async def test_manual_sql_cannot_change_a_final_invoice(
    books: Books, book: SqlAccountBook, statement: str
) -> None:
    books.commit(calls(MILLION + 2))
    drawn = await book.close_month(MONTH, CLOSED_AT, final)
    with pytest.raises(sqlite3.IntegrityError, match=r"final|closed"):
        books.sql(statement)
    assert await book.invoices(10) == drawn
    assert (await book.spent(MONTH, [Team(ACME, "acme")]))[ACME] == (MILLION + 2, 10, 10, MILLION, 0)


async def test_invoices_come_newest_first_and_from_before_a_month(books: Books, book: SqlAccountBook) -> None:
    for number in range(1, 6):
        month = f"2026-{number:02d}"
        books.commit(calls(number, start_of(month)))
        await book.close_month(month, CLOSED_AT, final)
    months = [each.month for each in await book.invoices(2, team_id=ACME)]
    assert months == ["2026-05", "2026-04"]
    rest = [each.month for each in await book.invoices(9, team_id=ACME, before="2026-04")]
    assert rest == ["2026-03", "2026-02", "2026-01"]


async def test_a_ledger_that_cannot_be_read_is_reported_as_that(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").write_bytes(b"this is no database\n" * 1_000)
    book = sqlite.open_accountbook(sqlite.ledger_url(tmp_path))
    with pytest.raises(StoreUnavailable):
        await book.usage(ACME, MONTH, By.DAY)
    await book.close()
