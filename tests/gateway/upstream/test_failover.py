"""Failover as a state machine: any upstreams, any failures, any moment, a manual clock."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct
from tests.gateway.fake_network import DOUBT, FAILURES, HEAD, METHOD, Failure, FakeNetwork, chances

from tollgate.chains.faults import Verdict
from tollgate.errors import Refusal
from tollgate.gateway.upstream.attempts import BadStatus, Nonsense
from tollgate.gateway.upstream.choice import Requirements
from tollgate.gateway.upstream.connection import (
    AttemptFailed,
    ConnectFailed,
    NoRoom,
    PoolFull,
    ResponseTooLarge,
    TimedOut,
)
from tollgate.gateway.upstream.failover import MAX_ATTEMPTS, NextAttempt, OutOfStep, Wait
from tollgate.gateway.upstream.health import Upstream
from tollgate.shm.upstream_status import NOTHING, State

FAULTS = [Verdict.ELSEWHERE, Verdict.LAGGING, Verdict.PRUNED, Verdict.QUOTA, Verdict.UNSUPPORTED]
ASKED_AGAIN = (ConnectFailed, BadStatus, Nonsense, OutOfStep)

upstreams = st.fixed_dictionaries(
    {
        "priority": st.integers(0, 2),
        "timeout_seconds": st.sampled_from([1.0, 5.0, 15.0]),
        "archive": st.booleans(),
        "deny_methods": st.sampled_from([(), (), ("eth_*",)]),
        "requests_per_second": st.sampled_from([0, 0, 5]),
    }
)
needs = st.builds(
    Requirements,
    st.just(METHOD),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, None, 3, HEAD - 2]),
    st.sampled_from([None, None, None, 0, 9]),
)
heads = st.sampled_from([NOTHING, HEAD - 2, HEAD - 1, HEAD, HEAD, HEAD, HEAD + 1])
states = st.sampled_from([State.UP, State.UP, State.UP, *State])


class Meanwhile(Struct, frozen=True):
    """What changes between two steps."""

    upstream: int
    state: State
    head: int
    seconds: float
    block: bool
    """There is a new head."""
    full: bool
    """The rate of an upstream is used up."""


worlds = st.none() | st.builds(
    Meanwhile,
    st.integers(0, 7),
    states,
    heads,
    st.sampled_from([0.0, 0.001, 0.01, 0.05, 0.3, 3.0]),
    st.booleans(),
    st.booleans(),
)
ends = st.sampled_from([*FAILURES, *FAULTS])


class Step(Struct, frozen=True):
    """One decision of the failover policy, and how the attempt ends."""

    before: Meanwhile | None
    during: Meanwhile | None
    hedged: bool
    how: Failure | Verdict
    hedge: Failure | Verdict
    late: bool
    hedge_first: bool


steps = st.builds(Step, worlds, worlds, st.booleans(), ends, ends, st.booleans(), st.booleans())


class DrivenFailover:
    """A failover policy, driven as `exchange.py` does, while upstreams change between its steps."""

    def __init__(self, made: list[dict[str, Any]], need: Requirements, seconds: float) -> None:
        self.network = FakeNetwork(*made)
        self.clock, self.status = self.network.clock, self.network.status
        self.need = need
        self.deadline = self.clock() + seconds
        self.full: set[str] = set()
        """Whose rate is used up."""
        self.failover = self.network.failover(need, self.deadline, chances(0.3, 0.6, 0.9), self.may_call)
        self.attempts = 0
        self.under_way: list[NextAttempt] = []
        self.ends: dict[str, list[object]] = {}
        """How each attempt at an upstream ended: a failure, or a verdict."""
        self.passed_over: set[str] = set()
        self.over = False

    def may_call(self, upstream: Upstream) -> bool:
        if upstream.name in self.full:
            self.passed_over.add(upstream.name)
            return False
        return True

    def happen(self, meanwhile: Meanwhile | None) -> None:
        if meanwhile is None:
            return
        upstream = self.network.upstreams[meanwhile.upstream % len(self.network.upstreams)]
        self.network.publish_state(upstream.name, meanwhile.state, meanwhile.head)
        self.clock.advance(meanwhile.seconds)
        if meanwhile.block:
            self.status.publish(self.status.head + 1, NOTHING, changed=True)
        if upstream.limit:
            (self.full.add if meanwhile.full else self.full.discard)(upstream.name)

    # --- The policy ------------------------------------------------------------------------------------

    def take(self, script: Step) -> None:
        """Take a step."""
        self.happen(script.before)
        now = self.clock()
        in_reach = {upstream.name for upstream in self.network.upstreams if self.would_do(upstream)}
        step = self.failover.next(now)
        if step is None:
            self.over = True
            self.check_end(in_reach, now)
        elif isinstance(step, Wait):
            assert 0 <= step.seconds <= self.deadline - now + 1e-9
            self.clock.advance(step.seconds)
        else:
            self.check_called(step.upstream, now)
            self.check_time(step, now)
            self.under_way = [step]
            step.upstream.started()
            self.happen(script.during)
            if script.hedged and self.need.repeatable:
                self.hedge()
            # In either order.
            hows = [script.how, script.hedge][: len(self.under_way)]
            both = list(zip(self.under_way, hows, strict=True))
            for attempt, how in both[::-1] if script.hedge_first else both:
                self.end(attempt, how, script.late)
            self.under_way = []

    def hedge(self) -> None:
        now = self.clock()
        step = self.failover.parallel(now)
        if step is not None:
            self.check_called(step.upstream, now)
            assert step.upstream.available(now)
            assert now < step.until <= now + step.upstream.settings.timeout_seconds
            self.under_way.append(step)
            step.upstream.started()

    def end(self, attempt: NextAttempt, how: Failure | Verdict, late: bool) -> None:
        upstream = attempt.upstream
        if isinstance(how, Verdict):
            upstream.answered(self.clock() - 0.01)
            upstream.count(self.clock())
            self.ends[upstream.name].append(how)
            self.failover.faulted(upstream, how, self.clock())
            if how is Verdict.QUOTA:
                assert not upstream.available(self.clock())
            elif not self.need.repeatable:
                # Then it is the answer, and no upstream is called any more.
                self.over = True
            return
        # Only reads show the tip.
        kind, sent, _ = how if self.need.repeatable or how[0] is not OutOfStep else FAILURES[0]
        if kind is TimedOut or late:
            self.clock.now = max(self.clock.now, attempt.until)
        if kind in (PoolFull, NoRoom, ResponseTooLarge):
            upstream.abandoned()
        else:
            upstream.failed(self.clock())
        failure = kind("scripted", sent=sent)
        self.ends[upstream.name].append(failure)
        self.failover.failed(upstream, failure)

    # --- What must hold --------------------------------------------------------------------------------

    def would_do(self, upstream: Upstream) -> bool:
        """Whether an upstream could be called now, as far as anybody can know."""
        need, received = self.need, self.status.is_fresh
        state = upstream.status.state
        return (
            (state in (State.UP, State.UNKNOWN) if received else state != State.WRONG_CHAIN)
            and upstream.available(self.clock())
            and upstream.takes(need.method)
            and upstream.name not in self.full
            and need.slot in (None, upstream.slot)
            and self.has_the_tip(upstream)
        )

    def has_the_tip(self, upstream: Upstream) -> bool:
        if not self.need.tip or self.need.slot is not None or not self.status.is_fresh:
            return True
        return upstream.status.head == NOTHING or upstream.status.head >= self.status.floor

    def check_called(self, upstream: Upstream, now: float) -> None:
        need = self.need
        self.attempts += 1
        assert now < self.deadline
        assert upstream.status.state != State.WRONG_CHAIN
        assert upstream.takes(need.method)
        assert need.slot in (None, upstream.slot)
        assert self.has_the_tip(upstream)
        assert upstream.name not in self.full
        assert all(attempt.upstream is not upstream for attempt in self.under_way)
        ends = self.ends.setdefault(upstream.name, [])
        everything = [end for each in self.ends.values() for end in each]
        if not need.repeatable:
            assert not any(isinstance(end, AttemptFailed) and end.sent for end in everything)
        if ends:
            # Once more, in another round: it broke off, or was behind.
            assert need.repeatable
            assert type(ends[-1]) in (*ASKED_AGAIN, AttemptFailed)
            assert len([end for end in ends if not isinstance(end, OutOfStep)]) < 2

    def check_time(self, step: NextAttempt, now: float) -> None:
        left = self.deadline - now
        assert now < step.until <= self.deadline
        assert step.until - now <= step.upstream.settings.timeout_seconds + 1e-9
        called = {attempt.upstream.name for attempt in self.under_way} | {step.upstream.name}
        others = [
            upstream
            for upstream in self.network.upstreams
            if upstream.status.state != State.WRONG_CHAIN
            and upstream.takes(METHOD)
            and not self.ends.get(upstream.name)
            and upstream.name not in called | self.passed_over
        ]
        if others and self.need.repeatable and self.need.slot is None:
            assert step.until - now <= left / 2 + 1e-9, "time is left for the others"

    def check_end(self, in_reach: set[str], now: float) -> None:
        failed = [end for each in self.ends.values() for end in each if isinstance(end, AttemptFailed)]
        stopped = not self.need.repeatable and any(end.sent for end in failed)
        if self.attempts < MAX_ATTEMPTS and now < self.deadline and not stopped:
            assert in_reach <= self.ends.keys() | self.passed_over, "an upstream could have answered"
        refusal = self.failover.refusal()
        assert isinstance(refusal, Refusal)
        in_doubt = any(end.sent for end in failed)
        assert (DOUBT in refusal.message) is (in_doubt and not self.need.repeatable)

    def finish(self) -> None:
        """However it goes on, there is an end, and it is not after the deadline."""
        for _ in range(5_000):
            step = self.failover.next(self.clock())
            if step is None:
                return
            assert self.clock() < self.deadline
            if isinstance(step, Wait):
                self.clock.advance(step.seconds)
            else:
                self.failover.failed(step.upstream, OutOfStep("scripted", sent=True))
        raise AssertionError("no end")


@given(
    st.lists(upstreams, min_size=1, max_size=8),
    needs,
    st.floats(0.1, 30),
    st.lists(steps, min_size=1, max_size=20),
)
@settings(max_examples=4 * settings().max_examples)
def test_failover_keeps_its_rules(
    made: list[dict[str, Any]], need: Requirements, seconds: float, script: list[Step]
) -> None:
    failover = DrivenFailover(made, need, seconds)
    for step in script:
        if failover.over:
            break
        failover.take(step)
        assert failover.attempts <= MAX_ATTEMPTS
    failover.finish()
