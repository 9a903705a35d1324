"""Waits after failures: the first few are free, then they double up to a bound, and a quiet time forgives all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollgate.control.services.throttle import ADDRESS, CODE, PASSWORD, Backoff, failed, wait
from tollgate.core.people import Failures

NOW = 1_794_700_800.0
RULES = pytest.mark.parametrize("rule", [PASSWORD, ADDRESS, CODE], ids=["password", "address", "code"])
rules = st.builds(
    Backoff,
    free=st.integers(0, 50),
    first_wait=st.floats(0.5, 1_000.0),
    max_wait=st.floats(1_000.0, 10_000.0),
    forgiven_after=st.floats(10_000.0, 1e6),
)
counts = st.integers(1, 10_000)
times = st.floats(-1e7, 1e7).map(lambda offset: NOW + offset)


def fail(times: int, rule: Backoff, now: float = NOW) -> Failures:
    """Fail so many times at one moment."""
    failures = failed(None, "key", rule, now)
    for _ in range(times - 1):
        failures = failed(failures, "key", rule, now)
    return failures


@RULES
def test_without_failures_there_is_no_wait(rule: Backoff) -> None:
    assert wait(None, rule, NOW) == 0.0


@RULES
def test_first_failures_are_free(rule: Backoff) -> None:
    for count in range(1, rule.free + 1):
        assert wait(fail(count, rule), rule, NOW) == 0.0
    assert wait(fail(rule.free + 1, rule), rule, NOW) == rule.first_wait


def test_waits_for_a_password_double_up_to_15_minutes() -> None:
    waits = [wait(fail(count, PASSWORD), PASSWORD, NOW) for count in range(1, 18)]
    assert waits == [0, 0, 0, 0, 2, 4, 8, 16, 32, 64, 128, 256, 512, 900, 900, 900, 900]


def test_waits_of_an_address_begin_later_than_those_of_an_account() -> None:
    waits = [wait(fail(count, ADDRESS), ADDRESS, NOW) for count in (1, 5, 20, 21, 22, 29, 30, 1_000)]
    assert waits == [0, 0, 0, 2, 4, 512, 900, 900]


def test_code_guessed_wrong_ten_times_is_locked() -> None:
    waits = [wait(fail(count, CODE), CODE, NOW) for count in (1, 9, 10, 11, 100)]
    assert waits == [0, 0, 900, 900, 900]


def test_constant_guessing_gets_some_hundred_attempts_a_day_at_one_account() -> None:
    failures, now, attempts = None, NOW, 0
    while now < NOW + 86_400:
        failures = failed(failures, "key", PASSWORD, now)
        attempts += 1
        now += wait(failures, PASSWORD, now)
    assert 90 <= attempts <= 120


@RULES
def test_wait_runs_down_and_ends(rule: Backoff) -> None:
    failures = fail(rule.free + 3, rule)
    whole = wait(failures, rule, NOW)
    assert wait(failures, rule, NOW + 1) == whole - 1
    assert wait(failures, rule, NOW + whole - 0.5) == 0.5
    assert wait(failures, rule, NOW + whole) == 0.0
    assert wait(failures, rule, NOW + whole + 1) == 0.0


@RULES
def test_failure_after_the_wait_is_not_free_again(rule: Backoff) -> None:
    failures = fail(rule.free + 1, rule)
    later = NOW + wait(failures, rule, NOW)
    again = failed(failures, "key", rule, later)
    assert again == Failures("key", rule.free + 2, later)
    assert wait(again, rule, later) >= rule.first_wait


@RULES
def test_failures_are_forgotten_after_the_quiet_time_and_not_before(rule: Backoff) -> None:
    failures = fail(rule.free + 5, rule)
    quiet = NOW + rule.forgiven_after
    assert wait(failures, rule, quiet) == 0.0
    assert failed(failures, "key", rule, quiet) == Failures("key", 1, quiet)
    assert failed(failures, "key", rule, quiet - 1) == Failures("key", rule.free + 6, quiet - 1)


@given(rules, counts, times)
def test_wait_is_never_negative_nor_above_the_maximum(rule: Backoff, count: int, now: float) -> None:
    assert 0.0 <= wait(Failures("key", count, NOW), rule, now) <= rule.max_wait


@given(rules, counts)
def test_more_failures_never_shorten_the_wait(rule: Backoff, count: int) -> None:
    assert wait(Failures("key", count, NOW), rule, NOW) <= wait(Failures("key", count + 1, NOW), rule, NOW)


@given(rules, counts, times)
def test_reported_wait_is_long_enough(rule: Backoff, count: int, now: float) -> None:
    failures = Failures("key", count, NOW)
    if now >= NOW:
        assert wait(failures, rule, now + wait(failures, rule, now)) < 0.001


@given(rules, counts, times)
def test_every_failure_counts_or_restarts_the_count(rule: Backoff, count: int, now: float) -> None:
    after = failed(Failures("key", count, NOW), "key", rule, now)
    assert after.created_at == now
    counts_on = -rule.max_wait <= now - NOW < rule.forgiven_after
    assert after.count == (count + 1 if counts_on else 1)


def test_clock_set_back_does_not_lengthen_a_wait() -> None:
    assert wait(fail(5, PASSWORD, NOW + 900), PASSWORD, NOW) == 2.0
    # Otherwise every moment of a day would be too early.
    assert wait(fail(5, PASSWORD, NOW + 86_400), PASSWORD, NOW) == 0.0
