"""Answers the calls of one network: from the cache, from an equal call that is under way, from an upstream.

`recall` never waits; a `Resolution` gets the answer to one call, by plain calls: only an `eth_getLogs` in several
parts takes a task. `batch.py` builds on both for the calls of a batch, and `straight.py` takes the same steps
where nothing stands in the way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from msgspec import Raw, Struct

from tollgate import log
from tollgate.chains.catalogue import Holds, Kind, Look, Scope
from tollgate.chains.faults import Verdict
from tollgate.core import jsonrpc
from tollgate.core.shapes import ABSENT, Call, Params, Reply, WrittenCall
from tollgate.errors import InternalError, Overloaded, RateLimited, Refusal
from tollgate.gateway.call.cache import Cache, key_of
from tollgate.gateway.messages import Trace
from tollgate.gateway.upstream import sticky
from tollgate.gateway.upstream.attempts import AttemptOutcome, Attempts
from tollgate.gateway.upstream.broadcast import SIGNED, Broadcast
from tollgate.gateway.upstream.choice import Requirements
from tollgate.gateway.upstream.exchange import Exchange
from tollgate.gateway.upstream.failover import OutOfStep
from tollgate.gateway.upstream.get_logs import GET_LOGS, Logs, is_wide
from tollgate.gateway.upstream.health import Upstream
from tollgate.shm.upstream_status import NOTHING, Snapshot, Stamp

APART = SIGNED | sticky.METHODS | {GET_LOGS}
"""Methods with a way of their own, also within a batch."""
# A head so far above the highest one that is known is a mistake: no chain is that fast.
MAX_AHEAD = 10_000
NOTHING_KNOWN = Scope(Holds.NEVER)
_TIP, _NOWHERE, _FINAL, _WRITE = Holds.TIP, Look.NOWHERE, Verdict.FINAL, Kind.WRITE
STOPPING = "The service stops: try again."
_log = log.get("gateway")
T = TypeVar("T")

Resolved = Reply | Refusal


class SingleFlight(Struct, gc=False, eq=False):
    """A call under way whose answer others may share."""

    stamp: Stamp
    """The network's status before it was sent. A call from before the last block is not equal."""
    waiters: list[Callable[[Resolved], None]] | None = None
    """None until somebody waits: hardly anybody does."""

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
    """Answers the calls of one network."""

    def __init__(
        self,
        exchange: Exchange,
        cache: Cache | None,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.exchange = exchange
        self._status = exchange.status
        self.loop = loop
        self.flights: dict[bytes, SingleFlight] = {}
        self.plans: dict[str, Any] = {}
        """What methods mean, as far as they were called; `method_plan.py` fills it."""
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
        self.key_prefixes = {name: f"{name}(".encode() for name in network.reads} if cache is not None else {}
        """Methods whose calls are shared, with what their keys begin with."""
        upstreams = [upstream.settings for upstream in self.exchange.upstreams]
        self.batch_calls = min((each.batch_calls for each in upstreams), default=1)
        """Most calls in a batch that any of the upstreams takes."""
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

    def known(self, key: bytes, snapshot: Snapshot) -> tuple[Reply | None, SingleFlight | None]:
        """An answer that is cached and still holds, or else an equal call that is under way."""
        cache = self.cache
        if cache is not None and key in cache.entries:
            reply = cache.get(key, snapshot)
            if reply is not None:
                return reply, None
        return None, self.flight(key, snapshot.stamp) if key in self.flights else None

    # --- Single flight ---------------------------------------------------------------------------------

    async def resolve(self, call: Call, key: bytes | None, deadline: float, trace: Trace) -> Reply:
        """Get the answer to one call that is not cached under its key, or raise a refusal."""
        return await self._awaited(call, key, deadline, trace, Resolution.start)

    async def fetch(self, call: Call, deadline: float, trace: Trace, tried: Sequence[Upstream] = ()) -> Reply:
        """Call upstreams, but those that were tried, or raise a refusal."""
        return await self._awaited(call, None, deadline, trace, partial(Resolution.fetch, tried=tried))

    async def _awaited(
        self, call: Call, key: bytes | None, deadline: float, trace: Trace, start: Callable[[Resolution], None]
    ) -> Reply:
        future: asyncio.Future[Resolved] = self.loop.create_future()
        resolution = Resolution(self, call, key, deadline, trace, partial(fulfil, future))
        start(resolution)
        try:
            result = await future
        except asyncio.CancelledError:
            resolution.cancel()
            raise
        if isinstance(result, Refusal):
            raise result
        return result

    def stamp(self) -> Stamp:
        """The network's status now: to be noted before a call is sent."""
        return self._status.stamp

    def flight(self, key: bytes, stamp: Stamp) -> SingleFlight | None:
        """An equal call that is under way."""
        flight = self.flights.get(key)
        return flight if flight is not None and flight.stamp == stamp else None

    def may_keep(self, method: str) -> bool:
        """Whether answers to this method may ever be cached."""
        return method in self.cached

    def lead(self, key: bytes, stamp: Stamp) -> SingleFlight:
        """Let others wait for a call that is going to be sent."""
        mine = self.flights[key] = SingleFlight(stamp)
        return mine

    def complete(self, key: bytes, mine: SingleFlight, scope: Scope, reply: Resolved | None) -> None:
        """Cache the answer of a call that others could wait for, and hand it to those who do."""
        if self.cache is not None and isinstance(reply, Reply) and reply.error is ABSENT:
            self.cache.put(key, scope, reply, mine.stamp)
        if self.flights.get(key) is mine:
            del self.flights[key]
        if mine.waiters is not None:
            for waiter in mine.waiters:
                waiter(reply or Overloaded(STOPPING))

    # --- Calling upstreams -----------------------------------------------------------------------------

    def scope(self, call: Call) -> Scope:
        """Which blocks a call refers to."""
        read = self.readers.get(call.method)
        return NOTHING_KNOWN if read is None else read(call.params)

    def requirements(self, method: str, scope: Scope, slot: int | None = None) -> Requirements:
        """What a call needs of whoever answers it."""
        oldest = scope.oldest if scope.state else None
        return Requirements(method, method in self.repeatable, scope.tip, oldest, slot, scope.number)

    def validator(self, method: str, scope: Scope) -> ReplyValidator:
        """The validator of answers to a call. To be made before it is sent."""
        if scope.holds is _TIP and scope.look is not _NOWHERE:
            return ReplyValidator(self.exchange, method, scope)
        # It has nothing to remember of a call, so one will do for all.
        validator = self._validators.get(method)
        if validator is None:
            validator = ReplyValidator(self.exchange, method, NOTHING_KNOWN)
            if self._catalogue.method(method) is not None:
                self._validators[method] = validator
        return validator


class Work(Protocol):
    """What may be under way for a call."""

    def cancel(self) -> object:
        """Let it end."""


class Resolution:
    """One call on its way to its answer. `done` is called once, with a reply or a refusal."""

    __slots__ = (
        "_call",
        "_deadline",
        "_done",
        "_flight",
        "_key",
        "_resolver",
        "_scope",
        "_trace",
        "_validator",
        "_work",
    )

    def __init__(
        self,
        resolver: Resolver,
        call: Call,
        key: bytes | None,
        deadline: float,
        trace: Trace,
        done: Callable[[Resolved], None],
    ) -> None:
        self._resolver = resolver
        self._call = call
        self._key = key
        self._deadline = deadline
        self._trace = trace
        self._done: Callable[[Resolved], None] | None = done
        self._flight: SingleFlight | None = None
        """What others wait for."""
        read = resolver.readers.get(call.method)
        self._scope = NOTHING_KNOWN if read is None else read(call.params)
        self._validator: ReplyValidator | None = None
        self._work: Work | None = None

    def start(self) -> None:
        """Wait for an equal call, or call upstreams."""
        if self._key is None:
            self.fetch()
            return
        stamp = self._resolver.exchange.status.stamp
        flight = self._resolver.flights.get(self._key)
        if flight is not None and flight.stamp == stamp:
            self._trace.cache = "coalesced"
            flight.join(self._completed)
        else:
            self._lead(self._key, stamp)

    def _lead(self, key: bytes, stamp: Stamp) -> None:
        resolver = self._resolver
        if self._call.method in resolver.cached:
            self._trace.cache = "miss"
        self._flight = resolver.flights[key] = SingleFlight(stamp)
        self.fetch()

    def _completed(self, reply: Resolved) -> None:
        """Take the answer to an equal call."""
        if self._done is None:
            return
        if isinstance(reply, RateLimited) and self._key is not None:
            # By the limits of the caller that it joined, which are not its own.
            self._lead(self._key, self._resolver.stamp())
        else:
            self._finish(reply)

    # --- Upstreams -------------------------------------------------------------------------------------

    def fetch(self, tried: Sequence[Upstream] = ()) -> None:
        """Call upstreams, but those that were tried."""
        call, resolver = self._call, self._resolver
        method, exchange = call.method, resolver.exchange
        if method not in APART:
            self._send(call, None, tried)
        elif method in SIGNED:
            self._work = work = Broadcast(exchange, call, self._deadline, self._trace, self._sent)
            work.start()
        elif method == GET_LOGS:
            if is_wide(call.params, exchange.status.floor, resolver.logs_blocks):
                self._get_logs()
            else:
                self._send(call, None, tried)
        else:
            params, slot = sticky.decode_slot(method, call.params)
            if slot is not None and not exchange.has(slot):
                # The upstream that made it is not here, or not any more: another one answers with a node's error.
                params, slot = call.params, None
            self._send(_with(call, params), slot, tried)

    def _send(self, call: Call, slot: int | None, tried: Sequence[Upstream] = ()) -> None:
        resolver, scope = self._resolver, self._scope
        self._validator = validator = resolver.validator(call.method, scope)
        requirements = resolver.requirements(call.method, scope, slot)
        self._work = work = Attempts(
            resolver.exchange,
            requirements,
            self._deadline,
            jsonrpc.encode_call(call),
            jsonrpc.decode_reply,
            validator,
            self._trace,
            self._answered,
            tried,
        )
        work.start()

    def _answered(self, outcome: AttemptOutcome[Reply] | Refusal) -> None:
        validator = self._validator
        if validator is not None and validator.kind is _WRITE:
            self._resolver.exchange.status.request_probe()
        if isinstance(outcome, Refusal):
            self._finish(outcome)
            return
        if validator is not None and not validator.plain:
            validator.note(outcome.upstream)
        method, reply = self._call.method, outcome.answer
        if method not in APART:
            self._finish(reply)
            return
        if method != GET_LOGS and reply.error is ABSENT:
            reply = Reply(sticky.encode_slot(method, reply.result, outcome.upstream.slot))
        elif outcome.verdict is Verdict.TOO_WIDE and method == GET_LOGS:
            self._get_logs(outcome)
            return
        self._finish(reply)

    def _sent(self, outcome: AttemptOutcome[Reply] | Refusal) -> None:
        """Take the end of a transaction."""
        self._finish(outcome if isinstance(outcome, Refusal) else outcome.answer)

    def _get_logs(self, refused: AttemptOutcome[Reply] | None = None) -> None:
        """Get logs in several parts."""
        resolver, trace = self._resolver, self._trace

        async def send(params: Params) -> AttemptOutcome[Reply]:
            future: asyncio.Future[AttemptOutcome[Reply] | Refusal] = resolver.loop.create_future()
            attempts = Attempts(
                resolver.exchange,
                resolver.requirements(GET_LOGS, self._scope),
                self._deadline,
                jsonrpc.encode_call(_with(self._call, params)),
                jsonrpc.decode_reply,
                resolver.validator(GET_LOGS, self._scope),
                trace,
                partial(fulfil, future),
            )
            attempts.start()
            try:
                outcome = await future
            except asyncio.CancelledError:
                attempts.cancel()
                raise
            if isinstance(outcome, Refusal):
                raise outcome
            return outcome

        def charge(calls: int) -> None:
            if trace.charge is not None:
                trace.charge(calls)
            trace.extra += calls

        blocks = 0 if refused is not None else resolver.logs_blocks
        getting = Logs(send, charge).get(self._call.params, resolver.exchange.status.floor, blocks, refused)
        self._work = task = resolver.loop.create_task(getting)
        task.add_done_callback(self._got_logs)

    def _got_logs(self, task: asyncio.Task[Reply]) -> None:
        if task.cancelled() or self._done is None:
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
        if self._flight is not None and self._key is not None:
            self._resolver.complete(self._key, self._flight, self._scope, result)
        done, self._done = self._done, None
        if done is not None:
            done(result)

    def cancel(self) -> None:
        """End it with a refusal: the service stops."""
        if self._done is not None:
            if self._work is not None:
                self._work.cancel()
            self._finish(Overloaded(STOPPING))


class ReplyValidator:
    """Judges answers to one call, and notes which head they show."""

    __slots__ = ("_exchange", "_head", "_method", "_number", "_reorgs", "_scope", "kind", "plain")

    def __init__(self, exchange: Exchange, method: str, scope: Scope) -> None:
        self._exchange = exchange
        self._method = method
        self._scope = scope
        self.kind = exchange.network.catalogue.kind(method)
        self._number: int | None = None
        self._reorgs = -1
        # Of the answers about the tip only some show where it is.
        self.plain = scope.holds is not _TIP or scope.look is _NOWHERE
        """Whether a result needs no look at all."""
        if not self.plain:
            status = exchange.status
            self._reorgs = status.reorgs
            self._head = status.head if status.is_fresh else NOTHING

    def __call__(self, reply: Reply) -> Verdict:
        """What an answer means. Raise `OutOfStep` where callers have seen more of the chain than it shows."""
        if reply.error is not ABSENT:
            return self._exchange.verdict_of(self.kind, reply)
        if self._reorgs >= 0:
            number = self._exchange.network.catalogue.revealed(self._method, self._scope, reply.result)
            if number is not None:
                self._check(number)
            self._number = number
        return _FINAL

    def _check(self, number: int) -> None:
        status = self._exchange.status
        # The head when it was sent: what the prober has seen since is no measure. What callers have seen is.
        head = self._head if status.reorgs == self._reorgs else NOTHING
        least = max(head, status.shown)
        if number < least:
            raise OutOfStep(f"block {number}, where callers have seen {least}", sent=True)
        if head != NOTHING and number > max(status.head, least) + MAX_AHEAD:
            raise OutOfStep(f"block {number}, where the highest known is {least}", sent=True)

    def note(self, upstream: Upstream) -> None:
        """Note how far the chain is, where the last answer showed it: nobody is shown less from now on."""
        if self._number is not None and self._exchange.status.reorgs == self._reorgs:
            upstream.status.observe_head(self._number)
            self._exchange.status.observe_head(self._number)


def _with(call: Call, params: Params) -> Call:
    return call if params is call.params else WrittenCall(call.method, params, Raw(b"1"))


def fulfil(future: asyncio.Future[T], result: T) -> None:
    """Let a coroutine go on that waits for a result."""
    if not future.done():
        future.set_result(result)
