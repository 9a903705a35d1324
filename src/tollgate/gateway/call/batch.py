"""The answers to a batch: split by the cache and by what its calls need, sent on as batches, joined in its order.

Each call is a `BatchItem` that ends with a result. A call that an upstream could not answer within a batch is
retried elsewhere, alone. Knows no HTTP and records nothing. By plain calls: the last result calls `done`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from msgspec import Struct

from tollgate.chains.catalogue import Kind, Scope
from tollgate.chains.faults import Verdict
from tollgate.core import jsonrpc
from tollgate.core.shapes import Call, Replies, Reply
from tollgate.errors import Overloaded, Refusal
from tollgate.gateway.call.resolver import (
    APART,
    NOTHING_KNOWN,
    STOPPING,
    ReplyValidator,
    Resolution,
    Resolved,
    Resolver,
    SingleFlight,
    Work,
    fulfil,
)
from tollgate.gateway.messages import Trace
from tollgate.gateway.tracing import Span
from tollgate.gateway.upstream.attempts import AttemptOutcome, Attempts
from tollgate.gateway.upstream.choice import Requirements
from tollgate.gateway.upstream.failover import OutOfStep
from tollgate.gateway.upstream.health import Upstream

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
    validator: ReplyValidator | None = None


class BegunBatch(Struct, frozen=True):
    """A batch that left the straight way after it was sent."""

    calls: Sequence[Call]
    known: dict[int, Reply | int]
    """Places of calls that were not sent, with their answer from the cache, or the place of an equal call."""
    flights: Sequence[SingleFlight]
    validators: Sequence[ReplyValidator | None] | None
    """Of the calls that were sent, as are the flights."""
    sent: bytes
    ids: Sequence[int]
    """The ids that they were sent under."""
    upstream: str
    resume: Callable[[Attempts[Replies]], None]
    """Goes on with the attempt that was begun."""


class BatchResolution:
    """A batch on its way to its answers. `done` is called once, with its calls in their order."""

    def __init__(
        self,
        resolver: Resolver,
        calls: Sequence[Call],
        deadline: float,
        done: Callable[[list[BatchItem]], None],
        charge: Charge | None = None,
        span: Span | None = None,
    ) -> None:
        """`charge` counts upstream calls beyond one for each."""
        self._resolver = resolver
        self._items = [BatchItem(call, resolver.key(call)) for call in calls]
        self._deadline = deadline
        self._done: Callable[[list[BatchItem]], None] | None = done
        self._charge = charge
        self._span = span
        self._parts: list[Work] = []
        self._left = 0

    def start(self) -> None:
        """Answer from memory what can be, and call upstreams for the rest."""
        resolver, deadline = self._resolver, self._deadline
        together, alone = _sorted(resolver, self._items)
        parts: list[_Chunk | Resolution] = []
        for chunk in _chunks(resolver, together):
            if len(chunk) > 1:
                parts.append(_Chunk(resolver, chunk, deadline, self._ended, span=self._span))
            else:
                # One call is sent as one: not every upstream takes batches.
                parts.append(self._alone(chunk[0]))
        # After the chunks, whose calls they may join.
        parts += [self._alone(item) for item in alone]
        self._parts, self._left = [*parts], len(parts) + 1
        for part in parts:
            part.start()
        self._ended()

    def resume(self, begun: BegunBatch) -> None:
        """Go on with a batch that was begun."""
        items = self._items
        for place, known in begun.known.items():
            if isinstance(known, Reply):
                items[place].result, items[place].trace = known, _HIT
        sent = [each for place, each in enumerate(items) if place not in begun.known]

        def ended() -> None:
            for place, known in begun.known.items():
                if isinstance(known, int):
                    items[place].result, items[place].trace = items[known].result, _COALESCED
            self._ended()

        chunk = _Chunk(self._resolver, sent, self._deadline, ended, begun)
        self._parts, self._left = [chunk], 1
        chunk.start()

    def _alone(self, item: BatchItem) -> Resolution:
        item.trace = trace = Trace()
        trace.charge, trace.span = self._charge, self._span

        def ended(result: Resolved) -> None:
            item.result = result
            self._ended()

        return Resolution(self._resolver, item.call, item.key, self._deadline, trace, ended)

    def _ended(self) -> None:
        self._left -= 1
        if not self._left and self._done is not None:
            done, self._done = self._done, None
            done(self._items)

    def cancel(self) -> None:
        """End it with refusals: the service stops."""
        for part in self._parts:
            part.cancel()


async def resolve_many(
    resolver: Resolver,
    calls: Sequence[Call],
    deadline: float,
    charge: Charge | None = None,
    span: Span | None = None,
) -> list[BatchItem]:
    """Get the answers to a batch, in its order."""
    future: asyncio.Future[list[BatchItem]] = resolver.loop.create_future()
    batch = BatchResolution(resolver, calls, deadline, partial(fulfil, future), charge, span)
    batch.start()
    try:
        return await future
    except asyncio.CancelledError:
        batch.cancel()
        raise


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


class _Chunk:
    """Calls that are sent to one upstream at once."""

    def __init__(
        self,
        resolver: Resolver,
        items: list[BatchItem],
        deadline: float,
        done: Callable[[], None],
        begun: BegunBatch | None = None,
        span: Span | None = None,
    ) -> None:
        self._resolver = resolver
        self._begun = begun
        """Set where they were sent already."""
        self._deadline = deadline
        self._done = done
        self._items = items
        self._led: list[tuple[BatchItem, bytes, SingleFlight]] = []
        self._trace, self._missed = Trace(), Trace()
        """The way that all of them take, and that of those which the cache could have known."""
        self._missed.cache = "miss"
        self._trace.span = span
        self._plain = True
        """Whether results need no look at all."""
        self._work: list[Work] = []
        self._left = 0
        """Calls that are retried elsewhere."""
        self._repeatable = True
        self._is_over = False

    def start(self) -> None:
        """Send them, and let others share the answers."""
        resolver, items, trace, begun = self._resolver, self._items, self._trace, self._begun
        shared = [(each, each.key) for each in items if each.key is not None]
        if shared:
            stamp = resolver.stamp()
            flights = begun.flights if begun is not None else [resolver.lead(key, stamp) for _, key in shared]
            self._led = [(each, key, flight) for (each, key), flight in zip(shared, flights, strict=True)]
        requirements = self._requirements()
        ids: Sequence[int]
        if begun is None:
            body, ids = jsonrpc.encode_batch([each.call for each in items]), range(len(items))
        else:
            body, ids = begun.sent, begun.ids
            trace.upstream, trace.attempts = begun.upstream, 1
            for each, validator in zip(items, begun.validators or (), strict=False):
                each.validator = validator or each.validator
        attempts: Attempts[Replies] = Attempts(
            resolver.exchange,
            requirements,
            self._deadline,
            body,
            partial(jsonrpc.decode_batch, ids=ids),
            None,
            trace,
            self._answered,
        )
        self._work = [attempts]
        if begun is None:
            attempts.start()
        else:
            begun.resume(attempts)

    def _answered(self, outcome: AttemptOutcome[Replies] | Refusal) -> None:
        exchange, items, trace = self._resolver.exchange, self._items, self._trace
        self._missed.upstream, self._missed.attempts = trace.upstream, trace.attempts
        if not self._repeatable and any(each.validator.kind is Kind.WRITE for each in items if each.validator):
            exchange.status.request_probe()
        if isinstance(outcome, Refusal):
            for each in items:
                each.result = outcome
            self._finish()
            return
        again = self._take_over(outcome)
        if not again:
            self._finish()
            return
        self._left = len(again)
        retries = [self._retry_elsewhere(each, outcome.upstream, verdict) for each, verdict in again]
        self._work = [retry for retry, _ in retries]
        for retry, tried in retries:
            retry.fetch(tried)

    def _finish(self) -> None:
        self._is_over = True
        for each, key, mine in self._led:
            self._resolver.complete(key, mine, each.scope, each.result)
        self._done()

    def cancel(self) -> None:
        """End it with refusals: the service stops."""
        if self._is_over:
            return
        retried = self._left > 0
        for each in self._work:
            each.cancel()
        if not retried:
            for item in self._items:
                item.result = Overloaded(STOPPING)
            self._finish()

    def _requirements(self) -> Requirements:
        """What the calls need of whoever answers them. Finds out who judges each, before they are sent."""
        resolver, trace = self._resolver, self._trace
        tip, oldest, number, repeatable = False, None, None, True
        before, method = BatchItem(self._items[0].call, None), ""
        for each in self._items:
            each.scope = scope = resolver.scope(each.call)
            if scope is before.scope and each.call.method == method and self._plain:
                # Another call about the same: most batches are made of these.
                each.validator, each.trace = before.validator, before.trace
                continue
            method = each.call.method
            validator = resolver.validator(method, scope)
            each.validator, each.trace = validator, self._missed if resolver.may_keep(method) else trace
            before = each
            self._plain = self._plain and validator.plain
            tip = tip or scope.tip
            if scope.state and scope.oldest is not None:
                oldest = scope.oldest if oldest is None else min(oldest, scope.oldest)
            if scope.number is not None:
                number = scope.number if number is None else max(number, scope.number)
            repeatable = repeatable and method in resolver.repeatable
        self._repeatable = repeatable
        return Requirements(method, repeatable, tip, oldest, number=number)

    def _take_over(self, outcome: AttemptOutcome[Replies]) -> list[tuple[BatchItem, Verdict | None]]:
        """Take over the answers; those that are to be retried elsewhere, None: the answer must not be used."""
        replies = outcome.answer
        again: list[tuple[BatchItem, Verdict | None]] = []
        usual = self._plain and replies.all_results
        for each, reply in zip(self._items, replies.items, strict=True):
            each.result = reply
            if usual:
                continue
            assert each.validator is not None  # noqa: S101 - found out before it was sent
            try:
                verdict = each.validator(reply)
            except OutOfStep:
                again.append((each, None))
                continue
            each.validator.note(outcome.upstream)
            if verdict is not Verdict.FINAL and self._repeatable:
                again.append((each, verdict))
        return again

    def _retry_elsewhere(
        self, item: BatchItem, upstream: Upstream, verdict: Verdict | None
    ) -> tuple[Resolution, list[Upstream]]:
        """Retry a call that an upstream could not answer; its error stands where no other answers."""
        resolver, before = self._resolver, item.trace
        # From here on it goes its own way.
        item.trace = trace = Trace()
        trace.upstream, trace.attempts, trace.cache = before.upstream, before.attempts, before.cache
        trace.span = self._trace.span
        if verdict is Verdict.QUOTA:
            resolver.exchange.cool_down(upstream)

        def ended(result: Resolved) -> None:
            if isinstance(result, Refusal) and verdict is not None and verdict is not Verdict.QUOTA:
                trace.upstream = upstream.name
            else:
                item.result = result
            self._left -= 1
            if not self._left:
                self._finish()

        return Resolution(resolver, item.call, None, self._deadline, trace, ended), [upstream] if verdict else []
