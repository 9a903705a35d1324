"""A client's WebSocket connection: uvicorn's protocol, with an end that comes even when the client does not read.

uvicorn leaves three things open that a public port needs: a connection whose client reads nothing is never given
up, pongs for a client that floods with pings are written without a bound, and a stop cuts connections in the midst
of a call. It leans on uvicorn's internals, so the version is pinned and tests/gateway/test_websocket_uvicorn.py
states what it relies on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
from uvicorn.config import Config
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.frames import Frame

# For the client to answer our goodbye.
CLOSE_SECONDS = 3.0
# Empty frames cost nothing to send, and a place in a list to keep.
MOST_FRAMES = 1_024
_POLICY = 1008


class Socket(WebSocketsSansIOProtocol):
    """One connection of a client."""

    def __init__(
        self,
        stop: Callable[[], None],
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._stop = stop
        """Lets the app say goodbye, on all connections."""
        self._abort_timer: asyncio.TimerHandle | None = None
        self._unsent = 0

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a client."""
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Begin to stop. The app closes; who has not got so far yet is refused by it."""
        self._stop()

    # --- A client that does not read -------------------------------------------------------------------

    def pause_writing(self) -> None:
        """Read nothing either: each ping would be answered into a buffer without a bound."""
        super().pause_writing()
        if not self.transport.is_closing():
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        """Go on, unless messages wait to be taken."""
        super().resume_writing()
        if not self.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    async def receive(self) -> ASGIReceiveEvent:
        """Take the next message; none while its answer would find no way out."""
        await self.writable.wait()
        return await super().receive()

    async def send(self, message: ASGISendEvent) -> None:
        """Send. A goodbye does not wait for what is before it, and is the end after a while."""
        if message["type"] == "websocket.close":
            self.writable.set()
            self._give_up_soon()
        await super().send(message)

    def _give_up_soon(self) -> None:
        if self._abort_timer is None:
            self._abort_timer = self.loop.call_later(CLOSE_SECONDS, self._give_up)

    def _give_up(self) -> None:
        if not self.disconnected:
            self.transport.abort()

    def keepalive_timeout(self) -> None:
        """Cut a client that gives no sign of life."""
        unsent = self.transport.get_write_buffer_size()
        # It may still be taking a long message; or it is us who do not read, as long as many calls are under way.
        is_alive = unsent < self._unsent if unsent else self.read_paused
        if is_alive and self.ping_timeout is not None:
            self._unsent = unsent
            self.pong_timer = self.loop.call_later(self.ping_timeout, self.keepalive_timeout)
            return
        super().keepalive_timeout()
        self._give_up_soon()

    def send_keepalive_ping(self) -> None:
        """Ask for a sign of life."""
        self._unsent = self.transport.get_write_buffer_size()
        super().send_keepalive_ping()

    def handle_cont(self, event: Frame) -> None:
        """Take a further part of a message."""
        if self.close_sent:
            return
        if len(self.frames) >= MOST_FRAMES:
            self.conn.fail(_POLICY, "too many fragments")
            self.handle_parser_exception()
            return
        super().handle_cont(event)
