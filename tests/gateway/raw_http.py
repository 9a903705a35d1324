"""What callers send: requests as bytes, whole or in pieces, and short forms of the answers."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import httptools
import pytest
from tests.gateway.callers import TOKEN
from tests.gateway.fake_gateway import FakeGateway
from tests.gateway.fake_node import echo
from tests.gateway.fakes import FakeTransport, run_pending

from tollgate.gateway.http.connection import CallerConnection

Feed = Callable[[bytes], Iterator[bytes]]


def whole(data: bytes) -> Iterator[bytes]:
    yield data


def byte_by_byte(data: bytes) -> Iterator[bytes]:
    for index in range(len(data)):
        yield data[index : index + 1]


feeds = pytest.mark.parametrize("feed", [whole, byte_by_byte])


def post(call_id: object = 1, *headers: str, path: str = "/x/eth/mainnet", version: str = "1.1") -> bytes:
    """A call of the usual caller, as HTTP."""
    body = json.dumps({"jsonrpc": "2.0", "id": call_id, "method": "eth_chainId"}).encode()
    lines = [
        f"POST {path} HTTP/{version}",
        "host: gate",
        f"authorization: Bearer {TOKEN}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        *headers,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


GET = b"GET /healthz HTTP/1.1\r\nhost: gate\r\n\r\n"


class Answers:
    """Reads what was written to a caller, as a client would."""

    def __init__(self, written: bytes) -> None:
        self.read: list[tuple[int, dict[bytes, bytes], bytes]] = []
        self._headers: dict[bytes, bytes] = {}
        self._body = b""
        self._parser = httptools.HttpResponseParser(self)
        self._parser.feed_data(written)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self.read.append((self._parser.get_status_code(), self._headers, self._body))
        self._headers, self._body = {}, b""


def responses(transport: FakeTransport) -> list[str]:
    """What was answered since the last look: `status what`, where what is an id, a reason or a body."""
    words = []
    for status, headers, body in Answers(transport.take()).read:
        if headers.get(b"content-type") == b"application/json":
            parsed = json.loads(body)
            what = parsed["error"]["data"]["reason"] if "error" in parsed else parsed["id"]
        else:
            what = body.decode()
        close = " close" if headers.get(b"connection") == b"close" else ""
        words.append(f"{status} {what}{close}".strip())
    return words


async def hello(scope: Any, receive: Any, send: Any) -> None:
    """The ASGI app: reads its body and answers its path."""
    message = await receive()
    while message.get("more_body"):
        message = await receive()
    text = scope["path"].encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(text))]})
    await send({"type": "http.response.body", "body": text})


async def exchange(transport: FakeTransport, pieces: Iterator[bytes]) -> list[str]:
    for piece in pieces:
        transport.deliver(piece)
    await run_pending(300)
    return responses(transport)


def edge(transport: FakeTransport) -> CallerConnection:
    """The connection behind a transport."""
    assert isinstance(transport.protocol, CallerConnection)
    return transport.protocol


def answer_upstream(gateway: FakeGateway) -> None:
    """The node answers what it was sent so far."""
    for upstream in gateway.loop.transports:
        if request := upstream.take():
            upstream.deliver(echo(request.partition(b"\r\n\r\n")[2]))
