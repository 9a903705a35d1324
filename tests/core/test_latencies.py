"""Histograms of durations."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollgate.core.latencies import BOUNDS, bucket_of, buckets_of, percentile


def test_bucket_is_the_first_whose_bound_is_not_exceeded() -> None:
    assert [bucket_of(0), bucket_of(16), bucket_of(17), bucket_of(BOUNDS[-1])] == [0, 0, 1, len(BOUNDS) - 1]
    assert bucket_of(10**12) == len(BOUNDS)


def test_buckets_of_many_are_those_of_each() -> None:
    durations = [0, 17, 65_535, 65_536, 65_537, 10**12]
    assert buckets_of(durations) == [bucket_of(each) for each in durations]


def test_no_calls_have_no_percentile() -> None:
    assert percentile({}, 95) is None


@pytest.mark.parametrize(
    ("buckets", "percent", "bucket"),
    [
        ({3: 50, 7: 50}, 50, 3),
        ({3: 50, 7: 50}, 50.5, 7),
        ({3: 995, 7: 5}, 99.5, 3),
        ({3: 995, 7: 5}, 100, 7),
        ({len(BOUNDS): 1}, 50, len(BOUNDS) - 1),
    ],
)
def test_percentile_is_the_bound_of_its_bucket(buckets: dict[int, int], percent: float, bucket: int) -> None:
    assert percentile(buckets, percent) == BOUNDS[bucket]


@given(st.lists(st.integers(16, 60_000_000), min_size=1, max_size=200), st.sampled_from([50, 95, 99]))
def test_percentile_is_right_within_a_fifth(durations: list[int], percent: int) -> None:
    found = percentile(Counter(map(bucket_of, durations)), percent)
    exact = sorted(durations)[-(-len(durations) * percent // 100) - 1]
    assert found is not None
    assert exact <= found <= exact * 1.2 + 2
