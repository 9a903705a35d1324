"""A subscriber that begins in the past: it follows alone until it has caught up with the others.

It follows as they do, with its own reorganisations. It joins them where its newest block is theirs: so
nothing is sent twice or left out, however the chain moves meanwhile. It goes no faster than its client reads, and
in turns with others: a thousand blocks for each of many must not be fetched at once. Turns go round by team:
thousands of one do not hold up another's.
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

# Those who go on at once, on one network, and how many blocks they go until others have their turn.
MAX_AT_ONCE, STRIDE = 8, 16
# Twice as far as anybody may begin in the past.
MAX_BEHIND = 2_048
# How soon it is looked at again whether a slow client has read what was sent.
_ROOM_SECONDS = 0.25
TOO_DEEP = "The chain was reorganised too deeply to follow: subscribe again."


class Turns:
    """Places for those who go on at once. Who waits gets one in turns by team, then in order."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._waiting: dict[object, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def turn(self, team: object) -> AsyncIterator[None]:
        """Have a place for a while."""
        if self._free:
            self._free -= 1
        else:
            await self._wait(team)
        try:
            yield
        finally:
            self._hand_on()

    async def _wait(self, team: object) -> None:
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(team, deque()).append(place)
        try:
            await place
        except asyncio.CancelledError:
            if not place.cancelled():
                self._hand_on()
            raise

    def _hand_on(self) -> None:
        while self._waiting:
            team = next(iter(self._waiting))
            places = self._waiting.pop(team)
            place = places.popleft()
            if places:
                self._waiting[team] = places
            if not place.done():
                place.set_result(None)
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
        turns: Turns,
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._subscriber = subscriber
        self._number = number
        self._source = source
        self._together = together
        """The walk of the others."""
        self._arrive = arrive
        self._turns = turns
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
        """Go on; return whether it has arrived."""
        await self._opened.wait()
        while True:
            together = self._together()
            if together is None or self._is_too_far_behind(together):
                return False
            if not self._subscriber.has_room:
                # What is past can wait until the client has read what was sent.
                await self._sleep(_ROOM_SECONDS)
                return False
            async with self._turns.turn(self._subscriber.team):
                is_on_its_way = await self._go_on(together)
            if not is_on_its_way:
                return self._has_arrived(together)

    def _is_too_far_behind(self, together: ChainFollower) -> bool:
        """Give it up where its client takes too long."""
        last = self._number if self._follower is None else self._follower.history.last.number
        if together.history.last.number - last <= MAX_BEHIND:
            return False
        self._subscriber.lose(f"More than {MAX_BEHIND} blocks wait to be read: read faster, and subscribe again.")
        return True

    async def _go_on(self, together: ChainFollower) -> bool:
        """Go a part of the way; return whether there is more of it."""
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
