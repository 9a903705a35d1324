"""Calls the upstreams of one network: attempts, hedges, deadlines. `failover.py` decides, this acts.

`send` gets one answer for a call or a batch. A call whose answer is an error that concerns the node
(`chains/faults.py`) is retried elsewhere; where no other answers, it is the answer after all.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from random import random as chance
from typing import Any, TypeVar

from msgspec import Struct

from tollgate import log
from tollgate.chains.catalogue import Kind
from tollgate.chains.faults import Verdict, verdict
from tollgate.core import jsonrpc
from tollgate.core.jsonrpc import Unparsable
from tollgate.core.shapes import ABSENT, Replies, Reply
from tollgate.errors import UpstreamUnavailable
from tollgate.gateway.messages import ServedNetwork, Trace
from tollgate.gateway.tracing import CLIENT, Span
from tollgate.gateway.upstream.choice import Need, View
from tollgate.gateway.upstream.connection import (
    AttemptFailed,
    NoRoom,
    PoolFull,
    Response,
    ResponseFuture,
    ResponseTooLarge,
)
from tollgate.gateway.upstream.failover import MAX_ATTEMPTS, Attempt, Failover, OutOfStep, Wait
from tollgate.gateway.upstream.health import Upstream
from tollgate.gateway.upstream.hedging import RETRY_SECONDS, AttemptOutcome, HedgeBudget, hedge_after
from tollgate.shm import metrics
from tollgate.shm.upstream_status import NetworkStatus, State
from tollgate.store.base import Meters

T = TypeVar("T")
_log = log.get("gateway")

# These statuses speak of the upstream, not of the call: its key, its quota, its health.
_ABOUT_THE_UPSTREAM = frozenset({401, 402, 403, 407, 408, 429})
_QUOTA_STATUSES = frozenset({402, 429})
# What is no fault of the upstream: our own bounds.
_OUR_BOUNDS = (PoolFull, NoRoom, ResponseTooLarge)
# Errors after which also what must not be repeated may be sent elsewhere: it was not accepted.
_FINAL = Verdict.FINAL
_WRONG_CHAIN = int(State.WRONG_CHAIN)
_TURNED_AWAY = frozenset({Verdict.QUOTA, Verdict.UNSUPPORTED})


class BadStatus(AttemptFailed):
    """An HTTP status that is no answer to the call."""

    outcome = "status"


class QuotaStatus(BadStatus):
    """One that means that a quota is used up."""


class Nonsense(AttemptFailed):
    """A body that is no JSON-RPC response."""

    outcome = "nonsense"


class FirstAttempt(Struct, frozen=True):
    """An attempt that a straight call has begun, to be gone on with."""

    upstream: Upstream
    response: ResponseFuture
    began: float
    judge: Any = None
    """What its answer is judged by, where that depends on the status from before it was sent."""


Start = Callable[[Attempt, FirstAttempt | None], Coroutine[Any, Any, AttemptOutcome[T]]]
"""Makes one attempt at a call, or goes on with the one that was begun."""


class Exchange:
    """Calls the upstreams of one network."""

    def __init__(
        self,
        network: ServedNetwork,
        upstreams: Sequence[Upstream],
        row: NetworkStatus,
        meters: Meters,
        writer: metrics.Writer,
        now: Callable[[], float],
        loop: asyncio.AbstractEventLoop,
        random: Callable[[], float] = chance,
    ) -> None:
        self.row = row
        self._epoch = row.epoch
        self._meters = meters
        self._writer = writer
        self._cells = writer.cells
        self._now = now
        self._loop = loop
        self._request_seconds = 0.0
        self.hedge_budget = HedgeBudget(now)
        self._abandoned: set[asyncio.Task[Any]] = set()
        """Attempts whose call was answered by another one: they run to their end, for what they show of health."""
        self.random = random
        self.change(network, upstreams)

    def change(self, network: ServedNetwork, upstreams: Sequence[Upstream]) -> None:
        """Take over a network's settings and upstreams; calls under way go on with those they have."""
        self.network = network
        self.upstreams: tuple[Upstream, ...] = tuple(sorted(upstreams, key=lambda upstream: upstream.priority))
        self._names = (network.family, network.name)
        self.hedging = network.hedge and len(upstreams) > 1
        self._hedged_cell = self._writer.cell(metrics.UPSTREAM_HEDGES, *self._names)
        for upstream in upstreams:
            upstream.count_in(self._writer, *self._names)
        self._view: View | None = None
        self._calls_reported = 0

    def be_patient(self, request_seconds: float) -> None:
        """Take over how long a request may take."""
        self._request_seconds = request_seconds
        self._view = None

    # --- One look at the shared status -----------------------------------------------------------------

    def view(self, now: float) -> View | None:
        """The status of network and upstreams; None while the prober is silent."""
        view = self._view
        if view is None or self._epoch[0] != view.epoch:
            view = self._view = self._look()
        return view if now < view.believed_until else None

    def _look(self) -> View:
        epoch = self._epoch[0]
        for upstream in self.upstreams:
            # As `Failover` does it: an attempt leaves time for another, where there is another upstream.
            others = any(each is not upstream and each.row.state != _WRONG_CHAIN for each in self.upstreams)
            seconds = self._request_seconds / 2 if others else self._request_seconds
            upstream.patience = min(upstream.settings.timeout_seconds, seconds)
        return View(epoch, self.row.snapshot(), self.upstreams)

    # --- One call or batch -----------------------------------------------------------------------------

    async def send_call(self, body: bytes, deadline: float, trace: Trace, need: Need) -> AttemptOutcome[Reply]:
        """Get the answer to one call."""
        kind = self.network.catalogue.kind(need.method)
        return await self.send(
            body, jsonrpc.decode_reply, lambda reply: self.judge(kind, reply), deadline, trace, need
        )

    async def send_batch(
        self,
        body: bytes,
        ids: Sequence[int],
        deadline: float,
        trace: Trace,
        need: Need,
        first: FirstAttempt | None = None,
    ) -> AttemptOutcome[Replies]:
        """Get the answers to a batch of calls under these ids from one upstream; errors in it are left alone."""
        return await self.send(
            body, lambda data: jsonrpc.decode_batch(data, ids), None, deadline, trace, need, first=first
        )

    async def send(
        self,
        body: bytes,
        read: Callable[[bytes], T],
        judge: Callable[[T], Verdict] | None,
        deadline: float,
        trace: Trace,
        need: Need,
        tried: Sequence[Upstream] = (),
        first: FirstAttempt | None = None,
    ) -> AttemptOutcome[T]:
        """Get an answer, as `read` understands and `judge` judges it, or raise a refusal.

        `judge` may raise `OutOfStep` for an answer that nobody may be given.
        """
        failover = self.failover(need, deadline, tried)

        def start(step: Attempt, first: FirstAttempt | None) -> Coroutine[Any, Any, AttemptOutcome[T]]:
            return self.attempt(step.upstream, body, read, judge, step.until, trace, need, first)

        if self.hedging and need.repeatable and need.slot is None:
            outcomes = self._hedged(failover, start, first)
        else:
            outcomes = self._in_turn(failover, start, first)
        fault: AttemptOutcome[T] | None = None
        async with aclosing(outcomes):
            async for outcome in outcomes:
                if outcome.failure is not None:
                    failover.failed(outcome.upstream, outcome.failure)
                elif outcome.verdict is _FINAL or not (need.repeatable or outcome.verdict in _TURNED_AWAY):
                    trace.upstream = outcome.upstream.name
                    return outcome
                else:
                    failover.faulted(outcome.upstream, outcome.verdict, self._now())
                    fault = outcome
        if fault is None:
            raise failover.refusal()
        if fault.verdict is Verdict.QUOTA:
            raise UpstreamUnavailable("The upstreams of this network have used up their quotas: try again later.")
        trace.upstream = fault.upstream.name
        return fault

    def failover(
        self, need: Need, deadline: float, tried: Sequence[Upstream] = (), max_attempts: int = MAX_ATTEMPTS
    ) -> Failover:
        """The attempts at a call, still to be made."""
        return Failover(self.upstreams, self.row, need, deadline, self.random, self._may_call, tried, max_attempts)

    async def _in_turn(
        self, failover: Failover, start: Start[T], first: FirstAttempt | None
    ) -> AsyncGenerator[AttemptOutcome[T], None]:
        """The outcomes of attempts, one after the other."""
        step: Attempt | Wait | None = (
            failover.begin(first.upstream, first.began) if first else self._next(failover)
        )
        while step is not None:
            if isinstance(step, Attempt):
                yield await start(step, first)
                first = None
            else:
                await asyncio.sleep(step.seconds)
            step = self._next(failover)

    async def _hedged(
        self, failover: Failover, start: Start[T], first: FirstAttempt | None
    ) -> AsyncGenerator[AttemptOutcome[T], None]:
        """The outcomes of attempts as they come: the next is made when one fails, or beside one that is slow.

        So no caller waits for a silent upstream alone while another could be called.
        """
        attempts: dict[asyncio.Task[AttemptOutcome[T]], None] = {}
        step: Attempt | Wait | None = (
            failover.begin(first.upstream, first.began) if first else self._next(failover)
        )
        try:
            while step is not None or attempts:
                hedge_at: float | None = None
                seconds = step.seconds if isinstance(step, Wait) else None
                if isinstance(step, Attempt):
                    began = self._now() if first is None else first.began
                    attempts[self._loop.create_task(start(step, first))] = None
                    hedge_at = began + hedge_after(step.upstream)
                    first = None
                if attempts:
                    outcome = await self._first_outcome(attempts, failover, start, hedge_at, seconds)
                    if outcome is not None:
                        yield outcome
                else:
                    await asyncio.sleep(seconds or 0)
                step = self._next(failover)
        finally:
            for attempt in attempts:
                self._abandoned.add(attempt)
                attempt.add_done_callback(self._forget)

    async def _first_outcome(
        self,
        attempts: dict[asyncio.Task[AttemptOutcome[T]], None],
        failover: Failover,
        start: Start[T],
        hedge_at: float | None,
        seconds: float | None,
    ) -> AttemptOutcome[T] | None:
        """The outcome of whichever attempt ends first, hedged where that takes long; None: `seconds` are over."""
        while True:
            if hedge_at is not None:
                seconds = max(0.0, hedge_at - self._now())
            await asyncio.wait(attempts, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            for attempt in attempts:
                if attempt.done():
                    del attempts[attempt]
                    return attempt.result()
            if hedge_at is None:
                return None
            hedge = self._hedge(failover)
            if hedge is None:
                hedge_at = self._now() + RETRY_SECONDS
            else:
                attempts[self._loop.create_task(start(hedge, None))] = None
                hedge_at = seconds = None

    def _hedge(self, failover: Failover) -> Attempt | None:
        """Where to make a second attempt beside a slow one; None: not now."""
        if not self.hedge_budget.take(sum(upstream.calls for upstream in self.upstreams)):
            return None
        step = failover.spare(self._now())
        if step is None:
            self.hedge_budget.give_back()
        else:
            self._cells[self._hedged_cell] += 1
        return step

    def _next(self, failover: Failover) -> Attempt | Wait | None:
        return failover.next(self._now())

    def _forget(self, attempt: asyncio.Task[Any]) -> None:
        self._abandoned.discard(attempt)
        if not attempt.cancelled() and attempt.exception() is not None:
            _log.error("an attempt failed by a defect", exc_info=attempt.exception())

    def attempt(
        self,
        upstream: Upstream,
        body: bytes,
        read: Callable[[bytes], T],
        judge: Callable[[T], Verdict] | None,
        until: float,
        trace: Trace,
        need: Need,
        first: FirstAttempt | None = None,
    ) -> Coroutine[Any, Any, AttemptOutcome[T]]:
        """Call one upstream once, and count the outcome. Counted as begun at once: choices depend on it."""
        began = self._now()
        if first is None:
            trace.attempts += 1
            trace.upstream = upstream.name
            upstream.began()
        else:
            began = first.began
        if trace.span is None:
            return self._attempted(upstream, body, read, judge, until, need, first, began)
        span = trace.span.child(f"attempt {upstream.name}", CLIENT)
        span.attributes.update(
            {
                "rpc.system": "jsonrpc",
                "tollgate.network": self.network.path,
                "tollgate.upstream": upstream.name,
                "tollgate.attempt": trace.attempts,
            }
        )
        return _traced(
            span, lambda: self._attempted(upstream, body, read, judge, until, need, first, began, span.headers())
        )

    async def _attempted(
        self,
        upstream: Upstream,
        body: bytes,
        read: Callable[[bytes], T],
        judge: Callable[[T], Verdict] | None,
        until: float,
        need: Need,
        first: FirstAttempt | None,
        began: float,
        more: bytes = b"",
    ) -> AttemptOutcome[T]:
        try:
            if first is None:
                response = await upstream.pool.send(body, until, repeatable=need.repeatable, more=more)
            else:
                response = await self._gone_on(first, body, until)
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
        upstream.answered(began)
        upstream.count(self._now())
        try:
            return AttemptOutcome(upstream, answer, judge(answer) if judge is not None else _FINAL)
        except OutOfStep as failure:
            return AttemptOutcome(upstream, failure=failure)

    def use_rate(self, upstream: Upstream, now: float) -> None:
        """Count a call against an upstream's rate."""
        self._meters.take(upstream.limit, now)

    def within_rate(self, upstream: Upstream, now: float) -> bool:
        """Whether an upstream's rate allows another call; takes nothing."""
        return all(self._meters.peek(key, limit, now).allowed for key, limit in upstream.limit)

    async def _gone_on(self, first: FirstAttempt, body: bytes, until: float) -> Response:
        try:
            return await first.response
        except AttemptFailed as failure:
            if not failure.stale:
                raise
        # A straight call is a read: it may be sent again.
        return await first.upstream.pool.resend(body, until)

    def judge(self, kind: Kind, reply: Reply) -> Verdict:
        """What a node's answer to a call means."""
        if reply.error is ABSENT:
            return Verdict.FINAL
        code, message = jsonrpc.error_details(reply)
        return verdict(self.network.family, kind, code, message)

    def has(self, slot: int) -> bool:
        """Whether the upstream of this slot is one of ours."""
        return any(upstream.slot == slot for upstream in self.upstreams)

    def takers(self, method: str) -> list[bool]:
        """Which of the upstreams that do not take everything take this method."""
        return [upstream.takes(method) for upstream in self.upstreams if upstream.picky]

    def spare(self, upstream: Upstream) -> None:
        """Do not call an upstream for a while whose quota is used up."""
        upstream.spare(self._now())

    def sweep(self) -> None:
        """Ten times a second: fail what has passed its deadline."""
        for upstream in self.upstreams:
            upstream.pool.sweep()

    def report(self) -> None:
        """Once a second: publish the statistics of our calls."""
        now = self._now()
        for upstream in self.upstreams:
            upstream.report(now)
        calls = sum(upstream.calls for upstream in self.upstreams)
        if calls != self._calls_reported:
            self._calls_reported = calls
            self.row.want()

    # --- Books -----------------------------------------------------------------------------------------

    def _may_call(self, upstream: Upstream) -> bool:
        return not upstream.limit or self._meters.take(upstream.limit, self._now())[-1].allowed

    def _count(self, upstream: Upstream, outcome: str) -> None:
        self._writer.add(self._writer.cell(metrics.UPSTREAM_ATTEMPTS, *self._names, upstream.name, outcome))


async def _traced(span: Span, attempt: Callable[[], Coroutine[Any, Any, AttemptOutcome[T]]]) -> AttemptOutcome[T]:
    """Make an attempt, and end its span with what became of it."""
    outcome = "cancelled"
    failed = True
    try:
        ended = await attempt()
        failed = not ended.good
        outcome = ended.failure.outcome if ended.failure is not None else ended.verdict.value if failed else "ok"
        return ended
    finally:
        span.end({"tollgate.outcome": outcome}, failed=failed)


def read_response(response: Response, read: Callable[[bytes], T]) -> T:
    """The answer to the call; raises on a failure of the upstream."""
    status = response.status
    if status >= 500 or status in _ABOUT_THE_UPSTREAM or 300 <= status < 400:
        kind = QuotaStatus if status in _QUOTA_STATUSES else BadStatus
        raise kind(f"HTTP {status}", sent=True)
    try:
        return read(response.body)
    except Unparsable as error:
        raise Nonsense(f"HTTP {status}: {error}", sent=True) from error
