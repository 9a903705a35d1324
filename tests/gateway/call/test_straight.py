"""The fast path and the slow path are equal: in answers, records, metrics and upstream calls.

Each situation runs twice, on a worker with the fast path and on one without it, on the same clock
and with the same nodes; where a situation demands it, it is asserted that the straight way was really taken.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

import msgspec
import pytest
from msgspec import structs
from tests.gateway.callers import TOKEN, digest, token_grant
from tests.gateway.fake_gateway import FakeGateway, Tasks
from tests.gateway.fake_node import BROKEN, DROP, LAGGING, QUOTA, REVERTED, FakeNode, Http, http
from tests.gateway.fakes import FakeTransport, run_pending
from tests.gateway.raw_http import Answers, edge, hello

from tollgate.core.models import Team
from tollgate.gateway.call import straight_batch, straight_calls
from tollgate.gateway.http.response import FEW
from tollgate.gateway.upstream.connection import Connection
from tollgate.gateway.upstream.exchange import hedge_after

HEAD = 100
CHAIN = {"method": "eth_chainId"}
LATEST = {"method": "eth_getBalance", "params": ["0xa", "latest"]}
OLD = {"method": "eth_getBalance", "params": ["0xa", "0x5"]}
NUMBER = {"method": "eth_blockNumber", "params": []}
BLOCK = {"method": "eth_getBlockByNumber", "params": ["latest", False]}
NONCE = {"method": "eth_getTransactionCount", "params": ["0xb", "latest"]}
LOGS = {"method": "eth_getLogs", "params": [{"fromBlock": "0x1", "toBlock": "0x2"}]}
SEND = {"method": "eth_sendRawTransaction", "params": ["0x00"]}


def call(call_id: object, made: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": call_id, **made}


def sent(body: object, *lines: str, token: str | None = TOKEN) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body, separators=(",", ":")).encode()
    head = [
        "POST /x/eth/mainnet HTTP/1.1",
        "host: gate",
        *([f"authorization: Bearer {token}"] if token else []),
        "content-type: application/json",
        *lines,
        f"content-length: {len(data)}",
    ]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + data


def one(made: dict[str, Any], call_id: object = 7) -> list[bytes]:
    return [sent(call(call_id, made))]


def batch(*made: dict[str, Any], ids: list[object] | None = None) -> list[bytes]:
    return [sent([call(ids[place] if ids else place + 1, each) for place, each in enumerate(made)])]


@dataclass
class Situation:
    """What callers send, what nodes do, and whether it goes straight."""

    requests: list[bytes]
    nodes: Callable[[list[FakeNode]], None] = lambda _: None
    upstreams: list[dict[str, Any]] = field(default_factory=lambda: [{}])
    straight: bool | None = True
    """None: it may leave the fast path before or after it was sent."""
    options: dict[str, Any] = field(default_factory=dict)
    heads: list[int] = field(default_factory=list)
    grant: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    transform: Callable[[bytes], bytes] = lambda data: data
    """What becomes of a response on its way."""
    together: bool = False
    """Whether requests come from several connections at once."""
    warm: bool = True
    first: Callable[[FakeGateway], None] = lambda _: None
    """What happens before the first request."""


def answering(*given: Any) -> Callable[[list[FakeNode]], None]:
    """All nodes answer this, one after the other."""

    def script(nodes: list[FakeNode]) -> None:
        for node in nodes:
            node.in_turn(*given)

    return script


def first_answering(*given: Any) -> Callable[[list[FakeNode]], None]:
    return lambda nodes: nodes[0].in_turn(*given)


def silent(nodes: list[FakeNode]) -> None:
    nodes[0].holds = True


def at(*heads: int) -> Callable[[list[FakeNode]], None]:
    """Nodes report where they are."""

    def script(nodes: list[FakeNode]) -> None:
        for node, head in zip(nodes, heads, strict=True):
            node.respond_with(_is_at, head)

    return script


def _is_at(head: int, method: str, _params: Any) -> Any:
    return hex(head) if method == "eth_blockNumber" else {"number": hex(head)}


def gzipped(data: bytes) -> bytes:
    return http(gzip.compress(data.partition(b"\r\n\r\n")[2]), b"content-encoding: gzip")


def chunked(data: bytes) -> bytes:
    body = data.partition(b"\r\n\r\n")[2]
    half = len(body) // 2
    pieces = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (body[:half], body[half:]))
    return b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + pieces + b"0\r\n\r\n"


def unique(data: bytes) -> bytes:
    return data.replace(b"\r\n", b"\r\nx-request-id: %032x\r\n" % hash(data), 1)


def shuffled(data: bytes) -> bytes:
    replies = json.loads(data.partition(b"\r\n\r\n")[2])
    return http(json.dumps(replies[::-1] if isinstance(replies, list) else replies).encode())


def compact(data: bytes) -> bytes:
    return http(json.dumps(json.loads(_body(data)), separators=(",", ":")).encode())


def _body(data: bytes) -> bytes:
    return data.partition(b"\r\n\r\n")[2]


def in_batch(*members: bytes) -> bytes:
    """A batch of calls, each written by hand but for its id."""
    return sent(b"[%b]" % b",".join(b'{"jsonrpc":"2.0","id":%d,%b}' % each for each in enumerate(members)))


PLAIN = b'"method":"eth_getBalance","params":["0xa","latest"]'


def cut(data: bytes) -> bytes:
    return data[: len(data) - 4]


def in_doubt(gateway: FakeGateway) -> None:
    """The first upstream has failed until its breaker opened, and its time is over."""
    upstream = gateway["up0"]
    for _ in range(5):
        upstream.began()
        upstream.failed(gateway.clock())
    gateway.clock.advance(2.0)
    gateway.status.pulse()


def busy(gateway: FakeGateway) -> None:
    """No connection to an upstream is idle."""
    for upstream in gateway.exchange.upstreams:
        upstream.pool.idle.clear()


def later(seconds: float) -> Callable[[FakeGateway], None]:
    """So much time passes for tokens."""
    return lambda gateway: gateway.wall.advance(seconds)


CACHED: dict[str, Any] = {"cache_bytes": 1_000_000}
Upstreams = list[dict[str, Any]]
TWO: Upstreams = [{}, {}]
THREE: Upstreams = [{}, {}, {}]
EQUAL: Upstreams = [{"priority": 0}, {"priority": 0}, {"priority": 0}]

SITUATIONS: dict[str, Situation] = {
    "call": Situation(one(LATEST)),
    "calls one after the other": Situation([*one(LATEST, 1), *one(OLD, 2), *one(CHAIN, 3)]),
    "zero as id": Situation(one(LATEST, 0)),
    "large id": Situation(one(LATEST, 2**63)),
    "text as id": Situation(one(LATEST, "a\u00e9")),
    "text with escapes as id": Situation([sent(b'{"jsonrpc":"2.0","id":"\\u0061","method":"eth_chainId"}')]),
    "null as id": Situation(one(LATEST, None), straight=False),
    "negative zero as id": Situation([sent(b'{"jsonrpc":"2.0","id":-0,"method":"eth_chainId"}')], straight=False),
    "notification": Situation([sent({"jsonrpc": "2.0", **LATEST})], straight=False),
    "params null": Situation([sent({"jsonrpc": "2.0", "id": 1, "method": "eth_chainId", "params": None})]),
    "params as object": Situation(
        [sent({"jsonrpc": "2.0", "id": 1, "method": "eth_chainId", "params": {"a": 1}})]
    ),
    "text beyond ASCII": Situation(one(LATEST), answering("\u00e9"), transform=lambda data: data),
    "unknown method": Situation(one({"method": "foo_bar", "params": []}), straight=False),
    "transaction": Situation(one(SEND), straight=False),
    "logs": Situation(one(LOGS), answering([]), straight=False),
    "no JSON": Situation([sent(b"{")], straight=False),
    "nothing after a known head": Situation([*one(LATEST, 1), sent(b""), *one(LATEST, 2)], straight=None),
    "spaces around": Situation([sent(b" " + json.dumps(call(1, LATEST)).encode() + b"\n")]),
    "spaces before a batch": Situation(
        [sent(b" " + json.dumps([call(1, LATEST), call(2, CHAIN)]).encode())], straight=False
    ),
    "no call": Situation([sent(b"{}")], straight=False),
    "node's error": Situation(one(LATEST), answering(REVERTED), straight=None),
    "error of the node itself": Situation(one(LATEST), answering(BROKEN), upstreams=TWO, straight=None),
    "used up quota": Situation(one(LATEST), first_answering(QUOTA), upstreams=TWO, straight=None),
    "node that lags": Situation(one(OLD), first_answering(LAGGING), upstreams=TWO, straight=None),
    "status 500": Situation(one(LATEST), first_answering(Http(500)), upstreams=TWO, straight=None),
    "status 429": Situation(one(LATEST), first_answering(Http(429)), upstreams=THREE, straight=None),
    "status 500 of all": Situation(one(LATEST), answering(Http(500)), upstreams=TWO, straight=None, seconds=5.0),
    "cut connection": Situation(one(LATEST), first_answering(DROP, "after"), upstreams=TWO, straight=None),
    "cut connections of one": Situation(one(LATEST), answering(DROP, "after"), straight=None, seconds=5.0),
    "silent upstream": Situation(one(LATEST), silent, upstreams=TWO, straight=None, seconds=40.0),
    "silent upstream alone": Situation(one(LATEST), silent, straight=None, seconds=40.0),
    "silent first of three": Situation(one(LATEST), silent, upstreams=EQUAL, straight=None, seconds=40.0),
    "answers no JSON": Situation(
        one(LATEST), upstreams=TWO, transform=lambda data: http(b"<html>"), straight=None, seconds=5.0
    ),
    "answers neither": Situation(
        one(LATEST), transform=lambda data: http(b'{"id":7}'), straight=None, seconds=5.0
    ),
    "error null beside a result": Situation(
        one(LATEST),
        transform=lambda data: http(b'{"jsonrpc":"2.0","id":7,"result":1,"error":null}'),
        straight=None,
    ),
    "torn answer": Situation(one(LATEST), upstreams=TWO, transform=cut, straight=None, seconds=40.0),
    "gzip": Situation([*one(LATEST, 1), *one(LATEST, 2)], transform=gzipped),
    "chunked": Situation([*one(LATEST, 1), *one(LATEST, 2)], transform=chunked),
    "unique headers": Situation([*one(LATEST, 1), *one(LATEST, 2)], transform=unique),
    "tip": Situation([*one(NUMBER, 1), *one(BLOCK, 2)], at(HEAD)),
    "tip that moves on": Situation([*one(NUMBER, 1), *one(BLOCK, 2)], at(HEAD + 1)),
    "tip out of step": Situation(one(NUMBER), at(HEAD - 1, HEAD), upstreams=TWO, straight=None),
    "upstream that is behind": Situation(one(LATEST), upstreams=TWO, heads=[HEAD - 3, HEAD]),
    "block that one does not have": Situation(
        one({"method": "eth_getBalance", "params": ["0xa", hex(HEAD)]}), upstreams=TWO, heads=[HEAD - 3, HEAD]
    ),
    "three equal upstreams": Situation([*one(LATEST, 1), *one(OLD, 2), *one(CHAIN, 3)], upstreams=EQUAL),
    "three by priority": Situation([*one(LATEST, 1), *one(OLD, 2)], upstreams=THREE),
    "upstream with a list": Situation(
        [*one(LATEST, 1), *one(CHAIN, 2)], upstreams=[{"deny_methods": ("eth_getBalance",)}, {}]
    ),
    "upstream within its rate": Situation(
        [*one(LATEST, 1), *one(OLD, 2)], upstreams=[{"requests_per_second": 50}]
    ),
    "upstream with a rate": Situation(
        [one(LATEST, number)[0] for number in range(5)], upstreams=[{"requests_per_second": 3}, {}], straight=None
    ),
    "upstream without an archive": Situation(one(OLD), upstreams=[{"archive": False}, {}], heads=[9_000, 9_000]),
    "cached": Situation([*one(OLD, 1), *one(OLD, 2)], answering("0x1"), options=CACHED),
    "cached until the next block": Situation([*one(LATEST, 1), *one(LATEST, 2)], answering("0x1"), options=CACHED),
    "error is not cached": Situation(
        [*one(OLD, 1), *one(OLD, 2)], answering(REVERTED), options=CACHED, straight=None
    ),
    "equal calls at once": Situation(
        [*one(LATEST, 1), *one(LATEST, 2)], answering("0x1"), options=CACHED, together=True
    ),
    "equal calls at once that fail": Situation(
        [*one(LATEST, 1), *one(LATEST, 2)], answering(REVERTED), options=CACHED, together=True, straight=None
    ),
    "equal calls of which the first is cut off": Situation(
        [*one(LATEST, 1), *one(LATEST, 2)],
        first_answering(DROP, "x"),
        upstreams=TWO,
        options=CACHED,
        together=True,
        straight=None,
    ),
    "pipelined": Situation([b"".join(one(LATEST, number)[0] for number in range(5))], straight=None),
    "domain": Situation([sent(call(1, LATEST), "origin: https://app.example.com", token=None)] * 2),
    "shows upstream": Situation(
        [*one(OLD, 1), *one(OLD, 2)], answering("0x1"), options=CACHED, grant={"show_upstream": True}
    ),
    "connection: close": Situation([sent(call(1, LATEST), "connection: close")]),
    "request id of the caller": Situation([sent(call(1, LATEST), "x-request-id: mine")]),
    "limit of the token": Situation(
        [one(LATEST, number)[0] for number in range(5)], grant={"requests_per_second": 3}, straight=None
    ),
    "token for one method": Situation(
        [*one(LATEST, 1), *one(CHAIN, 2)], grant={"methods": ("eth_getBalance",)}, straight=None
    ),
    "token for another network": Situation(one(LATEST), grant={"networks": ("eth/sepolia",)}, straight=False),
    "spending cap in the record": Situation(one(LATEST), grant={"team": Team("team_1", "acme", spending_cap=5)}),
    "price in the record": Situation(one(LATEST), grant={"team": Team("team_1", "acme", free_requests=5)}),
    "nothing is believed": Situation(one(LATEST), heads=[-1], straight=False),
    "batch": Situation(batch(LATEST, LATEST, LATEST)),
    "batch with answers as short as can be": Situation(batch(LATEST, LATEST, LATEST), transform=compact),
    "batch with ids of several lengths": Situation(
        batch(LATEST, LATEST, LATEST, ids=[9, 10, 11]), transform=compact
    ),
    "batch with ids that skip one": Situation(batch(LATEST, LATEST, ids=[1, 3]), transform=compact),
    "batch with spaces": Situation([sent(json.dumps([call(1, LATEST), call(2, LATEST)]).encode())]),
    "batch with a method twice": Situation([in_batch(b'"method":"debug_setHead",' + PLAIN, PLAIN)]),
    "batch with parameters twice": Situation([in_batch(b'"params":["0xb","0x1"],' + PLAIN, PLAIN)]),
    "batch with an unknown member": Situation([in_batch(b'"extra":[1],' + PLAIN, PLAIN)]),
    "batch with an escaped name": Situation([in_batch(PLAIN.replace(b"method", b"meth\\u006fd"), PLAIN)]),
    "batch with escaped parameters": Situation([in_batch(PLAIN.replace(b"0xa", b"0x\\u0061"), PLAIN)]),
    "batch with its members in another order": Situation([in_batch(PLAIN, b",".join(PLAIN.split(b",", 1)))]),
    "batch with parameters by name": Situation([in_batch(b'"method":"eth_chainId","params":{"a":1}', PLAIN)]),
    "batch without parameters": Situation([in_batch(b'"method":"eth_chainId"', PLAIN)]),
    "batch without the block": Situation([in_batch(b'"method":"eth_getBalance","params":["0xa"]', PLAIN)]),
    "batch whose answers have more": Situation(
        batch(LATEST, LATEST),
        transform=lambda data: http(_body(data).replace(b"{", b'{"took":1,')),
        straight=None,
    ),
    "batch whose answers have an error beside a result": Situation(
        batch(LATEST, LATEST),
        transform=lambda data: http(_body(data).replace(b"}", b', "error": {"code": 1, "message": "m"}}')),
        straight=None,
    ),
    "batch with an answer too few": Situation(
        batch(LATEST, LATEST, LATEST),
        upstreams=TWO,
        transform=lambda data: http(json.dumps(json.loads(_body(data))[:2]).encode()),
        straight=None,
        seconds=40.0,
    ),
    "batch of several methods": Situation(batch(LATEST, CHAIN, NONCE, OLD)),
    "batch about several blocks": Situation(
        batch(OLD, {"method": "eth_getBalance", "params": ["0xa", "0x6"]}, LATEST)
    ),
    "batch with large ids": Situation(batch(LATEST, CHAIN, ids=[2**53, 2**60])),
    "batch with equal ids": Situation(batch(LATEST, CHAIN, ids=[1, 1])),
    "batch with negative ids": Situation(batch(LATEST, CHAIN, ids=[-1, 3])),
    "batch with texts as ids": Situation(batch(LATEST, CHAIN, ids=["a", "b"]), straight=False),
    "batch with a notification": Situation([sent([call(1, LATEST), {"jsonrpc": "2.0", **CHAIN}])], straight=False),
    "batch with a refused call": Situation(batch(LATEST, {"method": "admin_peers", "params": []}), straight=False),
    "batch with logs": Situation(batch(LATEST, LOGS), answering([]), straight=False),
    "batch of one": Situation(batch(LATEST), straight=False),
    "empty batch": Situation([sent([])], straight=False),
    "batch that is too large": Situation(batch(*[LATEST] * 101), straight=False),
    "batch with node errors": Situation(batch(LATEST, OLD), answering("0x1", REVERTED), straight=None),
    "batch that is answered in another order": Situation(batch(LATEST, CHAIN, OLD), transform=shuffled),
    "batch of equal calls that is answered in another order": Situation(
        batch(LATEST, LATEST, LATEST), transform=shuffled
    ),
    "batch with parameters by name in the cache": Situation(
        [in_batch(b'"method":"eth_chainId","params":{"a":%d}' % number, PLAIN) for number in (1, 2, 1)],
        answering("0x1", "0x2", "0x3", "0x4"),
        options=CACHED,
        straight=None,
    ),
    "cap that is over": Situation(one(LATEST), grant={"capped_until": 1_699_999_999.0}),
    "cap that ends now": Situation(one(LATEST), grant={"capped_until": 1_700_000_000.0}),
    "cap": Situation(one(LATEST), grant={"capped_until": 1_700_000_001.0}, straight=False),
    "clients of several names on one connection": Situation(
        [sent(call(1, LATEST), f"user-agent: {name}") for name in ("a", "b", "a", "a", "b")]
    ),
    "batch that is cut off": Situation(
        batch(LATEST, CHAIN), first_answering(DROP, "x"), upstreams=TWO, straight=None
    ),
    "batch answered with a status": Situation(
        batch(LATEST, CHAIN), first_answering(Http(503)), upstreams=TWO, straight=None
    ),
    "batch at a silent upstream": Situation(
        batch(LATEST, CHAIN), silent, upstreams=TWO, straight=None, seconds=40.0
    ),
    "batch with the tip": Situation(batch(NUMBER, BLOCK), at(HEAD)),
    "batch with a tip that moves on": Situation(batch(NUMBER, BLOCK), at(HEAD + 1)),
    "batch with the tip out of step": Situation(
        batch(NUMBER, BLOCK), at(HEAD - 1, HEAD), upstreams=TWO, straight=None
    ),
    "batch with gzip": Situation(batch(LATEST, CHAIN), transform=gzipped),
    "batch in the cache": Situation([*batch(OLD, CHAIN), *batch(OLD, CHAIN)], answering("0x1"), options=CACHED),
    "batch partly in the cache": Situation(
        [*batch(OLD, CHAIN), *batch(OLD, NONCE, CHAIN, LATEST)], answering("0x1"), options=CACHED
    ),
    "batch with equal calls": Situation(batch(OLD, CHAIN, OLD, LATEST), answering("0x1"), options=CACHED),
    "batch with equal calls that fail": Situation(
        batch(OLD, CHAIN, OLD), answering(REVERTED), options=CACHED, straight=None
    ),
    "batch of a domain": Situation(
        [sent([call(1, LATEST), call(2, CHAIN)], "origin: https://app.example.com", token=None)]
    ),
    "batch over the limit": Situation(batch(LATEST, CHAIN, OLD), grant={"requests_per_second": 3}, straight=None),
    "batches within the limit and over it": Situation(
        [*batch(LATEST, CHAIN), *batch(LATEST, CHAIN)], grant={"requests_per_second": 3}, straight=None
    ),
    "batch within an upstream's rate": Situation(
        [*batch(LATEST, CHAIN), *batch(OLD, CHAIN)], upstreams=[{"requests_per_second": 50}]
    ),
    "batches over an upstream's rate": Situation(
        [*batch(LATEST, CHAIN), *batch(OLD, CHAIN), *batch(OLD, LATEST)],
        upstreams=[{"requests_per_second": 2}, {}],
        straight=None,
    ),
    "batch that shows its upstream": Situation(batch(LATEST, CHAIN), grant={"show_upstream": True}),
    "batch of equal calls that shows its upstream": Situation(
        batch(LATEST, LATEST), grant={"show_upstream": True}
    ),
    "equal batches that show their upstream": Situation(
        [*batch(OLD, OLD), *batch(LATEST, LATEST), *batch(OLD, CHAIN, CHAIN)],
        answering("0x1"),
        options=CACHED,
        grant={"show_upstream": True},
        straight=None,
    ),
    "batch of which one call is left": Situation(
        [*batch(OLD, CHAIN), *batch(OLD, CHAIN, LATEST)], answering("0x1"), options=CACHED, straight=None
    ),
    "batch while all connections are busy": Situation(batch(LATEST, CHAIN), first=busy, straight=None),
    "call while all connections are busy": Situation(one(LATEST), first=busy, straight=None),
    "batch at upstreams with lists": Situation(
        batch(LATEST, CHAIN), upstreams=[{"deny_methods": ("eth_chainId",)}, {}], straight=None
    ),
    "batch of an unknown method": Situation(batch({"method": "foo_bar", "params": []}, LATEST), straight=False),
    "batch with the tip behind other calls": Situation(
        batch(CHAIN, NUMBER), at(HEAD - 1, HEAD), upstreams=TWO, straight=None
    ),
    "batch of equal reads of the tip": Situation(batch(NUMBER, NUMBER, NUMBER), at(HEAD + 1)),
    "batch about old state at one without an archive": Situation(
        batch(LATEST, OLD), upstreams=[{"archive": False}, {}], heads=[9_000, 9_000]
    ),
    "batch about a block that one does not have": Situation(
        batch(OLD, {"method": "eth_getBalance", "params": ["0xa", hex(HEAD)]}),
        upstreams=TWO,
        heads=[HEAD - 3, HEAD],
    ),
    "batch about an old block and the tip while one is behind": Situation(
        batch(OLD, LATEST), upstreams=TWO, heads=[HEAD - 3, HEAD]
    ),
    "batch of one account at several blocks in the cache": Situation(
        [*batch(OLD, LATEST), *batch(OLD, LATEST)], answering("0x1"), options=CACHED
    ),
    "batch beyond ASCII": Situation(batch(LATEST, CHAIN), answering("\u00e9")),
    "batch beyond ASCII in its bytes": Situation(
        batch(LATEST, CHAIN),
        answering("\u00e9"),
        transform=lambda data: http(_body(data).replace(b"\\u00e9", b"\xc3\xa9")),
    ),
    "batch that is no text": Situation(
        batch(LATEST, CHAIN),
        answering("\u00e9"),
        transform=lambda data: http(_body(data).replace(b"\\u00e9", b"\xff")),
        straight=None,
        seconds=5.0,
    ),
    "beyond ASCII in its bytes": Situation(
        one(LATEST), answering("\u00e9"), transform=lambda data: http(_body(data).replace(b"\\u00e9", b"\xc3\xa9"))
    ),
    "no text": Situation(
        one(LATEST),
        answering("\u00e9"),
        transform=lambda data: http(_body(data).replace(b"\\u00e9", b"\xff")),
        straight=None,
        seconds=5.0,
    ),
    "batch with answers to other ids": Situation(
        batch(LATEST, CHAIN),
        transform=lambda data: http(json.dumps([{**each, "id": 5} for each in json.loads(_body(data))]).encode()),
        straight=None,
        seconds=5.0,
    ),
    "upstream that is tried again": Situation([*one(LATEST, 1), *one(LATEST, 2)], upstreams=TWO, first=in_doubt),
    "calls at once while one is tried again": Situation(
        [*one(LATEST, 1), *one(OLD, 2)], upstreams=TWO, first=in_doubt, together=True
    ),
    "batch at an upstream that is tried again": Situation(batch(LATEST, CHAIN), upstreams=TWO, first=in_doubt),
    "token that expires later": Situation(one(LATEST), grant={"expires_at": 1_700_000_100.0}, first=later(99.9)),
    "token that expires now": Situation(
        one(LATEST), grant={"expires_at": 1_700_000_100.0}, first=later(100.0), straight=False
    ),
    "large answer": Situation(one(LATEST), answering("x" * 70_000)),
    **{
        f"answer of {size} bytes": Situation(one(LATEST), answering("x" * (size - 36)))
        for size in (FEW - 1, FEW, FEW + 1)
    },
    "large answers to a batch": Situation(batch(LATEST, CHAIN), answering("x" * 70_000)),
    "cached with the answer as object": Situation(
        [
            *one({"method": "eth_chainId", "params": {"a": 1}}, 1),
            *one({"method": "eth_chainId", "params": {"a": 1}}, 2),
        ],
        answering("0x1"),
        options=CACHED,
    ),
}


class Played:
    """What became of a situation."""

    def __init__(self) -> None:
        self.answers: list[list[tuple[int, dict[bytes, bytes], Any]]] = []
        self.records: list[dict[str, Any]] = []
        self.metrics: dict[tuple[str, ...], int] = {}
        self.upstream_calls: list[list[Any]] = []
        self.ids: list[list[int]] = []
        """The ids of each batch that upstreams were sent."""
        self.tasks = 0
        self.floor = 0
        """How far callers know the chain to be."""
        self.fared: list[tuple[int, int]] = []
        """Calls to each upstream, and those that failed."""
        self.seconds: list[float] = []
        """How long each upstream is believed to take."""


def plain_answers(transport: FakeTransport) -> list[tuple[int, dict[bytes, bytes], Any]]:
    """Answers without what differs from request to request."""
    read = []
    for status, headers, body in Answers(transport.take()).read:
        assert headers[b"x-request-id"]
        kept = {name: value for name, value in headers.items() if name not in (b"x-request-id", b"date")}
        if headers.get(b"x-request-id") == b"mine":
            kept[b"x-request-id"] = b"mine"
        parsed = json.loads(body) if body else None
        for each in parsed if isinstance(parsed, list) else [parsed]:
            if isinstance(each, dict) and "data" in each.get("error", {}):
                each["error"]["data"].pop("request_id", None)
        read.append((status, kept, parsed))
    return read


async def play(situation: Situation, *, straight: bool) -> Played:
    gateway = FakeGateway(*situation.upstreams, straight=straight, **situation.options)
    await gateway.directory.refresh()
    grant = dict(situation.grant)
    team = grant.pop("team", None)
    gateway.store.tokens[digest(TOKEN)] = token_grant(team, **grant) if team else token_grant(**grant)
    heads = situation.heads or [HEAD] * len(gateway.nodes)
    if heads[0] >= 0:
        gateway.publish_heads(*heads, finalized=10)
    transports = [gateway.connect(hello) for _ in range(len(situation.requests) if situation.together else 1)]
    played = Played()
    if situation.warm:
        await warm_up(gateway, transports)
    situation.nodes(gateway.nodes)
    situation.first(gateway)
    for node in gateway.nodes:
        node.transform = situation.transform
        node.requests.clear()
    gateway.context.tasks = gateway.context.under_way.tasks = tasks = Tasks()
    gateway.journal.latencies.fold()
    before = dict(gateway.regions.totals())
    fared = [(upstream.calls, upstream.failures) for upstream in gateway.exchange.upstreams]
    written = len(gateway.sink.written)
    for place, request in enumerate(situation.requests):
        transports[place if situation.together else 0].deliver(request)
        if not situation.together:
            await settle(gateway, 0.0)
    await settle(gateway, situation.seconds)
    played.tasks = tasks.started
    played.answers = [plain_answers(transport) for transport in transports]
    played.records = [plain_record(entry) for entry in gateway.sink.written[written:]]
    if situation.together:
        # Answers of one loop turn have no order.
        played.records.sort(key=repr)
    gateway.journal.latencies.fold()
    totals = gateway.regions.totals()
    played.metrics = {
        key: value - before.get(key, 0) for key, value in totals.items() if value != before.get(key, 0)
    }
    played.floor = gateway.status.floor
    played.seconds = [upstream.ewma for upstream in gateway.exchange.upstreams]
    played.fared = [
        (upstream.calls - calls, upstream.failures - failures)
        for upstream, (calls, failures) in zip(gateway.exchange.upstreams, fared, strict=True)
    ]
    played.ids = [
        [call["id"] for call in each] for node in gateway.nodes for each in node.requests if isinstance(each, list)
    ]
    played.upstream_calls = [[plain_request(each) for each in node.requests] for node in gateway.nodes]
    assert len(gateway.context.under_way) == 0
    assert not gateway.resolver.flights
    for node in gateway.nodes:
        while node.held:
            node.release()
    await settle(gateway, 0.0)
    assert [upstream.in_flight for upstream in gateway.exchange.upstreams] == [0] * len(gateway.nodes)
    for pool in gateway.pools.values():
        pool.close()
    await run_pending()
    return played


def plain_request(body: Any) -> Any:
    """What a node was sent; the ids of a batch are ours to choose."""
    if isinstance(body, list):
        return [{name: value for name, value in each.items() if name != "id"} for each in body]
    return body


async def warm_up(gateway: FakeGateway, transports: list[FakeTransport]) -> None:
    """Let callers in, and open connections to all upstreams."""
    for node in gateway.nodes:
        node.holds = True
    gone = [gateway.connect(hello) for _ in range(3)]
    for number, transport in enumerate([*transports, *gone]):
        transport.deliver(sent(call(1, {"method": "eth_call", "params": [{"to": hex(number)}, "0x1"]})))
        await run_pending(30)
    gone.append(gateway.connect(hello))
    made = {"method": "eth_call", "params": [{"to": "0xd"}, "0x1"]}
    gone[-1].deliver(sent(call(1, made), "origin: https://app.example.com", token=None))
    await settle(gateway, 0.0)
    for upstream in gateway.exchange.upstreams:
        while upstream.pool.size < 4:
            pool = upstream.pool
            _, connection = await gateway.loop.create_connection(pool.connection, pool._host, pool._port)
            assert isinstance(connection, Connection)
            pool._all.add(connection)
            pool.freed(connection)
            if upstream.pool.size < 4:
                upstream.pool.idle.clear()
        upstream.pool.idle[:] = [each for each in upstream.pool._all if not each.busy]
    for node in gateway.nodes:
        node.holds = False
        while node.held:
            node.release()
    await run_pending(30)
    for transport in [*transports, *gone]:
        transport.take()
    gateway.exchange.random = Random(1).random
    # Limits and rates are whole again.
    gateway.clock.advance(70.0)
    gateway.status.pulse()


async def settle(gateway: FakeGateway, seconds: float) -> None:
    await run_pending(200)
    left = seconds
    while left > 0:
        step = min(left, 0.05)
        await gateway.loop.advance(step)
        gateway.networks.sweep()
        gateway.status.pulse()
        left -= step
    await run_pending(60)


def plain_record(entry: Any) -> dict[str, Any]:
    record = structs.asdict(entry)
    for name in ("at", "duration_micros", "request_id"):
        record.pop(name)
    record["calls"] = [structs.asdict(each) for each in entry.calls]
    return record


def exact(counts: dict[tuple[str, ...], int]) -> dict[tuple[str, ...], int]:
    """Counts without times, which may differ by a microsecond."""
    return {
        key: value for key, value in counts.items() if key[0] != "tollgate_upstream_seconds" and key[-1] != "sum"
    }


@pytest.mark.parametrize("name", SITUATIONS)
async def test_straight_way_and_general_way_are_equal(name: str) -> None:
    situation = SITUATIONS[name]
    straight, general = await play(situation, straight=True), await play(situation, straight=False)
    assert straight.answers == general.answers
    assert straight.records == general.records
    assert straight.upstream_calls == general.upstream_calls
    assert straight.floor == general.floor
    assert straight.fared == general.fared
    assert straight.seconds == pytest.approx(general.seconds)
    assert exact(straight.metrics) == exact(general.metrics)
    if situation.straight is True:
        assert straight.tasks == 0, "it left the fast path"
    assert general.tasks > 0 or situation.straight is not True


@pytest.mark.parametrize(
    ("ids", "travel"),
    [
        ([1, 2], [1, 2]),
        ([5, 3], [5, 3]),
        ([0, 7], [0, 7]),
        ([1, 1], [0, 1]),
        ([-1, 3], [0, 1]),
        ([2**53 - 1, 4], [2**53 - 1, 4]),
        ([2**53, 4], [0, 1]),
        ([2**53 - 2, 2**53 - 1], [2**53 - 2, 2**53 - 1]),
        ([2**53 - 1, 2**53], [0, 1]),
    ],
)
@pytest.mark.parametrize("second", [LATEST, CHAIN], ids=["alike", "other"])
async def test_ids_of_a_batch_travel_where_they_are_distinct_and_exact(
    ids: list[object], travel: list[int], second: dict[str, Any]
) -> None:
    played = await play(Situation(batch(LATEST, second, ids=ids)), straight=True)
    assert (played.ids, played.tasks) == ([travel], 0)
    assert [each["id"] for each in played.answers[0][0][2]] == ids


@pytest.mark.parametrize("ids", [[1, 2, 3], [9, 10, 11], [10, 11, 12], [0, 1, 2]])
async def test_batch_of_equal_calls_and_its_answers_travel_as_they_are(
    ids: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[object] = []

    def encode(value: object) -> bytes:
        encoded.append(value)
        return msgspec.json.encode(value)

    monkeypatch.setattr(straight_batch, "encode_json", encode)
    played = await play(Situation(batch(LATEST, LATEST, LATEST, ids=ids), transform=compact), straight=True)
    assert [each["result"] for each in played.answers[0][0][2]] == ["up0"] * 3
    # With ids of several lengths the answers are put together anew.
    assert len(encoded) == (1 if ids[0] == 9 else 0)


async def test_callers_are_let_in_anew_after_a_change_and_before_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(straight_calls, "_MAX_ADMISSIONS", 2)
    async with warm_gateway() as (gateway, (transport,)):
        admissions = gateway.straight._admissions
        admissions.clear()
        for agent, count in (("a", 1), ("b", 2), ("c", 1), ("c", 1), ("d", 2)):
            assert await statuses(transport, sent(call(1, LATEST), f"user-agent: {agent}")) == [200]
            assert len(admissions) == count
        gateway.context.renew()
        assert await statuses(transport, sent(call(1, LATEST), "user-agent: d")) == [200]
        (admission,) = admissions.values()
        assert edge(transport).admission is admission
        assert admission.epoch == gateway.context.epoch


class InOrder(set[Any]):
    """A set that is gone through in the order in which it was filled."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[Any] = []

    def add(self, each: Any) -> None:
        super().add(each)
        self.order.append(each)

    def __iter__(self) -> Iterator[Any]:
        return iter([each for each in self.order if each in self])

    def pop(self) -> Any:
        first = next(iter(self))
        self.discard(first)
        return first


@asynccontextmanager
async def warm_gateway(
    *upstreams: dict[str, Any], callers: int = 1, grant: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[tuple[FakeGateway, list[FakeTransport]]]:
    """Callers that were let in, and idle connections to all upstreams."""
    gateway = FakeGateway(*upstreams or [{}], **options)
    gateway.store.tokens[digest(TOKEN)] = token_grant(**(grant or {}))
    await gateway.directory.refresh()
    gateway.publish_heads(*[HEAD] * len(gateway.nodes), finalized=10)
    transports = [gateway.connect(hello) for _ in range(callers)]
    await warm_up(gateway, transports)
    yield gateway, transports
    for node in gateway.nodes:
        while node.held:
            node.release()
            await run_pending(30)
    for pool in gateway.pools.values():
        pool.close()
    await run_pending()


async def statuses(transport: FakeTransport, *requests: bytes) -> list[int]:
    """What a caller is answered to one request after the other."""
    for request in requests:
        transport.deliver(request)
        await run_pending(30)
    return [status for status, _, _ in plain_answers(transport)]


async def test_batch_with_a_call_that_is_under_way_waits_for_that_answer() -> None:
    async with warm_gateway(callers=2, **CACHED) as (gateway, (first, waiting)):
        node = gateway.nodes[0]
        node.holds = True
        node.requests.clear()
        first.deliver(one(LATEST)[0])
        waiting.deliver(batch(LATEST, CHAIN)[0])
        await run_pending(30)
        assert [isinstance(each, list) for each in node.requests] == [False, False], "the other call goes alone"
        while node.held:
            node.release()
            await run_pending(30)
        ((_, _, parsed),) = plain_answers(waiting)
        assert [each["result"] for each in parsed] == ["up0", "up0"]
        assert "coalesced" in [entry.calls[0].cache for entry in gateway.sink.written[-2:]]


@pytest.mark.parametrize("second", [LATEST, {"method": "foo_bar"}], ids=["straight", "on the slow path"])
async def test_as_many_calls_go_straight_as_may_be_under_way(second: dict[str, Any]) -> None:
    async with warm_gateway(callers=3) as (gateway, transports):
        gateway.nodes[0].holds = True
        context = gateway.context
        context.max_in_flight = 2
        answered = [
            await statuses(transport, *one(made))
            for transport, made in zip(transports, (LATEST, second, LATEST), strict=True)
        ]
        assert answered == [[], [], [503]]
        assert (len(context.calls), len(context.tasks)) == (2, 0)
        while gateway.nodes[0].held:
            gateway.nodes[0].release()
        await run_pending(30)
        assert [plain_answers(each)[0][0] for each in transports[:2]] == [200, 200]


@pytest.mark.parametrize("body", [one(LATEST)[0], batch(LATEST, CHAIN)[0]], ids=["call", "batch"])
async def test_time_that_a_call_took_is_written_down(body: bytes) -> None:
    async with warm_gateway() as (gateway, (transport,)):
        gateway.nodes[0].holds = True
        transport.deliver(body)
        await run_pending()
        gateway.clock.advance(0.25)
        gateway.nodes[0].release()
        await run_pending(30)
        assert gateway.sink.written[-1].duration_micros == 250_000


async def test_requests_of_a_loop_turn_leave_together_at_its_end() -> None:
    async with warm_gateway(callers=3) as (gateway, transports):
        gateway.nodes[0].holds = True
        for transport, (request,) in zip(
            transports, (one(LATEST), batch(LATEST, CHAIN), one(LATEST)), strict=True
        ):
            transport.deliver(request)
        assert gateway.nodes[0].held == []
        await run_pending(1)
        assert [isinstance(parsed, list) for _, parsed in gateway.nodes[0].held] == [False, True, False]
        written = len(gateway.sink.written)
        await run_pending()
        assert len(gateway.sink.written) == written, "nothing was answered"


@pytest.mark.parametrize("request_", [one(LATEST)[0], batch(LATEST, CHAIN)[0]], ids=["call", "batch"])
async def test_request_whose_connection_is_lost_before_it_left_goes_another_way(request_: bytes) -> None:
    async with warm_gateway() as (gateway, (transport,)):
        connection: Any = gateway["up0"].pool.idle[-1]._transport
        connection.take()
        transport.deliver(request_)
        connection.drop()
        await run_pending(30)
        assert await statuses(transport) == [200]
        assert (connection.take(), connection.aborted) == (b"", False)


async def test_request_that_cannot_be_written_keeps_no_other_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async with warm_gateway(callers=2) as (gateway, transports):
        second, first = (cast("Any", connection._transport) for connection in gateway["up0"].pool.idle[-2:])
        monkeypatch.setattr(first, "write", lambda _data: 1 / 0)
        for transport in transports:
            transport.deliver(one(LATEST)[0])
        await run_pending(30)
        assert [await statuses(transport) for transport in transports] == [[200], [200]]
        assert (first.aborted, second.aborted) == (True, False)


@pytest.mark.parametrize(("seconds", "status"), [(99.9, 200), (100.0, 401)])
async def test_token_that_expires_is_refused_though_it_was_let_in(seconds: float, status: int) -> None:
    async with warm_gateway(grant={"expires_at": 1_700_000_100.0}) as (gateway, (transport,)):
        assert await statuses(transport, *one(LATEST), *one(LATEST)) == [200, 200]
        gateway.wall.advance(seconds)
        assert await statuses(transport, *one(LATEST)) == [status]


def left(*transports: FakeTransport) -> list[str]:
    """What the last answers say of the limit."""
    return [re.findall(rb"r=([0-9]+);", transport.take())[-1].decode() for transport in transports]


async def test_answers_of_one_loop_turn_show_the_same_of_a_limit_and_the_next_ones_what_is_left_then() -> None:
    async with warm_gateway(callers=3, grant={"requests_per_second": 100}) as (gateway, transports):
        for transport in transports:
            transport.take()
        gateway.nodes[0].holds = True
        for transport in transports[:2]:
            transport.deliver(one(LATEST)[0])
        await run_pending(30)
        for _ in range(2):
            gateway.nodes[0].release()
        await run_pending(30)
        both = left(*transports[:2])
        assert both[0] == both[1]
        gateway.nodes[0].holds = False
        transports[2].deliver(one(LATEST)[0])
        await run_pending(30)
        assert int(left(transports[2])[0]) == int(both[0]) - 1
        transports[0].deliver(batch(LATEST, CHAIN)[0])
        await run_pending(30)
        assert int(left(transports[0])[0]) == int(both[0]) - 3


@pytest.mark.parametrize("body", [one(LATEST)[0], batch(LATEST, CHAIN)[0]], ids=["call", "batch"])
async def test_rows_of_limits_are_found_again_where_others_were_given_them(body: bytes) -> None:
    async with warm_gateway(grant={"requests_per_second": 2}) as (gateway, (transport,)):
        await statuses(transport, body)
        admission: Any = edge(transport).admission
        admission.limits, admission.take_limits = "rows of others", lambda *_: None
        gateway.limiter.moved = lambda rows: rows == "rows of others"
        await statuses(transport, body)
        assert admission.limits == admission._limits


@pytest.mark.parametrize(
    ("body", "more"),
    [(one(OLD)[0], one(NONCE)[0]), (batch(OLD, CHAIN)[0], batch(NONCE, LATEST)[0])],
    ids=["call", "batch"],
)
@pytest.mark.parametrize("hedge", [True, False])
async def test_call_leaves_the_straight_way_when_its_upstream_is_late(
    body: bytes, more: bytes, hedge: bool
) -> None:
    async with warm_gateway({}, {}, callers=3, network={"hedge": hedge}, **CACHED) as (gateway, transports):
        for node in gateway.nodes:
            node.holds = True
        context = gateway.context
        context.calls = context.under_way.calls = InOrder()
        gateway.loop.timers.clear()
        context.under_way.sweeping = False
        for transport, each in zip(transports, (body, one(OLD)[0], more), strict=True):
            transport.deliver(each)
        assert len(gateway.loop.timers) == hedge, "one sweep for all"
        sent, coalesced, other = context.calls
        late = gateway.clock() + hedge_after(gateway["up0"])
        for now in (gateway.clock(), late - 0.001, late):
            assert set(context.calls) == {sent, coalesced, other}
            assert sent._work is None
            sent.hedge_if_late(now)
            coalesced.hedge_if_late(now + 1_000)
        # A batch continues on the slow path, a call where it was.
        left = {coalesced, other} if hedge and body[-1:] == b"]" else {sent, coalesced, other}
        assert set(context.calls) == left
        assert (sent in context.calls and sent._work is None) is not hedge


@pytest.mark.parametrize("body", [one(LATEST)[0], batch(LATEST, CHAIN)[0]], ids=["call", "batch"])
@pytest.mark.parametrize("cache_bytes", [0, 1_000_000])
async def test_end_of_the_grace_refuses_what_went_straight_and_leaves_nothing_behind(
    body: bytes, cache_bytes: int
) -> None:
    gateway = FakeGateway({}, cache_bytes=cache_bytes)
    await gateway.directory.refresh()
    gateway.publish_heads(HEAD, finalized=10)
    first, waiting = gateway.connect(hello), gateway.connect(hello)
    await warm_up(gateway, [first, waiting])
    (upstream,) = gateway.exchange.upstreams
    before = upstream.failures
    gateway.nodes[0].holds = True
    context = gateway.context
    context.calls = context.under_way.calls = InOrder()
    first.deliver(body)
    waiting.deliver(one(LATEST, 8)[0])
    await run_pending(30)
    assert len(context.under_way) == 2
    # Where answers are shared, the second waits for the first.
    assert len(gateway.nodes[0].held) == (1 if cache_bytes else 2)
    context.under_way.stop()
    await run_pending(30)
    for transport in (first, waiting):
        ((status, headers, parsed),) = plain_answers(transport)
        assert (status, headers[b"retry-after"]) == (503, b"1")
        errors = [each["error"]["data"]["reason"] for each in (parsed if isinstance(parsed, list) else [parsed])]
        assert set(errors) == {"overloaded"}
    assert (len(context.calls), len(context.under_way), upstream.in_flight) == (0, 0, 0)
    assert (upstream.failures, dict(gateway.resolver.flights)) == (before, {})
    while gateway.nodes[0].held:
        gateway.nodes[0].release()
    await run_pending(30)
    assert not first.written
    assert not waiting.written
    for pool in gateway.pools.values():
        pool.close()
    await run_pending()
