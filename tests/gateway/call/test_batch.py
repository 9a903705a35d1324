"""A batch: split by memory, by need and by size; sent on as batches; answered in its order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gateway.batched import CHAIN, KEPT, PRICE, WRITE, balance, results, sizes, ways
from tests.gateway.callers import summary
from tests.gateway.fake_gateway import FakeGateway, open_gateway
from tests.gateway.fake_node import BROKEN, DROP
from tests.gateway.fakes import run_pending

from tollgate.core.shapes import Reply

# --- How it is split -----------------------------------------------------------------------------------------


async def test_batch_goes_out_as_one_and_is_answered_in_its_order(gateway: FakeGateway) -> None:
    gateway.echo()
    calls = [balance(number) for number in range(5)]
    items = await gateway.resolve_many(*calls)
    assert results(items) == [list(call) for call in calls]
    assert (sizes(gateway), ways(items)) == ([5], ["bypass"] * 5)
    assert {(each.route.upstream, each.route.attempts) for each in items} == {("up0", 1)}


async def test_what_is_kept_is_answered_from_memory_and_only_the_rest_is_sent() -> None:
    gateway = await open_gateway({}, **KEPT)
    gateway.publish_heads(100)
    gateway.echo()
    for number in (1, 3):
        await gateway.call(*balance(number)[:1], *balance(number)[1])
    gateway.nodes[0].requests.clear()
    items = await gateway.resolve_many(*[balance(number) for number in range(5)])
    assert results(items) == [list(balance(number)) for number in range(5)]
    assert (sizes(gateway), ways(items)) == ([3], ["miss", "hit", "miss", "hit", "miss"])
    items = await gateway.resolve_many(*[balance(number) for number in range(5)])
    assert (sizes(gateway), ways(items)) == ([3], ["hit"] * 5)


async def test_what_goes_its_own_way_is_answered_from_memory_too() -> None:
    gateway = await open_gateway({}, **KEPT)
    gateway.publish_heads(100, finalized=90)
    gateway.nodes[0].respond = lambda method, params: (
        [{"blockNumber": "0x5"}] if method == "eth_getLogs" else "0x1"
    )
    logs = ("eth_getLogs", [{"fromBlock": "0x5", "toBlock": "0x5"}])
    for expected in (["miss", "miss"], ["hit", "hit"]):
        assert ways(await gateway.resolve_many(logs, CHAIN)) == expected
    assert len(gateway.nodes[0].calls) == 2


async def test_same_call_twice_in_a_batch_is_sent_once() -> None:
    gateway = await open_gateway({}, **KEPT)
    gateway.publish_heads(100)
    gateway.echo()
    items = await gateway.resolve_many(balance(1), balance(2), balance(1), balance(1))
    assert [params[0] for _, params in results(items)] == ["0x1", "0x2", "0x1", "0x1"]
    assert (sizes(gateway), ways(items)) == ([2], ["miss", "miss", "coalesced", "coalesced"])


async def test_call_of_a_batch_joins_a_question_that_is_under_way_and_the_other_way_round() -> None:
    gateway = await open_gateway({}, **KEPT)
    gateway.publish_heads(100)
    gateway.echo()
    gateway.nodes[0].holds = True
    first = gateway.send(*balance(1)[:1], *balance(1)[1])
    await run_pending()
    batch = gateway.resolve_many(balance(1), balance(2))
    await run_pending()
    last = gateway.send(*balance(2)[:1], *balance(2)[1])
    await run_pending()
    assert gateway.counts() == [2]
    for _ in range(2):
        gateway.nodes[0].release()
    items = await batch
    assert ways(items) == ["coalesced", "miss"]
    assert [summary(await first), summary(await last)] == results(items)
    assert not gateway.resolver.flights


@pytest.mark.parametrize(("size", "sent"), [(100, [7]), (3, [3, 3, 1]), (1, [1] * 7), (7, [7]), (6, [6, 1])])
async def test_batches_are_no_larger_than_upstreams_take(size: int, sent: list[int]) -> None:
    gateway = await open_gateway({"batch_calls": size}, {})
    gateway.echo()
    items = await gateway.resolve_many(*[balance(number) for number in range(7)])
    assert results(items) == [list(balance(number)) for number in range(7)]
    assert sizes(gateway) == sent
    assert all(isinstance(body, dict) for body in gateway.nodes[0].requests) is (size == 1)


async def test_calls_go_to_upstreams_whose_lists_allow_them() -> None:
    gateway = await open_gateway({"deny_methods": ("trace_*",)}, {"deny_methods": ("eth_*",)})
    gateway.nodes[0].always("a")
    gateway.nodes[1].always("b")
    items = await gateway.resolve_many(CHAIN, ("trace_block", ["0x1"]), PRICE, ("trace_get", ["0x1", []]))
    assert results(items) == ["a", "b", "a", "b"]
    assert [each.route.upstream for each in items] == ["up0", "up1", "up0", "up1"]
    assert [sizes(gateway, index) for index in range(2)] == [[2], [2]]


async def test_what_may_be_a_write_is_never_in_a_batch_with_reads(gateway: FakeGateway) -> None:
    gateway.echo()
    items = await gateway.resolve_many(CHAIN, ("foo_a", []), PRICE, ("foo_b", []))
    assert [method for method, _ in results(items)] == ["eth_chainId", "foo_a", "eth_gasPrice", "foo_b"]
    bodies = [[each["method"] for each in body] for body in gateway.nodes[0].requests]
    assert sorted(bodies) == [["eth_chainId", "eth_gasPrice"], ["foo_a", "foo_b"]]


@pytest.mark.parametrize(
    "apart", [WRITE, ("eth_newFilter", [{}]), ("eth_getFilterChanges", ["0x100"]), ("eth_getLogs", [{}])]
)
async def test_transactions_filters_and_logs_go_their_own_ways(
    apart: tuple[str, Any], gateway: FakeGateway
) -> None:
    gateway.echo()
    items = await gateway.resolve_many(CHAIN, apart, PRICE)
    assert [answer[0] for answer in results(items)] == ["eth_chainId", apart[0], "eth_gasPrice"]
    assert sorted(sizes(gateway)) == [1, 2]


async def test_transaction_in_a_batch_goes_on_to_the_next_upstream(gateway: FakeGateway) -> None:
    gateway.nodes[0].respond = lambda method, _: DROP if method == WRITE[0] else "a"
    items = await gateway.resolve_many(CHAIN, WRITE)
    await gateway.advance(1.0)
    assert results(items) == ["a", "up1"]
    assert [(each.route.upstream, each.route.attempts) for each in items] == [("up0", 1), ("up1", 2)]


async def test_tip_in_a_batch_takes_the_batch_to_who_is_at_the_head(gateway: FakeGateway) -> None:
    gateway.publish_heads(99, 100)
    await gateway.resolve_many(balance(1), balance(1, "latest"))
    assert gateway.counts() == [0, 2]
    await gateway.resolve_many(balance(1), balance(2))
    assert gateway.counts() == [2, 2]


async def test_old_state_in_a_batch_takes_the_batch_to_an_archive() -> None:
    gateway = await open_gateway({"archive": False}, {})
    gateway.publish_heads(1_000, 1_000)
    await gateway.resolve_many(balance(1, hex(999)), balance(1, "0x5"))
    assert gateway.counts() == [0, 2]


async def test_single_call_that_is_left_is_sent_as_one(gateway: FakeGateway) -> None:
    await gateway.resolve_many(CHAIN, ("foo_bar", []))
    assert [type(body) for body in gateway.nodes[0].requests] == [dict, dict]


async def test_empty_batch_is_no_question(gateway: FakeGateway) -> None:
    assert await gateway.resolve_many() == []


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
    gateway = await open_gateway(
        {"batch_calls": size}, {"deny_methods": ("eth_chainId",)}, cache_bytes=cache_bytes
    )
    gateway.publish_heads(100, 100)
    gateway.echo()
    gateway.nodes[0].respond = lambda method, params: BROKEN if method in faulty else [method, params]
    pending = [gateway.resolve_many(*batch) for batch in batches]
    await gateway.advance(0.5)
    for batch, each in zip(batches, pending, strict=True):
        for (method, params), item in zip(batch, await each, strict=True):
            assert item.call.method == method
            assert isinstance(item.result, Reply)
            if method == "foo_bar" and method in faulty:
                assert summary(item.result) == BROKEN
            else:
                assert summary(item.result) == [method, params]
    assert not gateway.resolver.flights
    assert all(count <= size for index in range(2) for count in sizes(gateway, index))
