"""A caller's connection: framing and the order of answers. Each transcript is fed in several ways."""

from typing import Any

import pytest
from tests.gateway.fake_gateway import FakeGateway, open_gateway
from tests.gateway.fake_node import echo
from tests.gateway.fakes import run_pending
from tests.gateway.raw_http import GET, Feed, edge, exchange, feeds, hello, post, responses, whole

from tollgate.gateway.http.framing import MAX_DRAINED_BYTES, MAX_HEAD_BYTES
from tollgate.settings import model
from tollgate.shm import metrics

SMALL_LIMITS = model.LimitSettings(body_bytes=1_000)


# --- Order -------------------------------------------------------------------------------------------------


@feeds
async def test_requests_of_both_lanes_are_answered_in_their_order(feed: Feed, gateway: FakeGateway) -> None:
    other = b"POST /other HTTP/1.1\r\nhost: gate\r\ncontent-length: 3\r\n\r\nabc"
    refused = post().replace(b"Bearer", b"Basic")
    transport = gateway.connect(hello)
    sent = post(1) + GET + post(2) + refused + other + GET + post(3) + post(4)
    assert await exchange(transport, feed(sent)) == [
        "200 1",
        "200 /healthz",
        "200 2",
        "401 token_invalid",
        "200 /other",
        "200 /healthz",
        "200 3",
        "200 4",
    ]
    assert not transport.closed
    assert not transport.paused


async def test_many_pipelined_requests_are_all_answered(gateway: FakeGateway) -> None:
    transport = gateway.connect(hello)
    assert await exchange(transport, whole(b"".join(post(number) for number in range(50)))) == [
        f"200 {number}" for number in range(50)
    ]
    assert not transport.paused


async def test_reading_stops_while_many_requests_wait_and_goes_on_after() -> None:
    gateway = await open_gateway(node=lambda _: None)
    transport = gateway.connect(hello)
    assert await exchange(transport, whole(b"".join(post(number) for number in range(10)))) == []
    assert transport.paused
    gateway.loop.node = echo
    for upstream in gateway.loop.transports:
        upstream.node = echo
        upstream.deliver(echo(upstream.take().partition(b"\r\n\r\n")[2]))
    await run_pending(60)
    assert len(responses(transport)) == 10
    assert not transport.paused


async def test_slow_answer_holds_back_those_behind_it() -> None:
    gateway = await open_gateway(node=lambda _: None)
    transport = gateway.connect(hello)
    assert await exchange(transport, whole(post(1) + post(2).replace(b"Bearer", b"Basic") + GET)) == []


# --- Framing -----------------------------------------------------------------------------------------------


@feeds
async def test_chunked_body_is_read(feed: Feed, gateway: FakeGateway) -> None:
    head, _, body = post().partition(b"\r\n\r\n")
    head = head.replace(b"content-length: %d" % len(body), b"transfer-encoding: chunked")
    chunks = b"5\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (body[:5], len(body) - 5, body[5:])
    sent = head + b"\r\n\r\n" + chunks
    assert await exchange(gateway.connect(hello), feed(sent + sent)) == ["200 1", "200 1"]


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (post(1, "connection: close"), "200 1 close"),
        (post(1, version="1.0"), "200 1 close"),
        (post(1, "connection: keep-alive", version="1.0"), "200 1 close"),
        (post(1, "connection: keep-alive"), "200 1"),
        (post(1, "upgrade: h2c"), "200 1"),
    ],
)
@feeds
async def test_connection_is_kept_or_closed_as_the_caller_specifies(
    feed: Feed, sent: bytes, answer: str, gateway: FakeGateway
) -> None:
    transport = gateway.connect(hello)
    assert await exchange(transport, feed(sent)) == [answer]
    assert transport.closed is answer.endswith("close")


async def test_what_follows_a_request_that_closes_is_not_carried_out(gateway: FakeGateway) -> None:
    refused = post(1, "connection: close").replace(b"Bearer", b"Basic")
    transport = gateway.connect(hello)
    assert await exchange(transport, whole(refused + post(2))) == ["401 token_invalid close"]
    assert gateway.loop.transports == []


async def test_request_that_offers_another_protocol_is_answered_in_this_one(gateway: FakeGateway) -> None:
    """Java's client offers h2c with every first request over plain HTTP, its body included."""
    transport = gateway.connect(hello)
    upgrade = post(1, "connection: upgrade, http2-settings", "upgrade: h2c", "http2-settings: AAM")
    answers = await exchange(transport, whole(upgrade + post(2)))
    assert answers in (["200 1", "200 2"], ["200 1 close"])
    assert transport.closed is answers[-1].endswith("close")


async def test_the_other_lane_gets_the_body_of_a_request_that_offers_another_protocol(
    gateway: FakeGateway,
) -> None:
    received: list[bytes] = []

    async def listening(scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        received.append(message["body"])

        async def again() -> Any:
            return message

        await hello(scope, again, send)

    offer = b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAM\r\n"
    sent = b"POST /api/v1/teams HTTP/1.1\r\nhost: gate\r\n" + offer + b"content-length: 5\r\n\r\nabcde"
    assert await exchange(gateway.connect(listening), whole(sent)) == ["200 /api/v1/teams"]
    assert received == [b"abcde"]


async def test_the_other_lane_notices_that_its_caller_has_gone_although_a_request_waits_behind(
    gateway: FakeGateway,
) -> None:
    received: list[str] = []

    async def listening(_scope: Any, receive: Any, _send: Any) -> None:
        await receive()
        received.append((await receive())["type"])

    transport = gateway.connect(listening)
    assert await exchange(transport, whole(GET + GET)) == []
    transport.drop()
    await run_pending(60)
    assert received == ["http.disconnect"]


@feeds
@pytest.mark.parametrize(
    "garbage", [b"\x16\x03\x01\x02\x00\x01\x00", b"NONSENSE\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"]
)
async def test_malformed_http_is_reported_and_closed(feed: Feed, garbage: bytes, gateway: FakeGateway) -> None:
    transport = gateway.connect(hello)
    assert await exchange(transport, feed(garbage)) == ["400 invalid_request close"]
    assert transport.closed


@pytest.mark.parametrize("first", [post(1), GET], ids=["ours", "other lane"])
async def test_garbage_behind_a_request_does_not_overtake_its_answer(first: bytes, gateway: FakeGateway) -> None:
    transport = gateway.connect(hello)
    answers = await exchange(transport, whole(first + b"\x00\x00\x00"))
    assert answers[0] == ("200 1" if b"/x/" in first else "200 /healthz")
    assert answers[1:] in ([], ["400 invalid_request close"])
    assert transport.closed


@pytest.mark.parametrize("before", [b"", post(1)], ids=["first", "later"])
async def test_head_without_end_is_refused(before: bytes, gateway: FakeGateway) -> None:
    transport = gateway.connect(hello)
    await exchange(transport, whole(before))
    line = b"x-a: %b\r\n" % (b"a" * 1_000)
    pieces = [b"POST /x/eth/mainnet HTTP/1.1\r\n", *[line] * (2 * MAX_HEAD_BYTES // len(line))]
    assert await exchange(transport, iter(pieces)) == ["400 invalid_request close"]


# --- Bodies that are not wanted ----------------------------------------------------------------------------


@feeds
async def test_body_that_is_too_large_is_read_past_and_the_connection_kept(feed: Feed) -> None:
    gateway = await open_gateway(limits=SMALL_LIMITS)
    head = post().partition(b"\r\n\r\n")[0]
    length = head.replace(head.rpartition(b"\r\n")[2], b"content-length: 1500") + b"\r\n\r\n" + b"x" * 1_500
    transport = gateway.connect(hello)
    assert await exchange(transport, feed(length + post(2))) == ["413 body_too_large", "200 2"]
    assert not transport.closed


@pytest.mark.parametrize(
    ("more", "answer"), [(0, "200 1"), (1, "413 body_too_large"), (90_000, "413 body_too_large")]
)
async def test_body_without_a_length_that_grows_too_large_is_refused(more: int, answer: str) -> None:
    gateway = await open_gateway(limits=model.LimitSettings(body_bytes=100_000))
    head, _, body = post().partition(b"\r\n\r\n")
    head = head.replace(head.rpartition(b"\r\n")[2], b"transfer-encoding: chunked") + b"\r\n\r\n"
    body = body.ljust(100_000 + more)
    transport = gateway.connect(hello)
    transport.deliver(head)
    for start in range(0, len(body), 30_000):
        chunk = body[start : start + 30_000]
        transport.deliver(b"%x\r\n%b\r\n" % (len(chunk), chunk))
    assert bool(edge(transport).framing.chunks) is not bool(more), "what is refused is not kept"
    assert await exchange(transport, iter([b"0\r\n\r\n", post(2)])) == [answer, "200 2"]
    assert gateway.budget.held == 0


async def test_body_is_not_read_past_for_ever(gateway: FakeGateway) -> None:
    head = post().partition(b"\r\n\r\n")[0]
    head = head.replace(head.rpartition(b"\r\n")[2], b"content-length: 1000000000") + b"\r\n\r\n"
    transport = gateway.connect(hello)
    megabyte = b"x" * 1_048_576
    assert await exchange(transport, iter([head, *[megabyte] * (MAX_DRAINED_BYTES // 1_048_576)])) == []
    assert await exchange(transport, iter([megabyte, megabyte])) == ["413 body_too_large close"]
    assert transport.closed


async def test_answer_to_head_does_not_spoil_the_next_one(gateway: FakeGateway) -> None:
    transport = gateway.connect(hello)
    await exchange(transport, whole(b"HEAD /x/eth/mainnet HTTP/1.1\r\nhost: gate\r\n\r\n"))
    transport.deliver(b"HEAD /x/eth/mainnet HTTP/1.1\r\nhost: gate\r\n\r\n")
    assert transport.take().endswith(b"\r\n\r\n")


async def test_counts_are_kept(gateway: FakeGateway) -> None:
    transport = gateway.connect(hello)
    await exchange(transport, whole(post(1) + post(2).replace(b"Bearer", b"Basic")))
    assert gateway.counted(metrics.REQUESTS, "eth", "mainnet", "200") == 1
    assert gateway.counted(metrics.REQUESTS, "eth", "mainnet", "401") == 1
    gateway.context.tick()
    assert gateway.counted(metrics.CONNECTIONS) == 1
