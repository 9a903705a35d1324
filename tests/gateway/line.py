"""One connection to an upstream with both its ends, and ways to feed it."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator

import pytest
from tests.gateway.fakes import FakeTransport

from tollgate.gateway.memory_budget import Budget
from tollgate.gateway.upstream.connection import AttemptFailed, Connection, KnownHeads, Response

MOST = 300_000
BODY = b'{"jsonrpc":"2.0","id":1,"result":"0x1"}'
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"

Feed = Callable[[bytes], Iterator[bytes]]


class ResponseFuture(asyncio.Future[Response]):
    """A receiver that a test awaits."""

    def received(self, status: int, body: bytes) -> None:
        if not self.done():
            self.set_result(Response(status, body))

    def failed(self, failure: AttemptFailed) -> None:
        if not self.done():
            self.set_exception(failure)


class Owner:
    """Writes down which connections came back and which are gone."""

    def __init__(self) -> None:
        self.idle: list[Connection] = []
        self.gone: list[Connection] = []
        self.waiters: deque[object] = deque()
        self.retired = False
        self.clock = 0.0

    def freed(self, connection: Connection) -> None:
        self.idle.append(connection)

    def lost(self, connection: Connection) -> None:
        self.gone.append(connection)


class Line:
    """A connection with both its ends."""

    def __init__(self, *, budget: int = 10_000_000, most: int = MOST) -> None:
        self.owner = Owner()
        self.budget = Budget(budget)
        self.connection = Connection(
            self.owner, b"POST / HTTP/1.1\r\ncontent-length: ", KnownHeads(), most, self.budget
        )
        self.transport = FakeTransport(self.connection)
        self.connection.connection_made(self.transport)

    def begin(self) -> ResponseFuture:
        response = ResponseFuture()
        self.connection.send(b"{}", 2_000.0, response)
        return response

    async def answered(self, pieces: Iterator[bytes]) -> Response:
        """Send, receive all the pieces, and see what came of it."""
        pending = self.begin()
        for piece in pieces:
            self.transport.deliver(piece)
        return await pending


def whole(data: bytes) -> Iterator[bytes]:
    yield data


def byte_by_byte(data: bytes) -> Iterator[bytes]:
    for index in range(len(data)):
        yield data[index : index + 1]


def in_two(data: bytes) -> Iterator[bytes]:
    yield data[: len(data) // 2]
    yield data[len(data) // 2 :]


feeds = pytest.mark.parametrize("feed", [whole, byte_by_byte, in_two])


def chunked(body: bytes, size: int = 10) -> bytes:
    chunks = [body[start : start + size] for start in range(0, len(body), size)]
    return CHUNKED + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
