"""Pending transactions (eth): heard from one upstream's WebSocket while somebody listens, as well as can be.

They exist on the nodes that have heard of them, so there is nothing to fill a gap from. When the upstream dies the
next one is listened to; a transaction that was told a moment ago is not told again. Hashes and whole transactions
are heard apart: an upstream that does not tell the one must not take the other away.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Protocol

import msgspec
from msgspec import Raw, Struct

from tollgate import log
from tollgate.core.shapes import ABSENT
from tollgate.errors import MethodNotAllowed
from tollgate.gateway.feeds.subscribers import Subscriber
from tollgate.gateway.upstream.listener import SILENCE_SECONDS, Connect, open_socket
from tollgate.settings.model import UpstreamSettings

# Transactions that are remembered as told.
_MAX_TOLD = 8_192
# For an upstream to answer whether it tells them.
ANSWER_SECONDS = 10.0
_SOONEST, _LATEST = 0.2, 10.0
_ID = 1
_log = log.get("feed")


class _Params(Struct):
    subscription: str
    result: Raw


class _Message(Struct):
    id: int | None = None
    result: Raw = ABSENT
    params: _Params | None = None


class _Hash(Struct):
    hash: str


_message = msgspec.json.Decoder(_Message).decode
_text = msgspec.json.Decoder(str).decode
_hash = msgspec.json.Decoder(_Hash).decode
_json = msgspec.json.Encoder().encode


class Heard(Struct, frozen=True):
    """A pending transaction: its hash as JSON, or all of it."""

    result: bytes
    full: bool


class Silence(Exception):
    """Nothing was heard for long. Some servers forget a subscription and keep the connection."""


Listen = Callable[[UpstreamSettings, bool], AsyncGenerator[Heard, None]]
"""Listens to an upstream's pending transactions, hashes (False) or whole ones (True), until it fails."""


async def listen(
    upstream: UpstreamSettings,
    full: bool,
    connect: Connect = open_socket,
    *,
    answer_seconds: float = ANSWER_SECONDS,
    silence_seconds: float = SILENCE_SECONDS,
) -> AsyncGenerator[Heard, None]:
    """Listen by the upstream's WebSocket."""
    params = ["newPendingTransactions", True] if full else ["newPendingTransactions"]
    async with connect(upstream) as socket:
        await socket.send(
            _json({"jsonrpc": "2.0", "id": _ID, "method": "eth_subscribe", "params": params}).decode()
        )
        subscription: str | None = None
        while True:
            try:
                async with asyncio.timeout(answer_seconds if subscription is None else silence_seconds):
                    said = _message(await socket.recv())
            except TimeoutError:
                if subscription is None:
                    raise
                raise Silence from None
            if said.params is not None:
                if said.params.subscription == subscription:
                    yield Heard(bytes(said.params.result), full)
            elif said.id == _ID:
                if said.result is ABSENT:
                    raise ConnectionError("it does not offer pending transactions")
                subscription = _text(said.result)


class Upstreams(Protocol):
    """The upstreams of a network as they are set now."""

    def __call__(self) -> Sequence[UpstreamSettings]:
        """Return them, the one to prefer first."""
        ...


class PendingTransactions:
    """The pending transactions of one network."""

    def __init__(
        self,
        path: str,
        upstreams: Upstreams,
        hear: Listen = listen,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._path = path
        self._upstreams = upstreams
        self._hear = hear
        self._sleep = sleep
        self._listeners: dict[bool, dict[Subscriber, None]] = {False: {}, True: {}}
        """Those who want hashes, and those who want whole transactions."""
        self._tasks: dict[bool, asyncio.Task[None]] = {}
        self._told: OrderedDict[tuple[str, bool], None] = OrderedDict()

    def join(self, listener: Subscriber) -> None:
        """Let somebody listen; refuse where no upstream can be listened to."""
        if not self._spoken():
            raise MethodNotAllowed(
                f"Pending transactions are not available on {self._path}: the operator must set a ws_url."
            )
        full = listener.subscription.full
        self._listeners[full][listener] = None
        if full not in self._tasks:
            self._tasks[full] = asyncio.create_task(self._run(full))

    def leave(self, listener: Subscriber) -> None:
        """Let somebody go."""
        full = listener.subscription.full
        listeners = self._listeners[full]
        if listener in listeners:
            del listeners[listener]
            if not listeners:
                self._stop(full)

    def close(self) -> None:
        """End, whoever listens."""
        for full, listeners in self._listeners.items():
            listeners.clear()
            self._stop(full)

    def _stop(self, full: bool) -> None:
        task = self._tasks.pop(full, None)
        if task is not None:
            task.cancel()
        if not self._tasks:
            self._told.clear()

    def _spoken(self) -> list[UpstreamSettings]:
        return [upstream for upstream in self._upstreams() if upstream.ws_url]

    async def _run(self, full: bool) -> None:
        delay, turn = _SOONEST, 0
        while True:
            upstreams = self._spoken()
            if not upstreams:
                self._give_up(full)
                return
            if await self._listen(upstreams[turn % len(upstreams)], full):
                delay = _SOONEST
            turn += 1
            await self._sleep(delay)
            delay = min(2 * delay, _LATEST)

    async def _listen(self, upstream: UpstreamSettings, full: bool) -> bool:
        """Listen to one upstream until it fails or is taken away; return whether there was anything to hear."""
        was_heard = False
        try:
            async with aclosing(self._hear(upstream, full)) as heard:
                async for transaction in heard:
                    was_heard = True
                    self._tell(transaction)
                    if not self._is_set(upstream):
                        break
        except Silence:
            pass
        except Exception as error:  # noqa: BLE001 - the border of a background job: listeners must not be forgotten
            # Not its words: they may have the address in them, and that a key.
            _log.warning(
                "the subscription to pending transactions failed",
                network=self._path,
                upstream=upstream.name,
                why=type(error).__name__,
            )
        return was_heard

    def _is_set(self, upstream: UpstreamSettings) -> bool:
        """Whether it may still be listened to: a reload may have changed or removed it."""
        return any((each.name, each.ws_url) == (upstream.name, upstream.ws_url) for each in self._upstreams())

    def _give_up(self, full: bool) -> None:
        for listener in list(self._listeners[full]):
            listener.lose(
                "Pending transactions are no longer available here: no upstream has a ws_url. Try again later."
            )
            self.leave(listener)

    def _tell(self, heard: Heard) -> None:
        try:
            name = _hash(heard.result).hash if heard.full else _text(heard.result)
        except (msgspec.DecodeError, RecursionError):
            return
        key = (name, heard.full)
        if key in self._told:
            return
        self._told[key] = None
        if len(self._told) > _MAX_TOLD:
            self._told.popitem(last=False)
        for listener in list(self._listeners[heard.full]):
            listener.tell(heard.result)
