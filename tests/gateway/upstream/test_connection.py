"""One connection to an upstream. Each response is fed whole, byte by byte, and with something behind it."""

import gzip

import pytest
from tests.gateway.fake_node import http
from tests.gateway.fakes import run_pending
from tests.gateway.line import BODY, Feed, Line, ResponseFuture, chunked, feeds, whole

from tollgate.gateway.upstream.connection import Response

KEPT = {
    "length": http(BODY),
    "chunked": chunked(BODY),
    "chunked with a trailer": chunked(BODY)[:-2] + b"x-sum: 1\r\n\r\n",
    "gzip": http(gzip.compress(BODY), b"content-encoding: gzip"),
    "gzip, chunked": chunked(gzip.compress(BODY)),
    "gzip that is not announced": http(gzip.compress(BODY)),
    "after 100": b"HTTP/1.1 100 Continue\r\n\r\n" + http(BODY),
    "after 103": b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" + http(BODY),
    "many headers": http(BODY, *(b"x-%d: %d" % (number, number) for number in range(50))),
}


@feeds
@pytest.mark.parametrize("response", KEPT.values(), ids=KEPT.keys())
async def test_response_is_read_and_the_connection_kept(feed: Feed, response: bytes) -> None:
    line = Line()
    for _ in range(2):
        assert await line.answered(feed(response)) == Response(200, BODY)
    assert line.owner.idle == [line.connection] * 2
    assert line.connection.usable
    assert not line.connection.busy
    assert not line.transport.closed


@feeds
@pytest.mark.parametrize(
    "response",
    [
        http(BODY, b"connection: close"),
        http(BODY).replace(b"HTTP/1.1", b"HTTP/1.0"),
        chunked(BODY).replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n", 1),
    ],
    ids=["close", "HTTP/1.0", "chunked, close"],
)
async def test_connection_that_the_upstream_closes_is_not_kept(feed: Feed, response: bytes) -> None:
    line = Line()
    assert await line.answered(feed(response)) == Response(200, BODY)
    assert line.owner.idle == []
    assert not line.connection.usable
    assert line.transport.closed
    await run_pending()
    assert line.owner.gone == [line.connection]


@feeds
@pytest.mark.parametrize("body", [BODY, gzip.compress(BODY)], ids=["plain", "gzip"])
async def test_response_without_a_length_ends_with_the_connection(feed: Feed, body: bytes) -> None:
    line = Line()
    pending = line.begin()
    for piece in feed(b"HTTP/1.1 200 OK\r\n\r\n" + body):
        line.transport.deliver(piece)
    assert not pending.done()
    line.transport.drop()
    assert await pending == Response(200, BODY)
    assert line.owner.gone == [line.connection]


@feeds
@pytest.mark.parametrize("status", [b"404 Not Found", b"503 Service Unavailable", b"429 Too Many Requests"])
async def test_status_is_handed_on(feed: Feed, status: bytes) -> None:
    assert await Line().answered(feed(http(b"no", status=status))) == Response(int(status[:3]), b"no")


@pytest.mark.parametrize("length", [0, 1_023, 1_024, 1_025])
async def test_request_has_its_length(length: int) -> None:
    line = Line()
    line.connection.send(b"x" * length, 2_000.0, ResponseFuture())
    assert line.transport.take() == b"POST / HTTP/1.1\r\ncontent-length: %d\r\n\r\n%b" % (length, b"x" * length)


async def test_response_with_an_empty_body_is_a_response() -> None:
    assert await Line().answered(whole(http(b""))) == Response(200, b"")
    assert await Line().answered(whole(b"HTTP/1.1 204 No Content\r\n\r\n")) == Response(204, b"")
