"""Thousands of requests in one packet, and requests whose rest cannot be read: bounded, and answered once."""

import asyncio
from typing import Any

import pytest
from tests.gateway.fake_gateway import FakeGateway, open_gateway
from tests.gateway.fakes import run_pending
from tests.gateway.raw_http import GET, edge, exchange, hello, post, responses, whole

from tollgate.gateway.http.framing import MAX_LINES, MAX_WAITING, PIECE_BYTES
from tollgate.shm import metrics

SHORT = b"GET /a HTTP/1.1\r\nhost:\r\n\r\n"
REFUSED = b"GET /x/ HTTP/1.1\r\nhost:\r\n\r\n"
CHUNKED = b"POST /api HTTP/1.1\r\nhost: gate\r\ntransfer-encoding: chunked\r\n\r\n"


class App:
    """Answers when it is let, and watches meanwhile whether its caller leaves, as the control plane's does."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.received: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        while (message := await receive()).get("more_body"):
            pass
        self.received.append(message["type"])
        if message["type"] == "http.disconnect":
            return
        gone = asyncio.ensure_future(receive())
        await self.gate.wait()
        gone.cancel()
        await hello(scope, _whole_body, send)


async def _whole_body() -> dict[str, Any]:
    return {"type": "http.request"}


async def test_requests_that_come_together_wait_as_bytes(gateway: FakeGateway) -> None:
    app = App()
    transport = gateway.connect(app)
    transport.deliver(SHORT * 10_000)
    await run_pending(30)
    assert transport.paused, "the app that waits for its caller to leave must not read on"
    assert len(edge(transport).queue) <= MAX_WAITING + PIECE_BYTES // len(SHORT)
    app.gate.set()
    while not edge(transport).framing.between or edge(transport).is_busy():
        await run_pending(50)
    assert responses(transport) == ["200 /a"] * 10_000
    assert not edge(transport).flow.read_paused
    assert await exchange(transport, whole(post(2))) == ["200 2"]


async def test_requests_that_wait_are_answered_without_recursion(gateway: FakeGateway) -> None:
    app = App()
    transport = gateway.connect(app)
    transport.deliver(GET)
    # In packets so small that each is parsed whole.
    for _ in range(400):
        transport.deliver(REFUSED * 8)
    app.gate.set()
    await run_pending(30)
    assert responses(transport) == ["200 /healthz"] + ["405 method_not_post"] * 3_200


async def test_refusals_that_come_together_let_others_have_their_turn(gateway: FakeGateway) -> None:
    flood, other = gateway.connect(hello), gateway.connect(hello)
    flood.deliver(REFUSED * 5_000)
    other.deliver(post(7))
    await run_pending(30)
    assert responses(other) == ["200 7"]
    assert edge(flood).framing.unread, "the flood is not read to its end yet"
    while edge(flood).is_busy():
        await run_pending(50)
    assert responses(flood) == ["405 method_not_post"] * 5_000


async def test_caller_that_leaves_within_a_flood_is_forgotten(gateway: FakeGateway) -> None:
    transport = gateway.connect(App())
    transport.deliver(SHORT * 10_000)
    await run_pending(5)
    transport.drop()
    await run_pending(30)
    assert not edge(transport).is_busy() or edge(transport).asgi is not None
    assert not edge(transport).framing.unread


async def test_flood_counts_against_the_budget_until_it_is_read() -> None:
    gateway = await open_gateway(budget=60_000)
    first, second = gateway.connect(hello), gateway.connect(hello)
    first.deliver(REFUSED * 2_000)
    assert gateway.budget.held == len(REFUSED) * 2_000
    second.deliver(REFUSED * 2_000)
    assert responses(second) == ["503 overloaded close"]
    while edge(first).is_busy():
        await run_pending(50)
    assert gateway.budget.held == 0
    third = gateway.connect(hello)
    third.deliver(REFUSED * 2_000)
    third.drop()
    assert gateway.budget.held == 0


def flood(requests: int, lines: int, size: int) -> bytes:
    """So many requests with so many lines and bytes in all; the first has what the others have not."""
    lead = b"a:\r\n" * (lines - 3 * requests)
    rest = REFUSED * requests
    padding = b"a" * (size - len(lead) - len(rest))
    return rest.replace(b"/x/ ", b"/x/%b " % padding, 1).replace(b"host:\r\n", b"host:\r\n" + lead, 1)


@pytest.mark.parametrize(
    ("requests", "lines", "size", "is_held"),
    [
        (MAX_WAITING + 1, 27, PIECE_BYTES, False),
        (MAX_WAITING + 1, 27, PIECE_BYTES + 1, True),
        (MAX_WAITING, 24, PIECE_BYTES + 1, False),
        (1, MAX_LINES, 3_000, False),
        (1, MAX_LINES + 1, 3_000, True),
    ],
)
async def test_what_is_long_with_many_requests_or_lines_is_held_until_it_is_read(
    requests: int, lines: int, size: int, is_held: bool
) -> None:
    gateway = await open_gateway(budget=10)
    data = flood(requests, lines, size)
    assert (data.count(b"\r\n\r\n"), data.count(b"\r\n"), len(data)) == (requests, lines, size)
    answers = await exchange(gateway.connect(hello), whole(data))
    assert (answers == ["503 overloaded close"]) is is_held


# ---- tiny chunks


@pytest.mark.parametrize("path", [b"/x/eth/mainnet", b"/api"])
async def test_long_body_in_tiny_chunks_is_refused_and_others_have_their_turn(
    path: bytes, gateway: FakeGateway
) -> None:
    flood, other = gateway.connect(hello), gateway.connect(hello)
    flood.deliver(CHUNKED.replace(b"/api", path) + b"2\r\nab\r\n" * 30_000)
    assert edge(flood).framing.unread, "a piece in a turn"
    other.deliver(post(7))
    await run_pending(30)
    assert responses(other) == ["200 7"]
    while not flood.closed:
        await run_pending(50)
    assert responses(flood) == ["400 invalid_request close"]
    assert edge(flood).framing.size < 20_000
    assert gateway.budget.held == 0


async def test_long_body_in_short_chunks_is_read(gateway: FakeGateway) -> None:
    transport = gateway.connect(hello)
    transport.deliver(CHUNKED + b"20\r\n" + b"a" * 32 + b"\r\n")
    for _ in range(2_000):
        transport.deliver(b"20\r\n" + b"a" * 32 + b"\r\n")
        await run_pending(1)
    transport.deliver(b"0\r\n\r\n")
    await run_pending(30)
    assert responses(transport) == ["200 /api"]


# ---- a body that cannot be read


@pytest.mark.parametrize("rest", [b"x\r\n", b"-1\r\n", b"1\r\nab", b"0\r\ncontent-length: 5\r\n\r\n"])
async def test_broken_body_for_the_app_is_answered_at_once(rest: bytes, gateway: FakeGateway) -> None:
    app = App()
    transport = gateway.connect(app)
    transport.deliver(CHUNKED + b"1\r\na\r\n")
    await run_pending(10)
    # It takes as long as the caller likes until the connection is gone.
    transport.drop = lambda error=None: None  # type: ignore[method-assign]
    transport.deliver(rest)
    await run_pending(10)
    assert responses(transport) == ["400 invalid_request close"]
    assert transport.closed
    assert app.received == ["http.disconnect"]


async def test_answer_of_the_app_to_a_broken_body_is_dropped(gateway: FakeGateway) -> None:
    gate = asyncio.Event()

    async def stubborn(scope: Any, _: Any, send: Any) -> None:
        await gate.wait()
        await hello(scope, _whole_body, send)

    transport = gateway.connect(stubborn)
    transport.deliver(CHUNKED)
    await run_pending(10)
    gate.set()
    transport.deliver(b"zz\r\n")
    await run_pending(10)
    assert responses(transport) == ["400 invalid_request close"]


async def test_broken_body_in_line_does_not_cost_the_answer_before(gateway: FakeGateway) -> None:
    app = App()
    transport = gateway.connect(app)
    transport.deliver(GET + CHUNKED + b"zz\r\n")
    await run_pending(10)
    app.gate.set()
    await run_pending(30)
    assert responses(transport) == ["200 /healthz", "400 invalid_request close"]
    assert app.received == ["http.request"], "what cannot be read does not reach the app"


@pytest.mark.parametrize("is_complete", [False, True])
async def test_request_that_is_answered_before_its_body_breaks_has_one_answer(
    is_complete: bool, gateway: FakeGateway
) -> None:
    gate = asyncio.Event()

    async def app(_: Any, __: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 413, "headers": [(b"content-length", b"2")]})
        if not is_complete:
            await gate.wait()
        await send({"type": "http.response.body", "body": b"no"})

    transport = gateway.connect(app)
    transport.deliver(CHUNKED)
    await run_pending(10)
    transport.deliver(b"zz\r\n")
    gate.set()
    await run_pending(10)
    assert responses(transport) == ["413 no"]
    assert transport.closed
    assert gateway.counted(metrics.REQUESTS, "", "", "400") == 0, "no second answer is counted either"


# ---- a head that means two things


async def test_connection_of_a_caller_that_waits_for_leave_ends_with_the_answer(gateway: FakeGateway) -> None:
    """Otherwise its next request could be taken for the body that it was not let send."""

    async def app(_: Any, __: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    transport = gateway.connect(app)
    waiting = b"POST /a HTTP/1.1\r\nhost: gate\r\nexpect: 100-continue\r\ncontent-length: 500\r\n\r\n"
    assert await exchange(transport, iter([waiting, GET])) == ["200 ok close"]
    assert transport.closed


@pytest.mark.parametrize("path", [b"/x/eth/mainnet", b"/api/v1/me", b"http://a/x/eth/mainnet"])
async def test_two_hosts_are_refused(path: bytes, gateway: FakeGateway) -> None:
    transport = gateway.connect(hello)
    head = b"POST %b HTTP/1.1\r\nhost: a\r\nHost: b\r\ncontent-length: 2\r\n\r\n{}" % path
    assert await exchange(transport, whole(head + GET)) == ["400 invalid_request close"]
