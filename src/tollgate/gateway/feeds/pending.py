"""Pending transactions (eth): received from one upstream's WebSocket while there are subscribers; best effort.

They exist on the nodes that have received them, so there is nothing to fill a gap from. When the upstream fails,
the next one is used; a transaction that was sent a moment ago is not sent again. Hashes and whole transactions
have subscriptions of their own: an upstream that does not offer the one must not end the other.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing

import msgspec
from msgspec import Raw, Struct

from tollgate import log
from tollgate.core.shapes import ABSENT
from tollgate.errors import MethodNotAllowed
from tollgate.gateway.feeds.subscribers import Subscriber
from tollgate.gateway.upstream.listener import SILENCE_SECONDS, Connect, open_socket
from tollgate.settings.model import UpstreamSettings

# Transactions that are remembered as sent.
_MAX_SENT = 8_192
# For an upstream to answer the subscription.
ANSWER_SECONDS = 10.0
_SOONEST, _LATEST = 0.2, 10.0
_ID = 1
_log = log.get("feed")


class _Params(Struct):
    subscription: str
    result: Raw


class _PendingMessage(Struct):
    id: int | None = None
    result: Raw = ABSENT
    params: _Params | None = None


class _Hash(Struct):
    hash: str


_message = msgspec.json.Decoder(_PendingMessage).decode
_text = msgspec.json.Decoder(str).decode
_hash = msgspec.json.Decoder(_Hash).decode
_json = msgspec.json.Encoder().encode


class PendingTransaction(Struct, frozen=True):
    """A pending transaction: its hash as JSON, or all of it."""

    result: bytes
    full: bool


class Silence(Exception):
    """Nothing was received for long. Some servers forget a subscription and keep the connection."""


Listen = Callable[[UpstreamSettings, bool], AsyncGenerator[PendingTransaction, None]]
"""Listens to an upstream's pending transactions, hashes (False) or whole ones (True), until it fails."""


async def listen(
    upstream: UpstreamSettings,
    full: bool,
    connect: Connect = open_socket,
    *,
    answer_seconds: float = ANSWER_SECONDS,
    silence_seconds: float = SILENCE_SECONDS,
) -> AsyncGenerator[PendingTransaction, None]:
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
                    message = _message(await socket.recv())
            except TimeoutError:
                if subscription is None:
                    raise
                raise Silence from None
            if message.params is not None:
                if message.params.subscription == subscription:
                    yield PendingTransaction(bytes(message.params.result), full)
            elif message.id == _ID:
                if message.result is ABSENT:
                    raise ConnectionError("it does not offer pending transactions")
                subscription = _text(message.result)


Upstreams = Callable[[], Sequence[UpstreamSettings]]
"""The upstreams of a network as they are set now, the one to prefer first."""


class PendingTransactions:
    """The pending transactions of one network."""

    def __init__(
        self,
        path: str,
        upstreams: Upstreams,
        source: Listen = listen,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._path = path
        self._upstreams = upstreams
        self._source = source
        self._sleep = sleep
        self._subscribers: dict[bool, dict[Subscriber, None]] = {False: {}, True: {}}
        """Those of hashes, and those of whole transactions."""
        self._tasks: dict[bool, asyncio.Task[None]] = {}
        self._sent: OrderedDict[tuple[str, bool], None] = OrderedDict()

    def join(self, subscriber: Subscriber) -> None:
        """Add a subscriber; refuse where no upstream has a WebSocket."""
        if not self._with_websocket():
            raise MethodNotAllowed(
                f"Pending transactions are not available on {self._path}: the operator must set a ws_url."
            )
        full = subscriber.subscription.full
        self._subscribers[full][subscriber] = None
        if full not in self._tasks:
            self._tasks[full] = asyncio.create_task(self._run(full))

    def leave(self, subscriber: Subscriber) -> None:
        full = subscriber.subscription.full
        subscribers = self._subscribers[full]
        if subscriber in subscribers:
            del subscribers[subscriber]
            if not subscribers:
                self._stop(full)

    def close(self) -> None:
        for full in self._subscribers:
            self._stop(full)

    def _stop(self, full: bool) -> None:
        task = self._tasks.pop(full, None)
        if task is not None:
            task.cancel()
        if not self._tasks:
            self._sent.clear()

    def _with_websocket(self) -> list[UpstreamSettings]:
        return [upstream for upstream in self._upstreams() if upstream.ws_url]

    async def _run(self, full: bool) -> None:
        delay, turn = _SOONEST, 0
        while True:
            upstreams = self._with_websocket()
            if not upstreams:
                self._give_up(full)
                return
            if await self._listen(upstreams[turn % len(upstreams)], full):
                delay = _SOONEST
            turn += 1
            await self._sleep(delay)
            delay = min(2 * delay, _LATEST)

    async def _listen(self, upstream: UpstreamSettings, full: bool) -> bool:
        """Listen to one upstream until it fails or is taken away; return whether anything was received."""
        received = False
        try:
            async with aclosing(self._source(upstream, full)) as transactions:
                async for transaction in transactions:
                    received = True
                    self._notify(transaction)
                    if not self._is_set(upstream):
                        break
        except Silence:
            pass
        except Exception as error:  # noqa: BLE001 - the border of a background job: subscribers must not be lost
            # Not its message, which may hold the address, and that a key.
            _log.warning(
                "the subscription to pending transactions failed",
                network=self._path,
                upstream=upstream.name,
                why=type(error).__name__,
            )
        return received

    def _is_set(self, upstream: UpstreamSettings) -> bool:
        """Whether it may still be listened to: a reload may have changed or removed it."""
        return any((each.name, each.ws_url) == (upstream.name, upstream.ws_url) for each in self._upstreams())

    def _give_up(self, full: bool) -> None:
        for subscriber in list(self._subscribers[full]):
            subscriber.lose(
                "Pending transactions are no longer available here: no upstream has a ws_url. Try again later."
            )
            self.leave(subscriber)

    def _notify(self, transaction: PendingTransaction) -> None:
        try:
            name = _hash(transaction.result).hash if transaction.full else _text(transaction.result)
        except (msgspec.DecodeError, RecursionError):
            return
        key = (name, transaction.full)
        if key in self._sent:
            return
        self._sent[key] = None
        if len(self._sent) > _MAX_SENT:
            self._sent.popitem(last=False)
        for subscriber in list(self._subscribers[transaction.full]):
            subscriber.notify(transaction.result)
