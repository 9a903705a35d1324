"""A batch whose calls fare differently: each gets its own answer, and is retried elsewhere alone."""

from __future__ import annotations

from typing import Any

import pytest
from tests.gateway.batched import CHAIN, KEPT, PRICE, balance, results, ways
from tests.gateway.fake_gateway import FakeGateway, open_gateway
from tests.gateway.fake_node import BROKEN, DROP, LAGGING, PRUNED, QUOTA, REVERTED, UNSUPPORTED, Error, Http
from tests.gateway.fakes import run_pending

from tollgate.errors import UpstreamError

# --- What is answered ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [LAGGING, PRUNED, BROKEN, UNSUPPORTED, QUOTA])
async def test_one_call_that_an_upstream_could_not_answer_is_retried_elsewhere_alone(
    fault: Error, gateway: FakeGateway
) -> None:
    gateway.nodes[0].respond = lambda method, _: fault if method == PRICE[0] else "a"
    items = await gateway.resolve_many(CHAIN, PRICE, balance(1))
    assert results(items) == ["a", "up1", "a"]
    assert gateway.nodes[1].requests[0]["method"] == PRICE[0]
    assert [(each.route.upstream, each.route.attempts) for each in items] == [
        ("up0", 1),
        ("up1", 2),
        ("up0", 1),
    ]
    assert gateway["up0"].in_rotation(gateway.clock()) is (fault is not QUOTA)


@pytest.mark.parametrize("elsewhere", [PRUNED, DROP])
async def test_error_of_a_node_is_returned_if_no_upstream_answers_better(
    elsewhere: Any, gateway: FakeGateway
) -> None:
    gateway.nodes[0].respond = lambda method, _: LAGGING if method == PRICE[0] else "a"
    gateway.nodes[1].always(elsewhere)
    pending = gateway.resolve_many(CHAIN, PRICE)
    await gateway.advance(1.0)
    items = await pending
    words = PRUNED if elsewhere is PRUNED else LAGGING
    assert results(items) == ["a", words]
    assert items[1].route.upstream == ("up1" if elsewhere is PRUNED else "up0")


async def test_used_up_quota_is_no_words_for_a_caller(gateway: FakeGateway) -> None:
    for node in gateway.nodes:
        node.respond = lambda method, _: QUOTA if method == PRICE[0] else "a"
    items = await gateway.resolve_many(CHAIN, PRICE)
    assert results(items) == ["a", "upstream_unavailable"]


async def test_errors_that_are_answers_are_returned_in_their_places(gateway: FakeGateway) -> None:
    gateway.nodes[0].respond = lambda method, _: REVERTED if method == PRICE[0] else "a"
    assert results(await gateway.resolve_many(PRICE, CHAIN, PRICE)) == [REVERTED, "a", REVERTED]
    assert gateway.counts() == [3, 0]


async def test_errors_in_a_batch_of_unknown_methods_are_never_retried_elsewhere(gateway: FakeGateway) -> None:
    gateway.nodes[0].always(BROKEN)
    assert results(await gateway.resolve_many(("foo_a", []), ("foo_b", []))) == [BROKEN] * 2
    assert gateway.counts() == [2, 0]


async def test_batch_is_retried_elsewhere_as_a_whole_after_a_failure(gateway: FakeGateway) -> None:
    gateway.nodes[0].always(Http(503))
    items = await gateway.resolve_many(CHAIN, PRICE)
    assert results(items) == ["up1"] * 2
    assert {(each.route.upstream, each.route.attempts) for each in items} == {("up1", 2)}


async def test_failure_of_one_part_leaves_the_others_alone() -> None:
    gateway = await open_gateway({}, {"priority": 5, "deny_methods": ("trace_*",)})
    gateway.nodes[0].respond = lambda method, _: DROP if method.startswith("trace") else "a"
    pending = gateway.resolve_many(CHAIN, ("trace_block", ["0x1"]), PRICE)
    await gateway.advance(1.0)
    items = await pending
    assert results(items) == ["a", "upstream_error", "a"]
    assert items[1].route.attempts == 2


async def test_refused_batch_is_refused_to_those_who_wait_for_it() -> None:
    gateway = await open_gateway({}, **KEPT)
    gateway.publish_heads(100)
    gateway.nodes[0].always(DROP)
    batch = gateway.resolve_many(CHAIN, PRICE)
    await run_pending(1)
    single = gateway.send(*CHAIN[:1])
    await gateway.advance(1.0)
    assert results(await batch) == ["upstream_error"] * 2
    with pytest.raises(UpstreamError):
        await single
    assert gateway.traces[-1].cache == "coalesced"
    assert not gateway.resolver.flights


async def test_block_number_of_a_batch_that_is_behind_is_requested_again_and_never_returned(
    gateway: FakeGateway,
) -> None:
    gateway.publish_heads(100, 100)
    gateway.nodes[0].respond = lambda method, _: "0x63" if method == "eth_blockNumber" else "a"
    gateway.nodes[1].always("0x64")
    items = await gateway.resolve_many(CHAIN, ("eth_blockNumber", []))
    assert results(items) == ["a", "0x64"]
    gateway.nodes[1].always("0x63")
    pending = gateway.resolve_many(CHAIN, ("eth_blockNumber", []))
    await gateway.advance(5.0)
    assert results(await pending) == ["a", "upstream_unavailable"]


async def test_block_number_of_a_batch_is_the_floor_from_then_on(gateway: FakeGateway) -> None:
    gateway.publish_heads(100, 100)
    gateway.nodes[0].always("0x65")
    await gateway.resolve_many(CHAIN, ("eth_blockNumber", []))
    assert (gateway.status.floor, gateway.statuses[0].head) == (101, 101)


async def test_answers_of_a_batch_are_kept_with_the_stamp_of_the_question() -> None:
    gateway = await open_gateway({}, **KEPT)
    gateway.publish_heads(100)
    gateway.echo()
    gateway.nodes[0].holds = True
    pending = gateway.resolve_many(balance(1, "latest"), balance(1))
    await run_pending()
    gateway.publish_heads(101)
    gateway.nodes[0].release()
    await pending
    gateway.nodes[0].holds = False
    assert ways(await gateway.resolve_many(balance(1, "latest"), balance(1))) == ["miss", "hit"]
