"""One batch of a caller. On the fast path, what the cache does not know goes to one upstream whole.

As `call.py`: `start_batch` decides everything before it does anything; `serve` takes any batch that may be made,
and `take_over` is the one way off the fast path, to a `BatchResolution`. Answers are split without being decoded.
Ids that are distinct and exact in every language (below 2^53) travel unchanged; others are numbered.

Most batches are uniform: one method about one block, ids that count up by one. Such a batch is looked through
once, and its bytes, and those of its answer, travel as they are where they can hold nothing but what was read:
they are as short as can be, without spaces and with each member once.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import floor
from typing import Literal, TypeVar, cast

import msgspec
from msgspec import Raw, Struct

from tollgate.chains.catalogue import Holds, Scope
from tollgate.core import jsonrpc
from tollgate.core.entries import pack, pack_sizes
from tollgate.core.shapes import ABSENT, Call, PlainCall, Reply, Result
from tollgate.errors import Refusal
from tollgate.gateway.call.admission import (
    BYPASS,
    CACHE_RESULTS,
    COALESCED,
    HIT,
    UNTOLD,
    Admission,
    MethodPlan,
)
from tollgate.gateway.call.batch_resolution import UNSET, BatchItem, BatchResolution, items_of
from tollgate.gateway.call.cache import Kept, key_of
from tollgate.gateway.call.reply_validator import ReplyValidator, reveals_tip
from tollgate.gateway.call.resolver import Resolver, SingleFlight
from tollgate.gateway.call.served import (
    NIL,
    NO_UPSTREAM,
    UINT32,
    UNREADABLE,
    Served,
    SlowState,
    at_first_attempt,
    encode_json,
    is_text,
)
from tollgate.gateway.http.under_way import CallerSide
from tollgate.gateway.messages import Request, Route
from tollgate.gateway.recording.journal import Journal
from tollgate.gateway.upstream.attempts import FirstAttempt
from tollgate.gateway.upstream.connection import AttemptFailed, Response
from tollgate.gateway.upstream.failover import OutOfStep
from tollgate.gateway.upstream.health import Upstream
from tollgate.shm.upstream_status import Snapshot, Stamp

# Integers up to here are exact in JavaScript and in most nodes.
_EXACT = 1 << 53
_NEVER = Holds.NEVER
# What an answer has around its id and its result.
_AROUND = len('{"jsonrpc":"2.0","id":,"result":}')
# And a call around its id, its method and its parameters.
_AROUND_CALL = len('{"jsonrpc":"2.0","id":,"method":"","params":[]}')
_ARRAY16 = 0xDC
# A detail of a record: no code, the bytes of the answer, then upstream, attempts and cache.
_DETAIL = bytes((0x95, NIL, UINT32))
_number = struct.Struct(">BI").pack
_number16 = struct.Struct(">BH").pack
_PACKED_RESULTS = [pack(cached) for cached in CACHE_RESULTS]
_MINUS = ord("-")
_read_batch = msgspec.json.Decoder(list[PlainCall]).decode


_T = TypeVar("_T")


class _BatchAnswer(Struct, gc=False, forbid_unknown_fields=True):
    """An answer to a call of a batch, as it goes back: a result, and no error beside it."""

    jsonrpc: Literal["2.0"]
    id: int
    result: Raw


_read_answers = msgspec.json.Decoder(list[_BatchAnswer]).decode


class _Uniform(Struct, gc=False):
    """What calls of one method about one block, with ids that count up by one, have in common."""

    ids: list[int]
    size: int
    """Bytes of all of them, at least."""
    around: int
    """Bytes around a result in an answer, where that is the same for all; 0: it is not."""


class ServedBatch(Served):
    """One batch on its way."""

    __slots__ = (
        "_cache_results",
        "_calls",
        "_flights",
        "_ids",
        "_in_order",
        "_keys",
        "_known",
        "_origins",
        "_plans",
        "_refusals",
        "_scopes",
        "_sent",
        "_sizes",
        "_uniform",
        "_validators",
    )

    def __init__(
        self, connection: CallerSide, admission: Admission, body: bytes, now: float, request_id: bytes
    ) -> None:
        super().__init__(connection)
        self._admission = admission
        self._body = body
        self._started = now
        self.request_id = request_id
        self._calls: Sequence[Call]
        self._refusals: Sequence[Refusal | None] = ()
        """Why calls may not be made; empty: all of them may."""
        self._plans: list[MethodPlan]
        self._known: dict[int, Kept | int] = {}
        """Places of calls that are not sent, with their answer from the cache, or the place of an equal call."""
        self._origins: dict[int, str]
        """Upstreams that are shown for answers which calls of other teams brought, by place."""
        self._uniform: _Uniform | None = None
        """Set where the calls are uniform and all of them are sent."""
        self._cache_results: Sequence[int] = ()
        """What the cache does for each call; empty: the same for all, as in their plan."""
        self._keys: list[bytes] | None = None
        self._flights: list[SingleFlight] = []
        self._validators: Sequence[ReplyValidator | None] = ()
        """Of the calls that are sent; empty: no answer shows where the tip is."""
        self._scopes: list[Scope]
        self._sent: bytes
        self._ids: list[int]
        """The ids that calls are sent under."""
        self._in_order = True
        """Whether the answers came in the order of the calls."""
        self._sizes: list[int]
        """Bytes of the answers."""
        connection.answering = self

    def start(
        self,
        calls: list[PlainCall],
        plans: list[MethodPlan],
        known: dict[int, Kept | int],
        uniform: _Uniform | None,
    ) -> None:
        """Take the fast path: `send` or `answer` follows."""
        self._calls, self._plans, self._known, self._uniform = calls, plans, known, uniform
        if uniform is None:
            self._cache_results = _cache_results(plans, known, self._admission.team)

    def send(
        self,
        upstream: Upstream,
        calls: list[PlainCall],
        scopes: list[Scope],
        keys: list[bytes] | None,
        stamp: Stamp,
    ) -> None:
        """Send what the cache does not know, and let others wait for the answers."""
        admission, now, uniform = self._admission, self._started, self._uniform
        context, exchange, resolver = admission.context, admission.exchange, admission.resolver
        self._upstream = upstream
        self._scopes = scopes
        if keys is not None:
            self._keys = _others(keys, self._known)
            self._flights = [SingleFlight(stamp, admission.teams, upstream.name) for _ in self._keys]
            resolver.flights.update(zip(self._keys, self._flights, strict=True))
        if self._plans[0].reveals or (uniform is None and any(plan.reveals for plan in self._plans)):
            self._validators = _validators(resolver, calls, scopes)
        if uniform is not None:
            self._ids = uniform.ids
            self._sent = self._body if uniform.size == len(self._body) else encode_json(calls)
        else:
            self._write(calls)
        context.calls.add(self)
        if exchange.hedging and not context.under_way.sweeping:
            context.under_way.sweep_later()
        if upstream.limit:
            exchange.use_rate(upstream, now)
        upstream.started()
        self._sent_on = upstream.pool.idle.pop()
        context.outbox.put_request(self._sent_on.request(self._sent, now + upstream.attempt_seconds, self))

    def _write(self, calls: list[PlainCall]) -> None:
        """Write calls under their own ids, or under others."""
        ids = [call.id for call in calls]
        if len(set(ids)) == len(ids) and min(ids) >= 0 and max(ids) < _EXACT:
            self._ids, self._sent = ids, encode_json(calls)
        else:
            self._ids, self._sent = list(range(len(calls))), jsonrpc.encode_batch(calls)

    # --- After it was sent -----------------------------------------------------------------------------

    def received(self, status: int, body: bytes) -> None:
        """Take the response of the upstream: plain results are the answer."""
        answers = self._read(status, body)
        upstream, admission = self._upstream, self._admission
        assert upstream is not None  # noqa: S101 - it was sent to one
        if answers is None or (self._validators and not self._fit(answers, upstream)):
            self.take_over(Response(status, body))
            return
        context = admission.context
        upstream.answered(self._started)
        if not upstream.counted:
            upstream.counted = True
            context.outbox.counted.append(upstream)
        context.calls.discard(self)
        if self._keys is not None:
            complete = admission.resolver.complete
            for key, flight, scope, answer in zip(self._keys, self._flights, self._scopes, answers, strict=True):
                complete(key, flight, scope, Reply(answer.result))
        self.answer(answers, body)

    def _read(self, status: int, body: bytes) -> list[_BatchAnswer] | None:
        """The answers in the order of the calls that were sent; None where they are not all plain results."""
        if status != 200 or not (body.isascii() or is_text(body)):
            return None
        try:
            answers = _read_answers(body)
        except UNREADABLE:
            return None
        ids = self._ids
        if len(answers) != len(ids):
            return None
        if [answer.id for answer in answers] != ids:
            self._in_order = False
            return _sorted_by(answers, ids)
        around = self._uniform.around if self._uniform is not None else 0
        self._sizes = [around + len(answer.result) for answer in answers]
        return answers

    def _fit(self, answers: list[_BatchAnswer], upstream: Upstream) -> bool:
        """Whether no answer shows an older chain than callers know."""
        try:
            for validator, answer in zip(self._validators, answers, strict=True):
                if validator is not None:
                    validator(Reply(answer.result), upstream)
        except OutOfStep:
            return False
        for validator in self._validators:
            if validator is not None:
                validator.note(upstream)
        return True

    def answer(self, answers: list[_BatchAnswer], body: bytes = b"") -> None:
        """Count the calls, and send all answers; `body`: as they came, where they did."""
        if self._uniform is None:
            body = self._joined(answers)
        elif self._uniform.around and self._in_order:
            if sum(self._sizes) + len(answers) + 1 != len(body):
                body = encode_json(answers)
        else:
            # With ids of several lengths, or in another order.
            self._sizes = [_AROUND + len(str(answer.id)) + len(answer.result) for answer in answers]
            body = encode_json(answers)
        self._count()
        origins = self._give() if UNTOLD in self._cache_results else {}
        shown = b""
        if self._admission.caller.shows:
            names = sorted({CACHE_RESULTS[cached] for cached in self._cache_results or (self._plans[0].cache,)})
            upstreams = {*origins.values(), self._upstream.name} if self._upstream else {*origins.values()}
            shown = self._admission.pipeline.shown(", ".join(sorted(upstreams)), ", ".join(names))
        self._send(body, shown)

    def _give(self) -> dict[int, str]:
        """Note that the team has had what others' calls brought; the upstreams that it is shown, by place."""
        team, give = self._admission.team, self._admission.resolver.give
        self._origins = {
            place: give(known, team)
            for place, known in self._known.items()
            if isinstance(known, Kept) and self._cache_results[place] == UNTOLD
        }
        return self._origins

    def _count(self) -> None:
        counted = self._admission.context.outbox.counted
        if self._uniform is not None:
            plan, count = self._plans[0], len(self._plans)
            if not plan.counted:
                plan.counted = True
                counted.append(plan)
            plan.counts[plan.cache] += count
            plan.together += count - 1
        else:
            for plan, cached in zip(self._plans, self._cache_results, strict=True):
                if not plan.counted:
                    plan.counted = True
                    counted.append(plan)
                plan.counts[cached] += 1
                plan.together += 1
            self._plans[0].together -= 1

    def _joined(self, answers: list[_BatchAnswer]) -> bytes:
        """The answers to all calls, in their order: those that were sent, and those that were known."""
        results: list[Raw] = [ABSENT] * len(self._calls)
        places = _others(list(range(len(results))), self._known)
        for place, answer in zip(places, answers, strict=True):
            results[place] = answer.result
        for place, known in self._known.items():
            results[place] = known.result if isinstance(known, Kept) else results[known]
        bodies = [
            encode_json(Result("2.0", call.id, each))  # type: ignore[arg-type] # no notifications here
            for call, each in zip(self._calls, results, strict=True)
        ]
        self._sizes = list(map(len, bodies))
        return b"[%b]" % b",".join(bodies)

    def record(self, _journal: Journal, at: bytes, now: float) -> bytes:
        """What is written down of it, put together from parts that are encoded already."""
        admission, upstream, plans = self._admission, self._upstream, tuple(self._plans)
        here = upstream.record if upstream is not None else NO_UPSTREAM
        micros = floor((now - self._started) * 1e6)
        admission.durations.append(micros)
        if self._uniform is not None:
            # They went one way, so it is recorded once, for all of them.
            details, way, cache = pack_sizes(self._sizes), here, plans[0].cache
        else:
            details, way, cache = self._details(here), NO_UPSTREAM, BYPASS
        return b"".join(
            (
                at,
                admission.subjects.get(plans) or admission.subject(plans),
                micros.to_bytes(4, "big"),
                details,
                _number(UINT32, len(self._body)),
                pack(self.request_id),
                way,
                admission.records[cache],
            )
        )

    def _details(self, here: bytes) -> bytes:
        """What is not counted of calls that went different ways."""
        ends = [
            (NO_UPSTREAM if cached in (HIT, COALESCED) else here) + _PACKED_RESULTS[cached]
            for cached in self._cache_results
        ]
        if UNTOLD in self._cache_results:
            for place, upstream in self._origins.items():
                ends[place] = at_first_attempt(upstream) + _PACKED_RESULTS[UNTOLD]
        sizes = self._sizes
        parts = [
            b"%b%b%b" % (_DETAIL, size.to_bytes(4, "big"), end) for size, end in zip(sizes, ends, strict=True)
        ]
        return _number16(_ARRAY16, len(sizes)) + b"".join(parts)

    # --- The slow path ---------------------------------------------------------------------------------

    def serve(
        self,
        calls: Sequence[Call],
        request: Request | None = None,
        refusals: Sequence[Refusal | None] = (),
    ) -> None:
        """Serve a batch; `request`: where the pipeline has let it in; `refusals`: why calls may not be made."""
        admission = self._admission
        pipeline, caller = admission.pipeline, admission.caller
        self._refusals = refusals
        self._calls = calls = pipeline.opened(calls, caller)
        if refusals:
            calls = [call for call, refusal in zip(calls, refusals, strict=True) if refusal is None]
        work = self._resolution(calls)
        work.charge = self._charge
        if request is not None:
            work.span = request.span
        self._slow = SlowState(Route(), request, work)
        admission.context.calls.add(self)
        work.start()

    def take_over(self, ended: Response | AttemptFailed | None = None) -> None:
        upstream = self._upstream
        if self._slow is not None or upstream is None:
            # A defect: the answer that it ended with could not be sent.
            return
        work = self._resolution(self._calls)
        self._slow = SlowState(Route(), None, work)
        first = FirstAttempt(self._sent, upstream, self._started, self._sent_on, ended)
        work.chunk(self._known).resume(first, self._ids, self._flights, self._validators)

    def _resolution(self, calls: Sequence[Call]) -> BatchResolution:
        admission, started = self._admission, self._started
        resolver, deadline = admission.resolver, started + admission.pipeline.request_seconds
        items, done = items_of(resolver, calls), self._resolved
        team, holder = admission.team, admission.caller.holder
        return BatchResolution(resolver, items, started, deadline, done, team=team, holder=holder)

    def _charge(self, calls: int) -> None:
        """Count calls to upstreams beyond one for each, or refuse them."""
        self._admission.charge(calls, self._slow.request if self._slow is not None else None)

    def _resolved(self, items: list[BatchItem]) -> None:
        """Answer with the results of all calls that were made."""
        admission, connection = self._admission, self.connection
        pipeline = admission.pipeline
        admission.context.calls.discard(self)
        request = self._request(Route())
        try:
            if self._refusals:
                answered = iter(items)
                items = [
                    next(answered) if refusal is None else BatchItem(call, None, UNSET, refusal)
                    for call, refusal in zip(self._calls, self._refusals, strict=True)
                ]
            answer = pipeline.render_batch(request, admission.network, admission.caller, items)
        except Exception as error:  # noqa: BLE001 - the border: no other code answers this caller
            answer = pipeline.failed(request, error)
        connection.answered(request, answer)

    def _let_go(self) -> None:
        if self._keys is not None:
            complete = self._admission.resolver.complete
            for key, flight, scope in zip(self._keys, self._flights, self._scopes, strict=True):
                complete(key, flight, scope, None)


def _cache_results(plans: list[MethodPlan], known: dict[int, Kept | int], team: str) -> list[int]:
    """What the cache does for each call."""
    results = [plan.cache for plan in plans]
    for place, found in known.items():
        results[place] = COALESCED if isinstance(found, int) else HIT if team in found.teams else UNTOLD
    return results


def _validators(
    resolver: Resolver, calls: Sequence[PlainCall], scopes: list[Scope]
) -> list[ReplyValidator | None]:
    """The validators of answers that show the tip."""
    return [
        resolver.validator(call.method, scope) if reveals_tip(scope) else None
        for call, scope in zip(calls, scopes, strict=True)
    ]


def _others(each: list[_T], known: dict[int, Kept | int]) -> list[_T]:
    """What belongs to the calls that are sent."""
    return [value for place, value in enumerate(each) if place not in known] if known else each


def _sorted_by(answers: list[_BatchAnswer], ids: list[int]) -> list[_BatchAnswer] | None:
    """Answers in the order of these ids; None where they are not the answers to them."""
    by_id = {answer.id: answer for answer in answers}
    return [by_id[each] for each in ids] if by_id.keys() == set(ids) else None


def start_batch(  # noqa: C901 - as `ServedCall.start`
    connection: CallerSide, admission: Admission, body: bytes, request_id: bytes
) -> bool:
    """Send a batch, or answer it from the cache; False: nothing was done, it needs the slow path."""
    # -0 is the one integer that is not written back as it came. To look for a number is much quicker.
    if _MINUS in body and b"-0" in body:
        return False
    try:
        calls = _read_batch(body)
    except UNREADABLE:
        return False
    if not 1 < len(calls) <= min(admission.resolver.batch_calls, admission.pipeline.max_calls):
        return False
    context, exchange = admission.context, admission.exchange
    now = context.now()
    view = exchange.view()
    plan = admission.plans.get(calls[0].method) or admission.plan(calls[0].method)
    if plan is None or now >= view.believed_until:
        return False
    uniform = _uniform(calls, plan)
    plans = [plan] * len(calls) if uniform is not None else _plans(admission, calls)
    if plans is None:
        return False
    keys = _keys(calls, plans) if plan.key_prefix is not None else None
    known: dict[int, Kept | int] = {}
    sent = calls
    if keys is not None:
        if not admission.resolver.flights.keys().isdisjoint(keys):
            # The slow path waits for others.
            return False
        known = _known(admission, keys, view.snapshot)
        sent = _others(calls, known)
        if len(sent) == 1:
            # Sent alone: not every upstream takes batches.
            return False
    upstream = None
    scopes: list[Scope] = []
    if sent:
        if uniform is not None:
            scopes = [plan.read(sent[0].params)] * len(sent)
            together = scopes[0]
        else:
            scopes = _scopes(sent, plans)
            together = _together(scopes)
        upstream = view.first(sent[0].method, together, now, exchange.random)
        if upstream is None or view.picky or (upstream.limit and not exchange.within_rate(upstream, now)):
            return False
        idle = upstream.pool.idle
        if not idle or not idle[-1].usable or upstream.in_flight * admission.share >= upstream.connections:
            return False
    if admission.metered:
        if not admission.take_limits(admission.limits, now, len(calls)):
            admission.find_limits()
            return False
        admission.taken_at = now
    # All is decided; from here on it is done.
    batch = ServedBatch(connection, admission, body, now, request_id)
    batch.start(calls, plans, known, None if known else uniform)
    if upstream is None:
        batch.answer([])
    else:
        batch.send(upstream, sent, scopes, keys, view.snapshot.stamp)
    return True


def _uniform(calls: list[PlainCall], plan: MethodPlan) -> _Uniform | None:
    """What calls have in common that are all of this method and about one block; None: they are not."""
    method, place, least, count = plan.method, plan.block, calls[0].id, len(calls)
    greatest = least + count - 1
    if place is None or least < 0 or greatest >= _EXACT:
        return None
    ids = list(range(least, greatest + 1))
    written: list[Raw] = []
    if [call.id for call in calls] != ids:
        return None
    try:
        block = calls[0].params[place]  # type: ignore[index]
        for call in calls:
            params = call.params
            if call.method != method or params[place] != block:  # type: ignore[index]
                return None
            written += params  # type: ignore[arg-type] # a list, or there is no place in it
    except (LookupError, TypeError):
        # Without the block, by name, or without parameters.
        return None
    digits, most = len(str(least)), len(str(greatest))
    around = _AROUND + digits if digits == most else 0
    digits = count * digits if digits == most else sum([len(str(number)) for number in ids])
    # A comma between calls and none behind the last, as in a list of parameters; and two brackets.
    size = len(b"".join(written)) + len(written) + count * (_AROUND_CALL + len(method)) + digits + 1
    return _Uniform(ids, size, around)


def _plans(admission: Admission, calls: list[PlainCall]) -> list[MethodPlan] | None:
    """What the methods mean; None: not all calls can take the fast path."""
    known = admission.plans.get
    plans = [known(call.method) or admission.plan(call.method) for call in calls]
    if None in plans:
        return None
    for call in calls:
        if call.params is None:
            call.params = []
    return cast("list[MethodPlan]", plans)


def _keys(calls: list[PlainCall], plans: list[MethodPlan]) -> list[bytes]:
    """What makes calls equal to others, on a network where answers are shared."""
    return [
        # As `key_of` makes it, only quicker: most have their parameters in a list.
        plan.key_prefix + b"\0".join(call.params)  # type: ignore[operator]
        if call.params and type(call.params) is list
        else key_of(call)
        for call, plan in zip(calls, plans, strict=True)
    ]


def _known(admission: Admission, keys: list[bytes], snapshot: Snapshot) -> dict[int, Kept | int]:
    """Places of calls that need not be sent: answers from the cache, and places of equal calls in the batch."""
    known: dict[int, Kept | int] = {}
    cache = admission.resolver.cache
    if cache is not None and cache.holds_any(keys):
        for place, key in enumerate(keys):
            reply = cache.get(key, snapshot)
            if reply is not None:
                known[place] = reply
    if len(set(keys)) != len(keys):
        first: dict[bytes, int] = {}
        for place, key in enumerate(keys):
            if first.setdefault(key, place) != place and place not in known:
                known[place] = first[key]
    return known


def _scopes(calls: list[PlainCall], plans: list[MethodPlan]) -> list[Scope]:
    """Which blocks the calls refer to."""
    by_method = {plan.method: plan for plan in plans}
    return [by_method[call.method].read(call.params) for call in calls]


def _together(scopes: list[Scope]) -> Scope:
    """What one upstream needs for all of them."""
    first = scopes[0]
    if scopes.count(first) == len(scopes):
        return first
    numbers = [scope.number for scope in scopes if scope.number is not None]
    oldest = [scope.oldest for scope in scopes if scope.state and scope.oldest is not None]
    return Scope(
        _NEVER,
        any(scope.tip for scope in scopes),
        max(numbers, default=None),
        min(oldest, default=None),
        state=bool(oldest),
    )
