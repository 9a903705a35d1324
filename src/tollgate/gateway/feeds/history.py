"""The newest blocks of a chain as they were handed on, each the child of the one before.

Pure. Decides whether a block comes next, and which of the kept ones are still in place when it does not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence

from msgspec import Struct

from tollgate.chains.subscriptions import Head, Item

MAX_KEPT = 256
# Logs that were sent are kept to be taken back. Beyond so many bytes the oldest are forgotten first.
MAX_KEPT_BYTES = 16 * 1_048_576


class Kept(Struct):
    """A block that was handed on."""

    head: Head
    logs: Sequence[Item] = ()
    """What was sent of it and would have to be taken back."""
    forgotten: bool = False
    """Whether that is not known any more."""


class BlockHistory:
    """Blocks that were handed on. The first of them was not: it is what the next one is the child of."""

    def __init__(self, first: Head) -> None:
        self._kept = deque([Kept(first)])
        self._bytes = 0

    @property
    def first(self) -> Head:
        """The oldest block that is kept."""
        return self._kept[0].head

    @property
    def last(self) -> Head:
        return self._kept[-1].head

    @property
    def is_full(self) -> bool:
        """Whether as many blocks are kept as there may be."""
        return len(self._kept) >= MAX_KEPT

    def is_next(self, head: Head) -> bool:
        """Whether a block is the child of the newest one."""
        return head.number == self.last.number + 1 and head.parent == self.last.hash

    def push(self, head: Head) -> Kept:
        # Not what was sent of it as a head: that is not needed again.
        kept = Kept(Head(head.number, head.hash, head.parent))
        self._kept.append(kept)
        if len(self._kept) > MAX_KEPT:
            self._bytes -= _size(self._kept.popleft())
        return kept

    def keep(self, kept: Kept, logs: Sequence[Item]) -> None:
        kept.logs = logs
        self._bytes += _size(kept)
        for oldest in self._kept:
            if self._bytes <= MAX_KEPT_BYTES:
                return
            if oldest.logs:
                self._bytes -= _size(oldest)
                oldest.logs, oldest.forgotten = (), True

    def at(self, number: int) -> Head | None:
        place = number - self.first.number
        return self._kept[place].head if 0 <= place < len(self._kept) else None

    def ancestor(self, newest: int) -> Generator[int, Head, int | None]:
        """Find the newest kept block that is still in place; None: all are replaced.

        Yields the number of a block to look at, is sent the block that is there now. `newest` is the first.
        """
        found: Head | None = None
        for number in range(min(newest, self.last.number), max(self.first.number, 0) - 1, -1):
            found = yield number
            kept = self.at(number)
            if kept is not None and found.hash == kept.hash:
                return number
        first = self.first
        if first.number < 0:
            return first.number
        is_known = found is not None and first.parent and found.parent == first.parent
        return first.number - 1 if is_known else None

    def cut(self, ancestor: int) -> list[Kept]:
        """Take away all blocks above one that `ancestor` has found, oldest first."""
        taken: list[Kept] = []
        first = self.first
        while self._kept and self.last.number > ancestor:
            kept = self._kept.pop()
            self._bytes -= _size(kept)
            taken.append(kept)
        if not self._kept:
            self._kept.append(Kept(Head(first.number - 1, first.parent, "")))
        return taken[::-1]


def _size(kept: Kept) -> int:
    return sum(len(item.result) for item in kept.logs)
