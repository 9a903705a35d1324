"""One connection to an upstream. Each response is fed whole, byte by byte, and with something behind it."""

import asyncio
import gzip
from collections.abc import Callable, Iterator

import pytest

from tests.gateway.fakes import FakeTransport, run, turns
from tests.gateway.worker import http
from tollgate.gateway.budget import SMALL, Budget
from tollgate.gateway.flight import Pending
from tollgate.gateway.wire import AttemptFailed, Connection, Response, TooLarge

MOST = 300_000
BODY = b'{"jsonrpc":"2.0","id":1,"result":"0x1"}'
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"

Feed = Callable[[bytes], Iterator[bytes]]


class Owner:
    """Writes down which connections came back and which are gone."""

    def __init__(self) -> None:
        self.free: list[Connection] = []
        self.gone: list[Connection] = []

    def freed(self, connection: Connection) -> None:
        self.free.append(connection)

    def lost(self, connection: Connection) -> None:
        self.gone.append(connection)


class Line:
    """A connection with both its ends."""

    def __init__(self, *, budget: int = 10_000_000, most: int = MOST) -> None:
        self.owner = Owner()
        self.budget = Budget(budget)
        self.connection = Connection(self.owner, asyncio.get_running_loop(), most, self.budget)
        self.transport = FakeTransport(self.connection)
        self.connection.connection_made(self.transport)

    def ask(self) -> Pending[Response]:
        return self.connection.send(b"POST / HTTP/1.1\r\n\r\n", 2_000.0)

    async def answered(self, pieces: Iterator[bytes]) -> Response:
        """Ask, hear all the pieces, and see what came of it."""
        pending = self.ask()
        for piece in pieces:
            self.transport.say(piece)
        return await pending


def whole(data: bytes) -> Iterator[bytes]:
    yield data


def byte_by_byte(data: bytes) -> Iterator[bytes]:
    for index in range(len(data)):
        yield data[index : index + 1]


def in_two(data: bytes) -> Iterator[bytes]:
    yield data[: len(data) // 2]
    yield data[len(data) // 2 :]


feeds = pytest.mark.parametrize("feed", [whole, byte_by_byte, in_two])


def chunked(body: bytes, size: int = 10) -> bytes:
    chunks = [body[start : start + size] for start in range(0, len(body), size)]
    return CHUNKED + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"


KEPT = {
    "length": http(BODY),
    "chunked": chunked(BODY),
    "chunked with a trailer": chunked(BODY)[:-2] + b"x-sum: 1\r\n\r\n",
    "gzip": http(gzip.compress(BODY), b"content-encoding: gzip"),
    "gzip, chunked": chunked(gzip.compress(BODY)),
    "gzip that is not announced": http(gzip.compress(BODY)),
    "after 100": b"HTTP/1.1 100 Continue\r\n\r\n" + http(BODY),
    "after 103": b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" + http(BODY),
    "many headers": http(BODY, *(b"x-%d: %d" % (number, number) for number in range(50))),
}


@feeds
@pytest.mark.parametrize("response", KEPT.values(), ids=KEPT.keys())
def test_response_is_read_and_the_connection_kept(feed: Feed, response: bytes) -> None:
    async def test() -> None:
        line = Line()
        for _ in range(2):
            assert await line.answered(feed(response)) == Response(200, BODY)
        assert line.owner.free == [line.connection] * 2
        assert line.connection.usable
        assert not line.connection.busy
        assert not line.transport.closed

    run(test)


@feeds
@pytest.mark.parametrize(
    "response",
    [
        http(BODY, b"connection: close"),
        http(BODY).replace(b"HTTP/1.1", b"HTTP/1.0"),
        chunked(BODY).replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n", 1),
    ],
    ids=["close", "HTTP/1.0", "chunked, close"],
)
def test_connection_that_the_upstream_closes_is_not_kept(feed: Feed, response: bytes) -> None:
    async def test() -> None:
        line = Line()
        assert await line.answered(feed(response)) == Response(200, BODY)
        assert line.owner.free == []
        assert not line.connection.usable
        assert line.transport.closed
        await turns()
        assert line.owner.gone == [line.connection]

    run(test)


@feeds
@pytest.mark.parametrize("body", [BODY, gzip.compress(BODY)], ids=["plain", "gzip"])
def test_response_without_a_length_ends_with_the_connection(feed: Feed, body: bytes) -> None:
    async def test() -> None:
        line = Line()
        pending = line.ask()
        for piece in feed(b"HTTP/1.1 200 OK\r\n\r\n" + body):
            line.transport.say(piece)
        assert not pending.done
        line.transport.drop()
        assert await pending == Response(200, BODY)
        assert line.owner.gone == [line.connection]

    run(test)


@feeds
@pytest.mark.parametrize("status", [b"404 Not Found", b"503 Service Unavailable", b"429 Too Many Requests"])
def test_status_is_handed_on(feed: Feed, status: bytes) -> None:
    async def test() -> None:
        assert await Line().answered(feed(http(b"no", status=status))) == Response(int(status[:3]), b"no")

    run(test)


def test_response_with_an_empty_body_is_a_response() -> None:
    async def test() -> None:
        assert await Line().answered(whole(http(b""))) == Response(200, b"")
        assert await Line().answered(whole(b"HTTP/1.1 204 No Content\r\n\r\n")) == Response(204, b"")

    run(test)


# --- What is no response -----------------------------------------------------------------------------------


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
def test_broken_response_is_a_failure_after_sending(feed: Feed, response: bytes) -> None:
    async def test() -> None:
        failed = await failure(Line(), feed(response))
        assert failed.sent
        assert not failed.stale
        assert failed.outcome == "broken"

    run(test)


@pytest.mark.parametrize("response", [BROKEN["garbage"], BROKEN["a torn chunk"], BROKEN["two lengths"]])
def test_connection_that_speaks_no_http_is_given_up(response: bytes) -> None:
    async def test() -> None:
        line = Line()
        await failure(line, whole(response))
        assert line.transport.aborted
        assert not line.connection.usable
        assert line.owner.free == []

    run(test)


@feeds
@pytest.mark.parametrize(
    "response",
    [http(b"x" * 1_001), chunked(b"x" * 1_001, 100), b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 1_001],
    ids=["length", "chunked", "without a length"],
)
def test_response_over_the_limit_is_given_up_with_its_connection(feed: Feed, response: bytes) -> None:
    async def test() -> None:
        line = Line(most=1_000)
        assert isinstance(await failure(line, feed(response)), TooLarge)
        assert line.transport.aborted

    run(test)


def test_response_of_exactly_the_limit_passes() -> None:
    async def test() -> None:
        assert (await Line(most=1_000).answered(whole(http(b"x" * 1_000)))).body == b"x" * 1_000

    run(test)


@feeds
def test_gzip_bomb_is_not_unpacked_over_the_limit(feed: Feed) -> None:
    async def test() -> None:
        bomb = gzip.compress(bytes(50_000_000), 9)
        assert len(bomb) < MOST
        assert isinstance(await failure(Line(), feed(http(bomb))), TooLarge)

    run(test)


@pytest.mark.parametrize(
    "trailing",
    [http(b"late"), b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{", b"HTTP", b"?"],
    ids=["a response", "a torn response", "a torn head", "garbage"],
)
def test_connection_that_says_more_than_was_asked_is_not_used_again(trailing: bytes) -> None:
    """Or what follows would be taken for the answer to somebody else's call."""

    async def test() -> None:
        line = Line()
        assert await line.answered(whole(http(BODY) + trailing)) == Response(200, BODY)
        await turns()
        assert line.transport.closed
        assert not line.connection.usable

    run(test)


def test_data_while_idle_closes_the_connection() -> None:
    async def test() -> None:
        line = Line()
        await line.answered(whole(http(BODY)))
        line.transport.say(http(b"late"))
        assert line.transport.aborted
        assert not line.connection.usable
        await turns()
        assert line.owner.gone == [line.connection]

    run(test)


# --- Lost connections --------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [None, ConnectionResetError()])
def test_first_connection_that_is_lost_before_a_word_is_not_stale(error: Exception | None) -> None:
    async def test() -> None:
        line = Line()
        pending = line.ask()
        line.transport.drop(error)
        with pytest.raises(AttemptFailed) as caught:
            await pending
        assert caught.value.sent
        assert not caught.value.stale

    run(test)


@pytest.mark.parametrize("error", [None, ConnectionResetError()])
@pytest.mark.parametrize(("heard", "stale"), [(b"", True), (b"HTTP", False), (http(BODY)[:-50], False)])
def test_kept_connection_that_is_lost_is_stale_only_before_a_word(
    error: Exception | None, heard: bytes, stale: bool
) -> None:
    async def test() -> None:
        line = Line()
        await line.answered(whole(http(BODY)))
        pending = line.ask()
        for piece in byte_by_byte(heard):
            line.transport.say(piece)
        line.transport.drop(error)
        with pytest.raises(AttemptFailed) as caught:
            await pending
        assert caught.value.sent
        assert caught.value.stale is stale
        assert line.owner.gone == [line.connection]

    run(test)


# --- The bound on bytes held -------------------------------------------------------------------------------


def test_small_responses_are_not_counted_and_large_ones_given_back() -> None:
    async def test() -> None:
        line = Line(budget=50_000)
        large = http(b"x" * SMALL * 2)
        await line.answered(whole(http(b"x" * SMALL)))
        assert line.budget.held == 0
        pending = line.ask()
        line.transport.say(large[:SMALL])
        assert line.budget.held == 0
        line.transport.say(large[SMALL : SMALL + 20_000])
        assert line.budget.held == 20_000
        line.transport.say(large[SMALL + 20_000 :])
        with pytest.raises(TooLarge):
            await pending
        await turns()
        assert line.budget.held == 0

    run(test)


def test_large_response_gives_its_bytes_back_when_it_is_handed_over() -> None:
    async def test() -> None:
        line = Line()
        large = http(b"x" * SMALL * 2)
        response = await line.answered(in_two(large))
        assert len(response.body) == SMALL * 2
        assert line.budget.held == 0

    run(test)


def test_large_response_of_a_lost_connection_gives_its_bytes_back() -> None:
    async def test() -> None:
        line = Line()
        pending = line.ask()
        line.transport.say(http(b"x" * SMALL * 4)[: SMALL * 3])
        assert line.budget.held > 0
        line.transport.drop(ConnectionResetError())
        assert line.budget.held == 0
        with pytest.raises(AttemptFailed):
            await pending

    run(test)
