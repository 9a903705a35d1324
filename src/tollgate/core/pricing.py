"""What requests cost, in integer micro-dollars. Pure arithmetic: a count before, a plan, a cap.

The first million requests of a month are free. A plan charges each further request (5 µUSD), or each started
million (5 USD). A cap is never exceeded: what would cost beyond it is free, and the service stops the calls.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

MILLION = 1_000_000


class Plan(StrEnum):
    """How requests beyond the free ones are charged."""

    PER_REQUEST = "per_request"
    PER_STARTED_MILLION = "per_started_million"


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


def cost(price: Price, before: int, count: int, cap: int | None = None) -> int:
    """What `count` requests cost that come after `before` others of the month."""
    return capped(price.total(before + count), cap) - capped(price.total(before), cap)


def capped(total: int, cap: int | None) -> int:
    """What is charged of a total."""
    return total if cap is None else min(total, cap)


def cap_reached(price: Price, requests: int, cap: int | None) -> bool:
    """Whether the next request would cost more than the cap allows."""
    return cap is not None and price.total(requests + 1) > cap


def cents(micros: int) -> int:
    """An amount in cents, rounded half up."""
    return (micros + 5_000) // 10_000


def dollars(micros: int) -> str:
    """An amount as people read it: `$5.00`, with as many further digits as it has."""
    whole, rest = divmod(abs(micros), MILLION)
    digits = f"{rest:06d}".rstrip("0").ljust(2, "0")
    return f"{'-' if micros < 0 else ''}${whole:,}.{digits}"


def alerts_passed(spent: int, cap: int | None, thresholds: tuple[int, ...] = (50, 80, 100)) -> tuple[int, ...]:
    """The thresholds, in percent of the cap, that an amount has reached."""
    if not cap:
        return ()
    return tuple(percent for percent in thresholds if spent * 100 >= cap * percent)
