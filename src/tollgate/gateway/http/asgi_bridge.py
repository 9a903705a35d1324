"""The ASGI side of a connection: paths outside `/x/` go to the ASGI app, handshakes to the WebSocket protocol.

All that leans on uvicorn's internals is here. So the version is pinned, and tests/gateway/http/test_uvicorn.py
checks what this relies on.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Any

from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from tollgate.errors import Overloaded, Refusal
from tollgate.gateway.http import handshake
from tollgate.gateway.http.bounds import TOO_MANY_LARGE, CallerBounds
from tollgate.gateway.http.framing import RequestFraming
from tollgate.gateway.http.handshake import Header
from tollgate.gateway.http.under_way import CallUnderWay
from tollgate.gateway.http.worker_context import WorkerContext
from tollgate.gateway.messages import Request

AsgiRequest = tuple[RequestResponseCycle, ASGI3Application]


class HeldFlow(FlowControl):
    """Reads nothing while it is held: the ASGI app, which waits for its caller to leave, would resume reading."""

    held = False

    def resume_reading(self) -> None:
        if not self.held:
            super().resume_reading()

    def hold(self) -> None:
        self.held = True
        self.pause_reading()

    def release(self) -> None:
        self.held = False
        self.resume_reading()


class AsgiBridge(HttpToolsProtocol, ABC):
    """A connection, as far as uvicorn serves it."""

    flow: HeldFlow
    bounds: CallerBounds
    framing: RequestFraming

    # Slots here and below: the attributes of a connection are too many for Python's fast lookup in a dictionary.
    __slots__ = ("answering", "asgi", "bounds", "context", "framing", "peer", "queue", "since")

    def __init__(
        self,
        context: WorkerContext,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.context = context
        self.peer = ""
        """The address of the client."""
        self.asgi: RequestResponseCycle | None = None
        """The request under way in the ASGI app."""
        self.answering: CallUnderWay | Request | None = None
        """What is being answered: a call on the fast path, or a request on the slow path."""
        self.queue: list[Request | AsgiRequest] = []
        """Requests that wait until those before them are answered."""
        self.since = context.clock
        """When the present wait started: for a request, for its rest, or for the caller to read an answer."""

    @abstractmethod
    def is_busy(self) -> bool:
        """Whether an answer is outstanding."""

    @abstractmethod
    def reject(self, refusal: Refusal) -> None:
        """Send the reason after the answers under way, and close."""

    @abstractmethod
    def enqueue(self, waiting: Request | AsgiRequest) -> None:
        """Let a request wait until those before it are answered."""

    @abstractmethod
    def advance(self) -> None:
        """Answer what waits, as far as it can be answered now; then continue reading."""

    # --- The connection --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the transport."""
        super().connection_made(transport)
        self.flow = HeldFlow(transport)
        self.peer = self.client[0] if self.client is not None else ""

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify the app."""
        if self.asgi is not None:
            # uvicorn notifies only the newest request, which may wait behind this one.
            self.asgi.disconnected = True
            self.asgi.message_event.set()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Close after the answer under way."""
        if self.asgi is not None:
            super().shutdown()

    # --- Requests for the ASGI app ---------------------------------------------------------------------

    def open_asgi_request(self, url: bytes, headers: list[Header]) -> None:
        """Let uvicorn make an ASGI request; it waits for requests before it."""
        self.parser = self.framing.parser
        super().on_message_begin()
        self.url = url
        for name, value in headers:
            super().on_header(name, value)
        # Raises where the target is not well-formed.
        super().on_headers_complete()
        if self.expect_100_continue:
            # The answer may come before the caller may continue: what follows may be a body, or not.
            self.cycle.keep_alive = False
        if self.pipeline:
            # uvicorn's own queue knows nothing of ours.
            self.enqueue(self.pipeline.pop())

    def asgi_body_read(self, body: bytes) -> None:
        """Hand over a part of the body. It is counted while its request waits."""
        super().on_body(body)
        if self.queue:
            if self.bounds.hold(len(body)):
                self.bounds.held += len(body)
            else:
                self.reject(Overloaded(TOO_MANY_LARGE))

    def asgi_request_read(self) -> None:
        """Hand over the end of a request."""
        super().on_message_complete()

    def drop_asgi(self) -> bool:
        """Forget the ASGI request that is being read, which is broken; False where its answer has started."""
        cycle = self.cycle
        if cycle.response_complete:
            self.transport.close()
            return False
        if cycle.response_started:
            cycle.keep_alive = False
            return False
        cycle.disconnected = True
        cycle.message_event.set()
        if self.asgi is cycle:
            self.asgi = None
        else:
            self.queue.pop()
        return True

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        """Start an ASGI request, or queue it."""
        if self.answering or self.queue:
            self.enqueue((cycle, app))
        else:
            self.start_asgi(cycle, app)

    def start_asgi(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        """Run the app for a request."""
        self.asgi = cycle
        if self.bounds.held and self.framing.request is None:
            self.bounds.free(self.bounds.held)
            self.bounds.held = 0
        if self.context.draining and not self.queue:
            cycle.keep_alive = False
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """Continue after an ASGI answer."""
        self.asgi = None
        self.since = self.context.clock
        super().on_response_complete()
        # `CallerBounds` closes idle connections: uvicorn's timer knows nothing of our answers.
        self._unset_keepalive_if_required()
        if not self.transport.is_closing():
            self.advance()

    # --- WebSockets ------------------------------------------------------------------------------------

    def become_websocket(self) -> bool:
        """Hand the connection over to the WebSocket protocol, if this is a handshake that it can answer."""
        framing = self.framing
        self.headers = framing.headers
        # An unsent answer would be counted by nothing after the hand-over.
        if self.is_busy() or self.bounds.blocked or not self._should_upgrade():
            return False
        if framing.parser.get_http_version() == "1.0" or not framing.is_ours():
            return False
        kept = handshake.needed(framing.parser.get_method(), framing.url, framing.headers)
        if kept is None:
            return False
        self.context.connections.discard(self)
        self._stay_counted()
        self.url = framing.url
        self.scope = {"method": "GET", "headers": kept}  # type: ignore[typeddict-item]
        self.handle_websocket_upgrade()
        return True

    def _stay_counted(self) -> None:
        """Count the WebSocket that this becomes as a connection of the worker and of its address."""
        context, address, make = self.context, self.bounds.hand_over(), self.ws_protocol_class
        context.upgraded += 1

        def depart() -> None:
            context.upgraded -= 1
            context.addresses.leave(address)

        def made(**given: Any) -> Any:
            protocol: Any = make(**given)  # type: ignore[misc]
            protocol.depart, protocol.address = depart, address
            return protocol

        self.ws_protocol_class = made  # type: ignore[assignment]
