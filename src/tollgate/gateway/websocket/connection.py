"""A client's WebSocket connection: uvicorn's protocol, with an end that comes even when the client does not read.

uvicorn lacks what a public port needs. A connection whose client reads nothing is never closed; pongs to a client
that floods with pings are written without a bound; thousands of frames that arrive together are read without a
pause; messages that never end are kept for ever and counted nowhere; a stop cuts connections in the middle of a
call. Its bound on messages is fixed at start-up: ours is the setting in force at `websocket.accept`.

This leans on uvicorn's internals, so the version is pinned and tests/gateway/websocket/test_uvicorn_sockets.py
states what it relies on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
from uvicorn.config import Config
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.frames import Frame

from tollgate.gateway.http.worker_context import WorkerContext
from tollgate.gateway.memory_budget import SMALL

# For the client to answer our close frame.
CLOSE_SECONDS = 3.0
# Empty frames cost nothing to send, and a place in a list to keep.
MAX_FRAMES = 1_024
# Bytes that are read at once, and frames after which it yields to other tasks: two milliseconds at most.
_PIECE, _IN_A_ROW = 1_024, 64
_NOT_TEXT, _POLICY, _TRY_LATER = 1007, 1008, 1013


class Socket(WebSocketsSansIOProtocol):
    """One connection of a client."""

    def __init__(
        self,
        stop: Callable[[], None],
        context: WorkerContext,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._stop = stop
        """Lets the app close all connections with a message."""
        self._context = context
        self._held = 0
        """Bytes that have come and are no message yet, as the budget counts them."""
        self._messages = 0
        self._slow_timer: asyncio.TimerHandle | None = None
        self._abort_timer: asyncio.TimerHandle | None = None
        self._unsent = 0
        self._blocked = False
        """Set while the client does not read."""
        self._counted = 0
        """Bytes that it does not read, as the budget counts them."""
        self._unread = bytearray()
        """What has come and is still to be read."""
        self._reading: asyncio.Handle | None = None
        """Set while that is scheduled."""
        self.handled = 0
        """Frames that were read."""
        self.depart: Callable[[], None] = lambda: None
        """Called at the end, to count open connections."""
        self.address = ""
        """Whose memory counts for it."""

    def connection_lost(self, exc: Exception | None) -> None:
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        self._forget_unread()
        self._free_unsent()
        self.depart()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Begin to stop. The app closes; who has not got so far yet is refused by it."""
        self._stop()

    # --- Reading -----------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._unread += data
        if self._reading is None:
            self._read_on()

    def _read_on(self) -> None:
        """Read what has arrived, as far as allowed; yield to other tasks after many frames."""
        self._reading = None
        last = self.handled + _IN_A_ROW
        while self._unread and self.handled < last and self._may_read():
            piece = bytes(self._unread[:_PIECE])
            del self._unread[:_PIECE]
            super().data_received(piece)
        self._weigh()
        if self._unread:
            self._settle()

    def _weigh(self) -> None:
        """Count what is no message yet, where it is large. Who finds no room, or sends no end, is cut."""
        waiting = len(self._unread) + len(self.conn.reader.buffer) + sum(map(len, self.frames))
        more = (waiting if waiting > SMALL else 0) - self._held
        if more > 0 and not self._context.budget.hold(more, self.address):
            self._cut(_TRY_LATER, "Too many large messages at once: try again.")
            return
        if more < 0:
            self._context.budget.free(-more, self.address)
        self._held += more
        if self._held and self._slow_timer is None:
            self._time_message()

    def _time_message(self) -> None:
        self._slow_timer = self.loop.call_later(
            self._context.bounds.read_seconds, self._check_message, self._messages
        )

    def _check_message(self, messages: int) -> None:
        """Cut a client that has finished no message for as long as a request may take; unless we did not read."""
        self._slow_timer = None
        if not self._held:
            return
        if messages == self._messages and self._may_read():
            self._cut(_POLICY, "The message did not end in time.")
        else:
            self._time_message()

    def _cut(self, code: int, why: str) -> None:
        self.conn.fail(code, why)
        self._forget_unread()
        self.handle_parser_exception()

    def _forget_unread(self) -> None:
        self._unread.clear()
        self.frames = []
        self.conn.reader.buffer.clear()
        self._context.budget.free(self._held, self.address)
        self._held = 0
        if self._slow_timer is not None:
            self._slow_timer.cancel()
            self._slow_timer = None

    def _may_read(self) -> bool:
        """Whether no message waits to be taken and the client takes what it is sent."""
        return not (self._blocked or self.read_paused or self.transport.is_closing())

    def _settle(self) -> None:
        """Resume or pause reading, as the state requires."""
        if self.transport.is_closing():
            self._unread.clear()
        elif not self._may_read():
            self.transport.pause_reading()
        elif not self._unread:
            self.transport.resume_reading()
        elif self._reading is None:
            self.transport.pause_reading()
            self._reading = self.loop.call_soon(self._read_again)

    def _read_again(self) -> None:
        self._read_on()
        self._settle()

    def handle_events(self) -> None:
        self.handled += len(self.conn.events)
        super().handle_events()

    # --- A client that does not read -------------------------------------------------------------------

    def pause_writing(self) -> None:
        """Read nothing either: each ping would be answered into a buffer without a bound."""
        super().pause_writing()
        self._blocked = True
        self._settle()
        self.loop.call_soon(self._count_unsent)

    def _count_unsent(self) -> None:
        """Count what the client does not take; it is cut where there is no room."""
        if not self._blocked or self._counted:
            return
        unsent = self.transport.get_write_buffer_size()
        if self._context.budget.hold(unsent, self.address):
            self._counted = unsent
        else:
            self.transport.abort()

    def _free_unsent(self) -> None:
        self._blocked = False
        self._context.budget.free(self._counted, self.address)
        self._counted = 0

    def resume_writing(self) -> None:
        """Resume reading, unless messages wait to be handled."""
        super().resume_writing()
        self._free_unsent()
        self._settle()

    async def receive(self) -> ASGIReceiveEvent:
        """Take the next message; none while its answer would find no way out."""
        await self.writable.wait()
        message = await super().receive()
        if self._blocked or self._unread:
            # uvicorn reads on when a message was taken.
            self._settle()
        return message

    async def send(self, message: ASGISendEvent) -> None:
        """Send. A close frame does not wait for what is before it, and ends the connection after a while."""
        if self.close_sent:
            raise ClientDisconnected
        if message["type"] == "websocket.accept":
            # Beside what ASGI knows.
            max_bytes = cast("dict[str, Any]", message).get("max_bytes")
            self.conn.max_message_size = max_bytes or self.conn.max_message_size
        elif message["type"] == "websocket.http.response.start":
            # uvicorn gives them to every answer but this one.
            message["headers"] = [*self.default_headers, *message["headers"]]
        elif message["type"] == "websocket.close":
            self.writable.set()
            self._give_up_soon()
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body"):
            # A refusal by HTTP is the end of the handshake, too; uvicorn would log it as a fault of the app.
            self.handshake_complete = True
        if self._blocked or self._unread:
            # And when a close frame was sent.
            self._settle()

    # --- The end, whether the client reads or not --------------------------------------------------------

    def handle_close(self, event: Frame) -> None:
        super().handle_close(event)
        self._give_up_soon()

    def handle_parser_exception(self) -> None:
        super().handle_parser_exception()
        self._give_up_soon()

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        """Close when all of the app's messages are sent."""
        super().on_task_complete(task)
        self._give_up_soon()

    def _give_up_soon(self) -> None:
        if self._abort_timer is None and not self.disconnected:
            self._abort_timer = self.loop.call_later(CLOSE_SECONDS, self._give_up)

    def _give_up(self) -> None:
        if not self.disconnected:
            self.transport.abort()

    # --- Signs of life -----------------------------------------------------------------------------------

    def keepalive_timeout(self) -> None:
        """Cut a client that gives no sign of life."""
        unsent = self.transport.get_write_buffer_size()
        # It may still be receiving a long message; or reading is paused here while many calls are in progress.
        is_alive = unsent < self._unsent or (not unsent and self.read_paused)
        if is_alive and self.ping_timeout is not None:
            self._unsent = unsent
            self.pong_timer = self.loop.call_later(self.ping_timeout, self.keepalive_timeout)
            return
        super().keepalive_timeout()
        self._give_up_soon()

    def send_keepalive_ping(self) -> None:
        self._unsent = self.transport.get_write_buffer_size()
        super().send_keepalive_ping()

    # --- Messages ----------------------------------------------------------------------------------------

    def handle_cont(self, event: Frame) -> None:
        if self.close_sent:
            return
        if len(self.frames) >= MAX_FRAMES:
            self.conn.fail(_POLICY, "too many fragments")
            self.handle_parser_exception()
            return
        super().handle_cont(event)

    def send_receive_event_to_app(self) -> None:
        """Hand a message on, if its text is valid UTF-8: uvicorn would log each that is not."""
        self._messages += 1
        if self.curr_msg_data_type == "text" and not self.close_sent:
            text = b"".join(self.frames)
            self.frames = [text]
            if not _is_text(text):
                self.conn.fail(_NOT_TEXT, "not UTF-8")
                self.handle_parser_exception()
                return
        super().send_receive_event_to_app()


def _is_text(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
