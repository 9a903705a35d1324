"""The newest blocks of one network, as far as they are known: which of them form the chain, and what changed.

Blocks come one by one, in any order and from any node. The longest chain that reaches what is known is the chain;
of two that are equally long the first stays. Memory and a rule: nothing is fetched here, and there is no clock.

    HEAD   the chain went on
    KNOWN  nothing changed
    REORG  the chain is another above `ancestor`; `gone` are the blocks that were
    GAP    a longer chain hangs in the air: `missing` is the hash of the block to be fetched and added next

Whoever is told of a gap fetches what is missing, adds it, and goes on so until it is told something else. After so
many steps that it gives up, `restart` begins anew. Where the caller knows that the chain became shorter, which the
longest cannot tell, it says so by `adopt`, and again after each block that it fetched for a gap there.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from msgspec import Struct

from tollgate.chains.heads import Block

DEPTH = 256
"""Blocks of the chain that are remembered, and as many beside it."""


class Change(Enum):
    """What a block changed."""

    HEAD = "head"
    KNOWN = "known"
    REORG = "reorg"
    GAP = "gap"


class Seen(Struct, frozen=True):
    """What became of a block that was added."""

    change: Change
    ancestor: int = -1
    """The newest block that both chains have."""
    gone: tuple[Block, ...] = ()
    """Blocks that are no longer in the chain, the newest first."""
    missing: str = ""
    """The hash of the block that is wanted next."""
    number: int = -1
    """Its number."""


_KNOWN = Seen(Change.KNOWN)


class Track:
    """The newest blocks of one network. Never more than twice `depth` of them."""

    def __init__(self, depth: int = DEPTH) -> None:
        self._depth = depth
        self._chain: dict[int, Block] = {}
        self._aside: dict[str, Block] = {}
        """Blocks that are not in the chain, by hash; the longest known first."""
        self.head: Block | None = None
        """The newest block of the chain; None before the first."""

    def __len__(self) -> int:
        return len(self._chain) + len(self._aside)

    def block(self, number: int) -> Block | None:
        """The block of the chain with this number, as far back as is remembered."""
        return self._chain.get(number)

    def since(self, number: int) -> list[Block]:
        """The blocks of the chain above this one, the oldest first; from the oldest known where that is newer."""
        if self.head is None:
            return []
        return [self._chain[each] for each in range(max(number + 1, min(self._chain)), self.head.number + 1)]

    def add(self, block: Block) -> Seen:
        """Note a block that some node has."""
        if self.head is None:
            self.restart(block)
            return Seen(Change.HEAD, block.number - 1)
        if self._chain.get(block.number) == block or block.number <= self.head.number - self._depth:
            return _KNOWN
        if not self._goes_below(block):
            self._put_aside(block)
        wanted = None
        for tip in self._longer():
            branch = self._branch(tip)
            if self._ancestor(branch[-1]) is not None:
                return self._switch(branch, self._aside)
            if wanted is None and block in branch:
                wanted = branch[-1]
        return _KNOWN if wanted is None else _gap(wanted)

    def adopt(self, block: Block) -> Seen:
        """Take this block for the head, though it may be no longer chain. What it leaves behind is forgotten."""
        if self.head is None or block == self.head:
            return self.add(block) if self.head is None else _KNOWN
        if self._chain.get(block.number) == block:
            self._aside.clear()
            gone = self._cut(block.number)
            return Seen(Change.REORG, block.number, gone)
        self._put_aside(block)
        branch = self._branch(block)
        if self._ancestor(branch[-1]) is None:
            return _gap(branch[-1])
        self._aside.clear()
        return self._switch(branch, {})

    def restart(self, block: Block) -> None:
        """Forget everything, and begin with this block."""
        self._aside.clear()
        self._chain = {block.number: block}
        self.head = block

    # --- Steps -----------------------------------------------------------------------------------------

    def _goes_below(self, block: Block) -> bool:
        """Lengthen the chain at its lower end, where this block belongs there."""
        lowest = self._chain[min(self._chain)]
        if (block.hash, block.number) != (lowest.parent, lowest.number - 1):
            return False
        below: Block | None = block
        while below is not None and len(self._chain) < self._depth:
            self._chain[below.number] = below
            self._aside.pop(below.hash, None)
            lower = self._aside.get(below.parent)
            below = lower if lower is not None and lower.number == below.number - 1 else None
        return True

    def _put_aside(self, block: Block) -> None:
        self._aside.setdefault(block.hash, block)
        if len(self._aside) > self._depth:
            del self._aside[next(iter(self._aside))]

    def _longer(self) -> Iterator[Block]:
        """Blocks that would make a longer chain, the highest first; of equals the one known longest."""
        assert self.head is not None  # noqa: S101 - there is one from the first block on
        height = self.head.number
        longer = [block for block in self._aside.values() if block.number > height]
        return iter(sorted(longer, key=lambda block: -block.number))

    def _branch(self, tip: Block) -> list[Block]:
        """This block and those below it, as long as they are aside and fit; the newest first."""
        branch = [tip]
        while True:
            parent = self._aside.get(branch[-1].parent)
            if parent is None or parent.number != branch[-1].number - 1:
                return branch
            branch.append(parent)

    def _ancestor(self, lowest: Block) -> int | None:
        """The number of the block of the chain that this one stands on; None where it stands on none."""
        number = lowest.number - 1
        below = self._chain.get(number)
        if below is not None:
            return number if below.hash == lowest.parent else None
        # The chain's oldest block names its parent, though that is not remembered.
        above = self._chain.get(lowest.number)
        return number if above is not None and above.parent == lowest.parent else None

    def _switch(self, branch: list[Block], aside: dict[str, Block]) -> Seen:
        """Make this branch the end of the chain; what was goes aside."""
        ancestor = branch[-1].number - 1
        gone = self._cut(ancestor)
        for block in reversed(branch):
            self._chain[block.number] = block
            self._aside.pop(block.hash, None)
        self.head = branch[0]
        aside.update((block.hash, block) for block in reversed(gone))
        self._forget()
        return Seen(Change.REORG if gone else Change.HEAD, ancestor, gone)

    def _cut(self, ancestor: int) -> tuple[Block, ...]:
        """Take the blocks above this one from the chain."""
        gone = tuple(self._chain.pop(number) for number in sorted(self._chain, reverse=True) if number > ancestor)
        self.head = self._chain.get(ancestor, self.head)
        return gone

    def _forget(self) -> None:
        """Drop what is too old, or too much."""
        assert self.head is not None  # noqa: S101 - a branch was made the chain
        oldest = self.head.number - self._depth + 1
        self._chain = {number: block for number, block in self._chain.items() if number >= oldest}
        kept = [block for block in self._aside.values() if block.number >= oldest]
        self._aside = {block.hash: block for block in kept[-self._depth :]}


def _gap(lowest: Block) -> Seen:
    return Seen(Change.GAP, missing=lowest.parent, number=lowest.number - 1)
