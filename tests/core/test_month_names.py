"""Months by their names: what is one, where it begins and ends, and which came before."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollgate.core.months import end_of, is_month, month_of, previous_month, start_of

NAMES = st.builds("{:04d}-{:02d}".format, st.integers(1970, 2998), st.integers(1, 12))


@pytest.mark.parametrize("text", ["2026-11", "1970-01", "2999-12", "2000-10"])
def test_year_and_month_are_a_name(text: str) -> None:
    assert is_month(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026",
        "2026-1",
        "2026-13",
        "2026-00",
        "1969-12",
        "3000-01",
        "26-11",
        "2026-11-01",
        "2026-11\n",
        " 2026-11",
        "\uff12\uff10\uff12\uff16-11",
    ],
)
def test_everything_else_is_none(text: str) -> None:
    assert not is_month(text)


def test_a_month_begins_and_ends_in_utc() -> None:
    assert start_of("2026-11") == 1_793_491_200.0  # 2026-11-01T00:00:00Z
    assert end_of("2026-11") == 1_796_083_200.0  # 2026-12-01T00:00:00Z
    assert end_of("2026-12") == start_of("2027-01")


@given(NAMES)
def test_first_and_last_moment_belong_to_the_month_and_the_next_does_not(month: str) -> None:
    assert month_of(start_of(month)) == month
    assert month_of(end_of(month) - 0.001) == month
    assert month_of(end_of(month)) > month


@given(NAMES.filter(lambda name: name > "1970-01"))
def test_the_month_before_ends_where_a_month_begins(month: str) -> None:
    assert end_of(previous_month(month)) == start_of(month)
