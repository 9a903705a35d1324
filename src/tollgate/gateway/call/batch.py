"""The answers to a batch: split by the cache and by what its calls need, sent on as batches, told in its order.

Each call is a `Question` that ends with something told. A call that an upstream could not answer within a batch is
asked again elsewhere, alone. Knows no HTTP and writes nothing down.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from msgspec import Struct

from tollgate.chains.catalogue import Kind, Scope
from tollgate.chains.faults import Verdict
from tollgate.core import jsonrpc
from tollgate.core.shapes import Call, Replies, Reply
from tollgate.errors import Refusal
from tollgate.gateway.call.resolver import APART, NOTHING_KNOWN, Judge, Resolved, Resolver, SingleFlight
from tollgate.gateway.messages import Trace
from tollgate.gateway.tracing import Span
from tollgate.gateway.upstream.choice import Need
from tollgate.gateway.upstream.exchange import FirstAttempt
from tollgate.gateway.upstream.failover import OutOfStep
from tollgate.gateway.upstream.health import Upstream
from tollgate.gateway.upstream.hedging import AttemptOutcome

Charge = Callable[[int], None]
_UNSET = Trace()
_HIT, _COALESCED = Trace(), Trace()
_HIT.cache, _COALESCED.cache = "hit", "coalesced"


class Question(Struct, gc=False):
    """One call of a batch on its way."""

    call: Call
    key: bytes | None
    trace: Trace = _UNSET
    """May be that of others, too: they went the same way."""
    told: Resolved | None = None
    scope: Scope = NOTHING_KNOWN
    judge: Judge | None = None


async def ask_many(
    resolver: Resolver,
    calls: Sequence[Call],
    deadline: float,
    charge: Charge | None = None,
    span: Span | None = None,
) -> list[Question]:
    """Get the answers to a batch, in its order. `charge` counts upstream calls beyond one for each."""
    questions = [Question(call, resolver.key(call)) for call in calls]
    together, alone = _sorted(resolver, questions)
    # One call is asked as one: not every upstream takes batches.
    parts: list[Coroutine[Any, Any, None]] = [
        _Chunk(resolver, chunk, deadline, span=span).ask()
        if len(chunk) > 1
        else _ask_alone(resolver, chunk[0], deadline, charge, span)
        for chunk in _chunks(resolver, together)
    ]
    # After the chunks, whose questions they may join.
    parts += [_ask_alone(resolver, question, deadline, charge, span) for question in alone]
    if len(parts) == 1:
        await parts[0]
    elif parts:
        async with asyncio.TaskGroup() as group:
            for part in parts:
                group.create_task(part)
    return questions


class BegunBatch(Struct, frozen=True):
    """A batch that left the straight way after it was sent."""

    calls: Sequence[Call]
    known: dict[int, Reply | int]
    """Places of calls that were not sent, with their answer from the cache, or the place of an equal call."""
    keys: Sequence[bytes] | None
    flights: Sequence[SingleFlight]
    judges: Sequence[Judge | None] | None
    """Of the calls that were sent, as are keys and flights."""
    sent: bytes
    ids: Sequence[int]
    """The ids that they were sent under."""
    first: FirstAttempt


async def resume_many(resolver: Resolver, begun: BegunBatch, deadline: float) -> list[Question]:
    """Get the answers to a batch that was begun, in its order."""
    questions = [Question(call, resolver.key(call)) for call in begun.calls]
    for place, known in begun.known.items():
        if isinstance(known, Reply):
            questions[place].told, questions[place].trace = known, _HIT
    sent = [each for place, each in enumerate(questions) if place not in begun.known]
    await _Chunk(resolver, sent, deadline, begun).ask()
    for place, known in begun.known.items():
        if isinstance(known, int):
            questions[place].told, questions[place].trace = questions[known].told, _COALESCED
    return questions


def _sorted(resolver: Resolver, questions: list[Question]) -> tuple[list[Question], list[Question]]:
    """Answer from memory what can be; what is left may be asked together, or must be asked alone."""
    together: list[Question] = []
    alone: list[Question] = []
    asked: set[bytes] = set()
    stamp = resolver.stamp()
    for each in questions:
        key = each.key
        if key is None:
            (alone if each.call.method in APART else together).append(each)
            continue
        told = resolver.recall(key)
        if told is not None:
            each.told, each.trace = told, _HIT
        elif each.call.method in APART or key in asked or resolver.flight(key, stamp) is not None:
            alone.append(each)
        else:
            together.append(each)
            asked.add(key)
    return together, alone


def _chunks(resolver: Resolver, questions: list[Question]) -> list[list[Question]]:
    """Batches for upstreams: of calls that the same ones may be asked, reads apart from what is none."""
    size, repeatable = resolver.batch_calls, resolver.repeatable
    likes = {
        method: (method in repeatable, *resolver.exchange.takers(method))
        for method in {each.call.method for each in questions}
    }
    if len(set(likes.values())) == 1:
        return [questions[start : start + size] for start in range(0, len(questions), size)]
    groups: dict[tuple[bool, ...], list[Question]] = {}
    for each in questions:
        groups.setdefault(likes[each.call.method], []).append(each)
    return [group[start : start + size] for group in groups.values() for start in range(0, len(group), size)]


async def _ask_alone(
    resolver: Resolver, question: Question, deadline: float, charge: Charge | None, span: Span | None
) -> None:
    question.trace = Trace()
    question.trace.charge = charge
    question.trace.span = span
    try:
        question.told = await resolver.resolve(question.call, question.key, deadline, question.trace)
    except Refusal as refusal:
        question.told = refusal


class _Chunk:
    """Calls that are asked of one upstream at once."""

    def __init__(
        self,
        resolver: Resolver,
        questions: list[Question],
        deadline: float,
        begun: BegunBatch | None = None,
        span: Span | None = None,
    ) -> None:
        self._resolver = resolver
        self._begun = begun
        """Set where they were sent already."""
        self._deadline = deadline
        self._questions = questions
        self._trace, self._missed = Trace(), Trace()
        """The way that all of them take, and that of those which the cache could have known."""
        self._missed.cache = "miss"
        self._trace.span = span
        self._plain = True
        """Whether results need no look at all."""

    async def ask(self) -> None:
        """Ask, and let others share what is answered."""
        resolver = self._resolver
        shared = [(each, each.key) for each in self._questions if each.key is not None]
        if not shared:
            await self._ask()
            return
        if self._begun is not None:
            flights = self._begun.flights
        else:
            stamp = resolver.stamp()
            flights = [resolver.lead(key, stamp) for _, key in shared]
        led = [(each, key, flight) for (each, key), flight in zip(shared, flights, strict=True)]
        try:
            await self._ask()
        finally:
            for each, key, mine in led:
                resolver.land(key, mine, each.scope, each.told)

    async def _ask(self) -> None:
        exchange, asked, trace = self._resolver.exchange, self._questions, self._trace
        need = self._need()
        begun = self._begun
        ids: Sequence[int]
        if begun is None:
            body, ids, first = jsonrpc.encode_batch([each.call for each in asked]), range(len(asked)), None
        else:
            body, ids, first = begun.sent, begun.ids, begun.first
            trace.upstream, trace.attempts = first.upstream.name, 1
            for each, judge in zip(asked, begun.judges or (), strict=False):
                each.judge = judge or each.judge
        try:
            outcome = await exchange.ask_batch(body, ids, self._deadline, trace, need, first)
        except Refusal as refusal:
            for each in asked:
                each.told = refusal
            return
        finally:
            self._missed.upstream, self._missed.attempts = trace.upstream, trace.attempts
            if not need.repeatable and any(each.judge.kind is Kind.WRITE for each in asked if each.judge):
                exchange.row.nudge()
        again = self._told(outcome, need)
        if again:
            async with asyncio.TaskGroup() as group:
                for each, verdict in again:
                    group.create_task(self._ask_elsewhere(each, outcome.upstream, verdict))

    def _need(self) -> Need:
        """What the calls need of whoever answers them. Finds out who judges each, before they are asked."""
        resolver, trace = self._resolver, self._trace
        tip, oldest, number, repeatable = False, None, None, True
        before, method = Question(self._questions[0].call, None), ""
        for each in self._questions:
            each.scope = scope = resolver.scope(each.call)
            if scope is before.scope and each.call.method == method and self._plain:
                # Another call about the same: most batches are made of these.
                each.judge, each.trace = before.judge, before.trace
                continue
            method = each.call.method
            judge = resolver.judge(method, scope)
            each.judge, each.trace = judge, self._missed if resolver.may_keep(method) else trace
            before = each
            self._plain = self._plain and judge.plain
            tip = tip or scope.tip
            if scope.state and scope.oldest is not None:
                oldest = scope.oldest if oldest is None else min(oldest, scope.oldest)
            if scope.number is not None:
                number = scope.number if number is None else max(number, scope.number)
            repeatable = repeatable and method in resolver.repeatable
        return Need(method, repeatable, tip, oldest, number=number)

    def _told(self, outcome: AttemptOutcome[Replies], need: Need) -> list[tuple[Question, Verdict | None]]:
        """Take over the answers; those that are to be asked again elsewhere, None: not fit to be told."""
        assert outcome.answer is not None  # noqa: S101 - an outcome without a refusal has one
        again: list[tuple[Question, Verdict | None]] = []
        usual = self._plain and outcome.answer.all_results
        for each, reply in zip(self._questions, outcome.answer.items, strict=True):
            each.told = reply
            if usual:
                continue
            assert each.judge is not None  # noqa: S101 - found out before it was asked
            try:
                verdict = each.judge(reply)
            except OutOfStep:
                again.append((each, None))
                continue
            each.judge.note(outcome.upstream)
            if verdict is not Verdict.FINAL and need.repeatable:
                again.append((each, verdict))
        return again

    async def _ask_elsewhere(self, question: Question, upstream: Upstream, verdict: Verdict | None) -> None:
        """Ask again for a call that an upstream could not answer; its words stand where nobody knows better."""
        resolver, before = self._resolver, question.trace
        # From here on it goes its own way.
        question.trace = trace = Trace()
        trace.upstream, trace.attempts, trace.cache = before.upstream, before.attempts, before.cache
        trace.span = self._trace.span
        if verdict is Verdict.QUOTA:
            resolver.exchange.spare(upstream)
        try:
            question.told = await resolver.ask(
                question.call, question.scope, self._deadline, trace, [upstream] if verdict else []
            )
        except Refusal as refusal:
            if verdict is None or verdict is Verdict.QUOTA:
                question.told = refusal
            else:
                trace.upstream = upstream.name
