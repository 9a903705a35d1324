"""Blocks against a plain list of rows: pages, usage, costs and invoices are equal, whatever happens."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.store.migrated import make_ledger
from tests.store.stored_blocks import batch_of, stored_rows

from tollgate.api.usage import By, Plan
from tollgate.core.entries import BILLABLE, CallEntry, Entry
from tollgate.core.invoices import Invoice, draw
from tollgate.core.logs import LogEntry, LogFilter
from tollgate.core.months import month_of, start_of
from tollgate.core.posting import MonthKey, Rules, post
from tollgate.core.pricing import MILLION, OwnPrice, Price, charge, cost
from tollgate.core.usage import Period, TeamMonth
from tollgate.processes.collector import billing_month
from tollgate.store import ledger_blocks, ledger_shared, sqlite
from tollgate.store.ledger import open_ledger

DAY = 86_400.0
BEGIN = start_of("2026-12") - 1.5 * DAY
TEAMS, SOURCES = ("team_a", "team_b", "team_c"), ("tok_1", "dom_1")
METHODS, NETWORKS = ("eth_call", "eth_chainId"), ("eth/mainnet", "eth/sepolia")
MICROS = st.sampled_from([0, 333_333, 5 * MILLION])
PRICES = st.builds(Price, st.sampled_from(Plan), st.integers(0, 9), MICROS)
OWN_PRICES = st.none() | st.builds(OwnPrice, st.none() | st.integers(0, 9), st.none() | MICROS)

CALLS = st.lists(
    st.builds(CallEntry, st.sampled_from(METHODS), st.sampled_from(["ok", "ok", "node_error", "rate_limited"])),
    min_size=1,
    max_size=4,
).map(tuple)
ENTRIES = st.fixed_dictionaries(
    {
        "age": st.sampled_from([0.0, 1.0, 4_000.0, 2 * DAY]),
        "team_id": st.sampled_from(TEAMS),
        "source_id": st.sampled_from(SOURCES),
        "network": st.sampled_from(NETWORKS),
        "status": st.sampled_from([200, 200, 429]),
        "stands_for": st.sampled_from([1, 1, 1, 3]),
        "cap": st.none() | st.sampled_from([0, 7, 20, 10_000]),
        "price": OWN_PRICES,
        "calls": CALLS,
        "copies": st.sampled_from([1, 1, 5, 300]),
    }
)
STEPS = (
    st.tuples(st.just("commit"), st.lists(ENTRIES, min_size=1, max_size=6))
    | st.tuples(st.just("commit"), st.lists(ENTRIES, min_size=1, max_size=6))
    | st.tuples(st.just("wait"), st.sampled_from([1.0, 3_600.0, DAY, 1.4 * DAY]))
    | st.tuples(st.just("price"), PRICES)
    | st.tuples(st.just("close"), st.none())
    | st.tuples(st.sampled_from(["join", "settle", "fold", "restart"]), st.none())
)
FILTERS = st.fixed_dictionaries(
    {
        "source_id": st.none() | st.sampled_from(SOURCES),
        "since": st.none() | st.sampled_from([0.0, DAY]),
        "network": st.none() | st.sampled_from(NETWORKS),
        "method": st.none() | st.sampled_from(METHODS),
        "status": st.none() | st.just(429),
        "errors": st.booleans(),
        "request_id": st.none() | st.just("3"),
    }
)


class Plain:
    """The ledger as a list of rows, each worked out by itself."""

    def __init__(self) -> None:
        self.rows: list[LogEntry] = []
        self.closed: set[str] = set()
        self.requests: Counter[MonthKey] = Counter()
        self.costs: Counter[MonthKey] = Counter()
        self.uncapped: Counter[MonthKey] = Counter()
        self.free: Counter[MonthKey] = Counter()
        self.numbers: Counter[str] = Counter()

    def commit(self, entries: list[Entry], price: Price) -> None:
        for entry in entries:
            for call in entry.calls:
                month = billing_month(entry.at, frozenset(self.closed))
                key, charged = (entry.team_id, month), 0
                if call.outcome in BILLABLE:
                    its = price if entry.price is None else entry.price.over(price)
                    self.uncapped[key] += cost(its, self.requests[key], entry.stands_for)
                    self.free[key] += min(entry.stands_for, max(0, its.free_requests - self.requests[key]))
                    charged = charge(self.uncapped[key], self.costs[key], entry.cap)
                    self.requests[key] += entry.stands_for
                    self.costs[key] += charged
                self.numbers[entry.team_id] += 1
                self.rows.append(
                    LogEntry(
                        self.numbers[entry.team_id], entry.at, entry.request_id.decode(), entry.team_id,
                        entry.source_id, entry.source_name, "", "", "", entry.network, call.method, entry.status,
                        call.outcome, None, 0, 0, entry.duration_micros, "", (), "bypass",
                        call.outcome in BILLABLE, charged, month, entry.stands_for,
                    )
                )  # fmt: skip

    def used(self, team_id: str, month: str) -> TeamMonth:
        periods: dict[str, list[int]] = {}
        for row in self.rows:
            if (row.team_id, row.month) == (team_id, month):
                sums = periods.setdefault(month_of(row.at), [0, 0, 0])
                sums[0] += row.stands_for
                sums[1] += row.stands_for if row.billable else 0
                sums[2] += row.cost
        free = self.free[team_id, month] if self.requests[team_id, month] else None
        return TeamMonth(team_id, month, tuple(Period(name, *periods[name]) for name in sorted(periods)), free)


class Both:
    """A ledger of blocks, and the plain one beside it."""

    def __init__(self, folder: Path, loop: asyncio.Runner) -> None:
        self.path = folder / "ledger.db"
        self.url = sqlite.ledger_url(folder)
        self.store = open_ledger(self.url)
        self.loop = loop
        self.book = sqlite.open_accountbook(self.url)
        self.plain = Plain()
        self.now = BEGIN
        self.price = Price(free_requests=3, micros_per_million=5 * MILLION)
        self._names = itertools.count()

    def act(self, kind: str, what: Any) -> None:
        if kind == "commit":
            self._commit(what)
        elif kind == "wait":
            self.now += what
        elif kind == "price":
            self.price = what
        elif kind == "close":
            self._close()
        elif kind == "restart":
            self.store.close()
            self.store = open_ledger(self.url)
        else:
            while getattr(self.store, kind)():
                pass

    def _commit(self, wanted: list[dict[str, Any]]) -> None:
        entries = []
        for fields in wanted:
            age, copies = fields["age"], fields["copies"]
            rest = {name: value for name, value in fields.items() if name not in ("age", "copies")}
            entries += [
                Entry(at=self.now - age, source_name="n", request_id=b"%d" % next(self._names), **rest)
                for _ in range(copies)
            ]
        batch = batch_of(entries)
        rules = Rules(lambda _: self.price, billing_month)
        self.store.commit({}, batch.teams(), lambda opening: post(batch, opening, rules), self.now)
        self.plain.commit(entries, self.price)

    def _close(self) -> None:
        """Close the month before this one, as the control plane does."""
        month = month_of(start_of(month_of(self.now)) - 1)

        def final(used: TeamMonth) -> Invoice:
            assert used == self.plain.used(used.team_id, month)
            return draw(used, used.team_id, self.price, issued_at=1.0)

        with closing(sqlite3.connect(self.path)) as connection, connection:
            connection.execute("UPDATE state SET seen_at = NULL, doubted_at = NULL")
        drawn = self.loop.run(self.book.close_month(month, self.now, final))
        assert (drawn is None) == (month in self.plain.closed)
        if drawn is not None:
            teams = {row.team_id for row in self.plain.rows if row.month == month}
            assert {invoice.team_id for invoice in drawn} == teams
        self.plain.closed.add(month)

    def check_sums(self) -> None:
        rows = self.plain.rows
        assert sorted(stored_rows(self.path), key=_key) == sorted(rows, key=_key)
        for team, month in {(row.team_id, row.month) for row in rows}:
            bill = self.loop.run(self.book.bill(team, month))
            assert bill.used == self.plain.used(team, month)
            for by, name in ((By.METHOD, "method"), (By.NETWORK, "network")):
                wanted: dict[str, list[int]] = {}
                for row in rows:
                    if (row.team_id, row.month) == (team, month):
                        sums = wanted.setdefault(getattr(row, name), [0, 0, 0])
                        sums[0] += row.stands_for
                        sums[1] += row.stands_for if row.billable else 0
                        sums[2] += row.cost
                items = self.loop.run(self.book.usage(team, month, by))
                assert {item.key: [item.requests, item.billable, item.cost] for item in items} == wanted
            due = (self.plain.requests[team, month], self.plain.costs[team, month])
            assert self.store.team_months(month, {team: ""})[team][:2] == due
            drawn = draw(bill.used, team, self.price) if bill.invoice is None else bill.invoice
            assert (drawn.billable, drawn.cost) == due
            assert sum(line.amount for line in drawn.lines) == drawn.total

    def check_pages(self, fields: dict[str, Any], limit: int) -> None:
        since = None if fields["since"] is None else self.now - fields["since"]
        book = sqlite.open_logbook(self.url, look_seconds=3_600)
        for team in TEAMS:
            wanted = LogFilter(team, **{**fields, "since": since})
            position: int | None = self.loop.run(book.newest(team)) + 1
            seen: list[LogEntry] = []
            while position is not None:
                page = self.loop.run(book.older(wanted, position, limit))
                seen += page.entries
                position = page.position
            fitting = [row for row in self.plain.rows if row.team_id == team and wanted.fits(row)]
            assert seen == fitting[::-1]
            upwards, _ = self.loop.run(book.newer(wanted, 0, 100_000))
            assert upwards == fitting
        self.loop.run(book.close())

    def close(self) -> None:
        self.store.close()
        self.loop.run(self.book.close())


def _key(row: LogEntry) -> tuple[str, int]:
    return row.team_id, row.seq


@contextmanager
def fresh() -> Iterator[Both]:
    with tempfile.TemporaryDirectory() as name, asyncio.Runner() as loop:
        both = Both(make_ledger(Path(name)).parent, loop)
        try:
            yield both
        finally:
            both.close()


@settings(max_examples=settings().max_examples // 2)
@given(
    steps=st.lists(STEPS, min_size=3, max_size=14),
    filters=st.lists(FILTERS, min_size=1, max_size=3),
    limit=st.sampled_from([1, 7, 1_000]),
    fan=st.sampled_from([2, 8]),
    commits=st.sampled_from([1, 2, 16]),
)
def test_blocks_and_a_plain_list_of_rows_are_equal(
    steps: list[tuple[str, Any]],
    filters: list[dict[str, Any]],
    limit: int,
    fan: int,
    commits: int,
) -> None:
    if sum(entry["copies"] for kind, what in steps if kind == "commit" for entry in what) > 900:
        limit = 1_000
    with fresh() as both, pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger_blocks, "FAN", fan)
        patch.setattr("tollgate.store.ledger.FAN", fan)
        patch.setattr(ledger_shared, "MAX_COMMITS", commits)
        for kind, what in steps:
            both.act(kind, what)
        both.check_sums()
        for each in filters:
            both.check_pages(each, limit)
