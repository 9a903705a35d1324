"""Messages that never end: what is kept of them counts against the worker's budget, and their time is bounded."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.gateway.fakes import run_pending
from tests.gateway.websocket.asgi_clients import call
from tests.gateway.websocket.raw_clients import Caller, open_caller
from websockets.frames import Opcode

from tollgate.gateway.memory_budget import SMALL

SIZE = 2 * SMALL


def unfinished(kind: str, size: int = SIZE) -> bytes:
    """A message of which the end is missing: the rest of a frame, or the last fragment."""
    mask = b"\x00" * 4
    if kind == "frame":
        return b"\x81\xff" + (size + 1).to_bytes(8, "big") + mask + b" " * size
    half = b"\xff" + (size // 2).to_bytes(8, "big") + mask + b" " * (size // 2)
    return b"\x01" + half + b"\x00" + half


def end(kind: str) -> bytes:
    mask = b"\x00" * 4
    return b" " if kind == "frame" else b"\x80\x80" + mask


kinds = pytest.mark.parametrize("kind", ["frame", "fragments"])


async def begin(caller: Caller, data: bytes) -> None:
    await caller.connect()
    caller.socket.conn.max_message_size = 10 * SIZE
    await caller.deliver(data)


@kinds
async def test_unfinished_message_counts_against_the_budget_until_it_is_whole(kind: str) -> None:
    async with open_caller(budget=4 * SIZE) as caller:
        await begin(caller, unfinished(kind))
        budget = caller.server.gateway.budget
        assert SIZE <= budget.held < SIZE + 100
        await caller.deliver(end(kind))
        assert budget.held == 0
        assert [each["error"]["code"] for each in caller.messages()] == [-32700]
        assert caller.closed() is None


@kinds
async def test_unfinished_message_without_room_ends_the_connection(kind: str) -> None:
    async with open_caller(budget=SIZE - 1) as caller:
        await begin(caller, unfinished(kind))
        assert caller.closed() == 1013
        assert caller.server.gateway.budget.held == 0
        assert caller.transport.closed


@kinds
async def test_client_that_leaves_within_a_message_gives_its_room_back(kind: str) -> None:
    async with open_caller(budget=4 * SIZE) as caller:
        await begin(caller, unfinished(kind))
        socket = caller.socket
        caller.transport.drop()
        assert not any((socket._unread, socket.frames, socket.conn.reader.buffer))
        await run_pending()
        assert caller.server.gateway.budget.held == 0
        await caller.server.gateway.loop.advance(1_000.0)


async def test_small_messages_do_not_count() -> None:
    async with open_caller(budget=0) as caller:
        await begin(caller, unfinished("frame", SMALL // 2))
        assert caller.closed() is None


async def test_bytes_count_from_the_first_beyond_a_small_message_and_to_the_last() -> None:
    async with open_caller(budget=4 * SIZE) as caller:
        await caller.connect()
        socket, budget = caller.socket, caller.server.gateway.budget
        held, timers = [], []
        for size in (SMALL, SMALL + 1, SMALL + 2, SMALL + 1, SMALL):
            socket.frames = [b" " * size]
            socket._weigh()
            held.append(budget.held)
            timers.append(socket._slow_timer)
        assert held == [0, SMALL + 1, SMALL + 2, SMALL + 1, 0]
        assert timers[0] is None
        assert len(set(timers[1:])) == 1, "one is enough"


async def test_who_is_cut_leaves_nothing_behind_though_it_does_not_read() -> None:
    async with open_caller(budget=4 * SIZE) as caller:
        await begin(caller, unfinished("fragments") + b"\x80")
        socket = caller.socket
        socket._unread += b"more"
        timer = socket._slow_timer
        assert timer is not None
        caller.transport.stuck = True
        socket._cut(1008, "enough")
        assert not any((socket._unread, socket.frames, socket.conn.reader.buffer))
        assert caller.server.gateway.budget.held == 0
        assert timer.cancelled()
        socket._unread += b"still more"
        socket._settle()
        assert not socket._unread, "it is not read any more"


async def test_client_that_has_finished_one_message_has_as_long_for_the_next() -> None:
    async with open_caller(budget=4 * SIZE) as caller:
        context = caller.server.gateway.context
        context.bounds = replace(context.bounds, read_seconds=4.0)
        loop = caller.server.gateway.loop
        await begin(caller, unfinished("fragments"))
        await loop.advance(2.0)
        await caller.deliver(end("fragments") + unfinished("fragments"))
        await loop.advance(2.0)
        assert caller.closed() is None
        await loop.advance(4.0)
        assert caller.closed() == 1008


@kinds
async def test_message_that_does_not_end_in_time_is_the_last(kind: str) -> None:
    async with open_caller(budget=4 * SIZE) as caller:
        await begin(caller, unfinished(kind))
        seconds = caller.server.gateway.context.bounds.read_seconds
        await caller.server.gateway.loop.advance(seconds - 1.0)
        assert caller.closed() is None
        if kind == "fragments":
            # Signs of life are no end of a message.
            await caller.send()
        await caller.server.gateway.loop.advance(1.0)
        assert caller.closed() == 1008


async def test_client_that_finishes_its_messages_may_always_be_within_one() -> None:
    async with open_caller(budget=4 * SIZE) as caller:
        await begin(caller, unfinished("fragments"))
        seconds = caller.server.gateway.context.bounds.read_seconds
        for _ in range(4):
            await caller.server.gateway.loop.advance(seconds / 2)
            caller.events()
            await caller.send()
            await caller.deliver(end("fragments") + unfinished("fragments"))
        assert caller.closed() is None
        for _ in range(4):
            await caller.server.gateway.loop.advance(seconds / 2)
            caller.events()
            await caller.send()
        assert caller.closed() == 1008


async def test_client_whom_we_do_not_read_is_not_cut() -> None:
    """It may have sent the end long ago."""
    async with open_caller(node=lambda _: None, budget=4 * SIZE) as caller:
        await begin(caller, unfinished("fragments"))
        caller.socket.pause_writing()
        await caller.server.gateway.loop.advance(caller.server.gateway.context.bounds.read_seconds + 1.0)
        assert Opcode.CLOSE not in [each.opcode for each in caller.frames()]
        caller.socket.resume_writing()
        await caller.deliver(end("fragments"))
        await caller.text(call(1))
        assert caller.server.gateway.budget.held == 0
