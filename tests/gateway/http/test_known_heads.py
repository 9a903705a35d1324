"""Requests whose head is that of the one before: found as the parser finds them, and answered alike."""

import asyncio
import re
from typing import Any

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gateway.callers import TOKEN, digest, token_grant
from tests.gateway.fake_gateway import FakeGateway, open_gateway
from tests.gateway.fakes import run_pending
from tests.gateway.raw_http import GET, Answers, byte_by_byte, edge, exchange, hello, post, responses, whole

from tollgate.gateway.http.framing import MAX_UNUSED_HEADS
from tollgate.gateway.http.known_heads import END, KnownHead, known_head
from tollgate.gateway.memory_budget import SMALL
from tollgate.settings import model
from tollgate.store.base import Changes

URL = b"/x/eth/mainnet"


class Parsed:
    """What the parser makes of bytes."""

    def __init__(self, data: bytes) -> None:
        self.bodies: list[bytes] = []
        self.headers: dict[bytes, bytes] = {}
        self._body = b""
        self.good = True
        self._between = True
        parser = httptools.HttpRequestParser(self)
        try:
            parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.good = False

    def on_message_begin(self) -> None:
        self._between = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self.bodies.append(self._body)
        self._body, self._between = b"", True

    @property
    def single(self) -> bytes | None:
        """The body, where it is one whole request and nothing else."""
        return self.bodies[0] if self.good and len(self.bodies) == 1 and self._between else None


def sent(body: bytes, *lines: bytes, length: bytes | None = None) -> bytes:
    length = b"%d" % len(body) if length is None else length
    head = b"".join(b"%b\r\n" % line for line in (b"POST %b HTTP/1.1" % URL, b"host: gate", *lines))
    return head + b"Content-Length: %b\r\n\r\n%b" % (length, body)


def kept(data: bytes) -> KnownHead | None:
    parsed = Parsed(data)
    assert parsed.single is not None
    return known_head(data, URL, parsed.headers, len(parsed.single))


def body_of(known: KnownHead, data: bytes) -> bytes | None:
    """The body of a request that begins with a known head but for the length, as a connection reads it."""
    end = data.find(END) + len(END)
    other = known.with_length(data, end)
    return data[end:] if other is not None and other.size == len(data) else None


# --- The bytes -------------------------------------------------------------------------------------------------

bodies = st.binary(max_size=40)
lines = st.sampled_from([b"accept: */*", b"content-type: application/json", b"x-length: 7", b"user-agent: a\tb"])


@given(st.lists(lines, unique=True), bodies, bodies)
def test_same_head_with_another_body_is_found(more: list[bytes], first: bytes, second: bytes) -> None:
    known = kept(sent(first, *more))
    assert known is not None
    assert body_of(known, sent(second, *more)) == second
    assert known.url == URL


@given(st.lists(lines, unique=True), bodies, bodies, st.data())
def test_whatever_is_found_is_what_the_parser_finds(
    more: list[bytes], first: bytes, second: bytes, data: st.DataObject
) -> None:
    known = kept(sent(first, *more))
    assert known is not None
    other = bytearray(sent(second, *more))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(other) - 1))
        other[place : place + data.draw(st.integers(0, 1))] = data.draw(
            st.sampled_from([b"", b"\r\n", b"0", b"9", b"-", b" ", b"a", b"\n"])
        )
    found = body_of(known, bytes(other))
    if found is not None:
        assert found == Parsed(bytes(other)).single


@pytest.mark.parametrize(
    "other",
    [
        sent(b"{}", length=b"3"),
        sent(b"{}", length=b"1"),
        sent(b"{}", length=b""),
        sent(b"{}", length=b"-2"),
        sent(b"{}", length=b"+2"),
        sent(b"{}", length=b"2 "),
        sent(b"{}", length=b"2, 2"),
        sent(b"{}", length=b"\xb2"),
        sent(b"{}", length=b"0000000000002"),
        sent(b"{}", b"accept: */*"),
        sent(b"{}")[:-1],
        sent(b"{}") + b"P",
        sent(b"{}") * 2,
        sent(b"{}").replace(b"POST", b"PUT "),
        sent(b"{}").replace(b"mainnet", b"sepolia"),
        b"",
    ],
)
def test_another_head_or_another_length_is_left_to_the_parser(other: bytes) -> None:
    known = kept(sent(b"[]"))
    assert known is not None
    assert body_of(known, other) is None


@pytest.mark.parametrize(
    "line", [b"expect: 100-continue", b"x-request-id: mine", b"X-Request-ID: mine", b"upgrade: h2c"]
)
def test_head_that_has_more_is_not_kept(line: bytes) -> None:
    assert kept(sent(b"{}", line)) is None


def test_chunked_request_is_not_kept() -> None:
    data = b"POST %b HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n" % URL
    assert kept(data) is None


# --- The connection --------------------------------------------------------------------------------------------


def repeats(transport: object) -> bool:
    """Whether the head of the last request is known."""
    return bool(edge(transport).framing.heads)  # type: ignore[arg-type]


async def test_requests_with_a_known_head_are_answered_like_the_first(gateway: FakeGateway) -> None:
    transport = gateway.connect(hello)
    answers = []
    for number in (1, 2, 300, 4_000_000):
        transport.deliver(post(number))
        await run_pending(30)
        ((status, headers, body),) = Answers(transport.take()).read
        assert status == 200
        assert b'"id":%d' % number in body
        answers.append(headers)
        assert repeats(transport)
    assert [set(each) for each in answers] == [set(answers[0])] * 4
    assert len({each[b"x-request-id"] for each in answers}) == 4, "each has an id of its own"
    assert len(gateway.sink.written) == 4


async def test_what_arrives_in_pieces_or_together_after_a_known_head_is_read_as_ever(gateway: FakeGateway) -> None:
    transport = gateway.connect(hello)
    assert await exchange(transport, whole(post(1))) == ["200 1"]
    assert await exchange(transport, byte_by_byte(post(2))) == ["200 2"]
    assert await exchange(transport, whole(post(3))) == ["200 3"]
    assert await exchange(transport, whole(post(4) + post(5))) == ["200 4", "200 5"]
    assert await exchange(transport, whole(post(6) + post(7)[:20])) == ["200 6"]
    assert await exchange(transport, whole(post(7)[20:])) == ["200 7"]
    assert await exchange(transport, whole(GET)) == ["200 /healthz"]
    assert await exchange(transport, whole(post(8))) == ["200 8"]


async def test_known_head_is_not_parsed_again_whatever_length_follows(gateway: FakeGateway) -> None:
    transport = gateway.connect(hello)
    for call_id in (1, 1, 1, 20, 1, 20, 300, 20):
        assert await exchange(transport, whole(post(call_id))) == [f"200 {call_id}"]
    assert edge(transport).framing.started == 1
    assert len(edge(transport).framing.heads) == 3


async def test_body_that_looks_like_a_known_request_is_a_body(gateway: FakeGateway) -> None:
    transport = gateway.connect(hello)
    assert await exchange(transport, whole(post(1))) == ["200 1"]
    assert await exchange(transport, whole(post(2))) == ["200 2"]
    inner = post(3)
    head = re.sub(rb"content-length: \d+", b"content-length: %d" % len(inner), inner.partition(END)[0])
    assert await exchange(transport, iter([head + END, inner])) == ["400 parse_error"]


async def test_end_of_a_head_that_came_in_two_pieces_is_no_head(gateway: FakeGateway) -> None:
    transport = gateway.connect(hello)
    start, end, rest = post(1).partition(b"host: gate\r\n")
    assert await exchange(transport, iter([start + end, rest])) == ["200 1"]
    assert not repeats(transport)
    assert await exchange(transport, whole(rest)) == ["400 invalid_request close"]


@pytest.mark.parametrize("obstacle", ["the app answers", "the caller does not read"])
async def test_call_of_a_caller_that_was_let_in_before_waits_for_its_turn(
    obstacle: str, gateway: FakeGateway
) -> None:
    gate = asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await gate.wait()
        await hello(scope, receive, send)

    gateway.publish_heads(100, 100, finalized=90)
    transport = gateway.connect(slow)
    for number in (1, 2, 3):
        assert await exchange(transport, whole(post(number))) == [f"200 {number}"]
    if obstacle == "the app answers":
        assert await exchange(transport, whole(GET)) == []
    else:
        edge(transport).pause_writing()
    assert await exchange(transport, whole(post(4))) == []
    gate.set()
    edge(transport).resume_writing()
    await run_pending(40)
    assert responses(transport)[-1] == "200 4"


async def test_request_with_a_known_head_waits_for_its_turn() -> None:
    gateway = await open_gateway(node=lambda _: None)
    transport = gateway.connect(hello)
    transport.deliver(post(1))
    assert repeats(transport)
    transport.deliver(post(2))
    transport.deliver(post(3))
    await run_pending(30)
    assert responses(transport) == []
    for _ in range(3):
        (upstream,) = gateway.loop.transports
        called = upstream.take().partition(b"\r\n\r\n")[2]
        number = called.partition(b'"id":')[2][:1]
        answer = b'{"jsonrpc":"2.0","id":%b,"result":1}' % number
        upstream.deliver(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(answer), answer))
        await run_pending(30)
    assert responses(transport) == ["200 1", "200 2", "200 3"]


async def test_token_that_is_deleted_is_refused_though_its_head_is_known(gateway: FakeGateway) -> None:
    transport = gateway.connect(hello)
    assert await exchange(transport, whole(post(1))) == ["200 1"]
    assert await exchange(transport, whole(post(2))) == ["200 2"]
    del gateway.store.tokens[digest(TOKEN)]
    gateway.store.news.append(Changes(2, tokens=(digest(TOKEN),)))
    await gateway.directory.refresh()
    assert await exchange(transport, whole(post(3))) == ["401 token_invalid"]
    assert await exchange(transport, whole(post(4))) == ["401 token_invalid"]


async def test_network_that_is_gone_and_a_smaller_limit_hold_for_known_heads(gateway: FakeGateway) -> None:
    transport = gateway.connect(hello)
    assert await exchange(transport, whole(post(1))) == ["200 1"]
    gateway.context.change(gateway.networks.served, model.LimitSettings(body_bytes=20))
    assert await exchange(transport, whole(post(2))) == ["413 body_too_large"]
    gateway.context.change(gateway.networks.served, model.LimitSettings())
    assert await exchange(transport, whole(post(3))) == ["200 3"]
    gateway.context.change([], model.LimitSettings())
    assert await exchange(transport, whole(post(4))) == ["404 unknown_network"]


def padded(call_id: int, size: int) -> bytes:
    """A call with a body of this size."""
    head, _, body = post(call_id).partition(END)
    return head.replace(b"length: %d" % len(body), b"length: %d" % size) + END + body.ljust(size)


async def test_larger_body_behind_a_known_head_is_held_against_the_limit(gateway: FakeGateway) -> None:
    gateway.publish_heads(100, 100, finalized=90)
    gateway.context.change(gateway.networks.served, model.LimitSettings(body_bytes=2_000))
    transport = gateway.connect(hello)
    for number in (1, 2):
        assert await exchange(transport, whole(post(number))) == [f"200 {number}"]
    assert await exchange(transport, whole(padded(3, 2_000))) == ["200 3"]
    assert await exchange(transport, whole(padded(4, 2_001))) == ["413 body_too_large"]
    assert await exchange(transport, whole(padded(5, 100_000))) == ["413 body_too_large"]
    assert await exchange(transport, whole(post(6))) == ["200 6"]
    assert repeats(transport)


async def test_large_body_behind_a_known_head_counts_against_the_budget(gateway: FakeGateway) -> None:
    gateway.publish_heads(100, 100, finalized=90)
    transport = gateway.connect(hello)
    for number in (1, 2):
        assert await exchange(transport, whole(post(number))) == [f"200 {number}"]
    for number in range(MAX_UNUSED_HEADS + 1):
        assert await exchange(transport, whole(padded(number, SMALL + 1))) == [f"200 {number}"]
    gateway.budget.max_bytes = SMALL
    assert await exchange(transport, whole(padded(3, SMALL + 1))) == ["503 overloaded"]
    assert await exchange(transport, whole(padded(4, SMALL))) == ["200 4"]
    assert repeats(transport)


async def test_token_for_some_addresses_is_accepted_from_them_though_its_head_is_known(
    gateway: FakeGateway,
) -> None:
    gateway.store.tokens[digest(TOKEN)] = token_grant(addresses=("192.0.2.0/24",))
    transport = gateway.connect(hello)
    for number in (1, 2):
        assert await exchange(transport, whole(post(number))) == [f"200 {number}"]


async def test_another_token_on_the_same_connection_is_another_caller(gateway: FakeGateway) -> None:
    transport = gateway.connect(hello)
    assert await exchange(transport, whole(post(1))) == ["200 1"]
    assert await exchange(transport, whole(post(2).replace(TOKEN.encode(), b"x" * len(TOKEN)))) == [
        "401 token_invalid"
    ]
    assert await exchange(transport, whole(post(3))) == ["200 3"]


@pytest.mark.parametrize("method", ["OPTIONS", "PUT", "GET"])
async def test_only_posts_are_known(method: str, gateway: FakeGateway) -> None:
    transport = gateway.connect(hello)
    incoming = post(1).replace(b"POST", method.encode())
    first = await exchange(transport, whole(incoming))
    assert not repeats(transport)
    assert await exchange(transport, whole(incoming)) == first


@pytest.mark.parametrize("found", [1, 2], ids=["on the slow path", "on the fast path"])
async def test_client_whose_heads_are_never_the_same_is_not_tried_for_ever(
    found: int, gateway: FakeGateway
) -> None:
    gateway.publish_heads(100, 100, finalized=90)
    transport = gateway.connect(hello)
    # A head that is found begins the count anew.
    for number in range(1 + found):
        assert await exchange(transport, whole(post(number))) == [f"200 {number}"]
    for number in range(MAX_UNUSED_HEADS + 1):
        assert repeats(transport)
        assert await exchange(transport, whole(post(number, f"traceparent: {number}"))) == [f"200 {number}"]
    assert not repeats(transport)
    assert await exchange(transport, whole(post(1))) == ["200 1"]


async def test_stop_holds_for_known_heads(gateway: FakeGateway) -> None:
    gateway.publish_heads(100, 100, finalized=90)
    transport = gateway.connect(hello)
    for number in (1, 2):
        assert await exchange(transport, whole(post(number))) == [f"200 {number}"]
    edge(transport).shutdown()
    assert await exchange(transport, whole(post(3))) == ["200 3 close"]
    assert await exchange(transport, whole(post(4))) == []
