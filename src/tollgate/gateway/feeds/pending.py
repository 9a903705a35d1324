"""Pending transactions (eth): heard from one upstream's WebSocket while somebody listens, as well as can be.

They exist on the nodes that have heard of them, so there is nothing to fill a gap from. When the upstream dies the
next one is listened to; a transaction that was told a moment ago is not told again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Protocol

import msgspec
from msgspec import Raw, Struct
from websockets.exceptions import WebSocketException

from tollgate import log
from tollgate.config import Upstream
from tollgate.core.shapes import ABSENT
from tollgate.errors import MethodNotAllowed
from tollgate.gateway.feeds.audience import Listener
from tollgate.gateway.listener import open_socket

# Transactions that are remembered as told.
_MOST_TOLD = 8_192
_SOONEST, _LATEST = 0.2, 10.0
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


Listen = Callable[[Upstream, frozenset[bool]], AsyncGenerator[Heard, None]]
"""Listens to an upstream's pending transactions, hashes (False), whole ones (True) or both, until it fails."""


async def listen(upstream: Upstream, forms: frozenset[bool]) -> AsyncGenerator[Heard, None]:
    """Listen by the upstream's WebSocket."""
    async with open_socket(upstream) as socket:
        asked = dict(enumerate(sorted(forms), 1))
        for number, full in asked.items():
            params = ["newPendingTransactions", True] if full else ["newPendingTransactions"]
            await socket.send(
                _json({"jsonrpc": "2.0", "id": number, "method": "eth_subscribe", "params": params}).decode()
            )
        by_id: dict[str, bool] = {}
        while True:
            said = _message(await socket.recv())
            if said.id in asked and said.result is not ABSENT:
                by_id[_text(said.result)] = asked[said.id]
            elif said.params is not None and said.params.subscription in by_id:
                yield Heard(bytes(said.params.result), by_id[said.params.subscription])
            elif said.id in asked:
                raise ConnectionError("it does not tell pending transactions")


class Upstreams(Protocol):
    """The upstreams of a network as they are set now."""

    def __call__(self) -> Sequence[Upstream]:
        """Return them, the one to prefer first."""
        ...


class Pending:
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
        self._listeners: dict[Listener, None] = {}
        self._forms: frozenset[bool] = frozenset()
        self._told: OrderedDict[tuple[str, bool], None] = OrderedDict()
        self._task: asyncio.Task[None] | None = None

    def join(self, listener: Listener) -> None:
        """Let somebody listen; refuse where no upstream can be listened to."""
        if not self._spoken():
            raise MethodNotAllowed(
                f"Pending transactions are not told on {self._path}: its operator must set ws_url of an upstream."
            )
        self._listeners[listener] = None
        self._follow()

    def leave(self, listener: Listener) -> None:
        """Let somebody go."""
        if listener in self._listeners:
            del self._listeners[listener]
            self._follow()

    def close(self) -> None:
        """End, whoever listens."""
        self._listeners.clear()
        self._follow()

    def _spoken(self) -> list[Upstream]:
        return [upstream for upstream in self._upstreams() if upstream.ws_url]

    def _follow(self) -> None:
        """Listen to what is wanted now, and to nothing where nobody wants anything."""
        forms = frozenset(listener.subscription.full for listener in self._listeners)
        if forms == self._forms:
            return
        self._forms = forms
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if forms:
            self._task = asyncio.create_task(self._run(forms))
        else:
            self._told.clear()

    async def _run(self, forms: frozenset[bool]) -> None:
        delay = _SOONEST
        turn = 0
        while True:
            upstreams = self._spoken()
            if upstreams:
                upstream = upstreams[turn % len(upstreams)]
                try:
                    async with aclosing(self._hear(upstream, forms)) as heard:
                        async for transaction in heard:
                            delay = _SOONEST
                            self._tell(transaction)
                except (OSError, WebSocketException, msgspec.DecodeError, TimeoutError) as error:
                    # Not its words: they may have the address in them, and that a key.
                    _log.warning(
                        "pending transactions cannot be heard",
                        network=self._path,
                        upstream=upstream.name,
                        why=type(error).__name__,
                    )
                turn += 1
            await self._sleep(delay)
            delay = min(2 * delay, _LATEST)

    def _tell(self, heard: Heard) -> None:
        try:
            name = _hash(heard.result).hash if heard.full else _text(heard.result)
        except msgspec.DecodeError:
            return
        key = (name, heard.full)
        if key in self._told:
            return
        self._told[key] = None
        if len(self._told) > _MOST_TOLD:
            self._told.popitem(last=False)
        for listener in list(self._listeners):
            if listener.subscription.full == heard.full:
                listener.tell(heard.result)
