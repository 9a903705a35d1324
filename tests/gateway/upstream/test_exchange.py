"""Calling upstreams: what is an answer, who is called next, whose words are passed on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
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
    summary,
)

from tollgate.core import jsonrpc
from tollgate.errors import Overloaded, UpstreamError, UpstreamTimeout, UpstreamUnavailable
from tollgate.gateway.upstream.attempts import BadStatus, Nonsense, read_response
from tollgate.settings import model
from tollgate.shm import metrics
from tollgate.shm.upstream_status import SILENCE_SECONDS, State

GOOD = b'{"jsonrpc":"2.0","id":1,"result":"0x1"}'
DOUBT = "may have been carried out"
READ, UNKNOWN = "eth_chainId", "foo_bar"
"""A read, and a method that may be anything."""


# --- What is known of upstreams ----------------------------------------------------------------------------


async def test_status_is_read_again_only_after_a_change() -> None:
    async with open_scene({}, {}) as scene:
        scene.up(100, 100)
        view = scene.exchange.view()
        assert scene.exchange.view() is view
        scene.state(1, State.DOWN)
        other = scene.exchange.view()
        scene.up(101, 101)
        last = scene.exchange.view()
        assert len({id(each) for each in (view, other, last)}) == 3
        assert last.believed_until == scene.clock() + SILENCE_SECONDS


@pytest.mark.parametrize(("state", "seconds"), [(State.UP, 10.0), (State.DOWN, 10.0), (State.WRONG_CHAIN, 20.0)])
async def test_attempt_leaves_time_for_another_where_there_is_another_upstream(
    state: State, seconds: float
) -> None:
    async with open_scene({"timeout_seconds": 60.0}, {"timeout_seconds": 3.0}) as scene:
        scene.up(100, 100)
        scene.state(1, state)
        scene.exchange.set_timeout(20.0)
        scene.exchange.view()
        assert [scene.upstream(index).attempt_seconds for index in range(2)] == [seconds, 3.0]


@pytest.mark.parametrize(("upstreams", "hedge", "hedging"), [(1, True, False), (2, True, True), (2, False, False)])
async def test_calls_are_hedged_where_there_is_another_upstream(
    upstreams: int, hedge: bool, hedging: bool
) -> None:
    async with open_scene(*[{}] * upstreams, network={"hedge": hedge}) as scene:
        assert scene.exchange.hedging is hedging


# --- What is an answer -------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 201, 400, 404, 405, 413, 422])
def test_json_rpc_body_is_an_answer_whatever_a_node_thinks_of_http(status: int) -> None:
    assert bytes(read_response(status, GOOD, jsonrpc.decode_reply).result) == b'"0x1"'


@pytest.mark.parametrize("status", [301, 302, 307, 401, 402, 403, 407, 408, 429, 500, 502, 503, 504, 599])
def test_status_about_the_upstream_is_a_failure_even_with_a_good_body(status: int) -> None:
    with pytest.raises(BadStatus) as caught:
        read_response(status, GOOD, jsonrpc.decode_reply)
    assert caught.value.sent


@pytest.mark.parametrize("status", [200, 404])
@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b"{}", b'{"jsonrpc":"2.0","id":1,"error":"no"}', GOOD[:-1]]
)
def test_body_that_is_no_response_is_nonsense(status: int, body: bytes) -> None:
    with pytest.raises(Nonsense) as caught:
        read_response(status, body, jsonrpc.decode_reply)
    assert caught.value.sent


# --- Failures ----------------------------------------------------------------------------------------------


async def test_first_upstream_that_answers_is_taken_and_all_attempts_are_counted() -> None:
    async with open_scene({}, {}, {}, {}) as scene:
        scene.nodes[0].always(Http(503))
        scene.nodes[1].always(DROP)
        assert await scene.call(READ) == "up2"
        assert scene.counts() == [1, 1, 1, 0]
        assert (scene.attempts(0, "status"), scene.attempts(1, "broken"), scene.attempts(2, "ok")) == (1, 1, 1)
        assert (scene.trace.upstream, scene.trace.attempts) == ("up2", 3)
        scene.exchange.report()
        totals = scene.worker.regions.totals()
        spent = [key for key in totals if key[0] == metrics.UPSTREAM_SECONDS.name]
        assert sum(totals[key] for key in spent if key[-1] != "sum") == 1


async def test_those_that_broke_off_are_called_once_more_after_a_moment(scene: Scene) -> None:
    scene.nodes[0].in_turn(DROP, "again")
    scene.nodes[1].always(Http(500))
    pending = scene.send(READ)
    await turns()
    assert (scene.counts(), pending.done()) == ([1, 1], False)
    await scene.later(0.1)
    assert summary(await pending) == "again"
    assert scene.counts() == [2, 1]


@pytest.mark.parametrize("method", [READ, UNKNOWN])
async def test_where_nobody_answers_the_refusal_reports_it_and_of_a_write_that_it_is_in_doubt(
    method: str, scene: Scene
) -> None:
    for node in scene.nodes:
        node.always(DROP)
    pending = scene.send(method)
    await scene.later(1.0)
    with pytest.raises(UpstreamError) as caught:
        await pending
    assert (DOUBT in caught.value.message) is (method is UNKNOWN)
    assert scene.counts() == ([1, 0] if method is UNKNOWN else [2, 2])


async def test_write_goes_on_after_a_refused_connection_and_no_further() -> None:
    async with open_scene({}, {}, {}) as scene:
        scene.loop.refusing = True
        for node in scene.nodes:
            node.always(Http(502))
        pending = scene.send(UNKNOWN)
        while not scene.loop.connects:
            await turns(1)
        await turns(1)
        scene.loop.refusing = False
        with pytest.raises(UpstreamError, match=DOUBT):
            await pending
        assert scene.counts() == [0, 1, 0]
        assert scene.attempts(0, "connect") == scene.attempts(1, "status") == 1


async def test_upstream_that_is_silent_gives_way_at_its_own_deadline() -> None:
    async with open_scene({"timeout_seconds": 3.0}, {}, network={"hedge": False}) as scene:
        scene.nodes[0].holds = True
        pending = scene.send(READ)
        await scene.later(2.9)
        assert not pending.done()
        await scene.later(0.3)
        assert summary(await pending) == "up1"
        assert scene.attempts(0, "timeout") == 1
    # A hedge would not wait for it.


@pytest.mark.parametrize("method", [READ, UNKNOWN])
async def test_no_further_upstream_is_called_after_the_deadline_of_the_request(method: str) -> None:
    async with open_scene({}, {}, {}) as scene:
        for node in scene.nodes:
            node.holds = True
        began = scene.clock()
        pending = scene.send(method, seconds=8.0)
        while not pending.done():
            await scene.later(0.1)
        assert scene.clock() - began <= 8.3
        with pytest.raises(UpstreamTimeout) as caught:
            await pending
        assert scene.counts() == ([1, 0, 0] if method is UNKNOWN else [1, 1, 1])
        assert (DOUBT in caught.value.message) is (method is UNKNOWN)


async def test_without_a_usable_upstream_a_call_is_unavailable_at_once() -> None:
    async with open_scene({}) as scene:
        scene.up(100)
        scene.state(0, State.WRONG_CHAIN)
        with pytest.raises(UpstreamUnavailable):
            await scene.send(READ)
        assert scene.counts() == [0]


# --- What nodes report of themselves -------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [LAGGING, PRUNED, BROKEN, UNSUPPORTED, QUOTA])
async def test_error_that_speaks_of_the_node_is_retried_elsewhere(fault: Error, scene: Scene) -> None:
    scene.nodes[0].always(fault)
    assert await scene.call(READ) == "up1"
    assert (scene.counts(), scene.trace.upstream) == ([1, 1], "up1")


@pytest.mark.parametrize("fault", [LAGGING, PRUNED, BROKEN, UNSUPPORTED])
async def test_where_nobody_knows_better_the_nodes_words_are_the_answer(fault: Error, scene: Scene) -> None:
    for node in scene.nodes:
        node.always(fault)
    assert await scene.call(READ) == fault
    assert (scene.counts(), scene.trace.upstream) == ([1, 1], "up1")


async def test_words_of_a_node_stand_also_when_the_others_break_off(scene: Scene) -> None:
    scene.nodes[0].always(PRUNED)
    scene.nodes[1].always(DROP)
    pending = scene.send(READ)
    await scene.later(1.0)
    assert (summary(await pending), scene.trace.upstream) == (PRUNED, "up0")


async def test_error_that_is_an_answer_is_final(scene: Scene) -> None:
    scene.nodes[0].always(REVERTED)
    assert await scene.call(READ) == REVERTED
    assert scene.counts() == [1, 0]
    assert scene.attempts(0, "ok") == 1


@pytest.mark.parametrize(
    ("fault", "counts"),
    [(BROKEN, [1, 0]), (LAGGING, [1, 0]), (PRUNED, [1, 0]), (UNSUPPORTED, [1, 1]), (QUOTA, [1, 1])],
)
async def test_what_may_be_a_write_is_retried_elsewhere_only_where_it_was_turned_away(
    fault: Error, counts: list[int], scene: Scene
) -> None:
    scene.nodes[0].always(fault)
    assert await scene.call(UNKNOWN) == (fault if counts == [1, 0] else "up1")
    assert scene.counts() == counts


# --- Quotas and rates ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [QUOTA, Http(429), Http(402)])
async def test_upstream_whose_quota_is_used_up_is_spared(answer: Any, scene: Scene) -> None:
    scene.nodes[0].always(answer)
    for _ in range(10):
        assert await scene.call(READ) == "up1"
    assert scene.counts() == [1, 10]
    await scene.later(5.1)
    scene.nodes[0].always("well again")
    assert await scene.call(READ) == "well again", "and its breaker has not opened"


@pytest.mark.parametrize("answer", [QUOTA, Http(429)])
async def test_used_up_quotas_of_all_are_no_words_for_callers(answer: Any, scene: Scene) -> None:
    for node in scene.nodes:
        node.always(answer)
    for method in (READ, UNKNOWN):
        with pytest.raises(UpstreamUnavailable, match="quotas"):
            await scene.send(method)
    assert scene.counts() == [2, 2], "each time once, for want of anybody else"
    for _ in range(10):
        with pytest.raises(UpstreamUnavailable):
            await scene.send(READ)
    assert [scene.upstream(index).failures for index in range(2)] == [0, 0], "no breaker will open"


async def test_upstream_is_not_called_more_often_than_its_rate_and_the_rest_goes_elsewhere() -> None:
    async with open_scene({"requests_per_second": 3}, {}) as scene:
        for _ in range(10):
            await scene.call(READ)
        assert scene.counts() == [3, 7]
        await scene.later(1.0)
        for _ in range(10):
            await scene.call(READ)
        assert scene.counts() == [6, 14]


async def test_where_all_are_at_their_rates_a_call_is_refused_at_once() -> None:
    async with open_scene({"requests_per_second": 3}, {"requests_per_second": 2}) as scene:
        for _ in range(5):
            await scene.call(READ)
        with pytest.raises(UpstreamUnavailable, match="at their limits"):
            await scene.send(READ)
        assert scene.counts() == [3, 2]


# --- The breaker ---------------------------------------------------------------------------------------------


async def test_upstream_that_fails_is_left_alone_and_tried_again_with_one_call(scene: Scene) -> None:
    scene.nodes[0].always(DROP)
    for _ in range(20):
        assert await scene.call(READ) == "up1"
    assert scene.counts() == [5, 20]
    await scene.later(1.1)
    scene.nodes[0].holds = True
    pending = [scene.send(READ) for _ in range(5)]
    await turns()
    assert scene.counts() == [6, 24], "one tries, the others do not wait for it"
    scene.nodes[0].always("well again")
    scene.nodes[0].let()
    assert [summary(await each) for each in pending] == ["well again", *["up1"] * 4]
    scene.nodes[0].holds = False
    assert await scene.call(READ) == "well again"


async def test_answers_that_are_too_large_do_not_open_the_breaker() -> None:
    async with open_scene({}, limits=model.LimitSettings(response_bytes=1_000)) as scene:
        scene.nodes[0].respond = lambda method, _: "x" * (2_000 if method == "eth_getBlockReceipts" else 1)
        for _ in range(10):
            with pytest.raises(UpstreamError):
                await scene.send("eth_getBlockReceipts", "0x1")
        assert scene.upstream(0).in_rotation(scene.clock())
        assert await scene.call(READ) == "x"


async def test_too_many_large_answers_at_once_are_our_own_trouble() -> None:
    async with open_scene(budget=100_000) as scene:
        for node in scene.nodes:
            node.always("x" * 200_000)
        for _ in range(6):
            with pytest.raises(Overloaded):
                await scene.send(READ)
        assert all(scene.upstream(index).in_rotation(scene.clock()) for index in range(2))


async def test_call_that_is_cut_off_gives_its_place_back() -> None:
    async with open_scene({}) as scene:
        scene.nodes[0].holds = True
        trace: list[asyncio.Future[Any]] = [scene.send(READ, seconds=1.0)]
        await turns()
        assert scene.upstream(0).in_flight == 1
        await scene.later(1.2)
        with pytest.raises(UpstreamTimeout):
            await trace[0]
        assert scene.upstream(0).in_flight == 0
