"""Asks the upstreams of one network: attempts, hedges, deadlines. `course.py` decides, this does.

`ask` gets one answer for a call or a batch. A call whose answer is a node's error that speaks of the node
(`chains/faults.py`) is asked again elsewhere; where nobody knows better, it is the answer after all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import random as chance
from typing import TypeVar

from tollgate.chains.catalogue import Kind
from tollgate.chains.faults import Verdict, verdict
from tollgate.core import jsonrpc
from tollgate.core.jsonrpc import Unparsable
from tollgate.core.shapes import ABSENT, Replies, Reply
from tollgate.errors import UpstreamUnavailable
from tollgate.gateway.messages import Network, Trace
from tollgate.gateway.upstream.choice import Need
from tollgate.gateway.upstream.connection import AttemptFailed, NoRoom, PoolFull, Response, ResponseTooLarge
from tollgate.gateway.upstream.failover import MAX_ATTEMPTS, Attempt, Failover, OutOfStep, Wait
from tollgate.gateway.upstream.health import Upstream
from tollgate.gateway.upstream.hedging import AttemptOutcome, Hedges, Relay
from tollgate.shm import metrics
from tollgate.shm.upstream_status import NetworkStatus
from tollgate.store.base import Meters

T = TypeVar("T")

# These statuses speak of the upstream, not of the call: its key, its quota, its health.
_ABOUT_THE_UPSTREAM = frozenset({401, 402, 403, 407, 408, 429})
_QUOTA_STATUSES = frozenset({402, 429})
# What is no fault of the upstream: our own bounds.
_OUR_BOUNDS = (PoolFull, NoRoom, ResponseTooLarge)
# Errors after which also what must not be repeated may be asked elsewhere: it was turned away at the door.
_FINAL = Verdict.FINAL
_TURNED_AWAY = frozenset({Verdict.QUOTA, Verdict.UNSUPPORTED})
# A hedge sooner than this gains nothing that anybody would notice.
_SOONEST_HEDGE = 0.002
# Before it is known how long an upstream takes.
_FIRST_HEDGE = 0.5


class BadStatus(AttemptFailed):
    """An HTTP status that is no answer to the call."""

    outcome = "status"


class QuotaStatus(BadStatus):
    """One that says that a quota is used up."""


class Nonsense(AttemptFailed):
    """A body that is no JSON-RPC response."""

    outcome = "nonsense"


class Exchange:
    """Asks the upstreams of one network."""

    def __init__(
        self,
        network: Network,
        upstreams: Sequence[Upstream],
        row: NetworkStatus,
        meters: Meters,
        writer: metrics.Writer,
        now: Callable[[], float],
        loop: asyncio.AbstractEventLoop,
        random: Callable[[], float] = chance,
    ) -> None:
        self.row = row
        self._meters = meters
        self._writer = writer
        self._cells = writer.cells
        self._now = now
        self._loop = loop
        self._random = random
        self._hedges = Hedges(loop, now)
        self._ready: dict[str, tuple[int, list[int]]] = {}
        self.change(network, upstreams)

    def change(self, network: Network, upstreams: Sequence[Upstream]) -> None:
        """Take over a network's settings and upstreams; calls under way go on with those they have."""
        self.network = network
        self.upstreams: tuple[Upstream, ...] = tuple(sorted(upstreams, key=lambda upstream: upstream.priority))
        self._names = (network.family, network.name)
        self._hedging = network.hedge and len(upstreams) > 1
        self._hedged = self._writer.cell(metrics.UPSTREAM_HEDGES, *self._names)
        self._ready = {
            upstream.name: (
                self._writer.cell(metrics.UPSTREAM_ATTEMPTS, *self._names, upstream.name, "ok"),
                self._writer.histogram(metrics.UPSTREAM_SECONDS, *self._names, upstream.name),
            )
            for upstream in upstreams
        }

    # --- One question ----------------------------------------------------------------------------------

    async def ask_call(
        self, body: bytes, deadline: float, trace: Trace, need: Need, tried: Sequence[Upstream] = ()
    ) -> AttemptOutcome[Reply]:
        """Get the answer to one call."""
        kind = self.network.catalogue.kind(need.method)
        return await self.ask(
            body, jsonrpc.decode_reply, lambda reply: self.judge(kind, reply), deadline, trace, need, tried
        )

    async def ask_batch(
        self, body: bytes, count: int, deadline: float, trace: Trace, need: Need
    ) -> AttemptOutcome[Replies]:
        """Get the answers to a batch of so many calls, from one upstream. Errors in it are for whoever asked."""
        return await self.ask(body, lambda data: jsonrpc.decode_batch(data, count), None, deadline, trace, need)

    async def ask(
        self,
        body: bytes,
        read: Callable[[bytes], T],
        judge: Callable[[T], Verdict] | None,
        deadline: float,
        trace: Trace,
        need: Need,
        tried: Sequence[Upstream] = (),
    ) -> AttemptOutcome[T]:
        """Get an answer, as `read` understands and `judge` judges it, or raise a refusal.

        `judge` may raise `OutOfStep` for an answer that nobody may be given.
        """
        failover = self.failover(need, deadline, tried)
        hedged = self._hedging and need.repeatable and need.slot is None
        relay: Relay[T] | None = Relay(self._loop) if hedged else None
        fault: AttemptOutcome[T] | None = None
        try:
            while True:
                step = failover.next(self._now())
                if relay is not None:
                    outcome = await self._raced(relay, step, failover, body, read, judge, trace, need)
                elif isinstance(step, Attempt):
                    self._hedges.earn()
                    outcome = await self.attempt(step.upstream, body, read, judge, step.until, trace, need)
                else:
                    outcome = None
                    if step is not None:
                        await self.rest(step.seconds)
                if outcome is None:
                    if step is None:
                        break
                elif outcome.failure is not None:
                    failover.failed(outcome.upstream, outcome.failure)
                elif outcome.verdict is _FINAL or not (need.repeatable or outcome.verdict in _TURNED_AWAY):
                    trace.upstream = outcome.upstream.name
                    return outcome
                else:
                    failover.faulted(outcome.upstream, outcome.verdict, self._now())
                    fault = outcome
        finally:
            if relay is not None:
                relay.call_off()
        if fault is None:
            raise failover.refusal()
        if fault.verdict is Verdict.QUOTA:
            raise UpstreamUnavailable("The upstreams of this network have used up their quotas: try again later.")
        trace.upstream = fault.upstream.name
        return fault

    def failover(
        self, need: Need, deadline: float, tried: Sequence[Upstream] = (), most: int = MAX_ATTEMPTS
    ) -> Failover:
        """The attempts at a call, still to be made."""
        return Failover(self.upstreams, self.row, need, deadline, self._random, self._may_ask, tried, most)

    async def _raced(
        self,
        relay: Relay[T],
        step: Attempt | Wait | None,
        failover: Failover,
        body: bytes,
        read: Callable[[bytes], T],
        judge: Callable[[T], Verdict] | None,
        trace: Trace,
        need: Need,
    ) -> AttemptOutcome[T] | None:
        """Take a step beside attempts that are still under way; the next outcome of any. None: there is none yet.

        So nobody waits for a silent upstream alone while there is somebody else who could be asked.
        """
        if not isinstance(step, Attempt):
            if relay.left:
                return await relay.next(None if step is None else step.seconds)
            if step is not None:
                await self.rest(step.seconds)
            return None
        upstream = step.upstream
        self._hedges.earn()

        def hedge() -> bool:
            other = failover.spare(self._now())
            if other is None:
                return False
            self._cells[self._hedged] += 1
            relay.start(self.attempt(other.upstream, body, read, judge, other.until, trace, need))
            return True

        due = self._now() + max(upstream.p95 or _FIRST_HEDGE, _SOONEST_HEDGE)
        relay.hedge(self._hedges.watch(upstream.slot, due, hedge))
        relay.start(self.attempt(upstream, body, read, judge, step.until, trace, need))
        return await relay.next()

    async def attempt(
        self,
        upstream: Upstream,
        body: bytes,
        read: Callable[[bytes], T],
        judge: Callable[[T], Verdict] | None,
        until: float,
        trace: Trace,
        need: Need,
    ) -> AttemptOutcome[T]:
        """Ask one upstream once, and keep its books."""
        began = self._now()
        trace.attempts += 1
        trace.upstream = upstream.name
        upstream.began()
        try:
            response = await upstream.pool.send(body, until, repeatable=need.repeatable)
            answer = read_response(response, read)
        except QuotaStatus as failure:
            upstream.gave_up()
            self._count(upstream, failure.outcome)
            return AttemptOutcome(upstream, verdict=Verdict.QUOTA)
        except AttemptFailed as failure:
            if isinstance(failure, _OUR_BOUNDS):
                upstream.gave_up()
            else:
                upstream.failed(self._now())
            self._count(upstream, failure.outcome)
            return AttemptOutcome(upstream, failure=failure)
        except BaseException:
            upstream.gave_up()
            raise
        now = self._now()
        upstream.answered(now - began, now)
        ok, histogram = self._ready.get(upstream.name) or self._late(upstream)
        self._cells[ok] += 1
        self._writer.observe(histogram, now - began)
        try:
            return AttemptOutcome(upstream, answer, judge(answer) if judge is not None else _FINAL)
        except OutOfStep as failure:
            return AttemptOutcome(upstream, failure=failure)

    def judge(self, kind: Kind, reply: Reply) -> Verdict:
        """What a node's answer to a call means."""
        if reply.error is ABSENT:
            return Verdict.FINAL
        code, message = jsonrpc.error_words(reply)
        return verdict(self.network.family, kind, code, message)

    def has(self, slot: int) -> bool:
        """Whether the upstream of this row of the board is one of ours."""
        return any(upstream.slot == slot for upstream in self.upstreams)

    def takers(self, method: str) -> list[bool]:
        """Which of the upstreams that do not take everything take this method."""
        return [upstream.takes(method) for upstream in self.upstreams if upstream.picky]

    def spare(self, upstream: Upstream) -> None:
        """Leave an upstream alone for a while that said that a quota is used up."""
        upstream.spare(self._now())

    def sweep(self) -> None:
        """Now and then: fail what has passed its deadline."""
        for upstream in self.upstreams:
            upstream.pool.sweep()

    def tell(self) -> None:
        """Once a second: say how our calls fared."""
        now = self._now()
        for upstream in self.upstreams:
            upstream.tell(now)

    # --- Books -----------------------------------------------------------------------------------------

    def _may_ask(self, upstream: Upstream) -> bool:
        return not upstream.limit or self._meters.take(upstream.limit, self._now())[-1].allowed

    def _count(self, upstream: Upstream, outcome: str) -> None:
        self._writer.add(self._writer.cell(metrics.UPSTREAM_ATTEMPTS, *self._names, upstream.name, outcome))

    def _late(self, upstream: Upstream) -> tuple[int, list[int]]:
        """The books of an upstream that was taken away while it was asked."""
        return (
            self._writer.cell(metrics.UPSTREAM_ATTEMPTS, *self._names, upstream.name, "ok"),
            self._writer.histogram(metrics.UPSTREAM_SECONDS, *self._names, upstream.name),
        )

    async def rest(self, seconds: float) -> None:
        """Wait, in a flight."""
        rested = self._loop.create_future()
        self._loop.call_later(seconds, _done, rested)
        await rested


def _done(rested: asyncio.Future[None]) -> None:
    if not rested.done():
        rested.set_result(None)


def read_response(response: Response, read: Callable[[bytes], T]) -> T:
    """Tell an answer to the call from a failure of the upstream."""
    status = response.status
    if status >= 500 or status in _ABOUT_THE_UPSTREAM or 300 <= status < 400:
        kind = QuotaStatus if status in _QUOTA_STATUSES else BadStatus
        raise kind(f"HTTP {status}", sent=True)
    try:
        return read(response.body)
    except Unparsable as error:
        raise Nonsense(f"HTTP {status}: {error}", sent=True) from error
