"""How many connections each client address has open. Pure."""

from __future__ import annotations

import math

from tollgate.core import addresses
from tollgate.core.address_shares import AddressShares, limit_key


class ConnectionCounts:
    """How many connections each client address has open, of all that a worker may have."""

    def __init__(
        self, trusted: tuple[addresses.Network, ...] = (), per_address: int = 0, whole: float = math.inf
    ) -> None:
        self._trusted = trusted
        self._per_address = per_address
        """0: any number."""
        self._whole = whole
        self._open: dict[str, AddressShares] = {}
        """By kind."""

    def key(self, peer: str) -> str:
        """The key that an address is counted by; empty: it is not counted."""
        if not self._per_address or not peer or addresses.is_within(peer, self._trusted):
            return ""
        return limit_key(peer)

    def enter(self, peer: str, kind: str = "") -> tuple[str, bool]:
        """Count a connection of a kind; returns the key for `leave`, and whether it is one too many."""
        if not (key := self.key(peer)):
            return "", False
        counted = self._open.setdefault(kind, AddressShares(self._whole, self._per_address))
        crowded = not counted.has_room(key)
        counted.take(key)
        return key, crowded

    def leave(self, key: str, kind: str = "") -> None:
        """Count a connection that was closed."""
        if key:
            self._open[kind].give_back(key)
