"""Gets the answer to one call: from the cache, by an equal call under way, or by attempts at upstreams.

A `Resolver` is what the calls of one network share: the cache, equal calls under way, and what its methods mean. A
`Resolution` is one call on its way to its answer, by plain calls; only an `eth_getLogs` in several parts takes a
task. `call.py` and `batch.py` take the same steps on the fast path; `batch_resolution.py` is for batches. Of the
caller it knows the team; no HTTP.

A team is told of a hit only if it has had the answer before: otherwise hits would show what other teams request.
An answer that another team's call brought is shown as the miss that it would have been, with the upstream that
gave it. Metrics count what the cache did. How long an answer takes is not hidden.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from msgspec import Raw, Struct

from tollgate import log
from tollgate.chains.catalogue import Holds, Kind, Scope
from tollgate.chains.faults import Verdict
from tollgate.core import jsonrpc
from tollgate.core.shapes import ABSENT, Call, Params, Reply, WrittenCall
from tollgate.errors import InternalError, Overloaded, RateLimited, Refusal
from tollgate.gateway.call.cache import Cache, Kept, Teams, key_of, with_team
from tollgate.gateway.call.reply_validator import ReplyValidator, reveals_tip
from tollgate.gateway.messages import Route
from tollgate.gateway.upstream import sticky
from tollgate.gateway.upstream.attempts import AttemptOutcome, Attempts, FirstAttempt
from tollgate.gateway.upstream.broadcast import SIGNED, broadcast
from tollgate.gateway.upstream.choice import Requirements
from tollgate.gateway.upstream.exchange import Exchange
from tollgate.gateway.upstream.get_logs import GET_LOGS, Logs, is_wide
from tollgate.gateway.upstream.health import Upstream
from tollgate.shm.upstream_status import Snapshot, Stamp

APART = SIGNED | sticky.METHODS | {GET_LOGS}
"""Methods that are sent on their own, also within a batch."""
NOTHING_KNOWN = Scope(Holds.NEVER)
STOPPING = "The service stops: try again."
_WRITE = Kind.WRITE
_log = log.get("gateway")

Resolved = Reply | Refusal
T = TypeVar("T")


class SingleFlight(Struct, gc=False, eq=False):
    """A call under way whose answer others may share."""

    stamp: Stamp
    """The network's status before it was sent. A call from before the last block is not equal."""
    teams: Teams = ()
    """Those whose calls wait for it."""
    upstream: str = ""
    """That answers it, once that is known."""
    waiters: list[Callable[[Resolved], None]] | None = None
    """None until there is one: few calls have any."""

    def join(self, waiter: Callable[[Resolved], None]) -> None:
        """Wait for its answer."""
        if self.waiters is None:
            self.waiters = [waiter]
        else:
            self.waiters.append(waiter)

    def leave(self, waiter: Callable[[Resolved], None]) -> None:
        """Wait no longer."""
        if self.waiters is not None:
            self.waiters.remove(waiter)


class Resolver:
    """The cache, the calls under way and the methods of one network."""

    def __init__(
        self,
        exchange: Exchange,
        cache: Cache | None,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.exchange = exchange
        self.loop = loop
        self.flights: dict[bytes, SingleFlight] = {}
        self.plans: dict[str, Any] = {}
        """What methods mean, as far as they were called; `admission.py` fills it."""
        self.change(cache)

    def change(self, cache: Cache | None) -> None:
        """Take over the network's settings as they are now."""
        self.cache = cache
        network = self.exchange.network
        self._catalogue = network.catalogue
        self._validators: dict[str, ReplyValidator] = {}
        self.plans.clear()
        self.repeatable = network.reads | sticky.MAKE_FILTER
        """Methods that can be sent to several upstreams without harm."""
        self.readers = network.catalogue.readers(self.repeatable)
        self.cached = cache.methods if cache is not None else frozenset()
        """Methods whose answers may be cached."""
        self.key_prefixes = {name: f"{name}(".encode() for name in network.reads} if cache is not None else {}
        """Methods whose calls are shared, with what their keys begin with."""
        upstreams = [upstream.settings for upstream in self.exchange.upstreams]
        self.batch_calls = min((each.batch_calls for each in upstreams), default=1)
        """Most calls in a batch that any of the upstreams takes."""
        self._any_upstream = upstreams[0].name if upstreams else ""
        """Shown for answers that other nodes share: they come without the name of their upstream."""
        self.logs_blocks = min((each.logs_blocks for each in upstreams if each.logs_blocks), default=0)

    def key(self, call: Call) -> bytes | None:
        """What makes a call equal to another; None where each is sent on its own."""
        name = self.key_prefixes.get(call.method)
        if name is None:
            return None
        params = call.params
        # As `key_of` makes it, only quicker: most have their parameters in a list.
        return name + b"\0".join(params) if params and type(params) is list else key_of(call)

    def recall(self, key: bytes | None) -> Reply | None:
        """An answer that is cached and still holds."""
        return None if key is None or self.cache is None else self.cache.get(key)

    def recall_for(self, team: str, key: bytes | None, route: Route) -> Reply | None:
        """Likewise, for a call of a team; notes where the answer came from."""
        kept = None if key is None or self.cache is None else self.cache.get(key)
        if kept is not None:
            self.note_hit(kept, team, route)
        return kept

    def note_hit(self, kept: Kept, team: str, route: Route) -> None:
        """Note where an answer from the cache came from, as far as the team is told."""
        if team in kept.teams:
            route.cache = "hit"
        else:
            _untold(route, "miss", "hit", self.give(kept, team))

    def give(self, kept: Kept, team: str) -> str:
        """Note that a team has had an answer that another's call brought; the upstream that it is shown."""
        if self.cache is not None:
            self.cache.give(kept, team)
        return kept.upstream or self._any_upstream

    def known(self, key: bytes, snapshot: Snapshot) -> tuple[Kept | None, SingleFlight | None]:
        """An answer that is cached and still holds, or else an equal call that is under way."""
        cache = self.cache
        if cache is not None and key in cache.entries:
            reply = cache.get(key, snapshot)
            if reply is not None:
                return reply, None
        return None, self.flight(key, snapshot.stamp) if key in self.flights else None

    def flight(self, key: bytes, stamp: Stamp) -> SingleFlight | None:
        """An equal call that is under way."""
        flight = self.flights.get(key)
        return flight if flight is not None and flight.stamp == stamp else None

    def complete(self, key: bytes, mine: SingleFlight, scope: Scope, reply: Resolved | None) -> None:
        """Cache the answer of a call that others could wait for, and hand it to those that do."""
        if self.cache is not None and isinstance(reply, Reply) and reply.error is ABSENT:
            self.cache.put(key, scope, reply, mine.stamp, mine.teams, mine.upstream)
        if self.flights.get(key) is mine:
            del self.flights[key]
        if mine.waiters is not None:
            # They refer to it, too, and it is not seen by the garbage collector.
            waiters, mine.waiters = mine.waiters, None
            for waiter in waiters:
                waiter(reply or Overloaded(STOPPING))

    # --- Calling upstreams -----------------------------------------------------------------------------

    def scope(self, call: Call) -> Scope:
        """Which blocks a call refers to."""
        read = self.readers.get(call.method)
        return NOTHING_KNOWN if read is None else read(call.params)

    def validator(self, method: str, scope: Scope) -> ReplyValidator:
        """The validator of replies to a call. To be made before it is sent."""
        if reveals_tip(scope):
            return ReplyValidator(self.exchange, method, scope)
        # It remembers nothing of a call, so all calls of the method share it.
        validator = self._validators.get(method)
        if validator is None:
            validator = ReplyValidator(self.exchange, method, NOTHING_KNOWN)
            if self._catalogue.method(method) is not None:
                self._validators[method] = validator
        return validator


class Cancellable(Protocol):
    """What may be under way for a call."""

    def cancel(self) -> object:
        """End it."""


class Resolution(Struct, eq=False):
    """One call on its way to its answer. `done` is called once, with a reply or a refusal.

    States: waiting for an equal call; sent (`_work` makes the attempts); done.
    """

    resolver: Resolver
    call: Call
    key: bytes | None
    scope: Scope
    deadline: float
    route: Route
    done: Callable[[Resolved], None] | None
    team: str = ""
    """Of the caller; empty: of the gateway itself."""
    _joined: SingleFlight | None = None
    """What it waits for."""
    _flight: SingleFlight | None = None
    """What others wait for."""
    _validator: ReplyValidator | None = None
    _work: Cancellable | None = None

    def start(self) -> None:
        """Wait for an equal call, or call upstreams."""
        if self.key is None:
            self.fetch()
            return
        stamp = self.resolver.exchange.status.stamp
        flight = self.resolver.flight(self.key, stamp)
        if flight is not None:
            self._join(flight)
        else:
            self._lead(self.key, stamp)

    def _join(self, flight: SingleFlight) -> None:
        self._joined = flight
        if self.team in flight.teams:
            self.route.cache = "coalesced"
        else:
            flight.teams = with_team(flight.teams, self.team)
            _untold(self.route, self._brought, "coalesced", "")
        flight.join(self._completed)

    @property
    def _brought(self) -> str:
        """What the cache does for a call that an upstream answers."""
        return "miss" if self.call.method in self.resolver.cached else "bypass"

    def _lead(self, key: bytes, stamp: Stamp) -> None:
        resolver, route = self.resolver, self.route
        route.cache, route.counted, route.attempts, route.kept = self._brought, "", 0, 0
        self._flight = resolver.flights[key] = SingleFlight(stamp, (self.team,))
        self.fetch()

    def _completed(self, reply: Resolved) -> None:
        """Take the answer to an equal call."""
        if self.done is None:
            return
        if isinstance(reply, RateLimited) and self.key is not None:
            # By the limits of the caller that it joined, which are not its own.
            self._lead(self.key, self.resolver.exchange.status.stamp)
        else:
            if self._joined is not None and self.route.counted:
                self.route.upstream = self._joined.upstream
            self._finish(reply)

    # --- Upstreams -------------------------------------------------------------------------------------

    def fetch(self, tried: Sequence[Upstream] = ()) -> None:
        """Call upstreams, but those that were tried."""
        call, resolver = self.call, self.resolver
        method, exchange = call.method, resolver.exchange
        if method not in APART:
            self._send(call, None, tried)
        elif method in SIGNED:
            self._work = work = broadcast(exchange, call, self.deadline, self.route, self._answered)
            work.start()
        elif method == GET_LOGS:
            if is_wide(call.params, exchange.status.floor, resolver.logs_blocks):
                self._get_logs()
            else:
                self._send(call, None, tried)
        else:
            params, slot = sticky.decode_slot(method, call.params)
            if slot is not None and not exchange.has(slot):
                # The upstream that made it is not here any more: another one answers with a node's error.
                params, slot = call.params, None
            self._send(_with(call, params), slot, tried)

    def _send(self, call: Call, slot: int | None, tried: Sequence[Upstream] = ()) -> None:
        self._validator = self.resolver.validator(call.method, self.scope)
        self._work = work = self._attempts(jsonrpc.encode_call(call), self._answered, slot, tried)
        work.start()

    def resume(self, sent: FirstAttempt, flight: SingleFlight | None, validator: ReplyValidator) -> None:
        """Go on with a call that the fast path has sent."""
        self._flight = flight
        self._validator = validator
        self._work = work = self._attempts(sent.body, self._answered)
        work.resume(sent)

    def _attempts(
        self,
        body: bytes,
        done: Callable[[AttemptOutcome[Reply] | Refusal], None],
        slot: int | None = None,
        tried: Sequence[Upstream] = (),
    ) -> Attempts[Reply]:
        resolver, scope, method = self.resolver, self.scope, self.call.method
        oldest = scope.oldest if scope.state else None
        return Attempts(
            resolver.exchange,
            Requirements(method, method in resolver.repeatable, scope.tip, oldest, slot, scope.number),
            self.deadline,
            [*tried],
            body=body,
            read=jsonrpc.decode_reply,
            validator=self._validator,
            plain=self._validator is not None and self._validator.plain,
            route=self.route,
            done=done,
        )

    def _answered(self, outcome: AttemptOutcome[Reply] | Refusal) -> None:
        validator = self._validator
        if validator is not None and validator.kind is _WRITE:
            self.resolver.exchange.status.request_probe()
        if isinstance(outcome, Refusal):
            self._finish(outcome)
            return
        if validator is not None and not validator.plain:
            validator.note(outcome.upstream)
        method, reply = self.call.method, outcome.answer
        if method == GET_LOGS and outcome.verdict is Verdict.TOO_WIDE:
            self._get_logs(outcome)
            return
        if method in sticky.METHODS and reply.error is ABSENT:
            reply = Reply(sticky.encode_slot(method, reply.result, outcome.upstream.slot))
        self._finish(reply)

    def _get_logs(self, refused: AttemptOutcome[Reply] | None = None) -> None:
        """Get logs in several parts."""
        resolver, route = self.resolver, self.route
        self._validator = resolver.validator(GET_LOGS, self.scope)

        async def send(params: Params) -> AttemptOutcome[Reply]:
            future: asyncio.Future[AttemptOutcome[Reply] | Refusal] = resolver.loop.create_future()
            body = jsonrpc.encode_call(_with(self.call, params))
            attempts = self._attempts(body, partial(fulfil, future))
            attempts.start()
            return await _result(future, attempts)

        def charge(calls: int) -> None:
            if route.charge is not None:
                route.charge(calls)
            route.extra += calls

        blocks = 0 if refused is not None else resolver.logs_blocks
        getting = Logs(send, charge).get(self.call.params, resolver.exchange.status.floor, blocks, refused)
        self._work = task = resolver.loop.create_task(getting)
        task.add_done_callback(self._got_logs)

    def _got_logs(self, task: asyncio.Task[Reply]) -> None:
        if task.cancelled() or self.done is None:
            return
        error = task.exception()
        if error is None:
            self._finish(task.result())
        elif isinstance(error, Refusal):
            self._finish(error)
        else:
            _log.error("logs could not be joined", exc_info=error)
            self._finish(InternalError())

    # --- The end ---------------------------------------------------------------------------------------

    def _finish(self, result: Resolved) -> None:
        if self._flight is not None and self.key is not None:
            self._flight.upstream = self.route.upstream
            self.resolver.complete(self.key, self._flight, self.scope, result)
        done, self.done = self.done, None
        # It refers to the caller's call, which refers to this.
        self.route.charge = None
        if done is not None:
            done(result)

    def cancel(self) -> None:
        """End it with a refusal: the service stops."""
        if self.done is not None:
            if self._work is not None:
                self._work.cancel()
            self._finish(Overloaded(STOPPING))


def _untold(route: Route, cache: str, counted: str, upstream: str) -> None:
    """Note an answer that another team's call brought as the team's own call would be."""
    route.cache, route.counted, route.upstream, route.attempts, route.kept = cache, counted, upstream, 1, 1


async def resolve(resolver: Resolver, call: Call, key: bytes | None, deadline: float, route: Route) -> Reply:
    """Get the answer to one call that is not cached under its key, or raise a refusal."""
    return await _awaited(resolver, call, key, deadline, route, Resolution.start)


async def fetch(
    resolver: Resolver, call: Call, deadline: float, route: Route, tried: Sequence[Upstream] = ()
) -> Reply:
    """Call upstreams, but those that were tried, or raise a refusal."""
    return await _awaited(resolver, call, None, deadline, route, partial(Resolution.fetch, tried=tried))


async def _awaited(
    resolver: Resolver,
    call: Call,
    key: bytes | None,
    deadline: float,
    route: Route,
    start: Callable[[Resolution], None],
) -> Reply:
    future: asyncio.Future[Resolved] = resolver.loop.create_future()
    scope = resolver.scope(call)
    resolution = Resolution(resolver, call, key, scope, deadline, route, partial(fulfil, future))
    start(resolution)
    return await _result(future, resolution)


async def _result(future: asyncio.Future[T | Refusal], work: Cancellable) -> T:
    """Wait for the result of `work`, or raise a refusal."""
    try:
        result = await future
    except asyncio.CancelledError:
        work.cancel()
        raise
    if isinstance(result, Refusal):
        raise result
    return result


def _with(call: Call, params: Params) -> Call:
    return call if params is call.params else WrittenCall(call.method, params, Raw(b"1"))


def fulfil(future: asyncio.Future[T], result: T) -> None:
    """Give a result to the coroutine that waits for it."""
    if not future.done():
        future.set_result(result)
