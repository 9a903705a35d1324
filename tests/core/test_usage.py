"""The forecast of a month, and what a team's month adds up to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollgate.core.months import end_of, start_of
from tollgate.core.usage import LEAST_ELAPSED_SECONDS, Period, TeamMonth, forecast

MONTH = "2026-11"
START, END = start_of(MONTH), end_of(MONTH)


@pytest.mark.parametrize(
    ("used", "share", "expected"),
    [(0, 0.5, 0), (100, 0.5, 200), (100, 0.25, 400), (1, 1 / 3, 3), (700, 0.7, 1_000)],
)
def test_forecast_is_linear_by_the_share_of_the_month_that_has_passed(
    used: int, share: float, expected: int
) -> None:
    assert forecast(used, MONTH, START + (END - START) * share) == expected


@pytest.mark.parametrize("now", [END, END + 1, END + 1e8, START - 1, 0.0])
def test_a_month_that_does_not_run_is_what_it_is(now: float) -> None:
    assert forecast(123, MONTH, now) == 123


def test_first_second_of_a_month_promises_no_more_than_an_hour_like_it() -> None:
    hours = int(END - START) // LEAST_ELAPSED_SECONDS
    assert forecast(10, MONTH, START) == forecast(10, MONTH, START + 3_600) == 10 * hours


@given(st.integers(0, 10**12), st.floats(START - 1e6, END + 1e6))
def test_forecast_is_never_below_what_is_used(used: int, now: float) -> None:
    assert forecast(used, MONTH, now) >= used


@given(st.integers(1, 10**9), st.floats(START, END - 1, allow_nan=False))
def test_same_use_later_in_the_month_promises_no_more(used: int, now: float) -> None:
    assert forecast(used, MONTH, now) >= forecast(used, MONTH, min(now + 3_600, END - 0.5))


def test_a_month_is_the_sum_of_its_periods() -> None:
    used = TeamMonth("team_1", MONTH, (Period("2026-10", 3, 2, 5), Period(MONTH, 10, 8, 40)))
    assert (used.requests, used.billable, used.cost) == (13, 10, 45)
    assert (TeamMonth("team_1", MONTH).requests, TeamMonth("team_1", MONTH).cost) == (0, 0)
