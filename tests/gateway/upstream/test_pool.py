"""The pool: which connection a call gets, and when it is repeated on another."""

import asyncio

import pytest
from tests.gateway.fake_node import http
from tests.gateway.fakes import run_pending, spawn
from tests.gateway.upstream.pooled_upstream import OK, PooledUpstream

from tollgate.gateway.upstream.connection import AttemptFailed, Response
from tollgate.gateway.upstream.pool import FRESH_SECONDS, IDLE_SECONDS

# --- Which connection --------------------------------------------------------------------------------------


async def test_connection_is_used_again() -> None:
    harness = PooledUpstream()
    assert await harness.call() is await harness.call()
    assert harness.pool.size == 1


async def test_newest_connection_is_used_first() -> None:
    harness = PooledUpstream()
    first, second = harness.send(), harness.send()
    await run_pending()
    older, newer = harness.loop.transports
    older.deliver(OK)
    newer.deliver(OK)
    await asyncio.gather(first, second)
    assert await harness.call() is newer
    assert await harness.call() is newer


async def test_idle_connection_is_closed_by_the_sweep() -> None:
    harness = PooledUpstream()
    transport = await harness.call()
    harness.advance(IDLE_SECONDS)
    assert not transport.is_closing()
    harness.advance(1)
    await run_pending()
    assert transport.is_closing()
    assert harness.pool.size == 0


async def test_connection_that_is_used_does_not_grow_old() -> None:
    harness = PooledUpstream()
    transport = await harness.call()
    for _ in range(3):
        harness.advance(IDLE_SECONDS - 1)
        assert await harness.call() is transport


async def test_connection_that_was_closed_while_idle_is_not_used() -> None:
    harness = PooledUpstream()
    (await harness.call()).drop()
    assert harness.pool.idle == []
    await harness.call()
    assert len(harness.loop.transports) == 2
    harness.pool.close()
    assert harness.pool.idle == []
    await run_pending()


async def test_write_takes_a_kept_connection_only_while_it_is_fresh() -> None:
    harness = PooledUpstream()
    transport = await harness.call()
    harness.advance(FRESH_SECONDS)
    assert await harness.call(write=True) is transport
    harness.advance(FRESH_SECONDS * 2)
    assert await harness.call(write=True) is not transport


async def test_write_does_not_wait_where_all_connections_are_idle_but_none_is_fresh() -> None:
    harness = PooledUpstream(connections=1)
    stale = await harness.call()
    # A goodbye over TLS takes a while.
    stale.drop = lambda error=None: None  # type: ignore[method-assign]
    harness.advance(FRESH_SECONDS * 2)
    sent = harness.send(write=True)
    await run_pending(30)
    assert len(harness.loop.transports) == 2, "the write waits for a connection that will not be freed"
    harness.loop.transports[-1].deliver(OK)
    assert await sent == Response(200, b"{}")
    assert harness.pool.size <= 1
    assert stale.closed


async def test_write_does_not_wait_where_the_others_are_not_open_yet() -> None:
    harness = PooledUpstream(connections=2)
    await harness.call()
    harness.advance(FRESH_SECONDS * 2)
    harness.loop.gate = asyncio.Event()
    sent = [harness.send(write=True), harness.send(write=True)]
    await run_pending(30)
    assert len(harness.loop.connects) == 3
    harness.loop.gate.set()
    await run_pending(30)
    for transport in harness.open:
        transport.deliver(OK)
    assert await asyncio.gather(*sent) == [Response(200, b"{}")] * 2


# --- Stale connections -------------------------------------------------------------------------------------


async def test_read_on_a_stale_connection_is_repeated_on_a_new_one() -> None:
    harness = PooledUpstream()
    transport = await harness.call()
    sent = harness.send()
    await run_pending()
    transport.drop()
    await run_pending()
    assert harness.loop.transports[1].take().endswith(b"\r\n\r\n{}")
    harness.loop.transports[1].deliver(OK)
    assert await sent == Response(200, b"{}")


async def test_connection_whose_only_answer_had_a_known_head_may_be_stale_too() -> None:
    harness = PooledUpstream()
    sent = [harness.send(), harness.send()]
    await run_pending()
    for transport in harness.loop.transports:
        transport.deliver(OK)
    await asyncio.gather(*sent)
    repeated = harness.send()
    await run_pending()
    harness.loop.transports[1].drop()
    await run_pending()
    harness.loop.transports[-1].deliver(OK)
    assert await repeated == Response(200, b"{}")
    assert len(harness.loop.transports) == 3


async def test_read_is_repeated_once() -> None:
    harness = PooledUpstream()
    await harness.call()
    sent = harness.send()
    for transport in range(2):
        await run_pending()
        harness.loop.transports[transport].drop()
    with pytest.raises(AttemptFailed):
        await sent
    assert len(harness.loop.transports) == 2


async def test_write_on_a_stale_connection_is_not_repeated() -> None:
    harness = PooledUpstream()
    transport = await harness.call()
    sent = harness.send(write=True)
    await run_pending()
    transport.drop()
    with pytest.raises(AttemptFailed) as caught:
        await sent
    assert caught.value.sent
    assert len(harness.loop.transports) == 1


async def test_read_that_was_half_answered_is_not_repeated_here() -> None:
    harness = PooledUpstream()
    transport = await harness.call()
    sent = harness.send()
    await run_pending()
    transport.deliver(OK[:10])
    transport.drop()
    with pytest.raises(AttemptFailed):
        await sent
    assert len(harness.loop.transports) == 1


async def test_answer_that_comes_twice_is_not_given_to_the_next_call() -> None:
    harness = PooledUpstream()
    deadline = harness.clock() + 15

    async def two_calls() -> list[bytes]:
        first = await harness.pool.send(b"[1]", deadline, repeatable=True)
        second = await harness.pool.send(b"[2]", deadline, repeatable=True)
        return [first.body, second.body]

    sent = spawn(two_calls())
    await run_pending()
    harness.loop.transports[0].deliver(http(b"one") + http(b"one"))
    await run_pending(30)
    if not sent.done():
        harness.open[-1].deliver(http(b"two"))
    assert await sent == [b"one", b"two"]
