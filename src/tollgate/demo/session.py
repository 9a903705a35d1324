"""One WebSocket connection to the simulated node: calls in, answers and notifications out, in order.

Owns the subscriptions of the connection and the queue of what it is still to be sent, which is bounded: a client
that reads too slowly is cut. Knows ASGI, and nothing of frames. The clock comes in as an argument.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any

from tollgate.demo.chain_params import RpcError, bind
from tollgate.demo.control import INTERNAL_ERROR, Faults, HttpFault, Visit
from tollgate.demo.feed import Subscription
from tollgate.demo.framing import LARGEST_BODY, respond
from tollgate.demo.network import SimulatedNetwork

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

TOO_SLOW = 1013
TOO_LARGE = 1009
LIMIT_EXCEEDED = -32005

# Room for the events of the 1,024 blocks that a Starknet subscription may go back.
QUEUE_BYTES = 16 * 1024 * 1024
MAX_SUBSCRIPTIONS = 128
TICK_SECONDS = 0.02


class _Talk(Visit):
    """The calls of one message: subscriptions among them."""

    def __init__(self, session: Session, faults: Faults | None) -> None:
        super().__init__(session.network, faults)
        self.first: list[bytes] = []
        """What new subscriptions are told at once, to be sent after the answers."""
        self._session = session

    def answer(self, method: str, params: object, now: float) -> object:
        """Return the result of a call; there is no HTTP status to fail with."""
        try:
            return super().answer(method, params, now)
        except HttpFault as fault:
            raise RpcError(INTERNAL_ERROR, str(fault)) from None

    def answer_truly(self, method: str, params: object, now: float) -> object:
        """Return the result of a call, or make or end a subscription."""
        ways = self.network.subscribing
        if method == ways.unsubscribe:
            name = bind((ways.id_name,), 1, params)[ways.id_name]
            return self._session.unsubscribe(name)
        if (known := ways.methods.get(method)) is None:
            return super().answer_truly(method, params, now)
        args = bind(known.names, known.required, params, by_name=self.network.by_name)
        opened = known.answer(self.network.view(now), args)
        # The type of a method table's answers is open; a subscribing family's are subscriptions.
        name, first = self._session.subscribe(opened, now)  # type: ignore[arg-type]
        self.first += first
        return name


class Session:
    """One connection to one network."""

    def __init__(
        self,
        network: SimulatedNetwork,
        faults: Faults | None,
        now: Callable[[], float],
        *,
        queue_bytes: int = QUEUE_BYTES,
    ) -> None:
        self.network = network
        self._faults = faults
        self._now = now
        self._names: set[str] = set()
        self._room = queue_bytes
        self._queue: deque[bytes] = deque()
        self._kept: list[bytes] | None = None
        """Notifications that wait for an answer which must come before them."""
        self._queued = asyncio.Event()
        self._cut: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()

    async def run(self, receive: Receive, send: Send) -> None:
        """Talk until one side has had enough."""
        await receive()
        await send({"type": "websocket.accept"})
        tasks = [asyncio.ensure_future(work) for work in (self._listen(receive), self._speak(send), self._look())]
        try:
            ends: list[asyncio.Future[Any]] = [*tasks, self._cut]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if self._cut.done():
                code, reason = self._cut.result()
                with suppress(OSError):
                    await send({"type": "websocket.close", "code": code, "reason": reason})
        finally:
            for name in self._names:
                self.network.feed.close(name)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in tasks:
            error = None if task.cancelled() else task.exception()
            # A client that has gone is no failure.
            if error is not None and not isinstance(error, OSError):
                raise error

    def subscribe(self, subscription: Subscription, now: float) -> tuple[str, list[bytes]]:
        """Add a subscription; return its name and what it is told at once."""
        if len(self._names) >= MAX_SUBSCRIPTIONS:
            raise RpcError(LIMIT_EXCEEDED, f"This connection has {MAX_SUBSCRIPTIONS} subscriptions already")
        name, first = self.network.feed.open(subscription, self._put, now)
        self._names.add(name)
        return name, first

    def unsubscribe(self, name: object) -> bool:
        """End a subscription of this connection."""
        if not isinstance(name, str) or name not in self._names:
            unknown = self.network.subscribing.unknown
            raise RpcError(unknown.code, unknown.message)
        self._names.discard(name)
        return self.network.feed.close(name)

    async def _listen(self, receive: Receive) -> None:
        while True:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                return
            text = message.get("text")
            body = message.get("bytes") or b"" if text is None else text.encode()
            if len(body) > LARGEST_BODY:
                self._end(TOO_LARGE, "message too large")
                return
            await self._answer(body)

    async def _answer(self, body: bytes) -> None:
        talk = _Talk(self, self._faults)
        kept = self._kept = []
        answer = respond(talk, body, self._now())
        if talk.wait:
            await asyncio.sleep(talk.wait)
        self._kept = None
        for message in [answer, *talk.first]:
            if message is not None:
                self._put(message)
        self._queue += kept
        if kept:
            self._queued.set()

    async def _speak(self, send: Send) -> None:
        while True:
            await self._queued.wait()
            while self._queue:
                message = self._queue.popleft()
                self._room += len(message)
                await send({"type": "websocket.send", "text": message.decode()})
            self._queued.clear()

    async def _look(self) -> None:
        """Look at the chain again and again, while there is somebody to tell."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            if self._names:
                self.network.feed.tick(self._now())

    def _put(self, message: bytes) -> None:
        self._room -= len(message)
        if self._room < 0:
            self._end(TOO_SLOW, "reads too slowly")
        elif self._kept is not None:
            self._kept.append(message)
        else:
            self._queue.append(message)
            self._queued.set()

    def _end(self, code: int, reason: str) -> None:
        if not self._cut.done():
            self._cut.set_result((code, reason))
