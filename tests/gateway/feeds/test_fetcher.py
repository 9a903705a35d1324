"""Our own calls to upstreams: with failover, and past nodes that do not have a block yet."""

import asyncio
import json
from typing import Any

import pytest
from tests.gateway.fake_gateway import FakeGateway, open_gateway

from tollgate.chains.heads import NodeCall
from tollgate.core.shapes import ABSENT
from tollgate.errors import UpstreamUnavailable
from tollgate.gateway.feeds.fetcher import BlockFetcher

BLOCK = NodeCall("eth_getBlockByNumber", ["0x5", False])


def fetcher(gateway: FakeGateway) -> BlockFetcher:
    return BlockFetcher(lambda: gateway.resolver, gateway.clock)


async def test_call_is_answered_also_to_a_task(gateway: FakeGateway) -> None:
    gateway.echo()
    fetch = fetcher(gateway)

    async def fetched() -> Any:
        return await fetch(BLOCK)

    reply = await asyncio.create_task(fetched())
    assert json.loads(bytes(reply.result)) == ["eth_getBlockByNumber", ["0x5", False]]
    named = await fetch(NodeCall("eth_getLogs", [{"blockHash": "0x1"}]))
    assert json.loads(bytes(named.result)) == ["eth_getLogs", [{"blockHash": "0x1"}]]


async def test_block_that_one_upstream_lacks_is_requested_from_the_next() -> None:
    gateway = await open_gateway({}, {}, {})
    for node, block in zip(gateway.nodes, (None, None, "block"), strict=True):
        node.always(block)
    for _ in range(10):
        reply = await fetcher(gateway)(BLOCK)
        assert bytes(reply.result) == b'"block"'


async def test_block_that_no_upstream_has_is_none(gateway: FakeGateway) -> None:
    for node in gateway.nodes:
        node.always(None)
    reply = await fetcher(gateway)(BLOCK)
    assert bytes(reply.result) == b"null"
    assert reply.error is ABSENT


async def test_network_that_is_not_served_any_more_cannot_be_called(gateway: FakeGateway) -> None:
    fetch = BlockFetcher(lambda: None, gateway.clock)
    with pytest.raises(UpstreamUnavailable):
        await fetch(BLOCK)


async def test_abandoned_fetch_does_no_harm(gateway: FakeGateway) -> None:
    fetch = fetcher(gateway)
    task = asyncio.ensure_future(fetch(BLOCK))
    await asyncio.sleep(0)
    task.cancel()
    assert len(fetch._under_way) == 1, "a task without a reference may end at any time"
    for _ in range(40):
        await asyncio.sleep(0)
    assert task.cancelled()
    assert not fetch._under_way


async def test_past_is_requested_once_and_then_comes_from_the_cache() -> None:
    gateway = await open_gateway({}, cache_bytes=1_000_000)
    (node,) = gateway.nodes
    node.always({"number": "0x5", "hash": "0x5"})
    gateway.publish_heads(100, finalized=50)
    fetch = fetcher(gateway)
    replies = [bytes((await fetch.from_cache(BLOCK)).result) for _ in range(20)]
    assert len(set(replies)) == 1
    assert len(node.calls) == 1
    # Where the chain goes is never read from memory.
    await fetch(BLOCK)
    assert len(node.calls) == 2


async def test_failure_of_an_abandoned_fetch_is_no_error_of_the_loop(gateway: FakeGateway) -> None:
    fetch, errors = BlockFetcher(lambda: None, gateway.clock), []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    task = asyncio.ensure_future(fetch(BLOCK))
    asyncio.get_running_loop().call_soon(task.cancel)
    for _ in range(10):
        await asyncio.sleep(0)
    assert task.cancelled()
    assert not fetch._under_way
    assert errors == []
