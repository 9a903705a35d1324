"""What is done to a chain beside the passing of time: blocks made at once, pauses, reorganisations, transactions.

Pure: `after` makes one course of another, and the time of each deed is in the deed. Nodes that read the same
deeds in the same order have the same chain, which is why a deed names heights and times, never "now" or "the
newest". Bounded: the submitted transactions and the forks that are kept have a limit each.

A node may read a deed a little after it was done. `slack` is how late at most: what a deed changes about
blocks to come begins after the blocks that such a node may have shown meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from tollgate.demo.chain import HISTORY_BLOCKS, Chain, Sent
from tollgate.demo.chain_view import NO_PLACES, NONE_SENT

MAX_SENT = 4_096
MAX_FORKS = 256
MAX_BLOCKS_AT_ONCE = 1_024
DEEPEST_REORG = 128


class Mined(Struct, frozen=True, tag=True):
    """Blocks were made at once."""

    at: float
    blocks: int


class Paused(Struct, frozen=True, tag=True):
    """Time makes no blocks any more."""

    at: float


class Resumed(Struct, frozen=True, tag=True):
    """Time makes blocks again, the first one a whole block time later."""

    at: float


class Reorganised(Struct, frozen=True, tag=True):
    """The blocks from `height` on were replaced, by as many others or by one more."""

    at: float
    height: int
    longer: bool = False
    name: str = ""


class Accepted(Struct, frozen=True, tag=True):
    """A transaction was submitted."""

    at: float
    sent: Sent


Deed = Mined | Paused | Resumed | Reorganised | Accepted


class Course(Struct, frozen=True):
    """A chain and what was done to it."""

    chain: Chain
    since: float
    base: int
    """The newest block at the time `since`."""
    running: bool
    slack: float = 0.0
    sent: Mapping[int, tuple[Sent, ...]] = NONE_SENT
    slots: Mapping[bytes, int] = NO_PLACES

    def head(self, now: float) -> int:
        """Return the height of the newest block."""
        if not self.running:
            return self.base
        return max(0, self.base + int((now - self.since) // self.chain.block_seconds))

    def next_height(self, now: float) -> int:
        """Return the first block that no node can have shown yet."""
        return self.head(now + self.slack) + 1


def begin(chain: Chain, slack: float = 0.0) -> Course:
    """Return the course of a chain that nothing has been done to."""
    if not chain.block_seconds:
        return Course(chain, chain.genesis, HISTORY_BLOCKS, running=False, slack=slack)
    return Course(chain, chain.genesis, 0, running=True, slack=slack)


def after(course: Course, deed: Deed) -> Course:
    """Return the course with one deed more."""
    match deed:
        case Mined():
            return replace(course, base=course.base + deed.blocks)
        case Paused():
            return _paused(course, deed.at)
        case Resumed():
            running = bool(course.chain.block_seconds)
            return course if course.running else replace(course, since=deed.at, running=running)
        case Reorganised():
            return _reorganised(course, deed)
        case Accepted():
            return _accepted(course, deed)


def _paused(course: Course, at: float) -> Course:
    newest = course.head(at + course.slack)
    stopped = replace(course, since=at, base=newest, running=False)
    waiting = [sent for height, several in course.sent.items() if height > newest for sent in several]
    return _placed(stopped, waiting, newest + 1)


def _reorganised(course: Course, deed: Reorganised) -> Course:
    """Fork; what was submitted and is in no block any more waits for the next one."""
    newest = course.head(deed.at)
    orphaned = [
        sent
        for height in range(deed.height, newest + 1)
        for sent in course.sent.get(height, ())
    ]  # fmt: skip
    forked = replace(
        course, chain=course.chain.forked(deed.height, deed.name), base=course.base + (1 if deed.longer else 0)
    )
    return _placed(forked, orphaned, forked.next_height(deed.at))


def _accepted(course: Course, deed: Accepted) -> Course:
    if deed.sent.hash in course.slots:
        return course
    return _bounded(_placed(course, [deed.sent], course.next_height(deed.at)))


def _placed(course: Course, moved: list[Sent], height: int) -> Course:
    """Put transactions into the block at `height`, out of wherever they are now."""
    if not moved:
        return course
    slots = dict(course.slots)
    sent = dict(course.sent)
    leaving = {one.hash for one in moved}
    for left in {slots[one.hash] for one in moved if one.hash in slots}:
        sent[left] = tuple(one for one in sent[left] if one.hash not in leaving)
        if not sent[left]:
            del sent[left]
    sent[height] = (*sent.get(height, ()), *moved)
    slots.update((one.hash, height) for one in moved)
    return replace(course, sent=sent, slots=slots)


def _bounded(course: Course) -> Course:
    """Forget the first submitted transaction of the oldest block where there are too many."""
    if len(course.slots) <= MAX_SENT:
        return course
    oldest = min(course.sent)
    first, *others = course.sent[oldest]
    sent = {height: several for height, several in course.sent.items() if height != oldest}
    if others:
        sent[oldest] = tuple(others)
    slots = {name: height for name, height in course.slots.items() if name != first.hash}
    return replace(course, sent=sent, slots=slots)
