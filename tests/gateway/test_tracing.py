"""Spans: which requests have one, whose child it is, what is passed on, and what a span never contains."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from tests.gateway.call.situations import SlowStates
from tests.gateway.callers import TOKEN, call, request, sent
from tests.gateway.calls import known, recorded
from tests.gateway.fake_gateway import FakeGateway, open_gateway
from tests.gateway.fake_node import Http, http
from tests.gateway.fakes import Clock, run_pending
from tests.gateway.raw_http import Answers, hello
from tests.gateway.websocket.asgi_clients import open_server

from tollgate.core.entries import CallEntry
from tollgate.gateway import tracing
from tollgate.gateway.recording.spans import end_span
from tollgate.gateway.tracing import CLIENT, SERVER, Span, TraceContext, Tracer, read_context
from tollgate.settings.model import TelemetrySettings
from tollgate.shm import metrics

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = f"traceparent: 00-{TRACE}-{PARENT}-01"
UNSAMPLED = f"traceparent: 00-{TRACE}-{PARENT}-00"
PASSED_ON = re.compile(rb"\r\ntraceparent: 00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})\r\n")


def make_tracer(
    *, ratio: float = 0.0, follow_callers: bool = True, propagate: bool = True, chances: list[float] | None = None
) -> Tracer:
    drawn = iter(chances or [])
    return Tracer(
        ratio=ratio,
        follow_callers=follow_callers,
        propagate=propagate,
        now=Clock(),
        time=Clock(1_700_000_000.0),
        random=lambda: next(drawn, 0.5),
    )


async def traced(tracer: Tracer, **options: Any) -> FakeGateway:
    gateway = await open_gateway(tracer=tracer, **options)
    tracer.now = gateway.clock
    gateway.publish_heads(100, 100, finalized=90)
    return gateway


def ended(tracer: Tracer) -> list[Span]:
    return tracer.take(100)


def upstream_heads(gateway: FakeGateway) -> list[bytes]:
    return [bytes(transport.written) for transport in gateway.loop.transports]


# --- Trace context -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "sampled"),
    [
        (f"00-{TRACE}-{PARENT}-01", True),
        (f"00-{TRACE}-{PARENT}-00", False),
        (f"00-{TRACE}-{PARENT}-03", True),
        (f"cc-{TRACE}-{PARENT}-01", True),
        (f"cc-{TRACE}-{PARENT}-01-what-the-future-brings", True),
    ],
)
def test_valid_context_is_read(header: str, sampled: bool) -> None:
    assert read_context({b"traceparent": header.encode()}) == TraceContext(TRACE, PARENT, sampled)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "nonsense",
        f"00-{TRACE}-{PARENT}",
        f"00-{TRACE}-{PARENT}-01-more",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-01,00-{TRACE}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-1",
        f"cc-{TRACE}-{PARENT}-01.more",
    ],
)
def test_invalid_context_is_none(header: str) -> None:
    assert read_context({b"traceparent": header.encode()}) is None


@pytest.mark.parametrize(("state", "kept"), [(b"a=1,b=2", b"a=1,b=2"), (b"x" * 513, b""), (b"a=\xff", b"")])
def test_state_of_others_is_kept_where_it_is_short_and_plain(state: bytes, kept: bytes) -> None:
    context = read_context({b"traceparent": f"00-{TRACE}-{PARENT}-01".encode(), b"tracestate": state})
    assert context is not None
    assert context.state == kept


# --- Requests ----------------------------------------------------------------------------------------------


async def test_message_of_a_websocket_has_a_span() -> None:
    tracer = make_tracer(ratio=1.0)
    server = await open_server(tracer=tracer)
    client = await server.open()
    ended(tracer)
    await client.deliver(call(1))
    assert len(client.received()) == 1
    assert [span.kind for span in ended(tracer)].count(SERVER) == 1


@pytest.mark.parametrize("cached", [0, 1_000_000])
async def test_call_in_a_sampled_trace_has_a_span_and_one_for_its_attempt(cached: int) -> None:
    tracer = make_tracer()
    gateway = await traced(tracer, cache_bytes=cached)

    def respond(method: str, params: Any) -> Any:
        gateway.clock.advance(0.25)
        return method

    gateway.nodes[0].respond = respond
    await recorded(gateway, sent(call(1), SAMPLED, "tracestate: a=1", "x-request-id: mine-1"))
    attempt, request = ended(tracer)
    assert (request.trace_id, request.parent_id, request.kind) == (TRACE, PARENT, SERVER)
    assert (attempt.trace_id, attempt.parent_id, attempt.kind) == (TRACE, request.span_id, CLIENT)
    assert request.name == "eth_chainId"
    assert request.attributes == {
        "rpc.system": "jsonrpc",
        "rpc.method": "eth_chainId",
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "http.route": "/x/eth/mainnet",
        "tollgate.request_id": "mine-1",
        "tollgate.network": "eth/mainnet",
        "tollgate.outcome": "ok",
        "tollgate.cache": "miss" if cached else "bypass",
        "tollgate.upstream": "up0",
        "tollgate.attempts": 1,
    }
    assert attempt.name == "attempt up0"
    assert attempt.attributes == {
        "rpc.system": "jsonrpc",
        "tollgate.network": "eth/mainnet",
        "tollgate.upstream": "up0",
        "tollgate.attempt": 1,
        "tollgate.outcome": "ok",
    }
    assert not request.failed
    assert request.started_ns == 1_700_000_000 * 10**9
    assert request.ended_ns - request.started_ns == pytest.approx(250_000_000, abs=1_000)
    assert request.started_ns <= attempt.started_ns <= attempt.ended_ns <= request.ended_ns
    (head,) = upstream_heads(gateway)
    assert f"\r\ntraceparent: 00-{TRACE}-{attempt.span_id}-01\r\ntracestate: a=1\r\n\r\n".encode() in head


async def test_call_in_a_trace_that_is_not_sampled_has_no_span_and_passes_it_on_as_it_came() -> None:
    tracer = make_tracer(ratio=1.0)
    gateway = await traced(tracer)
    await recorded(gateway, sent(call(1), UNSAMPLED))
    assert ended(tracer) == []
    (head,) = upstream_heads(gateway)
    assert f"\r\n{UNSAMPLED}\r\n".encode() in head


async def test_sampling_is_decided_for_each_request_of_a_connection_and_the_rest_takes_the_fast_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tracer = make_tracer(ratio=0.5, chances=[0.9, 0.9, 0.4, 0.9])
    gateway = await traced(tracer)
    transport = gateway.connect(hello)
    transport.deliver(sent(call(1)))
    await run_pending(60)
    slow = SlowStates(monkeypatch)
    counts = []
    for number in (2, 3, 4):
        transport.deliver(sent(call(number)))
        await run_pending(60)
        counts.append(slow.count)
    assert [status for status, *_ in Answers(transport.take()).read] == [200] * 4
    assert counts == [0, 1, 1], "only the one that is traced"
    attempt, request = ended(tracer)
    assert request.parent_id == ""
    assert attempt.parent_id == request.span_id
    (head,) = upstream_heads(gateway)
    assert [found[0] for found in PASSED_ON.findall(head)] == [request.trace_id.encode()]


async def test_traceparent_of_one_request_is_not_that_of_the_next() -> None:
    tracer = make_tracer()
    gateway = await traced(tracer)
    transport = gateway.connect(hello)
    for trace in ("a" * 32, "b" * 32, "b" * 32):
        transport.deliver(sent(call(1), f"traceparent: 00-{trace}-{PARENT}-01"))
        await run_pending(60)
    assert [span.trace_id[0] for span in ended(tracer) if span.kind == SERVER] == ["a", "b", "b"]


def test_callers_do_not_decide_what_is_traced_unless_that_is_set() -> None:
    assert not TelemetrySettings().follow_callers


async def test_callers_have_no_influence_where_they_are_not_followed() -> None:
    tracer = make_tracer(follow_callers=False)
    gateway = await traced(tracer)
    await recorded(gateway, sent(call(1), SAMPLED))
    assert ended(tracer) == []
    assert not PASSED_ON.search(upstream_heads(gateway)[0])


async def test_nothing_is_passed_on_where_that_is_off() -> None:
    tracer = make_tracer(propagate=False)
    gateway = await traced(tracer)
    await recorded(gateway, sent(call(1), SAMPLED))
    assert len(ended(tracer)) == 2
    assert b"traceparent" not in upstream_heads(gateway)[0]


async def test_without_tracing_a_traceparent_is_left_alone() -> None:
    gateway = await open_gateway()
    for _ in range(2):
        await recorded(gateway, sent(call(1), SAMPLED))
    assert b"traceparent" not in upstream_heads(gateway)[0]


async def test_failover_is_an_attempt_after_the_other() -> None:
    tracer = make_tracer()
    gateway = await traced(tracer, network={"hedge": False})

    gateway.nodes[0].always(Http(500))
    await recorded(gateway, sent(call(1), SAMPLED))
    first, second, request = ended(tracer)
    assert [span.attributes["tollgate.outcome"] for span in (first, second, request)] == ["status", "ok", "ok"]
    assert [span.attributes["tollgate.attempt"] for span in (first, second)] == [1, 2]
    assert (first.failed, second.failed, request.failed) == (True, False, False)
    assert request.attributes["tollgate.attempts"] == 2
    assert request.attributes["tollgate.upstream"] == "up1"


async def test_call_without_an_answer_fails_with_its_reason() -> None:
    tracer = make_tracer()
    gateway = await traced(tracer, node=lambda _: http(b"busy", status=b"500 Internal Server Error"))
    await recorded(gateway, sent(call(1), SAMPLED), seconds=60.0)
    *attempts, request = ended(tracer)
    assert attempts
    assert request.failed
    assert request.attributes["tollgate.outcome"] == "upstream_error"
    assert request.attributes["http.response.status_code"] == 502


async def test_nodes_error_is_no_failure_and_shows_its_code_alone() -> None:
    failing = b'{"jsonrpc":"2.0","id":1,"error":{"code":3,"message":"execution reverted: secret words"}}'
    tracer = make_tracer()
    gateway = await traced(tracer, node=lambda _: http(failing))
    await recorded(gateway, sent(call(1), SAMPLED))
    _, request = ended(tracer)
    assert not request.failed
    assert request.attributes["tollgate.outcome"] == "node_error"
    assert request.attributes["rpc.jsonrpc.error_code"] == 3


async def test_batch_is_one_span_with_an_attempt_for_each_upstream_call() -> None:
    tracer = make_tracer()
    gateway = await traced(tracer)
    calls = [call(1), call(2), {**call(3), "method": "eth_getLogs", "params": [{}]}]
    await recorded(gateway, sent(calls, SAMPLED))
    *attempts, request = ended(tracer)
    assert request.name == "batch"
    assert request.attributes["tollgate.calls"] == 3
    assert [span.parent_id for span in attempts] == [request.span_id] * 2


async def test_hit_has_no_attempt() -> None:
    tracer = make_tracer()
    gateway = await traced(tracer, cache_bytes=1_000_000)
    await recorded(gateway, sent(call(1)))
    await recorded(gateway, sent(call(1), SAMPLED))
    (request,) = ended(tracer)
    assert request.attributes["tollgate.cache"] == "hit"
    assert not {"tollgate.upstream", "rpc.jsonrpc.error_code"} & request.attributes.keys()


@pytest.mark.parametrize(
    ("request_", "status", "name"),
    [
        (sent(call(1), SAMPLED, token=None), 401, "/x/eth/mainnet"),
        (sent(call(1), SAMPLED, path="/x/eth/nowhere"), 404, "POST"),
        (sent(call(1, "admin_peers"), SAMPLED), 403, "other"),
    ],
)
async def test_refused_request_has_a_span_too(request_: bytes, status: int, name: str) -> None:
    tracer = make_tracer()
    gateway = await traced(tracer)
    transport = gateway.connect(hello)
    transport.deliver(request_)
    await run_pending(60)
    (request,) = ended(tracer)
    assert request.attributes["http.response.status_code"] == status
    assert request.name == name
    assert not request.failed


async def test_spans_hold_no_token_no_parameter_no_result_and_no_invented_name() -> None:
    tracer = make_tracer()
    gateway = await traced(tracer, node=lambda _: http(b'{"jsonrpc":"2.0","id":1,"result":"0xresult"}'))
    known(gateway, allow_in_url=True)
    incoming = {"jsonrpc": "2.0", "id": 1, "method": "eth_call", "params": [{"data": "0xparameter"}, "latest"]}
    invented = {"jsonrpc": "2.0", "id": 1, "method": "invented_0xparameter", "params": []}
    await recorded(gateway, sent(incoming, SAMPLED, token=None, path=f"/x/eth/mainnet/{TOKEN}"))
    await recorded(gateway, sent(invented, SAMPLED))
    spans = ended(tracer)
    assert [span.attributes.get("http.response.status_code") for span in spans] == [None, 200, None, 200]
    encoded = json.dumps([[span.name, span.attributes] for span in spans])
    for word in (TOKEN, "0xparameter", "0xresult", "invented"):
        assert word not in encoded


async def test_counters_and_records_of_a_traced_call_are_those_of_any_other() -> None:
    tracer = make_tracer()
    gateway = await traced(tracer)
    entries = await recorded(gateway, sent(call(1), SAMPLED))
    assert len(entries) == 1
    assert gateway.counted(metrics.CALLS, "eth", "mainnet", "eth_chainId", "ok") == 1
    assert gateway.counted(metrics.UPSTREAM_ATTEMPTS, "eth", "mainnet", "up0", "ok") == 1


def test_spans_beyond_the_room_are_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "MAX_WAITING", 2)
    tracer = make_tracer(ratio=1.0)
    for _ in range(5):
        span = tracer.begin({})
        assert span is not None
        span.end({}, failed=False)
        span.end({}, failed=True)  # once is enough
    assert len(tracer.take(10)) == 2
    assert tracer.dropped == 3
    assert tracer.take(10) == []


@pytest.mark.parametrize(
    ("status", "outcome", "failed"),
    [
        (200, "ok", False),
        (399, "ok", False),
        (400, "refused", False),
        (499, "refused", False),
        (500, "refused", True),
    ],
)
def test_span_shows_how_a_request_without_calls_ended(status: int, outcome: str, failed: bool) -> None:
    tracer = make_tracer(ratio=1.0)
    made = request()
    made.span = tracer.begin({})
    end_span(made, status)
    (span,) = ended(tracer)
    assert (span.name, span.attributes["tollgate.outcome"], span.failed) == ("POST", outcome, failed)


async def test_span_of_two_calls_is_that_of_a_batch(gateway: FakeGateway) -> None:
    tracer = make_tracer(ratio=1.0)
    made = request()
    made.span, made.network = tracer.begin({}), gateway.network
    made.calls = [CallEntry("eth_chainId", "ok")] * 2
    end_span(made, 200)
    (span,) = ended(tracer)
    assert (span.name, span.attributes["tollgate.calls"]) == ("batch", 2)
