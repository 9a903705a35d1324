"""An upstream that shows callers, and only them, a head that the chain does not have."""

from __future__ import annotations

from typing import Any

import pytest
from tests.gateway.callers import summary
from tests.gateway.fake_gateway import FakeGateway, open_gateway
from tests.gateway.fakes import run_pending

from tollgate.gateway.call.reply_validator import BELIEVED_BLOCKS
from tollgate.gateway.upstream.health import MAX_DOUBTS

HEAD, LIE = 100, 5_100
NUMBER = {"eth": "eth_blockNumber", "starknet": "starknet_blockNumber"}
TIP_READ: dict[str, tuple[str, list[Any]]] = {
    "eth": ("eth_getBalance", ["0xa", "latest"]),
    "starknet": ("starknet_getNonce", ["latest", "0xa"]),
}


def shown(family: str, number: int) -> Any:
    return hex(number) if family == "eth" else number


async def two(family: str) -> FakeGateway:
    """The first one is preferred, and lies."""
    gateway = await open_gateway({}, {"priority": 2}, family=family)
    gateway.publish_heads(HEAD, HEAD)
    for node, number in zip(gateway.nodes, (LIE, HEAD), strict=True):
        node.respond_with(lambda method, _, n=number: shown(family, n) if method == NUMBER[family] else "0x1")
    return gateway


@pytest.mark.parametrize("family", NUMBER)
async def test_answers_come_from_the_honest_one_and_no_read_of_the_tip_waits(family: str) -> None:
    gateway = await two(family)
    before = gateway.clock()
    for _ in range(MAX_DOUBTS + 3):
        assert await gateway.call(NUMBER[family]) == shown(family, HEAD)
        method, params = TIP_READ[family]
        assert await gateway.call(method, *params) == "0x1"
    assert gateway.clock() == before
    assert gateway.status.floor == HEAD


@pytest.mark.parametrize("family", NUMBER)
async def test_liar_leaves_the_rotation_and_returns_after_a_while(family: str) -> None:
    gateway = await two(family)
    liar = gateway["up0"]
    for _ in range(MAX_DOUBTS):
        assert liar.in_rotation(gateway.clock())
        await gateway.call(NUMBER[family])
        await gateway.loop.advance(1.1)
        gateway.publish_heads(HEAD, HEAD)
    assert not liar.in_rotation(gateway.clock())
    assert liar.failures == MAX_DOUBTS
    assert gateway.attempts("up0", "out_of_step") == MAX_DOUBTS
    await gateway.loop.advance(31)
    assert liar.in_rotation(gateway.clock())
    gateway.publish_heads(HEAD, HEAD)
    await gateway.call(NUMBER[family])
    await gateway.loop.advance(31)
    assert not liar.in_rotation(gateway.clock()), "twice as long after the next lie"


@pytest.mark.parametrize("family", NUMBER)
async def test_in_a_batch_the_honest_one_answers_too(family: str) -> None:
    gateway = await two(family)
    method, params = TIP_READ[family]
    pending = gateway.resolve_many((NUMBER[family], []), (method, params))
    await run_pending()
    replies = [summary(item.result) for item in await pending]
    assert replies == [shown(family, HEAD), "0x1"]
    assert gateway.status.floor == HEAD


@pytest.mark.parametrize("family", NUMBER)
async def test_where_it_is_alone_its_answer_is_passed_on_and_no_caller_waits_for_that_block(family: str) -> None:
    gateway = await open_gateway({}, family=family)
    gateway.publish_heads(HEAD)
    gateway.nodes[0].respond_with(lambda method, _: shown(family, LIE) if method == NUMBER[family] else "0x1")
    before, probes = gateway.clock(), gateway.status.probe_requests
    for _ in range(MAX_DOUBTS + 3):
        assert await gateway.call(NUMBER[family]) == shown(family, LIE)
        method, params = TIP_READ[family]
        assert await gateway.call(method, *params) == "0x1"
    assert (gateway.clock(), gateway.status.floor) == (before, HEAD)
    assert gateway.status.probe_requests == probes + 1, "the prober looks again, once"


async def test_few_blocks_above_the_prober_are_believed() -> None:
    gateway = await two("eth")
    gateway.nodes[0].respond_with(lambda *_: hex(HEAD + BELIEVED_BLOCKS))
    assert await gateway.call(NUMBER["eth"]) == hex(HEAD + BELIEVED_BLOCKS)
    assert gateway.status.floor == HEAD + BELIEVED_BLOCKS


async def test_liar_cannot_climb_by_a_few_blocks_at_a_time() -> None:
    gateway = await two("eth")
    for step in range(1, 6):
        gateway.nodes[0].respond_with(lambda *_, n=HEAD + step * BELIEVED_BLOCKS: hex(n))
        gateway.send(NUMBER["eth"], seconds=0.1)
        await run_pending()
    assert gateway.status.floor == HEAD + BELIEVED_BLOCKS


async def test_head_that_a_second_upstream_shows_is_believed_and_the_first_is_trusted_again() -> None:
    gateway = await two("eth")
    for head in range(LIE, LIE + 2 * MAX_DOUBTS * 1_000, 1_000):
        for node in gateway.nodes:
            node.respond_with(lambda *_, n=head: hex(n))
        assert await gateway.call(NUMBER["eth"]) == hex(head)
        assert gateway.status.floor == head
        gateway.publish_heads(head, head)
        await gateway.loop.advance(1.1)
    assert all(gateway[name].in_rotation(gateway.clock()) for name in ("up0", "up1"))
