"""The chain of one network, as the prober follows it: `chains/track.py`, with the hashes of upstreams as its food.

The track prefers the longest chain; here upstreams have their say first (`core/branches.py`), so it is always
told.
"""

from __future__ import annotations

from tollgate.chains.heads import Block
from tollgate.chains.track import Change, Track
from tollgate.core.branches import Chain


class CanonicalChain:
    """The network's newest blocks, without holes."""

    def __init__(self) -> None:
        self._track = Track()

    @property
    def head(self) -> int:
        """The number of the newest; -1 where nothing is known."""
        return -1 if self._track.head is None else self._track.head.number

    @property
    def tip(self) -> str:
        """Its hash."""
        return "" if self._track.head is None else self._track.head.hash

    @property
    def lowest(self) -> int:
        """The number of the oldest that is known."""
        blocks = self._track.since(-1)
        return blocks[0].number if blocks else -1

    def hash_of(self, number: int) -> str | None:
        """The hash of one of them; the parent of the oldest is known too."""
        block = self._track.block(number)
        if block is not None:
            return block.hash
        above = self._track.block(number + 1)
        return None if above is None or number < 0 else above.parent

    def begin(self, chain: Chain) -> None:
        """Take an upstream's chain for the network's, whatever was before."""
        blocks = _blocks(chain, chain.tip)
        self._track.restart(blocks[0])
        for block in blocks[1:]:
            self._track.adopt(block)

    def follow(self, chain: Chain, ancestor: int) -> None:
        """Go on from a block in common to an upstream's tip. Over a hole nothing from before is kept."""
        blocks = [block for block in _blocks(chain, chain.tip) if block.number > ancestor]
        if blocks[0].number != ancestor + 1 or self._track.adopt(blocks[0]).change is Change.GAP:
            self.begin(chain)
            return
        for block in blocks[1:]:
            self._track.adopt(block)

    def cut(self, number: int) -> bool:
        """Forget everything above a block; False where that block is not known."""
        block = self._track.block(number)
        if block is not None:
            self._track.adopt(block)
        return block is not None

    def know(self, chain: Chain) -> None:
        """Take over older blocks of an upstream, as far as they are the network's."""
        below = self.lowest - 1
        if below >= 0 and chain.hashes.get(below) == self.hash_of(below):
            for block in reversed(_blocks(chain, below)):
                self._track.add(block)


def _blocks(chain: Chain, top: int) -> list[Block]:
    """An upstream's blocks from this one down, as far as they hang together; the oldest first."""
    blocks = []
    hashes = chain.hashes
    number = top
    while number in hashes and (number == 0 or number - 1 in hashes):
        blocks.append(Block(number, hashes[number], hashes.get(number - 1, "")))
        number -= 1
    return blocks[::-1]
