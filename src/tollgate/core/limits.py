"""Rate limits by GCRA, the arithmetic only.

The state of a limit is one number, the theoretical arrival time (TAT): when the caller would have used up
what it has taken so far, at the steady rate. It lies at most one `seconds` ahead of now, so a caller that
was quiet may send its whole `count` at once, and then goes on at the steady rate. Where the number is kept,
and how workers share it, is not known here.
"""

from __future__ import annotations

import math

from msgspec import Struct


class Limit(Struct, frozen=True, gc=False):
    """`count` requests in `seconds`."""

    count: int
    seconds: float

    @property
    def interval(self) -> float:
        """Seconds that one request uses up."""
        return self.seconds / self.count


class Taken(Struct, frozen=True, gc=False):
    """What a request found: whether it may pass, and what is left."""

    allowed: bool
    arrival: float
    remaining: int
    retry_after: float
    """Seconds until the same request would pass; infinite where it never will."""


# Arrival times are sums of binary fractions; without this the last request of a burst may be a hair too late.
_HAIR = 1e-9


def take(limit: Limit, arrival: float, now: float, cost: int = 1) -> Taken:
    """Take `cost` requests out of a limit whose theoretical arrival time is `arrival`."""
    start = arrival if arrival > now else now
    after = start + cost * limit.interval
    ahead = after - now
    if ahead > limit.seconds + _HAIR * limit.count:
        wait = math.inf if cost > limit.count else ahead - limit.seconds
        left = int((limit.seconds - (start - now)) / limit.interval + 1e-6)
        return Taken(False, arrival, max(0, left), wait)
    return Taken(True, after, int((limit.seconds - ahead) / limit.interval + 1e-6), 0.0)


def reset_after(limit: Limit, taken: Taken, now: float) -> int:
    """Whole seconds until the limit is unused again."""
    return max(0, math.ceil(min(taken.arrival - now, limit.seconds)))
