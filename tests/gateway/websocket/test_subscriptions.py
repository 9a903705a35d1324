"""Subscriptions of a WebSocket: how they are answered, written down, bounded and ended."""

import asyncio
from typing import Any

import msgspec
import pytest
from tests.gateway.callers import TOKEN, digest, token_grant
from tests.gateway.fakes import run_pending
from tests.gateway.websocket.asgi_clients import SocketServer, call, open_server

from tollgate.chains.subscriptions import Wrong
from tollgate.core.entries import BILLABLE, CallEntry
from tollgate.core.methods import Policy
from tollgate.core.models import Team
from tollgate.errors import RateLimited
from tollgate.shm import metrics

HEADS = call(1, "eth_subscribe", "newHeads")


async def test_subscription_is_answered_before_it_is_notified_of_anything(server: SocketServer) -> None:
    client = await server.open()

    async def join_and_notify(subscriber: Any) -> None:
        server.stream.subscribers.append(subscriber)
        subscriber.notify(b'"early"')

    server.stream.join = join_and_notify  # type: ignore[method-assign]
    await client.deliver(HEADS)
    answer, early = client.received()
    assert answer["id"] == 1
    assert early["params"] == {"subscription": answer["result"], "result": "early"}
    server.stream.notify("later")
    await run_pending()
    (later,) = client.received()
    assert later["params"]["result"] == "later"


async def test_subscription_is_a_billed_call_and_notifications_are_free(server: SocketServer) -> None:
    client = await server.open()
    await client.deliver(HEADS)
    server.stream.notify(1)
    server.stream.notify(2)
    await run_pending()
    subscription = client.received()[0]["result"]
    await client.deliver(call(2, "eth_unsubscribe", subscription))
    assert client.received() == [{"jsonrpc": "2.0", "id": 2, "result": True}]
    calls = [(each.method, each.outcome) for entry in server.gateway.sink.written for each in entry.calls]
    assert calls == [("eth_subscribe", "ok"), ("eth_unsubscribe", "ok")]
    assert server.gateway.counted(metrics.WS_NOTIFICATIONS, "eth", "mainnet") == 2
    assert server.gateway.counted(metrics.CALLS, "eth", "mainnet", "eth_subscribe", "ok") == 1
    assert server.stream.subscribers == []


async def test_subscriptions_and_other_calls_of_a_batch_are_answered_in_its_order(server: SocketServer) -> None:
    client = await server.open()
    batch = [call(1), HEADS | {"id": 2}, call(3, "admin_peers"), call(4, "eth_unsubscribe", "0x1"), call(5)]
    await client.deliver(batch)
    (answers,) = client.received()
    assert [each["id"] for each in answers] == [1, 2, 3, 4, 5]
    assert answers[1]["result"] == server.stream.subscribers[0].id
    assert answers[2]["error"]["data"]["reason"] == "method_not_allowed"
    assert answers[3]["error"]["code"] == -32000
    server.stream.notify("x")
    await run_pending()
    assert len(client.received()) == 1
    (entry,) = server.gateway.sink.written
    assert [each.outcome for each in entry.calls] == [
        "ok",
        "ok",
        "method_not_allowed",
        "invalid_request",
        "ok",
    ]


@pytest.mark.parametrize(("seconds", "outcomes"), [(0.0, ["overloaded"]), (0.001, ["ok"])])
async def test_subscription_of_a_batch_whose_time_is_over_is_not_made(seconds: float, outcomes: list[str]) -> None:
    server = await open_server()
    server.pipeline.request_seconds = seconds
    client = await server.open()
    await client.deliver([HEADS])
    (entry,) = server.gateway.sink.written
    assert [each.outcome for each in entry.calls] == outcomes
    assert len(server.stream.subscribers) == outcomes.count("ok")


async def test_subscriptions_are_bounded_also_while_they_are_being_made() -> None:
    server = await open_server({"subscriptions": 2})
    client = await server.open()
    server.stream.gate = asyncio.Event()
    for number in range(3):
        await client.deliver(call(number, "eth_subscribe", "newHeads"))
    (answers,) = client.received()
    assert (answers["id"], answers["error"]["code"], answers["error"]["data"]["limit"]) == (
        2,
        -32005,
        "subscriptions",
    )
    server.stream.gate.set()
    await run_pending(40)
    first, second = client.received()
    assert first["result"] != second["result"]
    await client.deliver(call(3, "eth_unsubscribe", first["result"]))
    await client.deliver(call(4, "eth_subscribe", "newHeads"))
    assert ["result" in each for each in client.received()] == [True, True]
    refused = [entry for entry in server.gateway.sink.written if entry.calls[0].outcome == "rate_limited"]
    assert len(refused) == 1


async def test_wrong_subscription_is_given_the_reason() -> None:
    server = await open_server({"subscriptions": 1})
    client = await server.open()
    await client.deliver(call(1, "eth_subscribe", "newBlocks"))
    server.stream.wrong = Wrong(24, "Block not found")
    await client.deliver(call(2, "eth_subscribe", "newHeads"))
    assert [(each["id"], each["error"]["code"]) for each in client.received()] == [(1, -32601), (2, 24)]
    server.stream.wrong = None
    await client.deliver(call(3, "eth_subscribe", "newHeads"))
    assert ["result" in each for each in client.received()] == [True], "it does not count"


WRONG = [
    (call(7, "eth_subscribe", "newBlocks"), -32601),
    (call(7, "eth_subscribe", "logs", {"address": "0x1"}), -32602),
    (call(7, "eth_subscribe"), -32602),
    (call(7, "eth_unsubscribe", "0x1"), -32000),
    (call(7, "eth_unsubscribe", 1), -32602),
]
WRONG_STARKNET = [
    (call(7, "starknet_subscribeEvents", "0x1", "no keys"), -32602),
    (call(7, "starknet_subscribeNewHeads", "pending"), -32602),
    (call(7, "starknet_subscribePendingTransactions"), -32601),
    (call(7, "starknet_unsubscribe", "12"), 66),
]


@pytest.mark.parametrize(
    ("family", "message", "code"),
    [("eth", *each) for each in WRONG] + [("starknet", *each) for each in WRONG_STARKNET],
)
async def test_wrong_call_about_subscriptions_is_a_refusal_and_costs_nothing(
    family: str, message: dict[str, Any], code: int
) -> None:
    """It is answered as a node would, but no node has answered it."""
    server = await open_server(family=family)
    client = await server.open(f"/x/{family}/mainnet")
    await client.deliver(message)
    await client.deliver([message])
    (alone, (together,)) = client.received()
    assert alone == together
    assert (alone["id"], alone["error"]["code"], set(alone["error"])) == (7, code, {"code", "message"})
    written = server.gateway.sink.written
    size = len(msgspec.json.encode(alone))
    assert [
        (entry.status, [(each.outcome, each.code, each.response_bytes) for each in entry.calls])
        for entry in written
    ] == [(400, [("invalid_request", code, size)]), (200, [("invalid_request", code, size)])]
    assert not any(each.outcome in BILLABLE for entry in written for each in entry.calls)
    counted = server.gateway.counted
    method = message["method"]
    assert counted(metrics.CALLS, family, "mainnet", method, "invalid_request") == 2
    assert counted(metrics.CALLS, family, "mainnet", method, "node_error") == 0
    assert server.stream.subscribers == []


async def test_good_calls_of_a_batch_with_a_wrong_subscription_are_billed(server: SocketServer) -> None:
    client = await server.open()
    notification = {"jsonrpc": "2.0", "method": "eth_chainId"}
    await client.deliver([call(1), call(2, "eth_subscribe", "x"), notification, HEADS | {"id": 3}])
    (answers,) = client.received()
    assert [(each["id"], "result" in each) for each in answers] == [(1, True), (2, False), (3, True)]
    (entry,) = server.gateway.sink.written
    assert [each.outcome for each in entry.calls] == ["ok", "invalid_request", "ok", "ok"]
    assert [each.upstream for each in entry.calls] == ["up0", "", "up0", ""]
    _, declined, subscribed = [len(msgspec.json.encode(each)) for each in answers]
    assert [each.response_bytes for each in entry.calls][1:] == [declined, 0, subscribed]
    assert server.gateway.counted(metrics.CALLS, "eth", "mainnet", "eth_chainId", "ok") == 2


async def test_subscription_without_an_id_is_none(server: SocketServer) -> None:
    client = await server.open()
    await client.deliver({"jsonrpc": "2.0", "method": "eth_subscribe", "params": ["newHeads"]})
    assert server.stream.subscribers == []
    assert client.received() == []
    (entry,) = server.gateway.sink.written
    (noted,) = entry.calls
    assert (entry.status, noted.outcome, noted.response_bytes) == (204, "invalid_request", 0)


@pytest.mark.parametrize(
    ("policy", "methods"), [(Policy((), ("eth_subscribe",)), ()), (Policy((), ()), ("eth_call",))]
)
async def test_subscription_is_refused_by_policy(policy: Policy, methods: tuple[str, ...]) -> None:
    server = await open_server(policy=policy)
    server.gateway.store.tokens[digest(TOKEN)] = token_grant(methods=methods)
    client = await server.open()
    await client.deliver(HEADS)
    await client.deliver([HEADS])
    single, (in_batch,) = client.received()
    assert {each["error"]["data"]["reason"] for each in (single, in_batch)} == {"method_not_allowed"}
    assert server.stream.subscribers == []


async def test_subscriptions_end_with_their_connection(server: SocketServer) -> None:
    client, other = await server.open(), await server.open()
    await client.deliver(HEADS)
    await other.deliver(HEADS)
    await client.leave()
    assert len(server.stream.subscribers) == 1
    server.stream.notify("x")
    await run_pending()
    assert len(other.received()) == 2


async def test_subscription_that_is_made_while_the_connection_ends_is_none(server: SocketServer) -> None:
    client = await server.open()
    server.stream.gate = asyncio.Event()
    await client.deliver(HEADS)
    await client.leave()
    server.stream.gate.set()
    await run_pending(40)
    assert server.stream.subscribers == []


async def test_subscription_that_cannot_go_on_closes_the_connection_with_the_reason(server: SocketServer) -> None:
    client = await server.open()
    await client.deliver(HEADS)
    server.stream.subscribers[0].lose("Too far behind: " + "x" * 200)
    await run_pending(40)
    assert client.closed is not None
    code, reason = client.closed
    assert code == 1011
    assert reason.startswith("Too far behind")
    assert len(reason.encode()) <= 123
    assert server.gateway.counted(metrics.WS_CUT, "behind") == 1


@pytest.mark.parametrize("bills", [False, True])
async def test_calls_that_a_subscription_needs_are_limited_and_recorded_where_they_are_billed(bills: bool) -> None:
    server = await open_server(family="starknet")
    server.pipeline.change(100, 30.0, bills_upstream_calls=bills)
    server.gateway.store.tokens[digest(TOKEN)] = token_grant(requests_per_second=5)
    client = await server.open("/x/starknet/mainnet")
    await client.deliver(call(1, "starknet_subscribeNewHeads"))
    (subscriber,) = server.stream.subscribers
    server.gateway.meters.taken.clear()
    written = len(server.gateway.sink.written)
    subscriber.charge(3)
    server.gateway.sink.write()
    assert sum(cost for _, cost in server.gateway.meters.taken) == 3
    records = server.gateway.sink.written[written:]
    assert len(records) == bills
    for entry in records:
        assert (entry.status, entry.team_id) == (200, "team_1")
        assert list(entry.calls) == [CallEntry("starknet_subscribeNewHeads", "ok")] * 3
    with pytest.raises(RateLimited):
        subscriber.charge(6)
    server.gateway.sink.write()
    assert len(server.gateway.sink.written) == written + bills


async def test_calls_that_a_subscription_needs_count_under_a_cap_that_was_set_after_it_was_made() -> None:
    server = await open_server(family="starknet")
    client = await server.open("/x/starknet/mainnet")
    await client.deliver(call(1, "starknet_subscribeNewHeads"))
    (subscriber,) = server.stream.subscribers
    server.gateway.store.tokens[digest(TOKEN)] = token_grant(Team("team_1", "acme", spending_cap=7))
    server.gateway.directory.tokens.clear()
    await server.gateway.directory.find_token(digest(TOKEN))
    subscriber.charge(1)
    server.gateway.sink.write()
    assert server.gateway.sink.written[-1].cap == 7


@pytest.mark.parametrize("family", ["eth", "starknet"])
async def test_ids_of_subscriptions_are_as_their_family_writes_them(family: str) -> None:
    server = await open_server(family=family)
    client = await server.open(f"/x/{family}/mainnet")
    subscribe = HEADS if family == "eth" else call(1, "starknet_subscribeNewHeads")
    for _ in range(20):
        await client.deliver(subscribe)
    made = [each["result"] for each in client.received()]
    assert len(set(made)) == 20
    if family == "eth":
        assert all(each.startswith("0x") and len(each) == 34 for each in made)
    else:
        assert all(0 <= int(each) < 2**63 for each in made), "it fits into a signed number"
