"""The bound on bytes held in large bodies, of callers and of upstreams together.

Small bodies are not counted: their number is bounded by connections and requests in flight.
"""

from __future__ import annotations

from tollgate.core.address_shares import AddressShares

SMALL = 65_536
# One client address has this part at most: who sends or takes large bodies slowly keeps none but itself out.
ADDRESS_PART = 4


class Budget:
    """Bytes that may be held at once in one worker."""

    def __init__(self, max_bytes: int, least_part: int = 0) -> None:
        self.max_bytes = max_bytes
        self.least_part = least_part
        """What an address may hold in any case: one whole body."""
        self.held = 0
        self._shares = AddressShares(max_bytes, 0)

    def hold(self, count: int, address: str = "") -> bool:
        """Hold more bytes, for a client address if one is given; False where there is no room: nothing is held."""
        if self.held + count > self.max_bytes:
            return False
        if address:
            shares = self._shares
            shares.whole, shares.share, shares.least = (
                self.max_bytes,
                max(self.max_bytes // ADDRESS_PART, 1),
                self.least_part,
            )
            # What upstreams sent has no address, and is not free either.
            if not shares.is_within_share(address, count, reserved=self.held - shares.taken):
                return False
            shares.take(address, count)
        self.held += count
        return True

    def free(self, count: int, address: str = "") -> None:
        """Give bytes back."""
        self.held -= count
        if address:
            self._shares.give_back(address, count)


class CountedBody(bytes):
    """A body that counts against the budget until it is released."""

    _budget: Budget
    _held: int

    @classmethod
    def of(cls, body: bytes, budget: Budget, held: int) -> CountedBody:
        """A body of which so many bytes are held already; they are given back with it."""
        counted = cls(body)
        counted._budget, counted._held = budget, held
        return counted

    def __del__(self) -> None:
        self._budget.free(self._held)
