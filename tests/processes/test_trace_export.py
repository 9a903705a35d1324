"""Spans to an OTLP receiver: real HTTP on loopback, in batches, again where it requests that, within bounds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
from tests.gateway.fakes import Clock

from parts.otlp import OtlpReceiver, otlp_receiver
from tollgate import __version__
from tollgate.gateway.tracing import CLIENT, MAX_WAITING, Tracer
from tollgate.processes import trace_export
from tollgate.processes.trace_export import BATCH_SPANS, MAX_ATTEMPTS, SEND_SECONDS, TraceExporter
from tollgate.settings.model import TelemetrySettings
from tollgate.shm import metrics


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with otlp_receiver() as running:
        yield running


class Export:
    """A tracer and what sends its spans."""

    def __init__(self, url: str, **settings: object) -> None:
        self.clock = Clock()
        self.tracer = Tracer(
            ratio=1.0,
            follow_callers=True,
            propagate=True,
            now=self.clock,
            time=lambda: 1_700_000_000.0,
            random=lambda: 0.0,
        )
        self.regions = metrics.Regions(1)
        telemetry = TelemetrySettings(traces_url=url, **settings)  # type: ignore[arg-type]
        self.exporter = TraceExporter(self.tracer, telemetry, self.regions.writer(0), "worker-0", self.clock)

    def add(self, count: int = 1) -> None:
        for _ in range(count):
            span = self.tracer.begin({})
            assert span is not None
            span.name = "eth_call"
            span.end({"rpc.method": "eth_call", "http.response.status_code": 200}, failed=False)

    def counted(self) -> dict[str, int]:
        return {key[1]: value for key, value in self.regions.totals().items()}


async def test_a_trace_arrives_as_it_was(receiver: OtlpReceiver) -> None:
    export = Export(receiver.url, service_name="gate", traces_headers={"Authorization": "Bearer x"})
    request = export.tracer.begin({b"traceparent": b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01"})
    assert request is not None
    export.clock.now += 0.5
    attempt = request.child("attempt up0", CLIENT)
    export.clock.now += 0.25
    attempt.end({"tollgate.attempt": 1}, failed=True)
    request.name = "eth_call"
    request.end({"rpc.system": "jsonrpc", "http.response.status_code": 502}, failed=True)
    await export.exporter.tick()
    await export.exporter.close()
    first, second = receiver.spans
    assert (first.name, first.kind, first.trace_id, first.parent_id) == (
        "attempt up0",
        3,
        "a" * 32,
        second.span_id,
    )
    assert (second.name, second.kind, second.trace_id, second.parent_id) == ("eth_call", 2, "a" * 32, "b" * 16)
    assert (second.started, second.ended) == (1_700_000_000_000_000_000, 1_700_000_000_750_000_000)
    assert (first.started, first.ended) == (1_700_000_000_500_000_000, second.ended)
    assert first.attributes == {"tollgate.attempt": 1}
    assert second.attributes == {"rpc.system": "jsonrpc", "http.response.status_code": 502}
    assert first.failed
    assert second.failed
    assert first.resource["service.name"] == "gate"
    assert first.resource["service.version"] == __version__
    assert str(first.resource["service.instance.id"]).endswith("/worker-0")
    assert receiver.headers[0]["authorization"] == "Bearer x"
    assert export.counted() == {"exported": 2}


async def test_spans_leave_in_batches_over_one_connection(receiver: OtlpReceiver) -> None:
    export = Export(receiver.url)
    export.add(BATCH_SPANS * 2 + 1)
    await export.exporter.tick()
    assert len(receiver.bodies) == 3
    assert len(receiver.spans) == BATCH_SPANS * 2 + 1
    assert len({span.span_id for span in receiver.spans}) == BATCH_SPANS * 2 + 1
    await export.exporter.tick()
    assert len(receiver.bodies) == 3, "nothing more to send"
    await export.exporter.close()
    assert export.counted() == {"exported": BATCH_SPANS * 2 + 1}


async def test_what_is_refused_for_the_moment_is_sent_again_ever_later(receiver: OtlpReceiver) -> None:
    export = Export(receiver.url)
    receiver.statuses += [503, 429]
    export.add(2)
    await export.exporter.tick()
    await export.exporter.tick()
    assert len(receiver.bodies) == 1, "too soon"
    export.clock.now += 1
    await export.exporter.tick()
    export.clock.now += 1
    await export.exporter.tick()
    assert len(receiver.bodies) == 2, "too soon"
    export.clock.now += 1
    await export.exporter.tick()
    assert len(receiver.bodies) == 3
    assert receiver.bodies[0] == receiver.bodies[2]
    assert export.counted() == {"exported": 2}
    await export.exporter.close()


async def test_batch_that_is_never_taken_is_given_up_and_the_next_one_tried(receiver: OtlpReceiver) -> None:
    export = Export(receiver.url)
    receiver.statuses += [503] * MAX_ATTEMPTS
    export.add(3)
    for _ in range(MAX_ATTEMPTS):
        await export.exporter.tick()
        export.clock.now += 60
    assert export.counted() == {"failed": 3}
    export.add()
    await export.exporter.tick()
    assert export.counted() == {"failed": 3, "exported": 1}
    await export.exporter.close()


async def test_what_is_refused_for_good_is_not_sent_again(receiver: OtlpReceiver) -> None:
    export = Export(receiver.url)
    receiver.statuses += [401]
    export.add(2)
    await export.exporter.tick()
    export.add(1)
    await export.exporter.tick()
    assert len(receiver.bodies) == 2
    assert export.counted() == {"failed": 2, "exported": 1}
    receiver.statuses += [401]
    export.add(BATCH_SPANS + 1)
    await export.exporter.tick()
    assert export.counted() == {"failed": 2 + BATCH_SPANS, "exported": 2}, "the next batch goes at once"
    await export.exporter.close()


async def test_every_batch_has_as_many_attempts(receiver: OtlpReceiver) -> None:
    export = Export(receiver.url)
    export.add()
    await export.exporter.tick()
    receiver.statuses += [503] * (MAX_ATTEMPTS - 1)
    export.add()
    for _ in range(MAX_ATTEMPTS):
        await export.exporter.tick()
        export.clock.now += 60
    assert export.counted() == {"exported": 2}
    await export.exporter.close()


async def test_spans_that_the_receiver_did_not_keep_are_counted(receiver: OtlpReceiver) -> None:
    receiver.reply = b'{"partialSuccess":{"rejectedSpans":"2","errorMessage":"too old"}}'
    export = Export(receiver.url)
    export.add(5)
    await export.exporter.tick()
    assert export.counted() == {"exported": 3, "failed": 2}
    receiver.reply = b'{"partialSuccess":{"rejectedSpans":"0"}}'
    export.add()
    await export.exporter.tick()
    assert export.counted() == {"exported": 4, "failed": 2}
    await export.exporter.close()


async def test_receiver_that_is_away_costs_no_more_than_the_spans_of_a_bounded_queue() -> None:
    with otlp_receiver() as gone:
        url = gone.url
    export = Export(url)
    export.add(MAX_WAITING + 7)
    await export.exporter.tick()
    assert export.counted() == {"dropped": 7}
    await export.exporter.close()
    assert export.counted() == {"dropped": 7, "failed": MAX_WAITING}


async def test_receiver_that_is_silent_holds_a_batch_up_no_longer_than_its_deadline(
    receiver: OtlpReceiver,
) -> None:
    receiver.gate = threading.Event()
    export = Export(receiver.url)
    export.add(2)
    sending = asyncio.ensure_future(export.exporter.tick())
    try:
        async with asyncio.timeout(30):
            while not sending.done():
                await asyncio.sleep(0)
                export.clock.now += SEND_SECONDS
                export.exporter.sweep()
    finally:
        sending.cancel()
        receiver.gate.set()
    assert export.counted() == {}, "it is sent again"
    export.clock.now += 60
    await export.exporter.tick()
    assert export.counted() == {"exported": 2}
    await export.exporter.close()


async def test_stop_sends_what_is_left(receiver: OtlpReceiver) -> None:
    export = Export(receiver.url)
    export.add(BATCH_SPANS + 1)
    await export.exporter.close()
    assert len(receiver.spans) == BATCH_SPANS + 1


async def test_stop_does_not_wait_for_a_receiver_that_is_silent(
    receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_export, "LAST_SECONDS", 0.05)
    receiver.gate = threading.Event()
    export = Export(receiver.url)
    export.add(2)
    try:
        await export.exporter.close()
    finally:
        receiver.gate.set()
    assert export.counted() == {"failed": 2}
