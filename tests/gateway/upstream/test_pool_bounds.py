"""The pool: how many connections there are, and who waits for one."""

import asyncio

import pytest
from tests.gateway.fakes import turns
from tests.gateway.pooled import OK, SOON, House

from tollgate.gateway.upstream.connection import AttemptFailed, ConnectFailed, PoolFull, Response
from tollgate.gateway.upstream.pool import MAX_QUEUE_SECONDS, WAITERS_PER_CONNECTION


async def test_calls_at_the_same_moment_do_not_open_more_connections_than_allowed() -> None:
    house = House(connections=2)
    sent = [house.send() for _ in range(10)]
    await turns()
    assert len(house.loop.asked) == 2
    while not all(each.done() for each in sent):
        for transport in house.loop.transports:
            if transport.take():
                transport.say(OK)
        await turns(3)
    assert house.pool.size == 2


@pytest.mark.parametrize(("max_bytes", "opened"), [(1_000_000, 1), (7, 2)])
async def test_another_bound_replaces_idle_connections_and_the_same_bound_keeps_them(
    max_bytes: int, opened: int
) -> None:
    house = House(connections=1)
    house.pool.change(1_000_000)
    for _ in range(2):
        call = house.send()
        await turns()
        house.loop.transports[-1].say(OK)
        assert await call == Response(200, b"{}")
        house.pool.change(max_bytes)
        await turns()
    assert len(house.loop.transports) == opened


async def filled(house: House) -> list[asyncio.Future[Response]]:
    """Calls that keep the only connection busy, and two that wait for it."""
    sent = []
    for _ in range(3):
        sent.append(house.send())
        await turns()
    assert len(house.loop.transports) == 1
    return sent


async def test_waiters_are_served_in_their_order() -> None:
    house = House(connections=1)
    sent = await filled(house)
    (transport,) = house.loop.transports
    for number in range(3):
        assert [each.done() for each in sent] == [each < number for each in range(3)]
        transport.say(OK)
        await turns()
    assert all(each.result() == Response(200, b"{}") for each in sent)


async def test_waiter_opens_a_connection_when_one_is_lost() -> None:
    house = House(connections=1)
    sent = await filled(house)
    house.loop.transports[0].drop(ConnectionResetError())
    await turns()
    assert isinstance(sent[0].exception(), AttemptFailed)
    house.loop.transports[1].say(OK)
    assert await sent[1] == Response(200, b"{}")
    await turns()
    house.loop.transports[1].say(OK)
    assert await sent[2] == Response(200, b"{}")


async def test_newcomer_does_not_open_a_connection_beside_the_waiter_that_may() -> None:
    house = House(connections=1)
    sent = await filled(house)
    house.loop.transports[0].drop(ConnectionResetError())
    sent.append(house.send())
    await turns()
    assert len(house.open) == 1
    await stop(house, sent)


async def test_waiter_does_not_wait_on_when_the_connection_to_come_is_refused() -> None:
    house = House(connections=1)
    house.loop.refusing = True
    house.loop.gate = asyncio.Event()
    first = house.send()
    await turns()
    second = house.send()
    await turns()
    house.loop.gate.set()
    await turns(30)
    assert isinstance(first.exception(), ConnectFailed)
    assert second.done(), "nobody wakes the second call"
    assert isinstance(second.exception(), ConnectFailed)


async def test_waiters_are_bounded() -> None:
    house = House(connections=1)
    sent = [house.send()]
    await turns()
    sent += [house.send() for _ in range(WAITERS_PER_CONNECTION)]
    await turns()
    with pytest.raises(PoolFull) as caught:
        await house.send()
    assert not caught.value.sent
    await stop(house, sent)


async def test_newcomer_is_refused_at_once_while_the_first_waiter_has_waited_for_long() -> None:
    house = House(connections=1)
    sent = [house.send(seconds=1_000)]
    await turns()
    sent += [house.send(seconds=1_000), house.send(seconds=1_000)]
    await turns()
    house.clock.advance(MAX_QUEUE_SECONDS)
    sent.append(house.send(seconds=1_000))
    await turns()
    assert not any(each.done() for each in sent)
    house.clock.advance(0.1)
    with pytest.raises(PoolFull) as caught:
        await house.send(seconds=1_000)
    assert not caught.value.sent
    # Who waits is served, and with a first waiter that came later others may wait again.
    (transport,) = house.loop.transports
    for _ in range(3):
        transport.say(OK)
        await turns()
    newcomer = house.send(seconds=1_000)
    await turns()
    assert [each.done() for each in sent] == [True, True, True, False]
    assert not newcomer.done()
    await stop(house, [*sent, newcomer])


async def test_waiters_that_have_given_up_do_not_keep_others_out() -> None:
    house = House(connections=1)
    sent = [house.send(seconds=1_000)]
    await turns()
    sent += [house.send() for _ in range(WAITERS_PER_CONNECTION)]
    await turns()
    house.later(SOON)
    await turns()
    newcomer = house.send()
    await turns()
    assert not newcomer.done()
    await stop(house, [*sent, newcomer])


async def stop(house: House, sent: list[asyncio.Future[Response]]) -> None:
    """End what is under way."""
    house.later(10_000)
    house.pool.close()
    await turns(30)
    await asyncio.gather(*sent, return_exceptions=True)


async def test_connection_lost_before_the_chosen_waiters_turn_is_replaced_once() -> None:
    """Two wait; the answer comes, and the connection is lost in the same turn: both must not take its place."""
    house = House(connections=1)
    sent = await filled(house)
    (transport,) = house.loop.transports
    transport.say(OK)
    transport.drop(ConnectionResetError())
    await turns()
    assert len(house.open) == 1
    assert len(house.loop.asked) == 2, "the first one, and one in its place"
    for _ in range(2):
        house.loop.transports[-1].say(OK)
        await turns()
    assert [each.result() for each in sent] == [Response(200, b"{}")] * 3
    assert len(house.loop.asked) == 2


async def test_connection_of_a_chosen_waiter_that_is_cancelled_goes_to_the_next() -> None:
    house = House(connections=1)
    sent = await filled(house)
    (transport,) = house.loop.transports
    transport.say(OK)
    sent[1].cancel()
    await turns()
    transport.say(OK)
    assert await sent[2] == Response(200, b"{}")
    assert len(house.loop.asked) == 1
    assert house.pool.size == 1


async def test_place_of_a_chosen_waiter_that_is_cancelled_goes_to_the_next() -> None:
    """The connection is lost, so the first waiter may open another; it is cancelled before its turn."""
    house = House(connections=1)
    sent = await filled(house)
    house.loop.transports[0].drop(ConnectionResetError())
    sent[1].cancel()
    await turns()
    assert isinstance(sent[0].exception(), AttemptFailed)
    house.loop.transports[-1].say(OK)
    assert await sent[2] == Response(200, b"{}")
    assert len(house.loop.asked) == 2


async def test_waiter_that_is_cancelled_before_it_is_chosen_takes_nothing() -> None:
    house = House(connections=1)
    sent = await filled(house)
    sent[1].cancel()
    await turns()
    (transport,) = house.loop.transports
    for each in (sent[0], sent[2]):
        transport.say(OK)
        assert await each == Response(200, b"{}")
        await turns()
    assert len(house.loop.asked) == 1
    assert [each.usable for each in house.pool.idle] == [True]
