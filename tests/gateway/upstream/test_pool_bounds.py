"""The pool: how many connections there are, and who waits for one."""

import asyncio

import pytest
from tests.gateway.fakes import run_pending
from tests.gateway.upstream.pooled_upstream import OK, SOON, PooledUpstream

from tollgate.gateway.upstream.connection import AttemptFailed, ConnectFailed, PoolFull, Response
from tollgate.gateway.upstream.pool import MAX_QUEUE_SECONDS, WAITERS_PER_CONNECTION


async def test_calls_at_the_same_moment_do_not_open_more_connections_than_allowed() -> None:
    harness = PooledUpstream(connections=2)
    sent = [harness.send() for _ in range(10)]
    await run_pending()
    assert len(harness.loop.connects) == 2
    while not all(each.done() for each in sent):
        for transport in harness.loop.transports:
            if transport.take():
                transport.deliver(OK)
        await run_pending(3)
    assert harness.pool.size == 2


async def test_connections_that_are_being_opened_count_before_a_waiter_is_let_open_another() -> None:
    harness = PooledUpstream(connections=2)
    harness.loop.gate = asyncio.Event()
    sent = [harness.send() for _ in range(3)]
    await run_pending()
    assert (len(harness.loop.connects), len(harness.pool.waiters)) == (2, 1)
    harness.pool._admit_waiter()
    assert len(harness.pool.waiters) == 1
    harness.loop.gate.set()
    while not all(each.done() for each in sent):
        await run_pending(3)
        for transport in harness.loop.transports:
            if transport.take():
                transport.deliver(OK)
    assert len(harness.loop.connects) == 2


@pytest.mark.parametrize(("max_bytes", "opened"), [(1_000_000, 1), (7, 2)])
async def test_another_bound_replaces_idle_connections_and_the_same_bound_keeps_them(
    max_bytes: int, opened: int
) -> None:
    harness = PooledUpstream(connections=1)
    harness.pool.change(1_000_000)
    for _ in range(2):
        call = harness.send()
        await run_pending()
        harness.loop.transports[-1].deliver(OK)
        assert await call == Response(200, b"{}")
        harness.pool.change(max_bytes)
        await run_pending()
    assert len(harness.loop.transports) == opened


async def filled(harness: PooledUpstream) -> list[asyncio.Future[Response]]:
    """Calls that keep the only connection busy, and two that wait for it."""
    sent = []
    for _ in range(3):
        sent.append(harness.send())
        await run_pending()
    assert len(harness.loop.transports) == 1
    return sent


async def test_waiters_are_served_in_their_order() -> None:
    harness = PooledUpstream(connections=1)
    sent = await filled(harness)
    (transport,) = harness.loop.transports
    for number in range(3):
        assert [each.done() for each in sent] == [each < number for each in range(3)]
        transport.deliver(OK)
        await run_pending()
    assert all(each.result() == Response(200, b"{}") for each in sent)


async def test_waiter_opens_a_connection_when_one_is_lost() -> None:
    harness = PooledUpstream(connections=1)
    sent = await filled(harness)
    harness.loop.transports[0].drop(ConnectionResetError())
    await run_pending()
    assert isinstance(sent[0].exception(), AttemptFailed)
    harness.loop.transports[1].deliver(OK)
    assert await sent[1] == Response(200, b"{}")
    await run_pending()
    harness.loop.transports[1].deliver(OK)
    assert await sent[2] == Response(200, b"{}")


async def test_newcomer_does_not_open_a_connection_beside_the_waiter_that_may() -> None:
    harness = PooledUpstream(connections=1)
    sent = await filled(harness)
    harness.loop.transports[0].drop(ConnectionResetError())
    sent.append(harness.send())
    await run_pending()
    assert len(harness.open) == 1
    await stop(harness, sent)


async def test_waiter_does_not_wait_on_when_the_connection_to_come_is_refused() -> None:
    harness = PooledUpstream(connections=1)
    harness.loop.refusing = True
    harness.loop.gate = asyncio.Event()
    first = harness.send()
    await run_pending()
    second = harness.send()
    await run_pending()
    harness.loop.gate.set()
    await run_pending(30)
    assert isinstance(first.exception(), ConnectFailed)
    assert second.done(), "the second call is not woken"
    assert isinstance(second.exception(), ConnectFailed)


async def test_waiters_are_bounded() -> None:
    harness = PooledUpstream(connections=1)
    sent = [harness.send()]
    await run_pending()
    sent += [harness.send() for _ in range(WAITERS_PER_CONNECTION)]
    await run_pending()
    with pytest.raises(PoolFull) as caught:
        await harness.send()
    assert not caught.value.sent
    await stop(harness, sent)


async def test_newcomer_is_refused_at_once_while_the_first_waiter_has_waited_for_long() -> None:
    harness = PooledUpstream(connections=1)
    sent = [harness.send(seconds=1_000)]
    await run_pending()
    sent += [harness.send(seconds=1_000), harness.send(seconds=1_000)]
    await run_pending()
    harness.clock.advance(MAX_QUEUE_SECONDS)
    sent.append(harness.send(seconds=1_000))
    await run_pending()
    assert not any(each.done() for each in sent)
    harness.clock.advance(0.1)
    with pytest.raises(PoolFull) as caught:
        await harness.send(seconds=1_000)
    assert not caught.value.sent
    # Who waits is served, and with a first waiter that came later others may wait again.
    (transport,) = harness.loop.transports
    for _ in range(3):
        transport.deliver(OK)
        await run_pending()
    newcomer = harness.send(seconds=1_000)
    await run_pending()
    assert [each.done() for each in sent] == [True, True, True, False]
    assert not newcomer.done()
    await stop(harness, [*sent, newcomer])


@pytest.mark.parametrize("end", ["deadline", "cancelled"])
async def test_waiters_that_have_given_up_do_not_keep_others_out(end: str) -> None:
    harness = PooledUpstream(connections=1)
    sent = [harness.send(seconds=1_000)]
    await run_pending()
    sent += [harness.send() for _ in range(WAITERS_PER_CONNECTION)]
    await run_pending()
    if end == "deadline":
        harness.advance(SOON)
    else:
        for each in sent[1:]:
            each.cancel()
    await run_pending()
    newcomer = harness.send()
    await run_pending()
    assert not newcomer.done()
    await stop(harness, [*sent, newcomer])


async def stop(harness: PooledUpstream, sent: list[asyncio.Future[Response]]) -> None:
    """End what is under way."""
    harness.advance(10_000)
    harness.pool.close()
    await run_pending(30)
    await asyncio.gather(*sent, return_exceptions=True)


async def test_connection_lost_before_the_chosen_waiters_turn_is_replaced_once() -> None:
    """Two wait; the answer comes, and the connection is lost in the same turn: both must not take its place."""
    harness = PooledUpstream(connections=1)
    sent = await filled(harness)
    (transport,) = harness.loop.transports
    transport.deliver(OK)
    transport.drop(ConnectionResetError())
    await run_pending()
    assert len(harness.open) == 1
    assert len(harness.loop.connects) == 2, "the first one, and one in its place"
    for _ in range(2):
        harness.loop.transports[-1].deliver(OK)
        await run_pending()
    assert [each.result() for each in sent] == [Response(200, b"{}")] * 3
    assert len(harness.loop.connects) == 2


async def test_connection_of_a_chosen_waiter_that_is_cancelled_goes_to_the_next() -> None:
    harness = PooledUpstream(connections=1)
    sent = await filled(harness)
    (transport,) = harness.loop.transports
    transport.deliver(OK)
    sent[1].cancel()
    await run_pending()
    # It was sent the moment the connection was free: its answer is dropped.
    transport.deliver(OK)
    await run_pending()
    transport.deliver(OK)
    assert await sent[2] == Response(200, b"{}")
    assert len(harness.loop.connects) == 1
    assert harness.pool.size == 1


async def test_place_of_a_chosen_waiter_that_is_cancelled_goes_to_the_next() -> None:
    """The connection is lost, so the first waiter may open another; it is cancelled before its turn."""
    harness = PooledUpstream(connections=1)
    sent = await filled(harness)
    harness.loop.transports[0].drop(ConnectionResetError())
    sent[1].cancel()
    await run_pending()
    assert isinstance(sent[0].exception(), AttemptFailed)
    harness.loop.transports[-1].deliver(OK)
    assert await sent[2] == Response(200, b"{}")
    more = [harness.send(), harness.send()]
    await run_pending()
    assert len(harness.loop.connects) == 2
    await stop(harness, more)


async def test_waiter_that_is_cancelled_before_it_is_chosen_takes_nothing() -> None:
    harness = PooledUpstream(connections=1)
    sent = await filled(harness)
    sent[1].cancel()
    await run_pending()
    (transport,) = harness.loop.transports
    for each in (sent[0], sent[2]):
        transport.deliver(OK)
        assert await each == Response(200, b"{}")
        await run_pending()
    assert len(harness.loop.connects) == 1
    assert [each.usable for each in harness.pool.idle] == [True]
