"""Spans of requests and of attempts at upstreams: W3C trace context in, sampling, trace context out.

A request that has a span takes the slow path, so the fast path knows nothing of them. Spans hold names,
numbers and outcomes: never parameters, results or credentials. `processes/trace_export.py` sends them.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping

from msgspec import Struct

SERVER, CLIENT = 2, 3
"""Kinds of spans, as OTLP numbers them."""
MAX_WAITING = 4_096
"""Ended spans that wait to be sent; more are dropped, and counted."""
# https://www.w3.org/TR/trace-context/: version, trace, parent, flags; a later version may add more behind them.
_TRACEPARENT = re.compile(
    rb"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?"
)
_SAMPLED = 0x01
_MAX_STATE_BYTES = 512
_PRINTABLE = re.compile(rb"[ -~]+")

Attributes = dict[str, str | int]


class TraceContext(Struct, frozen=True, gc=False):
    """A caller's trace, from its headers."""

    trace_id: str
    parent_id: str
    sampled: bool
    state: bytes = b""
    """Of other vendors: passed on as it came."""


def read_context(headers: Mapping[bytes, bytes]) -> TraceContext | None:
    """The trace that a request belongs to; None where the header is not valid."""
    found = _TRACEPARENT.fullmatch(headers.get(b"traceparent", b""))
    if found is None:
        return None
    version, trace_id, parent_id, flags, more = found.groups()
    if version == b"00" and more is not None:
        return None
    state = headers.get(b"tracestate", b"")
    if len(state) > _MAX_STATE_BYTES or not _PRINTABLE.fullmatch(state):
        state = b""
    return TraceContext(trace_id.decode(), parent_id.decode(), bool(int(flags, 16) & _SAMPLED), state)


class Span:
    """One piece of work, from when it is made until `end`."""

    __slots__ = (
        "_started",
        "_state",
        "_tracer",
        "attributes",
        "ended_ns",
        "failed",
        "kind",
        "name",
        "parent_id",
        "sampled",
        "span_id",
        "started_ns",
        "trace_id",
    )  # fmt: skip

    def __init__(
        self,
        tracer: Tracer,
        name: str,
        kind: int,
        trace_id: str,
        span_id: str,
        parent_id: str,
        started_ns: int,
        *,
        state: bytes = b"",
        sampled: bool = True,
    ) -> None:
        self._tracer = tracer
        self._state = state
        self._started = tracer.now()
        self.name = name
        self.kind = kind
        self.trace_id = trace_id
        self.span_id = span_id
        self.parent_id = parent_id
        self.started_ns = started_ns
        self.ended_ns = 0
        self.sampled = sampled
        """Otherwise it is not kept, and only passes its caller's context on."""
        self.attributes: Attributes = {}
        self.failed = False

    def child(self, name: str, kind: int) -> Span:
        """A span of work that belongs to this one. Times of one trace come from one look at the clock."""
        if not self.sampled:
            return self
        return Span(
            self._tracer, name, kind, self.trace_id, secrets.token_hex(8), self.span_id, self._now_ns(),
            state=self._state,
        )  # fmt: skip

    def headers(self) -> bytes:
        """Header lines that pass the context on."""
        if not self._tracer.propagate:
            return b""
        lines = f"traceparent: 00-{self.trace_id}-{self.span_id}-{int(self.sampled):02x}\r\n".encode()
        return lines + (b"tracestate: %b\r\n" % self._state if self._state else b"")

    def end(self, attributes: Attributes, *, failed: bool) -> None:
        """Note how it ended, and let it be sent."""
        if self.sampled and not self.ended_ns:
            self.attributes.update(attributes)
            self.failed = failed
            self.ended_ns = self._now_ns()
            self._tracer.ended(self)

    def _now_ns(self) -> int:
        return self.started_ns + int((self._tracer.now() - self._started) * 1e9)


class Tracer:
    """Decides which requests have a span, and keeps ended ones until they are sent."""

    def __init__(
        self,
        *,
        ratio: float,
        follow_callers: bool,
        propagate: bool,
        now: Callable[[], float],
        time: Callable[[], float],
        random: Callable[[], float],
    ) -> None:
        self._ratio = ratio
        self._follow_callers = follow_callers
        self.propagate = propagate
        self.now = now
        self._time = time
        self._random = random
        self._ended: list[Span] = []
        self.dropped = 0
        """Spans that were dropped for lack of room since they were last counted."""

    def begin(self, headers: Mapping[bytes, bytes]) -> Span | None:
        """The span of a request; None: it is not sampled, and belongs to no trace."""
        context = read_context(headers) if self._follow_callers else None
        started_ns = int(self._time() * 1e9)
        if context is None:
            if self._random() >= self._ratio:
                return None
            return Span(self, "", SERVER, secrets.token_hex(16), secrets.token_hex(8), "", started_ns)
        if not context.sampled:
            return Span(
                self, "", SERVER, context.trace_id, context.parent_id, "", started_ns,
                state=context.state, sampled=False,
            )  # fmt: skip
        return Span(
            self, "", SERVER, context.trace_id, secrets.token_hex(8), context.parent_id, started_ns,
            state=context.state,
        )  # fmt: skip

    def ended(self, span: Span) -> None:
        """Keep a span until it is sent, where there is room."""
        if len(self._ended) >= MAX_WAITING:
            self.dropped += 1
        else:
            self._ended.append(span)

    def take(self, count: int) -> list[Span]:
        """The oldest ended spans, up to so many; they are kept no longer."""
        taken, self._ended = self._ended[:count], self._ended[count:]
        return taken
