"""Calling upstreams: what is an answer, which upstream is called next, whose error is passed on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.gateway.callers import summary
from tests.gateway.fake_gateway import FakeGateway, open_gateway
from tests.gateway.fake_node import BROKEN, DROP, LAGGING, PRUNED, QUOTA, REVERTED, UNSUPPORTED, Error, Http
from tests.gateway.fakes import run_pending

from tollgate.errors import Overloaded, UpstreamError, UpstreamTimeout, UpstreamUnavailable
from tollgate.settings import model
from tollgate.shm import metrics
from tollgate.shm.upstream_status import SILENCE_SECONDS, State

GOOD = b'{"jsonrpc":"2.0","id":1,"result":"0x1"}'
DOUBT = "may have been carried out"
READ, UNKNOWN = "eth_chainId", "foo_bar"
"""A read, and a method that may be anything."""


# --- What is known of upstreams ----------------------------------------------------------------------------


async def test_status_is_read_again_only_after_a_change() -> None:
    gateway = await open_gateway({}, {})
    gateway.publish_heads(100, 100)
    view = gateway.exchange.view()
    assert gateway.exchange.view() is view
    gateway.publish_state("up1", State.DOWN)
    other = gateway.exchange.view()
    gateway.publish_heads(101, 101)
    last = gateway.exchange.view()
    assert len({id(each) for each in (view, other, last)}) == 3
    assert last.believed_until == gateway.clock() + SILENCE_SECONDS


@pytest.mark.parametrize(("state", "seconds"), [(State.UP, 10.0), (State.DOWN, 10.0), (State.WRONG_CHAIN, 20.0)])
async def test_attempt_leaves_time_for_another_where_there_is_another_upstream(
    state: State, seconds: float
) -> None:
    gateway = await open_gateway({"timeout_seconds": 60.0}, {"timeout_seconds": 3.0})
    gateway.publish_heads(100, 100)
    gateway.publish_state("up1", state)
    gateway.exchange.set_timeout(20.0)
    gateway.exchange.view()
    assert [each.attempt_seconds for each in gateway.upstreams] == [seconds, 3.0]


@pytest.mark.parametrize(("upstreams", "hedge", "hedging"), [(1, True, False), (2, True, True), (2, False, False)])
async def test_calls_are_hedged_where_there_is_another_upstream(
    upstreams: int, hedge: bool, hedging: bool
) -> None:
    gateway = await open_gateway(*[{}] * upstreams, network={"hedge": hedge})
    assert gateway.exchange.hedging is hedging


# --- What is an answer -------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 201, 400, 404, 405, 413, 422])
async def test_json_rpc_body_is_an_answer_whatever_a_node_thinks_of_http(status: int) -> None:
    gateway = await open_gateway({})
    gateway.nodes[0].always(Http(status, GOOD))
    assert await gateway.call(READ) == "0x1"


@pytest.mark.parametrize("status", [301, 302, 307, 401, 402, 403, 407, 408, 429, 500, 502, 503, 504, 599])
async def test_status_about_the_upstream_is_a_failure_even_with_a_good_body(status: int) -> None:
    gateway = await open_gateway({}, {})
    gateway.nodes[0].always(Http(status, GOOD))
    assert await gateway.call(READ) == "up1"
    label = "quota" if status in (402, 429) else "status"
    assert gateway.trace.trace[0].verdict.label == label


@pytest.mark.parametrize("status", [200, 404])
@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b"{}", b'{"jsonrpc":"2.0","id":1,"error":"no"}', GOOD[:-1]]
)
async def test_body_that_is_no_response_is_nonsense(status: int, body: bytes) -> None:
    gateway = await open_gateway({}, {})
    gateway.nodes[0].always(Http(status, body))
    assert await gateway.call(READ) == "up1"
    assert gateway.trace.trace[0].verdict.label == "invalid"


# --- Failures ----------------------------------------------------------------------------------------------


async def test_first_upstream_that_answers_is_taken_and_all_attempts_are_counted() -> None:
    gateway = await open_gateway({}, {}, {}, {})
    gateway.nodes[0].always(Http(503))
    gateway.nodes[1].always(DROP)
    assert await gateway.call(READ) == "up2"
    assert gateway.counts() == [1, 1, 1, 0]
    assert (
        gateway.attempts("up0", "status"),
        gateway.attempts("up1", "broken"),
        gateway.attempts("up2", "ok"),
    ) == (1, 1, 1)
    assert (gateway.trace.upstream, gateway.trace.attempts) == ("up2", 3)
    gateway.exchange.report()
    totals = gateway.regions.totals()
    spent = [key for key in totals if key[0] == metrics.UPSTREAM_SECONDS.name]
    assert sum(totals[key] for key in spent if key[-1] != "sum") == 1


async def test_those_that_broke_off_are_called_once_more_after_a_moment(gateway: FakeGateway) -> None:
    gateway.nodes[0].in_turn(DROP, "again")
    gateway.nodes[1].always(Http(500))
    pending = gateway.send(READ)
    await run_pending()
    assert (gateway.counts(), pending.done()) == ([1, 1], False)
    await gateway.advance(0.1)
    assert summary(await pending) == "again"
    assert gateway.counts() == [2, 1]


@pytest.mark.parametrize("method", [READ, UNKNOWN])
async def test_refusal_says_that_no_upstream_answered_and_that_a_write_is_in_doubt(
    method: str, gateway: FakeGateway
) -> None:
    for node in gateway.nodes:
        node.always(DROP)
    pending = gateway.send(method)
    await gateway.advance(1.0)
    with pytest.raises(UpstreamError) as caught:
        await pending
    assert (DOUBT in caught.value.message) is (method is UNKNOWN)
    assert gateway.counts() == ([1, 0] if method is UNKNOWN else [2, 2])


async def test_write_goes_on_after_a_refused_connection_and_no_further() -> None:
    gateway = await open_gateway({}, {}, {})
    gateway.loop.refusing = True
    for node in gateway.nodes:
        node.always(Http(502))
    pending = gateway.send(UNKNOWN)
    while not gateway.loop.connects:
        await run_pending(1)
    await run_pending(1)
    gateway.loop.refusing = False
    with pytest.raises(UpstreamError, match=DOUBT):
        await pending
    assert gateway.counts() == [0, 1, 0]
    assert gateway.attempts("up0", "connect") == gateway.attempts("up1", "status") == 1


async def test_upstream_that_is_silent_gives_way_at_its_own_deadline() -> None:
    gateway = await open_gateway({"timeout_seconds": 3.0}, {}, network={"hedge": False})
    gateway.nodes[0].holds = True
    pending = gateway.send(READ)
    await gateway.advance(2.9)
    assert not pending.done()
    await gateway.advance(0.3)
    assert summary(await pending) == "up1"
    assert gateway.attempts("up0", "timeout") == 1
    # A hedge would not wait for it.


@pytest.mark.parametrize("method", [READ, UNKNOWN])
async def test_no_further_upstream_is_called_after_the_deadline_of_the_request(method: str) -> None:
    gateway = await open_gateway({}, {}, {})
    for node in gateway.nodes:
        node.holds = True
    started = gateway.clock()
    pending = gateway.send(method, seconds=8.0)
    while not pending.done():
        await gateway.advance(0.1)
    assert gateway.clock() - started <= 8.3
    with pytest.raises(UpstreamTimeout) as caught:
        await pending
    assert gateway.counts() == ([1, 0, 0] if method is UNKNOWN else [1, 1, 1])
    assert (DOUBT in caught.value.message) is (method is UNKNOWN)


async def test_without_a_usable_upstream_a_call_is_unavailable_at_once() -> None:
    gateway = await open_gateway({})
    gateway.publish_heads(100)
    gateway.publish_state("up0", State.WRONG_CHAIN)
    with pytest.raises(UpstreamUnavailable):
        await gateway.send(READ)
    assert gateway.counts() == [0]


# --- What nodes report of themselves -------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [LAGGING, PRUNED, BROKEN, UNSUPPORTED, QUOTA])
async def test_error_that_speaks_of_the_node_is_retried_elsewhere(fault: Error, gateway: FakeGateway) -> None:
    gateway.nodes[0].always(fault)
    assert await gateway.call(READ) == "up1"
    assert (gateway.counts(), gateway.trace.upstream) == ([1, 1], "up1")


@pytest.mark.parametrize("fault", [LAGGING, PRUNED, BROKEN, UNSUPPORTED])
async def test_nodes_error_is_the_answer_if_no_upstream_answers_better(fault: Error, gateway: FakeGateway) -> None:
    for node in gateway.nodes:
        node.always(fault)
    assert await gateway.call(READ) == fault
    assert (gateway.counts(), gateway.trace.upstream) == ([1, 1], "up1")


async def test_words_of_a_node_stand_also_when_the_others_break_off(gateway: FakeGateway) -> None:
    gateway.nodes[0].always(PRUNED)
    gateway.nodes[1].always(DROP)
    pending = gateway.send(READ)
    await gateway.advance(1.0)
    assert (summary(await pending), gateway.trace.upstream) == (PRUNED, "up0")


async def test_error_that_is_an_answer_is_final(gateway: FakeGateway) -> None:
    gateway.nodes[0].always(REVERTED)
    assert await gateway.call(READ) == REVERTED
    assert gateway.counts() == [1, 0]
    assert gateway.attempts("up0", "ok") == 1


@pytest.mark.parametrize(
    ("fault", "counts"),
    [(BROKEN, [1, 0]), (LAGGING, [1, 0]), (PRUNED, [1, 0]), (UNSUPPORTED, [1, 1]), (QUOTA, [1, 1])],
)
async def test_what_may_be_a_write_is_retried_elsewhere_only_where_it_was_turned_away(
    fault: Error, counts: list[int], gateway: FakeGateway
) -> None:
    gateway.nodes[0].always(fault)
    assert await gateway.call(UNKNOWN) == (fault if counts == [1, 0] else "up1")
    assert gateway.counts() == counts


# --- Quotas and rates ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [QUOTA, Http(429), Http(402)])
async def test_upstream_whose_quota_is_used_up_is_spared(answer: Any, gateway: FakeGateway) -> None:
    gateway.nodes[0].always(answer)
    for _ in range(10):
        assert await gateway.call(READ) == "up1"
    assert gateway.counts() == [1, 10]
    await gateway.advance(5.1)
    gateway.nodes[0].always("well again")
    assert await gateway.call(READ) == "well again", "and its breaker has not opened"


@pytest.mark.parametrize("answer", [QUOTA, Http(429)])
async def test_used_up_quotas_of_all_are_no_words_for_callers(answer: Any, gateway: FakeGateway) -> None:
    for node in gateway.nodes:
        node.always(answer)
    for method in (READ, UNKNOWN):
        with pytest.raises(UpstreamUnavailable, match="quotas"):
            await gateway.send(method)
    assert gateway.counts() == [2, 2], "each time once, for want of anybody else"
    for _ in range(10):
        with pytest.raises(UpstreamUnavailable):
            await gateway.send(READ)
    assert [each.failures for each in gateway.upstreams] == [0, 0], "no breaker will open"


async def test_upstream_is_not_called_more_often_than_its_rate_and_the_rest_goes_elsewhere() -> None:
    gateway = await open_gateway({"requests_per_second": 3}, {})
    for _ in range(10):
        await gateway.call(READ)
    assert gateway.counts() == [3, 7]
    await gateway.advance(1.0)
    for _ in range(10):
        await gateway.call(READ)
    assert gateway.counts() == [6, 14]


async def test_where_all_are_at_their_rates_a_call_is_refused_at_once() -> None:
    gateway = await open_gateway({"requests_per_second": 3}, {"requests_per_second": 2})
    for _ in range(5):
        await gateway.call(READ)
    with pytest.raises(UpstreamUnavailable, match="at their limits"):
        await gateway.send(READ)
    assert gateway.counts() == [3, 2]


# --- The breaker ---------------------------------------------------------------------------------------------


async def test_upstream_that_fails_is_left_alone_and_tried_again_with_one_call(gateway: FakeGateway) -> None:
    gateway.nodes[0].always(DROP)
    for _ in range(20):
        assert await gateway.call(READ) == "up1"
    assert gateway.counts() == [5, 20]
    await gateway.advance(1.1)
    gateway.nodes[0].holds = True
    pending = [gateway.send(READ) for _ in range(5)]
    await run_pending()
    assert gateway.counts() == [6, 24], "one tries, the others do not wait for it"
    gateway.nodes[0].always("well again")
    gateway.nodes[0].release()
    assert [summary(await each) for each in pending] == ["well again", *["up1"] * 4]
    gateway.nodes[0].holds = False
    assert await gateway.call(READ) == "well again"


async def test_answers_that_are_too_large_do_not_open_the_breaker() -> None:
    gateway = await open_gateway({}, limits=model.LimitSettings(response_bytes=1_000))
    gateway.nodes[0].respond = lambda method, _: "x" * (2_000 if method == "eth_getBlockReceipts" else 1)
    for _ in range(10):
        with pytest.raises(UpstreamError):
            await gateway.send("eth_getBlockReceipts", "0x1")
    assert gateway["up0"].in_rotation(gateway.clock())
    assert await gateway.call(READ) == "x"


async def test_too_many_large_answers_at_once_do_not_count_against_upstreams() -> None:
    gateway = await open_gateway(budget=100_000)
    for node in gateway.nodes:
        node.always("x" * 200_000)
    for _ in range(6):
        with pytest.raises(Overloaded):
            await gateway.send(READ)
    assert all(each.in_rotation(gateway.clock()) for each in gateway.upstreams)


async def test_call_that_is_cut_off_gives_its_place_back() -> None:
    gateway = await open_gateway({})
    gateway.nodes[0].holds = True
    trace: list[asyncio.Future[Any]] = [gateway.send(READ, seconds=1.0)]
    await run_pending()
    assert gateway["up0"].in_flight == 1
    await gateway.advance(1.2)
    with pytest.raises(UpstreamTimeout):
        await trace[0]
    assert gateway["up0"].in_flight == 0
