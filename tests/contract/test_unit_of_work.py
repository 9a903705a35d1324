"""Every backend as a whole: transactions, dependent rows, months, outages."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from msgspec.structs import replace
from tests.contract.backends import Store
from tests.contract.samples import (
    ACCOUNT,
    DIGEST,
    DOMAIN,
    FULL,
    OTHER,
    PLAIN,
    TABLES,
    TEAM,
    TOKEN,
    put,
    rows,
)

from tollgate.core.models import Team
from tollgate.store import retries
from tollgate.store.base import Conflict, Repositories, StoreUnavailable

# --- All or nothing ----------------------------------------------------------------------------------------


class Raised(Exception):
    """Something that is not the store's business."""


@pytest.mark.parametrize("error", [Raised("x"), TimeoutError("x"), OSError("x"), KeyError("x")])
async def test_exception_that_leaves_the_block_undoes_all_of_it_and_stays_what_it_was(
    error: Exception, store: Store
) -> None:
    await put(store, FULL)
    beginning = await store.changes(None)
    assert beginning is not None

    async def fail() -> None:
        async with store.changing() as records:
            await records.accounts.add(PLAIN["accounts"])
            await records.teams.replace(replace(TEAM, name="renamed"))
            await records.tokens.remove(id=TOKEN.id)
            raise error

    with pytest.raises(type(error)) as caught:
        await fail()
    assert caught.value is error
    async with store.reading() as records:
        assert await records.accounts.page(9) == [ACCOUNT]
        assert await records.teams.get(TEAM.id) == TEAM
        assert await records.tokens.get(TOKEN.id) == TOKEN
    assert await store.changes(beginning.revision) is None


async def test_request_that_has_committed_something_is_not_retried_as_a_whole(store: Store) -> None:
    async def fail() -> None:
        async with store.changing():
            raise Raised

    assert not retries.CommitWatch().may_retry, "nothing was undone"
    with retries.watching() as watch:
        retries.note_undone()
        with pytest.raises(Raised):
            await fail()
        async with store.reading() as records:
            await records.teams.count()
        assert watch.may_retry
        async with store.changing() as records:
            await records.teams.add(TEAM)
        assert not watch.may_retry


async def test_conflict_undoes_what_came_before_it(store: Store) -> None:
    await put(store, FULL)
    with pytest.raises(Conflict):
        await put(store, {**PLAIN, "teams": replace(OTHER, name=TEAM.name)}, ["accounts", "teams"])
    async with store.reading() as records:
        assert await records.accounts.count() == 1


async def test_cancelled_writer_leaves_nothing_and_blocks_no_other(store: Store) -> None:
    inside = asyncio.Event()

    async def endless() -> None:
        async with store.changing() as records:
            await records.teams.add(TEAM)
            inside.set()
            await asyncio.Event().wait()

    first = asyncio.create_task(endless())
    await inside.wait()
    waiting = asyncio.create_task(put(store, FULL, ["teams"]))
    third = asyncio.create_task(put(store, PLAIN, ["teams"]))
    for task in (waiting, first):
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
    await third
    async with store.reading() as records:
        assert await records.teams.page(9) == [OTHER]


async def test_block_reads_what_it_wrote_and_others_only_afterwards(store: Store) -> None:
    async with store.changing() as records:
        await records.teams.add(TEAM)
        assert await records.teams.find(name=TEAM.name) == TEAM
        async with store.reading() as outside:
            assert await outside.teams.find(name=TEAM.name) is None
    async with store.reading() as outside:
        assert await outside.teams.find(name=TEAM.name) == TEAM


# --- Turns -------------------------------------------------------------------------------------------------


async def test_concurrent_writers_take_turns_and_all_changes_are_kept(store: Store, another_worker: Store) -> None:
    """Each reads a number and writes the next one; without turns some would be lost."""

    async def one_more(by: Store) -> None:
        async with by.changing() as records:
            team = await records.teams.get(TEAM.id)
            assert team is not None
            await records.teams.replace(replace(team, requests_per_second=(team.requests_per_second or 0) + 1))

    await put(store, {"teams": replace(TEAM, requests_per_second=0)}, ["teams"])
    await asyncio.gather(*(one_more(by) for _ in range(8) for by in (store, another_worker)))
    async with store.reading() as records:
        team = await records.teams.get(TEAM.id)
    assert team is not None
    assert team.requests_per_second == 16


async def test_two_teams_that_claim_a_domain_at_once_get_it_once(store: Store, another_worker: Store) -> None:
    async def claim(by: Store, team: Team) -> None:
        async with by.changing() as records:
            await records.domains.add(replace(DOMAIN, id=f"dom of {team.name}", team_id=team.id))

    await put(store, {"teams": TEAM}, ["teams"])
    await put(store, {"teams": OTHER}, ["teams"])
    claims = [claim(store, TEAM), claim(another_worker, OTHER)]
    outcomes = await asyncio.gather(*claims, return_exceptions=True)
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Conflict", "NoneType"]


async def test_reader_sees_one_snapshot_while_others_write(store: Store, another_worker: Store) -> None:
    await put(store, FULL)
    async with store.reading() as records:
        assert await records.teams.count() == 1
        for changer, name in ((store, "b"), (another_worker, "c")):
            async with changer.changing() as changing:
                await changing.teams.add(Team(f"team {name}", name))
                await changing.tokens.remove(team_id=TEAM.id)
        assert await records.teams.count() == 1
        assert await records.tokens.get(TOKEN.id) == TOKEN
    async with store.reading() as records:
        assert await records.teams.count() == 3
        assert await records.tokens.get(TOKEN.id) is None


async def test_look_ups_do_not_wait_for_queued_writers(store: Store) -> None:
    await put(store, FULL)
    inside, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        async with store.changing() as records:
            await records.teams.get(TEAM.id)
            inside.set()
            await go_on.wait()
            await records.teams.add(OTHER)

    async def add_team(number: int) -> None:
        async with store.changing() as records:
            # A row locked by one transaction is skipped by the next.
            await records.teams.get(TEAM.id)
            await records.teams.add(Team(f"t{number}", f"name {number}"))

    line = [asyncio.create_task(slow())]
    await inside.wait()
    line += [asyncio.create_task(add_team(number)) for number in range(10)]
    await asyncio.sleep(0)  # one tick of the loop: all of them wait now
    async with asyncio.timeout(30):
        assert await store.token(DIGEST) is not None
    async with store.reading() as records:
        assert await records.teams.count() == 1
    assert not any(task.done() for task in line)
    go_on.set()
    await asyncio.gather(*line)
    async with store.reading() as records:
        assert await records.teams.count() == 12


# --- Dependent rows ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "row_id", "gone"),
    [
        (
            "teams",
            "team_1",
            {"teams", "tokens", "lineages", "domains", "members", "invitations", "billing", "alerts"},
        ),
        (
            "accounts",
            "acc_1",
            {"accounts", "factors", "identities", "logins", "device_logins", "members", "reset_links"},
        ),
        ("tokens", "tok_1", {"tokens"}),
        ("members", "mem_1", {"members"}),
    ],
)
async def test_removing_a_row_removes_its_dependants_and_nothing_else(
    table: str, row_id: str, gone: set[str], store: Store
) -> None:
    await put(store, FULL)
    await put(store, PLAIN)
    async with store.changing() as records:
        assert await rows(records, table).remove(id=row_id) == 1
    async with store.reading() as records:
        for name in TABLES:
            left = [] if name in gone else [FULL[name]]
            assert await rows(records, name).page(1, id=FULL[name].id) == left, name
            assert await rows(records, name).get(PLAIN[name].id) == PLAIN[name]


# --- Outages -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "query",
    [
        lambda records: records.teams.get(TEAM.id),
        lambda records: records.teams.find(name="acme"),
        lambda records: records.teams.page(10),
        lambda records: records.teams.count(),
        lambda records: records.teams.add(TEAM),
        lambda records: records.teams.replace(TEAM),
        lambda records: records.teams.remove(id="team_1"),
        lambda records: records.failures.remove_older("created_at", 1.0),
    ],
)
async def test_store_that_cannot_be_used_is_reported_unavailable(
    query: Callable[[Repositories], Coroutine[Any, Any, object]], broken: Store
) -> None:
    for transaction in (broken.reading, broken.changing):
        with pytest.raises(StoreUnavailable):
            async with transaction() as records:
                await query(records)
