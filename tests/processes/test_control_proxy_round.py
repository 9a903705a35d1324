"""Whole rounds: a client, a worker's server that forwards, the control process's server, an app behind it."""

import asyncio
import hashlib
import json
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
import uvloop
from tests.inner import Client

from tollgate.processes.control_proxy import ControlProxy, behind_workers
from tollgate.processes.listeners import bind_unix
from tollgate.processes.status import App, Receive, Scope, Send

LOOPBACK = "127.0.0.1"
MEGABYTE = 1_048_576
LOOPS = pytest.mark.parametrize(
    "new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)
NewLoop = Callable[[], asyncio.AbstractEventLoop]


class Control:
    """An app that returns what it sees."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.lost_client = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await getattr(self, scope["path"].strip("/"))(scope, receive, send)

    async def echo(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Return what was requested, in a body as long as the request's and a header with the rest."""
        body = await _body(receive)
        seen = {key: scope[key] for key in ("method", "scheme", "client")}
        seen |= {"query": scope["query_string"].decode(), "digest": hashlib.sha256(body).hexdigest()}
        seen |= {"headers": [[name.decode(), value.decode()] for name, value in scope["headers"]]}
        headers = [(b"x-seen", json.dumps(seen).encode()), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def chunked(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for piece in (b"a" * 70_000, b"", b"b", b"c" * MEGABYTE):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"."})

    async def stream(self, _scope: Scope, receive: Receive, send: Send) -> None:
        await _body(receive)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        await self.go_on.wait()
        await send({"type": "http.response.body", "body": b"last"})

    async def endless(self, _scope: Scope, receive: Receive, send: Send) -> None:
        await _body(receive)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        assert (await receive())["type"] == "http.disconnect"
        self.lost_client.set()

    async def breaks(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"first", "more_body": True})

    async def hasty(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """Answer at length without a look at the body."""
        headers = [(b"content-length", b"%d" % (4 * MEGABYTE))]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": b"n" * (4 * MEGABYTE)})

    async def unchanged(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 304, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b""})


async def _body(receive: Receive) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message["body"], message["more_body"]
    return body


class _Server(uvicorn.Server):
    def __init__(self, app: App) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http="httptools",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=1,
            )
        )
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


@asynccontextmanager
async def serving(app: App, listener: socket.socket) -> AsyncIterator[None]:
    """Serve an app on a socket."""
    server = _Server(app)
    task = asyncio.ensure_future(server.serve([listener]))
    try:
        async with asyncio.timeout(30):
            await server.ready.wait()
        yield
    finally:
        server.should_exit = True
        await task
        listener.close()


def proxy(inner: socket.socket) -> ControlProxy:
    return ControlProxy(inner.getsockname(), trusted=(), max_bytes=8 * MEGABYTE, max_at_once=10, seconds=10)


def go_round(new_loop: NewLoop, test: Callable[[httpx.AsyncClient, Control], Coroutine[Any, Any, None]]) -> None:
    """Run a test with a client of the worker's server."""

    async def inside() -> None:
        control = Control()
        outer = socket.create_server((LOOPBACK, 0))
        url = f"http://{LOOPBACK}:{outer.getsockname()[1]}"
        with tempfile.TemporaryDirectory() as folder:
            inner = bind_unix(Path(folder), "control.sock")
            async with (
                serving(behind_workers(control), inner),
                serving(proxy(inner), outer),
                httpx.AsyncClient(base_url=url, trust_env=False, timeout=30) as client,
            ):
                await test(client, control)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(inside())


@LOOPS
@pytest.mark.parametrize("size", [0, 1, MEGABYTE, 8 * MEGABYTE])
def test_bodies_cross_both_ways(new_loop: NewLoop, size: int) -> None:
    async def test(client: httpx.AsyncClient, _control: Control) -> None:
        body = hashlib.shake_256(b"seed").digest(size)
        # Twice: the client's connection is kept.
        for _ in range(2):
            answer = await client.post("/echo", content=body)
            assert answer.status_code == 200
            assert answer.content == body
            seen = json.loads(answer.headers["x-seen"])
            assert seen["digest"] == hashlib.sha256(body).hexdigest()
            assert ["content-length", str(size)] in seen["headers"]

    go_round(new_loop, test)


@LOOPS
def test_body_of_the_client_may_be_chunked(new_loop: NewLoop) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for piece in (b"one", b"two"):
            yield piece

    async def test(client: httpx.AsyncClient, _control: Control) -> None:
        answer = await client.post("/echo", content=pieces())
        assert answer.content == b"onetwo"
        names = [name for name, _ in json.loads(answer.headers["x-seen"])["headers"]]
        assert names.count("content-length") == 1
        assert "transfer-encoding" not in names

    go_round(new_loop, test)


@LOOPS
def test_app_sees_the_client_and_not_the_worker(new_loop: NewLoop) -> None:
    async def test(client: httpx.AsyncClient, _control: Control) -> None:
        spoofed = {
            "x-tollgate-client": "203.0.113.9",
            "x-tollgate-scheme": "https",
            "x-forwarded-for": "203.0.113.9",
        }
        mine = {"authorization": "Bearer mine", "x-request-id": "mine-1", "host": "rpc.example"}
        answer = await client.get("/echo?a=%20b&c", headers=spoofed | mine)
        seen = json.loads(answer.headers["x-seen"])
        assert (seen["method"], seen["scheme"], seen["query"]) == ("GET", "http", "a=%20b&c")
        assert seen["client"] == [LOOPBACK, 0]
        headers = dict(seen["headers"])
        assert headers.items() >= mine.items()
        assert not [name for name in headers if name.startswith(("x-tollgate-", "x-forwarded-"))]
        assert answer.headers["x-request-id"] == "mine-1"
        assert len(answer.headers.get_list("date")) == 1

    go_round(new_loop, test)


@LOOPS
def test_chunked_answer_crosses(new_loop: NewLoop) -> None:
    async def test(client: httpx.AsyncClient, _control: Control) -> None:
        answer = await client.get("/chunked")
        assert answer.headers["transfer-encoding"] == "chunked"
        assert answer.content == b"a" * 70_000 + b"b" + b"c" * MEGABYTE + b"."

    go_round(new_loop, test)


@LOOPS
@pytest.mark.parametrize(("method", "path", "status"), [("HEAD", "/echo", 200), ("GET", "/unchanged", 304)])
def test_answers_without_a_body_leave_the_connection_in_order(
    new_loop: NewLoop, method: str, path: str, status: int
) -> None:
    async def test(client: httpx.AsyncClient, _control: Control) -> None:
        for _ in range(2):
            answer = await client.request(method, path)
            assert (answer.status_code, answer.content) == (status, b"")

    go_round(new_loop, test)


@LOOPS
def test_stream_arrives_before_its_end(new_loop: NewLoop) -> None:
    async def test(client: httpx.AsyncClient, control: Control) -> None:
        async with client.stream("GET", "/stream") as answer:
            pieces = answer.aiter_raw()
            assert await anext(pieces) == b"first"
            control.go_on.set()
            assert await anext(pieces) == b"last"
            assert [piece async for piece in pieces] == []

    go_round(new_loop, test)


@LOOPS
def test_app_notices_that_the_client_is_gone(new_loop: NewLoop) -> None:
    async def test(client: httpx.AsyncClient, control: Control) -> None:
        async with client.stream("GET", "/endless") as answer:
            assert await anext(answer.aiter_raw()) == b"first"
        async with asyncio.timeout(30):
            await control.lost_client.wait()

    go_round(new_loop, test)


@LOOPS
def test_answer_that_breaks_off_is_broken_for_the_client(new_loop: NewLoop) -> None:
    async def test(client: httpx.AsyncClient, _control: Control) -> None:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get("/breaks")

    go_round(new_loop, test)


@LOOPS
def test_answer_to_a_large_unread_body_arrives(new_loop: NewLoop) -> None:
    async def test(client: httpx.AsyncClient, _control: Control) -> None:
        answer = await client.post("/hasty", content=bytes(8 * MEGABYTE))
        assert (answer.status_code, len(answer.content)) == (401, 4 * MEGABYTE)

    go_round(new_loop, test)


def test_connection_that_finds_the_queue_full_is_refused_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        with bind_unix(tmp_path, "control.sock") as inner, socket.socket(socket.AF_UNIX) as first:
            inner.listen(0)
            first.connect(inner.getsockname())
            status, headers, _ = await Client(proxy(inner)).answer()
            assert status == 503
            assert (b"retry-after", b"1") in headers

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test())
