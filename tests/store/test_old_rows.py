"""A ledger of the first version, a row for each call: converted in slices, exactly, while the service goes on."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from tests.store.stored_blocks import batch_of, stored_rows

from tollgate.core.entries import BILLABLE, CallEntry, Entry
from tollgate.core.logs import LogFilter, LogRow
from tollgate.core.months import month_of
from tollgate.core.posting import Rules, post
from tollgate.core.pricing import Price
from tollgate.ledger.doctor import check_logs
from tollgate.store import ledger_rows, sqlite, upgrade
from tollgate.store.ledger import LedgerStore, open_ledger
from tollgate.store.ledger_facts import LedgerFacts, read_only

NOON = 1_794_744_000.0  # 2026-11-15T12:00:00Z
DAY = 86_400.0
COLUMNS = LogRow.__struct_fields__
TEAMS = ("team_a", "team_b")


def old_ledger(folder: Path, count: int = 60) -> list[LogRow]:
    """Make a ledger as the first version left it: three days, of which the first was dropped."""
    url = sqlite.ledger_url(folder)
    upgrade._migrate(url, upgrade.LEDGER, lambda _, config: command.upgrade(config, "0001"))
    chance = random.Random(7)
    rows = []
    for number in range(count):
        team = chance.choice(TEAMS)
        outcome = chance.choice(["ok", "ok", "node_error", "rate_limited"])
        at = NOON + number * 2 * DAY / count
        rows.append(
            LogRow(
                100 + number, at, f"req-{number}\ufffd", team, f"tok_{team}", "ci", "192.0.2.7", "Mozilla (ü)",
                "https://é.example", chance.choice(["eth/mainnet", "eth/sepolia"]), "eth_call", 200, outcome,
                None if outcome == "ok" else -32000, 90, 7, 1_234, "n0", 1, "miss", outcome in BILLABLE,
                chance.choice([0, 5]) if outcome in BILLABLE else 0, chance.choice(["2026-11", "2026-12"]),
                1 if outcome != "rate_limited" else 9,
            )
        )  # fmt: skip
    with closing(sqlite3.connect(folder / "ledger.db")) as connection, connection:
        for day, low in (("20261115", NOON), ("20261116", NOON + DAY / 2), ("20261117", NOON + 1.5 * DAY)):
            some = [row for row in rows if low <= row.at < low + DAY * (0.5 if day == "20261115" else 1)]
            _write_day(connection, day, some)
        connection.execute("INSERT INTO batches VALUES (100, ?, ?)", (NOON + 2 * DAY, 100 + count))
        usage: Counter[tuple[Any, ...]] = Counter()
        costs: Counter[tuple[Any, ...]] = Counter()
        for row in rows:
            key = (
                row.team_id,
                row.month,
                int(row.at // 3600),
                row.source_id,
                row.network,
                row.method,
                row.outcome,
            )
            usage[key] += row.stands_for
            costs[key] += row.cost
        values = [(*key, usage[key], costs[key]) for key in usage]
        connection.executemany("INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
    return rows


def _write_day(connection: sqlite3.Connection, day: str, rows: list[LogRow]) -> None:
    connection.execute(f"CREATE TABLE log_{day} ({', '.join(COLUMNS)}, PRIMARY KEY (seq))")
    slots = ", ".join("?" * len(COLUMNS))
    values = [tuple(getattr(row, name) for name in COLUMNS) for row in rows]
    connection.executemany(f"INSERT INTO log_{day} VALUES ({slots})", values)
    connection.execute("INSERT INTO days VALUES (?, ?)", (day, min(row.seq for row in rows)))


def commit(store: LedgerStore, now: float, *teams: str) -> None:
    batch = batch_of(
        Entry(
            at=now, team_id=team, source_id="tok_new", network="eth/mainnet", source_name="ci", status=200,
            calls=(CallEntry("eth_call", "ok"),), request_id=b"new",
        )
        for team in teams or TEAMS
    )  # fmt: skip
    rules = Rules(lambda _: Price(), lambda at, _: month_of(at))
    store.commit({}, batch.teams(), lambda opening: post(batch, opening, rules), now)


def without_number(row: LogRow) -> tuple[Any, ...]:
    return tuple(getattr(row, name) for name in COLUMNS[1:])


def agrees(folder: Path) -> bool:
    facts = LedgerFacts(read_only(folder / "ledger.db"))
    try:
        return check_logs(facts.read()).ok
    finally:
        facts.close()


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_rows_become_blocks_in_slices_and_stay_what_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(ledger_rows, "SLICE_ROWS", size)
    old = old_ledger(tmp_path)
    upgrade.migrate(sqlite.ledger_url(tmp_path), upgrade.LEDGER)
    store = open_ledger(sqlite.ledger_url(tmp_path))
    slices = 0
    while store.convert():
        slices += 1
        if slices % 9 == 1:
            commit(store, NOON + 2 * DAY + slices)
            assert agrees(tmp_path), "usage and logs, converted or not"
        if slices == 20:
            # As after a crash: another process goes on.
            store.close()
            store = open_ledger(sqlite.ledger_url(tmp_path))
    while store.sweep(0) or store.join() or store.settle():
        pass
    rows = stored_rows(tmp_path / "ledger.db")
    for team in TEAMS:
        of_team = sorted((row for row in rows if row.team_id == team), key=lambda row: row.seq)
        numbers = [row.seq for row in of_team]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), "without gaps"
        kept = [row for row in of_team if row.request_id != "new"]
        assert list(map(without_number, kept)) == [without_number(row) for row in old if row.team_id == team]
        assert len(of_team) > len(kept)
    store.close()
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as connection:
        assert not connection.execute("SELECT 1 FROM sqlite_master WHERE name GLOB 'log_*'").fetchall()


def test_pages_meanwhile_show_what_is_converted_and_go_on_by_cursor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_rows, "SLICE_ROWS", 8)
    old = old_ledger(tmp_path)
    upgrade.migrate(sqlite.ledger_url(tmp_path), upgrade.LEDGER)
    store = open_ledger(sqlite.ledger_url(tmp_path))

    async def read() -> list[str]:
        book = sqlite.open_logbook(sqlite.ledger_url(tmp_path), look_seconds=60.0)
        position: int | None = await book.newest("team_a") + 1
        seen = []
        while position is not None:
            page = await book.older(LogFilter("team_a"), position, 3)
            seen += [row.request_id for row in page.rows]
            if not page.rows and page.position == position:
                store.convert()
            position = page.position
        await book.close()
        return seen

    assert asyncio.run(read()) == [row.request_id for row in old if row.team_id == "team_a"][::-1]
    store.close()


def test_page_goes_on_only_for_a_team_that_has_rows_to_be_converted(tmp_path: Path) -> None:
    old_ledger(tmp_path)
    upgrade.migrate(sqlite.ledger_url(tmp_path), upgrade.LEDGER)
    store = open_ledger(sqlite.ledger_url(tmp_path))
    commit(store, NOON + 3 * DAY, "team_new")
    store.close()

    async def ends() -> list[bool]:
        book = sqlite.open_logbook(sqlite.ledger_url(tmp_path), look_seconds=60.0)
        pages = [await book.older(LogFilter(team), 1_000, 1_000) for team in ("team_new", "team_a")]
        await book.close()
        return [page.position is None for page in pages]

    assert asyncio.run(ends()) == [True, False]


def test_days_that_are_not_converted_yet_are_dropped_like_others(tmp_path: Path) -> None:
    old_ledger(tmp_path)
    upgrade.migrate(sqlite.ledger_url(tmp_path), upgrade.LEDGER)
    store = open_ledger(sqlite.ledger_url(tmp_path))
    assert store.drop_days("20261117") == ["20261115", "20261116"]
    while store.convert() or store.sweep(0):
        pass
    assert {int(row.at // DAY) for row in stored_rows(tmp_path / "ledger.db")} == {int((NOON + 1.5 * DAY) // DAY)}
    store.close()
