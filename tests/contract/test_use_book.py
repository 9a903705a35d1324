"""What every backend owes the gateway that tells which tokens are in use: last use, months and caps."""

import asyncio
from datetime import UTC, datetime

import pytest
from msgspec.structs import replace
from tests.contract.backends import Store
from tests.contract.samples import DIGEST, PLAIN, TEAM, digest_of

from tollgate.core.models import Token
from tollgate.store.base import StoreUnavailable, Use

TOKEN = Token("tok_1", "team_1", "ci", "tg_abcde", 1_000.0)
OTHER = Token("tok_2", "team_1", "other", "tg_abcde", 1_000.0)


def moment(*parts: int) -> float:
    return datetime(*parts, tzinfo=UTC).timestamp()  # type: ignore[misc,arg-type]


AT = moment(2026, 11, 15, 7)
DECEMBER = moment(2026, 12, 1)


async def fill(store: Store, *tokens: Token) -> int:
    """Make a team with these tokens; give the revision after that."""
    async with store.changing() as records:
        await records.teams.add(TEAM)
        for token in tokens or (TOKEN, OTHER):
            await records.tokens.add(token, digest=digest_of(token.id))
    return await revision(store)


async def revision(store: Store) -> int:
    beginning = await store.changes(None)
    assert beginning is not None
    return beginning.revision


async def token(store: Store, token_id: str = TOKEN.id) -> Token:
    async with store.reading() as records:
        found = await records.tokens.get(token_id)
    assert found is not None
    return found


async def month(store: Store, name: str, token_id: str = TOKEN.id) -> int:
    async with store.reading() as records:
        return await records.month_of(token_id, name)


# --- Last use ----------------------------------------------------------------------------------------------


def test_last_use_is_noted_of_each_and_of_nobody_else(store: Store, loop: asyncio.Runner) -> None:
    async def story() -> None:
        await fill(store)
        await store.note_uses([Use(TOKEN.id, 3, AT)])
        assert await token(store) == replace(TOKEN, last_used_at=AT)
        assert await token(store, OTHER.id) == OTHER
        await store.note_uses([Use(TOKEN.id, 1, AT + 1.5), Use(OTHER.id, 0, AT + 2.5)])
        assert (await token(store)).last_used_at == AT + 1.5
        assert (await token(store, OTHER.id)).last_used_at == AT + 2.5

    loop.run(story())


def test_last_use_never_goes_backwards(store: Store, another_worker: Store, loop: asyncio.Runner) -> None:
    async def story() -> None:
        await fill(store)
        await store.note_uses([Use(TOKEN.id, 1, AT)])
        await another_worker.note_uses([Use(TOKEN.id, 1, AT - 60.0)])
        assert (await token(store)).last_used_at == AT
        await store.note_uses([Use(TOKEN.id, 1, AT + 9.0), Use(TOKEN.id, 1, AT + 5.0)])
        assert (await token(store)).last_used_at == AT + 9.0
        assert await month(store, "2026-11") == 4

    loop.run(story())


def test_uses_are_no_change_of_grants(store: Store, another_worker: Store, loop: asyncio.Runner) -> None:
    async def story() -> None:
        before = await fill(store, replace(TOKEN, monthly_requests=1_000), OTHER)
        for second in range(3):
            await store.note_uses([Use(TOKEN.id, 3, AT + second), Use(OTHER.id, 10**9, AT + second)])
        assert await another_worker.changes(before) is None

    loop.run(story())


def test_nothing_to_note_is_fine(store: Store, loop: asyncio.Runner) -> None:
    async def story() -> None:
        before = await fill(store)
        await store.note_uses([])
        assert await store.changes(before) is None
        assert await token(store) == TOKEN

    loop.run(story())


# --- Months ------------------------------------------------------------------------------------------------


def test_calls_add_up_month_by_month(store: Store, another_worker: Store, loop: asyncio.Runner) -> None:
    async def story() -> None:
        await fill(store)
        await store.note_uses([Use(TOKEN.id, 2, AT), Use(OTHER.id, 0, AT)])
        await another_worker.note_uses([Use(TOKEN.id, 3, AT + 60), Use(OTHER.id, 7, AT)])
        await store.note_uses([Use(TOKEN.id, 10, DECEMBER + 60)])
        assert await month(store, "2026-11") == 5
        assert await month(store, "2026-12") == 10
        assert await month(store, "2026-11", OTHER.id) == 7
        assert await month(store, "2026-10") == 0

    loop.run(story())


@pytest.mark.parametrize(
    ("last", "first", "months"),
    [
        (moment(2026, 11, 30, 23, 59, 59), DECEMBER, ("2026-11", "2026-12")),
        (DECEMBER - 1e-6, DECEMBER, ("2026-11", "2026-12")),
        (moment(2027, 1, 1) - 0.5, moment(2027, 1, 1), ("2026-12", "2027-01")),
        (moment(2028, 2, 29, 23), moment(2028, 3, 1), ("2028-02", "2028-03")),
        (moment(2027, 2, 28, 23), moment(2027, 3, 1), ("2027-02", "2027-03")),
    ],
)
def test_calls_on_both_sides_of_a_months_end_count_for_their_own_also_in_one_batch(
    last: float, first: float, months: tuple[str, str], store: Store, loop: asyncio.Runner
) -> None:
    async def story() -> None:
        await fill(store)
        batch = [Use(TOKEN.id, 2, last), Use(OTHER.id, 3, first), Use(TOKEN.id, 5, first)]
        await store.note_uses(batch)
        assert [await month(store, name) for name in months] == [2, 5]
        assert [await month(store, name, OTHER.id) for name in months] == [0, 3]
        assert (await token(store)).last_used_at == first

    loop.run(story())


def test_all_that_two_workers_tell_at_once_is_counted(
    store: Store, another_worker: Store, loop: asyncio.Runner
) -> None:
    async def story() -> None:
        await fill(store)
        told = [by.note_uses([Use(TOKEN.id, 1, AT), Use(OTHER.id, 2, AT)]) for by in (store, another_worker) * 8]
        await asyncio.gather(*told)
        assert await month(store, "2026-11") == 16
        assert await month(store, "2026-11", OTHER.id) == 32

    loop.run(story())


# --- Caps --------------------------------------------------------------------------------------------------


def test_reached_cap_stops_a_token_until_the_month_ends_and_every_worker_is_told(
    store: Store, another_worker: Store, loop: asyncio.Runner
) -> None:
    async def story() -> None:
        before = await fill(store, replace(TOKEN, monthly_requests=10), replace(OTHER, monthly_requests=11))
        await store.note_uses([Use(TOKEN.id, 9, AT), Use(OTHER.id, 10, AT)])
        assert (await token(store)).capped_until is None
        assert await another_worker.changes(before) is None
        await store.note_uses([Use(TOKEN.id, 1, AT + 1), Use(OTHER.id, 0, AT + 1)])
        assert (await token(store)).capped_until == DECEMBER
        assert (await token(store, OTHER.id)).capped_until is None
        told = await another_worker.changes(before)
        assert told is not None
        assert (told.tokens, told.domains, told.teams) == ((DIGEST,), (), ())

    loop.run(story())


def test_cap_that_stands_is_not_told_again(store: Store, loop: asyncio.Runner) -> None:
    async def story() -> None:
        await fill(store, replace(TOKEN, monthly_requests=10))
        await store.note_uses([Use(TOKEN.id, 25, AT)])
        before = await revision(store)
        # What other workers had under way.
        await store.note_uses([Use(TOKEN.id, 4, AT + 1)])
        assert await store.changes(before) is None
        assert await month(store, "2026-11") == 29

    loop.run(story())


def test_new_month_begins_with_nothing_of_the_cap_used(store: Store, loop: asyncio.Runner) -> None:
    async def story() -> None:
        await fill(store, replace(TOKEN, monthly_requests=10))
        await store.note_uses([Use(TOKEN.id, 10, AT)])
        await store.note_uses([Use(TOKEN.id, 9, DECEMBER)])
        assert (await token(store)).capped_until == DECEMBER
        await store.note_uses([Use(TOKEN.id, 1, DECEMBER + 1)])
        assert (await token(store)).capped_until == moment(2027, 1, 1)

    loop.run(story())


def test_cap_of_a_month_that_is_over_stops_nobody_in_the_new_one(store: Store, loop: asyncio.Runner) -> None:
    """A worker that could not tell before the month's end tells both sides of it at once."""

    async def story() -> None:
        await fill(store, replace(TOKEN, monthly_requests=10), replace(OTHER, monthly_requests=10))
        await store.note_uses([Use(TOKEN.id, 10, DECEMBER - 1), Use(OTHER.id, 10, DECEMBER + 1)])
        assert ((await token(store)).capped_until or 0.0) <= DECEMBER
        assert (await token(store, OTHER.id)).capped_until == moment(2027, 1, 1)

    loop.run(story())


def test_late_word_of_an_earlier_month_takes_no_cap_back(store: Store, loop: asyncio.Runner) -> None:
    async def story() -> None:
        await fill(store, replace(TOKEN, monthly_requests=10))
        await store.note_uses([Use(TOKEN.id, 10, DECEMBER + 5)])
        await store.note_uses([Use(TOKEN.id, 10, DECEMBER - 5)])
        assert (await token(store)).capped_until == moment(2027, 1, 1)

    loop.run(story())


def test_cap_that_was_raised_counts_from_what_is_used(store: Store, loop: asyncio.Runner) -> None:
    async def story() -> None:
        await fill(store, replace(TOKEN, monthly_requests=10))
        await store.note_uses([Use(TOKEN.id, 10, AT)])
        async with store.changing() as records:
            await records.tokens.replace(replace(TOKEN, monthly_requests=12, last_used_at=AT))
        await store.note_uses([Use(TOKEN.id, 1, AT + 1)])
        assert (await token(store)).capped_until is None
        await store.note_uses([Use(TOKEN.id, 1, AT + 2)])
        assert (await token(store)).capped_until == DECEMBER

    loop.run(story())


# --- What is not there, and outages ------------------------------------------------------------------------


def test_tokens_that_were_deleted_meanwhile_are_skipped(store: Store, loop: asyncio.Runner) -> None:
    async def story() -> None:
        await fill(store)
        async with store.changing() as records:
            await records.tokens.remove(id=TOKEN.id)
        await store.note_uses([Use(TOKEN.id, 5, AT), Use(OTHER.id, 6, AT), Use("nobody", 0, AT)])
        assert await month(store, "2026-11") == 0
        assert await month(store, "2026-11", OTHER.id) == 6
        await store.note_uses([Use(TOKEN.id, 5, AT), Use("nobody", 9, DECEMBER)])
        assert await month(store, "2026-12", "nobody") == 0

    loop.run(story())


def test_many_tokens_are_noted_in_one_batch(store: Store, loop: asyncio.Runner) -> None:
    async def story() -> None:
        plain: Token = replace(PLAIN["tokens"], team_id=TEAM.id)
        tokens = [replace(plain, id=f"tok {n}", name=f"n{n}", monthly_requests=600) for n in range(500)]
        await fill(store, *tokens)
        await store.note_uses([Use(each.id, 100 + number, AT) for number, each in enumerate(tokens)])
        async with store.reading() as records:
            assert await records.tokens.count(last_used_at=AT) == 500
            assert await records.tokens.count(capped_until=None) == 500
        await store.note_uses([Use(each.id, 300, AT + 1) for each in tokens])
        async with store.reading() as records:
            assert await records.tokens.count(capped_until=DECEMBER) == 300

    loop.run(story())


def test_store_that_cannot_be_used_is_said_to_be_unavailable(broken: Store, loop: asyncio.Runner) -> None:
    with pytest.raises(StoreUnavailable):
        loop.run(broken.note_uses([Use(TOKEN.id, 1, AT)]))
