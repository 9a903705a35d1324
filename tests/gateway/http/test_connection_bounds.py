"""What an unknown client can make a connection hold or do: bounded, and answered without a line in the log."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from tests.gateway.fake_gateway import FakeGateway, open_gateway
from tests.gateway.fakes import FakeTransport, run_pending
from tests.gateway.raw_http import (
    Answers,
    Feed,
    answer_upstream,
    edge,
    exchange,
    feeds,
    hello,
    post,
    responses,
    whole,
)

from tollgate.core.addresses import parse_networks
from tollgate.gateway.http.connection_counts import ConnectionCounts
from tollgate.gateway.http.framing import MAX_HEAD_BYTES, MAX_WAITING
from tollgate.gateway.http.known_heads import MAX_HEADS
from tollgate.gateway.memory_budget import SMALL
from tollgate.gateway.messages import Request

CHUNKED = (
    post().partition(b"content-length")[0] + b"transfer-encoding: chunked\r\n\r\n",
    post().partition(b"\r\n\r\n")[2],
)


async def test_tunnel_is_refused_once_and_ends_the_connection(gateway: FakeGateway) -> None:
    transport = gateway.connect(hello)
    assert await exchange(transport, whole(b"CONNECT /x/ HTTP/1.1\r\nhost:\r\n\r\n" * 50)) == [
        "405 method_not_post close"
    ]
    assert transport.closed


@pytest.mark.parametrize("offer", ["a", "h2c", "websocket"])
async def test_offers_of_other_protocols_are_declined_once_for_a_connection(
    offer: str, gateway: FakeGateway
) -> None:
    transport = gateway.connect(hello)
    offered = post(1, "connection: upgrade", f"upgrade: {offer}")
    answers = await exchange(transport, whole(offered * 4_000))
    assert answers == ["200 1", "400 invalid_request close"]
    assert transport.closed


@feeds
@pytest.mark.parametrize("line", [b"POST /x/eth/mainnet RTSP/1.1", b"GET /  RTSP/1.0", b"SOURCE /a ICE/1.0"])
async def test_requests_of_streaming_protocols_are_none_of_http(
    feed: Feed, line: bytes, gateway: FakeGateway
) -> None:
    transport = gateway.connect(hello)
    foreign = post(2).replace(b"POST /x/eth/mainnet HTTP/1.1", line)
    assert await exchange(transport, feed(post(1) + foreign + post(3))) == ["200 1", "400 invalid_request close"]
    assert transport.closed


@feeds
async def test_length_of_thousands_of_digits_is_refused(feed: Feed, gateway: FakeGateway) -> None:
    transport = gateway.connect(hello)
    long = post(2).replace(b"content-length: ", b"content-length: " + b"0" * 5_000)
    assert await exchange(transport, feed(post(1) + long)) == ["200 1", "400 invalid_request close"]
    assert transport.closed


@feeds
async def test_name_of_another_protocol_in_a_body_or_header_does_not_matter(
    feed: Feed, gateway: FakeGateway
) -> None:
    transport = gateway.connect(hello)
    assert await exchange(transport, feed(post("a RTSP/1.0\r\nb", "accept: RTSP/1.0, ICE/1.0 "))) == [
        "200 a RTSP/1.0\r\nb"
    ]


async def test_connection_goes_on_after_an_offer_that_was_declined_until_the_next(gateway: FakeGateway) -> None:
    transport = gateway.connect(hello)
    first = post(1, "connection: upgrade, http2-settings", "upgrade: h2c", "http2-settings: AAMAAABk")
    assert await exchange(transport, whole(first + post(2))) == ["200 1", "200 2"]
    assert await exchange(transport, whole(post(3))) == ["200 3"]
    offer = post(4, "connection: upgrade", "upgrade: another")
    assert await exchange(transport, whole(offer)) == ["400 invalid_request close"]


@pytest.mark.parametrize("piece", [b"aa: bb\r\n" * 1_000, b"a" * 8_000])
async def test_trailers_count_as_head(piece: bytes, gateway: FakeGateway) -> None:
    transport = gateway.connect(hello)
    head, body = CHUNKED
    transport.deliver(head + b"%x\r\n%b\r\n0\r\n" % (len(body), body))
    sent = 0
    while not transport.closed and sent < 10_000_000:
        transport.deliver(piece)
        sent += len(piece)
        await run_pending(2)
    assert transport.closed
    assert sent < 2 * MAX_HEAD_BYTES
    assert "400 invalid_request close" in responses(transport)


async def test_chunk_extensions_count_as_head(gateway: FakeGateway) -> None:
    transport = gateway.connect(hello)
    transport.deliver(CHUNKED[0])
    for _ in range(100):
        transport.deliver(b"1;" + b"x" * 4_000 + b"\r\n{\r\n")
    await run_pending(30)
    assert transport.closed


async def test_trailers_are_dropped_and_the_request_is_answered(gateway: FakeGateway) -> None:
    transport = gateway.connect(hello)
    head, body = CHUNKED
    data = head + b"%x\r\n%b\r\n0\r\nx-forwarded-for: 8.8.8.8\r\n\r\n" % (len(body), body)
    assert await exchange(transport, whole(data)) == ["200 1"]
    assert b"x-forwarded-for" not in dict(edge(transport).framing.headers)


async def test_trailers_do_not_reach_the_app(gateway: FakeGateway) -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        seen.extend(scope["headers"])
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    transport = gateway.connect(app)
    head = b"POST /api/v1/x HTTP/1.1\r\nhost: gate\r\ntransfer-encoding: chunked\r\n\r\n"
    transport.deliver(head + b"1\r\na\r\n0\r\nx-forwarded-for: 8.8.8.8\r\n\r\n")
    await run_pending(30)
    assert [name for name, _ in seen] == [b"host", b"transfer-encoding"]


async def test_body_in_chunks_of_one_byte_is_read(gateway: FakeGateway) -> None:
    transport = gateway.connect(hello)
    head, body = CHUNKED
    pieces = [head, *(b"1\r\n%c\r\n" % byte for byte in body), b"0\r\n\r\n"]
    assert await exchange(transport, iter(pieces)) == ["200 1"]


@pytest.mark.parametrize("before", [b"", post(1)], ids=["first", "later"])
async def test_head_may_be_as_long_as_the_bound_and_not_a_byte_longer(before: bytes, gateway: FakeGateway) -> None:
    transport = gateway.connect(hello)
    await exchange(transport, whole(before))
    head = b"POST /x/eth/mainnet HTTP/1.1\r\nx: ".ljust(MAX_HEAD_BYTES, b"a")
    assert await exchange(transport, whole(head)) == []
    assert not transport.closed
    assert await exchange(transport, whole(b"a")) == ["400 invalid_request close"]


async def test_large_head_whose_body_comes_later_is_read(gateway: FakeGateway) -> None:
    transport = gateway.connect(hello)
    head, _, body = post(1, "x-large: " + "a" * 40_000).partition(b"\r\n\r\n")
    assert await exchange(transport, iter([head + b"\r\n\r\n", body])) == ["200 1"]


async def test_large_bodies_that_come_together_are_not_taken_for_heads(gateway: FakeGateway) -> None:
    assert await exchange(gateway.connect(hello), whole(sized(MAX_HEAD_BYTES) * 3)) == ["200 1"] * 3


async def test_body_that_follows_a_larger_one_is_not_taken_for_a_head(gateway: FakeGateway) -> None:
    transport = gateway.connect(hello)
    for spaces in (3 * MAX_HEAD_BYTES, 2 * MAX_HEAD_BYTES):
        head, _, body = post(1).partition(b"\r\n\r\n")
        head = head.replace(b"content-length: %d" % len(body), b"content-length: %d" % (len(body) + spaces))
        sent = head + b"\r\n\r\n" + body + b" " * spaces
        # All but the end at once, as a fast caller's bytes come.
        assert await exchange(transport, iter([sent[:-100], sent[-100:]])) == ["200 1"]


async def test_large_body_for_the_app_is_not_taken_for_a_head(gateway: FakeGateway) -> None:
    transport = gateway.connect(hello)
    size = 10 * MAX_HEAD_BYTES
    transport.deliver(b"POST /api HTTP/1.1\r\nhost: gate\r\ncontent-length: %d\r\n\r\n" % size)
    for _ in range(10):
        transport.deliver(b"a" * MAX_HEAD_BYTES)
        await run_pending(5)
    assert not transport.closed
    assert [status for status, _, _ in Answers(transport.take()).read] == [200]


async def test_address_with_too_many_connections_is_refused_and_others_are_not(gateway: FakeGateway) -> None:
    gateway.context.addresses = ConnectionCounts(parse_networks(["10.0.0.0/8"]), 3)
    crowd = [gateway.connect(hello) for _ in range(4)]
    assert responses(crowd[-1]) == ["503 overloaded close"]
    assert await exchange(crowd[0], whole(post(1))) == ["200 1"]
    crowd[0].drop()
    assert await exchange(gateway.connect(hello), whole(post(2))) == ["200 2"]


def test_addresses_are_counted_by_network_and_trusted_proxies_not_at_all() -> None:
    counted = ConnectionCounts(parse_networks(["10.0.0.0/8"]), 2)
    first, second, third = (counted.enter(f"2001:db8::{number}") for number in (1, 2, 3))
    assert first == second == ("2001:db8::/64", False)
    assert third == ("2001:db8::/64", True)
    assert [counted.enter("10.1.2.3") for _ in range(5)] == [("", False)] * 5
    for _ in range(3):
        counted.leave(first[0])
    assert counted._open[""].taken == 0


@pytest.mark.parametrize("kind", ["", "tls "])
def test_wider_prefixes_have_more_connections_than_an_address_but_not_all(kind: str) -> None:
    counted = ConnectionCounts((), 2, 100)

    def crowded(*addresses: str) -> list[bool]:
        return [counted.enter(address, kind)[1] for address in addresses]

    assert crowded(*(f"2001:db8:0:{number}::1" for number in range(5))) == [False] * 4 + [True], "a /56"
    assert crowded(*(f"2001:db8:0:{number}00::1" for number in range(1, 5))) == [False] * 3 + [True], "a /48"
    assert crowded("2001:db8:1::1", "192.0.2.1") == [False] * 2
    for address in [f"2001:db8:0:{number}::1" for number in range(5)]:
        counted.leave(counted.key(address), kind)
    assert counted._open[kind].taken == 6


def test_ipv4_network_is_bounded_only_when_it_has_more_connections_than_are_free() -> None:
    counted = ConnectionCounts((), 2, 20)
    addresses = [f"192.0.2.{number}" for number in range(11)]
    assert [counted.enter(address)[1] for address in addresses] == [False] * 10 + [True]
    assert not counted.enter("198.51.100.1")[1]


async def slow(gateway: FakeGateway) -> FakeTransport:
    """A caller that does not read its answer."""
    transport = gateway.connect(hello)
    transport.deliver(post())
    await run_pending(30)
    transport.protocol.pause_writing()
    await run_pending()
    return transport


async def test_answers_that_a_caller_does_not_take_count_as_held() -> None:
    gateway = await open_gateway(budget=1_000)
    transport = await slow(gateway)
    held = len(transport.written)
    assert 0 < held < 1_000
    assert gateway.budget.held == held
    transport.protocol.resume_writing()
    assert gateway.budget.held == 0
    # Once, however often it stops before its turn has come; and not at all where it goes on.
    for is_blocked in (True, False):
        for _ in range(2):
            transport.protocol.pause_writing()
            transport.protocol.resume_writing()
        if is_blocked:
            transport.protocol.pause_writing()
        await run_pending()
        assert gateway.budget.held == (held if is_blocked else 0)
        transport.protocol.resume_writing()
        assert gateway.budget.held == 0


async def test_caller_that_leaves_as_it_stops_reading_holds_nothing(gateway: FakeGateway) -> None:
    transport = gateway.connect(hello)
    transport.deliver(post())
    await run_pending(30)
    transport.protocol.pause_writing()
    transport.drop()
    await run_pending()
    assert gateway.budget.held == 0


async def test_caller_that_does_not_read_is_cut_where_there_is_no_room() -> None:
    gateway = await open_gateway(budget=10)
    transport = await slow(gateway)
    assert transport.aborted
    await run_pending()
    assert gateway.budget.held == 0


async def test_lost_connection_gives_back_what_it_held() -> None:
    gateway = await open_gateway(budget=10_000)
    transport = await slow(gateway)
    assert gateway.budget.held > 0
    transport.drop()
    await run_pending()
    assert gateway.budget.held == 0
    assert json.loads(bytes(transport.written).partition(b"\r\n\r\n")[2])["id"] == 1


# --- At the bounds -------------------------------------------------------------------------------------------


def sized(size: int, target: str = "/x/eth/mainnet") -> bytes:
    """A call whose body has so many bytes."""
    head, _, body = post(1, path=target).partition(b"\r\n\r\n")
    head = head.replace(b"content-length: %d" % len(body), b"content-length: %d" % size)
    return head + b"\r\n\r\n" + body.ljust(size)


@pytest.mark.parametrize(("size", "held"), [(SMALL, 0), (SMALL + 1, SMALL + 1)])
async def test_body_counts_in_the_budget_from_the_first_byte_beyond_a_small_one(size: int, held: int) -> None:
    gateway = await open_gateway(node=lambda _: None)
    gateway.publish_heads(100, 100, finalized=90)
    first = gateway.connect(hello)
    for _ in range(3):
        # The second time its head is known, the third time its caller is let in.
        first.deliver(sized(size))
        await run_pending(30)
        assert gateway.budget.held == held
        answer_upstream(gateway)
        await run_pending(30)
        assert responses(first) == ["200 1"]
        assert gateway.budget.held == 0


async def test_reading_stops_at_eight_requests_that_wait_and_not_at_seven() -> None:
    gateway = await open_gateway(node=lambda _: None)
    transport = gateway.connect(hello)
    paused = []
    for number in range(MAX_WAITING + 1):
        transport.deliver(post(number))
        await run_pending(5)
        paused.append(transport.paused)
    assert paused == [*[False] * MAX_WAITING, True]
    for number in range(MAX_WAITING + 1):
        answer_upstream(gateway)
        await run_pending(30)
        assert responses(transport) == [f"200 {number}"]
        assert transport.paused is bool(edge(transport).queue)
    assert not transport.paused


@pytest.mark.parametrize(("size", "counts"), [(SMALL, False), (SMALL + 1, True)])
async def test_large_body_that_has_waited_for_its_turn_counts_until_its_answer(size: int, counts: bool) -> None:
    gateway = await open_gateway(node=lambda _: None)
    transport = gateway.connect(hello)
    transport.deliver(post(1))
    await run_pending(30)
    transport.deliver(sized(size))
    assert gateway.budget.held >= size
    answer_upstream(gateway)
    await run_pending(200)
    assert (responses(transport), gateway.budget.held > 0) == (["200 1"], counts)
    answer_upstream(gateway)
    await run_pending(30)
    assert (responses(transport), gateway.budget.held) == (["200 1"], 0)


@pytest.mark.parametrize("size", [1_000, 100_000])
async def test_requests_that_wait_for_their_turn_count_until_it_has_come(size: int) -> None:
    gateway = await open_gateway(node=lambda _: None)
    transport = gateway.connect(hello)
    transport.deliver(post(1))
    await run_pending(30)
    assert gateway.budget.held == 0
    data = sized(60_000) * 3
    for start in range(0, len(data), size):
        if not transport.paused:
            transport.deliver(data[start : start + size])
    await run_pending(200)
    assert gateway.budget.held > 60_000
    transport.drop()
    assert gateway.budget.held == 0


async def test_nothing_more_is_read_while_a_long_request_waits_for_its_turn() -> None:
    gateway = await open_gateway(node=lambda _: None)
    transport = gateway.connect(hello)
    transport.deliver(post(1))
    await run_pending(30)
    transport.deliver(sized(2_000, "/x/eth/mainnet?new"))
    assert transport.paused
    for _ in range(2):
        answer_upstream(gateway)
        await run_pending(60)
    assert responses(transport) == ["200 1", "200 1"]
    assert not transport.paused


async def test_request_for_which_there_is_no_room_while_it_waits_is_refused_in_its_turn() -> None:
    gateway = await open_gateway(node=lambda _: None)
    transport = gateway.connect(hello)
    transport.deliver(post(1))
    await run_pending(30)
    gateway.budget.max_bytes = 100
    for number in (2, 3):
        transport.deliver(post(number))
    await run_pending(30)
    assert gateway.budget.held == len(edge(transport).queue[0].body)  # type: ignore[union-attr]
    answered = []
    for _ in range(2):
        answer_upstream(gateway)
        await run_pending(60)
        answered += responses(transport)
    assert answered == ["200 1", "200 2", "503 overloaded"]
    assert gateway.budget.held == 0


async def test_nothing_more_is_read_behind_a_request_for_the_app_that_waits() -> None:
    gateway = await open_gateway(node=lambda _: None)
    transport = gateway.connect(hello)
    transport.deliver(post(1))
    await run_pending(30)
    transport.deliver(b"POST /a HTTP/1.1\r\nhost: a\r\ncontent-length: 2000\r\n\r\n")
    paused = [transport.paused]
    answer_upstream(gateway)
    await run_pending(60)
    assert [*paused, transport.paused] == [True, False]
    transport.deliver(b"a" * 2_000)
    await run_pending(60)
    assert responses(transport) == ["200 1", "200 /a"]


CHUNKS = b"POST /a HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n" + b"c8\r\n%b\r\n" % (b"a" * 200) * 2


@pytest.mark.parametrize(
    ("room", "held", "answer"),
    [(400, 400, "200 /a"), (399, 200, "503 overloaded close"), (0, 0, "503 overloaded close")],
)
async def test_body_for_the_app_that_comes_before_its_turn_counts_until_then(
    room: int, held: int, answer: str
) -> None:
    gateway = await open_gateway(node=lambda _: None)
    transport = gateway.connect(hello)
    transport.deliver(post(1))
    await run_pending(30)
    gateway.budget.max_bytes = room
    transport.deliver(CHUNKS)
    assert gateway.budget.held == held
    gateway.budget.max_bytes = 10_000
    answer_upstream(gateway)
    await run_pending(60)
    transport.deliver(b"0\r\n\r\n")
    await run_pending(60)
    assert responses(transport) == ["200 1", answer]
    transport.drop()
    assert gateway.budget.held == 0


@pytest.mark.parametrize(
    ("target", "answered"),
    [
        ("http://gate/x/eth/mainnet", "200 1"),
        ("http://gate/x/eth/nowhere", "404 unknown_network"),
        ("http://gate/x/eth/mainnet?a=b", "200 1"),
        ("http://gate/healthz", "200 /healthz"),
        ("http://gate:port/x/eth/mainnet", "400 invalid_request close"),
        ("http:///healthz", "400 invalid_request close"),
    ],
)
async def test_target_in_absolute_form_is_read_as_its_path(
    target: str, answered: str, gateway: FakeGateway
) -> None:
    transport = gateway.connect(hello)
    assert await exchange(transport, whole(post(1, path=target))) == [answered]


async def test_target_that_is_none_is_left_to_the_app(gateway: FakeGateway) -> None:
    transport = gateway.connect(hello)
    answers = await exchange(transport, whole(b"OPTIONS * HTTP/1.1\r\nhost: gate\r\n\r\n"))
    assert [each.split()[0] for each in answers] == ["200"]


async def test_defect_before_a_known_call_is_sent_is_answered_and_ends_the_connection(
    gateway: FakeGateway,
) -> None:
    transport = gateway.connect(hello)
    assert await exchange(transport, whole(post())) == ["200 1"]
    assert await exchange(transport, whole(post())) == ["200 1"]

    def broken(*_: object) -> bool:
        raise ZeroDivisionError

    edge(transport).call = SimpleNamespace(start=broken)
    answers = await exchange(transport, whole(post()))
    assert answers == ["500 internal_error close"]
    assert transport.closed


@pytest.mark.parametrize("new", ["", "x-new: {}"], ids=["but for the length", "altogether"])
async def test_heads_that_are_remembered_are_bounded(new: str, gateway: FakeGateway) -> None:
    transport = gateway.connect(hello)
    for number in range(3 * MAX_HEADS):
        for _ in range(2):
            sent = post(10**number, *[new.format(number)] * bool(new))
            assert await exchange(transport, whole(sent)) == [f"200 {10**number}"]
        assert 1 <= len(edge(transport).framing.heads) <= MAX_HEADS


@pytest.mark.parametrize(("calls", "refused"), [(2, 0), (3, 1)])
async def test_as_many_requests_are_under_way_as_the_bound_specifies(calls: int, refused: int) -> None:
    gateway = await open_gateway(node=lambda _: None)
    transports = [gateway.connect(hello) for _ in range(calls)]
    for _ in range(2):
        for transport in transports:
            assert await exchange(transport, whole(post())) == []
        answer_upstream(gateway)
        await run_pending(30)
        assert [responses(transport) for transport in transports] == [["200 1"]] * calls
    # Their heads are known now, and there are connections for all of them.
    gateway.context.max_in_flight = 2
    answers = [await exchange(transport, whole(post())) for transport in transports]
    assert len(gateway.context.under_way) == 2
    assert sum(each == ["503 overloaded"] for each in answers) == refused
    new = await exchange(gateway.connect(hello), whole(post()))
    assert new == ["503 overloaded"], "with a head that is new, too"


@pytest.mark.parametrize(("requests", "waits"), [(MAX_WAITING, False), (MAX_WAITING + 1, True)])
async def test_more_requests_at_once_than_may_wait_are_read_in_pieces(requests: int, waits: bool) -> None:
    gateway = await open_gateway(node=lambda _: None)
    transport = gateway.connect(hello)
    data = b"".join(post(number) for number in range(requests))
    assert len(data) > 1_024
    transport.deliver(data)
    assert bool(edge(transport).framing.unread) is waits
    in_line = sum(len(each.body) for each in edge(transport).queue if isinstance(each, Request))
    assert in_line
    assert gateway.budget.held == in_line + (len(data) if waits else 0)
    for number in range(requests):
        await run_pending(60)
        answer_upstream(gateway)
        await run_pending(60)
        assert responses(transport) == [f"200 {number}"]
    assert gateway.budget.held == 0
