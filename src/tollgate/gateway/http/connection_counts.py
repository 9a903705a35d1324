"""How many connections each client address has open. Pure."""

from __future__ import annotations

from tollgate.core import addresses

# A network has as many connections as this many addresses: one client of IPv6 may have 65,536 /64s.
NETWORK_ADDRESSES = 2


class ConnectionCounts:
    """How many connections each client address has open, and each network (`network_of`)."""

    def __init__(self, trusted: tuple[addresses.Network, ...] = (), max_connections: int = 0) -> None:
        self._trusted = trusted
        self._max = max_connections
        """0: any number."""
        self._open: dict[str, int] = {}

    def key(self, peer: str) -> str:
        """The key that an address is counted by; empty: it is not counted."""
        if not self._max or not peer or addresses.is_within(peer, self._trusted):
            return ""
        return addresses.limit_key(peer)

    def enter(self, peer: str, kind: str = "") -> str:
        """Count a connection, separately for each kind; returns the key for `leave`."""
        if not (key := self.key(peer)):
            return ""
        key = kind + key
        for each in (key, _network_key(key)):
            self._open[each] = self._open.get(each, 0) + 1
        return key

    def is_crowded(self, key: str) -> bool:
        """Whether an address or its network has too many."""
        of_network = self._open.get(_network_key(key), 0)
        return self._open.get(key, 0) > self._max or of_network > NETWORK_ADDRESSES * self._max

    def leave(self, key: str) -> None:
        """Count a connection that was closed."""
        if key in self._open:
            for each in (key, _network_key(key)):
                self._open[each] -= 1
                if not self._open[each]:
                    del self._open[each]


def _network_key(key: str) -> str:
    kind, space, address = key.rpartition(" ")
    return kind + space + addresses.network_of(address)
