"""The pool of connections to one upstream. Beside `listener.py` and `pending.py`, which receive from upstreams by
WebSocket, the only opener of sockets in the gateway.

Keeps connections alive, newest first, so that idle ones at the bottom grow old and are closed; bounds their
number and how many callers wait for one; closes what passes its deadline in a sweep, because a timer for each
request costs more than the whole sweep.

A kept connection may have been closed by the upstream just as we write to it. Such a request is repeated on a
fresh connection only where that can do no harm: a write gets a connection that answered a moment ago, or a
new one, and is never repeated.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from urllib.parse import urlsplit

from tollgate import __version__
from tollgate.gateway.memory_budget import Budget
from tollgate.gateway.upstream.connection import (
    AttemptFailed,
    ConnectFailed,
    Connection,
    KnownHeads,
    PoolFull,
    Response,
    ResponseFuture,
    TimedOut,
)
from tollgate.settings.model import UpstreamSettings

CONNECT_SECONDS = 5.0
# Shorter than the idle timeouts of common servers (nginx 75 s, geth 120 s, load balancers 60 s).
IDLE_SECONDS = 50.0
# A write takes a kept connection only when it was used a moment ago.
FRESH_SECONDS = 1.0
WAITERS_PER_CONNECTION = 16
# When whoever waits longest has waited for this, the upstream is given more than it can do: others are refused at
# once. The queue stays as short as this, and nobody is answered who has given up already.
MAX_QUEUE_SECONDS = 2.0


class Pool:
    """Connections to one upstream."""

    def __init__(
        self,
        upstream: UpstreamSettings,
        *,
        max_bytes: int,
        budget: Budget,
        now: Callable[[], float],
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._loop = loop or asyncio.get_running_loop()
        self._now = now
        self.clock = now()
        """The time of the last sweep: exact enough for idle connections."""
        self._budget = budget
        self._max_bytes = max_bytes
        self._max_connections = upstream.connections
        address = urlsplit(upstream.url)
        self._host = address.hostname or ""
        self._tls = ssl.create_default_context() if address.scheme == "https" else None
        self._port = address.port or (443 if self._tls else 80)
        self._head = _head(upstream)
        self.idle: list[Connection] = []
        """Connections that are kept, the newest last. Some may not be usable any more."""
        self._heads = KnownHeads()
        self._all: set[Connection] = set()
        self._opening = 0
        self.waiters: deque[tuple[asyncio.Future[Connection | None], float, float]] = deque()
        """With their deadlines, and since when they wait."""
        self.retired = False

    @property
    def size(self) -> int:
        """Open connections."""
        return len(self._all)

    async def send(self, body: bytes, deadline: float, *, repeatable: bool, more: bytes = b"") -> Response:
        """Send a call, with more header lines where there are any; return the response, or raise AttemptFailed."""
        connection = self._kept(repeatable) or await self._another(deadline)
        try:
            return await self._sent(connection, body, deadline, more)
        except AttemptFailed as failure:
            if not (failure.stale and repeatable):
                raise
        return await self.resend(body, deadline, more)

    async def resend(self, body: bytes, deadline: float, more: bytes = b"") -> Response:
        """Send a call on a connection that cannot be stale."""
        return await self._sent(await self._another(deadline), body, deadline, more)

    async def _sent(self, connection: Connection, body: bytes, deadline: float, more: bytes) -> Response:
        response = ResponseFuture(loop=self._loop)
        connection.send(body, deadline, response, more)
        return await response

    def sweep(self) -> None:
        """Fail what has passed its deadline, close what has been idle for long."""
        self.clock = now = self._now()
        for connection in list(self._all):
            if connection.busy and now >= connection.deadline:
                connection.fail(TimedOut("no answer in time", sent=True))
        while self.idle and now - self.idle[0].idle_since > IDLE_SECONDS:
            self.idle.pop(0).close()
        for waiter, deadline, _ in self.waiters:
            if now >= deadline and not waiter.done():
                waiter.set_exception(TimedOut("no free connection in time", sent=False))
        if self.waiters:
            self.waiters = deque(each for each in self.waiters if not each[0].done())

    def close(self) -> None:
        """Close everything; requests under way fail."""
        for connection in list(self._all):
            connection.fail(AttemptFailed("the service stops", sent=True))
        self.idle.clear()

    def change(self, max_bytes: int) -> None:
        """Take over a bound, for connections that are opened from now on; idle ones make room for them."""
        if max_bytes != self._max_bytes:
            self._max_bytes = max_bytes
            while self.idle:
                self.idle.pop().close()

    def retire(self) -> None:
        """Keep no connection any more; what is under way is still answered."""
        self.retired = True
        while self.idle:
            self.idle.pop().close()

    def connection(self) -> Connection:
        """A connection that is still to be made."""
        return Connection(self, self._head, self._heads, self._max_bytes, self._budget)

    # --- Owner of connections --------------------------------------------------------------------------

    def freed(self, connection: Connection) -> None:
        """Give a free connection to whoever waits longest, or keep it."""
        connection.idle_since = self.clock
        while self.waiters:
            waiter, *_ = self.waiters.popleft()
            if not waiter.done():
                waiter.set_result(connection)
                return
        if self.retired:
            connection.close()
            return
        self.idle.append(connection)

    def lost(self, connection: Connection) -> None:
        """Forget a connection, and let a waiter open another."""
        self._all.discard(connection)
        if connection in self.idle:
            self.idle.remove(connection)
        self._admit_waiter()

    # --- Connections -----------------------------------------------------------------------------------

    def _kept(self, repeatable: bool) -> Connection | None:
        """Take a connection that is kept and good enough, if there is one."""
        while self.idle:
            connection = self.idle.pop()
            if not connection.usable:
                continue
            if not repeatable and self.clock - connection.idle_since > FRESH_SECONDS:
                self.idle.append(connection)
                return None
            return connection
        return None

    async def _another(self, deadline: float) -> Connection:
        """Open a connection, or wait for one where there are enough."""
        if len(self._all) + self._opening >= self._max_connections and self.idle:
            # Kept, but not fresh enough for a write.
            self._drop(self.idle.pop(0))
        place: asyncio.Future[Connection | None] | None = None
        began = self._now()
        while len(self._all) + self._opening >= self._max_connections:
            if place is None and self._is_full(began):
                raise PoolFull("all connections are busy", sent=False)
            waiter: asyncio.Future[Connection | None] = self._loop.create_future()
            if place is None:
                self.waiters.append((waiter, deadline, began))
            else:
                # Lost between our being chosen and our turn, and its place was given to another: still the first.
                self.waiters.appendleft((waiter, deadline, began))
            place = waiter
            connection = await self._waited(waiter)
            if connection is None:
                break  # a place that was counted as opening for us
            if connection.usable:
                return connection
        else:
            self._opening += 1
        return await self._open(deadline)

    def _is_full(self, now: float) -> bool:
        """Whether another one would wait in vain, or for too long."""
        waiters = self.waiters
        while waiters and waiters[0][0].done():
            waiters.popleft()
        if not waiters:
            return False
        return (
            len(waiters) >= self._max_connections * WAITERS_PER_CONNECTION
            or now - waiters[0][2] > MAX_QUEUE_SECONDS
        )

    async def _waited(self, waiter: asyncio.Future[Connection | None]) -> Connection | None:
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                # Chosen, and cancelled before our turn: the next one may have it.
                connection = waiter.result()
                if connection is not None and connection.usable:
                    self.freed(connection)
                elif connection is None:
                    self._opening -= 1
                    self._admit_waiter()
            raise

    def _admit_waiter(self) -> None:
        """Give a free place to whoever waits longest: it may open a connection."""
        while self.waiters and len(self._all) + self._opening < self._max_connections:
            waiter, *_ = self.waiters.popleft()
            if not waiter.done():
                self._opening += 1
                waiter.set_result(None)
                return

    def _drop(self, connection: Connection) -> None:
        self._all.discard(connection)
        connection.close()

    async def _open(self, deadline: float) -> Connection:
        """Open a connection in a place that was counted as opening."""
        connection: Connection | None = None
        try:
            async with asyncio.timeout(min(CONNECT_SECONDS, max(0.0, deadline - self._now()))):
                _, connection = await self._loop.create_connection(
                    self.connection,
                    self._host,
                    self._port,
                    ssl=self._tls,
                )
        except TimeoutError as error:
            raise ConnectFailed("no connection in time", sent=False) from error
        except (OSError, ssl.SSLError) as error:
            raise ConnectFailed(f"no connection: {error}", sent=False) from error
        finally:
            self._opening -= 1
            if connection is None:
                self._admit_waiter()
        self._all.add(connection)
        return connection


def _head(upstream: UpstreamSettings) -> bytes:
    """Everything of a request but its length and body."""
    address = urlsplit(upstream.url)
    target = (address.path or "/") + (f"?{address.query}" if address.query else "")
    headers = {
        "host": address.netloc.rpartition("@")[2],
        "content-type": "application/json",
        "accept": "application/json",
        "user-agent": f"tollgate/{__version__}",
    }
    # A node next door would only spend time on packing.
    if address.scheme == "https":
        headers["accept-encoding"] = "gzip"
    headers.update({name.lower(): value for name, value in upstream.headers.items()})
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST {target} HTTP/1.1\r\n{lines}content-length: ".encode("latin-1")
