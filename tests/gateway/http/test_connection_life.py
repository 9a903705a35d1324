"""A caller's connection: waiting, deadlines, slow callers, too many of them, and the end."""

import asyncio
from typing import Any

import pytest
from tests.gateway.fake_gateway import FakeGateway, open_gateway
from tests.gateway.fake_node import http
from tests.gateway.fakes import run_pending
from tests.gateway.raw_http import GET, answer_upstream, edge, exchange, hello, post, responses, whole

from tollgate.gateway.http.framing import MAX_WAITING
from tollgate.gateway.http.outbox import Answered, Outgoing
from tollgate.gateway.memory_budget import SMALL
from tollgate.gateway.messages import Answer, Request
from tollgate.settings import model

SERVER = model.ServerSettings(keep_alive_seconds=75.0, read_seconds=30.0)
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def later(gateway: FakeGateway, seconds: float) -> None:
    gateway.clock.advance(seconds)
    gateway.context.tick()


# --- Expect: 100-continue ----------------------------------------------------------------------------------


async def test_caller_that_waits_for_leave_gets_it(gateway: FakeGateway) -> None:
    head, _, body = post(1, "expect: 100-continue").partition(b"\r\n\r\n")
    transport = gateway.connect(hello)
    transport.deliver(head + b"\r\n\r\n")
    assert transport.take() == CONTINUE
    transport.protocol.resume_writing()
    assert transport.take() == b"", "once"
    assert await exchange(transport, whole(body)) == ["200 1"]


async def test_caller_that_waits_for_leave_is_refused_before_it_sends(gateway: FakeGateway) -> None:
    head = post(1, "expect: 100-continue", path="/x/nowhere").partition(b"\r\n\r\n")[0]
    transport = gateway.connect(hello)
    assert await exchange(transport, whole(head + b"\r\n\r\n")) == ["404 unknown_network close"]


@pytest.mark.parametrize(
    ("last", "answer"),
    [
        (post(2, "expect: 100-continue", path="/x/nowhere"), "404 unknown_network close"),
        (b"\x00\x00", "400 invalid_request close"),
    ],
    ids=["refused leave", "no HTTP"],
)
async def test_nothing_is_read_behind_the_last_request_though_it_waits_for_its_turn(
    last: bytes, answer: str
) -> None:
    gateway = await open_gateway(node=lambda _: None)
    transport = gateway.connect(hello)
    transport.deliver(post(1))
    await run_pending(30)
    for data in (last, post(3), post(4, "x-new: 1")):
        transport.deliver(data)
    await run_pending(30)
    assert len(edge(transport).queue) == 1
    answer_upstream(gateway)
    await run_pending(30)
    assert responses(transport) == ["200 1", answer]


@pytest.mark.parametrize(("tls", "kept"), [(False, True), (True, False)], ids=["plain", "TLS"])
async def test_caller_that_has_sent_its_last_byte_gets_its_answer_and_the_connection_ends(
    tls: bool, kept: bool
) -> None:
    gateway = await open_gateway(node=lambda _: None)
    transport = gateway.connect(hello)
    transport.can_half_close = not tls
    assert not edge(transport).eof_received(), "nothing waits"
    gateway.publish_heads(100, 100, finalized=90)
    transport = gateway.connect(hello)
    transport.can_half_close = not tls
    for number in range(3):
        assert await exchange(transport, whole(post(number))) == []
        if number == 2:
            assert edge(transport).eof_received() is kept
        answer_upstream(gateway)
        await run_pending(30)
        assert responses(transport) == [f"200 {number}" if number < 2 else "200 2 close"]
    assert transport.closed


async def test_request_behind_an_answer_that_closes_is_not_carried_out(gateway: FakeGateway) -> None:
    transport = gateway.connect(hello)
    await exchange(transport, whole(post(1)))
    edge(transport).shutdown()
    # The answer waits for its record when the next request comes.
    transport.deliver(post(2).replace(b"{", b"x"))
    transport.deliver(post(3))
    await run_pending(30)
    assert responses(transport) == ["400 parse_error close"]
    assert [entry.calls[0].method for entry in gateway.sink.written] == ["eth_chainId", ""]


@pytest.mark.parametrize("first", [post(1), GET], ids=["ours", "other lane"])
async def test_leave_is_given_after_the_answers_before_it(first: bytes) -> None:
    gate = asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await gate.wait()
        await send({"type": "http.response.body", "body": b"ok"})

    gateway = await open_gateway(node=lambda _: None)
    transport = gateway.connect(slow)
    head, _, body = post(2, "expect: 100-continue").partition(b"\r\n\r\n")
    transport.deliver(first)
    await run_pending()
    transport.deliver(head + b"\r\n\r\n")
    await run_pending()
    assert CONTINUE not in transport.written, "leave in the middle of another answer"
    gate.set()
    answer_upstream(gateway)
    await run_pending(30)
    assert transport.written.endswith(CONTINUE), "the caller waits for leave that never comes"
    transport.take()
    transport.deliver(body)
    await run_pending(30)
    answer_upstream(gateway)
    await run_pending(30)
    assert responses(transport) == ["200 2"]


# --- Deadlines ---------------------------------------------------------------------------------------------


async def test_idle_connection_is_closed_after_a_while() -> None:
    gateway = await open_gateway(server=SERVER)
    fresh, used = gateway.connect(hello), gateway.connect(hello)
    later(gateway, 70.0)
    await exchange(used, whole(post()))
    later(gateway, 6.0)
    assert (fresh.closed, used.closed) == (True, False)
    later(gateway, 70.0)
    assert used.closed


@pytest.mark.parametrize("before", [b"", post(1)], ids=["first", "later"])
@pytest.mark.parametrize("part", [20, -5], ids=["head", "body"])
async def test_request_that_does_not_arrive_is_given_up(before: bytes, part: int) -> None:
    gateway = await open_gateway(server=SERVER)
    transport = gateway.connect(hello)
    await exchange(transport, whole(before))
    later(gateway, 40.0)
    transport.deliver(post(2, "x-new: 1")[:part])
    later(gateway, 30.0)
    assert not transport.closed
    later(gateway, 1.0)
    assert transport.closed


async def test_request_under_way_is_not_cut() -> None:
    gateway = await open_gateway(server=SERVER, node=lambda _: None)
    transport = gateway.connect(hello)
    await exchange(transport, whole(post()))
    later(gateway, 1_000.0)
    assert not transport.closed
    answer_upstream(gateway)
    await run_pending(30)
    assert responses(transport) == ["200 1"]
    later(gateway, 70.0)
    assert not transport.closed


async def test_keep_alive_of_the_other_lane_does_not_cut_our_answer() -> None:
    gateway = await open_gateway(node=lambda _: None)
    transport = gateway.connect(hello, timeout_keep_alive=0)
    assert await exchange(transport, whole(GET + post(1))) == ["200 /healthz"]
    assert not transport.closed
    answer_upstream(gateway)
    await run_pending(30)
    assert responses(transport) == ["200 1"]


# --- Callers that do not read ------------------------------------------------------------------------------


async def test_caller_that_does_not_read_gets_no_more_and_is_cut() -> None:
    gateway = await open_gateway(server=SERVER)
    transport = gateway.connect(hello)
    await exchange(transport, whole(post(1)))
    edge(transport).pause_writing()
    for number in range(MAX_WAITING):
        assert await exchange(transport, whole(post(number, f"x-new: {number}"))) == []
        later(gateway, 1.0)
    assert transport.paused
    later(gateway, 30.0 - MAX_WAITING)
    assert not transport.aborted
    later(gateway, 1.0)
    assert transport.aborted


async def test_caller_that_reads_again_gets_what_waited() -> None:
    gateway = await open_gateway(server=SERVER)
    transport = gateway.connect(hello)
    edge(transport).pause_writing()
    assert await exchange(transport, whole(post(1) + post(2) + GET)) == []
    edge(transport).resume_writing()
    await run_pending(40)
    assert responses(transport) == ["200 1", "200 2", "200 /healthz"]
    assert not transport.paused


async def test_caller_that_hangs_up_leaves_nothing_behind() -> None:
    gateway = await open_gateway(node=lambda _: None)
    transport = gateway.connect(hello)
    await exchange(transport, whole(post(1) + post(2) + post(3)[:-5]))
    transport.drop()
    answer_upstream(gateway)
    await run_pending(30)
    assert gateway.context.connections == set()
    assert len(gateway.context.under_way) == 0
    assert gateway.budget.held == 0
    assert transport.written == b""


# --- Too much ----------------------------------------------------------------------------------------------


async def test_one_connection_too_many_is_reported() -> None:
    gateway = await open_gateway(server=model.ServerSettings(connections=2))
    first, second, third = (gateway.connect(hello) for _ in range(3))
    assert responses(third) == ["503 overloaded close"]
    assert third.closed
    assert await exchange(second, whole(post())) == ["200 1"]
    first.drop()
    await run_pending()
    assert await exchange(gateway.connect(hello), whole(post())) == ["200 1"]


async def test_websockets_count_among_the_connections() -> None:
    gateway = await open_gateway(server=model.ServerSettings(connections=2))
    gateway.context.upgraded = 1
    assert await exchange(gateway.connect(hello), whole(post())) == ["200 1"]
    assert responses(gateway.connect(hello)) == ["503 overloaded close"]


async def test_one_request_under_way_too_many_is_reported() -> None:
    gateway = await open_gateway(node=lambda _: None, limits=model.LimitSettings(in_flight=1))
    busy = gateway.connect(hello)
    await exchange(busy, whole(post()))
    assert await exchange(gateway.connect(hello), whole(post())) == ["503 overloaded"]


async def test_large_bodies_share_a_bound() -> None:
    gateway = await open_gateway(budget=150_000)
    head = post().partition(b"\r\n\r\n")[0]
    head = head.replace(head.rpartition(b"\r\n")[2], b"content-length: 200000") + b"\r\n\r\n"
    first, second = gateway.connect(hello), gateway.connect(hello)
    for transport in (first, second):
        for piece in (head, b" " * 60_000, b" " * 60_000, b" " * 60_000):
            transport.deliver(piece)
    assert await exchange(second, whole(b" " * 20_000)) == ["503 overloaded"]
    assert await exchange(first, whole(b" " * 20_000)) == ["400 parse_error"]
    assert gateway.budget.held == 0


async def test_large_answer_counts_until_it_has_left(gateway: FakeGateway) -> None:
    left: list[int] = []

    class Leaving:
        def leave(self, answer: Outgoing) -> None:
            assert (len(answer.data), answer.close) == (SMALL + 1, False)
            left.append(gateway.budget.held)

    for _ in range(2):
        gateway.context.outbox.put(Answered(Leaving(), bytes(SMALL + 1)))
        gateway.context.outbox.count_large(bytes(SMALL + 1))
    assert gateway.budget.held == 2 * (SMALL + 1)
    await run_pending()
    assert left == [2 * (SMALL + 1)] * 2
    assert gateway.budget.held == 0


@pytest.mark.parametrize("fast_path", [True, False])
async def test_large_answer_to_a_call_counts_until_it_has_left(fast_path: bool) -> None:
    answer = http(b'{"jsonrpc":"2.0","id":1,"result":"%b"}' % (b"0" * SMALL))
    gateway = await open_gateway(node=lambda _: answer, fast_path=fast_path)
    gateway.publish_heads(100, 100, finalized=90)
    transport = gateway.connect(hello)
    held = []
    write = gateway.context.outbox._write

    def writing() -> None:
        held.append(gateway.budget.held)
        write()

    gateway.context.outbox._write = writing
    for _ in range(3):
        transport.deliver(post(1))
        await run_pending(30)
        assert held[-1] >= len(transport.take())
        assert gateway.budget.held == 0


async def test_caller_that_leaves_leaves_no_part_of_its_body(gateway: FakeGateway) -> None:
    """Its call object lives on until garbage is collected, and the connection with it."""
    transport = gateway.connect(hello)
    head, _, _ = post().partition(b"\r\n\r\n")
    transport.deliver(
        head.replace(head.rpartition(b"\r\n")[2], b"content-length: 200000") + b"\r\n\r\n" + b" " * 9_000
    )
    connection = edge(transport)
    assert sum(map(len, connection.framing.chunks)) == 9_000
    assert gateway.server_state.connections == {connection}
    transport.drop()
    assert connection.framing.chunks == []
    assert gateway.server_state.connections == set()


async def test_defect_of_ours_is_answered_and_the_connection_lives(gateway: FakeGateway) -> None:
    answers = [RuntimeError("at once"), RuntimeError("later"), None]
    sound = gateway.pipeline.answer

    def broken(request: Request) -> Any:
        defect = answers.pop(0)
        if defect is None:
            return sound(request)
        if defect.args == ("at once",):
            raise defect
        return fails(defect)

    async def fails(defect: RuntimeError) -> Answer:
        waited = gateway.loop.create_future()
        gateway.loop.call_soon(waited.set_result, None)
        await waited
        raise defect

    gateway.pipeline.answer = broken  # type: ignore[method-assign]
    transport = gateway.connect(hello)
    assert await exchange(transport, whole(post(1) + post(2) + post(3))) == [
        "500 internal_error",
        "500 internal_error",
        "200 3",
    ]
    assert not transport.closed
