"""Pending transactions: heard from one upstream, moved to another when it dies, told once."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

import pytest
from tests.gateway.fakes import Clock, turns
from tests.gateway.feeds.forks import Ear, Pace

from tollgate.chains.subscriptions import Subscription, Topic
from tollgate.config import Upstream
from tollgate.errors import MethodNotAllowed
from tollgate.gateway.feeds.audience import Listener
from tollgate.gateway.feeds.pending import Heard, Pending


def upstream(name: str, ws_url: str = "ws://node") -> Upstream:
    return Upstream(name=name, url="http://node", ws_url=ws_url)


class Radio:
    """Upstreams that say what the script says, and die when it says so."""

    def __init__(self) -> None:
        self.upstreams = [upstream("silent", ""), upstream("one"), upstream("two")]
        self.heard: list[tuple[str, frozenset[bool]]] = []
        self.says: asyncio.Queue[Heard | Exception] = asyncio.Queue()
        self.pace = Pace(Clock())
        self.pending = Pending("eth/mainnet", lambda: self.upstreams, self.listen, self.pace.sleep)

    async def listen(self, upstream: Upstream, forms: frozenset[bool]) -> AsyncGenerator[Heard, None]:
        self.heard.append((upstream.name, forms))
        while True:
            said = await self.says.get()
            if isinstance(said, Exception):
                raise said
            yield said

    async def say(self, *said: Heard | Exception) -> None:
        for each in said:
            self.says.put_nowait(each)
        await turns()

    async def join(self, *, full: bool = False) -> tuple[Listener, Ear]:
        ear = Ear()
        listener = Listener(Subscription(Topic.PENDING, full=full), "0x1", "eth", ear)
        self.pending.join(listener)
        listener.open()
        await turns()
        return listener, ear


def named(name: str) -> Heard:
    return Heard(json.dumps(name).encode(), full=False)


def whole(name: str) -> Heard:
    return Heard(json.dumps({"hash": name, "nonce": "0x1"}).encode(), full=True)


def run(test: Callable[[Radio], Coroutine[Any, Any, None]]) -> None:
    async def inside() -> None:
        radio = Radio()
        await test(radio)
        radio.pending.close()
        await turns()

    asyncio.run(inside())


def test_all_who_listen_are_told_from_one_upstream() -> None:
    async def test(radio: Radio) -> None:
        _, first = await radio.join()
        _, second = await radio.join()
        await radio.say(named("0xa"), named("0xb"))
        assert first.results() == second.results() == ["0xa", "0xb"]
        assert radio.heard == [("one", frozenset({False}))]

    run(test)


def test_next_upstream_is_heard_when_one_dies_and_nothing_is_told_twice() -> None:
    async def test(radio: Radio) -> None:
        _, ear = await radio.join()
        await radio.say(named("0xa"), ConnectionResetError())
        await radio.pace.turn(12)
        await radio.say(named("0xa"), named("0xb"))
        assert ear.results() == ["0xa", "0xb"]
        assert [name for name, _ in radio.heard] == ["one", "two"]

    run(test)


def test_upstreams_that_all_fail_are_tried_with_longer_and_longer_pauses() -> None:
    async def test(radio: Radio) -> None:
        await radio.join()
        for _ in range(8):
            await radio.say(ConnectionRefusedError())
            await radio.pace.turn(12)
        assert radio.pace.asked[:3] == [0.2, 0.4, 0.8]
        assert max(radio.pace.asked) == 10.0
        assert [name for name, _ in radio.heard][:4] == ["one", "two", "one", "two"]

    run(test)


def test_whole_transactions_are_told_to_those_who_want_them() -> None:
    async def test(radio: Radio) -> None:
        _, hashes = await radio.join()
        listener, details = await radio.join(full=True)
        assert radio.heard[-1] == ("one", frozenset({False, True}))
        await radio.say(named("0xa"), whole("0xa"), Heard(b"17", full=True))
        assert hashes.results() == ["0xa"]
        assert details.results() == [{"hash": "0xa", "nonce": "0x1"}]
        radio.pending.leave(listener)
        await turns()
        assert radio.heard[-1] == ("one", frozenset({False}))

    run(test)


def test_nobody_is_heard_when_nobody_listens() -> None:
    async def test(radio: Radio) -> None:
        listener, ear = await radio.join()
        radio.pending.leave(listener)
        await radio.say(named("0xa"))
        assert ear.heard == []
        assert len([task for task in asyncio.all_tasks() if not task.done()]) == 1

    run(test)


def test_without_an_address_for_websockets_it_is_refused_with_what_to_set() -> None:
    async def test(radio: Radio) -> None:
        radio.upstreams = [upstream("silent", "")]
        with pytest.raises(MethodNotAllowed, match="ws_url"):
            await radio.join()

    run(test)
