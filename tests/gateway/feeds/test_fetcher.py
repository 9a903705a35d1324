"""Our own calls to upstreams: with failover, and past nodes that do not have a block yet."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.gateway.fakes import FakeTransport
from tests.gateway.worker import Worker, http, open_worker

from tollgate.chains.heads import NodeCall
from tollgate.core.shapes import ABSENT
from tollgate.errors import UpstreamUnavailable
from tollgate.gateway.feeds.fetcher import BlockFetcher
from tollgate.shm.upstream_status import State

BLOCK = NodeCall("eth_getBlockByNumber", ["0x5", False])


def replying(result: object) -> Callable[[FakeTransport, bytes], bytes]:
    return lambda _, body: http(
        json.dumps({"jsonrpc": "2.0", "id": json.loads(body)["id"], "result": result}).encode()
    )


def fetcher(worker: Worker) -> BlockFetcher:
    return BlockFetcher(lambda: worker.resolver, worker.clock)


async def test_call_is_answered_also_to_a_task(worker: Worker) -> None:
    fetch = fetcher(worker)

    async def fetched() -> Any:
        return await fetch(BLOCK)

    reply = await asyncio.create_task(fetched())
    assert json.loads(bytes(reply.result)) == ["eth_getBlockByNumber", ["0x5", False]]
    named = await fetch(NodeCall("eth_getLogs", [{"blockHash": "0x1"}]))
    assert json.loads(bytes(named.result)) == ["eth_getLogs", [{"blockHash": "0x1"}]]


async def test_block_that_one_upstream_lacks_is_requested_from_the_next() -> None:
    worker = await open_worker(upstreams=3)
    worker.loop.nodes = {"up0": replying(None), "up1": replying(None), "up2": replying("block")}
    for _ in range(10):
        reply = await fetcher(worker)(BLOCK)
        assert bytes(reply.result) == b'"block"'


async def test_block_that_nobody_has_is_none() -> None:
    worker = await open_worker(upstreams=2)
    worker.loop.nodes = {"up0": replying(None), "up1": replying(None)}
    reply = await fetcher(worker)(BLOCK)
    assert bytes(reply.result) == b"null"
    assert reply.error is ABSENT


async def test_network_that_is_not_served_any_more_cannot_be_called(worker: Worker) -> None:
    fetch = BlockFetcher(lambda: None, worker.clock)
    with pytest.raises(UpstreamUnavailable):
        await fetch(BLOCK)


async def test_question_that_nobody_waits_for_any_more_does_no_harm(worker: Worker) -> None:
    fetch = fetcher(worker)
    task = asyncio.ensure_future(fetch(BLOCK))
    await asyncio.sleep(0)
    task.cancel()
    assert len(fetch._under_way) == 1, "a task that nobody holds may end at any time"
    for _ in range(40):
        await asyncio.sleep(0)
    assert task.cancelled()
    assert not fetch._under_way


async def test_past_is_requested_once_and_then_comes_from_the_cache() -> None:
    bodies: list[bytes] = []

    def counting(transport: FakeTransport, body: bytes) -> bytes:
        bodies.append(body)
        return replying({"number": "0x5", "hash": "0x5"})(transport, body)

    worker = await open_worker(cache_bytes=1_000_000)
    worker.loop.nodes = {"up0": counting}
    worker.rows[0].publish(State.UP, 100)
    worker.row.publish(100, 50, changed=True)
    fetch = fetcher(worker)
    replies = [bytes((await fetch.from_cache(BLOCK)).result) for _ in range(20)]
    assert len(set(replies)) == 1
    assert len(bodies) == 1
    # Where the chain goes is never read from memory.
    await fetch(BLOCK)
    assert len(bodies) == 2


async def test_failure_that_nobody_waits_for_any_more_is_no_error_of_the_loop(worker: Worker) -> None:
    fetch, errors = BlockFetcher(lambda: None, worker.clock), []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    task = asyncio.ensure_future(fetch(BLOCK))
    asyncio.get_running_loop().call_soon(task.cancel)
    for _ in range(10):
        await asyncio.sleep(0)
    assert task.cancelled()
    assert not fetch._under_way
    assert errors == []
