"""The chain of one network, as the prober follows it: hashes by number, without holes.

Which upstream's chain the network is on is decided in `core/branches.py`.
"""

from __future__ import annotations

from tollgate.core.branches import UpstreamChain

DEPTH = 256
"""Blocks that are remembered."""


class CanonicalChain:
    """The network's newest blocks."""

    def __init__(self) -> None:
        self.head = -1
        """The number of the newest; -1 where nothing is known."""
        self._hashes: dict[int, str] = {}
        """From the parent of the oldest to the head."""

    @property
    def tip(self) -> str:
        """The hash of the newest."""
        return self._hashes.get(self.head, "")

    @property
    def lowest(self) -> int:
        """The number of the oldest of which the parent is known too, or of the first of all."""
        oldest = min(self._hashes, default=-1)
        return oldest + 1 if oldest > 0 else oldest

    def hash_of(self, number: int) -> str | None:
        """The hash of one of them; the parent of the oldest is known too."""
        return self._hashes.get(number)

    def begin(self, chain: UpstreamChain) -> None:
        """Take an upstream's chain for the network's, whatever was before."""
        self._hashes.clear()
        self._extend(chain, chain.tip)

    def follow(self, chain: UpstreamChain, ancestor: int) -> None:
        """Go on from a block in common to an upstream's tip. Over a hole nothing from before is kept."""
        known = self._hashes.get(ancestor)
        whole = all(number in chain.hashes for number in range(ancestor, chain.tip))
        if known is None or chain.hashes.get(ancestor) != known or not whole:
            self.begin(chain)
            return
        self._cut(ancestor)
        self._extend(chain, chain.tip, down_to=ancestor)

    def cut(self, number: int) -> bool:
        """Forget everything above a block; False where that block is not known."""
        if not self.lowest <= number <= self.head:
            return False
        self._cut(number)
        return True

    def know(self, chain: UpstreamChain) -> None:
        """Take over older blocks of an upstream, as far as they are the network's."""
        below = self.lowest - 1
        if below >= 0 and chain.hashes.get(below) == self._hashes[below]:
            self._extend(chain, below)

    def _cut(self, number: int) -> None:
        self._hashes = {each: digest for each, digest in self._hashes.items() if each <= number}
        self.head = number

    def _extend(self, chain: UpstreamChain, top: int, *, down_to: int = 0) -> None:
        """Take over an upstream's blocks from `top` down, as far as they hang together; drop what is too old."""
        number = top
        while number >= down_to and number in chain.hashes:
            self._hashes[number] = chain.hashes[number]
            number -= 1
        self.head = max(self._hashes)
        self._hashes = {each: digest for each, digest in self._hashes.items() if each >= self.head - DEPTH}
