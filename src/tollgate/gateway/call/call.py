"""One call of a caller: from its bytes to an upstream's connection and back, by plain calls on one object.

admit -> decode -> policy -> cache or equal call -> attempts -> answer and record

`start` is the fast path. It decides everything before it does anything: a read by a caller that was let in before,
an upstream in rotation, a free connection, limits that hold. Otherwise it returns False with nothing done, and
`go` takes the call if it may be made at all: writes, notifications, `eth_getLogs`, reads without a free
connection. Where that returns False too, the pipeline refuses it, or lets it in (`serve`) after a check that takes
the store. Once a call is sent, `take_over` is the one way off the fast path: a `Resolution` goes on with failover
and hedging, and the answer still leaves from here.

A connection has one such object and uses it for one call after the other. A batch is `batch.py`'s.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import floor
from typing import cast

import msgspec

from tollgate.core import jsonrpc
from tollgate.core.entries import MAX_METHOD_BYTES, pack
from tollgate.core.shapes import ABSENT, Call, PlainCall, Reply, Result, WrittenCall
from tollgate.errors import Refusal
from tollgate.gateway.access.caller import Caller
from tollgate.gateway.call.admission import (
    CACHE_RESULTS,
    COALESCED,
    HIT,
    UNTOLD,
    Admission,
    Admissions,
    MethodPlan,
)
from tollgate.gateway.call.batch import ServedBatch, start_batch
from tollgate.gateway.call.cache import key_of
from tollgate.gateway.call.reply_validator import ReplyValidator, reveals_tip
from tollgate.gateway.call.resolver import Resolution, Resolved, Resolver, SingleFlight
from tollgate.gateway.call.served import (
    NO_UPSTREAM,
    UINT32,
    UNREADABLE,
    Served,
    SlowState,
    at_first_attempt,
    encode_json,
    is_text,
)
from tollgate.gateway.http.response import FEW, LENGTHS
from tollgate.gateway.http.under_way import CallerSide, ConnectionCall, HttpCaller
from tollgate.gateway.messages import Request, Route
from tollgate.gateway.recording.counters import NODE_ERROR, OK
from tollgate.gateway.recording.journal import Journal
from tollgate.gateway.upstream import sticky
from tollgate.gateway.upstream.attempts import FirstAttempt
from tollgate.gateway.upstream.connection import AttemptFailed, Response
from tollgate.gateway.upstream.failover import OutOfStep
from tollgate.gateway.upstream.get_logs import GET_LOGS

_ARRAY = ord("[")
# One detail, of two: no code, and the bytes of the answer, which follow.
_ONE_DETAIL = 0x9192C0CE
# What is around an id and a result, and before it the end of the head.
_BEFORE_ID, _BEFORE_RESULT = b'\r\n{"jsonrpc":"2.0","id":', b',"result":'
_AROUND = len(_BEFORE_ID) - 2 + len(_BEFORE_RESULT) + 1
# What is before the bytes of an id of ours.
_ID24 = b"\xc4\x18"
_NOTHING: tuple[None, list[PlainCall]] = (None, [])
_read_call = msgspec.json.Decoder(PlainCall).decode
_read_reply = msgspec.json.Decoder(Reply).decode
# Duration; one detail with the bytes of the answer; those of the request.
_numbers = struct.Struct(">IIIBI").pack
_sizes = struct.Struct(">BIBI").pack


class ServedCall(Served):
    """One call on its way. To an upstream's connection it is what waits for the response."""

    __slots__ = (
        "_cache",
        "_call",
        "_flight",
        "_key",
        "_origin",
        "_plan",
        "_read",
        "_scope",
        "_size",
        "_validator",
    )

    def __init__(self, connection: CallerSide) -> None:
        super().__init__(connection)
        self._key: bytes | None = None
        self._plan: MethodPlan | None
        """What its method means; None: it is no read of the fast path."""
        self._flight: SingleFlight
        """What others wait for, or what it waits for itself."""
        self._validator: ReplyValidator | None = None
        self._read: tuple[bytes | None, Call | list[PlainCall] | list[WrittenCall]] = _NOTHING
        """What `start` has read and `go` need not read again."""

    # --- Before it is sent -----------------------------------------------------------------------------

    def start(self, admission: Admission, body: bytes, request_id: bytes = b"") -> bool:  # noqa: C901 - see above
        """Send a read, or answer it from the cache; False: nothing was done, it needs the slow path."""
        context, exchange = admission.context, admission.exchange
        if len(context.calls) + len(context.tasks) >= context.max_in_flight or admission.sink.is_full:
            return False
        if admission.expires_at is not None and context.time() >= admission.expires_at:
            return False
        if not body or not body.isascii():
            return False
        if body[0] == _ARRAY:
            return start_batch(self.connection, admission, body, request_id)
        encode = encode_json
        try:
            call: Call = _read_call(body)
        except UNREADABLE:
            other = self._read_other(body)
            if other is None:
                return False
            call, encode = other, jsonrpc.encode_call
        # -0 is the one integer that is not written back as it came.
        if not call.id and b"-0" in body:
            return False
        method = call.method
        plan = admission.plans.get(method) or admission.plan(method)
        if plan is None:
            self._read = (body, call)
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
            if flight is not None and admission.team not in flight.teams:
                return False
        if reply is None and flight is None:
            read = plan.read
            scope = read(params)
            upstream = view.first(method, scope, now, exchange.random)
            if upstream is None or (upstream.limit and not exchange.within_rate(upstream, now)):
                return False
            idle = upstream.pool.idle
            if (
                not idle
                or not idle[-1].usable
                # So many are busy that it may have no more than its share of connections.
                or upstream.in_flight * admission.share >= upstream.connections
            ):
                return False
        if admission.metered:
            take = admission.take_limits
            if not take(admission.limits, now):
                admission.find_limits()
                return False
            admission.taken_at = now
        # All is decided; from here on it is done.
        self._admission = admission
        self._plan = plan
        self._call = call
        self._body = body
        self._started = now
        self._upstream = upstream
        self.request_id = request_id
        self._slow = None
        self.connection.answering = self
        if reply is not None:
            self._cache = HIT
            if admission.team not in reply.teams:
                self._cache = UNTOLD
                self._origin = admission.resolver.give(reply, admission.team)
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
            self._flight = admission.resolver.flights[key] = SingleFlight(
                view.snapshot.stamp, admission.teams, upstream.name
            )
        if plan.reveals and reveals_tip(scope):
            self._validator = admission.resolver.validator(call.method, scope)
        if exchange.hedging and not context.under_way.sweeping:
            context.under_way.sweep_later()
        if upstream.limit:
            exchange.use_rate(upstream, now)
        # As `upstream.started`, without its call.
        upstream.in_flight += 1
        upstream.calls += 1
        if upstream.in_doubt:
            upstream.try_again()
        self._sent_on = sent_on = idle.pop()
        outbox = context.outbox
        if not outbox.flushing:
            outbox.flush_later()
        outbox.requests.append(sent_on.request(encode(call), now + upstream.attempt_seconds, self))
        return True

    def _read_other(self, body: bytes) -> Call | None:
        """A call whose id is no integer; None where it is no call for the fast path."""
        try:
            call = jsonrpc.parse(body, 1)
        except Refusal:
            return None
        self._read = (body, call)
        return None if isinstance(call, list) or call.id is None or call.id == jsonrpc.NULL else call

    # --- After it was sent -----------------------------------------------------------------------------

    def received(self, status: int, body: bytes) -> None:
        """Take the response of the upstream: a plain result is the answer."""
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
                self._validator(reply, upstream)
            except OutOfStep:
                self.take_over(Response(status, body))
                return
            self._validator.note(upstream)
        context = admission.context
        # As `upstream.answered`, without its call.
        upstream.in_flight -= 1
        upstream.starts.append(self._started)
        if not upstream.counted:
            upstream.counted = True
            context.outbox.counted.append(upstream)
        context.calls.discard(self)
        if self._key is not None:
            admission.resolver.complete(self._key, self._flight, self._scope, reply)
        # Last: after a defect before it, the call can still be answered.
        self._answer(reply.result)

    # --- The slow path ---------------------------------------------------------------------------------

    def go(self, admission: Admission, body: bytes, request_id: bytes = b"") -> bool:
        """Serve any call or batch that may be made; False: nothing was done, the pipeline refuses it."""
        context = admission.context
        if len(context.calls) + len(context.tasks) >= context.max_in_flight or admission.sink.is_full:
            return False
        if admission.expires_at is not None and context.time() >= admission.expires_at:
            return False
        (read, parsed), self._read = self._read, _NOTHING
        if read is not body:
            try:
                parsed = jsonrpc.parse(body, admission.pipeline.max_calls)
            except Refusal:
                return False
        calls = 1
        if isinstance(parsed, list):
            calls = len(parsed)
            if admission.pipeline.refusals(admission.network, admission.caller, parsed):
                return False
        elif parsed.method not in admission.others and not admission.allows(parsed.method):
            return False
        now = context.now()
        if admission.metered:
            if not admission.take_limits(admission.limits, now, calls):
                admission.find_limits()
                return False
            admission.taken_at = now
        if isinstance(parsed, list):
            ServedBatch(self.connection, admission, body, now, request_id).serve(parsed)
        else:
            self.serve(admission, body, now, request_id, parsed)
        return True

    def serve(
        self,
        admission: Admission,
        body: bytes,
        now: float,
        request_id: bytes,
        call: Call,
        request: Request | None = None,
    ) -> None:
        """Serve a call that may be made; `request`: where the pipeline has let it in."""
        resolver, method = admission.resolver, call.method
        self._admission = admission
        self._body = body
        self._started = now
        self._upstream = self._plan = None
        self.request_id = request_id
        if method in sticky.METHODS:
            call = admission.pipeline.seal.opened(call, admission.caller.filters_of)
        self._call = call
        self._slow = slow = SlowState(Route(now, holder=admission.caller.holder), request)
        self._key = key = resolver.key(call)
        self.connection.answering = self
        admission.context.calls.add(self)
        reply = resolver.recall_for(admission.team, key, slow.route)
        if reply is not None:
            self.completed(reply)
            return
        if method == GET_LOGS:
            slow.route.charge = self._charge
        if request is not None:
            slow.route.span = request.span
        deadline = now + admission.pipeline.request_seconds
        scope = resolver.scope(call)
        slow.work = work = Resolution(
            resolver, call, key, scope, deadline, slow.route, self.completed, admission.team
        )
        work.start()

    def take_over(self, ended: Response | AttemptFailed | None = None) -> None:
        admission, key, plan, upstream, now = self._admission, self._key, self._plan, self._upstream, self._started
        if self._slow is not None or upstream is None or plan is None:
            # A defect: the answer that it ended with could not be sent.
            return
        route = Route(now, CACHE_RESULTS[self._cache], holder=admission.caller.holder)
        deadline = now + admission.pipeline.request_seconds
        resolver, team = admission.resolver, admission.team
        work = Resolution(resolver, self._call, key, self._scope, deadline, route, self.completed, team)
        self._slow = SlowState(route, None, work)
        first = FirstAttempt(jsonrpc.encode_call(self._call), upstream, now, self._sent_on, ended)
        work.resume(first, None if key is None else self._flight, self._validator or plan.validator)

    def completed(self, reply: Resolved) -> None:
        """Answer with a result that is not the upstream's plain one: of an equal call, or of the slow path."""
        slow = self._slow
        if slow is not None:
            self._cache = CACHE_RESULTS.index(slow.route.cache)
        try:
            self._admission.context.calls.discard(self)
            if isinstance(reply, Reply) and (slow is None or slow.request is None):
                if reply.error is ABSENT and self._plan is not None:
                    self._answer(reply.result)
                    return
                if slow is None or not slow.route.extra or not self._admission.pipeline.bills_upstream_calls:
                    self._answer_by_name(reply)
                    return
            self._answer_by_request(reply)
        except Exception as error:  # noqa: BLE001 - the border: no other code answers this caller
            request = self._request(slow.route if slow is not None else Route())
            self.connection.answered(request, self._admission.pipeline.failed(request, error))

    def _answer_by_request(self, reply: Resolved) -> None:
        """Answer with a refusal, or where the pipeline let the call in."""
        admission, call, slow = self._admission, self._call, self._slow
        route = slow.route if slow is not None else Route(cache=CACHE_RESULTS[self._cache])
        request = self._request(route)
        self.connection.answered(request, admission.pipeline.render(request, admission.network, call, reply))

    def _charge(self, calls: int) -> None:
        """Count calls to upstreams that it needs beyond the first, or refuse them."""
        self._admission.charge(calls, self._slow.request if self._slow is not None else None)

    def _let_go(self) -> None:
        if self._upstream is None:
            self._flight.leave(self.completed)
        elif self._key is not None:
            self._admission.resolver.complete(self._key, self._flight, self._scope, None)

    # --- The answer and its record ---------------------------------------------------------------------

    def _answer(self, result: msgspec.Raw) -> None:
        """Count the call, and send its answer."""
        admission, connection = self._admission, self.connection
        plan: MethodPlan = self._plan  # type: ignore[assignment] # every read that comes here has one
        context = admission.context
        if not plan.counted:
            plan.counted = True
            context.outbox.counted.append(plan)
        plan.counts[self._cache] += 1
        call_id = encode_json(self._call.id)
        self._size = size = _AROUND + len(call_id) + len(result)
        if size < FEW and admission.plain and not context.draining and not connection.eof:
            # As below and in `_send`, without their calls: most answers leave from here.
            request_id = self.request_id
            if not request_id:
                self.request_id = request_id = next(context.ids)
            rates = admission.rates
            if rates is None:
                rates = admission.fill_rates()
            self.data = b"".join(
                (
                    context.ok_head,
                    request_id,
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
            shown = self._shown()
        self._send(encode_json(Result("2.0", self._call.id, result)), shown)  # type: ignore[arg-type] # it is no notification

    def _shown(self) -> bytes:
        """The header lines with the origin of the answer."""
        slow, upstream = self._slow, self._upstream
        name = slow.route.upstream if slow is not None else upstream.name if upstream is not None else ""
        if self._cache == UNTOLD:
            name = self._origin
        return self._admission.pipeline.shown(name, CACHE_RESULTS[self._cache])

    def _answer_by_name(self, reply: Reply) -> None:
        """Count a call by its method's name, and send its answer: it has no plan, or is a node's error."""
        admission, method = self._admission, self._call.method
        context, network, cached = admission.context, admission.network, CACHE_RESULTS[self._cache]
        if self._slow is not None:
            cached = self._slow.route.counted or cached
        if method in sticky.METHODS:
            reply = admission.pipeline.seal.closed(method, reply, admission.caller.filters_of)
        outcome, code = (OK, None) if reply.error is ABSENT else (NODE_ERROR, jsonrpc.error_code(reply))
        status, body, call_id = 204, b"", self._call.id
        if call_id is not None:
            status, body = 200, jsonrpc.encode_answer(call_id, reply)
        self._size = len(body)
        slow = self._slow
        if slow is None:
            # It waited for an equal call.
            self._slow = slow = SlowState(Route())
        slow.outcome = outcome, code, status
        context.counters.resolved(network, method, outcome, cached)
        context.counters.requested(network.path, status)
        self._send(body, self._shown() if body and admission.caller.shows else b"")

    def record(self, journal: Journal, at: bytes, now: float) -> bytes:
        """Its record, put together from parts that are encoded already."""
        if self._slow is not None:
            return self._slow_record(journal, at, now, self._slow)
        admission, upstream, request_id = self._admission, self._upstream, self.request_id
        plan: MethodPlan = self._plan  # type: ignore[assignment] # every call of the fast path has one
        way = upstream.record if upstream is not None else NO_UPSTREAM
        if self._cache == UNTOLD:
            way = at_first_attempt(self._origin)
        micros = floor((now - self._started) * 1e6)
        admission.durations.append(micros)
        return b"".join(
            (
                at,
                admission.subjects.get(plan) or admission.subject(plan),
                _numbers(micros, _ONE_DETAIL, self._size, UINT32, len(self._body)),
                _ID24 if len(request_id) == 24 else pack(request_id)[: -len(request_id)],
                request_id,
                way,
                admission.records[self._cache],
            )
        )

    def _slow_record(self, journal: Journal, at: bytes, now: float, slow: SlowState) -> bytes:
        admission, route, (outcome, code, status) = self._admission, slow.route, slow.outcome
        counted = (self._call.method[:MAX_METHOD_BYTES], outcome, status)
        micros = floor((now - self._started) * 1e6)
        if outcome == OK:
            admission.durations.append(micros)
        else:
            journal.latencies.durations(admission.network.path, outcome).append(micros)
        return b"".join(
            (
                at,
                admission.subjects.get(counted) or admission.subject_of(counted),
                micros.to_bytes(4, "big"),
                b"\x91\x92",
                pack(code),
                _sizes(UINT32, self._size, UINT32, len(self._body)),
                # Without the byte that says how many they are.
                pack((self.request_id, route.upstream, route.kept))[1:],
                admission.records[self._cache],
            )
        )


class Calls(Admissions):
    """Lets callers in and serves what they request, for one worker."""

    def begin(self, connection: HttpCaller, request: Request) -> bool:
        """Serve a request that was read whole; False: nothing was done, it is the pipeline's."""
        if request.held or request.method != b"POST" or not request.body:
            return False
        before = connection.admission
        admission = self.admit(request, before if isinstance(before, Admission) else None)
        if admission is None:
            return False
        connection.admission = admission
        # A connection gives its call the admissions that are made here, and no others.
        call = cast("ServedCall | None", connection.call)
        if call is None:
            call = ServedCall(connection)
            connection.call = cast("ConnectionCall", call)
        if self._context.tracer is None:
            # Otherwise each request is looked at: it may be one that is traced.
            request.admission = admission
        body, request_id = request.body, request.request_id
        return call.start(admission, body, request_id) or call.go(admission, body, request_id)

    def serve(self, request: Request, caller: Caller, resolver: Resolver, parsed: Call | Sequence[Call]) -> None:
        """Serve a request that has passed the pipeline's checks."""
        assert request.network is not None  # noqa: S101 - requests without one are refused before
        admission = self.of(request, caller, request.network, resolver)
        now, request_id = request.started, request.request_id
        if isinstance(parsed, Sequence):
            refusals = admission.pipeline.refusals(admission.network, caller, parsed)
            batch = ServedBatch(request.connection, admission, request.body, now, request_id)
            batch.serve(parsed, request, refusals)
        else:
            ServedCall(request.connection).serve(admission, request.body, now, request_id, parsed, request)
