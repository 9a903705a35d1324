"""The real service's telemetry: traces that arrive at an OTLP receiver and go on to nodes, and its own metrics."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from websockets.sync.client import connect

from parts.otlp import otlp_receiver
from parts.processes import eventually
from parts.raw_http import call
from parts.tollgate import bearer, linux_only, serving
from parts.upstream import Reply, upstream
from tollgate import __version__

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.e2e

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"}
READ = "eth_getBalance"


def test_a_trace_goes_through_the_service_to_the_node_and_arrives_at_the_receiver(tmp_path: Path) -> None:
    with otlp_receiver() as receiver, upstream() as first, upstream() as second:
        first.on(READ, Reply(b"busy", status=503))
        key = "key-of-the-provider"
        nodes: Any = {
            "eth/mainnet": [
                {"url": f"{first.url}/v2/{key}"},
                {"url": f"{second.url}/?apikey={key}", "priority": 1},
            ]
        }
        settings: Any = {
            "telemetry": {"traces_url": receiver.url, "sample_ratio": 0.0, "follow_callers": True},
            "families.eth.mainnet": {"cache": False, "hedge": False},
        }
        started = time.time_ns()
        with serving(tmp_path, nodes, settings) as gateway:
            token, _ = gateway.books.token(gateway.books.team())
            for _ in range(3):
                assert gateway.exchange(call(READ, "0xsecret"), token=token).status == 200
            assert gateway.exchange(call(READ, "0xsecret"), token=token, headers=SAMPLED).status == 200
            eventually(lambda: len(receiver.spans) >= 3, what="the spans")
            counted = eventually(
                lambda: gateway.metrics().get('tollgate_trace_spans_total{outcome="exported"}'), what="the count"
            )
        spans = sorted(receiver.spans, key=lambda span: span.started)
        assert len(spans) == counted == 3, "only the call that belongs to a trace"
        request, failed, answered = spans
        assert (request.trace_id, request.parent_id, request.name) == (TRACE, PARENT, READ)
        assert [span.parent_id for span in (failed, answered)] == [request.span_id] * 2
        assert [span.attributes["tollgate.outcome"] for span in spans] == ["ok", "status", "ok"]
        assert started <= request.started <= failed.started <= failed.ended <= answered.started <= answered.ended
        assert answered.ended <= request.ended <= time.time_ns()
        assert request.resource["service.version"] == __version__
        for node, span in ((first, failed), (second, answered)):
            passed = [each.headers for each in node.received if b"secret" in each.body][-1]
            lowered = {name.lower(): value for name, value in passed.items()}
            assert lowered["traceparent"] == f"00-{TRACE}-{span.span_id}-01"
            assert lowered["tracestate"] == "vendor=1"
        assert not any("traceparent" in map(str.lower, each.headers) for each in second.received[:-1])
        sent = b"".join(receiver.bodies)
        assert token.encode() not in sent
        assert b"0xsecret" not in sent
        assert key.encode() not in sent


def test_messages_of_a_websocket_are_traced_one_by_one_and_the_last_ones_when_the_service_stops(
    tmp_path: Path,
) -> None:
    with otlp_receiver() as receiver, upstream() as node:
        settings: Any = {"telemetry": {"traces_url": receiver.url, "sample_ratio": 1.0}}
        with serving(tmp_path, {"eth/mainnet": [node.url]}, settings) as gateway:
            token, _ = gateway.books.token(gateway.books.team())
            url = f"ws://127.0.0.1:{gateway.port}/x/eth/mainnet"
            with connect(url, additional_headers=bearer(token), compression=None, close_timeout=2) as client:
                for number in range(2):
                    client.send(json.dumps({"jsonrpc": "2.0", "id": number, "method": READ, "params": []}))
                    assert json.loads(client.recv(timeout=30))["id"] == number
        # What is under way to the receiver at the end is sent again: by its id, a span is the same.
        spans = {span.span_id: span for span in receiver.spans}.values()
        requests = [span for span in spans if span.kind == 2]
        attempts = [span for span in spans if span.kind == 3]
        assert [span.name for span in requests] == [READ] * 2
        assert len({span.trace_id for span in requests}) == 2
        assert {span.parent_id for span in attempts} == {span.span_id for span in requests}


@linux_only
def test_the_page_shows_build_processes_and_how_long_callers_wait(tmp_path: Path) -> None:
    with upstream() as node, serving(tmp_path, {"eth/mainnet": [node.url]}) as gateway:
        token, _ = gateway.books.token(gateway.books.team())
        for _ in range(3):
            assert gateway.exchange(call(READ), token=token).status == 200
        assert gateway.exchange(call("admin_peers"), token=token).status == 403
        labels = 'family="eth",network="mainnet",outcome='

        def seen() -> dict[str, float] | None:
            page = gateway.metrics()
            ready = page.get(f'tollgate_request_seconds_count{{{labels}"ok"}}') == 3
            return page if ready and 'tollgate_process_open_fds{process="worker-0"}' in page else None

        page = eventually(seen, what="the metrics") or {}
        assert page[f'tollgate_request_seconds_count{{{labels}"refused"}}'] == 1
        assert 0 < page[f'tollgate_request_seconds_sum{{{labels}"ok"}}'] < 30
        assert any('tollgate_build_info{python="' in key and f'version="{__version__}"' in key for key in page)
        for process in ("parent", "worker-0", "control", "collector", "prober", "metrics"):
            assert page[f'tollgate_process_resident_bytes{{process="{process}"}}'] > 1_000_000
            assert page[f'tollgate_process_open_fds{{process="{process}"}}'] > 0
            assert page[f'tollgate_process_cpu_seconds_total{{process="{process}"}}'] >= 0
