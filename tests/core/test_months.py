"""Months of UTC: where one ends the next begins, to the last moment."""

import math
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollgate.core.months import last_months, month_of, next_month

moments = st.floats(0.0, datetime(2200, 1, 1, tzinfo=UTC).timestamp())


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@pytest.mark.parametrize(
    ("moment", "month", "end"),
    [
        ("1970-01-01T00:00:00Z", "1970-01", "1970-02-01T00:00:00Z"),
        ("2026-11-15T06:44:44Z", "2026-11", "2026-12-01T00:00:00Z"),
        ("2026-11-30T23:59:59.999999Z", "2026-11", "2026-12-01T00:00:00Z"),
        ("2026-12-01T00:00:00Z", "2026-12", "2027-01-01T00:00:00Z"),
        ("2026-12-31T23:59:59Z", "2026-12", "2027-01-01T00:00:00Z"),
        ("2027-01-01T00:00:00Z", "2027-01", "2027-02-01T00:00:00Z"),
        ("2027-02-28T23:59:59Z", "2027-02", "2027-03-01T00:00:00Z"),
        ("2028-02-29T00:00:00Z", "2028-02", "2028-03-01T00:00:00Z"),
        ("2100-02-28T12:00:00Z", "2100-02", "2100-03-01T00:00:00Z"),
        ("2026-11-30T23:30:00-01:00", "2026-12", "2027-01-01T00:00:00Z"),
        ("2026-12-01T00:30:00+01:00", "2026-11", "2026-12-01T00:00:00Z"),
    ],
)
def test_month_of_a_moment_and_its_end(moment: str, month: str, end: str) -> None:
    assert month_of(at(moment)) == month
    assert next_month(at(moment)) == at(end)


@given(moments)
def test_month_ends_later_and_within_31_days(moment: float) -> None:
    assert moment < next_month(moment) <= moment + 31 * 86_400


@given(moments)
def test_months_follow_each_other_without_a_gap(moment: float) -> None:
    end = next_month(moment)
    assert month_of(math.nextafter(end, 0.0)) == month_of(moment)
    assert next_month(math.nextafter(end, 0.0)) == end
    assert month_of(end) > month_of(moment)
    assert next_month(end) > end


@given(moments, moments)
def test_months_sort_as_time_does(one: float, other: float) -> None:
    if month_of(one) < month_of(other):
        assert one < other
        assert next_month(one) <= other
    if month_of(one) == month_of(other):
        assert next_month(one) == next_month(other)


def test_last_months_begin_with_the_newest() -> None:
    assert last_months("2026-02", 4) == ["2026-02", "2026-01", "2025-12", "2025-11"]
