"""Scripted fakes at the gateway's ports: a manual clock, a loop without sockets, a store, limits.

Nothing here waits for real time. A connection is a transport that records what is done to it; its remote end is
the test, or a node that answers each request at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context
from functools import partial
from typing import Any, TypeVar

from tollgate.core.entries import Entry, decode
from tollgate.core.limits import Limit, Taken, take
from tollgate.core.models import Grant
from tollgate.store.base import Changes, StoreUnavailable

T = TypeVar("T")


class Clock:
    """A clock whose hands the test run_pending."""

    def __init__(self, now: float = 1_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class FakeTransport(asyncio.Transport):
    """Records what a protocol does with its connection. Once closed, it is lost in the next loop turn."""

    def __init__(self, protocol: asyncio.Protocol, peer: tuple[str, int] = ("192.0.2.1", 50_000)) -> None:
        super().__init__({"peername": peer, "sockname": ("192.0.2.9", 80)})
        self.protocol = protocol
        self.written = bytearray()
        self.closed = False
        self.aborted = False
        self.paused = False
        self.can_half_close = True
        self.node: Callable[[bytes], bytes | None] | None = None
        """What the remote end answers to a request's body; None: nothing."""
        self.lost = False

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        assert not self.lost, "written to a lost connection"
        self.written += data
        if self.node is not None and (answer := self.node(bytes(data).partition(b"\r\n\r\n")[2])) is not None:
            asyncio.get_running_loop().call_soon(self.deliver, answer)

    def can_write_eof(self) -> bool:
        return self.can_half_close

    def deliver(self, data: bytes) -> None:
        """Send as the remote end."""
        if not self.lost:
            self.protocol.data_received(data)

    def drop(self, error: Exception | None = None) -> None:
        """Close as the remote end."""
        if not self.lost:
            self.lost = self.closed = True
            self.protocol.connection_lost(error)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            asyncio.get_running_loop().call_soon(self.drop)

    def abort(self) -> None:
        self.aborted = True
        self.close()

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return len(self.written)

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def take(self) -> bytes:
        """Return what was written since the last call."""
        written = bytes(self.written)
        self.written.clear()
        return written


class ScriptedLoop(asyncio.SelectorEventLoop):
    """An event loop whose connections are fake: opened, refused or held back."""

    def __init__(self) -> None:
        super().__init__()
        self.transports: list[FakeTransport] = []
        self.connects: list[tuple[str, int, bool]] = []
        """Host, port and whether by TLS, of each connection requested."""
        self.refusing = False
        self.gate: asyncio.Event | None = None
        """If not None, connections wait for it."""
        self.node: Callable[[bytes], bytes | None] | None = None
        self.nodes: dict[str, Callable[[FakeTransport, bytes], bytes | None]] = {}
        """What single hosts answer; the others answer as `node` does."""
        self.clock: Clock | None = None
        """If not None, timers run on it."""
        self.timers: list[asyncio.TimerHandle] = []

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        if self.clock is None:
            return super().call_later(delay, callback, *args, context=context)
        handle = asyncio.TimerHandle(self.clock.now + delay, callback, args, self, context)
        self.timers.append(handle)
        return handle

    async def advance(self, seconds: float) -> None:
        """Advance the clock, and run each timer when it is due."""
        assert self.clock is not None
        until = self.clock.now + seconds
        await run_pending()
        while due := [each for each in self.timers if each.when() <= until and not each.cancelled()]:
            first = min(due, key=lambda each: each.when())
            self.timers.remove(first)
            self.clock.now = max(self.clock.now, first.when())
            first._run()
            await run_pending()
        self.timers = [each for each in self.timers if not each.cancelled()]
        self.clock.now = until

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.Protocol], host: str, port: int, *, ssl: object = None
    ) -> tuple[FakeTransport, asyncio.Protocol]:
        self.connects.append((host, port, ssl is not None))
        await asyncio.sleep(0)
        if self.gate is not None:
            await self.gate.wait()
        if self.refusing:
            raise ConnectionRefusedError("refused by the script")
        protocol = protocol_factory()
        transport = FakeTransport(protocol)
        transport.node = partial(self.nodes[host], transport) if host in self.nodes else self.node
        self.transports.append(transport)
        protocol.connection_made(transport)
        return transport, protocol


def scripted_loop() -> ScriptedLoop:
    """The loop that runs the test."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, ScriptedLoop)
    return loop


async def run_pending(count: int = 12) -> None:
    """Run the callbacks that are ready, without time passing."""
    for _ in range(count):
        await asyncio.sleep(0)


def spawn(coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Run a coroutine as a task."""
    return asyncio.get_running_loop().create_task(coroutine)


class Meters:
    """Limits in a dictionary."""

    def __init__(self) -> None:
        self.arrivals: dict[str, float] = {}
        self.taken: list[tuple[str, int]] = []

    def take(self, limits: Sequence[tuple[str, Limit]], now: float, cost: int = 1) -> list[Taken]:
        found = []
        for key, limit in limits:
            found.append(take(limit, self.arrivals.get(key, 0.0), now, cost))
            if not found[-1].allowed:
                break
            self.arrivals[key] = found[-1].arrival
            self.taken.append((key, cost))
        return found

    def slots(self, limits: Sequence[tuple[str, Limit]], now: float) -> Sequence[tuple[str, Limit]]:
        return limits

    def moved(self, slots: Sequence[tuple[str, Limit]]) -> bool:
        return False

    def take_all(self, slots: Sequence[tuple[str, Limit]], now: float, cost: float = 1) -> bool:
        found = [take(limit, self.arrivals.get(key, 0.0), now, int(cost)) for key, limit in slots]
        if not all(taken.allowed for taken in found):
            return False
        for (key, _), taken in zip(slots, found, strict=True):
            self.arrivals[key] = taken.arrival
            self.taken.append((key, int(cost)))
        return True

    def left(self, slots: Sequence[tuple[str, Limit]], now: float) -> tuple[int, ...]:
        found: tuple[int, ...] = ()
        for key, limit in slots:
            taken = take(limit, self.arrivals[key], now, 0)
            found += (taken.remaining,) if limit.seconds <= 1 else (taken.remaining, int(taken.arrival - now + 1))
        return found

    def peek(self, key: str, limit: Limit, now: float, cost: int = 1) -> Taken:
        return take(limit, self.arrivals.get(key, 0.0), now, cost)


class ScriptedStore:
    """A store that answers from dictionaries."""

    def __init__(self) -> None:
        self.tokens: dict[bytes, Grant] = {}
        self.grants: dict[str, Grant] = {}
        self.lookups: list[bytes | tuple[str, ...]] = []
        self.news: deque[Changes | None] = deque()
        self.down = False
        self.gate: asyncio.Event | None = None
        """If not None, answers are read at once and returned once it is set."""

    async def token(self, digest: bytes) -> Grant | None:
        self.lookups.append(digest)
        return await self._answer(self.tokens.get(digest))

    async def domain(self, names: Sequence[str]) -> Grant | None:
        self.lookups.append(tuple(names))
        return await self._answer(next((self.grants[name] for name in names if name in self.grants), None))

    async def _answer(self, grant: Grant | None) -> Grant | None:
        if self.gate is not None:
            await self.gate.wait()
        if self.down:
            raise StoreUnavailable("scripted")
        return grant

    async def changes(self, since: int | None) -> Changes | None:
        if self.down:
            raise StoreUnavailable("scripted")
        if since is None and not self.news:
            return Changes(1)
        return self.news.popleft() if self.news else None

    async def close(self) -> None:
        pass


class Sink:
    """Takes records, and separates the written ones from those in memory."""

    def __init__(self) -> None:
        self.is_full = False
        self.waiting: list[Entry] = []
        self.written: list[Entry] = []

    def append(self, payload: bytes) -> None:
        self.waiting.append(decode(payload))

    def extend(self, payloads: list[bytes]) -> None:
        for payload in payloads:
            self.append(payload)

    def write(self) -> None:
        self.written += self.waiting
        self.waiting = []
