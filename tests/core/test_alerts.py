"""When alerts are due, when they are tried again, and how they are signed."""

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollgate.api.usage import Plan
from tollgate.core.alerts import (
    WAITS,
    BillingSettings,
    reached,
    signature,
    wait_after,
    webhook_secret,
)
from tollgate.core.pricing import MILLION, MonthUse, Price

EACH = Price()
STARTED = Price(Plan.PER_STARTED_MILLION)
PEPPER = b"p" * 32


@pytest.mark.parametrize(
    ("spent", "expected"),
    [
        (0, ()),
        (499_999, ()),
        (500_000, (50,)),
        (799_999, (50,)),
        (800_000, (50, 80)),
        (999_995, (50, 80)),
        (MILLION, (50, 80, 100)),
    ],
)
def test_thresholds_of_a_dollar(spent: int, expected: tuple[int, ...]) -> None:
    assert reached(EACH, MonthUse(MILLION + spent // 5, spent, spent), MILLION) == expected


def test_without_a_cap_nothing_is_reached() -> None:
    assert reached(EACH, MonthUse(10 * MILLION, 45 * MILLION, 45 * MILLION), None) == ()


def test_calls_that_are_stopped_below_the_cap_have_reached_it() -> None:
    # 7 USD: one started million fits, a second does not.
    assert reached(STARTED, MonthUse(2 * MILLION - 1, 5 * MILLION, 5 * MILLION), 7 * MILLION) == (50,)
    assert reached(STARTED, MonthUse(2 * MILLION, 5 * MILLION, 5 * MILLION), 7 * MILLION) == (50, 100)


def test_a_cap_of_zero_is_reached_when_the_free_requests_are_used() -> None:
    assert reached(EACH, MonthUse(MILLION - 1), 0) == ()
    assert reached(EACH, MonthUse(MILLION), 0) == (100,)


@given(st.integers(0, 10**9), st.integers(1, 10**9))
def test_more_spending_never_takes_a_threshold_back(spent: int, cap: int) -> None:
    def at(amount: int) -> set[int]:
        return set(reached(EACH, MonthUse(MILLION + amount // 5, min(amount, cap), amount), cap))

    assert at(spent) <= at(spent + 5)


def test_waits_are_one_five_and_thirty_minutes_two_and_six_hours_and_then_none() -> None:
    assert [wait_after(attempts) for attempts in range(1, 8)] == [60, 300, 1_800, 7_200, 21_600, None, None]
    assert len(WAITS) == 5


def test_signature_can_be_checked_with_the_secret_alone() -> None:
    secret = webhook_secret(PEPPER, "team_1", "salt")
    header = signature([secret], 1_794_744_000.9, b'{"id":"alr_1"}')
    moment, _, mac = header.partition(",")
    assert moment == "t=1794744000"
    expected = hmac.new(secret.encode(), b'1794744000.{"id":"alr_1"}', hashlib.sha256).hexdigest()
    assert mac == f"v1={expected}"


def test_another_body_time_or_secret_is_another_signature() -> None:
    made = {
        signature([secret], at, body)
        for secret in ("tgw_a", "tgw_b")
        for at in (1.0, 2.0)
        for body in (b"x", b"y")
    }
    assert len(made) == 8


def test_secret_depends_on_pepper_team_and_salt_and_is_always_the_same() -> None:
    made = {
        webhook_secret(pepper, team, salt)
        for pepper in (PEPPER, b"q" * 32)
        for team in ("team_1", "team_2")
        for salt in ("a", "b")
    }
    assert len(made) == 8
    assert webhook_secret(PEPPER, "team_1", "a") in made
    assert all(secret.startswith("tgw_") and len(secret) == 47 for secret in made)


def test_repr_of_settings_shows_no_webhook() -> None:
    assert "hooks" not in repr(BillingSettings("team_1", 0.0, "https://hooks.example/T0/secret", "salt"))
