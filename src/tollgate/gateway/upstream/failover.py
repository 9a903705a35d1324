"""The attempts at one call, decided one after the other: which upstream, how long, when to wait, when to give up.

A state machine without I/O and without a clock: `next` decides what to do, `failed` and `faulted` take what became
of that. `attempts.py` drives it.

- A read is retried elsewhere until one answers. When all have been tried once and time is left, those that
  broke off are tried once more, and those that showed an older chain than callers know again and again.
- What may change something goes to one upstream, and to another only while nothing of it has left. Transactions
  that are signed go on: sent twice they are still one (`broadcast.py` knows how that is answered).
- Each attempt at a read leaves time for the next one: half of what is left, as long as there is somebody else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from tollgate.chains.faults import Verdict
from tollgate.errors import Overloaded, Refusal, UpstreamError, UpstreamTimeout, UpstreamUnavailable
from tollgate.gateway.upstream.choice import (
    NetworkView,
    Requirements,
    View,
    choose,
    last_resort,
    somebody_else,
    somebody_is_behind,
)
from tollgate.gateway.upstream.connection import (
    AttemptFailed,
    ConnectFailed,
    NoRoom,
    PoolFull,
    ResponseTooLarge,
    TimedOut,
)
from tollgate.gateway.upstream.health import Upstream
from tollgate.shm.upstream_status import NOTHING, NetworkStatus, State

MAX_ATTEMPTS = 6
# Between two looks whether somebody has come along to the head.
WAIT_SECONDS = 0.02
# Before those that broke off are tried again; each time twice as long.
AGAIN_SECONDS = 0.05
_IN_DOUBT = " The call may have been carried out all the same: check before you send it again."


_NO_MATTER = NetworkView()
# These end as they did on every retry; and an overloaded upstream must not get more calls.
_NOT_AGAIN = (TimedOut, ResponseTooLarge, NoRoom, PoolFull)


class OutOfStep(AttemptFailed):
    """An answer that shows another head of the chain than can be: callers have seen more, or nobody so much."""

    outcome = "out_of_step"


class NextAttempt(Struct, frozen=True, gc=False):
    """Call this upstream, until then."""

    upstream: Upstream
    until: float


class Wait(Struct, frozen=True, gc=False):
    """Do nothing for so long."""

    seconds: float


class Failover:
    """The attempts at one call."""

    # Defaults stand on the class: most calls end with their first attempt.
    in_doubt = False
    """Whether some attempt may have been carried out though we do not know."""
    _broken: Sequence[Upstream] = ()
    _out_of_step: Sequence[Upstream] = ()
    _retried: Sequence[Upstream] = ()
    """Those that broke off and are tried once more, or were."""
    _rounds = 0
    _attempts = 0
    _failure: AttemptFailed | None = None
    _stopped = False
    _limited = False
    _look: Callable[[float], View | None] = staticmethod(lambda _now: None)
    """What is known of all upstreams, where that need not be read one by one: a choice from it is the same."""

    def __init__(
        self,
        upstreams: Sequence[Upstream],
        status: NetworkStatus,
        requirements: Requirements,
        deadline: float,
        random: Callable[[], float],
        may_call: Callable[[Upstream], bool],
        tried: Sequence[Upstream] = (),
        max_attempts: int = MAX_ATTEMPTS,
    ) -> None:
        self._upstreams = upstreams
        self._max_attempts = max_attempts
        self._status = status
        self.requirements = requirements
        self.deadline = deadline
        self._random = random
        self._may_call = may_call
        """Whether an upstream's rate allows another call; takes it, if so."""
        self.tried: list[Upstream] = list(tried)

    def next(self, now: float) -> NextAttempt | Wait | None:
        """What to do now; None: give up."""
        if self._stopped or self._attempts >= self._max_attempts or now >= self.deadline:
            return None
        upstream = self._choose(now)
        if upstream is None:
            known = self._known()
            if somebody_is_behind(self._upstreams, self.requirements, known, self.tried, now):
                return self._again(now) or Wait(min(WAIT_SECONDS, self.deadline - now))
            upstream = self._last_resort(known)
            if upstream is None:
                return self._again(now)
        return self._attempt(upstream, now)

    def parallel(self, now: float) -> NextAttempt | None:
        """Another upstream to call at the same time; None where none is in rotation and within its rate."""
        if self._attempts >= self._max_attempts or now >= self.deadline:
            return None
        tried, limited = self.tried, self._limited
        self.tried = list(tried)
        upstream = self._choose(now)
        # Who is at its rate now need not be so when the attempt that is under way has ended.
        self.tried, self._limited = tried, limited
        return None if upstream is None else self._attempt(upstream, now)

    def _attempt(self, upstream: Upstream, now: float) -> NextAttempt:
        self._attempts += 1
        self.tried.append(upstream)
        left = self.deadline - now
        if (
            self.requirements.repeatable
            and len(self.tried) < len(self._upstreams)
            and somebody_else(self._upstreams, self.requirements, self.tried)
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
        if isinstance(failure, TimedOut):
            return UpstreamTimeout(UpstreamTimeout.hint + doubt)
        if isinstance(failure, OutOfStep):
            return UpstreamUnavailable("The upstreams are behind what callers have seen of the chain: try again.")
        if failure is None and self._limited:
            return UpstreamUnavailable("The upstreams of this network are at their limits: try again.")
        if (
            failure is None
            and self._upstreams
            and all(each.status.state == State.WRONG_CHAIN for each in self._upstreams)
        ):
            return UpstreamUnavailable(
                "All upstreams of this network report another chain: the operator must fix them or `chain_id`."
            )
        if isinstance(failure, PoolFull):
            return Overloaded("The upstreams of this network have more to do than they can: try again." + doubt)
        if failure is None or isinstance(failure, ConnectFailed):
            return UpstreamUnavailable(UpstreamUnavailable.hint + doubt)
        return UpstreamError(UpstreamError.hint + doubt)

    def _known(self) -> NetworkView:
        status, requirements = self._status, self.requirements
        head = NOTHING if requirements.oldest is None else status.head
        if not status.is_fresh:
            return NetworkView(NOTHING, head, believed=False)
        floor, number = NOTHING, requirements.number
        if requirements.tip:
            floor = status.floor
        elif number is not None and (number <= status.head or number <= status.shown):
            # A block that nobody has seen yet may be requested from any upstream.
            floor = number
        return _NO_MATTER if floor == head == NOTHING else NetworkView(floor, head)

    def _choose(self, now: float) -> Upstream | None:
        """The upstream in rotation to call next, within its rate."""
        view = self._look(now)
        if view is not None:
            upstream = view.other(self.requirements, self.tried, now, self._random)
            if upstream is not None and (not upstream.limit or self._is_within_its_rate(upstream)):
                return upstream
        known = self._known()
        while True:
            upstream = choose(self._upstreams, self.requirements, known, self.tried, now, self._random)
            if upstream is None or not upstream.limit or self._is_within_its_rate(upstream):
                return upstream

    def _last_resort(self, known: NetworkView) -> Upstream | None:
        while True:
            upstream = last_resort(self._upstreams, self.requirements, known, self.tried)
            if upstream is None or self._is_within_its_rate(upstream):
                return upstream

    def _is_within_its_rate(self, upstream: Upstream) -> bool:
        """Whether it may be called now; otherwise it is passed over for good."""
        if not upstream.limit or self._may_call(upstream):
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
