"""Answers the calls of one network: from the cache, from an equal call that is under way, from an upstream.

`recall` never waits; `resolve` gets the answer to one call. `batch.py` builds on both for the calls of a batch,
and `straight.py` takes the same steps by plain calls where nothing stands in the way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from msgspec import Raw, Struct

from tollgate.chains.catalogue import Holds, Kind, Look, Scope
from tollgate.chains.faults import Verdict
from tollgate.core import jsonrpc
from tollgate.core.shapes import ABSENT, Call, Params, Reply, WrittenCall
from tollgate.errors import Overloaded, RateLimited, Refusal
from tollgate.gateway.call.cache import Cache, key_of
from tollgate.gateway.messages import Trace
from tollgate.gateway.upstream import sticky
from tollgate.gateway.upstream.broadcast import SIGNED, Writes
from tollgate.gateway.upstream.choice import Need
from tollgate.gateway.upstream.exchange import Exchange, FirstAttempt
from tollgate.gateway.upstream.failover import OutOfStep
from tollgate.gateway.upstream.get_logs import GET_LOGS, Logs, answer
from tollgate.gateway.upstream.health import Upstream
from tollgate.gateway.upstream.hedging import AttemptOutcome
from tollgate.shm.upstream_status import NOTHING, Snapshot, Stamp

APART = SIGNED | sticky.METHODS | {GET_LOGS}
"""Methods with a way of their own, also within a batch."""
# A head so far above the highest one that is known is a mistake: no chain is that fast.
MAX_AHEAD = 10_000
NOTHING_KNOWN = Scope(Holds.NEVER)
_TIP, _NOWHERE, _FINAL = Holds.TIP, Look.NOWHERE, Verdict.FINAL
_STOPPING = "The service stops: try again."

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
        now: Callable[[], float],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.exchange = exchange
        self._row = exchange.row
        self._loop = loop
        self._writes = Writes(exchange, now)
        self.flights: dict[bytes, SingleFlight] = {}
        self.plans: dict[str, Any] = {}
        """What methods mean, as far as they were called; `method_plan.py` fills it."""
        self.change(cache)

    def change(self, cache: Cache | None) -> None:
        """Take over the network's settings as they are now."""
        self.cache = cache
        network = self.exchange.network
        self._catalogue = network.catalogue
        self._judges: dict[str, Judge] = {}
        self.plans.clear()
        self.repeatable = network.reads | sticky.MAKE_FILTER
        """Methods that can be sent to several upstreams without harm."""
        self.readers = network.catalogue.readers(self.repeatable)
        self._cached = cache.methods if cache is not None else frozenset()
        self.key_prefixes = {name: f"{name}(".encode() for name in network.reads} if cache is not None else {}
        """Methods whose calls are shared, with what their keys begin with."""
        upstreams = [upstream.settings for upstream in self.exchange.upstreams]
        self.batch_calls = min((each.batch_calls for each in upstreams), default=1)
        """Most calls in a batch that any of the upstreams takes."""
        self._logs_blocks = min((each.logs_blocks for each in upstreams if each.logs_blocks), default=0)

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
        if key is None:
            return await self.fetch(call, self.scope(call), deadline, trace)
        stamp = self._row.stamp
        flight = self.flight(key, stamp)
        if flight is not None:
            try:
                return await self._join(flight, trace)
            except RateLimited:
                # By the limits of the caller that it joined, which are not its own.
                stamp = self._row.stamp
        if call.method in self._cached:
            trace.cache = "miss"
        mine = self.lead(key, stamp)
        scope = self.scope(call)
        reply: Resolved | None = None
        try:
            reply = await self.fetch(call, scope, deadline, trace)
        except Refusal as refusal:
            reply = refusal
            raise
        finally:
            self.land(key, mine, scope, reply)
        return reply

    async def resume(
        self,
        call: Call,
        key: bytes | None,
        mine: SingleFlight | None,
        first: FirstAttempt,
        deadline: float,
        trace: Trace,
    ) -> Reply:
        """Go on with a call that was sent by the straight way: as `resolve` after its first attempt."""
        scope = self.scope(call)
        reply: Resolved | None = None
        try:
            reply = answer(await self._one(call, scope, None, deadline, trace, first=first))
        except Refusal as refusal:
            reply = refusal
            raise
        finally:
            if key is not None and mine is not None:
                self.land(key, mine, scope, reply)
        return reply

    def stamp(self) -> Stamp:
        """The network's status now: to be noted before a call is sent."""
        return self._row.stamp

    def flight(self, key: bytes, stamp: Stamp) -> SingleFlight | None:
        """An equal call that is under way."""
        flight = self.flights.get(key)
        return flight if flight is not None and flight.stamp == stamp else None

    def may_keep(self, method: str) -> bool:
        """Whether answers to this method may ever be cached."""
        return method in self._cached

    def lead(self, key: bytes, stamp: Stamp) -> SingleFlight:
        """Let others wait for a call that is going to be sent."""
        mine = self.flights[key] = SingleFlight(stamp)
        return mine

    def land(self, key: bytes, mine: SingleFlight, scope: Scope, reply: Resolved | None) -> None:
        """Cache the answer of a call that others could wait for, and hand it to those who do."""
        if self.cache is not None and isinstance(reply, Reply) and reply.error is ABSENT:
            self.cache.put(key, scope, reply, mine.stamp)
        if self.flights.get(key) is mine:
            del self.flights[key]
        if mine.waiters is not None:
            for waiter in mine.waiters:
                waiter(reply or Overloaded(_STOPPING))

    async def _join(self, flight: SingleFlight, trace: Trace) -> Reply:
        """Wait for the answer to an equal call."""
        trace.cache = "coalesced"
        landed: asyncio.Future[Resolved] = self._loop.create_future()
        flight.join(partial(_fulfil, landed))
        reply = await landed
        if isinstance(reply, Refusal):
            raise reply
        return reply

    # --- Calling upstreams -----------------------------------------------------------------------------

    def scope(self, call: Call) -> Scope:
        """Which blocks a call refers to."""
        read = self.readers.get(call.method)
        return NOTHING_KNOWN if read is None else read(call.params)

    async def fetch(
        self, call: Call, scope: Scope, deadline: float, trace: Trace, tried: Sequence[Upstream] = ()
    ) -> Reply:
        """Call upstreams, but those that were tried, or raise a refusal."""
        method = call.method
        if method not in APART:
            return answer(await self._one(call, scope, None, deadline, trace, tried))
        if method in SIGNED:
            return answer(await self._writes.send(call, deadline, trace))
        if method == GET_LOGS:
            return await self._logs(call, scope, deadline, trace)
        params, slot = sticky.decode_slot(method, call.params)
        if slot is not None and not self.exchange.has(slot):
            # The upstream that made it is not here, or not any more: another one answers with a node's error.
            params, slot = call.params, None
        outcome = await self._one(_with(call, params), scope, slot, deadline, trace, tried)
        reply = answer(outcome)
        return (
            reply
            if reply.error is not ABSENT
            else Reply(sticky.encode_slot(method, reply.result, outcome.upstream.slot))
        )

    async def _logs(self, call: Call, scope: Scope, deadline: float, trace: Trace) -> Reply:
        def send(params: Params) -> Coroutine[Any, Any, AttemptOutcome[Reply]]:
            return self._one(_with(call, params), scope, None, deadline, trace)

        def charge(calls: int) -> None:
            if trace.charge is not None:
                trace.charge(calls)
            trace.extra += calls

        return await Logs(send, charge).get(call.params, self.exchange.row.floor, self._logs_blocks)

    async def _one(
        self,
        call: Call,
        scope: Scope,
        slot: int | None,
        deadline: float,
        trace: Trace,
        tried: Sequence[Upstream] = (),
        first: FirstAttempt | None = None,
    ) -> AttemptOutcome[Reply]:
        method = call.method
        oldest = scope.oldest if scope.state else None
        need = Need(method, method in self.repeatable, scope.tip, oldest, slot, scope.number)
        judge = (first.judge if first is not None else None) or self.judge(method, scope)
        try:
            outcome = await self.exchange.send(
                jsonrpc.encode_call(call), jsonrpc.decode_reply, judge, deadline, trace, need, tried, first
            )
        finally:
            if judge.kind is Kind.WRITE:
                self.exchange.row.nudge()
        judge.note(outcome.upstream)
        return outcome

    def judge(self, method: str, scope: Scope) -> Judge:
        """The judge of answers to a call. To be made before it is sent."""
        if scope.holds is _TIP and scope.look is not _NOWHERE:
            return Judge(self.exchange, method, scope)
        # It has nothing to remember of a call, so one will do for all.
        judge = self._judges.get(method)
        if judge is None:
            judge = Judge(self.exchange, method, NOTHING_KNOWN)
            if self._catalogue.method(method) is not None:
                self._judges[method] = judge
        return judge


class Judge:
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
            row = exchange.row
            self._reorgs = row.reorgs
            self._head = row.head if row.is_fresh else NOTHING

    def __call__(self, reply: Reply) -> Verdict:
        """What an answer means. Raise `OutOfStep` where callers have seen more of the chain than it shows."""
        if reply.error is not ABSENT:
            return self._exchange.judge(self.kind, reply)
        if self._reorgs >= 0:
            number = self._exchange.network.catalogue.revealed(self._method, self._scope, reply.result)
            if number is not None:
                self._check(number)
            self._number = number
        return _FINAL

    def _check(self, number: int) -> None:
        row = self._exchange.row
        # The head when it was sent: what the prober has seen since is no measure. What callers have seen is.
        head = self._head if row.reorgs == self._reorgs else NOTHING
        least = max(head, row.shown)
        if number < least:
            raise OutOfStep(f"block {number}, where callers have seen {least}", sent=True)
        if head != NOTHING and number > max(row.head, least) + MAX_AHEAD:
            raise OutOfStep(f"block {number}, where the highest known is {least}", sent=True)

    def note(self, upstream: Upstream) -> None:
        """Note how far the chain is, where the last answer showed it: nobody is shown less from now on."""
        if self._number is not None and self._exchange.row.reorgs == self._reorgs:
            upstream.row.saw(self._number)
            self._exchange.row.saw(self._number)


def _with(call: Call, params: Params) -> Call:
    return call if params is call.params else WrittenCall(call.method, params, Raw(b"1"))


def _fulfil(landed: asyncio.Future[Resolved], reply: Resolved) -> None:
    if not landed.done():
        landed.set_result(reply)
