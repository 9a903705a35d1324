"""Who is stopped by a cap, until when, and when tokens were last used: what follows from the ledger."""

import asyncio
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import cast

import pytest
from sqlalchemy import create_engine, select, update
from tests.store.migrated import make_control, make_ledger

from tollgate.core.models import Team, Token
from tollgate.core.pricing import MILLION, Price
from tollgate.store import sqlite, tables
from tollgate.store.caps import Caps
from tollgate.store.ledger import open_ledger

NOON = datetime.fromisoformat("2026-11-15T12:00:00Z").timestamp()
DECEMBER = datetime.fromisoformat("2026-12-01T00:00:00Z").timestamp()
JANUARY = datetime.fromisoformat("2027-01-01T00:00:00Z").timestamp()
PRICE = Price(free_requests=10, micros_per_million=MILLION)
"""Ten requests are free, each further one costs a micro-dollar."""


class Town:
    """The control plane's database and a ledger, and the enforcement of caps between them."""

    def __init__(self, folder: Path) -> None:
        self.url = sqlite.store_url("", folder)
        self.control = create_engine(self.url)
        sqlite.set_pragmas(self.control)
        self.ledger = open_ledger(sqlite.ledger_url(folder))
        self.caps = Caps(self.control, self.ledger, PRICE)

    def close(self) -> None:
        self.caps.close()
        self.ledger.close()

    def team(self, name: str, cap: int | None = None) -> str:
        team = Team(f"team_{name}", name, spending_cap=cap)
        with self.control.begin() as connection:
            connection.execute(
                tables.teams.insert().values(
                    id=team.id, name=name, created_at=NOON, spending_cap=cap, capped_until=None
                )
            )
        return team.id

    def token(self, name: str, cap: int | None = None, *, replaces: str = "", team: str = "team_acme") -> str:
        token = Token(f"tok_{name}", team, name, "tg_", NOON)
        with self.control.begin() as connection:
            connection.execute(
                tables.tokens.insert().values(
                    id=token.id, team_id=team, name=name, digest=name.encode().ljust(32), prefix="tg_",
                    created_at=NOON, monthly_requests=cap, replaces=replaces,
                )
            )  # fmt: skip
        return token.id

    def use(self, team: str, requests: int, token: str = "", month: str = "2026-11") -> None:
        """Count billable requests, as the collector does."""
        with self.ledger._engine.begin() as connection:
            add = "INSERT INTO {} VALUES (?, ?, ?{}) ON CONFLICT DO UPDATE SET requests = requests + ?"
            connection.exec_driver_sql(add.format("months", ", 0, 0, 0"), (team, month, requests, requests))
            connection.exec_driver_sql(
                "UPDATE months SET cost = max(cost, requests - ?1), uncapped = max(uncapped, requests - ?1)",
                (PRICE.free_requests,),
            )
            if token:
                connection.exec_driver_sql(add.format("source_months", ""), (token, month, requests, requests))

    def set(self, row_id: str, **values: object) -> None:
        table = tables.teams if row_id.startswith("team_") else tables.tokens
        with self.control.begin() as connection:
            connection.execute(update(table).where(table.c.id == row_id).values(**values))

    def until(self, row_id: str) -> float | None:
        table = tables.teams if row_id.startswith("team_") else tables.tokens
        with self.control.connect() as connection:
            query = select(table.c.capped_until).where(table.c.id == row_id)
            return cast("float | None", connection.execute(query).scalar_one())

    def last_use(self, token_id: str) -> float | None:
        with self.control.connect() as connection:
            query = select(tables.tokens.c.last_used_at).where(tables.tokens.c.id == token_id)
            return cast("float | None", connection.execute(query).scalar_one())

    def revision(self) -> int:
        """Rises with every change that workers are notified of."""

        async def change() -> int:
            store = sqlite.open_store(self.url)
            try:
                changes = await store.changes(None)
                assert changes is not None
                return changes.revision
            finally:
                await store.close()

        return asyncio.run(change())


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    make_control(tmp_path)
    make_ledger(tmp_path)
    made = Town(tmp_path)
    yield made
    made.close()


# --- Teams -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cap", "affordable"), [(5, 14), (0, 9)], ids=["cap", "free requests alone"])
def test_team_is_stopped_when_its_next_request_would_cost_too_much_until_the_month_ends(
    town: Town, cap: int, affordable: int
) -> None:
    team = town.team("acme", cap=cap)
    town.use(team, affordable)
    town.caps.reconcile(NOON)
    assert town.until(team) is None
    town.use(team, 1)
    town.caps.reconcile(NOON)
    assert town.until(team) == DECEMBER


@pytest.mark.parametrize("raised", [6, None])
def test_raised_or_lifted_cap_lets_calls_through_again_and_a_lower_one_stops_them(
    town: Town, raised: int | None
) -> None:
    team = town.team("acme", cap=5)
    town.use(team, 15)
    town.caps.reconcile(NOON)
    town.set(team, spending_cap=raised)
    town.caps.reconcile(NOON)
    assert town.until(team) is None
    town.set(team, spending_cap=3)
    town.caps.reconcile(NOON)
    assert town.until(team) == DECEMBER


def test_new_month_begins_with_nothing_spent(town: Town) -> None:
    team, busy = town.team("acme", cap=5), town.team("busy", cap=5)
    town.use(team, 100)
    town.use(busy, 100, month="2026-12")
    town.caps.reconcile(NOON)
    assert (town.until(team), town.until(busy)) == (DECEMBER, None)
    town.caps.reconcile(DECEMBER)
    assert (town.until(team), town.until(busy)) == (None, JANUARY)


def test_team_without_a_cap_is_never_stopped(town: Town) -> None:
    team = town.team("acme")
    town.use(team, 10**9)
    town.caps.reconcile(NOON)
    assert town.until(team) is None


def test_nothing_is_written_where_nothing_changes(town: Town) -> None:
    town.use(town.team("acme", cap=5), 100, town.token("ci", 7))
    town.caps.reconcile(NOON)
    before = town.revision()
    for second in range(5):
        town.caps.reconcile(NOON + second)
    assert town.revision() == before


def test_stopping_a_team_or_a_token_is_published_to_workers(town: Town) -> None:
    town.team("acme", cap=5)
    town.token("ci", 7)
    before = town.revision()
    town.use("team_acme", 100, "tok_ci")
    town.caps.reconcile(NOON)
    assert town.revision() >= before + 2


def test_lower_of_the_caps_of_team_and_operator_stops_it(town: Town) -> None:
    team, other = town.team("acme", cap=9), town.team("other")
    town.set(team, operator_cap=5)
    town.set(other, operator_cap=5)
    for each in (team, other):
        town.use(each, 15)
    town.caps.reconcile(NOON)
    assert (town.until(team), town.until(other)) == (DECEMBER, DECEMBER)
    town.set(team, operator_cap=None)
    town.caps.reconcile(NOON)
    assert town.until(team) is None


def test_team_with_its_own_price_is_stopped_by_what_it_was_charged(town: Town) -> None:
    team = town.team("acme", cap=20)
    town.set(team, micros_per_million=15 * MILLION)
    town.use(team, 15)  # five of them were charged, by the price before
    town.caps.reconcile(NOON)
    assert town.until(team) is None
    town.use(team, 1)
    town.caps.reconcile(NOON)
    assert town.until(team) == DECEMBER


# --- Tokens ------------------------------------------------------------------------------------------------


def test_token_is_stopped_at_its_monthly_cap_and_others_are_not(town: Town) -> None:
    town.team("acme")
    token, other = town.token("ci", 7), town.token("other")
    town.use("team_acme", 6, token)
    town.use("team_acme", 100, other)
    town.caps.reconcile(NOON)
    assert town.until(token) is None
    town.use("team_acme", 1, token)
    town.caps.reconcile(NOON)
    assert (town.until(token), town.until(other), town.until("team_acme")) == (DECEMBER, None, None)
    town.set(token, monthly_requests=8)
    town.caps.reconcile(NOON)
    assert town.until(token) is None


def test_successor_inherits_what_its_predecessors_used(town: Town) -> None:
    town.team("acme")
    first = town.token("first", 7)
    second = town.token("second", 7, replaces=first)
    third = town.token("third", 7, replaces=second)
    town.use("team_acme", 4, first)
    town.use("team_acme", 2, second)
    town.caps.reconcile(NOON)
    assert [town.until(each) for each in (first, second, third)] == [None, None, None]
    town.use("team_acme", 1, third)
    town.caps.reconcile(NOON)
    assert [town.until(each) for each in (first, second, third)] == [None, None, DECEMBER], "not the other way"


def test_predecessor_that_was_deleted_still_counts(town: Town) -> None:
    town.team("acme")
    first = town.token("first", 7)
    second = town.token("second", 7, replaces=first)
    town.use("team_acme", 7, first)
    with town.control.begin() as connection:
        connection.execute(tables.tokens.delete().where(tables.tokens.c.id == first))
    town.caps.reconcile(NOON)
    assert town.until(second) == DECEMBER


def test_successor_begins_the_next_month_with_nothing(town: Town) -> None:
    town.team("acme")
    first = town.token("first", 7)
    second = town.token("second", 7, replaces=first)
    town.use("team_acme", 7, first)
    town.caps.reconcile(DECEMBER)
    assert town.until(second) is None


def test_cycle_of_rotated_tokens_ends(town: Town) -> None:
    town.team("acme")
    first, second = town.token("first", 7, replaces="tok_second"), town.token("second", 7, replaces="tok_first")
    town.use("team_acme", 7, first)
    town.caps.reconcile(NOON)
    assert (town.until(first), town.until(second)) == (DECEMBER, DECEMBER)


# --- Last uses ---------------------------------------------------------------------------------------------


def test_last_use_is_recorded_never_decreases_and_is_no_change_for_workers(town: Town) -> None:
    town.team("acme")
    token, other = town.token("ci"), town.token("other")
    before = town.revision()
    town.caps.note_uses({token: NOON, "dom_1": NOON, "tok_gone": NOON})
    town.caps.note_uses({token: NOON - 5})
    town.caps.note_uses({})
    assert (town.last_use(token), town.last_use(other)) == (NOON, None)
    town.caps.note_uses({token: NOON + 5})
    assert town.last_use(token) == NOON + 5
    assert town.revision() == before
