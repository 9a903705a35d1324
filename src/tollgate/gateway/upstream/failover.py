"""The failover policy of one call: which upstream is next, for how long, when to pause, when to give up.

No I/O and no clock: `next` decides, `failed` and `faulted` take the end of an attempt. `attempts.py` acts on it.

- A read is retried elsewhere until one upstream answers. When all have been tried once and time is left, those
  that broke off are tried once more, and those that showed an older chain than callers know again and again.
- A write goes to one upstream, and to another only while nothing of it has been sent. Signed transactions go on:
  sent twice they are still one (`broadcast.py`).
- Each attempt at a read gets half of the time that is left, as long as another upstream could be tried after it.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

from tollgate.api.logs import AttemptVerdict
from tollgate.chains.faults import Verdict
from tollgate.errors import Overloaded, Refusal, UpstreamError, UpstreamTimeout, UpstreamUnavailable
from tollgate.gateway.upstream.choice import Requirements, View
from tollgate.gateway.upstream.connection import (
    AttemptFailed,
    ConnectFailed,
    NoRoom,
    PoolFull,
    ResponseTooLarge,
    TimedOut,
)
from tollgate.gateway.upstream.exchange import Exchange
from tollgate.gateway.upstream.health import Upstream

MAX_ATTEMPTS = 6
# Between two looks whether an upstream has reached the head.
WAIT_SECONDS = 0.02
# Before those that broke off are tried again; each time twice as long.
AGAIN_SECONDS = 0.05
_IN_DOUBT = " The call may have been carried out all the same: check before you send it again."

# These end as they did on every retry; and an overloaded upstream must not get more calls.
_NOT_AGAIN = (TimedOut, ResponseTooLarge, NoRoom, PoolFull)


class OutOfStep(AttemptFailed):
    """An answer that shows an impossible head of the chain: callers have seen more, or it is far too high."""

    outcome = "out_of_step"
    verdict = AttemptVerdict.OUT_OF_STEP


class TooFarAhead(OutOfStep):
    """An answer that shows a head which neither the prober nor another upstream shows."""


class NextAttempt(Struct, frozen=True, gc=False):
    """Call this upstream, until then."""

    upstream: Upstream
    until: float


class Wait(Struct, frozen=True, gc=False):
    """Do nothing for so long."""

    seconds: float


class Failover(Struct, eq=False):
    """The attempts at one call."""

    exchange: Exchange
    """The upstreams, their status and their rates."""
    requirements: Requirements
    deadline: float
    tried: list[Upstream] = field(default_factory=list)
    max_attempts: int = MAX_ATTEMPTS
    in_doubt: bool = False
    """Whether an attempt may have been carried out without our knowing."""
    _broken: Sequence[Upstream] = ()
    _out_of_step: Sequence[Upstream] = ()
    _retried: Sequence[Upstream] = ()
    """Those that broke off and are tried once more, or were."""
    _rounds: int = 0
    _attempts: int = 0
    _failure: AttemptFailed | None = None
    _stopped: bool = False
    _limited: bool = False

    def next(self, now: float) -> NextAttempt | Wait | None:
        """What to do now; None: give up."""
        if self._stopped or self._attempts >= self.max_attempts or now >= self.deadline:
            return None
        view = self.exchange.view()
        upstream = self._choose(view, now)
        if upstream is None:
            if view.is_worth_waiting(self.requirements, self.tried, now):
                return self._again(now) or Wait(min(WAIT_SECONDS, self.deadline - now))
            upstream = self._last_resort(view, now)
            if upstream is None:
                return self._again(now)
        return self._attempt(view, upstream, now)

    def parallel(self, now: float) -> NextAttempt | None:
        """Another upstream to call beside those under way; None where none is in rotation and within its rate."""
        if self._attempts >= self.max_attempts or now >= self.deadline:
            return None
        tried, limited = self.tried, self._limited
        self.tried = list(tried)
        view = self.exchange.view()
        upstream = self._choose(view, now)
        # An upstream that is at its rate now may be below it when the attempt under way has ended.
        self.tried, self._limited = tried, limited
        return None if upstream is None else self._attempt(view, upstream, now)

    def _attempt(self, view: View, upstream: Upstream, now: float) -> NextAttempt:
        self._attempts += 1
        self.tried.append(upstream)
        left = self.deadline - now
        if (
            self.requirements.repeatable
            and len(self.tried) < view.count
            and view.has_others(self.requirements, self.tried)
        ):
            left /= 2
        return NextAttempt(upstream, now + min(upstream.settings.timeout_seconds, left))

    def failed(self, upstream: Upstream, failure: AttemptFailed) -> None:
        """Note an attempt that gave no answer."""
        self._failure = failure
        if failure.sent:
            self.in_doubt = True
            if not self.requirements.repeatable:
                self._stopped = True
        if isinstance(failure, TooFarAhead):
            # Another one must answer: this one would show the same again.
            return
        if isinstance(failure, OutOfStep):
            self._out_of_step = [*self._out_of_step, upstream]
        elif not isinstance(failure, _NOT_AGAIN) and upstream not in self._retried:
            self._broken = [*self._broken, upstream]

    def faulted(self, upstream: Upstream, verdict: Verdict, now: float) -> None:
        """Note an answer that is an error of the upstream rather than of the call."""
        if verdict is Verdict.QUOTA:
            upstream.cool_down(now)

    def refusal(self, *, harmless: bool | None = None) -> Refusal:
        """Why there is no answer. It mentions that the call may have been executed, unless that is harmless."""
        failure = self._failure
        harmless = self.requirements.repeatable if harmless is None else harmless
        doubt = _IN_DOUBT if self.in_doubt and not harmless else ""
        if isinstance(failure, NoRoom):
            return Overloaded("Too many large answers at once: try again." + doubt)
        if isinstance(failure, TimedOut) and self.in_doubt:
            # An upstream has worked on it: it is billed.
            return UpstreamTimeout(UpstreamTimeout.hint + doubt)
        if isinstance(failure, TooFarAhead):
            return UpstreamUnavailable("An upstream showed a block that no other one has: try again.")
        if isinstance(failure, OutOfStep):
            return UpstreamUnavailable("The upstreams are behind what callers have seen of the chain: try again.")
        if failure is None and self._limited:
            return UpstreamUnavailable("The upstreams of this network are at their limits: try again.")
        if failure is None and self.exchange.view().on_another_chain:
            return UpstreamUnavailable(
                "All upstreams of this network report another chain: the operator must fix them or `chain_id`."
            )
        if isinstance(failure, PoolFull | TimedOut):
            return Overloaded("The upstreams of this network have more to do than they can: try again." + doubt)
        if failure is None or isinstance(failure, ConnectFailed):
            return UpstreamUnavailable(UpstreamUnavailable.hint + doubt)
        return UpstreamError(UpstreamError.hint + doubt)

    def _choose(self, view: View, now: float) -> Upstream | None:
        """The upstream in rotation to call next, within its rate."""
        while True:
            upstream = view.choose(self.requirements, self.tried, now, self.exchange.random)
            if upstream is None or not upstream.limit or self._is_within_its_rate(upstream):
                return upstream

    def _last_resort(self, view: View, now: float) -> Upstream | None:
        while True:
            upstream = view.last_resort(self.requirements, self.tried, now)
            if upstream is None or not upstream.limit or self._is_within_its_rate(upstream):
                return upstream

    def _is_within_its_rate(self, upstream: Upstream) -> bool:
        """Whether it may be called now; otherwise it is passed over for good."""
        if self.exchange.may_call(upstream):
            return True
        self._limited = True
        self.tried.append(upstream)
        return False

    def _again(self, now: float) -> Wait | None:
        """Begin another round with those that may do better, after a moment."""
        again = [*self._out_of_step, *self._broken]
        if not again or not self.requirements.repeatable:
            return None
        self.tried = [upstream for upstream in self.tried if upstream not in again]
        self._retried = [*self._retried, *self._broken]
        self._out_of_step = self._broken = ()
        self._rounds += 1
        return Wait(min(AGAIN_SECONDS * 2 ** (self._rounds - 1), max(0.0, self.deadline - now)))
