"""A batch on its way to its answers: split by the cache and by what its calls require, sent in chunks, put in
order.

Each call is a `BatchItem` that ends with a result. A call that an upstream could not answer within a batch is
retried elsewhere, alone. Knows no caller and no HTTP. By plain calls: the last result calls `done`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from msgspec import Struct

from tollgate.api.logs import AttemptVerdict
from tollgate.chains.catalogue import Kind, Scope
from tollgate.chains.faults import Verdict
from tollgate.core import jsonrpc
from tollgate.core.shapes import Call, Replies, Reply
from tollgate.errors import Overloaded, Refusal
from tollgate.gateway.call.reply_validator import ReplyValidator
from tollgate.gateway.call.resolution import Cancellable, Resolution, fulfil
from tollgate.gateway.call.resolver import APART, NOTHING_KNOWN, STOPPING, Resolved, Resolver, SingleFlight
from tollgate.gateway.messages import Route
from tollgate.gateway.tracing import Span
from tollgate.gateway.upstream.attempts import AttemptOutcome, Attempts, FirstAttempt, error_verdict
from tollgate.gateway.upstream.choice import Requirements
from tollgate.gateway.upstream.failover import OutOfStep
from tollgate.gateway.upstream.health import Upstream

Charge = Callable[[int], None]
_UNSET = Route()
_USED = frozenset({AttemptVerdict.ANSWERED, AttemptVerdict.HEDGE_WON})
_HIT, _COALESCED = Route(), Route()
_HIT.cache, _COALESCED.cache = "hit", "coalesced"


class BatchItem(Struct, gc=False):
    """One call of a batch on its way."""

    call: Call
    key: bytes | None
    route: Route = _UNSET
    """Shared by calls that went the same way."""
    result: Resolved | None = None
    scope: Scope = NOTHING_KNOWN
    validator: ReplyValidator | None = None


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
        self._parts: list[Cancellable] = []
        self._left = 0

    def start(self) -> None:
        """Answer from memory what can be, and call upstreams for the rest."""
        resolver, deadline = self._resolver, self._deadline
        together, alone = _sorted(resolver, self._items)
        parts: list[Chunk | Resolution] = []
        for items in _chunks(resolver, together):
            if len(items) > 1:
                parts.append(Chunk(resolver, items, deadline, self._ended, self._span))
            else:
                # One call is sent as one: not every upstream takes batches.
                parts.append(self._alone(items[0]))
        # After the chunks, whose calls they may join.
        parts += [self._alone(item) for item in alone]
        self._parts, self._left = [*parts], len(parts) + 1
        for part in parts:
            part.start()
        self._ended()

    def chunk(self, known: Mapping[int, Reply | int]) -> Chunk:
        """All calls but these as one chunk: they have an answer from the cache, or are equal to another one."""
        items = self._items
        for place, found in known.items():
            if isinstance(found, Reply):
                items[place].result, items[place].route = found, _HIT

        def ended() -> None:
            for place, found in known.items():
                if isinstance(found, int):
                    items[place].result, items[place].route = items[found].result, _COALESCED
            self._ended()

        sent = [item for place, item in enumerate(items) if place not in known]
        chunk = Chunk(self._resolver, sent, self._deadline, ended)
        self._parts, self._left = [chunk], 1
        return chunk

    def _alone(self, item: BatchItem) -> Resolution:
        item.route = route = Route()
        route.charge, route.span = self._charge, self._span

        def ended(result: Resolved) -> None:
            item.result = result
            self._ended()

        return Resolution(self._resolver, item.call, item.key, self._deadline, route, ended)

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
            each.result, each.route = result, _HIT
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


class Chunk:
    """Calls that are sent to one upstream at once."""

    def __init__(
        self,
        resolver: Resolver,
        items: list[BatchItem],
        deadline: float,
        done: Callable[[], None],
        span: Span | None = None,
    ) -> None:
        self._resolver = resolver
        self._deadline = deadline
        self._done = done
        self._items = items
        self._led: list[tuple[BatchItem, bytes, SingleFlight]] = []
        self._route, self._missed = Route(), Route()
        """The way that all of them take, and that of those which the cache could have known."""
        self._missed.cache = "miss"
        self._route.span = span
        self._plain = True
        """Whether results need no look at all."""
        self._work: list[Cancellable] = []
        self._left = 0
        """Calls that are retried elsewhere."""
        self._repeatable = True
        self._is_over = False

    def start(self) -> None:
        """Send them, and let others share the answers."""
        resolver, items = self._resolver, self._items
        stamp = resolver.stamp()
        self._lead([resolver.lead(each.key, stamp) for each in items if each.key is not None])
        body = jsonrpc.encode_batch([each.call for each in items])
        self._attempts(body, range(len(items)), self._requirements()).start()

    def resume(
        self,
        first: FirstAttempt,
        ids: Sequence[int],
        flights: Sequence[SingleFlight],
        validators: Sequence[ReplyValidator | None],
    ) -> None:
        """Go on with calls that the fast path has sent under these ids."""
        self._lead(flights)
        requirements = self._requirements()
        for each, validator in zip(self._items, validators, strict=False):
            each.validator = validator or each.validator
        self._attempts(first.body, ids, requirements).resume(first)

    def _lead(self, flights: Sequence[SingleFlight]) -> None:
        shared = [(each, each.key) for each in self._items if each.key is not None]
        self._led = [(each, key, flight) for (each, key), flight in zip(shared, flights, strict=True)]

    def _attempts(self, body: bytes, ids: Sequence[int], requirements: Requirements) -> Attempts[Replies]:
        attempts: Attempts[Replies] = Attempts(
            self._resolver.exchange,
            requirements,
            self._deadline,
            body,
            partial(jsonrpc.decode_batch, ids=ids),
            None,
            self._route,
            self._answered,
        )
        self._work = [attempts]
        return attempts

    def _answered(self, outcome: AttemptOutcome[Replies] | Refusal) -> None:
        exchange, items, route = self._resolver.exchange, self._items, self._route
        missed = self._missed
        missed.upstream, missed.attempts, missed.trace = route.upstream, route.attempts, route.trace
        if not self._repeatable and any(each.validator.kind is Kind.WRITE for each in items if each.validator):
            exchange.status.request_probe()
        if isinstance(outcome, Refusal):
            for each in items:
                each.result = outcome
            self._finish()
            return
        again = self._take(outcome)
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
        """What the calls require of their upstream. Makes their validators, before they are sent."""
        resolver, route = self._resolver, self._route
        tip, oldest, number, repeatable = False, None, None, True
        before, method = BatchItem(self._items[0].call, None), ""
        for each in self._items:
            each.scope = scope = resolver.scope(each.call)
            if scope is before.scope and each.call.method == method and self._plain:
                # Another call about the same: most batches are made of these.
                each.validator, each.route = before.validator, before.route
                continue
            method = each.call.method
            validator = resolver.validator(method, scope)
            each.validator, each.route = validator, self._missed if resolver.may_keep(method) else route
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

    def _take(self, outcome: AttemptOutcome[Replies]) -> list[tuple[BatchItem, Verdict | None]]:
        """Take the answers; those that are to be retried elsewhere. No verdict: the answer must not be used."""
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
        """Retry a call that an upstream could not answer; its error is the answer where no other answers."""
        resolver, before = self._resolver, item.route
        # From here on it has a route of its own.
        item.route = route = Route()
        route.upstream, route.attempts, route.cache = before.upstream, before.attempts, before.cache
        route.trace = tuple(
            each._replace(verdict=error_verdict(verdict)) if each.verdict in _USED else each
            for each in before.trace
        )
        route.span = self._route.span
        if verdict is Verdict.QUOTA:
            resolver.exchange.cool_down(upstream)

        def ended(result: Resolved) -> None:
            if isinstance(result, Refusal) and verdict is not None and verdict is not Verdict.QUOTA:
                route.upstream = upstream.name
            else:
                item.result = result
            self._left -= 1
            if not self._left:
                self._finish()

        return Resolution(resolver, item.call, None, self._deadline, route, ended), [upstream] if verdict else []
