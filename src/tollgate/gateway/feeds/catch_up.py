"""A subscriber that starts in the past follows the chain alone until it has caught up with the others.

It handles reorganisations itself, and joins the others where its newest block is theirs: nothing is sent twice or
left out, however the chain moves meanwhile. It goes no faster than its client reads. Few subscribers fetch at the
same time, round-robin by team: thousands of one team do not delay another's.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from tollgate.chains.subscriptions import Head
from tollgate.core.health import NOTHING
from tollgate.gateway.feeds.follower import ChainFollower, TooDeep
from tollgate.gateway.feeds.source import Source
from tollgate.gateway.feeds.subscribers import Subscriber, Subscribers

# Subscribers of a network that catch up at the same time, and blocks that each fetches before it frees its slot.
MAX_AT_ONCE, STRIDE = 8, 16
# Twice as far back as a subscription may start.
MAX_BEHIND = 2_048
# Until it is checked again whether a slow client has read what was sent.
_ROOM_SECONDS = 0.25
TOO_DEEP = "The chain was reorganised too deeply to follow: subscribe again."


class FairSlots:
    """Slots for subscribers that catch up at the same time. Free ones go round-robin by team, then in order."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: dict[object, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def slot(self, team: object) -> AsyncIterator[None]:
        if self._free:
            self._free -= 1
        else:
            await self._wait(team)
        try:
            yield
        finally:
            self._release()

    async def _wait(self, team: object) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(team, deque()).append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():
                self._release()
            raise

    def _release(self) -> None:
        while self._waiting:
            team = next(iter(self._waiting))
            waiters = self._waiting.pop(team)
            waiter = waiters.popleft()
            if waiters:
                self._waiting[team] = waiters
            if not waiter.done():
                waiter.set_result(None)
                return
        self._free += 1


class CatchUp:
    """One subscriber that catches up from a block in the past."""

    def __init__(
        self,
        subscriber: Subscriber,
        number: int,
        source: Source,
        together: Callable[[], ChainFollower | None],
        arrive: Callable[[Subscriber], None],
        slots: FairSlots,
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._subscriber = subscriber
        self._number = number
        self._source = source
        self._together = together
        """The follower of the others."""
        self._arrive = arrive
        self._slots = slots
        self._sleep = sleep
        self._alone = Subscribers(subscriber.family)
        self._alone.add(subscriber)
        self._follower: ChainFollower | None = None
        self._opened = asyncio.Event()
        others = together()
        self._known = NOTHING if others is None else others.reached
        """Blocks up to here may have been fetched for the others without what this one needs."""
        subscriber.since = number - 1
        subscriber.begin = self._opened.set

    async def step(self) -> bool:
        """Fetch blocks; return whether it has caught up."""
        await self._opened.wait()
        while True:
            together = self._together()
            if together is None or self._is_too_far_behind(together):
                return False
            if not self._subscriber.has_room:
                # What is past can wait until the client has read what was sent.
                await self._sleep(_ROOM_SECONDS)
                return False
            async with self._slots.slot(self._subscriber.team):
                is_on_its_way = await self._go_on(together)
            if not is_on_its_way:
                return self._has_arrived(together)

    def _is_too_far_behind(self, together: ChainFollower) -> bool:
        """End the subscription where its client reads too slowly."""
        last = self._number if self._follower is None else self._follower.history.last.number
        if together.history.last.number - last <= MAX_BEHIND:
            return False
        self._subscriber.lose(f"More than {MAX_BEHIND} blocks wait to be read: read faster, and subscribe again.")
        return True

    async def _go_on(self, together: ChainFollower) -> bool:
        """Fetch up to STRIDE blocks; return whether more are left."""
        if self._follower is None:
            first = await self._source.block(self._number)
            self._follower = ChainFollower(self._source, Head(self._number - 1, first.parent, ""), self._alone)
        follower, newest = self._follower, together.history.last.number
        last = follower.history.last.number
        try:
            if newest > last:
                await follower.advance(min(newest, last + STRIDE))
            elif newest >= follower.history.first.number:
                await follower.verify(newest)
        except TooDeep:
            if follower.history.is_full:
                # It was notified of blocks that are not kept here.
                self._subscriber.lose(TOO_DEEP)
                return False
            # All blocks that it was notified of are replaced, and some before: it begins again.
            await self._alone.take_back(follower.history.cut(follower.history.first.number))
            self._follower = None
            return False
        return follower.history.last.number < newest

    def _has_arrived(self, together: ChainFollower) -> bool:
        """Let it in with the others if its newest block is theirs."""
        if self._follower is None or self._together() is not together:
            return False
        mine, theirs = self._follower.history.last, together.history.last
        if mine.number < self._known or mine.hash != theirs.hash:
            return False
        self._arrive(self._subscriber)
        return True
