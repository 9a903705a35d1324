"""An upstream at the other end of one connection, and ways to feed its responses."""

import asyncio
from collections import deque
from collections.abc import Iterator

import pytest
from tests.gateway.fakes import FakeTransport
from tests.gateway.raw_http import byte_by_byte, whole

from tollgate.gateway.memory_budget import Budget
from tollgate.gateway.upstream.connection import AttemptFailed, Connection, KnownHeads, Response

MAX_BYTES = 300_000
BODY = b'{"jsonrpc":"2.0","id":1,"result":"0x1"}'
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


class ResponseFuture(asyncio.Future[Response]):
    """A receiver that the test awaits."""

    holder = ""

    def received(self, status: int, body: bytes) -> None:
        if not self.done():
            self.set_result(Response(status, body))

    def failed(self, failure: AttemptFailed) -> None:
        if not self.done():
            self.set_exception(failure)


class FakePool:
    """Records which connections were returned and which were lost."""

    def __init__(self) -> None:
        self.idle: list[Connection] = []
        self.lost_connections: list[Connection] = []
        self.waiters: deque[object] = deque()
        self.retired = False
        self.clock = 0.0

    def freed(self, connection: Connection) -> None:
        self.idle.append(connection)

    def lost(self, connection: Connection) -> None:
        self.lost_connections.append(connection)


class FakeUpstream:
    """An upstream and the one connection to it."""

    def __init__(self, *, budget: int = 10_000_000, max_bytes: int = MAX_BYTES) -> None:
        self.pool = FakePool()
        self.budget = Budget(budget)
        self.connection = Connection(
            self.pool, b"POST / HTTP/1.1\r\ncontent-length: ", KnownHeads(), max_bytes, self.budget
        )
        self.transport = FakeTransport(self.connection)
        self.connection.connection_made(self.transport)

    def send(self) -> ResponseFuture:
        response = ResponseFuture()
        self.connection.send(b"{}", 2_000.0, response)
        return response

    async def exchange(self, pieces: Iterator[bytes]) -> Response:
        """Send a request and receive the pieces of its response."""
        pending = self.send()
        for piece in pieces:
            self.transport.deliver(piece)
        return await pending


def in_two(data: bytes) -> Iterator[bytes]:
    yield data[: len(data) // 2]
    yield data[len(data) // 2 :]


feeds = pytest.mark.parametrize("feed", [whole, byte_by_byte, in_two])


def chunked(body: bytes, size: int = 10) -> bytes:
    chunks = [body[start : start + size] for start in range(0, len(body), size)]
    return CHUNKED + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
