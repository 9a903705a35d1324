"""Reads of the tip: who may answer them, what is noted of the head, what is never returned."""

from __future__ import annotations

from typing import Any

import pytest
from tests.gateway.callers import summary
from tests.gateway.fake_gateway import FakeGateway, open_gateway
from tests.gateway.fake_node import DROP, LAGGING
from tests.gateway.fakes import run_pending

from tollgate.errors import UpstreamUnavailable
from tollgate.shm.upstream_status import NOTHING, SILENCE_SECONDS, State

KEPT = {"cache_bytes": 1_000_000}
BALANCE = "eth_getBalance"


# --- The head --------------------------------------------------------------------------------------------------


async def test_tip_is_requested_from_who_is_at_the_head(gateway: FakeGateway) -> None:
    gateway.publish_heads(99, 100)
    assert await gateway.call(BALANCE, "0xa", "latest") == "up1"
    assert await gateway.call(BALANCE, "0xa", "0x1") == "up0"


async def test_tip_waits_until_an_upstream_has_it(gateway: FakeGateway) -> None:
    gateway.publish_heads(99, 99)
    gateway.status.publish(100, NOTHING, changed=True)
    pending = gateway.send(BALANCE, "0xa", "latest")
    await gateway.advance(3.0)
    assert (pending.done(), gateway.counts()) == (False, [0, 0])
    gateway.publish_state("up1", State.UP, 100)
    await gateway.advance(0.1)
    assert summary(await pending) == "up1"


async def test_block_by_its_number_is_requested_from_who_has_it(gateway: FakeGateway) -> None:
    gateway.publish_heads(99, 100)
    for block, who in (("0x63", "up0"), ("0x64", "up1"), ("0x65", "up0")):
        assert await gateway.call(BALANCE, "0xa", block) == who, (
            "a block beyond the head may be answered by any upstream"
        )
    gateway.publish_state("up1", State.DOWN, 100)
    pending = gateway.send(BALANCE, "0xa", "0x64")
    await gateway.advance(0.5)
    assert (pending.done(), gateway.counts()) == (False, [2, 1]), "the first will have it in a moment"
    gateway.publish_state("up0", State.UP, 100)
    await gateway.advance(0.1)
    assert summary(await pending) == "up0"


async def test_highest_block_of_a_batch_shows_who_may_answer_it(gateway: FakeGateway) -> None:
    gateway.publish_heads(99, 100)
    await gateway.resolve_many((BALANCE, ["0xa", "0x5"]), (BALANCE, ["0xa", "0x64"]))
    assert gateway.counts() == [0, 2]


async def test_block_that_an_answer_shows_is_the_floor_from_then_on(gateway: FakeGateway) -> None:
    gateway.publish_heads(100, 100)
    gateway.nodes[0].always("0x65")
    assert await gateway.call("eth_blockNumber") == "0x65"
    assert (gateway.status.floor, gateway.status.seen, gateway.statuses[0].head) == (101, 101, 101)
    gateway.nodes[0].always(DROP)
    pending = gateway.send(BALANCE, "0xa", "latest")
    await gateway.advance(0.5)
    assert (pending.done(), gateway.counts()[1]) == (False, 0), "the other may not have it"
    gateway.publish_heads(101, 101)
    await gateway.advance(0.1)
    assert summary(await pending) == "up1"


@pytest.mark.parametrize(
    ("family", "method", "result", "number"),
    [
        ("eth", "eth_blockNumber", "0x65", 101),
        ("eth", "eth_getBlockByNumber", {"number": "0x65"}, 101),
        ("starknet", "starknet_blockNumber", 101, 101),
        ("starknet", "starknet_blockHashAndNumber", {"block_hash": "0x1", "block_number": 101}, 101),
        ("eth", "eth_gasPrice", "0x65", 100),
        ("eth", "eth_getBalance", "0x65", 100),
    ],
)
async def test_answers_that_show_the_head_are_noted(family: str, method: str, result: Any, number: int) -> None:
    gateway = await open_gateway({}, family=family)
    gateway.publish_heads(100)
    gateway.nodes[0].always(result)
    params = ["latest", False] if method == "eth_getBlockByNumber" else []
    await gateway.call(method, *params)
    assert gateway.status.floor == number


async def test_answer_from_before_a_reorganisation_is_not_noted_after_it() -> None:
    gateway = await open_gateway({})
    gateway.publish_heads(100)
    gateway.nodes[0].always("0x64")
    gateway.nodes[0].holds = True
    pending = gateway.send("eth_blockNumber")
    await run_pending()
    gateway.status.publish_reorg(97)
    gateway.publish_heads(98)
    gateway.nodes[0].release()
    assert summary(await pending) == "0x64"
    assert (gateway.status.floor, gateway.statuses[0].head) == (98, 98)


async def test_answer_that_is_behind_what_callers_have_seen_is_retried_elsewhere(gateway: FakeGateway) -> None:
    gateway.publish_heads(100, 100)
    gateway.nodes[0].always("0x63")
    gateway.nodes[1].always("0x64")
    assert await gateway.call("eth_blockNumber") == "0x64"
    assert gateway.trace.upstream == "up1"


async def test_answer_that_is_behind_is_never_given_however_long_it_stays_so() -> None:
    gateway = await open_gateway({})
    gateway.publish_heads(100)
    gateway.nodes[0].always("0x63")
    pending = gateway.send("eth_blockNumber")
    await gateway.advance(3.0)
    with pytest.raises(UpstreamUnavailable, match="behind"):
        await pending
    assert gateway.counts() == [6]
    assert gateway["up0"].in_rotation(gateway.clock())


async def test_service_of_several_nodes_that_goes_back_for_a_moment_is_called_again() -> None:
    gateway = await open_gateway({})
    gateway.publish_heads(100)
    gateway.nodes[0].in_turn("0x63", "0x63", "0x64")
    pending = gateway.send("eth_blockNumber")
    await gateway.advance(0.5)
    assert summary(await pending) == "0x64"


async def test_after_a_reorganisation_a_lower_block_is_an_answer() -> None:
    gateway = await open_gateway({})
    gateway.publish_heads(100)
    gateway.nodes[0].always("0x62")
    pending = gateway.send("eth_blockNumber")
    await gateway.advance(0.03)
    gateway.status.publish_reorg(97)
    gateway.publish_heads(98)
    await gateway.advance(0.1)
    assert summary(await pending) == "0x62"


async def test_question_that_the_prober_overtook_is_answered() -> None:
    gateway = await open_gateway({})
    gateway.publish_heads(100)
    gateway.nodes[0].always("0x64")
    gateway.nodes[0].holds = True
    pending = gateway.send("eth_blockNumber")
    await run_pending()
    gateway.publish_heads(101)
    gateway.nodes[0].release()
    assert summary(await pending) == "0x64"


async def test_answer_that_was_overtaken_by_another_is_requested_again() -> None:
    gateway = await open_gateway({})
    gateway.publish_heads(100)
    gateway.nodes[0].holds = True
    gateway.nodes[0].in_turn("0x65", "0x64", "0x65")
    first, second = gateway.send("eth_blockNumber"), gateway.send("eth_blockNumber")
    await run_pending()
    gateway.nodes[0].release(1)
    assert summary(await second) == "0x65"
    gateway.nodes[0].release()
    await gateway.advance(0.1)
    assert not first.done()
    gateway.nodes[0].release()
    assert summary(await first) == "0x65"


async def test_head_that_cannot_be_is_not_believed(gateway: FakeGateway) -> None:
    gateway.publish_heads(100, 100)
    gateway.nodes[0].always("0xffffffff")
    gateway.nodes[1].always("0x64")
    assert await gateway.call("eth_blockNumber") == "0x64"
    assert gateway.status.floor == 100


async def test_while_the_prober_is_silent_all_upstreams_are_called_but_the_tip_does_not_go_back(
    gateway: FakeGateway,
) -> None:
    gateway.publish_heads(100, 90)
    gateway.publish_state("up1", State.LAGGING, 90)
    gateway.nodes[0].always("0x64")
    assert await gateway.call("eth_blockNumber") == "0x64"
    gateway.clock.advance(SILENCE_SECONDS + 1)
    gateway.nodes[0].always(DROP)
    gateway.nodes[1].always("0x63")
    pending = gateway.send("eth_blockNumber")
    await gateway.advance(3.0)
    with pytest.raises(UpstreamUnavailable, match="behind"):
        await pending
    gateway.nodes[1].always("0x70")
    gateway.clock.advance(30)
    assert await gateway.call("eth_blockNumber") == "0x70"


async def test_words_of_a_lagging_node_go_elsewhere_and_stand_at_last(gateway: FakeGateway) -> None:
    gateway.publish_heads(100, 100)
    gateway.nodes[0].always(LAGGING)
    assert await gateway.call(BALANCE, "0xa", "0x64") == "up1"
    gateway.nodes[1].always(LAGGING)
    assert await gateway.call(BALANCE, "0xa", "0x64") == LAGGING
