"""The pool: which connection a call gets, how many there are, and when it gives up waiting."""

import asyncio

import pytest

from tests.gateway.fakes import Clock, FakeTransport, ScriptedLoop, fly, run, scripted_loop, turns
from tests.gateway.worker import http
from tollgate import __version__, config
from tollgate.gateway.budget import Budget
from tollgate.gateway.transport import (
    FRESH_SECONDS,
    IDLE_SECONDS,
    WAITERS_PER_CONNECTION,
    Pool,
)
from tollgate.gateway.wire import AttemptFailed, ConnectFailed, PoolFull, Response, TimedOut

OK = http(b"{}")
SOON = 15.0


class House:
    """A pool on a scripted loop."""

    def __init__(self, connections: int = 4, url: str = "http://node:8545", **headers: str) -> None:
        self.clock = Clock()
        self.loop: ScriptedLoop = scripted_loop()
        upstream = config.Upstream(name="a", url=url, connections=connections, headers=headers)
        self.pool = Pool(upstream, most_bytes=1_000_000, budget=Budget(10_000_000), now=self.clock)

    @property
    def open(self) -> list[FakeTransport]:
        return [transport for transport in self.loop.transports if not transport.closed]

    def send(self, *, write: bool = False, seconds: float = SOON) -> asyncio.Future[Response]:
        """A call is made; give it the turns it needs with `settled`."""
        sending = self.pool.send(b"{}", self.clock.now + seconds, repeatable=not write)
        return fly(sending)

    async def call(self, *, write: bool = False) -> FakeTransport:
        """A call that is answered; returns the connection it took."""
        before = {id(each): len(each.written) for each in self.loop.transports}
        sent = self.send(write=write)
        await turns()
        (taken,) = [each for each in self.loop.transports if len(each.written) > before.get(id(each), 0)]
        taken.say(OK)
        assert await sent == Response(200, b"{}")
        return taken

    def later(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.pool.sweep()


# --- Which connection --------------------------------------------------------------------------------------


def test_connection_is_used_again() -> None:
    async def test() -> None:
        house = House()
        assert await house.call() is await house.call()
        assert house.pool.size == 1

    run(test)


def test_newest_connection_is_used_first() -> None:
    async def test() -> None:
        house = House()
        first, second = house.send(), house.send()
        await turns()
        older, newer = house.loop.transports
        older.say(OK)
        newer.say(OK)
        await asyncio.gather(first, second)
        assert await house.call() is newer
        assert await house.call() is newer

    run(test)


def test_idle_connection_is_closed_by_the_sweep() -> None:
    async def test() -> None:
        house = House()
        transport = await house.call()
        house.later(IDLE_SECONDS - 1)
        assert not transport.closed
        house.later(2)
        await turns()
        assert transport.closed
        assert house.pool.size == 0

    run(test)


def test_connection_that_is_used_does_not_grow_old() -> None:
    async def test() -> None:
        house = House()
        transport = await house.call()
        for _ in range(3):
            house.later(IDLE_SECONDS - 1)
            assert await house.call() is transport

    run(test)


def test_connection_that_was_closed_while_idle_is_not_used() -> None:
    async def test() -> None:
        house = House()
        (await house.call()).drop()
        await house.call()
        assert len(house.loop.transports) == 2

    run(test)


def test_write_takes_a_kept_connection_only_while_it_is_fresh() -> None:
    async def test() -> None:
        house = House()
        transport = await house.call()
        house.later(FRESH_SECONDS / 2)
        assert await house.call(write=True) is transport
        house.later(FRESH_SECONDS * 2)
        assert await house.call(write=True) is not transport

    run(test)


def test_write_does_not_wait_where_all_connections_are_idle_but_none_is_fresh() -> None:
    async def test() -> None:
        house = House(connections=1)
        await house.call()
        house.later(FRESH_SECONDS * 2)
        sent = house.send(write=True)
        await turns(30)
        assert len(house.loop.transports) == 2, "the write waits for a connection that nobody will free"
        house.loop.transports[-1].say(OK)
        assert await sent == Response(200, b"{}")
        assert house.pool.size <= 1

    run(test)


# --- Stale connections -------------------------------------------------------------------------------------


def test_read_on_a_stale_connection_is_repeated_on_a_new_one() -> None:
    async def test() -> None:
        house = House()
        transport = await house.call()
        sent = house.send()
        await turns()
        transport.drop()
        await turns()
        assert house.loop.transports[1].take().endswith(b"\r\n\r\n{}")
        house.loop.transports[1].say(OK)
        assert await sent == Response(200, b"{}")

    run(test)


def test_read_is_repeated_once() -> None:
    async def test() -> None:
        house = House()
        await house.call()
        sent = house.send()
        for transport in range(2):
            await turns()
            house.loop.transports[transport].drop()
        with pytest.raises(AttemptFailed):
            await sent
        assert len(house.loop.transports) == 2

    run(test)


def test_write_on_a_stale_connection_is_not_repeated() -> None:
    async def test() -> None:
        house = House()
        transport = await house.call()
        sent = house.send(write=True)
        await turns()
        transport.drop()
        with pytest.raises(AttemptFailed) as caught:
            await sent
        assert caught.value.sent
        assert len(house.loop.transports) == 1

    run(test)


def test_read_that_was_half_answered_is_not_repeated_here() -> None:
    async def test() -> None:
        house = House()
        transport = await house.call()
        sent = house.send()
        await turns()
        transport.say(OK[:10])
        transport.drop()
        with pytest.raises(AttemptFailed):
            await sent
        assert len(house.loop.transports) == 1

    run(test)


# --- Bounds ------------------------------------------------------------------------------------------------


def test_calls_at_the_same_moment_do_not_open_more_connections_than_allowed() -> None:
    async def test() -> None:
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

    run(test)


async def filled(house: House) -> list[asyncio.Future[Response]]:
    """Calls that keep the only connection busy, and two that wait for it."""
    sent = []
    for _ in range(3):
        sent.append(house.send())
        await turns()
    assert len(house.loop.transports) == 1
    return sent


def test_waiters_are_served_in_their_order() -> None:
    async def test() -> None:
        house = House(connections=1)
        sent = await filled(house)
        (transport,) = house.loop.transports
        for number in range(3):
            assert [each.done() for each in sent] == [each < number for each in range(3)]
            transport.say(OK)
            await turns()
        assert all(each.result() == Response(200, b"{}") for each in sent)

    run(test)


def test_waiter_opens_a_connection_when_one_is_lost() -> None:
    async def test() -> None:
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

    run(test)


def test_newcomer_does_not_open_a_connection_beside_the_waiter_that_may() -> None:
    async def test() -> None:
        house = House(connections=1)
        sent = await filled(house)
        house.loop.transports[0].drop(ConnectionResetError())
        sent.append(house.send())
        await turns()
        assert len(house.open) == 1
        await stop(house, sent)

    run(test)


def test_waiter_does_not_wait_on_when_the_connection_to_come_is_refused() -> None:
    async def test() -> None:
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

    run(test)


def test_waiters_are_bounded() -> None:
    async def test() -> None:
        house = House(connections=1)
        sent = [house.send()]
        await turns()
        sent += [house.send() for _ in range(WAITERS_PER_CONNECTION)]
        await turns()
        with pytest.raises(PoolFull) as caught:
            await house.send()
        assert not caught.value.sent
        await stop(house, sent)

    run(test)


def test_waiters_that_have_given_up_do_not_keep_others_out() -> None:
    async def test() -> None:
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

    run(test)


async def stop(house: House, sent: list[asyncio.Future[Response]]) -> None:
    """End what is under way."""
    house.later(10_000)
    house.pool.close()
    await turns(30)
    await asyncio.gather(*sent, return_exceptions=True)
