"""Pending transactions: received from one upstream, moved to another when it dies, reported once."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

import pytest
from tests.gateway.fakes import Clock, run_pending
from tests.gateway.feeds.scripted_chain import Pace, RecordingSink

from tollgate.chains.subscriptions import Subscription, Topic
from tollgate.errors import MethodNotAllowed
from tollgate.gateway.feeds import pending as pending_module
from tollgate.gateway.feeds.pending import PendingTransaction, PendingTransactions, Silence, listen
from tollgate.gateway.feeds.subscribers import Subscriber
from tollgate.settings.model import UpstreamSettings


def upstream(name: str, ws_url: str = "ws://node") -> UpstreamSettings:
    return UpstreamSettings(name=name, url="http://node", ws_url=ws_url)


class PendingNodes:
    """Upstreams that send what the script has, and fail where it has a failure."""

    def __init__(self) -> None:
        self.upstreams = [upstream("silent", ""), upstream("one"), upstream("two")]
        self.received: list[tuple[str, bool]] = []
        self.queues: dict[bool, asyncio.Queue[PendingTransaction | Exception]] = {
            False: asyncio.Queue(),
            True: asyncio.Queue(),
        }
        self.pace = Pace(Clock())
        self.pending = PendingTransactions("eth/mainnet", lambda: self.upstreams, self.listen, self.pace.sleep)

    async def listen(self, upstream: UpstreamSettings, full: bool) -> AsyncGenerator[PendingTransaction, None]:
        self.received.append((upstream.name, full))
        while True:
            items = await self.queues[full].get()
            if isinstance(items, Exception):
                raise items
            yield items

    async def publish(self, *items: PendingTransaction | Exception, full: bool = False) -> None:
        for each in items:
            self.queues[each.full if isinstance(each, PendingTransaction) else full].put_nowait(each)
        await run_pending()

    async def join(self, *, full: bool = False) -> tuple[Subscriber, RecordingSink]:
        sink = RecordingSink()
        subscriber = Subscriber(Subscription(Topic.PENDING, full=full), "0x1", "eth", sink)
        self.pending.join(subscriber)
        subscriber.open()
        await run_pending()
        return subscriber, sink


def named(name: str) -> PendingTransaction:
    return PendingTransaction(json.dumps(name).encode(), full=False)


def whole(name: str) -> PendingTransaction:
    return PendingTransaction(json.dumps({"hash": name, "nonce": "0x1"}).encode(), full=True)


@pytest.fixture
async def nodes() -> AsyncIterator[PendingNodes]:
    opened = PendingNodes()
    yield opened
    opened.pending.close()
    await run_pending()


async def test_all_who_listen_are_served_from_one_upstream(nodes: PendingNodes) -> None:
    _, first = await nodes.join()
    _, second = await nodes.join()
    await nodes.publish(named("0xa"), named("0xb"))
    assert first.results() == second.results() == ["0xa", "0xb"]
    assert nodes.received == [("one", False)]


async def test_next_upstream_is_followed_when_one_dies_and_nothing_is_reported_twice(nodes: PendingNodes) -> None:
    _, sink = await nodes.join()
    await nodes.publish(named("0xa"), ConnectionResetError())
    await nodes.pace.turn(12)
    await nodes.publish(named("0xa"), named("0xb"))
    assert sink.results() == ["0xa", "0xb"]
    assert [name for name, _ in nodes.received] == ["one", "two"]


async def test_upstreams_that_all_fail_are_tried_with_longer_and_longer_pauses(nodes: PendingNodes) -> None:
    nodes.upstreams.append(upstream("three"))
    await nodes.join()
    for _ in range(8):
        await nodes.publish(ConnectionRefusedError())
        await nodes.pace.turn(12)
    assert nodes.pace.pauses[:3] == [0.2, 0.4, 0.8]
    assert max(nodes.pace.pauses) == 10.0
    assert [name for name, _ in nodes.received][:4] == ["one", "two", "three", "one"]
    await nodes.publish(named("0xa"), ConnectionResetError())
    assert nodes.pace.pauses[-1] == 0.2, "one that has sent something is missed but a moment"


async def test_whole_transactions_are_reported_to_those_who_want_them(nodes: PendingNodes) -> None:
    _, hashes = await nodes.join()
    subscriber, details = await nodes.join(full=True)
    assert nodes.received == [("one", False), ("one", True)]
    await nodes.publish(named("0xa"), whole("0xa"), PendingTransaction(b"17", full=True))
    assert hashes.results() == ["0xa"]
    assert details.results() == [{"hash": "0xa", "nonce": "0x1"}]
    nodes.pending.leave(subscriber)
    await nodes.publish(whole("0xb"), named("0xb"))
    assert len(details.received) == 1
    assert hashes.results() == ["0xa", "0xb"]
    assert nodes.received == [("one", False), ("one", True)]


async def test_upstreams_that_send_no_whole_transactions_still_send_hashes(nodes: PendingNodes) -> None:
    _, hashes = await nodes.join()
    await nodes.join(full=True)
    for _ in range(3):
        await nodes.publish(ConnectionError(), full=True)
        await nodes.pace.turn(12)
    await nodes.publish(named("0xa"))
    assert hashes.results() == ["0xa"]
    assert [name for name, full in nodes.received if not full] == ["one"]


@pytest.mark.parametrize("failure", [RecursionError(), ValueError(), Silence()])
async def test_whatever_an_upstream_fails_with_the_next_one_is_followed(
    failure: Exception, nodes: PendingNodes
) -> None:
    _, sink = await nodes.join()
    await nodes.publish(failure)
    await nodes.pace.turn(12)
    await nodes.publish(named("0xa"))
    assert sink.results() == ["0xa"]
    assert [name for name, _ in nodes.received] == ["one", "two"]


async def test_nonsense_is_passed_over(nodes: PendingNodes) -> None:
    _, sink = await nodes.join(full=True)
    deep = b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    await nodes.publish(PendingTransaction(deep, full=True), PendingTransaction(b"17", full=True), whole("0xa"))
    assert [each["hash"] for each in sink.results()] == ["0xa"]


async def test_upstream_that_a_reload_has_removed_is_not_listened_to_any_more(nodes: PendingNodes) -> None:
    _, sink = await nodes.join()
    nodes.upstreams = nodes.upstreams[2:]
    await nodes.publish(named("0xa"))
    await nodes.pace.turn(12)
    await nodes.publish(named("0xb"))
    assert sink.results() == ["0xa", "0xb"]
    assert [name for name, _ in nodes.received] == ["one", "two"]


async def test_listeners_are_informed_when_no_upstream_is_left(nodes: PendingNodes) -> None:
    before = asyncio.all_tasks()
    _, sink = await nodes.join()
    nodes.upstreams = nodes.upstreams[:1]
    await nodes.publish(ConnectionResetError())
    await nodes.pace.turn(12)
    (why,) = sink.lost
    assert "ws_url" in why
    assert len(why.encode()) <= 123
    assert asyncio.all_tasks() == before
    nodes.upstreams.append(upstream("new"))
    _, sink = await nodes.join()
    await nodes.publish(named("0xa"))
    assert sink.results() == ["0xa"]


async def test_no_upstream_is_followed_without_subscribers(nodes: PendingNodes) -> None:
    before = asyncio.all_tasks()
    subscriber, sink = await nodes.join()
    nodes.pending.leave(subscriber)
    await nodes.publish(named("0xa"))
    assert sink.received == []
    assert asyncio.all_tasks() == before
    await nodes.join()
    await nodes.join(full=True)
    nodes.pending.close()
    await run_pending()
    assert asyncio.all_tasks() == before


async def test_sent_transactions_are_remembered_while_there_are_subscribers(
    nodes: PendingNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_module, "_MAX_SENT", 2)
    details, _ = await nodes.join(full=True)
    subscriber, sink = await nodes.join()
    await nodes.publish(*map(named, ("0xa", "0xb", "0xa", "0xb")))
    nodes.pending.leave(details)
    await nodes.publish(*map(named, ("0xb", "0xc", "0xb", "0xc", "0xa")))
    assert sink.results() == ["0xa", "0xb", "0xc", "0xa"], "the oldest is forgotten for a third one"
    nodes.pending.leave(subscriber)
    _, sink = await nodes.join()
    await nodes.publish(named("0xa"))
    assert sink.results() == ["0xa"], "who comes later has seen nothing"


async def test_without_an_address_for_websockets_it_is_refused_with_what_to_set(nodes: PendingNodes) -> None:
    nodes.upstreams = [upstream("silent", "")]
    with pytest.raises(MethodNotAllowed, match="ws_url"):
        await nodes.join()


# --- One upstream ------------------------------------------------------------------------------------------

SUBSCRIBED = {"jsonrpc": "2.0", "id": 1, "result": "0x5"}


def notification(result: object, subscription: str = "0x5") -> dict[str, Any]:
    return {
        "jsonrpc": "2.0",
        "method": "eth_subscription",
        "params": {"subscription": subscription, "result": result},
    }


class FakeSocket:
    """A connection that follows the script, and then nothing."""

    def __init__(self, *messages: object) -> None:
        self.messages = list(messages)
        self.sent: list[Any] = []
        self.received: list[tuple[bytes, bool]] = []

    async def send(self, message: str) -> None:
        self.sent.append(json.loads(message))

    async def recv(self) -> str | bytes:
        if not self.messages:
            await run_pending()
            raise ConnectionResetError("it was waited for")
        return json.dumps(self.messages.pop(0))

    @asynccontextmanager
    async def connect(self, _: UpstreamSettings) -> AsyncIterator[Self]:
        yield self


async def listen_until_failure(
    socket: FakeSocket, answer_seconds: float, silence_seconds: float, full: bool
) -> None:
    """Listen until it fails."""
    async for each in listen(
        upstream("one"), full, socket.connect, answer_seconds=answer_seconds, silence_seconds=silence_seconds
    ):
        socket.received += [(each.result, each.full)]


@pytest.mark.parametrize(("full", "params"), [(False, []), (True, [True])])
async def test_what_belongs_to_the_subscription_is_received_until_there_is_silence(
    full: bool, params: list[object]
) -> None:
    socket = FakeSocket(SUBSCRIBED, notification("0xa"), notification("0xb", "0x6"), notification("0xc"))
    with pytest.raises(Silence):
        await listen_until_failure(socket, 60.0, 0.0, full)
    assert socket.received == [(b'"0xa"', full), (b'"0xc"', full)]
    assert [each["params"] for each in socket.sent] == [["newPendingTransactions", *params]]


async def test_upstream_that_does_not_answer_is_not_waited_for() -> None:
    with pytest.raises(TimeoutError):
        await listen_until_failure(FakeSocket(notification("0xa")), 0.0, 60.0, full=False)


async def test_upstream_that_does_not_notify_is_left() -> None:
    with pytest.raises(ConnectionError):
        await listen_until_failure(
            FakeSocket({"jsonrpc": "2.0", "id": 1, "error": {"code": -32601}}), 0.0, 0.0, full=False
        )
