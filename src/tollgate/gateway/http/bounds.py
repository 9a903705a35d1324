"""What one connection may hold, and how long it may wait.

`CallerBounds` counts the connection for its client address, counts large bodies and unsent answers against the
budget, and closes the connection where the caller neither sends nor reads. It parses nothing and answers nothing.
"""

from __future__ import annotations

import asyncio
import fcntl
import termios
from typing import Protocol

from tollgate.gateway.http.worker_context import WorkerContext

TOO_MANY_LARGE = "Too many large requests at once: try again."
# On stop, an idle connection gets this long to send a request that is already on its way.
LINGER_SECONDS = 0.5


class BoundedConnection(Protocol):
    """The connection that is bounded."""

    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    since: float
    """When the present wait started."""

    def is_busy(self) -> bool:
        """Whether an answer is outstanding."""

    def is_reading(self) -> bool:
        """Whether a part of a request was read."""


class CallerBounds:
    """The bounds of one connection."""

    __slots__ = ("_address", "_connection", "_context", "_unsent", "blocked", "held")

    def __init__(self, connection: BoundedConnection, context: WorkerContext) -> None:
        self._connection = connection
        self._context = context
        self._address = ""
        """What its connections and bytes are counted for; empty: nothing is."""
        self._unsent = 0
        """Bytes of answers that the caller has not read, as the budget counts them."""
        self.held = 0
        """Bytes of the body that is being read, likewise."""
        self.blocked = False
        """Set while the caller does not read its answers."""

    # --- Counted ---------------------------------------------------------------------------------------

    def enter(self, peer: str) -> str | None:
        """Count the connection; returns why it is one too many, if it is."""
        context = self._context
        self._address, crowded = context.addresses.enter(peer)
        if len(context.connections) + context.upgraded > context.bounds.max_connections:
            return "Too many connections: try again."
        if crowded:
            return "Too many connections from this address: close some, or try again later."
        return None

    def leave(self) -> None:
        """Count the connection and what it held no more."""
        self._context.addresses.leave(self._address)
        self.free(self.held + self._unsent)
        self.held = self._unsent = 0
        self.blocked = False

    def hand_over(self) -> str:
        """Return what the connection is counted for, and count nothing for it from here on."""
        address, self._address = self._address, ""
        return address

    def hold(self, size: int) -> bool:
        """Count bytes that are held; False where there is no room: nothing is counted."""
        return self._context.budget.hold(size, self._address)

    def free(self, size: int) -> None:
        """Count bytes no more."""
        self._context.budget.free(size, self._address)

    # --- Slow readers ----------------------------------------------------------------------------------

    def pause(self) -> None:
        """The caller does not read: what is unsent counts as held."""
        self.blocked = True
        self._connection.since = self._context.clock
        # Later, when the upstream's side has given back what it held of the same bytes.
        self._connection.loop.call_soon(self._count_unsent)

    def _count_unsent(self) -> None:
        if not self.blocked or self._unsent:
            return
        transport = self._connection.transport
        unsent = transport.get_write_buffer_size()
        if self.hold(unsent):
            self._unsent = unsent
        else:
            transport.abort()

    def resume(self) -> None:
        """The caller reads again."""
        self.blocked = False
        self.free(self._unsent)
        self._unsent = 0
        self._connection.since = self._context.clock

    # --- Idle connections ------------------------------------------------------------------------------

    def check(self, now: float) -> None:
        """Close a connection that has waited for its caller for too long."""
        connection, context = self._connection, self._context
        waited = now - connection.since
        if self.blocked:
            if waited > context.bounds.read_seconds:
                connection.transport.abort()
        elif connection.is_busy():
            return
        elif connection.is_reading():
            if waited > context.bounds.read_seconds:
                connection.transport.close()
        elif waited > context.bounds.keep_alive_seconds and not self._has_unread():
            connection.transport.close()

    def linger(self) -> None:
        """On stop: close the connection in a moment, if it is idle then."""
        self._connection.loop.call_later(LINGER_SECONDS, self._close_if_idle)

    def _close_if_idle(self) -> None:
        connection = self._connection
        if connection.is_busy() or connection.is_reading() or connection.transport.is_closing():
            return
        if self._has_unread():
            self.linger()
        else:
            connection.transport.close()
            connection.loop.call_later(LINGER_SECONDS, self._abort_if_sent)

    def _abort_if_sent(self) -> None:
        """Do not wait until a caller confirms the end of TLS: one that reads only after it has sent never does."""
        transport = self._connection.transport
        if not transport.get_write_buffer_size():
            transport.abort()

    def _has_unread(self) -> bool:
        """Whether the kernel has bytes for us: a loop that was held up runs timers before it reads them."""
        transport = self._connection.transport
        own = transport.get_extra_info("socket")
        if own is None or transport.is_closing():
            return False
        none = bytes(4)
        return fcntl.ioctl(own, termios.FIONREAD, none) != none
