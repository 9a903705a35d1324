"""The answers to a batch: split by the cache and by what its calls need, sent on as batches, joined in its order.

Each call is a `BatchItem` that ends with a result. A call that an upstream could not answer within a batch is
retried elsewhere, alone. Knows no HTTP and records nothing.
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


class BatchItem(Struct, gc=False):
    """One call of a batch on its way."""

    call: Call
    key: bytes | None
    trace: Trace = _UNSET
    """May be that of others, too: they went the same way."""
    result: Resolved | None = None
    scope: Scope = NOTHING_KNOWN
    judge: Judge | None = None


async def resolve_many(
    resolver: Resolver,
    calls: Sequence[Call],
    deadline: float,
    charge: Charge | None = None,
    span: Span | None = None,
) -> list[BatchItem]:
    """Get the answers to a batch, in its order. `charge` counts upstream calls beyond one for each."""
    items = [BatchItem(call, resolver.key(call)) for call in calls]
    together, alone = _sorted(resolver, items)
    # One call is sent as one: not every upstream takes batches.
    parts: list[Coroutine[Any, Any, None]] = [
        _Chunk(resolver, chunk, deadline, span=span).run()
        if len(chunk) > 1
        else _resolve_alone(resolver, chunk[0], deadline, charge, span)
        for chunk in _chunks(resolver, together)
    ]
    # After the chunks, whose calls they may join.
    parts += [_resolve_alone(resolver, item, deadline, charge, span) for item in alone]
    if len(parts) == 1:
        await parts[0]
    elif parts:
        async with asyncio.TaskGroup() as group:
            for part in parts:
                group.create_task(part)
    return items


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


async def resume_many(resolver: Resolver, begun: BegunBatch, deadline: float) -> list[BatchItem]:
    """Get the answers to a batch that was begun, in its order."""
    items = [BatchItem(call, resolver.key(call)) for call in begun.calls]
    for place, known in begun.known.items():
        if isinstance(known, Reply):
            items[place].result, items[place].trace = known, _HIT
    sent = [each for place, each in enumerate(items) if place not in begun.known]
    await _Chunk(resolver, sent, deadline, begun).run()
    for place, known in begun.known.items():
        if isinstance(known, int):
            items[place].result, items[place].trace = items[known].result, _COALESCED
    return items


def _sorted(resolver: Resolver, items: list[BatchItem]) -> tuple[list[BatchItem], list[BatchItem]]:
    """Answer from memory what can be; what is left may be sent together, or must be sent alone."""
    together: list[BatchItem] = []
    alone: list[BatchItem] = []
    seen: set[bytes] = set()
    stamp = resolver.stamp()
    for each in items:
        key = each.key
        if key is None:
            (alone if each.call.method in APART else together).append(each)
            continue
        result = resolver.recall(key)
        if result is not None:
            each.result, each.trace = result, _HIT
        elif each.call.method in APART or key in seen or resolver.flight(key, stamp) is not None:
            alone.append(each)
        else:
            together.append(each)
            seen.add(key)
    return together, alone


def _chunks(resolver: Resolver, items: list[BatchItem]) -> list[list[BatchItem]]:
    """Batches for upstreams: of calls that the same ones accept, reads apart from the rest."""
    size, repeatable = resolver.batch_calls, resolver.repeatable
    likes = {
        method: (method in repeatable, *resolver.exchange.takers(method))
        for method in {each.call.method for each in items}
    }
    if len(set(likes.values())) == 1:
        return [items[start : start + size] for start in range(0, len(items), size)]
    groups: dict[tuple[bool, ...], list[BatchItem]] = {}
    for each in items:
        groups.setdefault(likes[each.call.method], []).append(each)
    return [group[start : start + size] for group in groups.values() for start in range(0, len(group), size)]


async def _resolve_alone(
    resolver: Resolver, item: BatchItem, deadline: float, charge: Charge | None, span: Span | None
) -> None:
    item.trace = Trace()
    item.trace.charge = charge
    item.trace.span = span
    try:
        item.result = await resolver.resolve(item.call, item.key, deadline, item.trace)
    except Refusal as refusal:
        item.result = refusal


class _Chunk:
    """Calls that are sent to one upstream at once."""

    def __init__(
        self,
        resolver: Resolver,
        items: list[BatchItem],
        deadline: float,
        begun: BegunBatch | None = None,
        span: Span | None = None,
    ) -> None:
        self._resolver = resolver
        self._begun = begun
        """Set where they were sent already."""
        self._deadline = deadline
        self._items = items
        self._trace, self._missed = Trace(), Trace()
        """The way that all of them take, and that of those which the cache could have known."""
        self._missed.cache = "miss"
        self._trace.span = span
        self._plain = True
        """Whether results need no look at all."""

    async def run(self) -> None:
        """Send them, and let others share the answers."""
        resolver = self._resolver
        shared = [(each, each.key) for each in self._items if each.key is not None]
        if not shared:
            await self._send()
            return
        if self._begun is not None:
            flights = self._begun.flights
        else:
            stamp = resolver.stamp()
            flights = [resolver.lead(key, stamp) for _, key in shared]
        led = [(each, key, flight) for (each, key), flight in zip(shared, flights, strict=True)]
        try:
            await self._send()
        finally:
            for each, key, mine in led:
                resolver.land(key, mine, each.scope, each.result)

    async def _send(self) -> None:
        exchange, items, trace = self._resolver.exchange, self._items, self._trace
        need = self._need()
        begun = self._begun
        ids: Sequence[int]
        if begun is None:
            body, ids, first = jsonrpc.encode_batch([each.call for each in items]), range(len(items)), None
        else:
            body, ids, first = begun.sent, begun.ids, begun.first
            trace.upstream, trace.attempts = first.upstream.name, 1
            for each, judge in zip(items, begun.judges or (), strict=False):
                each.judge = judge or each.judge
        try:
            outcome = await exchange.send_batch(body, ids, self._deadline, trace, need, first)
        except Refusal as refusal:
            for each in items:
                each.result = refusal
            return
        finally:
            self._missed.upstream, self._missed.attempts = trace.upstream, trace.attempts
            if not need.repeatable and any(each.judge.kind is Kind.WRITE for each in items if each.judge):
                exchange.row.nudge()
        again = self._take_over(outcome, need)
        if again:
            async with asyncio.TaskGroup() as group:
                for each, verdict in again:
                    group.create_task(self._retry_elsewhere(each, outcome.upstream, verdict))

    def _need(self) -> Need:
        """What the calls need of whoever answers them. Finds out who judges each, before they are sent."""
        resolver, trace = self._resolver, self._trace
        tip, oldest, number, repeatable = False, None, None, True
        before, method = BatchItem(self._items[0].call, None), ""
        for each in self._items:
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

    def _take_over(self, outcome: AttemptOutcome[Replies], need: Need) -> list[tuple[BatchItem, Verdict | None]]:
        """Take over the answers; those that are to be retried elsewhere, None: the answer must not be used."""
        assert outcome.answer is not None  # noqa: S101 - an outcome without a refusal has one
        again: list[tuple[BatchItem, Verdict | None]] = []
        usual = self._plain and outcome.answer.all_results
        for each, reply in zip(self._items, outcome.answer.items, strict=True):
            each.result = reply
            if usual:
                continue
            assert each.judge is not None  # noqa: S101 - found out before it was sent
            try:
                verdict = each.judge(reply)
            except OutOfStep:
                again.append((each, None))
                continue
            each.judge.note(outcome.upstream)
            if verdict is not Verdict.FINAL and need.repeatable:
                again.append((each, verdict))
        return again

    async def _retry_elsewhere(self, item: BatchItem, upstream: Upstream, verdict: Verdict | None) -> None:
        """Retry a call that an upstream could not answer; its error stands where no other answers."""
        resolver, before = self._resolver, item.trace
        # From here on it goes its own way.
        item.trace = trace = Trace()
        trace.upstream, trace.attempts, trace.cache = before.upstream, before.attempts, before.cache
        trace.span = self._trace.span
        if verdict is Verdict.QUOTA:
            resolver.exchange.spare(upstream)
        try:
            item.result = await resolver.fetch(
                item.call, item.scope, self._deadline, trace, [upstream] if verdict else []
            )
        except Refusal as refusal:
            if verdict is None or verdict is Verdict.QUOTA:
                item.result = refusal
            else:
                trace.upstream = upstream.name
