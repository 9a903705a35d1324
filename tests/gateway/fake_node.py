"""A node whose answers are scripted, and the errors that nodes give."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec import Struct
from tests.gateway.fakes import FakeTransport


class Error(Struct, frozen=True):
    """A node's error."""

    code: int
    message: str = ""


class Http(Struct, frozen=True):
    """An HTTP status and a body instead of an answer."""

    status: int
    body: bytes = b""


DROP = "drop"
"""Close the connection instead of answering."""
QUOTA = Error(-32005, "daily request count exceeded, request rate limited")
LAGGING = Error(-32000, "header not found")
PRUNED = Error(-32000, "missing trie node 0d3a (path ) state 0x0d3a is not available")
BROKEN = Error(-32603, "Internal error")
TOO_WIDE = Error(-32602, "query exceeds max block range 1000")
REVERTED = Error(3, "execution reverted")
KNOWN = Error(-32000, "already known")
NONCE = Error(-32000, "nonce too low: next nonce 5, tx nonce 4")
UNSUPPORTED = Error(-32601, "the method eth_x does not exist/is not available")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object without duplicate members: nodes differ in which of two they take."""
    assert len(dict(pairs)) == len(pairs), pairs
    return dict(pairs)


class FakeNode:
    """An upstream's node: it answers what `respond` returns for a method and params, at once or on `release`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.respond: Callable[[str, Any], Any] = lambda method, params: name
        self.calls: list[tuple[str, Any]] = []
        """Each call received; calls of batches one by one."""
        self.requests: list[Any] = []
        """Each body received."""
        self.transform: Callable[[bytes], bytes] = lambda data: data
        """Changes an answer on its way."""
        self.holds = False
        """Whether requests wait for `release`."""
        self.held: list[tuple[FakeTransport, Any]] = []

    def receive(self, transport: FakeTransport, body: bytes) -> bytes | None:
        parsed = json.loads(body, object_pairs_hook=_once)
        self.requests.append(parsed)
        self.calls += [
            (each["method"], each["params"]) for each in (parsed if isinstance(parsed, list) else [parsed])
        ]
        if self.holds:
            self.held.append((transport, parsed))
            return None
        return self._answer(transport, parsed)

    def release(self, index: int = 0) -> None:
        """Answer one of the held requests."""
        transport, parsed = self.held.pop(index)
        answer = self._answer(transport, parsed)
        if answer is not None:
            transport.deliver(answer)

    def drop(self, index: int = 0) -> None:
        """Close the connection of one of the held requests."""
        self.held.pop(index)[0].drop()

    def _answer(self, transport: FakeTransport, parsed: Any) -> bytes | None:
        many = isinstance(parsed, list)
        replies = []
        for each in parsed if many else [parsed]:
            given = self.respond(each["method"], each["params"])
            if given is DROP:
                asyncio.get_running_loop().call_soon(transport.drop)
                return None
            if isinstance(given, Http):
                return self.transform(http(given.body, status=b"%d Status" % given.status))
            error = {"error": {"code": given.code, "message": given.message}} if isinstance(given, Error) else None
            replies.append({"jsonrpc": "2.0", "id": each["id"], **(error or {"result": given})})
        return self.transform(http(json.dumps(replies if many else replies[0]).encode()))

    def respond_with(self, respond: Callable[..., Any], *first: Any) -> None:
        """Answer what a function returns, called with these arguments, the method and its params."""
        self.respond = partial(respond, *first)

    def always(self, given: Any) -> None:
        """Give every call the same answer."""
        self.respond = lambda method, params: given

    def in_turn(self, *given: Any) -> None:
        """Give one answer after the other, the last one from then on."""
        left = list(given)
        self.respond = lambda method, params: left.pop(0) if len(left) > 1 else left[0]


def http(response: bytes, *headers: bytes, status: bytes = b"200 OK") -> bytes:
    """An HTTP response with a length."""
    lines = b"".join(b"%b\r\n" % line for line in (b"content-length: %d" % len(response), *headers))
    return b"HTTP/1.1 %b\r\n%b\r\n%b" % (status, lines, response)


def echo(body: bytes) -> bytes:
    """A node that answers every call with its method and params."""
    called = json.loads(body)
    replies = [
        {"jsonrpc": "2.0", "id": call["id"], "result": [call["method"], call["params"]]}
        for call in (called if isinstance(called, list) else [called])
    ]
    return http(json.dumps(replies if isinstance(called, list) else replies[0]).encode())
