"""A batch whose calls fare differently: each gets its own answer, and is retried elsewhere alone."""

from __future__ import annotations

from typing import Any

import pytest
from tests.gateway.batched import CHAIN, KEPT, PRICE, balance, echo, results, ways
from tests.gateway.fakes import turns
from tests.gateway.scene import (
    BROKEN,
    DROP,
    LAGGING,
    PRUNED,
    QUOTA,
    REVERTED,
    UNSUPPORTED,
    Error,
    Http,
    Scene,
    open_scene,
)

from tollgate.errors import UpstreamError

# --- What is answered ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [LAGGING, PRUNED, BROKEN, UNSUPPORTED, QUOTA])
async def test_one_call_that_an_upstream_could_not_answer_is_retried_elsewhere_alone(
    fault: Error, scene: Scene
) -> None:
    scene.nodes[0].respond = lambda method, _: fault if method == PRICE[0] else "a"
    items = await scene.resolve_many(CHAIN, PRICE, balance(1))
    assert results(items) == ["a", "up1", "a"]
    assert scene.nodes[1].requests[0]["method"] == PRICE[0]
    assert [(each.trace.upstream, each.trace.attempts) for each in items] == [
        ("up0", 1),
        ("up1", 2),
        ("up0", 1),
    ]
    assert scene.upstream(0).in_rotation(scene.clock()) is (fault is not QUOTA)


@pytest.mark.parametrize("elsewhere", [PRUNED, DROP])
async def test_words_of_a_node_stand_where_nobody_knows_better(elsewhere: Any, scene: Scene) -> None:
    scene.nodes[0].respond = lambda method, _: LAGGING if method == PRICE[0] else "a"
    scene.nodes[1].always(elsewhere)
    pending = scene.resolve_many(CHAIN, PRICE)
    await scene.later(1.0)
    items = await pending
    words = PRUNED if elsewhere is PRUNED else LAGGING
    assert results(items) == ["a", words]
    assert items[1].trace.upstream == ("up1" if elsewhere is PRUNED else "up0")


async def test_used_up_quota_is_no_words_for_a_caller(scene: Scene) -> None:
    for node in scene.nodes:
        node.respond = lambda method, _: QUOTA if method == PRICE[0] else "a"
    items = await scene.resolve_many(CHAIN, PRICE)
    assert results(items) == ["a", "upstream_unavailable"]


async def test_errors_that_are_answers_are_returned_in_their_places(scene: Scene) -> None:
    scene.nodes[0].respond = lambda method, _: REVERTED if method == PRICE[0] else "a"
    assert results(await scene.resolve_many(PRICE, CHAIN, PRICE)) == [REVERTED, "a", REVERTED]
    assert scene.counts() == [3, 0]


async def test_errors_in_a_batch_of_unknown_methods_are_never_retried_elsewhere(scene: Scene) -> None:
    scene.nodes[0].always(BROKEN)
    assert results(await scene.resolve_many(("foo_a", []), ("foo_b", []))) == [BROKEN] * 2
    assert scene.counts() == [2, 0]


async def test_batch_is_retried_elsewhere_as_a_whole_after_a_failure(scene: Scene) -> None:
    scene.nodes[0].always(Http(503))
    items = await scene.resolve_many(CHAIN, PRICE)
    assert results(items) == ["up1"] * 2
    assert {(each.trace.upstream, each.trace.attempts) for each in items} == {("up1", 2)}


async def test_failure_of_one_part_leaves_the_others_alone() -> None:
    async with open_scene({}, {"priority": 5, "deny_methods": ("trace_*",)}) as scene:
        scene.nodes[0].respond = lambda method, _: DROP if method.startswith("trace") else "a"
        pending = scene.resolve_many(CHAIN, ("trace_block", ["0x1"]), PRICE)
        await scene.later(1.0)
        items = await pending
        assert results(items) == ["a", "upstream_error", "a"]
        assert items[1].trace.attempts == 2


async def test_refused_batch_is_refused_to_those_who_wait_for_it() -> None:
    async with open_scene({}, **KEPT) as scene:
        scene.up(100)
        scene.nodes[0].always(DROP)
        batch = scene.resolve_many(CHAIN, PRICE)
        await turns(1)
        single = scene.send(*CHAIN[:1])
        await scene.later(1.0)
        assert results(await batch) == ["upstream_error"] * 2
        with pytest.raises(UpstreamError):
            await single
        assert scene.traces[-1].cache == "coalesced"
        assert not scene.resolver.flights


async def test_block_number_of_a_batch_that_is_behind_is_requested_again_and_never_returned(scene: Scene) -> None:
    scene.up(100, 100)
    scene.nodes[0].respond = lambda method, _: "0x63" if method == "eth_blockNumber" else "a"
    scene.nodes[1].always("0x64")
    items = await scene.resolve_many(CHAIN, ("eth_blockNumber", []))
    assert results(items) == ["a", "0x64"]
    scene.nodes[1].always("0x63")
    pending = scene.resolve_many(CHAIN, ("eth_blockNumber", []))
    await scene.later(5.0)
    assert results(await pending) == ["a", "upstream_unavailable"]


async def test_block_number_of_a_batch_is_the_floor_from_then_on(scene: Scene) -> None:
    scene.up(100, 100)
    scene.nodes[0].always("0x65")
    await scene.resolve_many(CHAIN, ("eth_blockNumber", []))
    assert (scene.row.floor, scene.worker.rows[0].head) == (101, 101)


async def test_answers_of_a_batch_are_kept_with_the_stamp_of_the_question() -> None:
    async with open_scene({}, **KEPT) as scene:
        scene.up(100)
        echo(scene)
        scene.nodes[0].holds = True
        pending = scene.resolve_many(balance(1, "latest"), balance(1))
        await turns()
        scene.up(101)
        scene.nodes[0].let()
        await pending
        scene.nodes[0].holds = False
        assert ways(await scene.resolve_many(balance(1, "latest"), balance(1))) == ["miss", "hit"]
