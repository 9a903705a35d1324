"""No answer leaves before its record is written, and all leave in their order."""

from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.gateway.callers import sent
from tests.gateway.calls import answers_to, known
from tests.gateway.fake_gateway import FakeGateway, open_gateway
from tests.gateway.fake_node import echo
from tests.gateway.fakes import FakeTransport, Sink, run_pending
from tests.gateway.raw_http import GET, Answers, answer_upstream, edge, exchange, hello, post, responses, whole

from tollgate.gateway.messages import Request
from tollgate.shm import metrics


class StrictSink(Sink):
    """Fails where an answer has left before its record was written."""

    def __init__(self) -> None:
        super().__init__()
        self.watched: list[FakeTransport] = []
        self.writes = 0

    def write(self) -> None:
        self.writes += bool(self.waiting)
        super().write()
        answered = sum(each.written.count(b"HTTP/1.1 200") for each in self.watched)
        assert answered <= len(self.written)


def strict(gateway: FakeGateway) -> StrictSink:
    """Let the worker write to a sink that looks at what has left."""
    sink = StrictSink()
    gateway.sink = sink
    gateway.journal._sink = sink
    gateway.journal._append, gateway.journal._extend = sink.append, sink.extend
    gateway.context.outbox._write = sink.write
    return sink


async def test_answers_of_one_turn_leave_together_after_one_write() -> None:
    gateway = await open_gateway(node=lambda _: None)
    sink = strict(gateway)
    sink.watched = [gateway.connect(hello) for _ in range(20)]
    for transport in sink.watched:
        transport.deliver(post(1))
    await run_pending()
    assert sink.writes == 0
    for upstream in gateway.loop.transports:
        upstream.deliver(echo(upstream.take().partition(b"\r\n\r\n")[2]))
        assert not any(transport.written for transport in sink.watched), "left before the turn was over"
    await run_pending()
    assert (sink.writes, len(sink.written)) == (1, 20)
    assert [responses(transport) for transport in sink.watched] == [["200 1"]] * 20


async def test_no_answer_leaves_while_its_record_waits(gateway: FakeGateway) -> None:
    sink = strict(gateway)
    blocked = []
    real = gateway.context.outbox._write
    gateway.context.outbox._write = lambda: blocked.append(len(sink.waiting))
    transport = gateway.connect(hello)
    transport.deliver(post(1))
    for _ in range(30):
        assert bool(transport.written) == bool(blocked), "written is checked before anything leaves"
        await run_pending(1)
    assert blocked == [1]
    gateway.context.outbox._write = real


async def test_order_of_answers_is_kept_whether_they_wait_for_a_record_or_not(gateway: FakeGateway) -> None:
    strict(gateway)
    refused = post(9).replace(b"Bearer", b"Basic")
    transport = gateway.connect(hello)
    assert await exchange(transport, whole(post(1) + refused + GET + post(2) + refused + refused + post(3))) == [
        "200 1",
        "401 token_invalid",
        "200 /healthz",
        "200 2",
        "401 token_invalid",
        "401 token_invalid",
        "200 3",
    ]


async def test_refusal_behind_an_answer_that_waits_does_not_overtake_it(gateway: FakeGateway) -> None:
    await answers_to(gateway, post(0))  # known from now on: refusals are answered at once
    known(gateway, capped_until=2e9)
    transport = gateway.connect(hello)
    refused_at_once = sent(b"{")
    transport.deliver(refused_at_once + refused_at_once.replace(b"Bearer", b"Basic") + refused_at_once)
    assert transport.written == b"", "all wait for the end of the turn"
    await run_pending(40)
    assert [status for status, _, _ in Answers(transport.take()).read] == [400, 401, 400]


async def test_connection_that_closes_meanwhile_is_written_and_not_answered() -> None:
    gateway = await open_gateway(node=lambda _: None)
    transport = gateway.connect(hello)
    other = gateway.connect(hello)
    transport.deliver(post(1))
    other.deliver(post(2))
    await run_pending()
    answer_upstream(gateway)
    transport.drop()
    await run_pending()
    assert transport.take() == b""
    assert responses(other) == ["200 2"]
    assert len(gateway.sink.written) == 2
    assert edge(transport).leaving == 0


async def test_connection_that_closed_before_the_node_answered_is_still_written() -> None:
    gateway = await open_gateway(node=lambda _: None)
    transport = gateway.connect(hello)
    transport.deliver(post(1))
    await run_pending()
    transport.drop()
    answer_upstream(gateway)
    await run_pending()
    assert [entry.calls[0].outcome for entry in gateway.sink.written] == ["ok"]


async def test_last_answer_of_a_connection_leaves_before_it_is_closed(gateway: FakeGateway) -> None:
    strict(gateway)
    transport = gateway.connect(hello)
    assert await exchange(transport, whole(post(1, "connection: close"))) == ["200 1 close"]
    assert transport.closed


async def test_caller_that_has_sent_its_last_byte_is_not_dropped_while_its_answer_waits(
    gateway: FakeGateway,
) -> None:
    transport = gateway.connect(hello)
    await answers_to(gateway, post(0))
    transport.deliver(sent(b"{"))
    assert edge(transport).eof_received(), "kept open"
    await run_pending()
    assert [status for status, _, _ in Answers(transport.take()).read] == [400]


async def test_idle_check_does_not_close_a_connection_whose_answer_waits(gateway: FakeGateway) -> None:
    transport = gateway.connect(hello)
    await answers_to(gateway, post(0))
    transport.deliver(sent(b"{"))
    gateway.clock.advance(10_000)
    gateway.context.clock = gateway.clock.now
    edge(transport).check(gateway.clock.now)
    assert not transport.closed
    await run_pending()
    assert transport.take()


async def test_write_that_fails_in_an_unforeseen_way_does_not_silence_the_worker(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[dict[str, Any]] = []
    monkeypatch.setattr(gateway.loop, "call_exception_handler", failures.append)
    real = gateway.context.outbox._write

    def fail() -> None:
        gateway.context.outbox._write = real
        raise RuntimeError("a defect")

    gateway.context.outbox._write = fail
    assert [status for status, _ in await answers_to(gateway, post(1))] == [200]
    assert [status for status, _ in await answers_to(gateway, post(2))] == [200]
    assert len(failures) == 1
    assert len(gateway.sink.written) == 2


async def test_request_that_cannot_be_recorded_does_not_take_the_others_with_it(gateway: FakeGateway) -> None:
    real = gateway.journal.address

    def address(request: Request) -> str:
        if request.request_id == b"bad":
            raise RuntimeError("a defect")
        return real(request)

    gateway.journal.address = address
    await answers_to(gateway, post(0))
    transport = gateway.connect(hello)
    with capture_logs() as lines:
        for name in ("one", "bad", "two"):
            transport.deliver(sent(b"{", f"x-request-id: {name}"))
        await run_pending()
    assert [status for status, _, _ in Answers(transport.take()).read] == [400] * 3
    assert [entry.request_id for entry in gateway.sink.written[1:]] == [b"one", b"two"]
    assert [(line["event"], line["request_id"]) for line in lines] == [("a request could not be recorded", "bad")]


async def test_connection_that_breaks_while_answers_leave_does_not_keep_those_of_others(
    gateway: FakeGateway,
) -> None:
    broken, sound = gateway.connect(hello), gateway.connect(hello)
    await answers_to(gateway, post(0))

    def fail(_: object) -> None:
        raise RuntimeError("a broken transport")

    broken.write = fail  # type: ignore[method-assign,assignment]
    broken.deliver(sent(b"{"))
    sound.deliver(sent(b"{"))
    await run_pending()
    assert [status for status, _, _ in Answers(sound.take()).read] == [400]


async def test_recording_adds_nothing_to_what_is_counted(gateway: FakeGateway) -> None:
    await answers_to(gateway, post(1), post(2))
    assert gateway.counted(metrics.REQUESTS, "eth", "mainnet", "200") == 2
    assert gateway.counted(metrics.CALLS, "eth", "mainnet", "eth_chainId", "ok") == 2
