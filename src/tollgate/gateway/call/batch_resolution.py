"""A batch on its way to its answers: split by the cache and by what its calls require, sent in chunks, put in
order.

Each call is a `BatchItem` that ends with a result. A call that an upstream could not answer within a batch is
retried elsewhere, alone. Of the caller it knows the team; no HTTP. By plain calls: the last result calls `done`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from tollgate.api.logs import AttemptVerdict
from tollgate.chains.catalogue import Kind, Scope
from tollgate.chains.faults import Verdict
from tollgate.core import jsonrpc
from tollgate.core.shapes import Call, Replies
from tollgate.errors import Overloaded, Refusal
from tollgate.gateway.call.cache import Kept
from tollgate.gateway.call.reply_validator import ReplyValidator
from tollgate.gateway.call.resolver import (
    APART,
    NOTHING_KNOWN,
    STOPPING,
    Cancellable,
    Resolution,
    Resolved,
    Resolver,
    SingleFlight,
    fulfil,
)
from tollgate.gateway.messages import Route
from tollgate.gateway.tracing import Span
from tollgate.gateway.upstream.attempts import AttemptOutcome, Attempts, FirstAttempt, error_verdict
from tollgate.gateway.upstream.choice import Requirements
from tollgate.gateway.upstream.failover import OutOfStep
from tollgate.gateway.upstream.health import Upstream

Charge = Callable[[int], None]
UNSET = Route()
"""Of a call that is not on its way."""
_USED = frozenset({AttemptVerdict.ANSWERED, AttemptVerdict.HEDGE_WON})
_COALESCED = Route(cache="coalesced")


class BatchItem(Struct):
    """One call of a batch on its way."""

    call: Call
    key: bytes | None
    route: Route
    """Shared by calls that went the same way."""
    result: Resolved | None = None
    scope: Scope = NOTHING_KNOWN
    validator: ReplyValidator | None = None


class BatchResolution(Struct, eq=False):
    """A batch on its way to its answers. `done` is called once, with its calls in their order."""

    resolver: Resolver
    items: list[BatchItem]
    started: float
    deadline: float
    done: Callable[[list[BatchItem]], None] | None
    charge: Charge | None = None
    """Counts upstream calls beyond one for each."""
    span: Span | None = None
    team: str = ""
    """Of the caller; empty: of the gateway itself."""
    holder: str = ""
    """Which caller holds its connections to upstreams."""
    _parts: Sequence[Cancellable] = ()
    _left: int = 0

    def start(self) -> None:
        """Answer from memory what can be, and call upstreams for the rest."""
        resolver = self.resolver
        together, alone = _sorted(resolver, self.items, self.team)
        parts: list[Chunk | Resolution] = []
        for items in _chunks(resolver, together):
            if len(items) > 1:
                parts.append(self._chunk(items, self._ended))
            else:
                # One call is sent as one: not every upstream takes batches.
                parts.append(self._alone(items[0]))
        # After the chunks, whose calls they may join.
        parts += [self._alone(item) for item in alone]
        self._parts, self._left = parts, len(parts) + 1
        for part in parts:
            part.start()
        self._ended()

    def chunk(self, known: Mapping[int, Kept | int]) -> Chunk:
        """All calls but these as one chunk: they have an answer from the cache, or are equal to another one."""
        items = self.items
        for place, found in known.items():
            if isinstance(found, Kept):
                items[place].result, items[place].route = found, Route()
                self.resolver.note_hit(found, self.team, items[place].route)

        def ended() -> None:
            for place, found in known.items():
                if isinstance(found, int):
                    items[place].result, items[place].route = items[found].result, _COALESCED
            self._ended()

        sent = [item for place, item in enumerate(items) if place not in known]
        chunk = self._chunk(sent, ended)
        self._parts, self._left = [chunk], 1
        return chunk

    def _chunk(self, items: list[BatchItem], done: Callable[[], None]) -> Chunk:
        route, missed = Route(self.started, holder=self.holder, span=self.span), Route(self.started, "miss")
        return Chunk(self.resolver, items, self.deadline, done, route, missed, self.team)

    def _alone(self, item: BatchItem) -> Resolution:
        item.route = Route(self.started, charge=self.charge, holder=self.holder, span=self.span)

        def ended(result: Resolved) -> None:
            item.result = result
            self._ended()

        resolver, call = self.resolver, item.call
        return Resolution(
            resolver, call, item.key, resolver.scope(call), self.deadline, item.route, ended, self.team
        )

    def _ended(self) -> None:
        self._left -= 1
        if not self._left and self.done is not None:
            # All of these refer back to it.
            done, self.done, self.charge, self._parts = self.done, None, None, ()
            done(self.items)

    def cancel(self) -> None:
        """End it with refusals: the service stops."""
        for part in self._parts:
            part.cancel()


def items_of(resolver: Resolver, calls: Sequence[Call]) -> list[BatchItem]:
    """The calls of a batch, before they are on their way."""
    return [BatchItem(call, resolver.key(call), UNSET) for call in calls]


async def resolve_many(
    resolver: Resolver,
    calls: Sequence[Call],
    deadline: float,
    charge: Charge | None = None,
    span: Span | None = None,
    holder: str = "",
) -> list[BatchItem]:
    """Get the answers to a batch, in its order."""
    future: asyncio.Future[list[BatchItem]] = resolver.loop.create_future()
    items, started = items_of(resolver, calls), resolver.exchange.now()
    batch = BatchResolution(resolver, items, started, deadline, partial(fulfil, future), charge, span, holder)
    batch.start()
    try:
        return await future
    except asyncio.CancelledError:
        batch.cancel()
        raise


def _sorted(resolver: Resolver, items: list[BatchItem], team: str) -> tuple[list[BatchItem], list[BatchItem]]:
    """Answer from memory what can be; what is left may be sent together, or must be sent alone."""
    together: list[BatchItem] = []
    alone: list[BatchItem] = []
    seen: set[bytes] = set()
    stamp = resolver.exchange.status.stamp
    for each in items:
        key = each.key
        if key is None:
            (alone if each.call.method in APART else together).append(each)
            continue
        route = Route()
        each.result = resolver.recall_for(team, key, route)
        if each.result is not None:
            each.route = route
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


class Chunk(Struct, eq=False):
    """Calls that are sent to one upstream at once."""

    resolver: Resolver
    items: list[BatchItem]
    deadline: float
    done: Callable[[], None]
    route: Route
    """The way that all of them take."""
    missed: Route
    """That of those which the cache could have known."""
    team: str = ""
    _led: Sequence[tuple[BatchItem, bytes, SingleFlight]] = ()
    _plain: bool = True
    """Whether results need no look at all."""
    _work: Sequence[Cancellable] = ()
    _left: int = 0
    """Calls that are retried elsewhere."""
    _repeatable: bool = True
    _is_over: bool = False

    def start(self) -> None:
        """Send them, and let others share the answers."""
        resolver, items = self.resolver, self.items
        stamp = resolver.exchange.status.stamp
        led = {each.key: SingleFlight(stamp, (self.team,)) for each in items if each.key is not None}
        resolver.flights.update(led)
        self._lead([*led.values()])
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
        for each, validator in zip(self.items, validators, strict=False):
            each.validator = validator or each.validator
        self._attempts(first.body, ids, requirements).resume(first)

    def _lead(self, flights: Sequence[SingleFlight]) -> None:
        shared = [(each, each.key) for each in self.items if each.key is not None]
        self._led = [(each, key, flight) for (each, key), flight in zip(shared, flights, strict=True)]

    def _attempts(self, body: bytes, ids: Sequence[int], requirements: Requirements) -> Attempts[Replies]:
        attempts: Attempts[Replies] = Attempts(
            self.resolver.exchange,
            requirements,
            self.deadline,
            body=body,
            read=partial(jsonrpc.decode_batch, ids=ids),
            validator=None,
            route=self.route,
            done=self._answered,
        )
        self._work = [attempts]
        return attempts

    def _answered(self, outcome: AttemptOutcome[Replies] | Refusal) -> None:
        exchange, items, route = self.resolver.exchange, self.items, self.route
        missed = self.missed
        missed.upstream, missed.attempts = route.upstream, route.attempts
        missed.trace, missed.kept = route.trace, route.kept
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
            mine.upstream = each.route.upstream
            self.resolver.complete(key, mine, each.scope, each.result)
        self.done()

    def cancel(self) -> None:
        """End it with refusals: the service stops."""
        if self._is_over:
            return
        retried = self._left > 0
        for each in self._work:
            each.cancel()
        if not retried:
            for item in self.items:
                item.result = Overloaded(STOPPING)
            self._finish()

    def _requirements(self) -> Requirements:
        """What the calls require of their upstream. Makes their validators, before they are sent."""
        resolver, route = self.resolver, self.route
        tip, oldest, number, repeatable = False, None, None, True
        before, method = BatchItem(self.items[0].call, None, UNSET), ""
        for each in self.items:
            each.scope = scope = resolver.scope(each.call)
            if scope is before.scope and each.call.method == method and self._plain:
                # Another call about the same: most batches are made of these.
                each.validator, each.route = before.validator, before.route
                continue
            method = each.call.method
            validator = resolver.validator(method, scope)
            each.validator, each.route = validator, self.missed if method in resolver.cached else route
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
        for each, reply in zip(self.items, replies.items, strict=True):
            each.result = reply
            if usual:
                continue
            assert each.validator is not None  # noqa: S101 - found out before it was sent
            try:
                verdict = each.validator(reply, outcome.upstream)
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
        resolver, before = self.resolver, item.route
        # From here on it has a route of its own.
        item.route = route = Route(before.started, before.cache, before.upstream, before.attempts)
        route.trace = tuple(
            replace(each, verdict=error_verdict(verdict)) if each.verdict in _USED else each
            for each in before.trace
        )
        route.span, route.holder = self.route.span, self.route.holder
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

        retry = Resolution(resolver, item.call, None, item.scope, self.deadline, route, ended)
        return retry, [upstream] if verdict else []
