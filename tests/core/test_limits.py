"""GCRA against what it promises: never more than the limit, hardly less, and exact waiting times."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tollgate.core.limits import Limit, take

NOW = 1_000.0
# The part of a request by which rounding may err.
HAIR = 0.01

limits = st.builds(Limit, st.integers(1, 10_000), st.sampled_from([1.0, 60.0]))
# Seconds since the machine started: up to eleven days. Later, rounding may take one of 10,000 from a burst.
moments = st.floats(0.0, 1e6)


def admitted(limit: Limit, requests: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """The requests (time, cost) that one caller gets through."""
    arrival, passed = 0.0, []
    for now, cost in requests:
        taken = take(limit, arrival, now, cost)
        assert taken.allowed or taken.arrival == arrival
        arrival = taken.arrival
        if taken.allowed:
            passed.append((now, cost))
    return passed


@st.composite
def stories(draw: st.DrawFn) -> tuple[Limit, list[tuple[float, int]]]:
    """A limit, and requests at times that only grow."""
    limit = draw(st.builds(Limit, st.integers(1, 40), st.sampled_from([1.0, 60.0])))
    gaps = st.floats(0, 4).map(lambda part: part * limit.seconds / limit.count) | st.floats(0, 90)
    now, requests = draw(st.floats(0, 1e6)), []
    for gap, cost in draw(st.lists(st.tuples(gaps, st.integers(1, 5)), max_size=60)):
        now += gap
        requests.append((now, cost))
    return limit, requests


@given(stories())
def test_no_window_has_more_than_the_count_and_what_flowed_back(
    story: tuple[Limit, list[tuple[float, int]]],
) -> None:
    limit, requests = story
    passed = admitted(limit, requests)
    for first, (start, _) in enumerate(passed):
        total = 0
        for end, cost in passed[first:]:
            total += cost
            assert total <= limit.count + (end - start) * limit.count / limit.seconds + HAIR


@given(st.integers(20, 1_000), st.sampled_from([1.0, 60.0]), st.floats(1.0, 20.0), moments)
def test_steady_demand_gets_at_least_nine_tenths_of_the_limit(
    count: int, seconds: float, demand: float, start: float
) -> None:
    limit = Limit(count, seconds)
    tries = 500
    step = seconds / count / demand
    passed = admitted(limit, [(start + number * step, 1) for number in range(tries)])
    assert len(passed) >= min(tries, 0.9 * tries / demand)


@given(st.integers(1, 1_000), st.sampled_from([1.0, 60.0]), moments)
def test_quiet_caller_may_send_its_whole_count_at_once_and_then_no_more(
    count: int, seconds: float, now: float
) -> None:
    limit = Limit(count, seconds)
    assert len(admitted(limit, [(now, 1)] * (count + 5))) == count
    assert take(limit, 0.0, now, count).allowed


@given(limits, moments, st.floats(0.0, 1.0), st.floats(0.1, 20_000.0))
def test_waiting_as_instructed_and_no_less_makes_the_same_request_pass(
    limit: Limit, now: float, part: float, beyond: float
) -> None:
    cost = max(1, int(part * limit.count))
    interval = limit.seconds / limit.count
    arrival = now + (limit.count - cost + beyond) * interval
    taken = take(limit, arrival, now, cost)
    assert not taken.allowed
    assert taken.retry_after == pytest.approx(beyond * interval, rel=0, abs=HAIR * interval)
    assert take(limit, arrival, now + taken.retry_after, cost).allowed
    assert not take(limit, arrival, now + taken.retry_after - 0.05 * interval, cost).allowed


@given(limits, moments, st.floats(-10.0, 2.0), st.integers(1, 100))
def test_request_larger_than_the_count_never_passes(limit: Limit, now: float, ahead: float, more: int) -> None:
    taken = take(limit, now + ahead * limit.seconds, now, limit.count + more)
    assert not taken.allowed
    assert taken.retry_after == math.inf


@given(limits, st.floats(0, 1e6), st.floats(-2.0, 1.0), st.integers(1, 10_000))
def test_remaining_is_what_the_caller_could_still_take(limit: Limit, now: float, ahead: float, cost: int) -> None:
    taken = take(limit, now + ahead * limit.seconds, now, cost)
    assert 0 <= taken.remaining <= limit.count
    assert taken.remaining == 0 or take(limit, taken.arrival, now, taken.remaining).allowed
    assert not take(limit, taken.arrival, now, taken.remaining + 1).allowed


def test_refused_request_finds_nothing_remaining() -> None:
    limit = Limit(10, 1.0)
    used_up = take(limit, 0.0, NOW, 10)
    refused = take(limit, used_up.arrival, NOW + 0.05)
    assert not refused.allowed
    assert refused.remaining == 0


@given(limits, moments, st.floats(-2.0, 1.0), st.integers(1, 50))
def test_one_request_of_n_costs_as_much_as_n_of_one(limit: Limit, now: float, ahead: float, cost: int) -> None:
    arrival = now + ahead * limit.seconds
    whole = take(limit, arrival, now, cost)
    assume(whole.allowed)
    single = arrival
    for _ in range(cost):
        single = take(limit, single, now).arrival
    interval = limit.seconds / limit.count
    assert single == pytest.approx(whole.arrival, rel=0, abs=max(HAIR * interval, 1e-5))


def test_refused_request_takes_nothing() -> None:
    limit = Limit(2, 1.0)
    full = take(limit, 0.0, NOW, 2)
    assert take(limit, full.arrival, NOW).arrival == full.arrival


def test_half_of_the_time_gives_half_of_the_count_back() -> None:
    limit = Limit(10, 60.0)
    full = take(limit, 0.0, NOW, 10)
    assert take(limit, full.arrival, NOW + 30.0, 5).allowed
    assert not take(limit, full.arrival, NOW + 30.0, 6).allowed
