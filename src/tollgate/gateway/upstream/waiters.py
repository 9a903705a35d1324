"""Requests that wait for a connection to an upstream, by who holds connections: a team's tokens, or a domain.

A free connection goes round-robin to holders, tokens before domains, and among the requests of one to the oldest.
So many requests of one holder do not delay those of another, and it is only its own queue that is full.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

_DOMAIN = "dom_"


class Waiting(Protocol):
    """A request that waits."""

    until: float
    since: float

    @property
    def holder(self) -> str: ...

    @property
    def over(self) -> bool:
        """Whether its call was abandoned."""


def is_domain(holder: str) -> bool:
    """Whether a holder is a domain, whose callers can forge their Origin."""
    return holder.startswith(_DOMAIN)


W = TypeVar("W", bound=Waiting)


class Waiters(dict[str, deque[W]]):
    """What waits for connections of one pool, by holder. Nothing waits while it is empty: each response looks."""

    def requests(self) -> Iterator[W]:
        for queue in self.values():
            yield from queue

    def add(self, request: W, *, first: bool = False) -> None:
        queue = self.get(request.holder)
        if queue is None:
            queue = self[request.holder] = deque()
        if first:
            queue.appendleft(request)
        else:
            queue.append(request)

    def next(self, may_hold: Callable[[str], bool]) -> W | None:
        """Take the request whose turn it is, of a holder that may have another connection."""
        # Sorted as they came, domains behind.
        for holder in sorted(self, key=is_domain):
            if not self._is_sound(holder) or not may_hold(holder):
                continue
            queue = self.pop(holder)
            request = queue.popleft()
            if queue:
                # Behind the others.
                self[holder] = queue
            return request
        return None

    def oldest(self, holder: str) -> tuple[int, float]:
        """How many requests of a holder wait, and since when the oldest does."""
        return (len(self[holder]), self[holder][0].since) if self._is_sound(holder) else (0, 0.0)

    def take_late(self, now: float) -> list[W]:
        """Take those whose time is up."""
        late = []
        for holder, queue in list(self.items()):
            late += [each for each in queue if now >= each.until and not each.over]
            self[holder] = kept = deque(each for each in queue if now < each.until and not each.over)
            if not kept:
                del self[holder]
        return late

    def _is_sound(self, holder: str) -> bool:
        """Drop abandoned requests from the front; whether one is left."""
        queue = self.get(holder)
        if queue is None:
            return False
        while queue and queue[0].over:
            queue.popleft()
        if not queue:
            del self[holder]
        return bool(queue)
