"""Both ends of the forwarding side: a control process that follows the test, and a client driven by hand.

The sockets are real, the clock is not: deadlines pass when a test turns its hands.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from tollgate.core import addresses
from tollgate.processes.control_proxy import ControlProxy
from tollgate.processes.status import App, Scope

MAX_BYTES = 1_000
SECONDS = 5.0
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
MINE = (b"x-request-id", b"mine-1")

Headers = list[tuple[bytes, bytes]]


class Hands(asyncio.SelectorEventLoop):
    """A loop with a clock whose hands the test turns."""

    now = 1_000.0

    def time(self) -> float:
        return self.now


async def advance(seconds: float) -> None:
    """Let everybody come to their wait, turn the hands, and let those run whose time has come."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, Hands)
    await _turns()
    loop.now += seconds
    await _turns()


async def _turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class Call:
    """A request as it reached the control process, and the way to answer it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.line = b""
        self.headers: Headers = []
        self.body = b""

    async def read(self) -> Call:
        head = (await self._reader.readuntil(b"\r\n\r\n"))[:-4]
        self.line, *lines = head.split(b"\r\n")
        self.headers = [(name, value) for name, _, value in (line.partition(b": ") for line in lines)]
        self.body = await self._reader.readexactly(int(dict(self.headers)[b"content-length"]))
        return self

    def respond(self, *pieces: bytes) -> None:
        for piece in pieces:
            self._writer.write(piece)

    def hang_up(self) -> None:
        self._writer.close()

    def close(self) -> None:
        self._writer.transport.abort()

    async def dropped(self) -> None:
        """Wait until the other side is gone."""
        with suppress(ConnectionResetError):
            while await self._reader.read(65_536):
                pass
        self.close()


class Inner:
    """The control process's side of the socket."""

    def __init__(self, folder: str) -> None:
        self.calls: asyncio.Queue[Call] = asyncio.Queue()
        self.path = f"{folder}/control.sock"
        self._server: asyncio.Server | None = None
        self._all: list[Call] = []

    async def open(self) -> None:
        self._server = await asyncio.start_unix_server(self._accept, self.path)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        call = Call(reader, writer)
        self._all.append(call)
        self.calls.put_nowait(call)

    async def accepted(self) -> Call:
        return await self.calls.get()

    async def next_call(self) -> Call:
        return await (await self.accepted()).read()

    async def close(self) -> None:
        for call in self._all:
            call.close()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            self._server = None

    def app(self, *trusted: str, max_bytes: int = MAX_BYTES, max_at_once: int = 10) -> App:
        return ControlProxy(
            self.path,
            trusted=addresses.parse_networks(trusted),
            max_bytes=max_bytes,
            max_at_once=max_at_once,
            seconds=SECONDS,
        )


def scope(method: str = "GET", *headers: tuple[bytes, bytes], **changes: Any) -> Scope:
    """What uvicorn passes of a request."""
    return {
        "type": "http",
        "method": method,
        "path": "/api/v1/teams",
        "raw_path": b"/api/v1/teams",
        "query_string": b"",
        "scheme": "http",
        "client": ("192.0.2.7", 50_000),
        "headers": [(b"host", b"rpc.example"), *headers],
        **changes,
    }


class Client:
    """Drives an app as uvicorn does."""

    def __init__(self, app: App, given: Scope | None = None, *, body: tuple[bytes, ...] | None = (b"",)) -> None:
        self._coming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.task = asyncio.ensure_future(app(given or scope(), self._coming.get, self._sent.put))
        if body is not None:
            for piece in body[:-1]:
                self.send(piece)
            self.send(body[-1], more=False)

    def send(self, piece: bytes, *, more: bool = True) -> None:
        self._coming.put_nowait({"type": "http.request", "body": piece, "more_body": more})

    def leave(self) -> None:
        self._coming.put_nowait({"type": "http.disconnect"})

    async def next(self) -> dict[str, Any]:
        return await self._sent.get()

    def rest(self) -> list[dict[str, Any]]:
        """What was sent and not looked at yet."""
        return [self._sent.get_nowait() for _ in range(self._sent.qsize())]

    async def answer(self) -> tuple[int, Headers, bytes]:
        """Wait for the end of an answer that is whole."""
        await self.task
        start, *parts = self.rest()
        assert start["type"] == "http.response.start"
        assert {each["type"] for each in parts} == {"http.response.body"}
        assert [each.get("more_body", False) for each in parts] == [True] * (len(parts) - 1) + [False]
        return start["status"], start["headers"], b"".join(each["body"] for each in parts)


def with_inner(test: Callable[[Inner], Coroutine[Any, Any, None]]) -> None:
    """Run a test against a control process of its own."""

    async def inside() -> None:
        with tempfile.TemporaryDirectory() as folder:
            inner = Inner(folder)
            await inner.open()
            try:
                await test(inner)
            finally:
                await inner.close()

    with asyncio.Runner(loop_factory=Hands) as runner:
        runner.run(inside())


async def received_request(inner: Inner, app: App, given: Scope, *body: bytes) -> tuple[bytes, Headers, bytes]:
    """What the control process gets of a request."""
    client = Client(app, given, body=body or (b"",))
    call = await inner.next_call()
    call.respond(OK)
    assert (await client.answer())[0] == 200
    return call.line, call.headers, call.body


async def problem(client: Client, status: int) -> tuple[dict[bytes, bytes], dict[str, Any]]:
    """Wait for a problem, and look whether it is in order."""
    got, headers, body = await client.answer()
    assert got == status
    given, parsed = dict(headers), json.loads(body)
    assert given[b"content-type"] == b"application/problem+json"
    assert given[b"content-length"] == b"%d" % len(body)
    assert (parsed["type"], parsed["status"]) == ("about:blank", status)
    assert parsed["request_id"].encode() == given[b"x-request-id"]
    assert parsed["title"]
    assert parsed["reason"] != "internal_error"
    return given, parsed
