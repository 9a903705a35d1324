"""All attempts at one call, batch or transaction, as one state machine: failover, hedging, pauses. No tasks.

`Attempts` is a `Failover`, the pure policy, that also acts: it starts attempts, owns the one timer that may run,
and calls `done` once, with an outcome or a refusal. Deadlines are the pool's: its sweep fails what has passed
them.

| state | under way | timer | event -> next state |
|---|---|---|---|
| choosing | any | none | upstream -> sent; pause -> resting; none -> over, or hedged while some are under way |
| sent | 1 or more | hedge | answer -> over; failure -> choosing; timer: paid for -> hedged, else again in 20 ms |
| hedged | 1 or more | none | answer -> over; failure -> choosing |
| resting | any | pause | timer -> choosing; answer -> over; failure -> choosing |
| over | losers | none | losers run to their end for the statistics of their upstreams; no upstream is called |

An error that is about the node rather than the call counts as a failure. An `Attempt` is what the pool calls back:
waiting for a connection -> sent -> sent once more, where a kept connection was stale -> ended or cancelled.

Starting an attempt is the last statement of each step, because it may fail at once and then all that follows
happens within. Losers hold this object and never the call, which may be serving the next request by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from operator import attrgetter
from typing import Generic, TypeVar

from msgspec import Struct, field

from tollgate.api.logs import MAX_ATTEMPTS_KEPT, AttemptVerdict
from tollgate.chains.faults import Verdict
from tollgate.core.entries import AttemptEntry
from tollgate.core.jsonrpc import Unparsable
from tollgate.core.shapes import ABSENT, Reply
from tollgate.errors import Refusal, UpstreamUnavailable
from tollgate.gateway.messages import Route
from tollgate.gateway.tracing import CLIENT, Span
from tollgate.gateway.upstream.connection import (
    AttemptFailed,
    Connection,
    NoRoom,
    PoolFull,
    Response,
    ResponseTooLarge,
)
from tollgate.gateway.upstream.exchange import RETRY_SECONDS
from tollgate.gateway.upstream.failover import Failover, NextAttempt, OutOfStep, TooFarAhead, Wait
from tollgate.gateway.upstream.health import Upstream
from tollgate.gateway.upstream.pool import PoolRequest

T = TypeVar("T")

# These statuses speak of the upstream, not of the call: its key, its quota, its health.
_ABOUT_THE_UPSTREAM = frozenset({401, 402, 403, 407, 408, 429})
_QUOTA_STATUSES = frozenset({402, 429})
# Members of enumerations under names of their own: that is much quicker.
_FINAL, _QUOTA = Verdict.FINAL, Verdict.QUOTA
_ANSWERED, _NODE_ERROR = AttemptVerdict.ANSWERED, AttemptVerdict.NODE_ERROR
_HEDGE_WON, _HEDGE_LOST, _CANCELLED = (
    AttemptVerdict.HEDGE_WON,
    AttemptVerdict.HEDGE_LOST,
    AttemptVerdict.CANCELLED,
)
# Errors after which also what must not be repeated may be sent elsewhere: it was not accepted.
_TURNED_AWAY = frozenset({Verdict.QUOTA, Verdict.UNSUPPORTED})
# Verdicts of an only attempt that follow from the outcome.
_FOLLOW = frozenset({_ANSWERED, _NODE_ERROR})
_START = attrgetter("start_micros")


class BadStatus(AttemptFailed):
    """An HTTP status that is no answer to the call."""

    outcome = "status"
    verdict = AttemptVerdict.STATUS


class QuotaStatus(BadStatus):
    """One that means that a quota is used up."""


class Nonsense(AttemptFailed):
    """A body that is no JSON-RPC response."""

    outcome = "nonsense"
    verdict = AttemptVerdict.INVALID


# What is no fault of the upstream: our own bounds, and a quota of ours.
_NO_FAULT = (PoolFull, NoRoom, ResponseTooLarge, QuotaStatus)


class AttemptOutcome(Struct, Generic[T], gc=False):
    """The end of one attempt: an answer and its meaning, or a failure. A call never ends with a failure."""

    upstream: Upstream
    answer: T = None  # type: ignore[assignment] # None: a failure, or only the word that a quota is used up
    verdict: Verdict = Verdict.FINAL
    failure: AttemptFailed | None = None


class FirstAttempt(Struct, gc=False):
    """The attempt that the fast path has made, and its end, where it has ended."""

    body: bytes
    upstream: Upstream
    started: float
    connection: Connection
    ended: Response | AttemptFailed | None


class Attempt(PoolRequest, Generic[T], eq=False, kw_only=True):
    """One attempt under way."""

    attempts: Attempts[T] | None
    """None: it was cancelled, or has ended."""
    upstream: Upstream
    started: float
    span: Span | None = None

    @property
    def holder(self) -> str:
        return "" if self.attempts is None else self.attempts.route.holder

    @property
    def over(self) -> bool:
        return self.attempts is None

    def received(self, status: int, body: bytes) -> None:
        """Take the response: an answer, a status about the upstream, or nonsense."""
        attempts, upstream = self.attempts, self.upstream
        if attempts is None:
            return
        if status != 200 and (status >= 500 or status in _ABOUT_THE_UPSTREAM or 300 <= status < 400):
            failure = (QuotaStatus if status in _QUOTA_STATUSES else BadStatus)(f"HTTP {status}", sent=True)
            failure.status = status
            self.abandoned(failure)
            return
        try:
            answer = attempts.read(body)
        except Unparsable as error:
            self.abandoned(Nonsense(f"HTTP {status}: {error}", sent=True))
            return
        validator = attempts.validator
        if attempts.plain and isinstance(answer, Reply) and answer.error is ABSENT:
            validator = None
        try:
            outcome = AttemptOutcome(
                upstream, answer, _FINAL if validator is None else validator(answer, upstream)
            )
        except TooFarAhead as ahead:
            self.abandoned(ahead)
            return
        except OutOfStep as out_of_step:
            outcome = AttemptOutcome(upstream, failure=out_of_step)
        else:
            if attempts.exchange.mask is not None:
                # After its meaning was found out.
                outcome.answer = attempts.exchange.masked(answer)
        # Not before: after a defect above, the attempt counts as failed, and must be counted once. As
        # `upstream.answered`, without its call.
        upstream.in_flight -= 1
        upstream.starts.append(self.started)
        upstream.count(attempts.exchange.now())
        attempts.ended(self, outcome)

    def abandoned(self, failure: AttemptFailed) -> None:
        """Take the reason why there is no answer."""
        attempts, upstream = self.attempts, self.upstream
        if attempts is None:
            return
        exchange = attempts.exchange
        if isinstance(failure, _NO_FAULT):
            upstream.abandoned()
        else:
            upstream.failed(exchange.now())
        exchange.count(upstream, failure.outcome)
        if isinstance(failure, QuotaStatus):
            attempts.ended(self, AttemptOutcome(upstream, verdict=_QUOTA))
        else:
            attempts.ended(self, AttemptOutcome(upstream, failure=failure))

    def cancel(self) -> None:
        """End it; a response that still comes is dropped."""
        self.attempts = None
        self.upstream.abandoned()
        if self.span is not None:
            self.span.end({"tollgate.outcome": "cancelled"}, failed=True)


class Attempts(Failover, Generic[T], eq=False, kw_only=True):
    """The attempts at one call or batch."""

    body: bytes
    read: Callable[[bytes], T]
    validator: Callable[[T, Upstream], Verdict] | None
    """What an answer means; it may raise `OutOfStep`. None: every answer will do."""
    plain: bool = False
    """Whether every result will do, so that only errors are validated."""
    route: Route
    done: Callable[[AttemptOutcome[T] | Refusal], None] | None
    """None: it is over."""
    _under_way: list[Attempt[T]] = field(default_factory=list)
    _timer: asyncio.TimerHandle | None = None
    _fault: AttemptOutcome[T] | None = None
    """The last answer that is an error about a node."""

    resends = True
    """Whether a connection itself may send it again, where it may be repeated."""

    # --- The start -------------------------------------------------------------------------------------

    def resume(self, first: FirstAttempt) -> None:
        """Go on with an attempt that the fast path has made."""
        upstream, ended = first.upstream, first.ended
        self._attempts = self.route.attempts = 1
        self.route.upstream = upstream.name
        self.tried.append(upstream)
        until = first.started + upstream.attempt_seconds
        attempt = Attempt(
            upstream.pool, self.body, until, True, attempts=self, upstream=upstream, started=first.started
        )
        self._under_way.append(attempt)
        if isinstance(ended, Response):
            attempt.received(ended.status, ended.body)
        elif ended is not None:
            attempt.failed(ended)
        else:
            first.connection.receiver = attempt
            if self.exchange.hedging:
                # It is late already, or it would not have come here.
                self._late()

    # --- What happens ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Take the next step: at first, after a failure, after a pause."""
        exchange = self.exchange
        now = exchange.now()
        step = self.next(now)
        if step is None:
            if not self._under_way:
                self._give_up()
        elif isinstance(step, Wait):
            self._timer = exchange.loop.call_later(step.seconds, self.start)
        else:
            self._send(step, now)

    def _send(self, step: NextAttempt, now: float) -> None:
        attempt = self._begin(step, now)
        exchange, requirements = self.exchange, self.requirements
        if (
            exchange.hedging
            and requirements.repeatable
            and requirements.slot is None
            and len(self.tried) < len(exchange.upstreams)
        ):
            self._timer = exchange.loop.call_later(step.upstream.hedge_after, self._late)
        # Last: it may fail at once, and all that follows from that happens within.
        attempt.pool.start(attempt)

    def _begin(self, step: NextAttempt, now: float) -> Attempt[T]:
        """Count an attempt before it is started: choices depend on it."""
        upstream, route = step.upstream, self.route
        route.attempts += 1
        route.upstream = upstream.name
        # As `upstream.started`, without its call.
        upstream.in_flight += 1
        upstream.calls += 1
        if upstream.in_doubt:
            upstream.try_again()
        resends = self.resends and self.requirements.repeatable
        attempt = Attempt(
            upstream.pool, self.body, step.until, resends, attempts=self, upstream=upstream, started=now
        )
        self._under_way.append(attempt)
        if route.span is not None:
            attempt.span = span = _begin_span(route.span, self.exchange.network.path, upstream, route.attempts)
            attempt.more = span.headers()
        return attempt

    def ended(self, attempt: Attempt[T], outcome: AttemptOutcome[T]) -> None:
        """Take the end of an attempt."""
        attempt.attempts = None
        self._under_way.remove(attempt)
        if attempt.span is not None:
            _end_span(attempt.span, outcome)
        if self.done is None:
            return
        self._keep(attempt, outcome)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._take(outcome)

    def _take(self, outcome: AttemptOutcome[T]) -> None:
        if outcome.failure is not None:
            self.failed(outcome.upstream, outcome.failure)
        elif outcome.verdict is _FINAL or not (self.requirements.repeatable or outcome.verdict in _TURNED_AWAY):
            self._over(outcome)
            return
        else:
            self.faulted(outcome.upstream, outcome.verdict, self.exchange.now())
            self._fault = outcome
        self.start()

    def _keep(self, attempt: Attempt[T], end: AttemptOutcome[T] | AttemptVerdict) -> None:
        """Keep an attempt for the record: it has ended, or is not waited for any longer."""
        status = 0
        if not isinstance(end, AttemptOutcome):
            verdict = end
        elif end.failure is not None:
            verdict, status = end.failure.verdict, end.failure.status
        elif end.verdict is not _FINAL:
            verdict = error_verdict(end.verdict)
        elif self._under_way and self._under_way[0].started < attempt.started:
            verdict = _HEDGE_WON
        elif isinstance(end.answer, Reply) and end.answer.error is not ABSENT:
            verdict = _NODE_ERROR
        else:
            verdict = _ANSWERED
        route, now = self.route, self.exchange.now()
        start, ended = max(0.0, attempt.started - route.started), now - route.started
        kept = AttemptEntry(attempt.upstream.name, int(start * 1e6), int(ended * 1e6), verdict, status)
        trace: tuple[AttemptEntry, ...] = (kept,)
        if route.trace:
            trace = (*route.trace[: MAX_ATTEMPTS_KEPT - 1], kept)
            if trace[-2].start_micros > kept.start_micros:
                trace = tuple(sorted(trace, key=_START))
        route.trace = trace
        route.kept = 1 if len(trace) == 1 and verdict in _FOLLOW else trace

    def _late(self) -> None:
        """Make a second attempt beside one that takes longer than usual, if it can be paid for."""
        self._timer = None
        exchange = self.exchange
        now = exchange.now()
        step = exchange.pay_for_hedge(self.parallel, now)
        if step is None:
            self._timer = exchange.loop.call_later(RETRY_SECONDS, self._late)
        else:
            attempt = self._begin(step, now)
            attempt.pool.start(attempt)

    # --- The end ---------------------------------------------------------------------------------------

    def _give_up(self) -> None:
        """No upstream is left: the last error of a node about itself is the answer, where there is one."""
        fault = self._fault
        if fault is None:
            self._over(self.refusal())
        elif fault.verdict is _QUOTA:
            self._over(
                UpstreamUnavailable("The upstreams of this network have used up their quotas: try again later.")
            )
        else:
            self._over(fault)

    def _over(self, result: AttemptOutcome[T] | Refusal) -> None:
        done, self.done = self.done, None
        if isinstance(result, AttemptOutcome):
            self.route.upstream = result.upstream.name
        for attempt in self._under_way:
            self._keep(attempt, _HEDGE_LOST)
        assert done is not None  # noqa: S101 - it ends once
        done(result)

    def cancel(self) -> None:
        """Cancel all attempts; `done` is not called."""
        if self.done is not None:
            for attempt in self._under_way:
                self._keep(attempt, _CANCELLED)
        self.done = None
        if self._timer is not None:
            self._timer.cancel()
        for attempt in self._under_way:
            attempt.cancel()
        self._under_way.clear()


def error_verdict(verdict: Verdict | None) -> AttemptVerdict:
    """How an attempt is recorded whose answer is an error of a node; None: an answer that must not be used."""
    if verdict is None:
        return AttemptVerdict.OUT_OF_STEP
    return AttemptVerdict.QUOTA if verdict is _QUOTA else _NODE_ERROR


def _begin_span(request: Span, network: str, upstream: Upstream, number: int) -> Span:
    span = request.child(f"attempt {upstream.name}", CLIENT)
    span.attributes.update(
        {
            "rpc.system": "jsonrpc",
            "tollgate.network": network,
            "tollgate.upstream": upstream.name,
            "tollgate.attempt": number,
        }
    )
    return span


def _end_span(span: Span, outcome: AttemptOutcome[T]) -> None:
    failure, verdict = outcome.failure, outcome.verdict
    good = failure is None and verdict is _FINAL
    became = failure.outcome if failure is not None else "ok" if good else verdict.value
    span.end({"tollgate.outcome": became}, failed=not good)
