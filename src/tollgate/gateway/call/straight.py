"""The straight call: from a caller's bytes to an upstream's connection and back, by plain calls on one object.

`start` decides everything before it acts: a read by a caller that was let in before, an upstream in rotation, a
connection that is free, limits that hold. Whatever is unusual returns False with nothing done, and the general way
(`pipeline.py`) starts from scratch. After the call is sent, `take_over` is the one door to the general way: a failed
connection, another status, a node's error, a tip out of step, a late answer.

One object for each caller's connection, used for one call after the other.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

import msgspec

from tollgate.chains.catalogue import Holds, Look
from tollgate.core import jsonrpc
from tollgate.core.entries import pack
from tollgate.core.shapes import ABSENT, Call, PlainCall, Reply, Result
from tollgate.errors import Overloaded, Refusal
from tollgate.gateway.access.credentials import Credentials
from tollgate.gateway.access.limits import Limiter
from tollgate.gateway.call.admission import Admission
from tollgate.gateway.call.cache import key_of
from tollgate.gateway.call.method_plan import COALESCED, HIT, WORDS, MethodPlan
from tollgate.gateway.call.pipeline import Pipeline
from tollgate.gateway.call.resolver import Judge, Resolved, Resolver, SingleFlight
from tollgate.gateway.http import response
from tollgate.gateway.http.connection import CallerConnection
from tollgate.gateway.http.response import render_result
from tollgate.gateway.http.worker_context import WorkerContext
from tollgate.gateway.messages import Request
from tollgate.gateway.recording.journal import RecordSink
from tollgate.gateway.upstream.connection import AttemptFailed, Connection, Response, ResponseFuture
from tollgate.gateway.upstream.exchange import FirstAttempt
from tollgate.gateway.upstream.failover import OutOfStep
from tollgate.gateway.upstream.health import Upstream
from tollgate.gateway.upstream.hedging import hedge_after
from tollgate.shm import metrics

_BATCH = ord("[")
_TIP, _NOWHERE = Holds.TIP, Look.NOWHERE
_UNREADABLE = (msgspec.DecodeError, RecursionError)
_STOPPING = "The service stops: try again."
# An array of twelve.
_RECORD = b"\x9c"
_NO_UPSTREAM = b"\xa0\x00"
"""What a record says of a call that needed no upstream: an empty name, no attempt."""
_json = msgspec.json.Encoder().encode
_read_call = msgspec.json.Decoder(PlainCall).decode
_read_reply = msgspec.json.Decoder(Reply).decode
# Duration; one detail without a code, and the bytes of the answer; those of the request. As MessagePack.
_numbers = struct.Struct(">BIHBBIBI").pack
_ONE_DETAIL = 0x9192
_NIL, _UINT32 = 0xC0, 0xCE


class StraightCall:
    """One call on its way. To a connection it is what waits for the response."""

    __slots__ = (
        "_admission",
        "_began",
        "_body",
        "_cache",
        "_call",
        "_connection",
        "_flight",
        "_judge",
        "_key",
        "_plan",
        "_rates",
        "_scope",
        "_sent_on",
        "_size",
        "_upstream",
        "request_id",
    )

    def __init__(self, connection: CallerConnection) -> None:
        self._connection = connection
        self.request_id = b""
        self._upstream: Upstream | None = None
        """Where it was sent; None: it needs no upstream."""
        self._sent_on: Connection
        self._key: bytes | None = None
        self._flight: SingleFlight
        """What others wait for, or what it waits for itself."""
        self._judge: Judge | None = None

    # --- Before it is sent -----------------------------------------------------------------------------

    def start(self, admission: Admission, body: bytes, request_id: bytes = b"") -> bool:
        """Send a call, or answer it from the cache; False: nothing was done, it needs the general way."""
        context = admission.context
        if len(context.calls) + len(context.tasks) >= context.max_in_flight or admission.sink.is_full:
            return False
        if admission.expires_at is not None and context.time() >= admission.expires_at:
            return False
        # The one integer that is not written back as it came. Looking for one byte first is much quicker.
        if not body.isascii() or (b"-" in body and b"-0" in body):
            return False
        try:
            call: Call = _read_call(body)
        except _UNREADABLE:
            other = _other_call(body)
            if other is None:
                return False
            call = other
        plan = admission.plans.get(call.method) or admission.plan(call.method)
        if plan is None:
            return False
        params = [] if call.params is None else call.params
        now = context.now()
        exchange = admission.exchange
        view = exchange.view(now)
        if view is None:
            return False
        self._key = key = None
        if plan.key_prefix is not None:
            resolver = admission.resolver
            # As `key_of` makes it, only quicker: most have their parameters in a list.
            key = plan.key_prefix + b"\0".join(params) if params and type(params) is list else key_of(call)
            reply = resolver.cache.get(key, view.snapshot)  # type: ignore[union-attr]
            flight = None if reply is not None else resolver.flights.get(key)
            if reply is not None or (flight is not None and flight.stamp == view.snapshot.stamp):
                return self._share(admission, plan, call, body, request_id, now, reply, flight)
        scope = plan.read(params)
        upstream = view.choose(call.method, scope, now, exchange.random)
        if upstream is None:
            return False
        idle = upstream.pool.idle
        if not idle or not idle[-1].usable:
            return False
        if upstream.limit and not exchange.within_rate(upstream, now):
            return False
        rates = b""
        if admission.limits:
            left = admission.take_limits(admission.limits, now)
            if left is None:
                admission.renew_limits()
                return False
            rates = admission.rates % left
        # Everything is decided: from here on it happens.
        if key is not None:
            self._key = key
            self._flight = resolver.flights[key] = SingleFlight(view.snapshot.stamp)
        self._admission = admission
        self._plan = plan
        self._call = call
        self._body = body
        self._began = now
        self._rates = rates
        self._scope = scope
        self._upstream = upstream
        self._cache = plan.cache
        self._judge = None
        if plan.reveals and scope.holds is _TIP and scope.look is not _NOWHERE:
            self._judge = admission.resolver.judge(call.method, scope)
        self.request_id = request_id
        self._connection.answering = self
        context.calls.add(self)
        if not context.hedging and exchange.hedging:
            context.sweep_later()
        if upstream.limit:
            exchange.use_rate(upstream, now)
        upstream.began()
        self._sent_on = sent_on = idle.pop()
        sent = _json(call) if call.params is params and type(call) is PlainCall else jsonrpc.encode_call(call)
        sent_on.send(upstream.pool.request(sent), now + upstream.patience, self)
        return True

    def _share(
        self,
        admission: Admission,
        plan: MethodPlan,
        call: Call,
        body: bytes,
        request_id: bytes,
        now: float,
        reply: Reply | None,
        flight: SingleFlight | None,
    ) -> bool:
        """Answer from the cache, or wait for the answer to an equal call."""
        rates = b""
        if admission.limits:
            left = admission.take_limits(admission.limits, now)
            if left is None:
                admission.renew_limits()
                return False
            rates = admission.rates % left
        self._admission = admission
        self._plan = plan
        self._call = call
        self._body = body
        self._began = now
        self._rates = rates
        self._upstream = None
        self.request_id = request_id
        if reply is not None:
            self._cache = HIT
            self._connection.answering = self
            self._answer(reply.result)
        elif flight is not None:
            self._cache = COALESCED
            self._flight = flight
            flight.waiters.append(self.landed)
            self._connection.answering = self
            admission.context.calls.add(self)
        return True

    # --- After it was sent -----------------------------------------------------------------------------

    def received(self, status: int, body: bytes) -> None:
        """Take the response of the upstream: a plain result goes straight back."""
        reply: Reply | None = None
        if status == 200 and (body.isascii() or _is_text(body)):
            try:
                reply = _read_reply(body)
            except _UNREADABLE:
                reply = None
        if reply is None or reply.error is not ABSENT or reply.result is ABSENT:
            self.take_over(Response(status, body))
            return
        upstream, admission = self._upstream, self._admission
        assert upstream is not None  # noqa: S101 - it was sent to one
        if self._judge is not None:
            try:
                self._judge(reply)
            except OutOfStep:
                self.take_over(Response(status, body))
                return
            self._judge.note(upstream)
        now = admission.context.now()
        upstream.answered(now - self._began, now)
        if self._key is not None:
            admission.resolver.land(self._key, self._flight, self._scope, reply)
        admission.context.calls.discard(self)
        self._answer(reply.result)

    def failed(self, failure: AttemptFailed) -> None:
        """Take the reason why there is no response."""
        self.take_over(failure)

    def landed(self, reply: Resolved) -> None:
        """Take the answer to an equal call."""
        admission = self._admission
        admission.context.calls.discard(self)
        if isinstance(reply, Reply) and reply.error is ABSENT:
            self._answer(reply.result)
            return
        request, pipeline = self._general_request(), admission.pipeline
        if isinstance(reply, Refusal):
            answer = pipeline.refuse_call(request, admission.network, self._call, reply)
        else:
            answer = pipeline.tell(request, admission.network, self._call, reply)
        self._connection.refuse(request, answer)

    def _answer(self, result: msgspec.Raw) -> None:
        """Count the call, and put its answer into the outbox."""
        admission, connection, plan = self._admission, self._connection, self._plan
        context = admission.context
        if not plan.requests:
            context.counted.append(plan)
        plan.requests += 1
        plan.counts[self._cache] += 1
        call_id = self._call.id
        assert call_id is not None  # noqa: S101 - a notification needs the general way
        body = _json(Result("2.0", call_id, result))
        self._size = len(body)
        if not self.request_id:
            self.request_id = next(context.ids)
        if admission.plain and not context.draining and not connection.eof:
            connection.leaving += 1
            context.send(connection, render_result(self.request_id, context.date, self._rates, b"", body), self)
            return
        close = not admission.keep_alive or connection.closing
        shown = b""
        if admission.caller.shows:
            shown = response.shown(self._upstream.name if self._upstream else "", WORDS[self._cache])
        extra = shown + admission.cors
        data = render_result(self.request_id, context.date, self._rates, extra, body, close=close)
        connection.leaving += 1
        context.send(connection, data, self, close=close)
        if close:
            connection.finish()

    def record(self, at: bytes, now: float) -> bytes:
        """What is written down of it, put together from parts that are encoded already."""
        admission, upstream = self._admission, self._upstream
        parts = (
            _RECORD,
            at,
            admission.subjects.get(self._plan) or admission.subject(self._plan),
            _numbers(
                _UINT32,
                int((now - self._began) * 1e6),
                _ONE_DETAIL,
                _NIL,
                _UINT32,
                self._size,
                _UINT32,
                len(self._body),
            ),
            pack(self.request_id),
            upstream.record if upstream is not None else _NO_UPSTREAM,
            admission.records[self._cache],
        )
        return b"".join(parts)

    # --- The door to the general way -------------------------------------------------------------------

    def hedge_if_late(self, now: float) -> None:
        """Leave the straight way where the upstream takes longer than it usually does."""
        upstream, admission = self._upstream, self._admission
        if upstream is not None and admission.exchange.hedging and now - self._began >= hedge_after(upstream):
            self.take_over()

    def take_over(self, ended: Response | AttemptFailed | None = None) -> None:
        """Go on as a task of the general way, with the attempt that was begun; `ended`: what became of it."""
        admission, connection = self._admission, self._connection
        context, upstream = admission.context, self._upstream
        assert upstream is not None  # noqa: S101 - it was sent to one
        context.calls.discard(self)
        attempt = ResponseFuture()
        if ended is None:
            self._sent_on.receiver = attempt
        elif isinstance(ended, Response):
            attempt.set_result(ended)
        else:
            attempt.set_exception(ended)
        request = self._general_request()
        request.upstream, request.attempts = upstream.name, 1
        first = FirstAttempt(upstream, attempt, self._began, self._judge)
        flight = self._flight if self._key is not None else None
        connection.answering = request
        context.start(
            admission.pipeline.resume(request, admission.resolver, self._call, self._key, flight, first),
            connection.answered,
        )

    def stop(self) -> None:
        """Answer with a refusal: the service stops."""
        admission, upstream = self._admission, self._upstream
        admission.context.calls.discard(self)
        if upstream is None:
            self._flight.waiters.remove(self.landed)
        else:
            self._sent_on.receiver = ResponseFuture()
            upstream.gave_up()
            if self._key is not None:
                admission.resolver.land(self._key, self._flight, self._scope, None)
        request = self._general_request()
        self._connection.refuse(request, admission.pipeline.refuse(request, Overloaded(_STOPPING)))

    def _general_request(self) -> Request:
        admission = self._admission
        request = admission.request(self._body, self.request_id or admission.context.reader.new_id())
        request.rates, request.began, request.cache = self._rates, self._began, WORDS[self._cache]
        return request


class StraightCalls:
    """Lets callers in and sends their calls on the straight way, for one worker."""

    def __init__(
        self,
        context: WorkerContext,
        pipeline: Pipeline,
        credentials: Credentials,
        limiter: Limiter,
        networks: Mapping[str, Resolver],
        writer: metrics.Writer,
        sink: RecordSink,
    ) -> None:
        self._context = context
        self._pipeline = pipeline
        self._credentials = credentials
        self._limiter = limiter
        self._networks = networks
        self._writer = writer
        self._sink = sink

    def begin(self, connection: CallerConnection, request: Request) -> bool:
        """Send a request that was read whole on its way; False: nothing was done, it needs the general way."""
        network = request.network
        resolver = self._networks.get(network.path) if network is not None else None
        if network is None or resolver is None or request.held or request.method != b"POST":
            return False
        try:
            caller = self._credentials.recall(request)
        except Refusal:
            return False
        if caller is None or (caller.capped_until and caller.capped_until > self._context.time()):
            return False
        call: StraightCall | None = connection.call
        if call is None:
            call = connection.call = StraightCall(connection)
        admission = connection.admission
        if admission is None or not admission.fits(request, caller):
            admission = connection.admission = Admission(
                self._context,
                self._pipeline,
                self._credentials,
                self._limiter,
                self._writer,
                self._sink,
                request,
                caller,
                network,
                resolver,
            )
        request.admission = admission
        return call.start(admission, request.body, request.request_id)


def _other_call(body: bytes) -> Call | None:
    """A call whose id is no integer; None where it is no call that can go straight."""
    try:
        call = jsonrpc.parse(body, 1)
    except Refusal:
        return None
    return None if isinstance(call, list) or call.id is None or call.id == jsonrpc.NULL else call


def _is_text(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True
