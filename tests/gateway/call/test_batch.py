"""A batch: split by memory, by need and by size; sent on as batches; answered in its order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gateway.batched import CHAIN, KEPT, PRICE, WRITE, balance, echo, results, sizes, ways
from tests.gateway.fakes import turns
from tests.gateway.scene import (
    BROKEN,
    DROP,
    Scene,
    open_scene,
    summary,
)

from tollgate.core.shapes import Reply

# --- How it is split -----------------------------------------------------------------------------------------


async def test_batch_goes_out_as_one_and_is_answered_in_its_order(scene: Scene) -> None:
    echo(scene)
    calls = [balance(number) for number in range(5)]
    items = await scene.resolve_many(*calls)
    assert results(items) == [list(call) for call in calls]
    assert (sizes(scene), ways(items)) == ([5], ["bypass"] * 5)
    assert {(each.trace.upstream, each.trace.attempts) for each in items} == {("up0", 1)}


async def test_what_is_kept_is_answered_from_memory_and_only_the_rest_is_sent() -> None:
    async with open_scene({}, **KEPT) as scene:
        scene.up(100)
        echo(scene)
        for number in (1, 3):
            await scene.call(*balance(number)[:1], *balance(number)[1])
        scene.nodes[0].requests.clear()
        items = await scene.resolve_many(*[balance(number) for number in range(5)])
        assert results(items) == [list(balance(number)) for number in range(5)]
        assert (sizes(scene), ways(items)) == ([3], ["miss", "hit", "miss", "hit", "miss"])
        items = await scene.resolve_many(*[balance(number) for number in range(5)])
        assert (sizes(scene), ways(items)) == ([3], ["hit"] * 5)


async def test_what_goes_its_own_way_is_answered_from_memory_too() -> None:
    async with open_scene({}, **KEPT) as scene:
        scene.up(100, finalized=90)
        scene.nodes[0].respond = lambda method, params: (
            [{"blockNumber": "0x5"}] if method == "eth_getLogs" else "0x1"
        )
        logs = ("eth_getLogs", [{"fromBlock": "0x5", "toBlock": "0x5"}])
        for expected in (["miss", "miss"], ["hit", "hit"]):
            assert ways(await scene.resolve_many(logs, CHAIN)) == expected
        assert len(scene.nodes[0].calls) == 2


async def test_same_call_twice_in_a_batch_is_sent_once() -> None:
    async with open_scene({}, **KEPT) as scene:
        scene.up(100)
        echo(scene)
        items = await scene.resolve_many(balance(1), balance(2), balance(1), balance(1))
        assert [params[0] for _, params in results(items)] == ["0x1", "0x2", "0x1", "0x1"]
        assert (sizes(scene), ways(items)) == ([2], ["miss", "miss", "coalesced", "coalesced"])


async def test_call_of_a_batch_joins_a_question_that_is_under_way_and_the_other_way_round() -> None:
    async with open_scene({}, **KEPT) as scene:
        scene.up(100)
        echo(scene)
        scene.nodes[0].holds = True
        first = scene.send(*balance(1)[:1], *balance(1)[1])
        await turns()
        batch = scene.resolve_many(balance(1), balance(2))
        await turns()
        last = scene.send(*balance(2)[:1], *balance(2)[1])
        await turns()
        assert scene.counts() == [2]
        for _ in range(2):
            scene.nodes[0].let()
        items = await batch
        assert ways(items) == ["coalesced", "miss"]
        assert [summary(await first), summary(await last)] == results(items)
        assert not scene.resolver.flights


@pytest.mark.parametrize(("size", "sent"), [(100, [7]), (3, [3, 3, 1]), (1, [1] * 7), (7, [7]), (6, [6, 1])])
async def test_batches_are_no_larger_than_upstreams_take(size: int, sent: list[int]) -> None:
    async with open_scene({"batch_calls": size}, {}) as scene:
        echo(scene)
        items = await scene.resolve_many(*[balance(number) for number in range(7)])
        assert results(items) == [list(balance(number)) for number in range(7)]
        assert sizes(scene) == sent
        assert all(isinstance(body, dict) for body in scene.nodes[0].requests) is (size == 1)


async def test_calls_go_to_upstreams_whose_lists_allow_them() -> None:
    async with open_scene({"deny_methods": ("trace_*",)}, {"deny_methods": ("eth_*",)}) as scene:
        scene.nodes[0].always("a")
        scene.nodes[1].always("b")
        items = await scene.resolve_many(CHAIN, ("trace_block", ["0x1"]), PRICE, ("trace_get", ["0x1", []]))
        assert results(items) == ["a", "b", "a", "b"]
        assert [each.trace.upstream for each in items] == ["up0", "up1", "up0", "up1"]
        assert [sizes(scene, index) for index in range(2)] == [[2], [2]]


async def test_what_may_be_a_write_is_never_in_a_batch_with_reads(scene: Scene) -> None:
    echo(scene)
    items = await scene.resolve_many(CHAIN, ("foo_a", []), PRICE, ("foo_b", []))
    assert [method for method, _ in results(items)] == ["eth_chainId", "foo_a", "eth_gasPrice", "foo_b"]
    bodies = [[each["method"] for each in body] for body in scene.nodes[0].requests]
    assert sorted(bodies) == [["eth_chainId", "eth_gasPrice"], ["foo_a", "foo_b"]]


@pytest.mark.parametrize(
    "apart", [WRITE, ("eth_newFilter", [{}]), ("eth_getFilterChanges", ["0x100"]), ("eth_getLogs", [{}])]
)
async def test_transactions_filters_and_logs_go_their_own_ways(apart: tuple[str, Any], scene: Scene) -> None:
    echo(scene)
    items = await scene.resolve_many(CHAIN, apart, PRICE)
    assert [answer[0] for answer in results(items)] == ["eth_chainId", apart[0], "eth_gasPrice"]
    assert sorted(sizes(scene)) == [1, 2]


async def test_transaction_in_a_batch_goes_on_to_the_next_upstream(scene: Scene) -> None:
    scene.nodes[0].respond = lambda method, _: DROP if method == WRITE[0] else "a"
    items = await scene.resolve_many(CHAIN, WRITE)
    await scene.later(1.0)
    assert results(items) == ["a", "up1"]
    assert [(each.trace.upstream, each.trace.attempts) for each in items] == [("up0", 1), ("up1", 2)]


async def test_tip_in_a_batch_takes_the_batch_to_who_is_at_the_head(scene: Scene) -> None:
    scene.up(99, 100)
    await scene.resolve_many(balance(1), balance(1, "latest"))
    assert scene.counts() == [0, 2]
    await scene.resolve_many(balance(1), balance(2))
    assert scene.counts() == [2, 2]


async def test_old_state_in_a_batch_takes_the_batch_to_an_archive() -> None:
    async with open_scene({"archive": False}, {}) as scene:
        scene.up(1_000, 1_000)
        await scene.resolve_many(balance(1, hex(999)), balance(1, "0x5"))
        assert scene.counts() == [0, 2]


async def test_single_call_that_is_left_is_sent_as_one(scene: Scene) -> None:
    await scene.resolve_many(CHAIN, ("foo_bar", []))
    assert [type(body) for body in scene.nodes[0].requests] == [dict, dict]


async def test_empty_batch_is_no_question(scene: Scene) -> None:
    assert await scene.resolve_many() == []


# --- Any batch ---------------------------------------------------------------------------------------------------

calls = st.sampled_from(
    [
        CHAIN,
        PRICE,
        WRITE,
        ("foo_bar", [1]),
        ("eth_newFilter", [{}]),
        ("eth_getLogs", [{"fromBlock": "0x1", "toBlock": "0x2"}]),
        ("trace_block", ["0x1"]),
        *[balance(number) for number in range(3)],
        balance(0, "latest"),
    ]
)


@given(
    st.lists(st.lists(calls, max_size=12), min_size=1, max_size=3),
    st.integers(1, 5),
    st.sets(st.sampled_from(["eth_gasPrice", "trace_block", "foo_bar", "eth_getBalance"])),
    st.sampled_from([0, 1_000_000]),
)
@settings(max_examples=3 * settings().max_examples // 2)
async def test_every_call_of_any_batches_gets_its_own_answer(
    batches: list[list[tuple[str, Any]]], size: int, faulty: set[str], cache_bytes: int
) -> None:
    async with open_scene(
        {"batch_calls": size}, {"deny_methods": ("eth_chainId",)}, cache_bytes=cache_bytes
    ) as scene:
        scene.up(100, 100)
        echo(scene)
        scene.nodes[0].respond = lambda method, params: BROKEN if method in faulty else [method, params]
        pending = [scene.resolve_many(*batch) for batch in batches]
        await scene.later(0.5)
        for batch, each in zip(batches, pending, strict=True):
            for (method, params), item in zip(batch, await each, strict=True):
                assert item.call.method == method
                assert isinstance(item.result, Reply)
                if method == "foo_bar" and method in faulty:
                    assert summary(item.result) == BROKEN
                else:
                    assert summary(item.result) == [method, params]
        assert not scene.resolver.flights
        assert all(count <= size for index in range(2) for count in sizes(scene, index))
