"""One connection to an upstream. Each response is fed whole, byte by byte, and with something behind it."""

import gzip

import pytest
from tests.gateway.fake_node import http
from tests.gateway.fakes import run_pending
from tests.gateway.raw_http import Feed, whole
from tests.gateway.upstream.fake_upstream import BODY, FakeUpstream, ResponseFuture, chunked, feeds

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
    upstream = FakeUpstream()
    for _ in range(2):
        assert await upstream.exchange(feed(response)) == Response(200, BODY)
    assert upstream.pool.idle == [upstream.connection] * 2
    assert upstream.connection.usable
    assert not upstream.connection.busy
    assert not upstream.transport.closed


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
    upstream = FakeUpstream()
    assert await upstream.exchange(feed(response)) == Response(200, BODY)
    assert upstream.pool.idle == []
    assert not upstream.connection.usable
    assert upstream.transport.closed
    await run_pending()
    assert upstream.pool.lost_connections == [upstream.connection]


@feeds
@pytest.mark.parametrize("body", [BODY, gzip.compress(BODY)], ids=["plain", "gzip"])
async def test_response_without_a_length_ends_with_the_connection(feed: Feed, body: bytes) -> None:
    upstream = FakeUpstream()
    pending = upstream.send()
    for piece in feed(b"HTTP/1.1 200 OK\r\n\r\n" + body):
        upstream.transport.deliver(piece)
    assert not pending.done()
    upstream.transport.drop()
    assert await pending == Response(200, BODY)
    assert upstream.pool.lost_connections == [upstream.connection]


@feeds
@pytest.mark.parametrize("status", [b"404 Not Found", b"503 Service Unavailable", b"429 Too Many Requests"])
async def test_status_is_handed_on(feed: Feed, status: bytes) -> None:
    assert await FakeUpstream().exchange(feed(http(b"no", status=status))) == Response(int(status[:3]), b"no")


@pytest.mark.parametrize("length", [0, 1_023, 1_024, 1_025])
async def test_request_has_its_length(length: int) -> None:
    upstream = FakeUpstream()
    upstream.connection.send(b"x" * length, 2_000.0, ResponseFuture())
    assert upstream.transport.take() == b"POST / HTTP/1.1\r\ncontent-length: %d\r\n\r\n%b" % (
        length,
        b"x" * length,
    )


async def test_response_with_an_empty_body_is_a_response() -> None:
    assert await FakeUpstream().exchange(whole(http(b""))) == Response(200, b"")
    assert await FakeUpstream().exchange(whole(b"HTTP/1.1 204 No Content\r\n\r\n")) == Response(204, b"")
