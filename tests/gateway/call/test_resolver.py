"""One call: from memory, from a question under way, from an upstream that is far enough."""

from __future__ import annotations

from typing import Any

import pytest
from tests.gateway.callers import raw, summary
from tests.gateway.fake_gateway import FakeGateway, open_gateway
from tests.gateway.fake_node import BROKEN, DROP, REVERTED
from tests.gateway.fakes import run_pending, spawn

from tollgate.core.shapes import PlainCall, Reply
from tollgate.errors import Overloaded, UpstreamError
from tollgate.gateway.call.cache import key_of
from tollgate.gateway.call.reply_validator import MAX_AHEAD
from tollgate.gateway.call.resolver import NOTHING_KNOWN, SingleFlight, resolve
from tollgate.gateway.messages import Route
from tollgate.gateway.upstream.failover import OutOfStep
from tollgate.shm.upstream_status import NOTHING

KEPT = {"cache_bytes": 1_000_000}
BALANCE = "eth_getBalance"


def ways(gateway: FakeGateway) -> list[str]:
    """How the cache answered each call."""
    return [trace.cache for trace in gateway.traces]


# --- Memory --------------------------------------------------------------------------------------------------


async def test_answer_is_kept_and_given_again_without_an_upstream() -> None:
    gateway = await open_gateway({}, **KEPT)
    gateway.publish_heads(100)
    for _ in range(3):
        assert await gateway.call("eth_chainId") == "up0"
    assert (gateway.counts(), ways(gateway)) == ([1], ["miss", "hit", "hit"])


async def test_kept_answer_is_given_by_the_pipeline_without_a_coroutine() -> None:
    gateway = await open_gateway({}, **KEPT)
    gateway.publish_heads(100)
    call = PlainCall("2.0", 1, "eth_chainId")
    assert gateway.resolver.recall(gateway.resolver.key(call)) is None
    await gateway.call("eth_chainId")
    assert isinstance(gateway.resolver.recall(gateway.resolver.key(call)), Reply)
    assert gateway.resolver.key(PlainCall("2.0", 1, "eth_sendRawTransaction")) is None


async def test_tip_is_requested_anew_after_a_block_and_after_a_transaction() -> None:
    gateway = await open_gateway({}, **KEPT)
    gateway.publish_heads(100)
    for change in ("", "block", "transaction"):
        if change == "block":
            gateway.publish_heads(101)
        elif change:
            gateway.status.request_probe()
        await gateway.call(BALANCE, "0xa", "latest")
        await gateway.call(BALANCE, "0xa", "latest")
    assert ways(gateway) == ["miss", "hit"] * 3


async def test_answer_about_the_block_before_is_given_to_its_caller_and_not_kept() -> None:
    gateway = await open_gateway({}, **KEPT)
    gateway.publish_heads(100)
    gateway.nodes[0].holds = True
    pending = gateway.send(BALANCE, "0xa", "latest")
    await run_pending()
    gateway.publish_heads(101)
    gateway.nodes[0].release()
    assert summary(await pending) == "up0"
    gateway.nodes[0].holds = False
    await gateway.call(BALANCE, "0xa", "latest")
    assert ways(gateway) == ["miss", "miss"]


@pytest.mark.parametrize("bad", [REVERTED, BROKEN, None])
async def test_errors_and_null_are_not_kept(bad: Any) -> None:
    gateway = await open_gateway({}, **KEPT)
    gateway.publish_heads(100)
    gateway.nodes[0].in_turn(bad, "good")
    assert await gateway.call(BALANCE, "0xa", "0x1") == bad
    assert await gateway.call(BALANCE, "0xa", "0x1") == "good"


async def test_nothing_is_kept_or_shared_where_the_cache_is_off() -> None:
    gateway = await open_gateway({}, network={"cache": False}, **KEPT)
    gateway.publish_heads(100)
    pending = [gateway.send("eth_chainId") for _ in range(3)]
    assert [summary(await each) for each in pending] == ["up0"] * 3
    assert (gateway.counts(), ways(gateway)) == ([3], ["bypass"] * 3)


@pytest.mark.parametrize("method", ["foo_bar", "eth_sendRawTransaction", "net_peerCount", "eth_newFilter"])
async def test_what_may_never_be_kept_goes_past_the_cache(method: str) -> None:
    gateway = await open_gateway({}, **KEPT)
    gateway.publish_heads(100)
    for _ in range(2):
        await gateway.call(method, "0x1")
    assert (gateway.counts(), ways(gateway)) == ([2], ["bypass"] * 2)


# --- The same question at the same time ------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["eth_chainId", BALANCE, "net_peerCount", "eth_getLogs"])
async def test_identical_reads_at_the_same_time_are_one_call(method: str) -> None:
    gateway = await open_gateway({}, **KEPT)
    gateway.publish_heads(100)
    gateway.nodes[0].holds = True
    params = [{"fromBlock": "0x1", "toBlock": "0x2"}] if method == "eth_getLogs" else ["0xa", "0x1"]
    pending = [gateway.send(method, *params) for _ in range(50)]
    await run_pending()
    assert gateway.counts() == [1]
    gateway.nodes[0].release()
    assert [summary(await each) for each in pending] == ["up0"] * 50
    assert ways(gateway)[1:] == ["coalesced"] * 49
    assert [trace.attempts for trace in gateway.traces] == [1, *[0] * 49]


async def test_different_questions_are_not_one_call() -> None:
    gateway = await open_gateway({}, **KEPT)
    gateway.nodes[0].respond = lambda _, params: params
    pending = [gateway.send(BALANCE, address, "0x1") for address in ("0xa", "0xb")]
    assert [summary(await each) for each in pending] == [["0xa", "0x1"], ["0xb", "0x1"]]


@pytest.mark.parametrize("method", ["eth_sendRawTransaction", "foo_bar", "eth_newFilter"])
async def test_what_is_no_read_is_never_shared(method: str) -> None:
    gateway = await open_gateway({}, **KEPT)
    gateway.publish_heads(100)
    pending = [gateway.send(method, "0x1") for _ in range(3)]
    for each in pending:
        await each
    assert gateway.counts() == [3]


async def test_refusal_is_reported_to_all_who_wait() -> None:
    gateway = await open_gateway({}, **KEPT)
    gateway.publish_heads(100)
    gateway.nodes[0].always(DROP)
    pending = [gateway.send("eth_chainId") for _ in range(5)]
    await gateway.advance(1.0)
    for each in pending:
        with pytest.raises(UpstreamError):
            await each
    assert gateway.counts() == [2]
    gateway.nodes[0].always("well again")
    assert await gateway.call("eth_chainId") == "well again", "no caller waits for ever"


async def test_error_of_a_node_is_reported_to_all_who_wait() -> None:
    gateway = await open_gateway({}, **KEPT)
    gateway.publish_heads(100)
    gateway.nodes[0].always(REVERTED)
    pending = [gateway.send("eth_call", {}, "0x1") for _ in range(5)]
    assert [summary(await each) for each in pending] == [REVERTED] * 5
    assert gateway.counts() == [1]


@pytest.mark.parametrize("change", ["block", "transaction", "seen", "reorganisation"])
async def test_question_from_before_is_not_the_same_question(change: str) -> None:
    gateway = await open_gateway({}, **KEPT)
    gateway.publish_heads(100)
    gateway.nodes[0].holds = True
    gateway.nodes[0].in_turn("before", "after")
    first = gateway.send(BALANCE, "0xa", "latest")
    await run_pending()
    if change == "block":
        gateway.publish_heads(101)
    elif change == "transaction":
        gateway.status.request_probe()
    elif change == "seen":
        gateway.status.observe_head(101)
        gateway.statuses[0].observe_head(101)
    else:
        gateway.status.publish_reorg(99)
    second, third = (gateway.send(BALANCE, "0xa", "latest") for _ in range(2))
    await run_pending()
    assert gateway.counts() == [2]
    for _ in range(2):
        gateway.nodes[0].release()
    assert [summary(await each) for each in (first, second, third)] == ["before", "after", "after"]
    assert ways(gateway) == ["miss", "miss", "coalesced"]
    assert not gateway.resolver.flights


async def test_who_waits_is_informed_when_the_leader_is_cut_off() -> None:
    gateway = await open_gateway({}, **KEPT)
    gateway.publish_heads(100)
    gateway.nodes[0].holds = True
    call = PlainCall("2.0", 1, "eth_chainId")
    leader = spawn(resolve(gateway.resolver, call, gateway.resolver.key(call), gateway.clock() + 30, Route()))
    await run_pending()
    waiting = gateway.send("eth_chainId")
    await run_pending()
    leader.cancel()
    with pytest.raises(Overloaded, match="stops"):
        await waiting
    assert not gateway.resolver.flights
    assert gateway["up0"].in_flight == 0


# --- Old state ---------------------------------------------------------------------------------------------------


def test_who_leaves_is_not_informed() -> None:
    flight = SingleFlight((0, 0, NOTHING, NOTHING))
    informed: list[str] = []

    def waiter(_: object) -> None:
        informed.append("waits")

    def leaver(_: object) -> None:
        informed.append("has left")

    flight.leave(leaver)
    for each in (leaver, waiter):
        flight.join(each)
    flight.leave(leaver)
    assert flight.waiters == [waiter]


# --- What an answer shows of the chain -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "in_step"), [(99, False), (100, True), (100 + MAX_AHEAD, True), (101 + MAX_AHEAD, False)]
)
async def test_answer_may_show_neither_less_than_is_known_nor_far_more(number: int, in_step: bool) -> None:
    gateway = await open_gateway({})
    gateway.publish_heads(100)
    call = PlainCall("2.0", 1, "eth_blockNumber")
    validator = gateway.resolver.validator(call.method, gateway.resolver.scope(call))
    reply = Reply(raw([hex(number)])[0])
    if in_step:
        validator(reply, gateway["up0"])
        return
    with pytest.raises(OutOfStep) as caught:
        validator(reply, gateway["up0"])
    assert caught.value.sent


async def test_validators_of_unknown_methods_are_not_kept() -> None:
    gateway = await open_gateway({})
    for method, remembered in (("foo_bar", False), ("eth_chainId", True)):
        validator = gateway.resolver.validator(method, NOTHING_KNOWN)
        assert (gateway.resolver.validator(method, NOTHING_KNOWN) is validator) is remembered


async def test_old_state_is_requested_from_an_archive_and_a_block_is_not_state() -> None:
    gateway = await open_gateway({"archive": False}, {})
    gateway.publish_heads(1_000, 1_000)
    assert await gateway.call(BALANCE, "0xa", "0x5") == "up1"
    assert await gateway.call(BALANCE, "0xa", hex(999)) == "up0"
    assert await gateway.call("eth_getBlockByNumber", "0x5", False) == "up0"


# --- Settings ----------------------------------------------------------------------------------------------------


async def test_smallest_batch_of_all_upstreams_is_the_size() -> None:
    gateway = await open_gateway({"batch_calls": 50}, {"batch_calls": 7})
    assert gateway.resolver.batch_calls == 7


async def test_params_by_name_are_a_question_too() -> None:
    gateway = await open_gateway({}, family="starknet", **KEPT)
    gateway.publish_heads(100)
    call = PlainCall("2.0", 1, "starknet_getNonce", raw({"block_id": {"block_number": 5}, "address": "0x1"}))
    for _ in range(2):
        if gateway.resolver.recall(gateway.resolver.key(call)) is None:
            await spawn(resolve(gateway.resolver, call, gateway.resolver.key(call), gateway.clock() + 30, Route()))
    assert gateway.counts() == [1]


@pytest.mark.parametrize("params", [None, [], ["0xa"], ["0xa", "latest"], {"a": 1, "b": [2]}])
async def test_key_of_a_shared_question_is_the_caches(params: object) -> None:
    gateway = await open_gateway(cache_bytes=10_000)
    pending = PlainCall("2.0", 1, "eth_getBalance", None if params is None else raw(params))
    assert gateway.resolver.key(pending) == key_of(pending)
