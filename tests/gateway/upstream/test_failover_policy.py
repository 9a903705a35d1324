"""The attempts at one call: which upstreams are called, for how long, what is returned."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gateway.fake_network import DOUBT, FAILURES, METHOD, Failure, FakeNetwork

from tollgate.errors import Overloaded, Refusal, UpstreamUnavailable
from tollgate.gateway.upstream.choice import Requirements
from tollgate.gateway.upstream.connection import AttemptFailed, NoRoom, PoolFull, ResponseTooLarge, TimedOut
from tollgate.gateway.upstream.failover import (
    AGAIN_SECONDS,
    MAX_ATTEMPTS,
    WAIT_SECONDS,
    Failover,
    NextAttempt,
    Wait,
)
from tollgate.shm.upstream_status import NOTHING, State

# --- Driven to the end -------------------------------------------------------------------------------------


def failover(network: FakeNetwork, need: Requirements, seconds: float = 30.0) -> Failover:
    return network.failover(need, network.clock() + seconds)


def next_upstream(made: Failover, network: FakeNetwork) -> str:
    """The upstream that is called next."""
    step = made.next(network.clock())
    assert isinstance(step, NextAttempt)
    return step.upstream.name


def conversation(
    network: FakeNetwork,
    failures: list[Failure],
    need: Requirements,
) -> tuple[str, Refusal]:
    """Fail every attempt as scripted; the upstreams called, `.` for a pause, and the refusal."""
    made, names, left = failover(network, need), "", list(failures)
    while (step := made.next(network.clock())) is not None:
        if isinstance(step, Wait):
            names += "."
            network.clock.advance(step.seconds)
            continue
        names += step.upstream.name
        kind, sent, _ = left.pop(0)
        made.failed(step.upstream, kind("scripted", sent=sent))
    return names, made.refusal()


def ranked(count: int) -> FakeNetwork:
    return FakeNetwork(*({"priority": number} for number in range(count)))


def expected_refusal(failures: list[Failure]) -> type[Refusal]:
    """That of the last failure; a time-out is one only where an upstream may have worked on the call."""
    kind, _, refusal = failures[-1]
    if kind is TimedOut and not any(sent for _, sent, _ in failures):
        return Overloaded
    return refusal


scripts = st.lists(st.sampled_from(FAILURES[:-1]), min_size=6, max_size=6)


@given(scripts, st.integers(1, 5))
def test_read_tries_everybody_in_order_then_those_that_broke_off_and_the_last_failure_speaks(
    failures: list[Failure], count: int
) -> None:
    found, refusal = conversation(ranked(count), failures, Requirements(METHOD))
    names = "abcde"[:count]
    again = "".join(
        name
        for name, (kind, _, _) in zip(names, failures, strict=False)
        if kind not in (TimedOut, ResponseTooLarge, NoRoom, PoolFull)
    )
    expected = names + ("." + again if again else "")
    attempts = expected.replace(".", "")[:MAX_ATTEMPTS]
    assert found.replace(".", "") == attempts
    assert found.startswith(names)
    assert type(refusal) is expected_refusal(failures[: len(attempts)])
    assert DOUBT not in refusal.message


@given(scripts, st.integers(1, 5))
def test_write_stops_at_the_first_failure_after_sending(failures: list[Failure], count: int) -> None:
    names, refusal = conversation(ranked(count), failures, Requirements(METHOD, repeatable=False))
    unsent = next((number for number, (_, sent, _) in enumerate(failures) if sent), count)
    assert names == "abcde"[: min(unsent + 1, count)]
    kind = failures[len(names) - 1]
    assert type(refusal) is expected_refusal(failures[: len(names)])
    assert (DOUBT in refusal.message) is kind[1]


def test_one_that_is_behind_is_called_again_and_again_after_longer_pauses() -> None:
    network = ranked(1)
    started = network.clock()
    names, refusal = conversation(network, [FAILURES[-1]] * 6, Requirements(METHOD, tip=True))
    assert names == "a.a.a.a.a.a"
    assert network.clock() - started == pytest.approx(AGAIN_SECONDS * (1 + 2 + 4 + 8 + 16))
    assert "behind what callers have seen" in refusal.message


def test_no_upstream_at_all_is_unavailable() -> None:
    names, refusal = conversation(FakeNetwork(), [], Requirements(METHOD))
    assert (names, type(refusal)) == ("", UpstreamUnavailable)


def test_where_all_are_on_another_chain_that_is_what_is_reported() -> None:
    network = FakeNetwork({}, {})
    for name in "ab":
        network.publish_state(name, State.WRONG_CHAIN)
    made = failover(network, Requirements(METHOD))
    assert made.next(network.clock()) is None
    refusal = made.refusal()
    assert isinstance(refusal, UpstreamUnavailable)
    assert "another chain" in str(refusal)


def test_tip_waits_for_one_that_comes_along() -> None:
    network = ranked(2)
    network.status.publish(101, NOTHING, changed=True)
    made = failover(network, Requirements(METHOD, tip=True))
    for _ in range(5):
        step = made.next(network.clock())
        assert step == Wait(WAIT_SECONDS)
        network.clock.advance(WAIT_SECONDS)
    network.publish_state("b", head=101)
    assert next_upstream(made, network) == "b"


def test_tip_waits_no_longer_than_the_deadline() -> None:
    network = ranked(1)
    network.status.publish(101, NOTHING, changed=True)
    made = failover(network, Requirements(METHOD, tip=True), seconds=0.05)
    rested = 0.0
    while isinstance(step := made.next(network.clock()), Wait):
        rested += step.seconds
        network.clock.advance(step.seconds)
    assert step is None
    assert rested == pytest.approx(0.05)


def test_one_at_the_tip_that_broke_off_is_called_again_while_another_is_behind() -> None:
    network = ranked(2)
    network.publish_state("b", head=99)
    made = failover(network, Requirements(METHOD, tip=True))
    assert next_upstream(made, network) == "a"
    made.failed(network["a"], AttemptFailed("scripted", sent=True))
    assert made.next(network.clock()) == Wait(AGAIN_SECONDS)
    assert next_upstream(made, network) == "a"


def test_time_for_each_attempt_is_half_of_what_is_left_and_the_last_gets_all_of_it() -> None:
    network = ranked(3)
    made = failover(network, Requirements(METHOD), seconds=8.0)
    given_ = []
    for _ in range(3):
        step = made.next(network.clock())
        assert isinstance(step, NextAttempt)
        given_.append(step.until - network.clock())
        network.clock.now = step.until
        made.failed(step.upstream, TimedOut("scripted", sent=True))
    assert given_ == [4.0, 2.0, 2.0]
    assert made.next(network.clock()) is None


@pytest.mark.parametrize("need", [Requirements(METHOD, repeatable=False), Requirements(METHOD, slot=0)])
def test_call_that_no_other_upstream_can_answer_has_the_whole_deadline(need: Requirements) -> None:
    network = ranked(3)
    step = failover(network, need, seconds=8.0).next(network.clock())
    assert isinstance(step, NextAttempt)
    assert step.until == network.clock() + 8.0


def test_rate_of_an_upstream_sends_the_rest_elsewhere_and_is_shown_where_there_is_no_elsewhere() -> None:
    network = FakeNetwork({"requests_per_second": 5}, {"priority": 1, "requests_per_second": 5})
    full = {"a"}
    may_call = lambda upstream: upstream.name not in full  # noqa: E731
    made = network.failover(Requirements(METHOD), 2_000.0, may_call=may_call)
    assert next_upstream(made, network) == "b"
    full.add("b")
    made = network.failover(Requirements(METHOD), 2_000.0, may_call=may_call)
    assert made.next(network.clock()) is None
    assert "at their limits" in made.refusal().message


def test_those_that_were_tried_before_are_not_called() -> None:
    network = ranked(2)
    made = network.failover(Requirements(METHOD), 2_000.0, tried=[network["a"]])
    assert next_upstream(made, network) == "b"
    assert made.next(network.clock()) is None
