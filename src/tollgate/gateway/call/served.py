"""What a call and a batch have in common: one request under way, its answer, its slow path, its end."""

from __future__ import annotations

from abc import ABC, abstractmethod

import msgspec
from msgspec import Struct

from tollgate.core.entries import pack
from tollgate.errors import Overloaded
from tollgate.gateway.call.admission import Admission
from tollgate.gateway.call.resolver import STOPPING, Cancellable
from tollgate.gateway.http.response import no_content_head, render_result
from tollgate.gateway.http.under_way import CallerSide
from tollgate.gateway.memory_budget import SMALL
from tollgate.gateway.messages import Request, Route
from tollgate.gateway.recording.counters import OK
from tollgate.gateway.recording.journal import Journal
from tollgate.gateway.upstream.connection import AttemptFailed, Connection, Response, Unanswered
from tollgate.gateway.upstream.health import Upstream

UNREADABLE = (msgspec.DecodeError, RecursionError)
NO_UPSTREAM = b"\xa0\x00"
"""The record's part about the upstream of a call that needed none: an empty name, no attempt."""
_ONE_ATTEMPT = b"\x01"
NIL, UINT32 = 0xC0, 0xCE
encode_json = msgspec.json.Encoder().encode


class SlowState(Struct):
    """What a request has only once it has left the fast path."""

    route: Route
    request: Request | None = None
    """Set where the pipeline let it in: large, traced, or the first of its caller. Its answer leaves by it."""
    work: Cancellable | None = None
    outcome: tuple[str, int | None, int] = (OK, None, 200)
    """Outcome, error code, and the status of the answer."""


class Served(ABC):
    """One request under way."""

    __slots__ = (
        "_admission",
        "_body",
        "_sent_on",
        "_slow",
        "_started",
        "_upstream",
        "close",
        "connection",
        "data",
        "request_id",
    )

    def __init__(self, connection: CallerSide) -> None:
        self.connection = connection
        self._admission: Admission
        self._body: bytes
        self._started: float
        self._upstream: Upstream | None = None
        """Where the fast path has sent it; None: nowhere."""
        self._sent_on: Connection
        self._slow: SlowState | None = None
        """None: it is on the fast path."""
        self.request_id: bytes
        self.data: bytes
        """Its answer, in the outbox."""
        self.close = False
        """Whether the connection closes after it."""

    @property
    def holder(self) -> str:
        """Which caller holds the upstream's connection."""
        return self._admission.caller.holder

    def _send(self, body: bytes, shown: bytes = b"") -> None:
        """Put an answer into the outbox; an empty one is that to a notification."""
        admission, connection = self._admission, self.connection
        context = admission.context
        if not self.request_id:
            self.request_id = next(context.ids)
        if connection.speaks_http:
            self.close = not admission.keep_alive or connection.closing
            rates = admission.rates
            if rates is None:
                rates = admission.fill_rates()
            head = context.ok_head if body else no_content_head(context.heads.date)
            body = render_result(head, self.request_id, rates, shown + admission.cors, body, close=self.close)
        self.data = body
        context.outbox.put(self)
        if len(body) > SMALL:
            context.outbox.count_large(body)

    @abstractmethod
    def record(self, journal: Journal, at: bytes, now: float) -> bytes:
        """Its record, put together from parts that are encoded already."""

    # --- The slow path ---------------------------------------------------------------------------------

    def failed(self, failure: AttemptFailed) -> None:
        """Take the reason why there is no response."""
        self.take_over(failure)

    def hedge_if_late(self, now: float) -> None:
        """Leave the fast path where the upstream takes longer than it usually does."""
        upstream = self._upstream
        if (
            upstream is not None
            and self._slow is None
            and self._admission.exchange.hedging
            and now - self._started >= upstream.hedge_after
        ):
            self.take_over()

    @abstractmethod
    def take_over(self, ended: Response | AttemptFailed | None = None) -> None:
        """Leave the fast path after the first attempt was sent; `ended`: the end of that attempt."""

    def stop(self) -> None:
        """Answer with a refusal: the service stops. It has left the calls under way."""
        slow, pipeline = self._slow, self._admission.pipeline
        if slow is not None and slow.work is not None:
            slow.work.cancel()
            return
        if self._upstream is not None:
            self._sent_on.receiver = Unanswered()
            self._upstream.abandoned()
        self._let_go()
        request = self._request(Route())
        self.connection.answered(request, pipeline.refuse(request, Overloaded(STOPPING)))

    @abstractmethod
    def _let_go(self) -> None:
        """Leave no other call waiting for this one."""

    def _request(self, route: Route) -> Request:
        """The request whose answer leaves by the connection: a refusal, a notification's, or one with spans."""
        admission, slow = self._admission, self._slow
        request = slow.request if slow is not None else None
        if request is None:
            request = admission.request(self._body, self.request_id or next(admission.context.ids))
            request.rates, request.started = admission.rates_left(), self._started
        request.route, request.work = route, self
        return request


def at_first_attempt(upstream: str) -> bytes:
    """The record's part about the upstream of a call that it answered at the first attempt."""
    return pack(upstream) + _ONE_ATTEMPT


def is_text(body: bytes) -> bool:
    """Whether these bytes are UTF-8: msgspec does not look into what it skips."""
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True
