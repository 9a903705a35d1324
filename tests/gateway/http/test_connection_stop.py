"""A graceful stop: what was read whole is answered, idle connections end, nothing hangs."""

import asyncio
import socket

import pytest
from tests.gateway.fakes import FakeTransport, turns
from tests.gateway.raw_http import GET, answer_upstream, edge, exchange, hello, post, responses, whole
from tests.gateway.worker import Worker, open_worker


def fire_linger(worker: Worker) -> None:
    """Let the time pass that idle connections are given: run what the loop was to call later."""
    for handle in list(worker.loop._scheduled):  # type: ignore[attr-defined]
        if not handle.cancelled():
            callback, arguments = handle._callback, handle._args
            handle.cancel()
            callback(*arguments)


def shut_down(*transports: FakeTransport) -> None:
    for transport in transports:
        edge(transport).shutdown()


async def test_idle_connection_is_closed_after_a_moment(worker: Worker) -> None:
    fresh, used = worker.connect(hello), worker.connect(hello)
    await exchange(used, whole(post()))
    shut_down(fresh, used)
    assert not fresh.is_closing()
    fire_linger(worker)
    assert fresh.is_closing()
    assert used.is_closing()


@pytest.mark.parametrize("stops", [True, False], ids=["stop", "idle for long"])
async def test_connection_is_not_idle_while_bytes_of_it_are_unread(worker: Worker, *, stops: bool) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        transport = worker.connect(hello)
        transport._extra["socket"] = ours  # type: ignore[attr-defined]

        def close_idle() -> None:
            if stops:
                fire_linger(worker)
            else:
                edge(transport).check(worker.context.clock + worker.context.keep_alive_seconds + 1)

        if stops:
            shut_down(transport)
        theirs.send(post())
        close_idle()
        close_idle()
        assert not transport.is_closing()
        transport.deliver(ours.recv(65_536))
        await turns(30)
        assert responses(transport) == [f"200 1{' close' if stops else ''}"]
        theirs.shutdown(socket.SHUT_WR)  # an end has no bytes
        close_idle()
        assert transport.is_closing()
    # Its socket is closed by now, and nobody looks at it.
    edge(transport).check(worker.context.clock + worker.context.keep_alive_seconds + 1)


async def test_request_that_was_on_its_way_is_answered_and_shown_that_we_close(worker: Worker) -> None:
    transport = worker.connect(hello)
    shut_down(transport)
    assert await exchange(transport, whole(post())) == ["200 1 close"]
    assert transport.closed
    fire_linger(worker)


async def test_request_that_is_half_read_is_waited_for(worker: Worker) -> None:
    transport = worker.connect(hello)
    transport.deliver(post()[:-5])
    shut_down(transport)
    fire_linger(worker)
    assert not transport.closed
    assert await exchange(transport, whole(post()[-5:])) == ["200 1 close"]


async def test_request_under_way_is_answered_and_shown_that_we_close() -> None:
    worker = await open_worker(node=lambda _: None)
    transport = worker.connect(hello)
    await exchange(transport, whole(post()))
    shut_down(transport)
    fire_linger(worker)
    assert not transport.closed
    answer_upstream(worker)
    await turns(30)
    assert responses(transport) == ["200 1 close"]
    assert transport.closed


@pytest.mark.parametrize("last", [post(3), GET], ids=["ours", "other lane"])
async def test_every_request_in_line_was_read_whole_and_is_answered(last: bytes) -> None:
    worker = await open_worker(node=lambda _: None)
    transport = worker.connect(hello)
    await exchange(transport, whole(post(1) + post(2) + last))
    shut_down(transport)
    for _ in range(3):
        answer_upstream(worker)
        await turns(30)
    answers = responses(transport)
    assert answers[:2] == ["200 1", "200 2"]
    assert answers[2] == ("200 3 close" if b"/x/" in last else "200 /healthz close")
    assert transport.closed


async def test_request_of_the_other_lane_is_answered_and_shown_that_we_close(worker: Worker) -> None:
    transport = worker.connect(hello)
    transport.deliver(GET)
    shut_down(transport)
    await turns(30)
    assert responses(transport) == ["200 /healthz close"]
    assert transport.closed


async def test_end_of_the_grace_answers_what_is_still_under_way() -> None:
    worker = await open_worker(node=lambda _: None)
    one, other = worker.connect(hello), worker.connect(hello)
    await exchange(one, whole(post(1)))
    await exchange(other, whole(post(2)))
    shut_down(one, other)
    worker.context.stop()
    await turns()
    assert worker.context.in_flight == 0
    assert responses(one) == responses(other) == ["503 overloaded close"]
    for pool in worker.pools.values():
        pool.close()
    await turns(30)


async def test_stop_answers_a_caller_that_waits_for_the_store(worker: Worker) -> None:
    worker.store.gate = asyncio.Event()
    transport = worker.connect(hello)
    await exchange(transport, whole(post()))
    shut_down(transport)
    worker.context.stop()
    await turns()
    assert responses(transport) == ["503 overloaded close"]
    worker.store.gate.set()
    await turns(30)
