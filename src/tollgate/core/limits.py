"""Rate limits by GCRA, the arithmetic only.

The state of a limit is one number, the theoretical arrival time (TAT): when the caller would have used up
what it has taken so far, at the steady rate. It lies at most one `seconds` ahead of now, so a caller that
was quiet may send its whole `count` at once, and then continues at the steady rate. Where the number is kept,
and how workers share it, is not known here.
"""

from __future__ import annotations

import math

from msgspec import Struct
from msgspec.structs import force_setattr


class Limit(Struct, frozen=True, gc=False):
    """`count` requests in `seconds`."""

    count: int
    seconds: float
    interval: float = 0.0
    """Seconds that one request uses up; worked out."""

    def __post_init__(self) -> None:
        force_setattr(self, "interval", self.seconds / self.count)


class Taken(Struct, frozen=True, gc=False):
    """What a request found: whether it may pass, and what is left."""

    allowed: bool
    arrival: float
    remaining: int
    retry_after: float
    """Seconds until the same request would pass; infinite where it never will."""


# Arrival times are sums of binary fractions on top of an uptime in seconds; without this part of a request, the
# last one of a burst may be a hair too late.
HAIR = 1e-3


def take(limit: Limit, arrival: float, now: float, cost: int = 1) -> Taken:
    """Take `cost` requests out of a limit whose theoretical arrival time is `arrival`."""
    interval = limit.interval
    after = (now if now > arrival else arrival) + cost * interval  # noqa: FURB136 - `max` takes longer, and every request comes by
    room = (now + limit.seconds - after) / interval
    if room < -HAIR:
        wait = math.inf if cost > limit.count else -room * interval
        return Taken(False, arrival, max(0, math.floor(room + cost + HAIR)), wait)
    return Taken(True, after, int(room + HAIR), 0.0)
