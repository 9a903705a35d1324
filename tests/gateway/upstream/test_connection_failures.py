"""One connection to an upstream: what is no response, lost connections, and the bound on bytes held."""

import gzip
from collections.abc import Iterator

import pytest
from tests.gateway.fake_node import http
from tests.gateway.fakes import run_pending
from tests.gateway.raw_http import Feed, byte_by_byte, whole
from tests.gateway.upstream.fake_upstream import BODY, CHUNKED, MAX_BYTES, FakeUpstream, chunked, feeds, in_two

from tollgate.gateway.memory_budget import SMALL
from tollgate.gateway.upstream.connection import AttemptFailed, NoRoom, Response, ResponseTooLarge


async def failure(upstream: FakeUpstream, pieces: Iterator[bytes]) -> AttemptFailed:
    with pytest.raises(AttemptFailed) as caught:
        await upstream.exchange(pieces)
    return caught.value


PACKED = gzip.compress(BODY)
BROKEN = {
    "garbage": b"SSH-2.0-OpenSSH_9.6\r\n",
    "a torn chunk": CHUNKED + b"zz\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n12",
    "broken gzip": http(PACKED[:12] + b"\xff" * 20 + PACKED[32:]),
    "torn gzip": http(PACKED[:-9]),
}


@feeds
@pytest.mark.parametrize("response", BROKEN.values(), ids=BROKEN.keys())
async def test_broken_response_is_a_failure_after_sending(feed: Feed, response: bytes) -> None:
    failed = await failure(FakeUpstream(), feed(response))
    assert failed.sent
    assert not failed.stale
    assert failed.outcome == "broken"


START = b"HTTP/1.1 200 OK\r\n"
ENDLESS = {
    "interim responses": (b"", b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"),
    "headers": (START, b"a: b\r\n"),
    "one header": (START + b"a: ", b"b" * 100),
    "chunks": (CHUNKED, b"1\r\n \r\n"),
    "an extension": (CHUNKED + b"1;", b"a" * 100),
    "trailers": (CHUNKED + b"1\r\n1\r\n0\r\n", b"a: b\r\n"),
}


@pytest.mark.parametrize(("start", "piece"), ENDLESS.values(), ids=ENDLESS.keys())
async def test_what_surrounds_a_body_is_bounded(start: bytes, piece: bytes) -> None:
    upstream = FakeUpstream()
    pending = upstream.send()
    sent = 0
    while not upstream.transport.aborted and sent < 200_000:
        upstream.transport.deliver((b"" if sent else start) + piece * 100)
        sent += 100 * len(piece)
    assert 65_536 < sent < 100_000
    with pytest.raises(AttemptFailed, match="too large, or the chunks are too small") as caught:
        await pending
    assert caught.value.sent


@pytest.mark.parametrize("responses", [0, 1], ids=["first", "later"])
async def test_head_of_a_response_may_be_as_long_as_the_bound_and_not_a_byte_longer(responses: int) -> None:
    upstream = FakeUpstream()
    for _ in range(responses):
        await upstream.exchange(whole(http(b"{}")))
    pending = upstream.send()
    aborted = []
    for piece in ((START + b"a: ").ljust(65_536, b"b"), b"b"):
        upstream.transport.deliver(piece)
        aborted.append(upstream.transport.aborted)
    assert aborted == [False, True]
    with pytest.raises(AttemptFailed):
        await pending


async def test_large_body_in_chunks_may_have_as_many_heads_as_it_needs() -> None:
    body = b"1" * 400_000
    upstream = FakeUpstream(max_bytes=1_000_000)
    data = chunked(body, 40)
    for size in (10_000, 300_000, 300_000):
        pieces = (data[start : start + size] for start in range(0, len(data), size))
        assert await upstream.exchange(pieces) == Response(200, body)


@pytest.mark.parametrize("response", [BROKEN["garbage"], BROKEN["a torn chunk"], BROKEN["two lengths"]])
async def test_connection_that_speaks_no_http_is_given_up(response: bytes) -> None:
    upstream = FakeUpstream()
    await failure(upstream, whole(response))
    assert upstream.transport.aborted
    assert not upstream.connection.usable
    assert upstream.pool.idle == []


@feeds
@pytest.mark.parametrize(
    "response",
    [http(b"x" * 1_001), chunked(b"x" * 1_001, 100), b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 1_001],
    ids=["length", "chunked", "without a length"],
)
async def test_response_over_the_limit_is_given_up_with_its_connection(feed: Feed, response: bytes) -> None:
    upstream = FakeUpstream(max_bytes=1_000)
    failed = await failure(upstream, feed(response))
    assert isinstance(failed, ResponseTooLarge)
    assert failed.sent
    assert upstream.transport.aborted


async def test_responses_of_exactly_the_limit_pass() -> None:
    upstream = FakeUpstream(max_bytes=1_000)
    for response in (http(b"x" * 1_000), chunked(b"x" * 1_000), chunked(b"x" * 1_000)):
        assert (await upstream.exchange(whole(response))).body == b"x" * 1_000


@feeds
async def test_gzip_bomb_is_not_unpacked_over_the_limit(feed: Feed) -> None:
    bomb = gzip.compress(bytes(50_000_000), 9)
    assert len(bomb) < MAX_BYTES
    assert isinstance(await failure(FakeUpstream(), feed(http(bomb))), ResponseTooLarge)


@pytest.mark.parametrize(
    "trailing",
    [http(b"late"), b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{", b"HTTP", b"?"],
    ids=["a response", "a torn response", "a torn head", "garbage"],
)
async def test_connection_that_sends_more_than_was_requested_is_not_used_again(trailing: bytes) -> None:
    """Or what follows would be taken for the answer to another call."""
    upstream = FakeUpstream()
    assert await upstream.exchange(whole(http(BODY) + trailing)) == Response(200, BODY)
    await run_pending()
    assert upstream.transport.closed
    assert not upstream.connection.usable


async def test_data_while_idle_closes_the_connection() -> None:
    upstream = FakeUpstream()
    await upstream.exchange(whole(http(BODY)))
    upstream.transport.deliver(http(b"late"))
    assert upstream.transport.aborted
    assert not upstream.connection.usable
    await run_pending()
    assert upstream.pool.lost_connections == [upstream.connection]


# --- Lost connections --------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [None, ConnectionResetError()])
async def test_first_connection_that_is_lost_before_a_word_is_not_stale(error: Exception | None) -> None:
    upstream = FakeUpstream()
    pending = upstream.send()
    upstream.transport.drop(error)
    with pytest.raises(AttemptFailed) as caught:
        await pending
    assert caught.value.sent
    assert not caught.value.stale


@pytest.mark.parametrize("error", [None, ConnectionResetError()])
@pytest.mark.parametrize(("received", "stale"), [(b"", True), (b"HTTP", False), (http(BODY)[:-50], False)])
async def test_kept_connection_that_is_lost_is_stale_only_before_a_word(
    error: Exception | None, received: bytes, stale: bool
) -> None:
    upstream = FakeUpstream()
    await upstream.exchange(whole(http(BODY)))
    pending = upstream.send()
    for piece in byte_by_byte(received):
        upstream.transport.deliver(piece)
    upstream.transport.drop(error)
    with pytest.raises(AttemptFailed) as caught:
        await pending
    assert caught.value.sent
    assert caught.value.stale is stale
    assert upstream.pool.lost_connections == [upstream.connection]


# --- The bound on bytes held -------------------------------------------------------------------------------


async def test_small_responses_are_not_counted_and_large_ones_given_back() -> None:
    upstream = FakeUpstream(budget=50_000)
    large = http(b"x" * SMALL * 2)
    await upstream.exchange(whole(http(b"x" * SMALL)))
    assert upstream.budget.held == 0
    pending = upstream.send()
    upstream.transport.deliver(large[:SMALL])
    assert upstream.budget.held == 0
    upstream.transport.deliver(large[SMALL : SMALL + 20_000])
    assert upstream.budget.held == 20_000
    upstream.transport.deliver(large[SMALL + 20_000 :])
    with pytest.raises(NoRoom):
        await pending
    await run_pending()
    assert upstream.budget.held == 0


@pytest.mark.parametrize("body", [b"x" * SMALL * 2, gzip.compress(b"x" * SMALL * 2)], ids=["plain", "gzip"])
async def test_large_response_counts_until_it_is_released(body: bytes) -> None:
    upstream = FakeUpstream()
    response = await upstream.exchange(in_two(http(body)))
    assert len(response.body) == SMALL * 2
    await run_pending()
    # All large answers on their way to callers are there at the same time.
    assert upstream.budget.held > SMALL - 100
    del response
    await run_pending()
    assert upstream.budget.held == 0


async def test_large_response_without_a_length_counts_too() -> None:
    upstream = FakeUpstream()
    pending = upstream.send()
    upstream.transport.deliver(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * SMALL * 2)
    upstream.transport.drop(None)
    response = await pending
    assert upstream.budget.held == SMALL * 2
    del response, pending
    await run_pending()
    assert upstream.budget.held == 0


async def test_gzip_that_unpacks_to_more_than_there_is_room_for() -> None:
    upstream = FakeUpstream(budget=SMALL)
    with pytest.raises(NoRoom) as caught:
        await upstream.exchange(whole(http(gzip.compress(b"x" * SMALL * 2))))
    assert caught.value.sent
    assert upstream.budget.held == 0


@pytest.mark.parametrize(("size", "held"), [(SMALL, 0), (SMALL + 1, SMALL + 1)])
async def test_unpacked_response_counts_from_the_first_byte_beyond_a_small_one(size: int, held: int) -> None:
    upstream = FakeUpstream()
    response = await upstream.exchange(whole(http(gzip.compress(b"x" * size))))
    assert (len(response.body), upstream.budget.held) == (size, held)


async def test_large_response_of_a_lost_connection_gives_its_bytes_back() -> None:
    upstream = FakeUpstream()
    pending = upstream.send()
    upstream.transport.deliver(http(b"x" * SMALL * 4)[: SMALL * 3])
    assert upstream.budget.held > 0
    upstream.transport.drop(ConnectionResetError())
    assert upstream.budget.held == 0
    assert upstream.connection._body == []
    with pytest.raises(AttemptFailed):
        await pending
