"""One call: from a caller's bytes to an upstream's connection and back, by plain calls on one object.

`start` is the straight way, and decides everything before it acts: a read by a caller that was let in before, an
upstream in rotation, a connection that is free, limits that hold. Whatever is unusual returns False with nothing
done. `go` then takes any call that may be made: writes, notifications, `eth_getLogs`, reads without a free
connection; it returns False for what is refused, and for batches, which the pipeline answers.
After the call is sent, `take_over` hands the attempt under way to `Attempts`, which goes on with failover and
hedging. The call stays this object, and its answer leaves from here.

One object for each caller's connection, used for one call after the other. A batch is `straight_batch.py`'s.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from math import floor

import msgspec

from tollgate.chains.catalogue import Holds, Look
from tollgate.core import jsonrpc
from tollgate.core.entries import MAX_METHOD_BYTES, pack
from tollgate.core.shapes import ABSENT, Call, PlainCall, Reply, Result
from tollgate.errors import Overloaded, Refusal
from tollgate.gateway.call.admission import Admission
from tollgate.gateway.call.cache import key_of
from tollgate.gateway.call.method_plan import CACHE_RESULTS, COALESCED, HIT, MethodPlan
from tollgate.gateway.call.resolver import ReplyValidator, Resolution, Resolved, SingleFlight
from tollgate.gateway.http import response
from tollgate.gateway.http.response import FEW, LENGTHS, render_result
from tollgate.gateway.http.under_way import CallerSide
from tollgate.gateway.memory_budget import SMALL
from tollgate.gateway.messages import Request, Trace
from tollgate.gateway.recording.counters import NODE_ERROR, OK
from tollgate.gateway.upstream import sticky
from tollgate.gateway.upstream.attempts import AttemptOutcome, Attempts
from tollgate.gateway.upstream.choice import Requirements
from tollgate.gateway.upstream.connection import AttemptFailed, Connection, Response, Unanswered
from tollgate.gateway.upstream.exchange import hedge_after
from tollgate.gateway.upstream.failover import OutOfStep
from tollgate.gateway.upstream.get_logs import GET_LOGS
from tollgate.gateway.upstream.health import Upstream

UNREADABLE = (msgspec.DecodeError, RecursionError)
_TIP, _NOWHERE = Holds.TIP, Look.NOWHERE
_STOPPING = "The service stops: try again."
NO_UPSTREAM = b"\xa0\x00"
"""The record's part about the upstream of a call that needed none: an empty name, no attempt."""
NIL, UINT32 = 0xC0, 0xCE
_ARRAY = ord("[")
# One detail, of two: no code, and the bytes of the answer, which follow.
_ONE_DETAIL = 0x9192C0CE
# What stands around an id and a result, and before it the end of the head.
_BEFORE_ID, _BEFORE_RESULT = b'\r\n{"jsonrpc":"2.0","id":', b',"result":'
_AROUND = len(_BEFORE_ID) - 2 + len(_BEFORE_RESULT) + 1
# What stands before the bytes of an id of ours.
_ID24 = b"\xc4\x18"
encode_json = msgspec.json.Encoder().encode
_read_call = msgspec.json.Decoder(PlainCall).decode
_read_reply = msgspec.json.Decoder(Reply).decode
# Duration; one detail with the bytes of the answer; those of the request.
_numbers = struct.Struct(">IIIBI").pack
_sizes = struct.Struct(">BIBI").pack


class Straight(ABC):
    """What a call and a batch have in common: one request under way, and its doors to the general way."""

    __slots__ = (
        "_admission",
        "_began",
        "_body",
        "_sent_on",
        "_upstream",
        "_work",
        "close",
        "connection",
        "data",
        "request_id",
    )

    def __init__(self, connection: CallerSide) -> None:
        self.connection = connection
        self._admission: Admission
        self._body: bytes
        self._began: float
        self._upstream: Upstream | None = None
        """Where it was sent; None: it needs no upstream."""
        self._work: Attempts[Reply] | Resolution | None = None
        """What goes on with it where it takes more than one attempt."""
        self._sent_on: Connection
        self.request_id: bytes
        self.data: bytes
        """Its answer, in the outbox."""
        self.close = False
        """Whether the connection closes after it."""

    def _send(self, body: bytes, shown: bytes = b"") -> None:
        """Put an answer into the outbox."""
        admission, connection = self._admission, self.connection
        context = admission.context
        if not self.request_id:
            self.request_id = next(context.ids)
        self.close = not admission.keep_alive or connection.closing
        extra = shown + admission.cors
        rates = admission.rates
        if rates is None:
            rates = admission.fill_rates()
        self.data = render_result(context.heads.ok_head, self.request_id, rates, extra, body, close=self.close)
        context.outbox.put(self)
        if len(self.data) > SMALL:
            context.outbox.count_large(self.data)

    @abstractmethod
    def record(self, at: bytes, now: float) -> bytes:
        """What is written down of it, put together from parts that are encoded already."""

    # --- The doors to the general way ------------------------------------------------------------------

    def failed(self, failure: AttemptFailed) -> None:
        """Take the reason why there is no response."""
        self.take_over(failure)

    def hedge_if_late(self, now: float) -> None:
        """Leave the straight way where the upstream takes longer than it usually does."""
        upstream = self._upstream
        if (
            upstream is not None
            and self._work is None
            and self._admission.exchange.hedging
            and now - self._began >= hedge_after(upstream)
        ):
            self.take_over()

    @abstractmethod
    def take_over(self, ended: Response | AttemptFailed | None = None) -> None:
        """Go on with the attempt that was begun, by whatever it takes; `ended`: what became of it."""

    def stop(self) -> None:
        """Answer with a refusal: the service stops. It has left the calls under way."""
        admission = self._admission
        if self._upstream is not None:
            self._give_up(self._upstream)
        self._let_go()
        request = self._general_request()
        self.connection.answered(request, admission.pipeline.refuse(request, Overloaded(_STOPPING)))

    def _give_up(self, upstream: Upstream) -> None:
        self._sent_on.receiver = Unanswered()
        upstream.abandoned()

    @abstractmethod
    def _let_go(self) -> None:
        """Leave nobody waiting."""

    def _general_request(self) -> Request:
        admission = self._admission
        request = admission.request(self._body, self.request_id or next(admission.context.ids))
        request.work = self
        request.rates, request.began = admission.rates_left(), self._began
        return request


class StraightCall(Straight):
    """One call on its way. To a connection it is what waits for the response."""

    __slots__ = (
        "_cache",
        "_call",
        "_flight",
        "_key",
        "_outcome",
        "_plan",
        "_scope",
        "_sent",
        "_size",
        "_trace",
        "_validator",
    )

    def __init__(self, connection: CallerSide) -> None:
        super().__init__(connection)
        self._key: bytes | None = None
        self._plan: MethodPlan | None
        """What its method means; None: it is no read that may go straight."""
        self._flight: SingleFlight
        """What others wait for, or what it waits for itself."""
        self._validator: ReplyValidator | None = None
        self._trace: Trace | None = None
        """The attempts that it took; None: it needed one at most."""
        self._outcome: tuple[str, int | None] | None = None
        """What became of it, and the code of its error, where that is to be counted and recorded by name."""

    # --- Before it is sent -----------------------------------------------------------------------------

    def start(self, admission: Admission, body: bytes, request_id: bytes = b"") -> bool:  # noqa: C901 - see above
        """Send a call, or answer it from the cache; False: nothing was done, it needs the general way."""
        context, exchange = admission.context, admission.exchange
        if len(context.calls) + len(context.tasks) >= context.max_in_flight or admission.sink.is_full:
            return False
        if admission.expires_at is not None and context.time() >= admission.expires_at:
            return False
        if not body or not body.isascii():
            return False
        if body[0] == _ARRAY:
            return admission.start_batch(self.connection, admission, body, request_id)
        encode = encode_json
        try:
            call: Call = _read_call(body)
        except UNREADABLE:
            other = _other_call(body)
            if other is None:
                return False
            call, encode = other, jsonrpc.encode_call
        # -0 is the one integer that is not written back as it came.
        if not call.id and b"-0" in body:
            return False
        plan = admission.plans.get(call.method) or admission.plan(call.method)
        if plan is None:
            return False
        # What is kept in a slot is called by a name of its own, here and below: that is much quicker.
        clock = context.now
        now = clock()
        view = exchange.view()
        if now >= view.believed_until:
            return False
        params = call.params
        if params is None:
            params, encode = [], jsonrpc.encode_call
        key = reply = flight = upstream = None
        if plan.key_prefix is not None:
            # As `key_of` makes it, only quicker: most have their parameters in a list.
            key = plan.key_prefix + b"\0".join(params) if params and type(params) is list else key_of(call)
            reply, flight = admission.resolver.known(key, view.snapshot)
        if reply is None and flight is None:
            read = plan.read
            scope = read(params)
            upstream = view.first(call.method, scope, now, exchange.random)
            if upstream is None or (upstream.limit and not exchange.within_rate(upstream, now)):
                return False
            idle = upstream.pool.idle
            if not idle or not idle[-1].usable:
                return False
        if admission.limits:
            take = admission.take_limits
            if not take(admission.limits, now):
                admission.find_limits()
                return False
            admission.taken_at = now
        # Everything is decided: from here on it happens.
        self._admission = admission
        self._plan = plan
        self._call = call
        self._body = body
        self._began = now
        self._upstream = upstream
        self.request_id = request_id
        self._trace = self._work = self._outcome = None
        self.connection.answering = self
        if reply is not None:
            self._cache = HIT
            self._answer(reply.result)
            return True
        context.calls.add(self)
        if upstream is None:
            self._cache = COALESCED
            self._flight = flight  # type: ignore[assignment]
            self._flight.join(self.completed)
            return True
        self._cache = plan.cache
        self._key, self._scope, self._validator = key, scope, None
        if key is not None:
            self._flight = admission.resolver.flights[key] = SingleFlight(view.snapshot.stamp)
        if plan.reveals and scope.holds is _TIP and scope.look is not _NOWHERE:
            self._validator = admission.resolver.validator(call.method, scope)
        if exchange.hedging and not context.under_way.sweeping:
            context.under_way.sweep_later()
        if upstream.limit:
            exchange.use_rate(upstream, now)
        # As `upstream.began`, without its call.
        upstream.in_flight += 1
        upstream.calls += 1
        if upstream.in_doubt:
            upstream.try_again()
        self._sent_on = sent_on = idle.pop()
        outbox = context.outbox
        if not outbox.flushing:
            outbox.flush_later()
        self._sent = sent = encode(call)
        outbox.requests.append(sent_on.request(sent, now + upstream.attempt_seconds, self))
        return True

    # --- After it was sent -----------------------------------------------------------------------------

    def received(self, status: int, body: bytes) -> None:
        """Take the response of the upstream: a plain result goes straight back."""
        try:
            reply = _read_reply(body)
        except UNREADABLE:
            self.take_over(Response(status, body))
            return
        if (
            reply.error is not ABSENT
            or reply.result is ABSENT
            or status != 200
            or not (body.isascii() or is_text(body))
        ):
            self.take_over(Response(status, body))
            return
        upstream, admission = self._upstream, self._admission
        assert upstream is not None  # noqa: S101 - it was sent to one
        if self._validator is not None:
            try:
                self._validator(reply)
            except OutOfStep:
                self.take_over(Response(status, body))
                return
            self._validator.note(upstream)
        context = admission.context
        # As `upstream.answered`, without its call.
        upstream.in_flight -= 1
        upstream.begun.append(self._began)
        if not upstream.counted:
            upstream.counted = True
            context.outbox.counted.append(upstream)
        context.calls.discard(self)
        if self._key is not None:
            admission.resolver.complete(self._key, self._flight, self._scope, reply)
        # Last: after a defect before it, the call is still to be answered.
        self._answer(reply.result)

    def completed(self, reply: Resolved) -> None:
        """Take the answer to an equal call."""
        admission = self._admission
        admission.context.calls.discard(self)
        if isinstance(reply, Reply):
            if reply.error is ABSENT and self._plan is not None:
                self._answer(reply.result)
                return
            extra = self._trace.extra if self._trace is not None and admission.pipeline.bills_upstream_calls else 0
            if self._call.id is not None and not extra:
                self._answer_other(reply, self._call.id)
                return
        request, pipeline = self._general_request(), admission.pipeline
        if isinstance(reply, Refusal):
            answer = pipeline.refuse_call(request, admission.network, self._call, reply)
        else:
            answer = pipeline.render(request, admission.network, self._call, reply)
        self.connection.answered(request, answer)

    # --- What is not a healthy read --------------------------------------------------------------------

    def go(self, admission: Admission, body: bytes, request_id: bytes = b"") -> bool:
        """Answer any one call that may be made; False: nothing was done, it is a batch, or to be refused."""
        context, pipeline, resolver = admission.context, admission.pipeline, admission.resolver
        if len(context.calls) + len(context.tasks) >= context.max_in_flight or admission.sink.is_full:
            return False
        if admission.expires_at is not None and context.time() >= admission.expires_at:
            return False
        if body[:1] == b"[":
            return False
        try:
            call = jsonrpc.parse(body, 1)
        except Refusal:
            return False
        if isinstance(call, list) or call.method in sticky.METHODS:
            return False
        method = call.method
        if method not in admission.others and not admission.allows(method):
            return False
        now = context.now()
        if admission.limits:
            if not admission.take_limits(admission.limits, now):
                admission.find_limits()
                return False
            admission.taken_at = now
        # Everything is decided: from here on it happens.
        self._admission = admission
        self._plan = None
        self._call = call
        self._body = body
        self._began = now
        self._upstream = self._outcome = self._work = None
        self.request_id = request_id
        self._key = key = resolver.key(call)
        self._trace = trace = Trace()
        self.connection.answering = self
        context.calls.add(self)
        reply = resolver.recall(key) if key is not None else None
        if reply is not None:
            trace.cache = CACHE_RESULTS[HIT]
            self._resolved(reply)
            return True
        if method == GET_LOGS:
            trace.charge = admission.charge
        self._work = work = Resolution(resolver, call, key, now + pipeline.request_seconds, trace, self._resolved)
        work.start()
        return True

    def _resolved(self, result: Resolved) -> None:
        """Take what `go` has come to."""
        assert self._trace is not None  # noqa: S101 - set before it was begun
        self._cache = CACHE_RESULTS.index(self._trace.cache)
        self._conclude(result)

    def _conclude(self, result: Resolved) -> None:
        try:
            self.completed(result)
        except Exception as error:  # noqa: BLE001 - the border: nobody else answers this caller
            request = self._general_request()
            self.connection.answered(request, self._admission.pipeline.failed(request, error))

    def _answer_other(self, reply: Reply, call_id: msgspec.Raw | int) -> None:
        """Count a call by name, and send its answer: no plan knows its method, or it ended with a node's error."""
        admission, network, method = self._admission, self._admission.network, self._call.method
        context, cached = admission.context, CACHE_RESULTS[self._cache]
        self._outcome = outcome, _ = (
            (OK, None) if reply.error is ABSENT else (NODE_ERROR, jsonrpc.error_code(reply))
        )
        context.counters.resolved(network, method, outcome, cached)
        context.counters.requested(network.path, 200)
        body = jsonrpc.encode_answer(call_id, reply)
        self._size = len(body)
        trace, upstream = self._trace, self._upstream
        shown = b""
        if admission.caller.shows:
            shown = response.shown(
                trace.upstream if trace is not None else upstream.name if upstream else "", cached
            )
        self._send(body, shown)

    def take_over(self, ended: Response | AttemptFailed | None = None) -> None:
        """Go on with the attempt that was begun, by whatever it takes; `ended`: what became of it."""
        upstream, scope, call, admission = self._upstream, self._scope, self._call, self._admission
        assert upstream is not None  # noqa: S101 - it was sent to one
        if self._work is not None:
            # A defect: the answer that it ended with could not be sent.
            return
        self._trace = trace = Trace()
        trace.upstream, trace.attempts = upstream.name, 1
        resolver = admission.resolver
        validator = self._validator = self._validator or resolver.validator(call.method, scope)
        oldest = scope.oldest if scope.state else None
        self._work = attempts = Attempts(
            admission.exchange,
            Requirements(call.method, tip=scope.tip, oldest=oldest, number=scope.number),
            self._began + admission.pipeline.request_seconds,
            self._sent,
            jsonrpc.decode_reply,
            validator,
            trace,
            self._ended,
        )
        attempts.resume(upstream, self._began, self._sent_on, ended)

    def _ended(self, outcome: AttemptOutcome[Reply] | Refusal) -> None:
        """Take what all attempts have come to."""
        result: Resolved
        if isinstance(outcome, Refusal):
            result = outcome
        else:
            result, self._upstream = outcome.answer, outcome.upstream
            if self._validator is not None and not self._validator.plain:
                self._validator.note(outcome.upstream)
        if self._key is not None:
            self._admission.resolver.complete(self._key, self._flight, self._scope, result)
        self._conclude(result)

    def _answer(self, result: msgspec.Raw) -> None:
        """Count the call, and send its answer."""
        admission, connection = self._admission, self.connection
        plan: MethodPlan = self._plan  # type: ignore[assignment] # what comes here has one
        context = admission.context
        if not plan.counted:
            plan.counted = True
            context.outbox.counted.append(plan)
        plan.counts[self._cache] += 1
        call_id = encode_json(self._call.id)
        self._size = size = _AROUND + len(call_id) + len(result)
        if size < FEW and admission.plain and not context.draining and not connection.eof:
            # As below and in `_send`, without their calls: most answers leave here.
            if not self.request_id:
                self.request_id = next(context.ids)
            rates = admission.rates
            if rates is None:
                rates = admission.fill_rates()
            self.data = b"".join(
                (
                    context.heads.ok_head,
                    self.request_id,
                    LENGTHS[size],
                    rates,
                    _BEFORE_ID,
                    call_id,
                    _BEFORE_RESULT,
                    result,
                    b"}",
                )
            )
            outbox = context.outbox
            if not outbox.flushing:
                outbox.flush_later()
            outbox.answers.append(self)
            return
        shown = b""
        if admission.caller.shows:
            shown = response.shown(self._upstream.name if self._upstream else "", CACHE_RESULTS[self._cache])
        self._send(encode_json(Result("2.0", self._call.id, result)), shown)  # type: ignore[arg-type] # a notification is not here

    def record(self, at: bytes, now: float) -> bytes:
        """What is written down of it, put together from parts that are encoded already."""
        if self._outcome is not None:
            return self._record_other(at, now, *self._outcome)
        admission, upstream, trace, request_id = self._admission, self._upstream, self._trace, self.request_id
        plan: MethodPlan = self._plan  # type: ignore[assignment] # what comes here has one
        micros = floor((now - self._began) * 1e6)
        admission.durations.append(micros)
        return b"".join(
            (
                at,
                admission.subjects.get(plan) or admission.subject(plan),
                _numbers(micros, _ONE_DETAIL, self._size, UINT32, len(self._body)),
                _ID24 if len(request_id) == 24 else pack(request_id)[: -len(request_id)],
                request_id,
                NO_UPSTREAM
                if upstream is None
                else upstream.record
                if trace is None
                else pack(trace.upstream) + pack(trace.attempts),
                admission.records[self._cache],
            )
        )

    def _record_other(self, at: bytes, now: float, outcome: str, code: int | None) -> bytes:
        """The record of a call that is counted by name."""
        admission, upstream, trace = self._admission, self._upstream, self._trace
        micros = floor((now - self._began) * 1e6)
        admission.context.journal.latencies.durations(admission.network.path, outcome).append(micros)
        way = upstream.record if upstream is not None else NO_UPSTREAM
        return b"".join(
            (
                at,
                admission.subject_of(self._call.method[:MAX_METHOD_BYTES], outcome),
                micros.to_bytes(4, "big"),
                b"\x91\x92",
                pack(code),
                _sizes(UINT32, self._size, UINT32, len(self._body)),
                pack(self.request_id),
                way if trace is None else pack(trace.upstream) + pack(trace.attempts),
                admission.records[self._cache],
            )
        )

    # --- The doors to the general way ------------------------------------------------------------------

    def _general_request(self) -> Request:
        request = super()._general_request()
        request.cache = CACHE_RESULTS[self._cache]
        if self._trace is not None:
            request.upstream, request.attempts = self._trace.upstream, self._trace.attempts
            request.extra = self._trace.extra
        return request

    def stop(self) -> None:
        """Answer with a refusal: the service stops."""
        if isinstance(self._work, Resolution):
            self._work.cancel()
        else:
            super().stop()

    def _give_up(self, upstream: Upstream) -> None:
        if self._work is None:
            super()._give_up(upstream)
        else:
            self._work.cancel()

    def _let_go(self) -> None:
        if self._upstream is None:
            self._flight.leave(self.completed)
        elif self._key is not None:
            self._admission.resolver.complete(self._key, self._flight, self._scope, None)


def _other_call(body: bytes) -> Call | None:
    """A call whose id is no integer; None where it is no call that can go straight."""
    try:
        call = jsonrpc.parse(body, 1)
    except Refusal:
        return None
    return None if isinstance(call, list) or call.id is None or call.id == jsonrpc.NULL else call


def is_text(body: bytes) -> bool:
    """Whether these bytes are UTF-8: msgspec does not look into what it skips."""
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True
