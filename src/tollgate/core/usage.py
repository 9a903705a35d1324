"""What a team used in a billing month, as values, and what it will have used at the end. Pure.

A billing month may hold calls of earlier calendar months: those whose records came after their own was closed.
"""

from __future__ import annotations

from msgspec import Struct

from tollgate.core.months import end_of, start_of

# In a month's first minutes one busy second would promise millions.
LEAST_ELAPSED_SECONDS = 3_600


class Point(Struct, frozen=True):
    """Requests of one network, outcome or source in one step of a timeline."""

    start: int
    """The step's first hour, counted from 1970."""
    key: str
    requests: int


class UsageItem(Struct, frozen=True):
    """What one token, domain, network, method or day has of a month."""

    key: str
    requests: int
    billable: int
    cost: int


class Period(Struct, frozen=True):
    """What a billing month has of the calls of one calendar month."""

    month: str
    requests: int
    billable: int
    cost: int


class MonthTotals(Struct, frozen=True):
    """What all teams together used in a billing month."""

    teams: int
    billable: int
    cost: int


class TeamMonth(Struct, frozen=True):
    """All that a team used in a billing month, by when it was called, oldest first."""

    team_id: str
    month: str
    periods: tuple[Period, ...] = ()
    free: int | None = None
    """How many of its requests were free; None: as many as the price allows one team."""

    @property
    def requests(self) -> int:
        """All calls, refused ones as well."""
        return sum(period.requests for period in self.periods)

    @property
    def billable(self) -> int:
        return sum(period.billable for period in self.periods)

    @property
    def cost(self) -> int:
        """What they cost, as it was charged when they were committed."""
        return sum(period.cost for period in self.periods)


def forecast(used: int, month: str, now: float) -> int:
    """A month's total, projected from what it has so far; the total itself once the month is over."""
    start, end = start_of(month), end_of(month)
    if not start <= now < end:
        return used
    elapsed = max(int(now - start), LEAST_ELAPSED_SECONDS)
    return max(used, used * int(end - start) // elapsed)
