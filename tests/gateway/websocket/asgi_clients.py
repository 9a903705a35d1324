"""Clients of a worker's WebSockets, speaking ASGI as uvicorn does, and a feed that follows the test."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

from tests.gateway.callers import PEPPER, TOKEN
from tests.gateway.fake_gateway import FakeGateway, open_gateway
from tests.gateway.fakes import run_pending

from tollgate.chains.subscriptions import Wrong
from tollgate.gateway.feeds.feed import Feeds
from tollgate.gateway.feeds.subscribers import Subscriber
from tollgate.gateway.upstream.sticky import TeamSeal
from tollgate.gateway.websocket.endpoint import Endpoint
from tollgate.gateway.websocket.subscriptions import SocketPipeline
from tollgate.settings import model

PATH = "/x/eth/mainnet"


class Stream:
    """A feed that follows the test."""

    def __init__(self) -> None:
        self.subscribers: list[Subscriber] = []
        self.wrong: Wrong | None = None
        self.gate: asyncio.Event | None = None
        """If not None, subscribers join once it is set."""

    async def join(self, subscriber: Subscriber) -> None:
        if self.gate is not None:
            await self.gate.wait()
        if self.wrong is not None:
            raise self.wrong
        self.subscribers.append(subscriber)

    def leave(self, subscriber: Subscriber) -> None:
        subscriber.gone = True
        if subscriber in self.subscribers:
            self.subscribers.remove(subscriber)

    def notify(self, result: object) -> None:
        for subscriber in list(self.subscribers):
            subscriber.notify(json.dumps(result).encode())


class SocketServer:
    """A worker with an endpoint for WebSockets."""

    def __init__(self, gateway: FakeGateway, **settings: Any) -> None:
        self.gateway = gateway
        gateway.echo()
        self.stream = Stream()
        self.pipeline = SocketPipeline(
            gateway.credentials,
            gateway.limiter,
            gateway.networks.all,
            gateway.counters,
            max_calls=100,
            request_seconds=30.0,
            now=gateway.clock,
            sink=gateway.sink,
            seal=TeamSeal(PEPPER),
        )
        self.pipeline.serve = gateway.calls.serve
        self.endpoint = Endpoint(
            gateway.context,
            self.pipeline,
            gateway.credentials,
            cast("Feeds", _Feeds(self.stream)),
            gateway.regions.writer(0),
            model.WebSocketSettings(**settings),
            grace_seconds=10.0,
        )

    async def open(
        self, path: str = PATH, *, token: str | None = TOKEN, address: str = "192.0.2.1", **headers: str
    ) -> Client:
        """A client connects; `_` in a header's name means `-`."""
        client = Client(self, path, token, headers, address)
        await run_pending()
        return client


class _Feeds:
    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def feed(self, path: str) -> Stream:
        return self._stream


class Client:
    """One client: what it was sent, and how it was closed."""

    def __init__(
        self, server: SocketServer, path: str, token: str | None, headers: dict[str, str], address: str
    ) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            named["authorization"] = f"Bearer {token}"
        offered = [each.strip() for each in named.get("sec-websocket-protocol", "").split(",") if each.strip()]
        self.scope: dict[str, Any] = {
            "type": "websocket",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in named.items()],
            "subprotocols": offered,
            "client": (address, 50_000),
        }
        self.server = server
        self.sent: list[dict[str, Any]] = []
        self.reads = True
        """Whether it takes what it is sent."""
        self._inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._inbox.put_nowait({"type": "websocket.connect"})
        self._drained = asyncio.Event()
        self.task = asyncio.ensure_future(server.endpoint(self.scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        return await self._inbox.get()

    async def _send(self, message: dict[str, Any]) -> None:
        while not self.reads and message["type"] == "websocket.send":
            try:
                await self._drained.wait()
            except asyncio.CancelledError:
                self.sent.append({"type": "cancelled"})
                raise
        if message["type"] == "websocket.close":
            self.sent.append({"type": "closing"})
            # The server may notice the end before it has sent all of it.
            self._inbox.put_nowait({"type": "websocket.disconnect", "code": message["code"]})
            await run_pending(4)
        self.sent.append(message)

    async def deliver(self, message: object) -> None:
        """Send a message, and wait for what comes of it."""
        self.post(message)
        await run_pending(40)

    def post(self, message: object) -> None:
        """Send a message."""
        text = message if isinstance(message, str | bytes) else json.dumps(message)
        kind = "bytes" if isinstance(text, bytes) else "text"
        self._inbox.put_nowait({"type": "websocket.receive", kind: text})

    async def leave(self) -> None:
        """Disconnect."""
        self._inbox.put_nowait({"type": "websocket.disconnect", "code": 1000})
        await run_pending(40)

    def read_on(self) -> None:
        """Take what waits."""
        self.reads = True
        self._drained.set()

    def received(self) -> list[Any]:
        """What it was sent since the last look."""
        received = [json.loads(each["text"]) for each in self.sent if each["type"] == "websocket.send"]
        self.sent = [each for each in self.sent if each["type"] != "websocket.send"]
        return received

    @property
    def accepted(self) -> dict[str, Any] | None:
        return next((each for each in self.sent if each["type"] == "websocket.accept"), None)

    @property
    def closed(self) -> tuple[int, str] | None:
        return next(
            ((each["code"], each["reason"]) for each in self.sent if each["type"] == "websocket.close"), None
        )

    @property
    def refused(self) -> tuple[int, Any, dict[bytes, bytes]] | None:
        """The HTTP answer to its handshake: status, body, headers."""
        start = [each for each in self.sent if each["type"] == "websocket.http.response.start"]
        body = [each for each in self.sent if each["type"] == "websocket.http.response.body"]
        return (start[0]["status"], json.loads(body[0]["body"]), dict(start[0]["headers"])) if start else None


async def open_server(settings: dict[str, Any] | None = None, **options: Any) -> SocketServer:
    """A worker with an endpoint; its connections end with the loop."""
    server = SocketServer(await open_gateway(**options), **(settings or {}))
    # Held by the loop, which ends its tasks: left alone they may be swept up while they wait.
    vars(asyncio.get_running_loop()).setdefault("servers", []).append(server)
    return server


def call(call_id: object, method: str = "eth_chainId", *params: object) -> dict[str, object]:
    """A call, to be written as JSON."""
    return {"jsonrpc": "2.0", "id": call_id, "method": method, "params": list(params)}
