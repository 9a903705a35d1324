"""Clients that read nothing, or give no sign of life: what is kept for them is bounded, and so is their time."""

from __future__ import annotations

import json

import pytest
from tests.gateway.fakes import run_pending
from tests.gateway.raw_http import answer_upstream
from tests.gateway.websocket.asgi_clients import call
from tests.gateway.websocket.raw_clients import Caller, open_caller
from uvicorn.protocols.utils import ClientDisconnected
from websockets.frames import Opcode

from tollgate.gateway.websocket.connection import CLOSE_SECONDS
from tollgate.shm import metrics

# --- Clients that do not read ------------------------------------------------------------------------------


async def test_nothing_is_read_from_a_client_that_does_not_read(caller: Caller) -> None:
    await caller.connect()
    caller.socket.pause_writing()
    assert caller.transport.paused
    caller.socket.resume_writing()
    assert not caller.transport.paused


async def test_what_a_client_does_not_take_counts_until_it_does_or_is_gone(caller: Caller) -> None:
    await caller.connect()
    budget = caller.server.gateway.context.budget
    for _ in range(2):
        caller.transport.unsent = 500_000
        caller.socket.pause_writing()
        await run_pending()
        assert budget.held == 500_000
        caller.socket.resume_writing()
        assert budget.held == 0
    caller.socket.pause_writing()
    caller.socket.resume_writing()
    await run_pending()
    assert budget.held == 0, "it went on before its turn"
    caller.socket.pause_writing()
    await run_pending()
    caller.transport.drop(None)
    assert budget.held == 0


async def test_client_that_does_not_take_more_than_there_is_room_for_is_cut(caller: Caller) -> None:
    await caller.connect()
    budget = caller.server.gateway.context.budget
    caller.transport.unsent = budget.max_bytes + 1
    caller.socket.pause_writing()
    await run_pending()
    assert (caller.transport.aborted, budget.held) == (True, 0)


async def test_goodbye_reaches_a_client_that_does_not_read_and_is_the_end(caller: Caller) -> None:
    await caller.connect()
    caller.socket.pause_writing()
    caller.server.endpoint.stop()
    await run_pending(40)
    assert caller.closed() == 1001
    assert not caller.transport.aborted
    await caller.server.gateway.loop.advance(CLOSE_SECONDS)
    assert caller.transport.aborted


async def test_nothing_more_is_read_when_a_message_is_taken_meanwhile(caller: Caller) -> None:
    await caller.connect()
    caller.socket.pause_writing()
    # It was on its way already.
    await caller.text(call(1))
    assert caller.transport.paused
    caller.socket.resume_writing()
    await run_pending(40)
    assert not caller.transport.paused


async def test_no_message_is_taken_whose_answer_would_find_no_way_out() -> None:
    async with open_caller(node=lambda _: None) as caller:
        await caller.connect()
        for number in range(3):
            caller.client.send_text(json.dumps(call(number)).encode())
        caller.transport.deliver(b"".join(caller.client.data_to_send()))
        caller.socket.pause_writing()
        await run_pending(40)
        # The app waited for the first when the client stopped to read.
        assert caller.socket.queue.qsize() == 2
        assert caller.transport.paused
        caller.socket.resume_writing()
        await run_pending(40)
        assert caller.socket.queue.empty()


async def test_nothing_more_is_read_after_the_last_message_is_taken_for_a_client_that_does_not_read() -> None:
    async with open_caller(node=lambda _: None) as caller:
        await caller.connect()
        caller.client.send_text(json.dumps(call(1)).encode())
        caller.transport.deliver(b"".join(caller.client.data_to_send()))
        caller.socket.pause_writing()
        await run_pending(40)
        assert caller.socket.queue.empty()
        assert caller.transport.paused


async def test_nothing_more_is_read_after_our_goodbye_to_a_client_that_does_not_read() -> None:
    async with open_caller(node=lambda _: None) as caller:
        await caller.connect()
        for number in range(70):
            await caller.text(call(number))
        caller.socket.pause_writing()
        await caller.socket.send({"type": "websocket.close", "code": 1001, "reason": ""})
        assert caller.transport.paused
        assert caller.socket._abort_timer is not None, "the app need not end for that"
        caller.socket.resume_writing()
        await run_pending()
        assert not caller.transport.paused


@pytest.mark.parametrize(("blocked", "messages"), [(True, 1), (False, 70)], ids=["does not read", "sends more"])
async def test_reading_does_not_go_on_at_once_after_our_goodbye(blocked: bool, messages: int) -> None:
    async with open_caller(node=lambda _: None) as caller:
        await caller.connect()
        for number in range(messages):
            caller.client.send_text(json.dumps(call(number)).encode())
        caller.transport.deliver(b"".join(caller.client.data_to_send()))
        if blocked:
            caller.socket.pause_writing()
        await caller.socket.send({"type": "websocket.close", "code": 1001, "reason": ""})
        assert caller.transport.paused


async def test_pings_that_came_together_are_not_answered_beyond_what_the_client_takes(caller: Caller) -> None:
    await caller.connect()
    for _ in range(5_000):
        caller.client.send_ping(b"")
    caller.transport.full = True
    await caller.send()
    await run_pending(400)
    assert 0 < len(caller.frames()) <= 500
    caller.socket.resume_writing()
    await run_pending(400)
    assert len(caller.frames()) > 4_000
    assert not caller.transport.paused


@pytest.mark.parametrize("opcode", [Opcode.CLOSE, Opcode.TEXT])
async def test_client_that_does_not_read_is_given_up_after_its_own_goodbye_and_after_nonsense(
    opcode: Opcode, caller: Caller
) -> None:
    await caller.connect()
    caller.transport.stuck = True
    if opcode is Opcode.CLOSE:
        caller.client.send_close(1000, "done")
    else:
        caller.client.send_text(b"\xff")
    caller.transport.deliver(b"".join(caller.client.data_to_send()))
    assert caller.socket._abort_timer is not None, "the app need not end for that"
    await run_pending(60)
    assert caller.transport.closed
    assert not caller.transport.aborted
    await caller.server.gateway.loop.advance(CLOSE_SECONDS)
    assert caller.socket not in caller.server.gateway.server_state.connections
    assert caller.transport.aborted


async def test_client_that_does_not_take_its_refusal_is_given_up(caller: Caller) -> None:
    caller.transport.stuck = True
    await caller.deliver(caller.head(Authorization="Bearer tg_wrong"))
    assert not caller.transport.aborted
    await caller.server.gateway.loop.advance(CLOSE_SECONDS)
    assert caller.transport.aborted


async def test_time_of_a_client_to_answer_our_goodbye_begins_once_and_ends_with_it(caller: Caller) -> None:
    await caller.connect()
    socket = caller.socket
    caller.transport.stuck = True
    caller.server.endpoint.stop()
    await run_pending(40)
    timer = socket._abort_timer
    assert timer is not None
    socket._give_up_soon()
    assert socket._abort_timer is timer
    caller.transport.stuck = caller.transport.closed = False
    caller.transport.drop()
    await run_pending()
    assert timer.cancelled()
    socket._abort_timer = None
    socket._give_up_soon()
    assert socket._abort_timer is None, "there is no client to give up"


async def test_pongs_that_fill_the_buffer_before_an_invalid_frame_leave_no_task_waiting(caller: Caller) -> None:
    await caller.connect()
    caller.transport.stuck = caller.transport.full = True
    caller.client.send_ping(b"")
    caller.client.send_text(b"\xff")
    await caller.send()
    await caller.server.gateway.loop.advance(CLOSE_SECONDS)
    await run_pending(40)
    assert caller.transport.aborted
    assert caller.server.gateway.counted(metrics.WS_CONNECTIONS) == 0


async def test_what_is_sent_after_the_end_finds_the_client_gone(caller: Caller) -> None:
    await caller.connect()
    caller.transport.stuck = True
    caller.client.send_text(b"\xff")
    await caller.send()
    with pytest.raises(ClientDisconnected):
        await caller.socket.send({"type": "websocket.send", "text": "late"})
    with pytest.raises(ClientDisconnected):
        await caller.socket.send({"type": "websocket.close", "code": 1001, "reason": ""})


# --- Signs of life -----------------------------------------------------------------------------------------


async def test_client_is_pinged_for_a_sign_of_life_and_cut_without_one(caller: Caller) -> None:
    await caller.connect()
    loop = caller.server.gateway.loop
    await loop.advance(20.5)
    assert [each.opcode for each in caller.frames()] == [Opcode.PING]
    await caller.send()
    await loop.advance(20.5)
    assert [each.opcode for each in caller.frames()] == [Opcode.PING]
    caller.transport.stuck = True
    await loop.advance(20.5)
    assert caller.transport.closed
    assert not caller.transport.aborted
    await loop.advance(CLOSE_SECONDS)
    assert caller.transport.aborted


async def test_client_that_takes_a_long_message_has_its_time(caller: Caller) -> None:
    await caller.connect()
    loop = caller.server.gateway.loop
    caller.transport.unsent = 1_000
    await loop.advance(20.5)
    caller.transport.unsent = 600
    await loop.advance(20.5)
    assert not caller.transport.closed
    caller.transport.unsent = 100
    await loop.advance(20.5)
    assert not caller.transport.closed
    await loop.advance(20.5)
    assert caller.transport.closed


async def test_client_that_has_just_taken_all_of_a_long_message_has_time_to_answer(caller: Caller) -> None:
    await caller.connect()
    loop = caller.server.gateway.loop
    caller.transport.unsent = 1_000
    await loop.advance(20.5)
    # It is written, but may still be in transit; our ping is behind it.
    caller.transport.unsent = 0
    await loop.advance(20.5)
    assert not caller.transport.closed
    await loop.advance(20.5)
    assert caller.transport.closed


async def test_client_is_not_cut_while_it_is_us_who_do_not_read() -> None:
    async with open_caller(node=lambda _: None) as caller:
        await caller.connect()
        loop = caller.server.gateway.loop
        for number in range(70):
            await caller.text(call(number))
        assert caller.socket.read_paused
        await loop.advance(20.5)
        await loop.advance(20.5)
        assert not caller.transport.closed


async def test_nothing_is_sent_after_the_goodbye_to_a_client_that_does_not_read() -> None:
    async with open_caller(node=lambda _: None) as caller:
        await caller.connect()
        await caller.text(call(1))
        caller.socket.pause_writing()
        answer_upstream(caller.server.gateway)
        await run_pending(40)
        caller.server.endpoint.stop()
        await run_pending(40)
        assert caller.frames() == [], "what waits has a while to leave"
        await caller.server.gateway.loop.advance(CLOSE_SECONDS)
        assert [each.opcode for each in caller.frames()] == [Opcode.CLOSE]
