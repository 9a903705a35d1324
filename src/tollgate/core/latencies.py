"""Histograms of durations: how many calls took how long. Pure.

Four buckets for each doubling, so a percentile that is read from them is right within a fifth.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import partial

# Upper bounds in microseconds, from 16 µs to over a minute; what is longer is in the last bucket.
BOUNDS = [round(16 * 2 ** (step / 4)) for step in range(90)]


# The bucket of a duration: the first whose bound it does not exceed.
bucket_of = partial(bisect_left, BOUNDS)
# Those of short durations, which most are, by the microsecond.
_SHORT = bytes(map(bucket_of, range(1 << 16)))


def buckets_of(durations: Sequence[int]) -> list[int]:
    short, end = _SHORT, len(_SHORT)
    if max(durations, default=0) < end:
        return [short[each] for each in durations]
    return [short[each] if each < end else bucket_of(each) for each in durations]


def percentile(buckets: Mapping[int, int], percent: float) -> int | None:
    """The duration that so many percent of calls did not exceed, in µs; None where there are no calls."""
    total = sum(buckets.values())
    if not total:
        return None
    left = total * percent / 100
    for bucket in sorted(buckets):
        left -= buckets[bucket]
        if left <= 0:
            break
    return BOUNDS[min(bucket, len(BOUNDS) - 1)]
