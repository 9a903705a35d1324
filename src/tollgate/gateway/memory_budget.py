"""The bound on bytes held in large bodies, of callers and of upstreams together.

Small bodies are not counted: their number is bounded by connections and requests in flight.
"""

from __future__ import annotations

SMALL = 65_536


class Budget:
    """Bytes that may be held at once in one worker."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.held = 0

    def hold(self, count: int) -> bool:
        """Hold more bytes; False where there is no room, and then nothing is held."""
        if self.held + count > self.max_bytes:
            return False
        self.held += count
        return True

    def free(self, count: int) -> None:
        """Give bytes back."""
        self.held -= count


class CountedBody(bytes):
    """A body that counts against the budget until nobody holds it any more."""

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
