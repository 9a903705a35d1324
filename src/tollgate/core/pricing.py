"""What requests cost, in integer micro-dollars. Pure arithmetic: a count before, a plan, a cap.

The first million requests of a month are free. A plan charges each further request (5 µUSD), or each started
million (5 USD). A team may have a price of its own.

Where a price changes within a month, each request costs what the price in force charges for a request at its place
in the month: the first so many are free, whatever was charged before. Free requests belong to the payer: those
that its other teams have had are not there for a team.

A team is charged for all that was answered, up to its cap: what lay beyond it is charged once the cap is raised.
"""

from __future__ import annotations

import re
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct
from msgspec.structs import replace

from tollgate.api import operator
from tollgate.api.usage import Plan

MILLION = 1_000_000
MAX_PRICE = operator.MAX_PRICE
"""Of a million requests, in micro-dollars; and as many requests may be free."""
UNLIMITED = 2**53
"""As many requests as any counter holds."""
_ALERTS = (50, 80, 100)
"""Percent of a cap at which its team is notified."""
_DOLLARS = re.compile(r"\$?([0-9]{1,9})(?:\.([0-9]{1,6}))?", re.ASCII)
_Amount = Annotated[int, Meta(ge=0, le=MAX_PRICE)]


class Price(Struct, frozen=True):
    """What a team pays."""

    plan: Plan = Plan.PER_REQUEST
    free_requests: int = MILLION
    micros_per_million: int = 5 * MILLION

    def total(self, requests: int) -> int:
        """What so many billable requests of one month cost together, before any cap."""
        beyond = max(0, requests - self.free_requests)
        if self.plan is Plan.PER_STARTED_MILLION:
            return -(-beyond // MILLION) * self.micros_per_million
        return beyond * self.micros_per_million // MILLION

    def without(self, free: int) -> Price:
        """The same price, with so many free requests less."""
        return replace(self, free_requests=max(0, self.free_requests - free)) if free else self

    def affordable(self, before: int, micros: int) -> int:
        """How many requests that come after `before` others of the month cost no more than this, together."""
        if micros < 0:
            return 0
        if not self.micros_per_million:
            return UNLIMITED
        whole = self.total(before) + micros
        if self.plan is Plan.PER_STARTED_MILLION:
            beyond = whole // self.micros_per_million * MILLION
        else:
            beyond = ((whole + 1) * MILLION - 1) // self.micros_per_million
        return min(UNLIMITED, max(0, self.free_requests + beyond - before))


class OwnPrice(Struct, frozen=True, array_like=True, gc=False):
    """What one team pays otherwise than the others; None where it pays the same."""

    free_requests: _Amount | None = None
    micros_per_million: _Amount | None = None

    def over(self, usual: Price) -> Price:
        """The usual price, with what differs for this team."""
        return Price(
            usual.plan,
            usual.free_requests if self.free_requests is None else self.free_requests,
            usual.micros_per_million if self.micros_per_million is None else self.micros_per_million,
        )


def cost(price: Price, before: int, count: int) -> int:
    """What `count` requests cost that come after `before` others of the month, before any cap."""
    return price.total(before + count) - price.total(before)


class MonthUse(NamedTuple):
    """What a team has used in a month, and was charged."""

    requests: int = 0
    """Billable ones."""
    cost: int = 0
    uncapped: int = 0
    """What they cost before any cap: what lies beyond the cap is charged when that is raised."""
    free: int = 0
    """How many of them were free."""
    others_free: int = 0
    """Free requests that other teams of its payer have had."""

    def left(self, price: Price, cap: int) -> int:
        """How many further requests a cap covers."""
        return price.without(self.others_free).affordable(self.requests, cap - self.uncapped)

    def reaches(self, price: Price, cap: int | None) -> bool:
        """Whether a cap does not cover the next request."""
        return cap is not None and not self.left(price, cap)


def charge(uncapped: int, spent: int, cap: int | None) -> int:
    """What is charged now, where all requests cost `uncapped` together and `spent` was charged before."""
    return max(0, capped(uncapped, cap) - spent)


def capped(total: int, cap: int | None) -> int:
    """What is charged of a total."""
    return total if cap is None else min(total, cap)


def lower_cap(one: int | None, other: int | None) -> int | None:
    """The cap that is reached first."""
    return min(one, other) if one is not None and other is not None else one if other is None else other


def cents(micros: int) -> int:
    """An amount in cents, rounded half up."""
    return (micros + 5_000) // 10_000


def dollars(micros: int) -> str:
    """An amount as people read it: `$5.00`, with as many further digits as it has."""
    whole, rest = divmod(abs(micros), MILLION)
    digits = f"{rest:06d}".rstrip("0").ljust(2, "0")
    return f"{'-' if micros < 0 else ''}${whole:,}.{digits}"


def micros_of(text: str) -> int | None:
    """Read an amount such as `25.00` or `$0.5`; None for any other text."""
    found = _DOLLARS.fullmatch(text)
    return int(found[1]) * MILLION + int((found[2] or "").ljust(6, "0")) if found else None


def alerts_passed(spent: int, cap: int | None) -> tuple[int, ...]:
    """The thresholds, in percent of the cap, that an amount has reached."""
    if not cap:
        return ()
    return tuple(percent for percent in _ALERTS if spent * 100 >= cap * percent)
