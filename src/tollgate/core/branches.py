"""Which chain a network is on, when its upstreams show different ones.

Pure, over hashes by number: the network's (`HashOf`), and those that each upstream has shown (`UpstreamChain`).
First `missing` lists the blocks of an upstream that must be known to compare; then `claim` finds where its chain
leaves the network's; `choose` picks the claim that the network follows. One that continues from the network's head
is followed at once. One that contradicts it is a reorganisation when no upstream, or a minority, still holds on to
the old chain. Of two sides that are equally strong the old one stays, until the other is clearly longer: a node
that is stuck on an orphan must not hold up the network, and two chains that grow side by side must not make it
go to and fro.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

# Blocks that are fetched at most, in a gap or below a fork.
MAX_MISSING = 64
# Fetched at once below a fork: most are one block deep.
_STEP = 2
# Of two sides that are equally strong, the longer wins from here.
CLEARLY_LONGER = 3
REMEMBERED = 256
DEEP = -2
"""The ancestor is older than anything known."""


HashOf = Callable[[int], str | None]
"""The network's hash of a number, as far as it is known."""


class UpstreamChain:
    """The newest hashes of one upstream."""

    def __init__(self) -> None:
        self.hashes: dict[int, str] = {}
        self.tip = -1

    def add(self, number: int, digest: str, parent: str) -> None:
        """Note its newest block. Blocks above it, or not linked to it hash by hash, are dropped."""
        if self.tip == number and self.hashes.get(number) == digest:
            return
        kept = {each: found for each, found in self.hashes.items() if number - REMEMBERED < each < number}
        self.hashes = kept if kept.get(number - 1) == parent else {}
        self.tip = number
        self._put(number, digest, parent)

    def fill(self, number: int, digest: str, parent: str) -> bool:
        """Note an older block, the newest first; False where it does not fit: the chain has changed since."""
        if self.hashes.get(number, digest) != digest:
            return False
        self._put(number, digest, parent)
        return True

    def _put(self, number: int, digest: str, parent: str) -> None:
        self.hashes[number] = digest
        if number > 0:
            self.hashes[number - 1] = parent


class Claim(Struct, frozen=True):
    """Where an upstream's chain leaves the network's."""

    name: str
    tip: int
    ancestor: int
    """The newest block that both have; its own tip, where that is on the network's chain."""
    root: str = ""
    """Its first block above the ancestor, where that contradicts the network's: the mark of its branch."""


def missing(hash_of: HashOf, head: int, chain: UpstreamChain, *, whole: bool = True) -> list[int]:
    """The numbers of an upstream's blocks that must be known before it can be compared; none: it can.

    `whole`: so that nothing is missing between the network's head and its tip. Otherwise one block at a time.
    """
    if whole and chain.tip - head <= MAX_MISSING:
        # A block has its own hash and its parent's: what is fetched is linked, hash by hash.
        gap = [number + 1 for number in range(head, chain.tip) if number not in chain.hashes]
        if gap:
            return gap
    step = _STEP if whole else 1
    for number in range(min(chain.tip, head), max(-1, head - MAX_MISSING), -1):
        known = hash_of(number)
        if known is None:
            return []
        if number not in chain.hashes:
            return [each for each in range(number + 1, number + 1 - step, -1) if each > 0]
        if chain.hashes[number] == known:
            return []
    return []


def claim(name: str, hash_of: HashOf, head: int, chain: UpstreamChain) -> Claim:
    """Where an upstream leaves the network's chain. What is still missing counts as different."""
    top = min(chain.tip, head)
    known = hash_of(top)
    if known is None:
        # Older than all that is known of the network: nothing contradicts it.
        return Claim(name, chain.tip, top)
    root = chain.hashes[chain.tip]
    number = top
    while known is not None and number in chain.hashes:
        if chain.hashes[number] == known:
            return Claim(name, chain.tip, number, "" if number == top else root)
        root = chain.hashes[number]
        number -= 1
        known = hash_of(number)
    return Claim(name, chain.tip, DEEP, root)


def is_contested(each: Claim, head: int) -> bool:
    """Whether it contradicts the network's chain."""
    return each.ancestor < min(each.tip, head)


def choose(claims: Sequence[Claim], head: int, unclear: int = 0) -> Claim | None:
    """The claim that the network follows; None: it stays. `unclear`: upstreams that cannot be compared yet."""
    longer = [each for each in claims if each.tip > head and not is_contested(each, head)]
    if longer:
        return max(longer, key=lambda each: each.tip)
    sides: dict[str, list[Claim]] = {}
    for each in claims:
        if is_contested(each, head):
            sides.setdefault(each.root, []).append(each)
    for side in sorted(sides.values(), key=len, reverse=True):
        best = max(side, key=lambda each: each.tip)
        against = unclear + sum(each.ancestor > best.ancestor for each in claims)
        if not against or len(side) > against or (len(side) == against and best.tip - head >= CLEARLY_LONGER):
            return best
    return None
