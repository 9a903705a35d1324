"""One connection to an upstream: what is no response, lost connections, and the bound on bytes held."""

import gzip
from collections.abc import Iterator

import pytest
from tests.gateway.fake_node import http
from tests.gateway.fakes import run_pending
from tests.gateway.line import BODY, CHUNKED, MOST, Feed, Line, byte_by_byte, chunked, feeds, in_two, whole

from tollgate.gateway.memory_budget import SMALL
from tollgate.gateway.upstream.connection import AttemptFailed, NoRoom, Response, ResponseTooLarge


async def failure(line: Line, pieces: Iterator[bytes]) -> AttemptFailed:
    with pytest.raises(AttemptFailed) as caught:
        await line.answered(pieces)
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
    failed = await failure(Line(), feed(response))
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
    line = Line()
    pending = line.begin()
    sent = 0
    while not line.transport.aborted and sent < 200_000:
        line.transport.deliver((b"" if sent else start) + piece * 100)
        sent += 100 * len(piece)
    assert 65_536 < sent < 100_000
    with pytest.raises(AttemptFailed, match="too large, or the chunks are too small") as caught:
        await pending
    assert caught.value.sent


@pytest.mark.parametrize("responses", [0, 1], ids=["first", "later"])
async def test_head_of_a_response_may_be_as_long_as_the_bound_and_not_a_byte_longer(responses: int) -> None:
    line = Line()
    for _ in range(responses):
        await line.answered(whole(http(b"{}")))
    pending = line.begin()
    aborted = []
    for piece in ((START + b"a: ").ljust(65_536, b"b"), b"b"):
        line.transport.deliver(piece)
        aborted.append(line.transport.aborted)
    assert aborted == [False, True]
    with pytest.raises(AttemptFailed):
        await pending


async def test_large_body_in_chunks_may_have_as_many_heads_as_it_needs() -> None:
    body = b"1" * 400_000
    line = Line(most=1_000_000)
    data = chunked(body, 40)
    for size in (10_000, 300_000, 300_000):
        pieces = (data[start : start + size] for start in range(0, len(data), size))
        assert await line.answered(pieces) == Response(200, body)


@pytest.mark.parametrize("response", [BROKEN["garbage"], BROKEN["a torn chunk"], BROKEN["two lengths"]])
async def test_connection_that_speaks_no_http_is_given_up(response: bytes) -> None:
    line = Line()
    await failure(line, whole(response))
    assert line.transport.aborted
    assert not line.connection.usable
    assert line.owner.idle == []


@feeds
@pytest.mark.parametrize(
    "response",
    [http(b"x" * 1_001), chunked(b"x" * 1_001, 100), b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 1_001],
    ids=["length", "chunked", "without a length"],
)
async def test_response_over_the_limit_is_given_up_with_its_connection(feed: Feed, response: bytes) -> None:
    line = Line(most=1_000)
    failed = await failure(line, feed(response))
    assert isinstance(failed, ResponseTooLarge)
    assert failed.sent
    assert line.transport.aborted


async def test_responses_of_exactly_the_limit_pass() -> None:
    line = Line(most=1_000)
    for response in (http(b"x" * 1_000), chunked(b"x" * 1_000), chunked(b"x" * 1_000)):
        assert (await line.answered(whole(response))).body == b"x" * 1_000


@feeds
async def test_gzip_bomb_is_not_unpacked_over_the_limit(feed: Feed) -> None:
    bomb = gzip.compress(bytes(50_000_000), 9)
    assert len(bomb) < MOST
    assert isinstance(await failure(Line(), feed(http(bomb))), ResponseTooLarge)


@pytest.mark.parametrize(
    "trailing",
    [http(b"late"), b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{", b"HTTP", b"?"],
    ids=["a response", "a torn response", "a torn head", "garbage"],
)
async def test_connection_that_sends_more_than_was_requested_is_not_used_again(trailing: bytes) -> None:
    """Or what follows would be taken for the answer to somebody else's call."""
    line = Line()
    assert await line.answered(whole(http(BODY) + trailing)) == Response(200, BODY)
    await run_pending()
    assert line.transport.closed
    assert not line.connection.usable


async def test_data_while_idle_closes_the_connection() -> None:
    line = Line()
    await line.answered(whole(http(BODY)))
    line.transport.deliver(http(b"late"))
    assert line.transport.aborted
    assert not line.connection.usable
    await run_pending()
    assert line.owner.gone == [line.connection]


# --- Lost connections --------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [None, ConnectionResetError()])
async def test_first_connection_that_is_lost_before_a_word_is_not_stale(error: Exception | None) -> None:
    line = Line()
    pending = line.begin()
    line.transport.drop(error)
    with pytest.raises(AttemptFailed) as caught:
        await pending
    assert caught.value.sent
    assert not caught.value.stale


@pytest.mark.parametrize("error", [None, ConnectionResetError()])
@pytest.mark.parametrize(("received", "stale"), [(b"", True), (b"HTTP", False), (http(BODY)[:-50], False)])
async def test_kept_connection_that_is_lost_is_stale_only_before_a_word(
    error: Exception | None, received: bytes, stale: bool
) -> None:
    line = Line()
    await line.answered(whole(http(BODY)))
    pending = line.begin()
    for piece in byte_by_byte(received):
        line.transport.deliver(piece)
    line.transport.drop(error)
    with pytest.raises(AttemptFailed) as caught:
        await pending
    assert caught.value.sent
    assert caught.value.stale is stale
    assert line.owner.gone == [line.connection]


# --- The bound on bytes held -------------------------------------------------------------------------------


async def test_small_responses_are_not_counted_and_large_ones_given_back() -> None:
    line = Line(budget=50_000)
    large = http(b"x" * SMALL * 2)
    await line.answered(whole(http(b"x" * SMALL)))
    assert line.budget.held == 0
    pending = line.begin()
    line.transport.deliver(large[:SMALL])
    assert line.budget.held == 0
    line.transport.deliver(large[SMALL : SMALL + 20_000])
    assert line.budget.held == 20_000
    line.transport.deliver(large[SMALL + 20_000 :])
    with pytest.raises(NoRoom):
        await pending
    await run_pending()
    assert line.budget.held == 0


@pytest.mark.parametrize("body", [b"x" * SMALL * 2, gzip.compress(b"x" * SMALL * 2)], ids=["plain", "gzip"])
async def test_large_response_counts_until_nobody_holds_it(body: bytes) -> None:
    line = Line()
    response = await line.answered(in_two(http(body)))
    assert len(response.body) == SMALL * 2
    await run_pending()
    # All large answers on their way to callers are there at the same time.
    assert line.budget.held > SMALL - 100
    del response
    await run_pending()
    assert line.budget.held == 0


async def test_large_response_without_a_length_counts_too() -> None:
    line = Line()
    pending = line.begin()
    line.transport.deliver(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * SMALL * 2)
    line.transport.drop(None)
    response = await pending
    assert line.budget.held == SMALL * 2
    del response, pending
    await run_pending()
    assert line.budget.held == 0


async def test_gzip_that_unpacks_to_more_than_there_is_room_for() -> None:
    line = Line(budget=SMALL)
    with pytest.raises(NoRoom) as caught:
        await line.answered(whole(http(gzip.compress(b"x" * SMALL * 2))))
    assert caught.value.sent
    assert line.budget.held == 0


@pytest.mark.parametrize(("size", "held"), [(SMALL, 0), (SMALL + 1, SMALL + 1)])
async def test_unpacked_response_counts_from_the_first_byte_beyond_a_small_one(size: int, held: int) -> None:
    line = Line()
    response = await line.answered(whole(http(gzip.compress(b"x" * size))))
    assert (len(response.body), line.budget.held) == (size, held)


async def test_large_response_of_a_lost_connection_gives_its_bytes_back() -> None:
    line = Line()
    pending = line.begin()
    line.transport.deliver(http(b"x" * SMALL * 4)[: SMALL * 3])
    assert line.budget.held > 0
    line.transport.drop(ConnectionResetError())
    assert line.budget.held == 0
    assert line.connection._body == []
    with pytest.raises(AttemptFailed):
        await pending
