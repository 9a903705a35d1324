"""A graceful stop: what was read whole is answered, idle connections end, nothing hangs."""

import asyncio
import socket

import pytest
from tests.gateway.fake_gateway import FakeGateway, open_gateway
from tests.gateway.fakes import FakeTransport, run_pending
from tests.gateway.raw_http import GET, answer_upstream, edge, exchange, hello, post, responses, whole


def fire_linger(gateway: FakeGateway) -> None:
    """Run the timers that close idle connections."""
    timers, gateway.loop.timers = gateway.loop.timers, []
    for timer in timers:
        if not timer.cancelled():
            timer._run()


def shut_down(*transports: FakeTransport) -> None:
    for transport in transports:
        edge(transport).shutdown()


async def test_idle_connection_is_closed_after_a_moment(gateway: FakeGateway) -> None:
    fresh, used = gateway.connect(hello), gateway.connect(hello)
    await exchange(used, whole(post()))
    shut_down(fresh, used)
    assert not fresh.is_closing()
    fire_linger(gateway)
    assert fresh.is_closing()
    assert used.is_closing()


@pytest.mark.parametrize("stops", [True, False], ids=["stop", "idle for long"])
async def test_connection_is_not_idle_while_bytes_of_it_are_unread(gateway: FakeGateway, *, stops: bool) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        transport = gateway.connect(hello)
        transport._extra["socket"] = ours  # type: ignore[attr-defined]

        def close_idle() -> None:
            if stops:
                fire_linger(gateway)
            else:
                edge(transport).check(gateway.context.clock + gateway.context.bounds.keep_alive_seconds + 1)

        if stops:
            shut_down(transport)
        theirs.send(post())
        close_idle()
        close_idle()
        assert not transport.is_closing()
        transport.deliver(ours.recv(65_536))
        await run_pending(30)
        assert responses(transport) == [f"200 1{' close' if stops else ''}"]
        theirs.shutdown(socket.SHUT_WR)  # an end has no bytes
        close_idle()
        assert transport.is_closing()
    # Its socket is closed by now, and is not read.
    edge(transport).check(gateway.context.clock + gateway.context.bounds.keep_alive_seconds + 1)


async def test_request_that_was_on_its_way_is_answered_and_shown_that_we_close(gateway: FakeGateway) -> None:
    transport = gateway.connect(hello)
    shut_down(transport)
    assert await exchange(transport, whole(post())) == ["200 1 close"]
    assert transport.closed
    fire_linger(gateway)


async def test_request_that_is_half_read_is_waited_for(gateway: FakeGateway) -> None:
    transport = gateway.connect(hello)
    transport.deliver(post()[:-5])
    shut_down(transport)
    fire_linger(gateway)
    assert not transport.closed
    assert await exchange(transport, whole(post()[-5:])) == ["200 1 close"]


async def test_request_under_way_is_answered_and_shown_that_we_close() -> None:
    gateway = await open_gateway(node=lambda _: None)
    transport = gateway.connect(hello)
    await exchange(transport, whole(post()))
    shut_down(transport)
    fire_linger(gateway)
    assert not transport.closed
    answer_upstream(gateway)
    await run_pending(30)
    assert responses(transport) == ["200 1 close"]
    assert transport.closed


@pytest.mark.parametrize("last", [post(3), GET], ids=["ours", "other lane"])
async def test_every_request_in_line_was_read_whole_and_is_answered(last: bytes) -> None:
    gateway = await open_gateway(node=lambda _: None)
    transport = gateway.connect(hello)
    await exchange(transport, whole(post(1) + post(2) + last))
    shut_down(transport)
    for _ in range(3):
        answer_upstream(gateway)
        await run_pending(30)
    answers = responses(transport)
    assert answers[:2] == ["200 1", "200 2"]
    assert answers[2] == ("200 3 close" if b"/x/" in last else "200 /healthz close")
    assert transport.closed


async def test_request_of_the_other_lane_is_answered_and_shown_that_we_close(gateway: FakeGateway) -> None:
    transport = gateway.connect(hello)
    transport.deliver(GET)
    shut_down(transport)
    await run_pending(30)
    assert responses(transport) == ["200 /healthz close"]
    assert transport.closed


async def test_end_of_the_grace_answers_what_is_still_under_way() -> None:
    gateway = await open_gateway(node=lambda _: None)
    one, other = gateway.connect(hello), gateway.connect(hello)
    await exchange(one, whole(post(1)))
    await exchange(other, whole(post(2)))
    shut_down(one, other)
    gateway.context.under_way.stop()
    await run_pending()
    assert len(gateway.context.under_way) == 0
    assert responses(one) == responses(other) == ["503 overloaded close"]
    for pool in gateway.pools.values():
        pool.close()
    await run_pending(30)


async def test_stop_answers_a_caller_that_waits_for_the_store(gateway: FakeGateway) -> None:
    gateway.store.gate = asyncio.Event()
    transport = gateway.connect(hello)
    await exchange(transport, whole(post()))
    shut_down(transport)
    gateway.context.under_way.stop()
    await run_pending()
    assert responses(transport) == ["503 overloaded close"]
    gateway.store.gate.set()
    await run_pending(30)
