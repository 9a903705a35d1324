"""uvicorn's protocols with WebSocket switched on, for the simulated node alone.

Owns only what uvicorn lacks: a client that does not read must not keep its connection open by not reading.
Imported by the process that serves the node, because the library behind it takes time to load.
"""

from __future__ import annotations

from typing import Any

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

_CLOSE_SECONDS = 1.0


class NodeProtocol(HttpToolsProtocol):
    """HTTP connections, which may become WebSocket connections."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.ws_protocol_class = NodeWebSocket


class NodeWebSocket(WebSocketsSansIOProtocol):
    """A WebSocket connection that ends within a bounded time."""

    async def send(self, message: ASGISendEvent) -> None:
        """Send, and wait for the client to read; unless it is told good-bye because it does not."""
        if message["type"] != "websocket.close" or self.writable.is_set() or self.close_sent:
            await super().send(message)
            return
        self.close_sent = True
        self.conn.send_close(message.get("code", 1000), message.get("reason") or "")
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.transport.close()
        self.loop.call_later(_CLOSE_SECONDS, self.transport.abort)
