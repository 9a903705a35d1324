"""Sends ended spans to an OTLP receiver, over HTTP as JSON, from a worker's own loop.

Not by OpenTelemetry's SDK: docs/decisions/0022-traces.md has the reasons. One batch is under way at a time; what
the receiver refuses for the moment is sent again, less and less often, then given up. `Tracer` bounds what waits.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from tollgate import __version__, log
from tollgate.gateway.memory_budget import Budget
from tollgate.gateway.tracing import MAX_WAITING, Span, Tracer
from tollgate.gateway.upstream.connection import AttemptFailed, Response
from tollgate.gateway.upstream.pool import Pool
from tollgate.settings.model import TelemetrySettings, UpstreamSettings
from tollgate.shm import metrics

EXPORT_SECONDS = 1.0
"""Between two looks at what has ended."""
BATCH_SPANS = 512
SEND_SECONDS = 10.0
# For what is left when the service stops.
LAST_SECONDS = 2.0
MAX_ATTEMPTS = 5
_MAX_PAUSE_SECONDS = 30.0
# Statuses after which OTLP/HTTP wants a retry; no response at all counts likewise.
_RETRIED = frozenset({429, 502, 503, 504})
_MAX_RESPONSE_BYTES = 65_536
_ERROR = 2
_log = log.get("traces")


class TraceExporter:
    """Sends what a worker's tracer has kept. `tick` and `sweep` are called once a second."""

    def __init__(
        self,
        tracer: Tracer,
        settings: TelemetrySettings,
        writer: metrics.Writer,
        instance: str,
        now: Callable[[], float],
    ) -> None:
        receiver = UpstreamSettings(
            name="otlp", url=settings.traces_url, headers=settings.traces_headers, connections=2
        )
        self._pool = Pool(
            receiver, max_bytes=_MAX_RESPONSE_BYTES, budget=Budget(16 * _MAX_RESPONSE_BYTES), now=now
        )
        self._tracer = tracer
        self._writer = writer
        self._now = now
        self._resource = {
            "service.name": settings.service_name,
            "service.version": __version__,
            "service.instance.id": f"{socket.gethostname()}/{instance}",
        }
        self._batch: list[Span] = []
        """Not taken by the receiver yet."""
        self._attempts = 0
        self._again_at = 0.0

    def sweep(self) -> None:
        self._pool.sweep()

    async def tick(self) -> None:
        """Send what has ended, batch by batch, until the receiver refuses one."""
        self._count("dropped", self._tracer.dropped)
        self._tracer.dropped = 0
        while self._now() >= self._again_at:
            self._batch = self._batch or self._tracer.take(BATCH_SPANS)
            if not self._batch or not await self._send(SEND_SECONDS):
                return

    async def close(self) -> None:
        """Send what is left, once, and close the connection."""
        self._batch += self._tracer.take(MAX_WAITING)
        self._attempts = MAX_ATTEMPTS
        if self._batch:
            try:
                # No sweep follows.
                async with asyncio.timeout(LAST_SECONDS):
                    await self._send(LAST_SECONDS)
            except TimeoutError:
                self._refused("no answer in time", lasting=True)
        self._pool.close()

    async def _send(self, seconds: float) -> bool:
        """Send the batch; whether it is done with."""
        self._attempts += 1
        try:
            response = await self._pool.send(self._encoded(), self._now() + seconds, repeatable=True)
        except AttemptFailed as failure:
            return self._refused(str(failure), lasting=False)
        if response.status // 100 != 2:
            return self._refused(f"HTTP {response.status}", lasting=response.status not in _RETRIED)
        rejected = min(_rejected(response), len(self._batch))
        self._count("exported", len(self._batch) - rejected)
        self._count("failed", rejected)
        self._begin_anew()
        return True

    def _refused(self, why: str, *, lasting: bool) -> bool:
        if lasting or self._attempts >= MAX_ATTEMPTS:
            _log.warning(
                "spans are lost: telemetry.traces_url does not take them", spans=len(self._batch), why=why
            )
            self._count("failed", len(self._batch))
            self._begin_anew()
            return True
        self._again_at = self._now() + min(2.0 ** (self._attempts - 1), _MAX_PAUSE_SECONDS)
        return False

    def _begin_anew(self) -> None:
        self._batch, self._attempts, self._again_at = [], 0, 0.0

    def _encoded(self) -> bytes:
        scope = {"scope": {"name": "tollgate", "version": __version__}, "spans": list(map(_span, self._batch))}
        resource = {"attributes": _attributes(self._resource)}
        return msgspec.json.encode({"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]})

    def _count(self, outcome: str, spans: int) -> None:
        if spans:
            self._writer.add(self._writer.cell(metrics.TRACE_SPANS, outcome), spans)


def _span(span: Span) -> dict[str, Any]:
    """A span as OTLP's JSON has it: ids in hexadecimal, 64-bit numbers as strings."""
    written: dict[str, Any] = {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        "name": span.name,
        "kind": span.kind,
        "startTimeUnixNano": str(span.started_ns),
        "endTimeUnixNano": str(span.ended_ns),
        "attributes": _attributes(span.attributes),
        "status": {"code": _ERROR} if span.failed else {},
    }
    if span.parent_id:
        written["parentSpanId"] = span.parent_id
    return written


def _attributes(values: dict[str, str | int] | dict[str, str]) -> Sequence[dict[str, Any]]:
    return [
        {"key": key, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}}
        for key, value in values.items()
    ]


def _rejected(response: Response) -> int:
    """Spans that the receiver took note of and did not keep."""
    try:
        partial = msgspec.json.decode(response.body)["partialSuccess"]
        return max(0, int(partial["rejectedSpans"]))
    except (msgspec.DecodeError, LookupError, TypeError, ValueError):
        return 0
