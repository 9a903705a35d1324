"""Pending transactions: heard from one upstream, moved to another when it dies, told once."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

import pytest
from tests.gateway.fakes import Clock, turns
from tests.gateway.feeds.forks import Ear, Pace

from tollgate.chains.subscriptions import Subscription, Topic
from tollgate.errors import MethodNotAllowed
from tollgate.gateway.feeds.pending import Heard, PendingTransactions, Silence, listen
from tollgate.gateway.feeds.subscribers import Subscriber
from tollgate.settings.model import UpstreamSettings


def upstream(name: str, ws_url: str = "ws://node") -> UpstreamSettings:
    return UpstreamSettings(name=name, url="http://node", ws_url=ws_url)


class Radio:
    """Upstreams that say what the script says, and die when it says so."""

    def __init__(self) -> None:
        self.upstreams = [upstream("silent", ""), upstream("one"), upstream("two")]
        self.heard: list[tuple[str, bool]] = []
        self.says: dict[bool, asyncio.Queue[Heard | Exception]] = {False: asyncio.Queue(), True: asyncio.Queue()}
        self.pace = Pace(Clock())
        self.pending = PendingTransactions("eth/mainnet", lambda: self.upstreams, self.listen, self.pace.sleep)

    async def listen(self, upstream: UpstreamSettings, full: bool) -> AsyncGenerator[Heard, None]:
        self.heard.append((upstream.name, full))
        while True:
            said = await self.says[full].get()
            if isinstance(said, Exception):
                raise said
            yield said

    async def say(self, *said: Heard | Exception, full: bool = False) -> None:
        for each in said:
            self.says[each.full if isinstance(each, Heard) else full].put_nowait(each)
        await turns()

    async def join(self, *, full: bool = False) -> tuple[Subscriber, Ear]:
        ear = Ear()
        listener = Subscriber(Subscription(Topic.PENDING, full=full), "0x1", "eth", ear)
        self.pending.join(listener)
        listener.open()
        await turns()
        return listener, ear


def named(name: str) -> Heard:
    return Heard(json.dumps(name).encode(), full=False)


def whole(name: str) -> Heard:
    return Heard(json.dumps({"hash": name, "nonce": "0x1"}).encode(), full=True)


@pytest.fixture
async def radio() -> AsyncIterator[Radio]:
    opened = Radio()
    yield opened
    opened.pending.close()
    await turns()


async def test_all_who_listen_are_told_from_one_upstream(radio: Radio) -> None:
    _, first = await radio.join()
    _, second = await radio.join()
    await radio.say(named("0xa"), named("0xb"))
    assert first.results() == second.results() == ["0xa", "0xb"]
    assert radio.heard == [("one", False)]


async def test_next_upstream_is_heard_when_one_dies_and_nothing_is_told_twice(radio: Radio) -> None:
    _, ear = await radio.join()
    await radio.say(named("0xa"), ConnectionResetError())
    await radio.pace.turn(12)
    await radio.say(named("0xa"), named("0xb"))
    assert ear.results() == ["0xa", "0xb"]
    assert [name for name, _ in radio.heard] == ["one", "two"]


async def test_upstreams_that_all_fail_are_tried_with_longer_and_longer_pauses(radio: Radio) -> None:
    await radio.join()
    for _ in range(8):
        await radio.say(ConnectionRefusedError())
        await radio.pace.turn(12)
    assert radio.pace.asked[:3] == [0.2, 0.4, 0.8]
    assert max(radio.pace.asked) == 10.0
    assert [name for name, _ in radio.heard][:4] == ["one", "two", "one", "two"]


async def test_whole_transactions_are_told_to_those_who_want_them(radio: Radio) -> None:
    _, hashes = await radio.join()
    listener, details = await radio.join(full=True)
    assert radio.heard == [("one", False), ("one", True)]
    await radio.say(named("0xa"), whole("0xa"), Heard(b"17", full=True))
    assert hashes.results() == ["0xa"]
    assert details.results() == [{"hash": "0xa", "nonce": "0x1"}]
    radio.pending.leave(listener)
    await radio.say(whole("0xb"), named("0xb"))
    assert len(details.heard) == 1
    assert hashes.results() == ["0xa", "0xb"]
    assert radio.heard == [("one", False), ("one", True)]


async def test_upstreams_that_tell_no_whole_transactions_still_tell_hashes(radio: Radio) -> None:
    _, hashes = await radio.join()
    await radio.join(full=True)
    for _ in range(3):
        await radio.say(ConnectionError(), full=True)
        await radio.pace.turn(12)
    await radio.say(named("0xa"))
    assert hashes.results() == ["0xa"]
    assert [name for name, full in radio.heard if not full] == ["one"]


@pytest.mark.parametrize("failure", [RecursionError(), ValueError(), Silence()])
async def test_whatever_an_upstream_fails_with_the_next_one_is_heard(failure: Exception, radio: Radio) -> None:
    _, ear = await radio.join()
    await radio.say(failure)
    await radio.pace.turn(12)
    await radio.say(named("0xa"))
    assert ear.results() == ["0xa"]
    assert [name for name, _ in radio.heard] == ["one", "two"]


async def test_nonsense_is_passed_over(radio: Radio) -> None:
    _, ear = await radio.join(full=True)
    deep = b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    await radio.say(Heard(deep, full=True), Heard(b"17", full=True), whole("0xa"))
    assert [each["hash"] for each in ear.results()] == ["0xa"]


async def test_upstream_that_a_reload_has_removed_is_not_listened_to_any_more(radio: Radio) -> None:
    _, ear = await radio.join()
    radio.upstreams = radio.upstreams[2:]
    await radio.say(named("0xa"))
    await radio.pace.turn(12)
    await radio.say(named("0xb"))
    assert ear.results() == ["0xa", "0xb"]
    assert [name for name, _ in radio.heard] == ["one", "two"]


async def test_listeners_are_told_when_no_upstream_is_left(radio: Radio) -> None:
    before = asyncio.all_tasks()
    _, ear = await radio.join()
    radio.upstreams = radio.upstreams[:1]
    await radio.say(ConnectionResetError())
    await radio.pace.turn(12)
    (why,) = ear.lost
    assert "ws_url" in why
    assert len(why.encode()) <= 123
    assert asyncio.all_tasks() == before


async def test_nobody_is_heard_when_nobody_listens(radio: Radio) -> None:
    before = asyncio.all_tasks()
    listener, ear = await radio.join()
    radio.pending.leave(listener)
    await radio.say(named("0xa"))
    assert ear.heard == []
    assert asyncio.all_tasks() == before


async def test_without_an_address_for_websockets_it_is_refused_with_what_to_set(radio: Radio) -> None:
    radio.upstreams = [upstream("silent", "")]
    with pytest.raises(MethodNotAllowed, match="ws_url"):
        await radio.join()


# --- One upstream ------------------------------------------------------------------------------------------

SUBSCRIBED = {"jsonrpc": "2.0", "id": 1, "result": "0x5"}


def notification(result: object, subscription: str = "0x5") -> dict[str, Any]:
    return {
        "jsonrpc": "2.0",
        "method": "eth_subscription",
        "params": {"subscription": subscription, "result": result},
    }


class Line:
    """A connection that says what the script says, and then nothing."""

    def __init__(self, *messages: object) -> None:
        self.messages = list(messages)
        self.sent: list[Any] = []
        self.heard: list[tuple[bytes, bool]] = []

    async def send(self, message: str) -> None:
        self.sent.append(json.loads(message))

    async def recv(self) -> str | bytes:
        if not self.messages:
            await asyncio.Event().wait()
        return json.dumps(self.messages.pop(0))

    @asynccontextmanager
    async def connect(self, _: UpstreamSettings) -> AsyncIterator[Self]:
        yield self


async def hear(line: Line, *, full: bool = False) -> None:
    """Listen until it fails; nobody waits for what does not come."""
    async for each in listen(upstream("one"), full, line.connect, answer_seconds=0.0, silence_seconds=0.0):
        line.heard += [(each.result, each.full)]


@pytest.mark.parametrize(("full", "params"), [(False, []), (True, [True])])
async def test_what_belongs_to_the_subscription_is_heard_until_there_is_silence(
    full: bool, params: list[object]
) -> None:
    line = Line(SUBSCRIBED, notification("0xa"), notification("0xb", "0x6"), notification("0xc"))
    with pytest.raises(Silence):
        await hear(line, full=full)
    assert line.heard == [(b'"0xa"', full), (b'"0xc"', full)]
    assert [each["params"] for each in line.sent] == [["newPendingTransactions", *params]]


async def test_upstream_that_does_not_answer_is_not_waited_for() -> None:
    with pytest.raises(TimeoutError):
        await hear(Line(notification("0xa")))


async def test_upstream_that_does_not_tell_is_left() -> None:
    with pytest.raises(ConnectionError):
        await hear(Line({"jsonrpc": "2.0", "id": 1, "error": {"code": -32601}}))
