"""What waits for one client: its order, its bound, what of it the worker's budget counts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.gateway.fakes import run_pending

from tollgate.gateway.memory_budget import SMALL, Budget
from tollgate.gateway.websocket.outbox import Outbox


class Client:
    """Takes what it is sent when it is let."""

    def __init__(self) -> None:
        self.took: list[str] = []
        self.may_take = asyncio.Event()
        self.may_take.set()
        self.gone = False

    async def send(self, message: dict[str, Any]) -> None:
        await self.may_take.wait()
        if self.gone:
            raise OSError
        assert message["type"] == "websocket.send"
        self.took.append(message["text"])


class Post:
    """An outbox for ten bytes, in a worker that can hold so many beyond."""

    def __init__(self, room: int = 100) -> None:
        self.budget = Budget(room)
        self.sent = 0
        self.outbox = Outbox(self.budget, 10, self.count, "192.0.2.1")
        self.client = Client()

    def count(self) -> None:
        self.sent += 1

    def write(self) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(self.outbox.write(self.client.send))


async def test_everything_is_sent_in_its_order_and_reported() -> None:
    post = Post()
    post.outbox.put(b"a")
    writing = post.write()
    await run_pending()
    assert (post.client.took, post.sent) == (["a"], 1)
    post.outbox.put(b"b")
    assert post.outbox.put_beyond(b"c")
    await run_pending()
    assert (post.client.took, post.sent) == (["a", "b", "c"], 3)
    assert not writing.done()
    post.outbox.finish()
    await writing


async def test_what_waits_is_sent_before_the_end() -> None:
    post = Post()
    post.outbox.put(b"a")
    post.outbox.finish()
    await post.write()
    assert post.client.took == ["a"]


@pytest.mark.parametrize(
    ("size", "has_room", "is_full"), [(0, True, False), (5, True, False), (6, False, False), (10, False, False)]
)
async def test_room_ends_at_half_of_the_bound(size: int, has_room: bool, is_full: bool) -> None:
    post = Post()
    post.outbox.put(b"x" * size)
    assert (post.outbox.has_room, post.outbox.is_full) == (has_room, is_full)


async def test_full_above_the_bound_and_until_it_is_sent() -> None:
    post = Post()
    post.outbox.put(b"x" * 11)
    full = [post.outbox.is_full]
    writing = post.write()
    await run_pending()
    assert [*full, post.outbox.is_full, post.outbox.has_room] == [True, False, True]
    writing.cancel()


async def test_only_what_waits_beyond_the_bound_counts_in_the_budget_until_it_is_sent() -> None:
    post = Post()
    assert post.outbox.put_beyond(b"x" * 11)
    assert post.budget.held == 0
    assert post.outbox.put_beyond(b"y" * 60)
    assert post.budget.held == 60
    assert not post.outbox.put_beyond(b"z" * 41), "no room in the worker"
    assert post.budget.held == 60
    writing = post.write()
    await run_pending()
    assert (post.budget.held, len(post.client.took)) == (0, 2)
    writing.cancel()


async def test_large_answer_behind_one_that_waits_counts_until_it_is_sent() -> None:
    post = Post(10 * SMALL)
    post.client.may_take.clear()
    writing = post.write()
    await run_pending()
    assert post.outbox.put_beyond(b"x")
    await run_pending()
    assert post.outbox.put_beyond(b"y" * (SMALL + 1))
    await run_pending()
    assert post.budget.held == SMALL + 1
    post.client.may_take.set()
    await run_pending()
    post.client.may_take.clear()
    assert post.budget.held == 0
    for _ in range(2):
        assert post.outbox.put_beyond(b"z" * 11)
        await run_pending()
    assert post.outbox.put_beyond(b"z" * 11)
    await run_pending()
    assert post.budget.held == 11
    # The end, while one is being sent and two wait.
    writing.cancel()
    post.outbox.drop()
    await run_pending()
    assert post.budget.held == 0


async def test_what_is_dropped_is_not_sent_and_gives_its_room_back() -> None:
    post = Post()
    post.outbox.put(b"x" * 11)
    assert post.outbox.put_beyond(b"y" * 60)
    post.outbox.drop()
    assert (post.budget.held, post.outbox.has_room) == (0, True)
    full = []
    for text in (b"last of all", b"ten bytes!"):
        post.outbox.drop()
        post.outbox.put(text)
        full.append(post.outbox.is_full)
    assert full == [True, False]
    post.outbox.finish()
    await post.write()
    assert post.client.took == ["ten bytes!"]


async def test_large_answer_that_goes_out_at_once_is_not_counted() -> None:
    post = Post(SMALL)
    writing = post.write()
    for _ in range(2):
        assert post.outbox.put_beyond(b"x" * (SMALL + 1))
        assert post.budget.held == 0
        await run_pending()
    writing.cancel()


async def test_small_answer_behind_another_is_not_counted_while_there_is_room() -> None:
    post = Post(SMALL)
    outbox = Outbox(post.budget, 2 * SMALL, post.count, "192.0.2.1")
    outbox.put(b"x")
    assert outbox.put_beyond(b"y" * SMALL)
    assert post.budget.held == 0


async def test_client_that_is_gone_ends_the_writing() -> None:
    post = Post()
    post.client.gone = True
    post.outbox.put(b"a")
    await post.write()
    assert post.sent == 0
