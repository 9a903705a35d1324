"""How much of something one client may have, by its address. Every bound by address is counted here.

A client of IPv6 can use any address of its network: a /64 at least, often a /56, a company a /48 with its 65,536
/64s. So an address counts for its /64, its /56 and its /48, which have the share of one address, twice and four
times as much. IPv4 addresses are scarce, and a /24 may have many owners: it is bounded only under pressure.

Under pressure the widest prefix (/48, /24) gets no more than it leaves to others. No clock, no rules of callers.
"""

from __future__ import annotations

import functools
import ipaddress
import math

from msgspec import Struct

from tollgate.core.addresses import parse_address
from tollgate.core.limits import Limit

# Length of a prefix, and how many shares of an address it has. Infinite: only pressure bounds it.
_PREFIXES = {4: ((32, 1.0), (24, math.inf)), 6: ((64, 1.0), (56, 2.0), (48, 4.0))}
# Of what all clients have together, a prefix has this part at most.
_PREFIX_PART = 2


class Prefix(Struct, frozen=True, gc=False):
    """A prefix that an address counts for."""

    name: str
    shares: float
    """How many times the share of an address it has."""


@functools.lru_cache(maxsize=4096)
def prefixes(address: str) -> tuple[Prefix, ...]:
    """The prefixes that an address (or a prefix of it) counts for, narrowest first."""
    parsed = parse_address(address.partition("/")[0])
    if parsed is None:
        return (Prefix(address, 1.0),)
    return tuple(
        Prefix(
            str(parsed if length == 32 else ipaddress.ip_network((parsed, length), strict=False)),
            shares,
        )
        for length, shares in _PREFIXES[parsed.version]
    )


def limit_key(address: str) -> str:
    """The narrowest of them: an IPv4 address, an IPv6 /64."""
    return prefixes(address)[0].name


def network_of(address: str) -> str:
    """The widest of them: an IPv4 /24, an IPv6 /48."""
    return prefixes(address)[-1].name


class PrefixLimit(Struct, frozen=True, gc=False):
    """The rate limit of a prefix."""

    prefix: str
    limit: Limit
    under_pressure: bool
    """Whether it refuses only while more than half of what all clients have together is used."""


class AddressShares:
    """What is held at once of `whole`: in all, and for each prefix of a client address."""

    def __init__(self, whole: float, share: float, least: float = 0) -> None:
        self.whole = whole
        self.share = share
        """What one address may hold."""
        self.least = least
        """What an address or a prefix may hold in any case."""
        self.taken = 0
        self._held: dict[str, int] = {}

    @property
    def free(self) -> float:
        return max(self.whole - self.taken, 0)

    def has_room(self, address: str, amount: int = 1, *, reserved: int = 0) -> bool:
        """Whether an address may take so much, while `reserved` is kept for others; empty: an uncounted one."""
        return amount <= self.free - reserved and self.is_within_share(address, amount, reserved=reserved)

    def is_within_share(self, address: str, amount: int = 1, *, reserved: int = 0) -> bool:
        """The same, even where nothing is free. An address that holds nothing may always take one amount."""
        if not address:
            return True
        around = prefixes(address)
        for each in around:
            if (held := self._held.get(each.name, 0)) and held + amount > max(
                self.share * each.shares, self.least
            ):
                return False
        # What the widest prefix has, and what is left to all others: the first must not exceed the second.
        return not held or held + amount <= max(self.free - reserved, self.least)

    def take(self, address: str, amount: int = 1) -> None:
        self.taken += amount
        if address and amount:
            for each in prefixes(address):
                self._held[each.name] = self._held.get(each.name, 0) + amount

    def give_back(self, address: str, amount: int = 1) -> None:
        self.taken -= amount
        if address and amount:
            for each in prefixes(address):
                self._held[each.name] -= amount
                if not self._held[each.name]:
                    del self._held[each.name]

    @staticmethod
    def limits(address: str, limit: Limit, whole: Limit | None = None) -> tuple[PrefixLimit, ...]:
        """The rate limits of an address and of the prefixes around it, narrowest first.

        `limit` is that of one address, `whole` that of all clients together.
        """
        found = []
        for each in prefixes(address):
            count = limit.count * each.shares
            if each.shares > 1 and whole is not None:
                part = whole.count * limit.seconds / whole.seconds / _PREFIX_PART
                count = min(count, max(part, limit.count))
            if count < math.inf:
                own = limit if each.shares == 1 else Limit(int(count), limit.seconds)
                found.append(PrefixLimit(each.name, own, each.shares == math.inf))
        return tuple(found)
