"""PURE: the cases that are driven: what a caller sends and what the upstreams reply. `drive.py` plays them.

The fast path is driven by eight callers in each loop tick, as under load; the slow path by one, so that the
failures of one call are not those of another.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Sequence
from dataclasses import dataclass

WIDTH = 8
LOST = b"lost"
"""Instead of a reply: the upstream resets all its connections."""
LATE = b"late"
"""Instead of a reply: the upstream waits; its reply follows those of the others."""
LENGTH = 10
"""Calls of a batch."""
RESULT = b'"0x8ac7230489e80000"'
REVERTED = b'{"code":3,"message":"execution reverted","data":"0x08c379a0"}'


def _call(number: int, method: bytes = b"eth_getBalance", params: bytes = b"") -> bytes:
    params = params or b'["0x%040x","latest"]' % (0xABC000 + number)
    return b'{"jsonrpc":"2.0","id":%d,"method":"%b","params":%b}' % (number, method, params)


def _logs(number: int) -> bytes:
    block_range = b'[{"fromBlock":"0x1312c00","toBlock":"0x1312c05","address":"0x%040x"}]' % number
    return _call(number, b"eth_getLogs", block_range)


def _ids(number: int) -> range:
    return range(number * LENGTH, (number + 1) * LENGTH)


def _array(items: Sequence[bytes]) -> bytes:
    return b"[" + b",".join(items) + b"]"


def _result(number: int, result: bytes = RESULT) -> bytes:
    return b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (number, result)


def _http(body: bytes, lines: bytes = b"", status: bytes = b"200 OK") -> bytes:
    return (
        b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nDate: Sun, 15 Nov 2026 16:46:00 GMT\r\n"
        b"%bContent-Length: %d\r\n\r\n%b" % (status, lines, len(body), body)
    )


def _reply(number: int) -> list[bytes]:
    return [_http(_result(number))]


@dataclass(frozen=True)
class Case:
    """A call, or a batch, that is counted. Its functions take the number of the call."""

    fast: bool
    """Whether it stays on the fast path."""
    bar: int | None = None
    """The instructions to stay below; None: there is no goal."""
    cached: bool = True
    """With a cache and a second upstream."""
    socket: bool = False
    """Over WebSocket."""
    body: Callable[[int], bytes] = _call
    replies: Callable[[int], list[bytes]] = _reply
    """What the upstreams reply, in the order of the attempts."""
    answer: bytes = b'"result":'
    """What the caller's answer contains."""

    @property
    def width(self) -> int:
        """Callers, each with one call in a loop tick."""
        return WIDTH if self.fast else 1


CASES = {
    "call": Case(fast=True, bar=80_000, cached=False),
    "miss": Case(fast=True, bar=95_000),
    "hit": Case(fast=True, bar=58_000, body=lambda _: _call(1), replies=lambda _: _reply(1)),
    "batch": Case(
        fast=True,
        bar=200_000,
        cached=False,
        body=lambda number: _array([_call(each) for each in _ids(number)]),
        replies=lambda number: [_http(_array([_result(each) for each in _ids(number)]))],
    ),
    "gzip": Case(
        fast=True,
        cached=False,
        replies=lambda number: [_http(gzip.compress(_result(number), 1), b"Content-Encoding: gzip\r\n")],
    ),
    "unique": Case(
        fast=True,
        cached=False,
        replies=lambda number: [_http(_result(number), b"x-request-id: %032x\r\n" % number)],
    ),
    "failover after 503": Case(
        fast=False,
        replies=lambda number: [_http(b"", status=b"503 Service Unavailable"), *_reply(number)],
    ),
    "dead upstream": Case(fast=False, replies=lambda number: [LOST, *_reply(number)]),
    "hedge": Case(fast=False, replies=lambda number: [LATE, *_reply(number) * 2]),
    "node error": Case(
        fast=False,
        replies=lambda number: [_http(b'{"jsonrpc":"2.0","id":%d,"error":%b}' % (number, REVERTED))],
        answer=b"execution reverted",
    ),
    "unknown method": Case(fast=False, body=lambda number: _call(number, b"foo_bar")),
    "transaction": Case(
        fast=False,
        body=lambda number: _call(number, b"eth_sendRawTransaction", b'["0x02f8720182%04x"]' % number),
    ),
    "logs": Case(fast=False, body=_logs, replies=lambda number: [_http(_result(number, b"[]"))]),
    "notification": Case(
        fast=False,
        body=lambda number: b'{"jsonrpc":"2.0","method":"eth_getBalance","params":["0x%040x","latest"]}' % number,
        replies=lambda _: _reply(1),
        answer=b"HTTP/1.1 204",
    ),
    "WebSocket call": Case(fast=True, socket=True),
    # The gateway sends the reads as a batch with ids of its own, and the logs as a call.
    "mixed batch": Case(
        fast=False,
        body=lambda number: _array([*map(_call, _ids(number)[:-1]), _logs(_ids(number)[-1])]),
        replies=lambda number: [
            _http(_array([_result(each) for each in range(LENGTH - 1)])),
            _http(_result(_ids(number)[-1], b"[]")),
        ],
    ),
}
