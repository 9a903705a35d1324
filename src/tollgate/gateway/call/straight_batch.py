"""A straight batch: what the cache does not know goes to one upstream whole, and its answers come back in order.

As `straight.py`: decide everything, then act; whatever is unusual is left to `batch.py`. Answers are split
without being decoded. Ids that are distinct and exact in every language (below 2^53) travel unchanged; others
are numbered.
"""

from __future__ import annotations

import struct
from collections.abc import Coroutine, Sequence
from typing import Any, Literal, cast

import msgspec
from msgspec import Raw, Struct

from tollgate.chains.catalogue import Holds, Look, Scope
from tollgate.core import jsonrpc
from tollgate.core.entries import pack
from tollgate.core.shapes import ABSENT, PlainCall, Reply, Result
from tollgate.gateway.call.admission import Admission
from tollgate.gateway.call.batch import BegunBatch
from tollgate.gateway.call.cache import key_of
from tollgate.gateway.call.method_plan import BYPASS, COALESCED, HIT, WORDS, MethodPlan
from tollgate.gateway.call.resolver import Judge, SingleFlight
from tollgate.gateway.call.straight import (
    NIL,
    NO_UPSTREAM,
    RECORD,
    UINT32,
    UNREADABLE,
    Straight,
    encode_json,
    is_text,
)
from tollgate.gateway.http import response
from tollgate.gateway.http.connection import CallerConnection
from tollgate.gateway.messages import Answer, Request
from tollgate.gateway.upstream.connection import Response, ResponseFuture
from tollgate.gateway.upstream.exchange import FirstAttempt
from tollgate.gateway.upstream.failover import OutOfStep
from tollgate.gateway.upstream.health import Upstream
from tollgate.shm.upstream_status import Snapshot, Stamp

# Integers up to here are exact in JavaScript and in most nodes.
_EXACT = 1 << 53
_NEVER, _TIP, _NOWHERE = Holds.NEVER, Holds.TIP, Look.NOWHERE
# What an answer has around its id and its result.
_AROUND = len('{"jsonrpc":"2.0","id":,"result":}')
_ARRAY16 = 0xDC
# A detail of a record: no code, the bytes of the answer, then upstream, attempts and cache.
_DETAIL = bytes((0x95, NIL, UINT32))
_numbers = struct.Struct(">BI").pack
_count = struct.Struct(">BH").pack
_WORDS = [pack(word) for word in WORDS]
_read_batch = msgspec.json.Decoder(list[PlainCall]).decode


class _Answered(Struct, gc=False):
    """An answer to a call of a batch, as it goes back."""

    jsonrpc: Literal["2.0"]
    id: int
    result: Raw


_read_answers = msgspec.json.Decoder(list[_Answered]).decode


class StraightBatch(Straight):
    """One batch on its way."""

    __slots__ = (
        "_around",
        "_calls",
        "_flights",
        "_ids",
        "_judges",
        "_keys",
        "_known",
        "_places",
        "_plans",
        "_renumbered",
        "_scopes",
        "_sent",
        "_sizes",
        "_uniform",
        "_words",
    )

    def __init__(
        self,
        connection: CallerConnection,
        admission: Admission,
        calls: list[PlainCall],
        plans: list[MethodPlan],
        known: dict[int, Reply | int],
    ) -> None:
        super().__init__(connection)
        self._admission = admission
        self._calls = calls
        self._plans = plans
        self._known = known
        """Places of calls that are not sent, with their answer from the cache, or the place of an equal call."""
        self._places = [place for place in range(len(calls)) if place not in known] if known else None
        """Places of the calls that are sent; None: all of them."""
        self._uniform = not known and plans.count(plans[0]) == len(plans)
        """Whether all calls are of one method, and sent."""
        self._words: Sequence[int] = ()
        """What the cache does for each call; empty: the same for all, as their plan says."""
        if not self._uniform:
            self._words = [
                plan.cache if place not in known else HIT if isinstance(known[place], Reply) else COALESCED
                for place, plan in enumerate(plans)
            ]
        self._keys: list[bytes] | None = None
        self._flights: list[SingleFlight] = []
        self._scopes: list[Scope] = []
        self._judges: list[Judge | None] | None = None
        """What answers are judged by; None: none shows where the tip is."""
        self._sent = b""
        self._ids: list[int] = []
        """The ids that calls are sent under."""
        self._around = 0
        """Bytes around a result in an answer, where that is the same for all."""
        self._renumbered = False
        """Whether those are not the caller's own."""
        self._sizes: list[int] = []

    def sent_calls(self) -> list[PlainCall]:
        """The calls that need an upstream."""
        return self._calls if self._places is None else [self._calls[place] for place in self._places]

    def begin(self, body: bytes, now: float, rates: bytes, request_id: bytes) -> None:
        """Take over what every request has."""
        self._body, self._began, self._rates, self.request_id = body, now, rates, request_id
        self._connection.answering = self

    def send(
        self, upstream: Upstream, scopes: list[Scope], keys: list[bytes] | None, stamp: Stamp, now: float
    ) -> None:
        """Send what the cache does not know, and let others wait for the answers."""
        admission = self._admission
        context, exchange, resolver = admission.context, admission.exchange, admission.resolver
        calls = self.sent_calls()
        self._upstream = upstream
        self._scopes = scopes
        if keys is not None:
            self._keys = keys if self._places is None else [keys[place] for place in self._places]
            self._flights = [SingleFlight(stamp) for _ in self._keys]
            resolver.flights.update(zip(self._keys, self._flights, strict=True))
        if any(plan.reveals for plan in ([self._plans[0]] if self._uniform else self._plans)):
            self._judges = [
                resolver.judge(call.method, scope) if scope.holds is _TIP and scope.look is not _NOWHERE else None
                for call, scope in zip(calls, scopes, strict=True)
            ]
        ids = [call.id for call in calls]
        least, greatest = min(ids), max(ids)
        if len(set(ids)) == len(ids) and least >= 0 and greatest < _EXACT:
            self._ids, self._sent = ids, encode_json(calls)
            digits = len(str(least))
            # Most ids of a batch have as many digits.
            self._around = _AROUND + digits if digits == len(str(greatest)) else 0
        else:
            self._ids, self._sent = list(range(len(calls))), jsonrpc.encode_batch(calls)
            self._renumbered = True
        context.calls.add(self)
        if exchange.hedging and not context.hedging:
            context.sweep_later()
        if upstream.limit:
            exchange.use_rate(upstream, now)
        upstream.began()
        self._sent_on = upstream.pool.idle.pop()
        self._sent_on.send(self._sent, now + upstream.patience, self)

    # --- After it was sent -----------------------------------------------------------------------------

    def received(self, status: int, body: bytes) -> None:
        """Take the response of the upstream: plain results go straight back."""
        answers = self._read(status, body)
        upstream, admission = self._upstream, self._admission
        assert upstream is not None  # noqa: S101 - it was sent to one
        if answers is None or (self._judges is not None and not self._fit(self._judges, answers, upstream)):
            self.take_over(Response(status, body))
            return
        now = admission.context.now()
        upstream.answered(now - self._began, now)
        admission.context.calls.discard(self)
        self.answer(answers)
        if self._keys is not None:
            land = admission.resolver.land
            for key, flight, scope, answer in zip(self._keys, self._flights, self._scopes, answers, strict=True):
                land(key, flight, scope, Reply(answer.result))

    def _read(self, status: int, body: bytes) -> list[_Answered] | None:
        """The answers in the order of the calls that were sent; None where they are not all plain results."""
        if status != 200 or not (body.isascii() or is_text(body)):
            return None
        # With an error beside a result, however that may be written, it takes more than a look.
        if b"\\" in body or b'"error"' in body:
            return None
        try:
            answers = _read_answers(body)
        except UNREADABLE:
            return None
        if [answer.id for answer in answers] != self._ids:
            by_id = {answer.id: answer for answer in answers}
            if len(by_id) != len(answers) or by_id.keys() != set(self._ids):
                return None
            answers = [by_id[each] for each in self._ids]
        return answers

    def _fit(self, judges: list[Judge | None], answers: list[_Answered], upstream: Upstream) -> bool:
        """Whether no answer tells of an older chain than callers know."""
        try:
            for judge, answer in zip(judges, answers, strict=True):
                if judge is not None:
                    judge(Reply(answer.result))
        except OutOfStep:
            return False
        for judge in judges:
            if judge is not None:
                judge.note(upstream)
        return True

    def answer(self, answers: list[_Answered]) -> None:
        """Count the calls, and send all answers."""
        if self._places is None and not self._renumbered:
            body = encode_json(answers)
            around = self._around
            self._sizes = [(around or _AROUND + len(str(answer.id))) + len(answer.result) for answer in answers]
        else:
            results = self._in_place(answers)
            bodies = [
                encode_json(Result("2.0", call.id, each)) for call, each in zip(self._calls, results, strict=True)
            ]
            body = b"[%b]" % b",".join(bodies)
            self._sizes = list(map(len, bodies))
        self._count()
        shown = b""
        if self._admission.caller.shows:
            words = sorted({WORDS[word] for word in self._words or (self._plans[0].cache,)})
            shown = response.shown(self._upstream.name if self._upstream else "", ", ".join(words))
        self._send(body, shown)

    def _count(self) -> None:
        counted = self._admission.context.counted
        if self._uniform:
            plan, count = self._plans[0], len(self._plans)
            if not plan.counted:
                plan.counted = True
                counted.append(plan)
            plan.counts[plan.cache] += count
        else:
            for plan, word in zip(self._plans, self._words, strict=True):
                if not plan.counted:
                    plan.counted = True
                    counted.append(plan)
                plan.counts[word] += 1
        self._plans[0].requests += 1

    def _in_place(self, answers: list[_Answered]) -> list[Raw]:
        """The results in the order of all calls: those that were sent, and those that were known."""
        results: list[Raw] = [ABSENT] * len(self._calls)
        places = range(len(answers)) if self._places is None else self._places
        for place, answer in zip(places, answers, strict=True):
            results[place] = answer.result
        for place, known in self._known.items():
            results[place] = known.result if isinstance(known, Reply) else results[known]
        return results

    def record(self, at: bytes, now: float) -> bytes:
        """What is written down of it, put together from parts that are encoded already."""
        admission, upstream, plans = self._admission, self._upstream, tuple(self._plans)
        here = upstream.record if upstream is not None else NO_UPSTREAM
        if self._uniform:
            # The same around every size.
            end = here + _WORDS[plans[0].cache]
            details = (end + _DETAIL).join([size.to_bytes(4, "big") for size in self._sizes])
            details = b"%b%b%b" % (_DETAIL, details, end)
        else:
            ends = [(NO_UPSTREAM if word in (HIT, COALESCED) else here) + _WORDS[word] for word in self._words]
            details = b"".join(
                [
                    b"%b%b%b" % (_DETAIL, size.to_bytes(4, "big"), end)
                    for size, end in zip(self._sizes, ends, strict=True)
                ]
            )
        return b"".join(
            (
                RECORD,
                at,
                admission.subjects.get(plans) or admission.subject(plans),
                _numbers(UINT32, int((now - self._began) * 1e6)),
                _count(_ARRAY16, len(plans)),
                details,
                _numbers(UINT32, len(self._body)),
                pack(self.request_id),
                NO_UPSTREAM,
                admission.records[BYPASS],
            )
        )

    # --- The doors to the general way ------------------------------------------------------------------

    def _resumed(
        self, request: Request, upstream: Upstream, attempt: ResponseFuture
    ) -> Coroutine[Any, Any, Answer]:
        admission = self._admission
        first = FirstAttempt(upstream, attempt, self._began)
        begun = BegunBatch(
            self._calls, self._known, self._keys, self._flights, self._judges, self._sent, self._ids, first
        )
        return admission.pipeline.resume_batch(request, admission.resolver, begun)

    def _let_go(self) -> None:
        if self._keys is not None:
            land = self._admission.resolver.land
            for key, flight, scope in zip(self._keys, self._flights, self._scopes, strict=True):
                land(key, flight, scope, None)


def start_batch(connection: CallerConnection, admission: Admission, body: bytes, request_id: bytes) -> bool:
    """Send a batch, or answer it from the cache; False: nothing was done, it needs the general way."""
    read = _read(admission, body)
    context, exchange = admission.context, admission.exchange
    now = context.now()
    view = exchange.view(now)
    if read is None or view is None:
        return False
    calls, plans = read
    keys = _keys(calls, plans)
    known: dict[int, Reply | int] = {}
    if keys is not None:
        if not admission.resolver.flights.keys().isdisjoint(keys):
            # To wait for others takes a task.
            return False
        known = _known(admission, keys, view.snapshot)
    batch = StraightBatch(connection, admission, calls, plans, known)
    sent = batch.sent_calls()
    if len(sent) == 1:
        # Sent alone: not every upstream takes batches.
        return False
    upstream = None
    scopes: list[Scope] = []
    if sent:
        scopes = _scopes(sent, plans)
        upstream = view.choose(sent[0].method, _together(scopes), now, exchange.random)
        if upstream is None or view.picky or (upstream.limit and not exchange.within_rate(upstream, now)):
            return False
        idle = upstream.pool.idle
        if not idle or not idle[-1].usable:
            return False
    rates = b""
    if admission.limits:
        left = admission.take_limits(admission.limits, now, len(calls))
        if left is None:
            admission.find_limits()
            return False
        rates = admission.rates % left
    # Everything is decided: from here on it happens.
    batch.begin(body, now, rates, request_id)
    if upstream is None:
        batch.answer([])
    else:
        batch.send(upstream, scopes, keys, view.snapshot.stamp, now)
    return True


def _read(admission: Admission, body: bytes) -> tuple[list[PlainCall], list[MethodPlan]] | None:
    """The calls and what their methods mean; None: not all of them can go straight."""
    try:
        calls = _read_batch(body)
    except UNREADABLE:
        return None
    if not 1 < len(calls) <= min(admission.resolver.batch_calls, admission.pipeline.max_calls):
        return None
    known = admission.plans.get
    plans = [known(call.method) or admission.plan(call.method) for call in calls]
    if None in plans:
        return None
    if None in [call.params for call in calls]:
        for call in calls:
            call.params = call.params or []
    return calls, cast("list[MethodPlan]", plans)


def _keys(calls: list[PlainCall], plans: list[MethodPlan]) -> list[bytes] | None:
    """What makes calls equal to others; None where nothing is shared on this network."""
    if plans[0].key_prefix is None:
        return None
    return [
        # As `key_of` makes it, only quicker: most have their parameters in a list.
        plan.key_prefix + b"\0".join(call.params)  # type: ignore[operator]
        if call.params and type(call.params) is list
        else key_of(call)
        for call, plan in zip(calls, plans, strict=True)
    ]


def _known(admission: Admission, keys: list[bytes], snapshot: Snapshot) -> dict[int, Reply | int]:
    """Places of calls that need not be sent: answers from the cache, and places of equal calls in the batch."""
    known: dict[int, Reply | int] = {}
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
    """What the calls ask about; most batches are of one method about one block."""
    plan = plans[0]
    if plan.block is not None and plans.count(plan) == len(plans):
        try:
            blocks = [call.params[plan.block] for call in calls]  # type: ignore[index]
        except (IndexError, KeyError):
            pass
        else:
            # A byte between them that no JSON has: otherwise 11, 1, 111 would be 11, 11, 11.
            if b"\0".join(blocks) == b"\0".join([blocks[0]] * len(blocks)):
                return [plan.read(calls[0].params)] * len(calls)
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
