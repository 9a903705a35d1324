"""The state machine of attempts, with any order of answers, failures, timers and cancellations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from tests.gateway.fake_network import METHOD, FakeNetwork, chances

from tollgate.chains.catalogue import Catalogue
from tollgate.chains.faults import Verdict
from tollgate.core.methods import Policy
from tollgate.errors import Refusal
from tollgate.gateway.messages import Route, ServedNetwork
from tollgate.gateway.upstream.attempts import Attempt, AttemptOutcome, Attempts
from tollgate.gateway.upstream.choice import Requirements
from tollgate.gateway.upstream.connection import AttemptFailed, ConnectFailed, PoolFull, TimedOut
from tollgate.gateway.upstream.exchange import Exchange
from tollgate.gateway.upstream.failover import MAX_ATTEMPTS, OutOfStep
from tollgate.gateway.upstream.health import Upstream
from tollgate.shm import metrics

FAILURES = [AttemptFailed, ConnectFailed, PoolFull, TimedOut]
SECONDS = 10.0


class Timer(Struct, eq=False):
    """A timer of the loop."""

    when: float
    callback: Callable[[], None]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


class Step(Struct, frozen=True):
    """An event: the end of an attempt, time that passes, or the stop of the service."""

    kind: str
    which: int = 0
    how: Any = None


class DrivenAttempts:
    """The attempts at one call, with pools, a loop and a clock of their own."""

    def __init__(self, upstreams: int, requirements: Requirements, full: list[bool]) -> None:
        self.fake = FakeNetwork(*[{}] * upstreams)
        self.clock = self.fake.clock
        self.timers: list[Timer] = []
        self.started: list[Attempt[bytes]] = []
        self.under_way: list[Attempt[bytes]] = []
        self.full = full
        """For each attempt, whether the pool refuses it at once."""
        self.results: list[Any] = []
        self.is_cancelled = False
        network = ServedNetwork("eth", "mainnet", Policy(), Catalogue("eth"), ())
        writer = metrics.Regions(1).writer(0)
        for upstream in self.fake.upstreams:
            upstream.pool = cast("Any", self)
        exchange = Exchange(
            network,
            self.fake.upstreams,
            self.fake.status,
            cast("Any", None),
            writer,
            self.clock,
            cast("Any", self),
            chances(0.3, 0.6, 0.9),
        )
        exchange.set_timeout(SECONDS)
        deadline = self.clock() + SECONDS
        self.route = Route()
        self.attempts: Attempts[bytes] = Attempts(
            exchange,
            requirements,
            deadline,
            body=b"{}",
            read=bytes,
            validator=self.validate,
            route=self.route,
            done=self.done,
        )
        self.verdict: Verdict | None = Verdict.FINAL
        self.attempts.start()

    # --- What the machine calls ------------------------------------------------------------------------

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        assert not self.is_over, "a timer after the end"
        self.timers.append(Timer(self.clock() + seconds, callback))
        return self.timers[-1]

    def start(self, attempt: Attempt[bytes]) -> None:
        assert not self.is_over, "an upstream was called after the end"
        assert self.clock() < self.attempts.deadline
        self.started.append(attempt)
        if self.full.pop(0) if self.full else False:
            attempt.abandoned(PoolFull("full", sent=False))
        else:
            self.under_way.append(attempt)

    def validate(self, _answer: bytes, _upstream: Upstream) -> Verdict:
        if self.verdict is None:
            raise OutOfStep("behind", sent=True)
        return self.verdict

    def done(self, result: AttemptOutcome[bytes] | Refusal) -> None:
        self.results.append(result)

    # --- Events ----------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        return bool(self.results) or self.is_cancelled

    def take(self, step: Step) -> None:
        if step.kind == "advance":
            self.advance(step.how)
        elif step.kind == "cancel":
            self.attempts.cancel()
            self.is_cancelled = True
            self.under_way.clear()
        elif self.under_way:
            attempt = self.under_way.pop(step.which % len(self.under_way))
            if step.kind == "fail":
                attempt.failed(step.how("scripted", sent=step.how is not ConnectFailed))
            elif step.kind == "status":
                attempt.received(step.how, b"")
            else:
                self.verdict = step.how
                attempt.received(200, b"{}")
        self.check()

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.fake.status.pulse()
        for timer in [each for each in self.timers if not each.cancelled and each.when <= self.clock()]:
            if not timer.cancelled:
                self.timers.remove(timer)
                timer.callback()
        for attempt in [each for each in self.under_way if each.until <= self.clock()]:
            if attempt in self.under_way:
                self.under_way.remove(attempt)
                attempt.failed(TimedOut("late", sent=True))

    def check(self) -> None:
        assert len(self.results) <= 1, "more than one answer"
        assert sum(not timer.cancelled for timer in self.timers) <= (0 if self.is_over else 1), "one timer"
        assert len(self.started) == self.route.attempts <= MAX_ATTEMPTS
        for upstream in self.fake.upstreams:
            under_way = sum(each.upstream is upstream for each in self.under_way)
            assert upstream.in_flight == under_way, "the books do not balance"

    def finish(self) -> None:
        """Let time pass until all has ended."""
        for _ in range(400):
            self.advance(0.25)
            self.check()
        assert not self.under_way
        assert len(self.results) == (0 if self.is_cancelled and not self.results else 1)


ends = st.one_of(
    st.builds(Step, st.just("answer"), st.integers(0, 3), st.sampled_from([None, *Verdict])),
    st.builds(Step, st.just("fail"), st.integers(0, 3), st.sampled_from(FAILURES)),
    st.builds(Step, st.just("status"), st.integers(0, 3), st.sampled_from([500, 503, 429, 401, 404, 200])),
    st.builds(Step, st.just("advance"), st.just(0), st.sampled_from([0.01, 0.02, 0.05, 0.5, 1.0, 5.0, 20.0])),
)
cancelled = st.booleans().map(lambda cancels: [Step("cancel")] if cancels else [])


@given(
    st.integers(1, 4), st.booleans(), st.lists(ends, max_size=12), cancelled, st.lists(st.booleans(), max_size=6)
)
def test_any_order_of_events_gives_one_answer_and_balanced_books(
    upstreams: int, repeatable: bool, steps: list[Step], end: list[Step], full: list[bool]
) -> None:
    driven = DrivenAttempts(upstreams, Requirements(METHOD, repeatable=repeatable), full)
    driven.check()
    for step in [*steps, *end]:
        driven.take(step)
    driven.finish()


def test_attempts_that_all_fail_as_they_are_started_end_with_a_refusal() -> None:
    driven = DrivenAttempts(3, Requirements(METHOD), [True] * MAX_ATTEMPTS)
    assert [type(result).__name__ for result in driven.results] == ["Overloaded"]
    driven.finish()


def test_loser_of_a_hedge_is_counted_when_it_ends_and_changes_nothing() -> None:
    driven = DrivenAttempts(2, Requirements(METHOD), [])
    driven.attempts.exchange.hedge_budget._saved = 5.0
    driven.take(Step("advance", how=0.6))
    first, hedge = driven.under_way
    driven.take(Step("answer", 1, Verdict.FINAL))
    (result,) = driven.results
    assert (result.upstream, first.upstream.in_flight) == (hedge.upstream, 1)
    driven.take(Step("fail", 0, AttemptFailed))
    assert (driven.results, first.upstream.in_flight, first.upstream.failures) == ([result], 0, 1)
    assert driven.route.upstream == hedge.upstream.name


def test_cancelled_attempts_call_nothing_back_and_drop_late_responses() -> None:
    driven = DrivenAttempts(2, Requirements(METHOD), [])
    (attempt,) = driven.under_way
    driven.take(Step("cancel"))
    attempt.received(200, b"{}")
    attempt.failed(AttemptFailed("late", sent=True))
    driven.finish()
    assert (driven.results, attempt.upstream.in_flight) == ([], 0)
