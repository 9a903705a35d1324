"""The pool of connections to one upstream. Beside `listener.py` and `pending.py`, which receive from upstreams by
WebSocket, the only opener of sockets in the gateway.

Keeps connections alive, newest first, so that idle ones at the bottom grow old and are closed; bounds their
number and how many requests wait for one; closes what passes its deadline in a sweep, because a timer for each
request costs more than the whole sweep.

A `PoolRequest` is called back once, with a response or a failure, by plain calls: only to open a connection takes
a task.

One caller, which is a team's tokens or a domain, holds at most half of the connections that others leave free, and
all domains together half of all: beyond that its requests wait, while others are sent. `waiters.py` has the order.

A kept connection may have been closed by the upstream just as we write to it. Such a request is repeated on a
fresh connection only where that can do no harm: a write gets a connection that answered a moment ago, or a
new one, and is never repeated.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Callable
from urllib.parse import urlsplit

from msgspec import Struct

from tollgate import __version__
from tollgate.gateway.memory_budget import Budget
from tollgate.gateway.upstream.connection import (
    AttemptFailed,
    ConnectFailed,
    Connection,
    KnownHeads,
    PoolFull,
    Response,
    TimedOut,
)
from tollgate.gateway.upstream.waiters import Waiters, is_domain
from tollgate.settings.model import UpstreamSettings

CONNECT_SECONDS = 5.0
# Shorter than the idle timeouts of common servers (nginx 75 s, geth 120 s, load balancers 60 s).
IDLE_SECONDS = 50.0
# A write takes a kept connection only when it was used a moment ago.
FRESH_SECONDS = 1.0
WAITERS_PER_CONNECTION = 16
# Once the oldest request of a caller has waited this long, its others are refused at once.
# So the queue stays short, and no answer arrives after its caller has given up.
MAX_QUEUE_SECONDS = 2.0


class PoolRequest(Struct, eq=False):
    """A request to an upstream, and what waits for its response. `received` or `abandoned` is called once."""

    pool: Pool
    body: bytes
    until: float
    repeatable: bool
    more: bytes = b""
    """Header lines beyond the usual ones."""
    resent: bool = False
    since: float = 0.0
    """When it started to wait for a connection."""

    @property
    def holder(self) -> str:
        """Which caller holds its connection; empty: the service itself."""
        return ""

    @property
    def over(self) -> bool:
        """Whether its call was abandoned."""
        raise NotImplementedError

    def received(self, status: int, body: bytes) -> None:
        """Take the response."""
        raise NotImplementedError

    def abandoned(self, failure: AttemptFailed) -> None:
        """Take the reason why there is none."""
        raise NotImplementedError

    def failed(self, failure: AttemptFailed) -> None:
        """Send it once more where its connection was stale and that can do no harm."""
        if failure.stale and self.repeatable and not self.resent:
            self.resent = True
            self.pool.queue(self)
        else:
            self.abandoned(failure)


class _Awaited(PoolRequest, eq=False, kw_only=True):
    """A request whose response a coroutine awaits."""

    future: asyncio.Future[Response]

    @property
    def over(self) -> bool:
        return self.future.done()

    def received(self, status: int, body: bytes) -> None:
        if not self.future.done():
            self.future.set_result(Response(status, body))

    def abandoned(self, failure: AttemptFailed) -> None:
        if not self.future.done():
            self.future.set_exception(failure)


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
        self._opening: dict[asyncio.Task[None], PoolRequest] = {}
        """Tasks that open a connection, and the requests that it is for."""
        self.waiters: Waiters[PoolRequest] = Waiters()
        self.retired = False

    @property
    def size(self) -> int:
        """Open connections."""
        return len(self._all)

    async def send(self, body: bytes, deadline: float, *, repeatable: bool, more: bytes = b"") -> Response:
        """Send a request, with more header lines where there are any; the response, or raise AttemptFailed."""
        response: asyncio.Future[Response] = self._loop.create_future()
        self.start(_Awaited(self, body, deadline, repeatable, more, future=response))
        return await response

    def start(self, request: PoolRequest) -> None:
        """Send a request on a connection that is kept, or as soon as there is one that its caller may hold."""
        # As in `_may_hold`, without its call: most of the time few connections are busy.
        busy = len(self._all) + len(self._opening) - len(self.idle)
        if busy * 4 >= self._max_connections and not self._may_hold(request.holder):
            self._wait(request)
            return
        while self.idle:
            connection = self.idle.pop()
            if not connection.usable:
                continue
            if not request.repeatable and self.clock - connection.idle_since > FRESH_SECONDS:
                self.idle.append(connection)
                break
            connection.send(request.body, request.until, request, request.more)
            return
        self.queue(request)

    def queue(self, request: PoolRequest) -> None:
        """Send a request on a connection that cannot be stale: open one, or let it wait where there are enough."""
        if len(self._all) + len(self._opening) >= self._max_connections:
            if not self.idle:
                self._wait(request)
                return
            # Kept, but not fresh enough for a write.
            self._drop(self.idle.pop(0))
        self._open_for(request)

    def _wait(self, request: PoolRequest) -> None:
        if request.resent and request.since:
            # It was its turn, and its connection was lost: still the first.
            self.waiters.add(request, first=True)
            return
        request.since = now = self._now()
        waiting, since = self.waiters.oldest(request.holder)
        if waiting >= self._max_connections * WAITERS_PER_CONNECTION or (
            waiting and now - since > MAX_QUEUE_SECONDS
        ):
            # It would wait in vain, or for too long.
            request.abandoned(PoolFull("all connections are busy", sent=False))
        else:
            self.waiters.add(request)

    def sweep(self) -> None:
        """Fail what has passed its deadline, close what has been idle for long."""
        self.clock = now = self._now()
        for connection in list(self._all):
            if connection.busy and now >= connection.deadline:
                connection.fail(TimedOut("no answer in time", sent=True))
        while self.idle and now - self.idle[0].idle_since > IDLE_SECONDS:
            self.idle.pop(0).close()
        if self.waiters:
            for request in self.waiters.take_late(now):
                request.abandoned(TimedOut("no free connection in time", sent=False))
            self._admit_waiter()

    def close(self) -> None:
        """Close everything; requests under way fail."""
        for opening in list(self._opening):
            opening.cancel()
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
        """Give a free connection to the request whose turn it is, or keep it."""
        connection.idle_since = self.clock
        self.idle.append(connection)
        request = self.waiters.next(self._may_hold) if self.waiters else None
        if request is not None:
            self.idle.pop()
            connection.send(request.body, request.until, request, request.more)
        elif self.retired:
            self.idle.pop()
            connection.close()

    def lost(self, connection: Connection) -> None:
        """Forget a connection, and let a waiter open another."""
        self._all.discard(connection)
        if connection in self.idle:
            self.idle.remove(connection)
        self._admit_waiter()

    # --- Shares of callers -----------------------------------------------------------------------------

    def _may_hold(self, holder: str) -> bool:
        """Whether a caller may hold one more connection: at most half of what others leave free."""
        free = self._max_connections - len(self._all) - len(self._opening) + len(self.idle)
        if not holder:
            return True
        held = self._held()
        mine = held[holder]
        if is_domain(holder):
            free = self._max_connections // 2 - sum(count for each, count in held.items() if is_domain(each))
        return mine < -(-(free + mine) // 2)

    def _held(self) -> Counter[str]:
        """How many connections each caller holds. Counted only while many are busy: most calls need not know."""
        busy = [each.receiver.holder for each in self._all if each.receiver is not None]
        return Counter((*busy, *(request.holder for request in self._opening.values())))

    # --- Connections -----------------------------------------------------------------------------------

    def _admit_waiter(self) -> None:
        """Send the request whose turn it is, where there is room for another connection or one is free."""
        if not self.waiters or (not self.idle and len(self._all) + len(self._opening) >= self._max_connections):
            return
        request = self.waiters.next(self._may_hold)
        if request is not None:
            self.start(request)

    def _drop(self, connection: Connection) -> None:
        self._all.discard(connection)
        connection.close()

    def _open_for(self, request: PoolRequest) -> None:
        self._opening[self._loop.create_task(self._open(request))] = request

    async def _open(self, request: PoolRequest) -> None:
        """Open a connection for a request."""
        connection: Connection | None = None
        failure: AttemptFailed
        try:
            async with asyncio.timeout(min(CONNECT_SECONDS, max(0.0, request.until - self._now()))):
                _, connection = await self._loop.create_connection(
                    self.connection, self._host, self._port, ssl=self._tls
                )
        except TimeoutError:
            failure = ConnectFailed("no connection in time", sent=False)
        except asyncio.CancelledError:
            failure = AttemptFailed("the service stops", sent=False)
        except Exception as error:  # noqa: BLE001 - a waiting request must be called back, whatever happened
            failure = ConnectFailed(f"no connection: {error}", sent=False)
            failure.__cause__ = error
        self._opening.pop(asyncio.current_task(), None)  # type: ignore[arg-type] # it runs in a task
        if connection is None:
            self._admit_waiter()
            request.abandoned(failure)
            return
        self._all.add(connection)
        if not connection.usable:
            request.abandoned(AttemptFailed("connection lost", sent=False))
        elif request.over:
            self.freed(connection)
        else:
            connection.send(request.body, request.until, request, request.more)


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
