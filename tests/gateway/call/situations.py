"""Situations that calls can meet, as a table, and what plays them: over HTTP on both paths, and by WebSocket."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from msgspec import structs
from tests.gateway.callers import TOKEN, digest, token_grant
from tests.gateway.calls import tries
from tests.gateway.fake_gateway import FakeGateway
from tests.gateway.fake_node import BROKEN, DROP, LAGGING, QUOTA, REVERTED, FakeNode, Http, http
from tests.gateway.fakes import FakeTransport, run_pending
from tests.gateway.raw_http import Answers, hello
from tests.gateway.websocket.asgi_clients import Client, SocketServer

from tollgate.core.models import Team
from tollgate.gateway.call import batch as batch_module
from tollgate.gateway.call import call as call_module
from tollgate.gateway.call.served import SlowState
from tollgate.gateway.http.response import FEW
from tollgate.gateway.upstream.connection import Connection

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
    """What callers send, what nodes do, and whether it takes the fast path."""

    requests: list[bytes]
    nodes: Callable[[list[FakeNode]], None] = lambda _: None
    upstreams: list[dict[str, Any]] = field(default_factory=lambda: [{}])
    fast: bool | None = True
    """None: it may leave the fast path after it was sent, or before."""
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

    @property
    def fits_websocket(self) -> bool:
        """Whether its requests are nothing but a body each, as messages are, and the handshake is not refused."""
        return self.grant.keys().isdisjoint({"show_upstream", "networks"}) and all(
            request == sent(request.partition(b"\r\n\r\n")[2]) for request in self.requests
        )


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
        upstream.started()
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
    "null as id": Situation(one(LATEST, None), fast=False),
    "negative zero as id": Situation([sent(b'{"jsonrpc":"2.0","id":-0,"method":"eth_chainId"}')], fast=False),
    "notification": Situation([sent({"jsonrpc": "2.0", **LATEST})], fast=False),
    "params null": Situation([sent({"jsonrpc": "2.0", "id": 1, "method": "eth_chainId", "params": None})]),
    "params as object": Situation(
        [sent({"jsonrpc": "2.0", "id": 1, "method": "eth_chainId", "params": {"a": 1}})]
    ),
    "text beyond ASCII": Situation(one(LATEST), answering("\u00e9"), transform=lambda data: data),
    "unknown method": Situation(one({"method": "foo_bar", "params": []}), fast=False),
    "transaction": Situation(one(SEND), fast=False),
    "logs": Situation(one(LOGS), answering([]), fast=False),
    "no JSON": Situation([sent(b"{")], fast=False),
    "nothing after a known head": Situation([*one(LATEST, 1), sent(b""), *one(LATEST, 2)], fast=None),
    "spaces around": Situation([sent(b" " + json.dumps(call(1, LATEST)).encode() + b"\n")]),
    "spaces before a batch": Situation(
        [sent(b" " + json.dumps([call(1, LATEST), call(2, CHAIN)]).encode())], fast=False
    ),
    "no call": Situation([sent(b"{}")], fast=False),
    "node's error": Situation(one(LATEST), answering(REVERTED), fast=None),
    "error of the node itself": Situation(one(LATEST), answering(BROKEN), upstreams=TWO, fast=None),
    "used up quota": Situation(one(LATEST), first_answering(QUOTA), upstreams=TWO, fast=None),
    "node that lags": Situation(one(OLD), first_answering(LAGGING), upstreams=TWO, fast=None),
    "status 500": Situation(one(LATEST), first_answering(Http(500)), upstreams=TWO, fast=None),
    "status 429": Situation(one(LATEST), first_answering(Http(429)), upstreams=THREE, fast=None),
    "status 500 of all": Situation(one(LATEST), answering(Http(500)), upstreams=TWO, fast=None, seconds=5.0),
    "cut connection": Situation(one(LATEST), first_answering(DROP, "after"), upstreams=TWO, fast=None),
    "cut connections of one": Situation(one(LATEST), answering(DROP, "after"), fast=None, seconds=5.0),
    "silent upstream": Situation(one(LATEST), silent, upstreams=TWO, fast=None, seconds=40.0),
    "silent upstream alone": Situation(one(LATEST), silent, fast=None, seconds=40.0),
    "silent first of three": Situation(one(LATEST), silent, upstreams=EQUAL, fast=None, seconds=40.0),
    "answers no JSON": Situation(
        one(LATEST), upstreams=TWO, transform=lambda data: http(b"<html>"), fast=None, seconds=5.0
    ),
    "answers neither": Situation(one(LATEST), transform=lambda data: http(b'{"id":7}'), fast=None, seconds=5.0),
    "error null beside a result": Situation(
        one(LATEST),
        transform=lambda data: http(b'{"jsonrpc":"2.0","id":7,"result":1,"error":null}'),
        fast=None,
    ),
    "torn answer": Situation(one(LATEST), upstreams=TWO, transform=cut, fast=None, seconds=40.0),
    "gzip": Situation([*one(LATEST, 1), *one(LATEST, 2)], transform=gzipped),
    "chunked": Situation([*one(LATEST, 1), *one(LATEST, 2)], transform=chunked),
    "unique headers": Situation([*one(LATEST, 1), *one(LATEST, 2)], transform=unique),
    "tip": Situation([*one(NUMBER, 1), *one(BLOCK, 2)], at(HEAD)),
    "tip that moves on": Situation([*one(NUMBER, 1), *one(BLOCK, 2)], at(HEAD + 1)),
    "tip out of step": Situation(one(NUMBER), at(HEAD - 1, HEAD), upstreams=TWO, fast=None),
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
        [one(LATEST, number)[0] for number in range(5)], upstreams=[{"requests_per_second": 3}, {}], fast=None
    ),
    "upstream without an archive": Situation(one(OLD), upstreams=[{"archive": False}, {}], heads=[9_000, 9_000]),
    "cached": Situation([*one(OLD, 1), *one(OLD, 2)], answering("0x1"), options=CACHED),
    "cached until the next block": Situation([*one(LATEST, 1), *one(LATEST, 2)], answering("0x1"), options=CACHED),
    "error is not cached": Situation([*one(OLD, 1), *one(OLD, 2)], answering(REVERTED), options=CACHED, fast=None),
    "equal calls at once": Situation(
        [*one(LATEST, 1), *one(LATEST, 2)], answering("0x1"), options=CACHED, together=True
    ),
    "equal calls at once that fail": Situation(
        [*one(LATEST, 1), *one(LATEST, 2)], answering(REVERTED), options=CACHED, together=True, fast=None
    ),
    "equal calls of which the first is cut off": Situation(
        [*one(LATEST, 1), *one(LATEST, 2)],
        first_answering(DROP, "x"),
        upstreams=TWO,
        options=CACHED,
        together=True,
        fast=None,
    ),
    "pipelined": Situation([b"".join(one(LATEST, number)[0] for number in range(5))], fast=None),
    "domain": Situation([sent(call(1, LATEST), "origin: https://app.example.com", token=None)] * 2),
    "shows upstream": Situation(
        [*one(OLD, 1), *one(OLD, 2)], answering("0x1"), options=CACHED, grant={"show_upstream": True}
    ),
    "connection: close": Situation([sent(call(1, LATEST), "connection: close")]),
    "request id of the caller": Situation([sent(call(1, LATEST), "x-request-id: mine")]),
    "limit of the token": Situation(
        [one(LATEST, number)[0] for number in range(5)], grant={"requests_per_second": 3}, fast=None
    ),
    "token for one method": Situation(
        [*one(LATEST, 1), *one(CHAIN, 2)], grant={"methods": ("eth_getBalance",)}, fast=None
    ),
    "token for another network": Situation(one(LATEST), grant={"networks": ("eth/sepolia",)}, fast=False),
    "spending cap in the record": Situation(one(LATEST), grant={"team": Team("team_1", "acme", spending_cap=5)}),
    "price in the record": Situation(one(LATEST), grant={"team": Team("team_1", "acme", free_requests=5)}),
    "nothing is believed": Situation(one(LATEST), heads=[-1], fast=False),
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
        fast=None,
    ),
    "batch whose answers have an error beside a result": Situation(
        batch(LATEST, LATEST),
        transform=lambda data: http(_body(data).replace(b"}", b', "error": {"code": 1, "message": "m"}}')),
        fast=None,
    ),
    "batch with an answer too few": Situation(
        batch(LATEST, LATEST, LATEST),
        upstreams=TWO,
        transform=lambda data: http(json.dumps(json.loads(_body(data))[:2]).encode()),
        fast=None,
        seconds=40.0,
    ),
    "batch of several methods": Situation(batch(LATEST, CHAIN, NONCE, OLD)),
    "batch about several blocks": Situation(
        batch(OLD, {"method": "eth_getBalance", "params": ["0xa", "0x6"]}, LATEST)
    ),
    "batch with large ids": Situation(batch(LATEST, CHAIN, ids=[2**53, 2**60])),
    "batch with equal ids": Situation(batch(LATEST, CHAIN, ids=[1, 1])),
    "batch with negative ids": Situation(batch(LATEST, CHAIN, ids=[-1, 3])),
    "batch with texts as ids": Situation(batch(LATEST, CHAIN, ids=["a", "b"]), fast=False),
    "batch with a notification": Situation([sent([call(1, LATEST), {"jsonrpc": "2.0", **CHAIN}])], fast=False),
    "batch with a refused call": Situation(batch(LATEST, {"method": "admin_peers", "params": []}), fast=False),
    "batch with logs": Situation(batch(LATEST, LOGS), answering([]), fast=False),
    "batch of one": Situation(batch(LATEST), fast=False),
    "empty batch": Situation([sent([])], fast=False),
    "batch that is too large": Situation(batch(*[LATEST] * 101), fast=False),
    "batch with node errors": Situation(batch(LATEST, OLD), answering("0x1", REVERTED), fast=None),
    "batch that is answered in another order": Situation(batch(LATEST, CHAIN, OLD), transform=shuffled),
    "batch of equal calls that is answered in another order": Situation(
        batch(LATEST, LATEST, LATEST), transform=shuffled
    ),
    "batch with parameters by name in the cache": Situation(
        [in_batch(b'"method":"eth_chainId","params":{"a":%d}' % number, PLAIN) for number in (1, 2, 1)],
        answering("0x1", "0x2", "0x3", "0x4"),
        options=CACHED,
        fast=None,
    ),
    "cap that is over": Situation(one(LATEST), grant={"capped_until": 1_699_999_999.0}),
    "cap that ends now": Situation(one(LATEST), grant={"capped_until": 1_700_000_000.0}),
    "cap": Situation(one(LATEST), grant={"capped_until": 1_700_000_001.0}, fast=False),
    "clients of several names on one connection": Situation(
        [sent(call(1, LATEST), f"user-agent: {name}") for name in ("a", "b", "a", "a", "b")]
    ),
    "batch that is cut off": Situation(batch(LATEST, CHAIN), first_answering(DROP, "x"), upstreams=TWO, fast=None),
    "batch answered with a status": Situation(
        batch(LATEST, CHAIN), first_answering(Http(503)), upstreams=TWO, fast=None
    ),
    "batch at a silent upstream": Situation(batch(LATEST, CHAIN), silent, upstreams=TWO, fast=None, seconds=40.0),
    "batch with the tip": Situation(batch(NUMBER, BLOCK), at(HEAD)),
    "batch with a tip that moves on": Situation(batch(NUMBER, BLOCK), at(HEAD + 1)),
    "batch with the tip out of step": Situation(
        batch(NUMBER, BLOCK), at(HEAD - 1, HEAD), upstreams=TWO, fast=None
    ),
    "batch with gzip": Situation(batch(LATEST, CHAIN), transform=gzipped),
    "batch in the cache": Situation([*batch(OLD, CHAIN), *batch(OLD, CHAIN)], answering("0x1"), options=CACHED),
    "batch partly in the cache": Situation(
        [*batch(OLD, CHAIN), *batch(OLD, NONCE, CHAIN, LATEST)], answering("0x1"), options=CACHED
    ),
    "batch with equal calls": Situation(batch(OLD, CHAIN, OLD, LATEST), answering("0x1"), options=CACHED),
    "batch with equal calls that fail": Situation(
        batch(OLD, CHAIN, OLD), answering(REVERTED), options=CACHED, fast=None
    ),
    "batch of a domain": Situation(
        [sent([call(1, LATEST), call(2, CHAIN)], "origin: https://app.example.com", token=None)]
    ),
    "batch over the limit": Situation(batch(LATEST, CHAIN, OLD), grant={"requests_per_second": 3}, fast=None),
    "batches within the limit and over it": Situation(
        [*batch(LATEST, CHAIN), *batch(LATEST, CHAIN)], grant={"requests_per_second": 3}, fast=None
    ),
    "batch within an upstream's rate": Situation(
        [*batch(LATEST, CHAIN), *batch(OLD, CHAIN)], upstreams=[{"requests_per_second": 50}]
    ),
    "batches over an upstream's rate": Situation(
        [*batch(LATEST, CHAIN), *batch(OLD, CHAIN), *batch(OLD, LATEST)],
        upstreams=[{"requests_per_second": 2}, {}],
        fast=None,
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
        fast=None,
    ),
    "batch of which one call is left": Situation(
        [*batch(OLD, CHAIN), *batch(OLD, CHAIN, LATEST)], answering("0x1"), options=CACHED, fast=None
    ),
    "batch while all connections are busy": Situation(batch(LATEST, CHAIN), first=busy, fast=None),
    "call while all connections are busy": Situation(one(LATEST), first=busy, fast=None),
    "batch at upstreams with lists": Situation(
        batch(LATEST, CHAIN), upstreams=[{"deny_methods": ("eth_chainId",)}, {}], fast=None
    ),
    "batch of an unknown method": Situation(batch({"method": "foo_bar", "params": []}, LATEST), fast=False),
    "batch with the tip behind other calls": Situation(
        batch(CHAIN, NUMBER), at(HEAD - 1, HEAD), upstreams=TWO, fast=None
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
        fast=None,
        seconds=5.0,
    ),
    "beyond ASCII in its bytes": Situation(
        one(LATEST), answering("\u00e9"), transform=lambda data: http(_body(data).replace(b"\\u00e9", b"\xc3\xa9"))
    ),
    "no text": Situation(
        one(LATEST),
        answering("\u00e9"),
        transform=lambda data: http(_body(data).replace(b"\\u00e9", b"\xff")),
        fast=None,
        seconds=5.0,
    ),
    "batch with answers to other ids": Situation(
        batch(LATEST, CHAIN),
        transform=lambda data: http(json.dumps([{**each, "id": 5} for each in json.loads(_body(data))]).encode()),
        fast=None,
        seconds=5.0,
    ),
    "upstream that is tried again": Situation([*one(LATEST, 1), *one(LATEST, 2)], upstreams=TWO, first=in_doubt),
    "calls at once while one is tried again": Situation(
        [*one(LATEST, 1), *one(OLD, 2)], upstreams=TWO, first=in_doubt, together=True
    ),
    "batch at an upstream that is tried again": Situation(batch(LATEST, CHAIN), upstreams=TWO, first=in_doubt),
    "token that expires later": Situation(one(LATEST), grant={"expires_at": 1_700_000_100.0}, first=later(99.9)),
    "token that expires now": Situation(
        one(LATEST), grant={"expires_at": 1_700_000_100.0}, first=later(100.0), fast=False
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
    """The outcome of a situation."""

    def __init__(self) -> None:
        self.answers: list[list[tuple[int, dict[bytes, bytes], Any]]] = []
        self.messages: list[list[Any]] = []
        """What WebSockets were sent."""
        self.records: list[dict[str, Any]] = []
        self.metrics: dict[tuple[str, ...], int] = {}
        self.upstream_calls: list[list[Any]] = []
        self.ids: list[list[int]] = []
        """The ids of each batch that upstreams were sent."""
        self.slow = 0
        """Calls and batches that took the slow path."""
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
        read.append((status, kept, without_ids(json.loads(body) if body else None)))
    return read


def socket_answers(client: Client) -> list[Any]:
    """The messages that a WebSocket was sent, without what differs from request to request."""
    return [without_ids(each) for each in client.received()]


def without_ids(parsed: Any) -> Any:
    """An answer without the ids of requests."""
    for each in parsed if isinstance(parsed, list) else [parsed]:
        if isinstance(each, dict) and "data" in each.get("error", {}):
            each["error"]["data"].pop("request_id", None)
    return parsed


class SlowStates:
    """Makes the states of the slow path, and counts them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        for module in (call_module, batch_module):
            monkeypatch.setattr(module, "SlowState", self)

    def __call__(self, *parts: Any) -> SlowState:
        self.count += 1
        return SlowState(*parts)


async def play(situation: Situation, way: str) -> Played:
    """Play a situation on the "fast" path, on the "slow" one, or by "websocket"."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        return await _play(situation, way, SlowStates(monkeypatch))


async def open_callers(
    situation: Situation, gateway: FakeGateway, way: str
) -> tuple[list[FakeTransport], list[Client]]:
    """Connect as many callers as the situation has, and let them in."""
    count = len(situation.requests) if situation.together else 1
    clients: list[Client] = []
    transports = [gateway.connect(hello) for _ in range(count)]
    if way == "websocket":
        server = SocketServer(gateway)
        for node in gateway.nodes:
            node.always(node.name)
        clients = [await server.open() for _ in range(count)]
    if situation.warm:
        await warm_up(gateway, transports)
    return transports, clients


async def _play(situation: Situation, way: str, slow: SlowStates) -> Played:
    gateway = FakeGateway(*situation.upstreams, fast_path=way != "slow", **situation.options)
    await gateway.directory.refresh()
    grant = dict(situation.grant)
    team = grant.pop("team", None)
    gateway.store.tokens[digest(TOKEN)] = token_grant(team, **grant) if team else token_grant(**grant)
    heads = situation.heads or [HEAD] * len(gateway.nodes)
    if heads[0] >= 0:
        gateway.publish_heads(*heads, finalized=10)
    transports, clients = await open_callers(situation, gateway, way)
    played = Played()
    situation.nodes(gateway.nodes)
    situation.first(gateway)
    for node in gateway.nodes:
        node.transform = situation.transform
        node.requests.clear()
    gateway.journal.latencies.fold()
    before = dict(gateway.regions.totals())
    fared = [(upstream.calls, upstream.failures) for upstream in gateway.exchange.upstreams]
    written = len(gateway.sink.written)
    slow.count = 0
    for place, request in enumerate(situation.requests):
        caller = place if situation.together else 0
        if clients:
            clients[caller].post(request.partition(b"\r\n\r\n")[2])
        else:
            transports[caller].deliver(request)
        if not situation.together:
            await settle(gateway, 0.0)
    await settle(gateway, situation.seconds)
    played.slow = slow.count
    played.answers = [plain_answers(transport) for transport in transports]
    played.messages = [socket_answers(client) for client in clients]
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
    for client in clients:
        await client.leave()
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
    for each in (record, *record["calls"]):
        if isinstance(each["attempts"], tuple):
            each["attempts"] = tries(each["attempts"])
    return record


def exact(counts: dict[tuple[str, ...], int]) -> dict[tuple[str, ...], int]:
    """Counts without times, which may differ by a microsecond."""
    return {
        key: value for key, value in counts.items() if key[0] != "tollgate_upstream_seconds" and key[-1] != "sum"
    }
