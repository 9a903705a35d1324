"""WebSocket clients, byte by byte, over a fake caller connection."""

from __future__ import annotations

import functools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.gateway.callers import TOKEN
from tests.gateway.fakes import FakeTransport, run_pending
from tests.gateway.raw_http import Answers, Feed, whole
from tests.gateway.websocket.asgi_clients import PATH, SocketServer, open_server
from uvicorn.config import Config
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response
from websockets.uri import parse_uri

from tollgate.gateway.http.connection import CallerConnection
from tollgate.gateway.websocket.connection import Socket
from tollgate.processes.status import public_app


class SocketTransport(FakeTransport):
    """A transport that can change its protocol, and be full."""

    unsent = 0
    stuck = False
    """Whether nothing is taken any more: only an abort is the end then."""
    full = False
    """Whether the next byte that is written is one too many."""

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        super().write(data)
        if self.full:
            self.full = False
            self.protocol.pause_writing()

    def close(self) -> None:
        if self.stuck:
            self.closed = True
        else:
            super().close()

    def abort(self) -> None:
        if self.stuck:
            self.stuck = self.closed = False
        super().abort()

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def get_write_buffer_size(self) -> int:
        return self.unsent


class Caller:
    """A WebSocket client over a fake caller connection."""

    def __init__(self, server: SocketServer, **options: Any) -> None:
        self.server = server
        usual = {
            "log_config": None,
            "lifespan": "off",
            "access_log": False,
            "ws": functools.partial(Socket, server.endpoint.stop, server.gateway.context),
            "ws_max_size": 10_000,
            "ws_per_message_deflate": False,
            "ws_ping_interval": 20.0,
            "ws_ping_timeout": 20.0,
        }
        app = public_app(lambda: None, None, server.endpoint)
        config = Config(app, **{**usual, **options})
        edge = CallerConnection(
            server.gateway.context, config, server.gateway.server_state, {}, server.gateway.loop
        )
        self.transport = SocketTransport(edge)
        edge.connection_made(self.transport)
        self.client = ClientProtocol(parse_uri(f"ws://gate{PATH}"), max_size=None)

    def head(self, path: str = PATH, /, **headers: str | None) -> bytes:
        """A handshake; a header that is None is left out."""
        request = self.client.connect()
        named = dict(request.headers.raw_items()) | {"Authorization": f"Bearer {TOKEN}"}
        for name, value in headers.items():
            key = name.replace("_", "-")
            named.pop(key, None)
            if value is not None:
                named[key] = value
        lines = "".join(f"{name}: {value}\r\n" for name, value in named.items())
        return f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode()

    async def deliver(self, data: bytes, feed: Feed = whole) -> None:
        for piece in feed(data):
            self.transport.deliver(piece)
        await run_pending(60)

    async def connect(self, feed: Feed = whole) -> Response:
        request = self.client.connect()
        request.headers["Authorization"] = f"Bearer {TOKEN}"
        self.client.send_request(request)
        await self.deliver(b"".join(self.client.data_to_send()), feed)
        (response,) = self.events()
        assert isinstance(response, Response)
        return response

    def events(self) -> list[Request | Response | Frame]:
        self.client.receive_data(self.transport.take())
        return list(self.client.events_received())

    async def send(self, feed: Feed = whole) -> None:
        await self.deliver(b"".join(self.client.data_to_send()), feed)

    async def text(self, message: object, feed: Feed = whole) -> None:
        self.client.send_text(json.dumps(message).encode())
        await self.send(feed)

    def messages(self) -> list[Any]:
        return [json.loads(bytes(each.data)) for each in self.frames() if each.opcode is Opcode.TEXT]

    def frames(self) -> list[Frame]:
        return [each for each in self.events() if isinstance(each, Frame)]

    def closed(self) -> int | None:
        self.events()
        return self.client.close_rcvd.code if self.client.close_rcvd is not None else None

    @property
    def socket(self) -> Socket:
        assert isinstance(self.transport.protocol, Socket)
        return self.transport.protocol

    def answers(self) -> list[tuple[int, dict[bytes, bytes], bytes]]:
        """What was answered as HTTP."""
        return Answers(self.transport.take()).read


@asynccontextmanager
async def open_caller(**options: Any) -> AsyncIterator[Caller]:
    server = await open_server(**options)
    caller = Caller(server)
    yield caller
    caller.transport.drop()
    await run_pending()
