"""What callers and records show of how an answer was found: headers, strict networks, cache, attempts."""

from __future__ import annotations

import json

import pytest
from tests.gateway.callers import TOKEN, Note, call, digest, reason, request, sent, token_grant, with_token
from tests.gateway.calls import AwaitedAnswer, answer, answers_to, known, recorded, send, tries
from tests.gateway.fake_gateway import FakeGateway, open_gateway
from tests.gateway.fake_node import BROKEN, Http
from tests.gateway.fakes import run_pending
from tests.gateway.raw_http import Answers, hello

from tollgate.core.entries import Entry, KeptAttempts
from tollgate.gateway.messages import Answer
from tollgate.shm import metrics
from tollgate.shm.upstream_status import State

KEPT = {"cache_bytes": 1_000_000}


def probed(gateway: FakeGateway) -> None:
    """The prober has seen all upstreams at one head."""
    for row in gateway.statuses:
        row.publish(State.UP, 100)
    gateway.status.publish(100, 50, changed=True)


def shows(gateway: FakeGateway) -> None:
    gateway.store.tokens[digest(TOKEN)] = token_grant(show_upstream=True)


def body(sent_body: object) -> bytes:
    return json.dumps(sent_body).encode()


def ways(entry: Entry) -> list[tuple[str | None, KeptAttempts, str]]:
    return [(each.upstream, each.attempts, each.cache) for each in entry.calls]


# --- Headers -------------------------------------------------------------------------------------------------


async def test_token_that_shows_upstreams_is_shown_who_answered_and_how() -> None:
    gateway = await open_gateway(**KEPT)
    shows(gateway)
    probed(gateway)
    got = [(await answer(gateway, with_token(body(call(1))))).headers for _ in range(2)]
    assert got == [
        b"x-tollgate-cache: miss\r\nx-tollgate-upstream: up0\r\n",
        b"x-tollgate-cache: hit\r\n",
    ]
    got = [(await answer(gateway, with_token(body(call(1, "foo_bar"))))).headers for _ in range(1)]
    assert got == [b"x-tollgate-cache: bypass\r\nx-tollgate-upstream: up0\r\n"]


@pytest.mark.parametrize("sent_body", [call(1), [call(1), call(2, "foo_bar")], call(1, "foo_bar")])
async def test_names_of_upstreams_are_not_shown_where_the_operator_hides_them(sent_body: object) -> None:
    gateway = await open_gateway(**KEPT)
    shows(gateway)
    probed(gateway)
    gateway.pipeline.change(100, 30.0, shows_upstreams=False)
    headers = (await answer(gateway, with_token(body(sent_body)))).headers
    assert b"x-tollgate-cache" in headers
    assert b"upstream" not in headers


async def test_batch_shows_all_ways_at_once() -> None:
    gateway = await open_gateway(**KEPT)
    shows(gateway)
    probed(gateway)
    await answer(gateway, with_token(body(call(1))))
    got = await answer(gateway, with_token(body([call(1), call(2, "eth_gasPrice"), call(3, "admin_x")])))
    assert got.headers == b"x-tollgate-cache: bypass, hit, miss\r\nx-tollgate-upstream: up0\r\n"


@pytest.mark.parametrize("sent_body", [call(1), [call(1), call(2)], call(1, "admin_x")])
async def test_others_are_shown_nothing_of_upstreams(sent_body: object) -> None:
    gateway = await open_gateway(**KEPT)
    probed(gateway)
    for _ in range(2):
        assert b"tollgate" not in (await answer(gateway, with_token(body(sent_body)))).headers
    incoming = request(body(sent_body), origin="https://example.com")
    assert b"tollgate" not in (await answer(gateway, incoming)).headers


async def test_refusal_and_silence_show_nothing(gateway: FakeGateway) -> None:
    shows(gateway)
    gateway.loop.refusing = True
    got = await answer(gateway, with_token(body(call(1))))
    assert (got.status, b"tollgate" in got.headers) == (503, False)
    gateway.loop.refusing = False
    note: Note = {"jsonrpc": "2.0", "method": "eth_chainId"}
    assert await answer(gateway, with_token(body(note))) == Answer(204, b"")


async def test_headers_are_sent_and_a_page_may_read_them() -> None:
    gateway = await open_gateway(**KEPT)
    shows(gateway)
    probed(gateway)
    transport = gateway.connect(hello)
    for _ in range(2):
        transport.deliver(sent(call(1), "origin: https://example.com"))
        await run_pending(100)
    (_, first, _), (_, second, _) = Answers(transport.take()).read
    assert (first[b"x-tollgate-cache"], first[b"x-tollgate-upstream"]) == (b"miss", b"up0")
    assert (second[b"x-tollgate-cache"], b"x-tollgate-upstream" in second) == (b"hit", False)
    assert b"X-Tollgate-Cache" in first[b"access-control-expose-headers"]


# --- A hit -----------------------------------------------------------------------------------------------------


async def test_hit_is_answered_at_once_under_the_callers_id() -> None:
    gateway = await open_gateway(**KEPT)
    gateway.echo()
    probed(gateway)
    await send(gateway, call(1))
    for call_id in (7, "x", None):
        incoming = with_token(body(call(call_id)))
        incoming.network = gateway.network
        answered = gateway.loop.create_future()
        incoming.connection = AwaitedAnswer(answered)
        assert gateway.pipeline.answer(incoming) is None, "without a coroutine"
        got = answered.result()
        assert json.loads(got.body) == {"jsonrpc": "2.0", "id": call_id, "result": ["eth_chainId", []]}
    assert len(gateway.loop.transports) == 1


async def test_hit_is_still_under_the_rules_of_token_and_network() -> None:
    gateway = await open_gateway(**KEPT)
    probed(gateway)
    await send(gateway, call(1))
    gateway.directory.tokens.clear()
    known(gateway, methods=("eth_call",))
    assert reason((await send(gateway, call(1)))[1]) == "method_not_allowed"
    gateway.directory.tokens.clear()
    known(gateway, requests_per_second=1)
    assert [(await send(gateway, call(1)))[0] for _ in range(3)] == [200, 429, 429]


async def test_ways_are_counted() -> None:
    gateway = await open_gateway(**KEPT)
    probed(gateway)
    for sent_body in (call(1), call(1), [call(1), call(2), call(3, "eth_gasPrice")], call(1, "foo_bar")):
        await send(gateway, sent_body)
    found = {how: gateway.counted(metrics.CACHE, "eth", "mainnet", how) for how in ("hit", "miss", "bypass")}
    assert found == {"hit": 3, "miss": 2, "bypass": 1}


# --- Strict networks ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["eth_subscribe", "eth_unsubscribe"])
async def test_subscription_by_post_is_directed_to_come_by_websocket(method: str, gateway: FakeGateway) -> None:
    status, reply = await send(gateway, call(1, method, params=["newHeads"]))
    assert (status, reason(reply)) == (403, "method_not_allowed")
    assert "wss://" in reply["error"]["message"]
    status, (good, bad) = await send(gateway, [call(1), call(2, method)])
    assert (status, good["id"], reason(bad)) == (200, 1, "method_not_allowed")


@pytest.mark.parametrize("strict", [True, False])
async def test_strict_network_refuses_methods_that_the_catalogue_does_not_know(strict: bool) -> None:
    gateway = await open_gateway(network={"strict": strict})
    for _ in range(2):
        status, reply = await send(gateway, call(1, "foo_bar"))
        assert status == (403 if strict else 200)
        if strict:
            assert reason(reply) == "method_not_allowed"
            assert "strict" in reply["error"]["message"]
        assert (await send(gateway, call(1, "eth_chainId")))[0] == 200
    batch = (await send(gateway, [call(1), call(2, "foo_bar"), call(3, "foo_bar")]))[1]
    assert ["error" in each for each in batch] == [False, strict, strict]


async def test_family_without_a_catalogue_is_proxied() -> None:
    gateway = await open_gateway(family="foo", **KEPT)
    gateway.echo()
    assert (await send(gateway, call(1, "foo_bar", params=[1])))[1]["result"] == ["foo_bar", [1]]
    batch = (await send(gateway, [call(1, "foo_bar"), call(2, "foo_baz")]))[1]
    assert [each["result"][0] for each in batch] == ["foo_bar", "foo_baz"]


# --- Records -----------------------------------------------------------------------------------------------------


async def test_record_of_one_call_shows_who_answered_after_how_many_attempts_and_from_where() -> None:
    gateway = await open_gateway(**KEPT)
    probed(gateway)
    entries = await recorded(gateway, sent(call(1)), sent(call(1)), sent(call(1, "foo_bar")))
    assert [(each.upstream, each.attempts, each.cache) for each in entries] == [
        ("up0", 1, "miss"),
        ("", 0, "hit"),
        ("up0", 1, "bypass"),
    ]
    assert [each.calls[0].outcome for each in entries] == ["ok"] * 3, "hits are calls"


async def test_record_of_a_batch_shows_it_of_each_call() -> None:
    gateway = await open_gateway(**KEPT)
    probed(gateway)
    await answers_to(gateway, sent(call(1)))
    batch = [call(1), call(2, "eth_gasPrice"), call(3, "foo_bar"), call(4, "admin_x"), call(5, "eth_gasPrice")]
    entry = (await recorded(gateway, sent(batch)))[-1]
    assert ways(entry) == [
        ("", 0, "hit"),
        ("up0", 1, "miss"),
        ("up0", 1, "bypass"),
        ("", 0, "bypass"),
        ("", 0, "coalesced"),
    ]


async def test_record_counts_attempts_at_several_upstreams() -> None:
    gateway = await open_gateway({}, {}, {})
    for node, given in zip(gateway.nodes, (Http(500), BROKEN, "good"), strict=True):
        node.always(given)
    (entry,) = await recorded(gateway, sent(call(1)))
    failed = [("up0", "status"), ("up1", "node_error")]
    assert (entry.upstream, tries(entry.attempts)) == ("up2", [*failed, ("up2", "answered")])
    entry = (await recorded(gateway, sent([call(1), call(2, "eth_gasPrice")])))[-1]
    for each in entry.calls:
        assert (each.upstream, each.cache) == ("up2", "bypass")
        assert len(tries(each.attempts)) == 4, "two as a batch, two alone"
