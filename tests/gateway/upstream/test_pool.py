"""The pool: which connection a call gets, and when it is repeated on another."""

import asyncio

import pytest
from tests.gateway.fakes import fly, turns
from tests.gateway.pooled import OK, House
from tests.gateway.worker import http

from tollgate.gateway.upstream.connection import AttemptFailed, Response
from tollgate.gateway.upstream.pool import FRESH_SECONDS, IDLE_SECONDS

# --- Which connection --------------------------------------------------------------------------------------


async def test_connection_is_used_again() -> None:
    house = House()
    assert await house.call() is await house.call()
    assert house.pool.size == 1


async def test_newest_connection_is_used_first() -> None:
    house = House()
    first, second = house.send(), house.send()
    await turns()
    older, newer = house.loop.transports
    older.say(OK)
    newer.say(OK)
    await asyncio.gather(first, second)
    assert await house.call() is newer
    assert await house.call() is newer


async def test_idle_connection_is_closed_by_the_sweep() -> None:
    house = House()
    transport = await house.call()
    house.later(IDLE_SECONDS - 1)
    assert not transport.is_closing()
    house.later(2)
    await turns()
    assert transport.is_closing()
    assert house.pool.size == 0


async def test_connection_that_is_used_does_not_grow_old() -> None:
    house = House()
    transport = await house.call()
    for _ in range(3):
        house.later(IDLE_SECONDS - 1)
        assert await house.call() is transport


async def test_connection_that_was_closed_while_idle_is_not_used() -> None:
    house = House()
    (await house.call()).drop()
    await house.call()
    assert len(house.loop.transports) == 2


async def test_write_takes_a_kept_connection_only_while_it_is_fresh() -> None:
    house = House()
    transport = await house.call()
    house.later(FRESH_SECONDS / 2)
    assert await house.call(write=True) is transport
    house.later(FRESH_SECONDS * 2)
    assert await house.call(write=True) is not transport


async def test_write_does_not_wait_where_all_connections_are_idle_but_none_is_fresh() -> None:
    house = House(connections=1)
    await house.call()
    house.later(FRESH_SECONDS * 2)
    sent = house.send(write=True)
    await turns(30)
    assert len(house.loop.transports) == 2, "the write waits for a connection that nobody will free"
    house.loop.transports[-1].say(OK)
    assert await sent == Response(200, b"{}")
    assert house.pool.size <= 1


# --- Stale connections -------------------------------------------------------------------------------------


async def test_read_on_a_stale_connection_is_repeated_on_a_new_one() -> None:
    house = House()
    transport = await house.call()
    sent = house.send()
    await turns()
    transport.drop()
    await turns()
    assert house.loop.transports[1].take().endswith(b"\r\n\r\n{}")
    house.loop.transports[1].say(OK)
    assert await sent == Response(200, b"{}")


async def test_read_is_repeated_once() -> None:
    house = House()
    await house.call()
    sent = house.send()
    for transport in range(2):
        await turns()
        house.loop.transports[transport].drop()
    with pytest.raises(AttemptFailed):
        await sent
    assert len(house.loop.transports) == 2


async def test_write_on_a_stale_connection_is_not_repeated() -> None:
    house = House()
    transport = await house.call()
    sent = house.send(write=True)
    await turns()
    transport.drop()
    with pytest.raises(AttemptFailed) as caught:
        await sent
    assert caught.value.sent
    assert len(house.loop.transports) == 1


async def test_read_that_was_half_answered_is_not_repeated_here() -> None:
    house = House()
    transport = await house.call()
    sent = house.send()
    await turns()
    transport.say(OK[:10])
    transport.drop()
    with pytest.raises(AttemptFailed):
        await sent
    assert len(house.loop.transports) == 1


async def test_answer_that_comes_twice_is_not_given_to_the_next_call() -> None:
    house = House()
    deadline = house.clock() + 15

    async def two_calls() -> list[bytes]:
        first = await house.pool.send(b"[1]", deadline, repeatable=True)
        second = await house.pool.send(b"[2]", deadline, repeatable=True)
        return [first.body, second.body]

    sent = fly(two_calls())
    await turns()
    house.loop.transports[0].say(http(b"one") + http(b"one"))
    await turns(30)
    if not sent.done():
        house.open[-1].say(http(b"two"))
    assert await sent == [b"one", b"two"]
