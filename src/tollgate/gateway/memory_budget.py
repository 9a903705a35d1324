"""The bound on bytes held in large bodies, of callers and of upstreams together.

Small bodies are not counted: their number is bounded by connections and requests in flight.
"""

from __future__ import annotations

from tollgate.core.addresses import network_of

SMALL = 65_536
# One client address has this part at most, and its network (`network_of`): who sends or takes large bodies slowly
# keeps none but itself out.
ADDRESS_PART, NETWORK_PART = 4, 2


class Budget:
    """Bytes that may be held at once in one worker."""

    def __init__(self, max_bytes: int, least_part: int = 0) -> None:
        self.max_bytes = max_bytes
        self.least_part = least_part
        """What an address may hold in any case: one whole body."""
        self.held = 0
        self._of_address: dict[str, int] = {}
        self._of_network: dict[str, int] = {}

    def hold(self, count: int, address: str = "") -> bool:
        """Hold more bytes, for a client address if one is given; False where there is no room: nothing is held."""
        if self.held + count > self.max_bytes:
            return False
        if address:
            network = network_of(address)
            before, around = self._of_address.get(address, 0), self._of_network.get(network, 0)
            for taken, part in ((before, ADDRESS_PART), (around, NETWORK_PART)):
                if taken and taken + count > max(self.max_bytes // part, self.least_part):
                    return False
            self._of_address[address], self._of_network[network] = before + count, around + count
        self.held += count
        return True

    def free(self, count: int, address: str = "") -> None:
        """Give bytes back."""
        self.held -= count
        if address and count:
            for held, name in ((self._of_address, address), (self._of_network, network_of(address))):
                held[name] -= count
                if not held[name]:
                    del held[name]


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
