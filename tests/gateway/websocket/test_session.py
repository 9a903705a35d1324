"""The messages of a WebSocket: calls, batches and subscriptions, their records, and clients that do not read."""

import asyncio
import json
from typing import Any

import pytest
from tests.gateway.callers import TOKEN, digest, token_grant
from tests.gateway.fakes import run_pending
from tests.gateway.raw_http import answer_upstream
from tests.gateway.websocket.asgi_clients import Client, SocketServer, call, open_server

from tollgate.core.limits import Limit
from tollgate.core.models import Team
from tollgate.gateway.memory_budget import SMALL
from tollgate.gateway.messages import Answer
from tollgate.gateway.websocket.session import MAX_IN_FLIGHT, addressed
from tollgate.settings import model
from tollgate.shm import metrics

HEADS = call(1, "eth_subscribe", "newHeads")


def ids(client: Client) -> list[Any]:
    return [each["id"] for each in client.received()]


# --- Calls -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "answers"),
    [
        (call(1), [1]),
        (json.dumps(call(1)).encode(), [1]),
        (call("x"), ["x"]),
        ([call(1), call("x")], [[1, "x"]]),
        ("{bad", [None]),
        ([], [None]),
        ({"jsonrpc": "2.0", "method": "eth_chainId"}, []),
        (call(5, "admin_peers"), [5]),
    ],
)
async def test_messages_are_answered_as_bodies_are(
    message: object, answers: list[Any], server: SocketServer
) -> None:
    client = await server.open()
    await client.deliver(message)
    received = client.received()
    assert [[one["id"] for one in each] if isinstance(each, list) else each["id"] for each in received] == answers


async def test_answers_come_as_they_are_ready() -> None:
    server = await open_server(node=lambda _: None)
    client = await server.open()
    await client.deliver(call(1))
    await client.deliver(call(2, "admin_peers"))
    assert ids(client) == [2]
    answer_upstream(server.gateway)
    await run_pending(40)
    assert ids(client) == [1]


async def test_answer_leaves_after_its_record_is_written(server: SocketServer) -> None:
    client = await server.open()
    left: list[int] = []
    write = server.gateway.sink.write
    server.gateway.context.outbox._write = lambda: (left.append(len(client.sent)), write())[1]  # type: ignore[func-returns-value]
    before = len(client.sent)
    await client.deliver(call(1))
    assert left[-1] == before
    (entry,) = server.gateway.sink.written
    assert (entry.status, entry.network, entry.calls[0].method) == (200, "eth/mainnet", "eth_chainId")
    assert entry.request_bytes == len(json.dumps(call(1)))


async def test_every_message_has_an_id_of_its_own(server: SocketServer) -> None:
    client = await server.open(x_request_id="handshake")
    await client.deliver(call(1))
    await client.deliver(call(2))
    written = [entry.request_id for entry in server.gateway.sink.written]
    assert len(set(written)) == 2
    assert b"handshake" not in written
    assert server.gateway.counted(metrics.REQUESTS, "eth", "mainnet", "200") == 2


@pytest.mark.parametrize(
    ("status", "body", "call_id"),
    [(399, b'{"id":5}', None), (400, b'{"id":5}', 5), (400, b'{"id":"a"}', "a"), (400, b"{", None)],
)
def test_refusal_has_the_id_of_its_call(status: int, body: bytes, call_id: object) -> None:
    refused = Answer(status, b'{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"no"}}')
    body = body.replace(b"}", b',"jsonrpc":"2.0","method":"eth_chainId"}')
    assert json.loads(addressed(body, refused)) == {**json.loads(refused.body), "id": call_id}


async def test_reading_stops_while_many_calls_are_under_way() -> None:
    server = await open_server(node=lambda _: None)
    client = await server.open()
    for number in range(MAX_IN_FLIGHT + 10):
        await client.deliver(call(number))
    assert len(server.gateway.context.under_way) == MAX_IN_FLIGHT
    for _ in range(200):
        answer_upstream(server.gateway)
        await run_pending()
    assert sorted(ids(client)) == list(range(MAX_IN_FLIGHT + 10))


async def test_worker_that_has_too_much_to_do_refuses_under_the_calls_own_id() -> None:
    server = await open_server(node=lambda _: None, limits=model.LimitSettings(in_flight=1))
    client = await server.open()
    await client.deliver(call(1))
    await client.deliver([call(2), call("b"), {"jsonrpc": "2.0", "method": "eth_chainId"}])
    (answers,) = client.received()
    assert [(each["id"], each["error"]["data"]["reason"]) for each in answers] == [
        (2, "overloaded"),
        ("b", "overloaded"),
    ]


async def test_refused_batch_of_notifications_alone_is_not_answered() -> None:
    server = await open_server(node=lambda _: None, limits=model.LimitSettings(in_flight=1))
    client = await server.open()
    await client.deliver(call(1))
    await client.deliver([{"jsonrpc": "2.0", "method": "eth_chainId"}])
    assert client.received() == []


async def test_others_have_their_turn_while_many_messages_are_answered(server: SocketServer) -> None:
    client = await server.open()
    for _ in range(500):
        client.post("{bad")
    done: list[int] = []
    for _ in range(20):
        await asyncio.sleep(0)
        done.append(len(client.received()))
    assert max(done) <= 50
    await run_pending(400)
    assert sum(done) + len(client.received()) == 500


@pytest.mark.parametrize("message", [call(7), HEADS | {"id": 7}])
async def test_capped_team_is_refused_in_messages(message: dict[str, Any], server: SocketServer) -> None:
    capped = Team("team_1", "acme", capped_until=server.gateway.wall.now + 60)
    server.gateway.store.tokens[digest(TOKEN)] = token_grant(capped)
    client = await server.open()
    await client.deliver(message)
    (answers,) = client.received()
    assert (answers["id"], answers["error"]["code"]) == (7, -32017)
    assert client.closed is None
    assert server.stream.subscribers == []


async def test_rate_limit_counts_each_call(server: SocketServer) -> None:
    server.gateway.store.tokens[digest(TOKEN)] = token_grant(requests_per_second=2)
    client = await server.open()
    for number in range(3):
        await client.deliver(call(number, "eth_subscribe", "newHeads"))
    answers = client.received()
    assert [each["id"] for each in answers] == [0, 1, 2]
    assert answers[2]["error"]["data"]["reason"] == "rate_limited"
    assert len(server.stream.subscribers) == 2


async def test_calls_of_a_client_that_left_are_written_down_all_the_same() -> None:
    server = await open_server(node=lambda _: None)
    client = await server.open()
    await client.deliver(call(1))
    await client.leave()
    answer_upstream(server.gateway)
    await run_pending(40)
    assert [entry.status for entry in server.gateway.sink.written] == [200]
    assert client.task.done()


async def test_large_messages_are_bounded_together() -> None:
    server = await open_server(node=lambda _: None, budget=100_000)
    client = await server.open()
    await client.deliver(call(1, "eth_call", "x" * 70_000))
    assert server.gateway.budget.held >= 70_000
    await client.deliver(call(2, "eth_call", "x" * 70_000))
    (answers,) = client.received()
    assert (answers["id"], answers["error"]["data"]["reason"]) == (2, "overloaded")
    for _ in server.gateway.upstreams:
        answer_upstream(server.gateway)
        await run_pending(40)
    assert ids(client) == [1]
    assert server.gateway.budget.held == 0


async def test_bound_on_messages_that_a_reload_has_lowered_holds(server: SocketServer) -> None:
    client = await server.open()
    server.gateway.context.change(server.gateway.networks.served, model.LimitSettings(body_bytes=100))
    await client.deliver(call(1, "eth_call", "x" * 100))
    (answers,) = client.received()
    assert (answers["id"], answers["error"]["data"]["reason"]) == (1, "body_too_large")


# --- Clients that do not read ------------------------------------------------------------------------------


@pytest.mark.parametrize("reads_on", [False, True])
async def test_slow_client_is_cut_with_a_reason_and_others_go_on(reads_on: bool) -> None:
    server = await open_server({"queue_bytes": 2_000})
    slow, quick = await server.open(), await server.open()
    for client in (slow, quick):
        await client.deliver(HEADS)
        client.received()
    slow.reads = False
    for _ in range(30):
        server.stream.notify("x" * 100)
        await run_pending()
    assert len(server.stream.subscribers) == 1, "the slow one subscribes to nothing any more"
    if reads_on:
        slow.read_on()
        await run_pending(40)
        assert len(slow.received()) == 1, "what waits is dropped"
    else:
        await server.gateway.loop.advance(1.0)
        assert [each["type"] for each in slow.sent[-3:]] == ["cancelled", "closing", "websocket.close"]
    assert slow.closed is not None
    assert slow.closed[0] == 1013
    assert "slowly" in slow.closed[1]
    assert "read faster" in slow.closed[1]
    assert slow.received() == []
    assert quick.closed is None
    assert len(quick.received()) == 30
    assert server.gateway.counted(metrics.WS_CUT, "slow") == 1
    assert len(server.stream.subscribers) == 1


async def test_answers_that_were_requested_may_wait_and_reading_stops_meanwhile() -> None:
    server = await open_server({"queue_bytes": 1_000})
    client = await server.open()
    client.reads = False
    for number in range(10):
        await client.deliver(call(number, "eth_call", "x" * 500))
    assert client.closed is None
    client.read_on()
    await run_pending(400)
    assert sorted(ids(client)) == list(range(10))
    assert server.gateway.budget.held == 0


@pytest.mark.parametrize("ending", ["the client leaves", "the service stops"])
async def test_nothing_is_left_of_a_client_that_does_not_read(ending: str) -> None:
    server = await open_server({"queue_bytes": 1_000}, budget=1_000_000)
    before = asyncio.all_tasks()
    client = await server.open()
    client.reads = False
    for number in range(10):
        await client.deliver(call(number, "eth_call", "x" * 2_000))
    assert server.gateway.budget.held > 0
    if ending == "the client leaves":
        client.task.cancel()
        await run_pending()
    else:
        server.endpoint.stop()
        await server.gateway.loop.advance(1.0)
    await run_pending(40)
    assert (asyncio.all_tasks(), server.gateway.budget.held) == (before, 0)


async def test_reading_goes_on_after_calls_that_have_no_answer() -> None:
    server = await open_server(node=lambda _: None)
    client = await server.open()
    for number in range(MAX_IN_FLIGHT):
        await client.deliver({"jsonrpc": "2.0", "method": "eth_call", "params": [number]})
    await client.deliver(call(1, "admin_peers"))
    assert client.received() == []
    for _ in range(2 * MAX_IN_FLIGHT):
        answer_upstream(server.gateway)
        await run_pending()
    assert ids(client) == [1]


async def test_answers_beyond_what_the_worker_can_hold_cut_the_client() -> None:
    server = await open_server({"queue_bytes": 1_000}, node=lambda _: None, budget=1_000)
    client = await server.open()
    client.reads = False
    for number in range(6):
        await client.deliver(call(number, "eth_call", "x" * 500))
    for _ in range(20):
        answer_upstream(server.gateway)
        await run_pending()
    await server.gateway.loop.advance(1.0)
    assert client.closed is not None
    assert client.closed[0] == 1013
    assert server.gateway.budget.held == 0


async def test_limit_of_an_address_is_that_of_the_page() -> None:
    server = await open_server(misses=Limit(500, 1.0))
    client = await server.open(token=None, origin="https://example.com")
    await client.deliver(call(1))
    (entry,) = server.gateway.sink.written
    assert (entry.source_id, entry.origin, entry.address) == ("dom_1", b"https://example.com", "192.0.2.1")
    assert any(key.startswith("dom_1:") for key, _ in server.gateway.meters.taken)


@pytest.mark.parametrize(("size", "fits"), [(SMALL, True), (SMALL + 1, True), (80_000, True), (80_001, False)])
async def test_message_may_be_as_large_as_the_bound_and_counts_from_the_first_byte_beyond_a_small_one(
    size: int, fits: bool
) -> None:
    server = await open_server(node=lambda _: None)
    server.gateway.context.max_bytes = 80_000
    client = await server.open()
    await client.deliver(json.dumps(call(1)).ljust(size))
    assert server.gateway.budget.held == (size if size > SMALL and fits else 0)
    reasons = [each["error"]["data"]["reason"] for each in client.received()]
    assert reasons == ([] if fits else ["body_too_large"])
    server.endpoint._stop_now()
    await run_pending(40)
    assert server.gateway.budget.held == 0


async def test_notification_is_counted_once_and_not_after_the_end(server: SocketServer) -> None:
    client = await server.open()
    await client.deliver(call(1, "eth_subscribe", "newHeads"))
    (subscriber,) = server.stream.subscribers
    server.stream.notify(1)
    await client.leave()
    subscriber.gone = False
    subscriber.notify(b"2")
    await run_pending()
    assert server.gateway.counted(metrics.WS_NOTIFICATIONS, "eth", "mainnet") == 1
