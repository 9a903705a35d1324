"""The feed of a network: the notifications of a worker's subscribers, from blocks that are fetched once for all.

The shared status has a new head; the missing blocks are fetched by number, through whichever upstream
answers, and handed on in order (`follower.py`). So an upstream that fails costs time, never a block. A feed runs
while it has subscribers. One that begins in the past follows alone until it has caught up (`catch_up.py`).

Nothing here knows a connection: subscribers are notified and, where they cannot be served any more, lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable

from tollgate import log
from tollgate.chains.subscriptions import Head, Start, Topic, Wrong
from tollgate.chains.subscriptions_starknet import BLOCK_NOT_FOUND, MAX_BLOCKS_BACK, TOO_FAR_BACK
from tollgate.core.health import NOTHING
from tollgate.errors import UpstreamUnavailable
from tollgate.gateway.feeds.catch_up import MAX_AT_ONCE, TOO_DEEP, CatchUp, FairSlots
from tollgate.gateway.feeds.follower import AHEAD, ChainFollower, TooDeep, Unlinked
from tollgate.gateway.feeds.pending import PendingTransactions
from tollgate.gateway.feeds.source import EthSource, EventPage, Incomplete, NotNow, Source, StarknetSource
from tollgate.gateway.feeds.statuses import Statuses
from tollgate.gateway.feeds.subscribers import Subscriber, Subscribers
from tollgate.shm.upstream_status import NetworkStatus

LOOK_SECONDS = 0.03
# Without the prober the head is polled from the upstreams this often.
POLL_SECONDS = 1.0
_SOONEST, _LATEST = 0.05, 2.0
MAX_BEHIND = 1_024
# A reorganisation below the first block that is kept is followed this far down, where its depth is known.
_DEEPEST = 256
# A block waits this long for its logs or events while it can be had itself; then those who need them are lost, and
# they cannot be subscribed to for a while: others wait for blocks alone.
PATIENCE_SECONDS, REFUSED_SECONDS = 10.0, 60.0
_log = log.get("feed")

Sleep = Callable[[float], Awaitable[None]]


class Feed:
    """What happens on one network."""

    def __init__(
        self,
        path: str,
        status: NetworkStatus,
        source: EthSource | StarknetSource,
        pending: PendingTransactions,
        now: Callable[[], float],
        sleep: Sleep = asyncio.sleep,
        past: Source | None = None,
    ) -> None:
        self._path = path
        self._status = status
        self._source = source
        self._past = past or source
        """Where blocks of the past come from: the cache may know them."""
        self._pending = pending
        self._now = now
        self._sleep = sleep
        self._subscribers = Subscribers(path.partition("/")[0])
        self._statuses = (
            Statuses(path, source, lambda: status.head, now, sleep) if isinstance(source, StarknetSource) else None
        )
        self._follower: ChainFollower | None = None
        self._start: int | None = None
        """The head when the first subscriber came: notifications begin after it."""
        self._polled: int | None = None
        self._polled_at = 0.0
        self._sign: tuple[int, int, int] | None = None
        self._reorgs = 0
        self._task: asyncio.Task[None] | None = None
        self._alone: dict[Subscriber, asyncio.Task[None]] = {}
        """Those that started in the past and have not caught up yet."""
        self._slots = FairSlots(MAX_AT_ONCE)
        self._stuck = (NOTHING, 0.0)
        """The last block that was published while the next one waits for its logs or events, and since when."""
        self._refused: dict[Topic, float] = {}
        """What could not be fetched, and until when it cannot be subscribed to."""

    # --- Subscribers -----------------------------------------------------------------------------------

    async def join(self, subscriber: Subscriber) -> None:
        """Add a subscriber. Raise `Wrong`, or a Refusal, where that cannot be."""
        if self._refused.get(subscriber.topic, 0.0) > self._now():
            raise UpstreamUnavailable("The upstreams do not give what this subscription needs: try again later.")
        if subscriber.topic is Topic.PENDING:
            self._pending.join(subscriber)
        elif subscriber.topic is Topic.STATUS and self._statuses is not None:
            self._statuses.join(subscriber)
        elif subscriber.subscription.start is None and not self._begins_with_newest(subscriber):
            self._join_now(subscriber)
        else:
            number, newest = await self._number(subscriber.subscription.start)
            if subscriber.gone:
                return
            if subscriber.subscription.start is not None:
                # Each block of the past is fetched once more, and its events, unless they are in the cache.
                subscriber.charge((newest - number) * (2 if subscriber.topic is Topic.EVENTS else 1))
            elif self._follower is None and self._start is None:
                self._start = number
            self._join_later(subscriber, number)

    def _begins_with_newest(self, subscriber: Subscriber) -> bool:
        """Whether the newest block is sent first: so nodes read the `latest` with which Starknet begins."""
        return isinstance(self._source, StarknetSource) and subscriber.topic in (Topic.HEADS, Topic.EVENTS)

    def tick(self) -> None:
        """Let the prober know that heads are wanted, where they are."""
        if self._subscribers or self._alone:
            self._status.mark_active()

    def leave(self, subscriber: Subscriber) -> None:
        subscriber.gone = True
        self._pending.leave(subscriber)
        if self._statuses is not None:
            self._statuses.leave(subscriber)
        self._subscribers.discard(subscriber)
        task = self._alone.pop(subscriber, None)
        if task is not None:
            self._subscribers.unwant(subscriber.topic)
            task.cancel()
        if not self._subscribers and not self._alone:
            if self._task is not None:
                self._task.cancel()
            self._task = self._follower = self._start = self._polled = self._sign = None

    def _join_now(self, subscriber: Subscriber) -> None:
        if self._follower is not None:
            subscriber.since = self._follower.reached
        elif self._start is not None:
            subscriber.since = self._start
        elif self._has_head:
            self._start = subscriber.since = self._status.head
        self._subscribers.add(subscriber)
        self._run()

    def _join_later(self, subscriber: Subscriber, number: int) -> None:
        past = _Past(self._source, self._past)
        late = CatchUp(subscriber, number, past, lambda: self._follower, self._arrive, self._slots, self._sleep)
        self._subscribers.want(subscriber.topic)

        async def step() -> bool:
            try:
                return await late.step()
            except Unlinked:
                past.distrust()
                raise

        self._alone[subscriber] = asyncio.create_task(repeat(self._path, step, self._sleep))
        self._run()

    async def _number(self, start: Start | None) -> tuple[int, int]:
        """The number of the block with which to begin, the newest where none is named; and of the newest."""
        try:
            if start is None:
                newest = self._status.head if self._has_head else await self._source.newest()
                return newest, newest
            number = start.number
            if number is None:
                assert isinstance(self._source, StarknetSource)  # noqa: S101 - only Starknet begins in the past
                number = await self._source.number_of(start.hash)
            newest = self._status.head if self._has_head else NOTHING
            if number is not None and number > newest:
                # The shared status may be a moment behind what a caller has seen elsewhere.
                newest = await self._source.newest()
        except NotNow as error:
            raise UpstreamUnavailable from error
        if number is None or number > newest:
            raise Wrong(BLOCK_NOT_FOUND, "Block not found")
        if newest - number > MAX_BLOCKS_BACK:
            raise Wrong(TOO_FAR_BACK, "Cannot go back more than 1024 blocks")
        return number, newest

    # --- Following the chain ---------------------------------------------------------------------------

    def _run(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(repeat(self._path, self.step, self._sleep))

    def close(self) -> None:
        for subscriber in [*self._subscribers, *self._alone]:
            self.leave(subscriber)
        self._pending.close()
        if self._statuses is not None:
            self._statuses.close()

    async def step(self) -> bool:
        """Follow the chain whenever the shared status changes, for ever."""
        newest = await self._newest()
        if self._follower is None:
            await self._begin(newest)
        follower = self._follower
        assert follower is not None  # noqa: S101 - started just now
        if newest - follower.history.last.number > MAX_BEHIND:
            self._lose_all(f"More than {MAX_BEHIND} blocks could not be delivered in time: subscribe again.")
            return False
        status = self._status
        # Changes with each new head, but not with what callers send.
        sign = (status.version - status.probe_requests, status.head, status.reorgs)
        try:
            if newest > follower.history.last.number:
                await follower.advance(newest)
            elif sign != self._sign:
                await follower.verify(newest)
        except TooDeep:
            await self._begin_below(follower)
            return False
        except Incomplete as failure:
            self._wait_for(failure, follower.history.last.number)
            raise
        self._sign, self._reorgs = sign, sign[2]
        return False

    async def _newest(self) -> int:
        if self._has_head:
            return self._status.head
        now = self._now()
        if self._polled is None or now - self._polled_at >= POLL_SECONDS:
            self._polled_at = now
            self._polled = await self._source.newest()
            # A subscriber that is notified of it must not read an older one afterwards.
            self._status.observe_head(self._polled)
        return self._polled

    @property
    def _has_head(self) -> bool:
        return self._status.is_fresh and self._status.head > NOTHING

    async def _begin(self, newest: int) -> None:
        # A chain may become shorter before it was looked at for the first time.
        number = newest if self._start is None else min(self._start, newest)
        self._reorgs = self._status.reorgs
        follower = ChainFollower(self._source, await self._source.block(number), self._subscribers)
        for subscriber in self._subscribers:
            subscriber.since = min(subscriber.since, number)
        self._follower = follower

    async def _begin_below(self, follower: ChainFollower) -> None:
        """Restart after a reorganisation deeper than the blocks that are kept."""
        first = follower.history.first
        ancestor = self._status.ancestor(self._reorgs)
        if not max(0, first.number - _DEEPEST) <= ancestor < first.number:
            ancestor = max(0, first.number - 1)
        if follower.history.is_full:
            self._lose_all(TOO_DEEP)
            return
        below = await self._source.block(ancestor)
        for subscriber in self._subscribers:
            if subscriber.since < first.number - 1:
                # It was notified of blocks that are not kept here.
                subscriber.lose(TOO_DEEP)
        await self._subscribers.take_back(follower.history.cut(NOTHING))
        for subscriber in self._subscribers:
            subscriber.since = min(subscriber.since, ancestor)
        self._follower = ChainFollower(self._source, below, self._subscribers)

    def _wait_for(self, failure: Incomplete, number: int) -> None:
        """Note that the block after this one waits for its logs or events; lose who needs them after a while."""
        now = self._now()
        if self._stuck[0] != number:
            self._stuck = (number, now)
        elif now - self._stuck[1] >= PATIENCE_SECONDS:
            self._refused |= dict.fromkeys(failure.topics, now + REFUSED_SECONDS)
            needing = [each for each in [*self._subscribers, *self._alone] if each.topic in failure.topics]
            self._lose(needing, f"What belongs to a block cannot be had ({failure}): subscribe again later.")

    def _lose(self, subscribers: Iterable[Subscriber], why: str) -> None:
        _log.error("subscribers were lost", network=self._path, why=why)
        for subscriber in subscribers:
            subscriber.lose(why)
            self.leave(subscriber)

    def _lose_all(self, why: str) -> None:
        self._lose(self._subscribers, why)
        self._follower = self._start = self._sign = None

    def _arrive(self, subscriber: Subscriber) -> None:
        """Add a subscriber that has caught up to the others."""
        del self._alone[subscriber]
        self._subscribers.add(subscriber)
        self._subscribers.unwant(subscriber.topic)


class _Past:
    """Blocks for those who begin in the past: whole ones from the cache; where the chain goes, from nodes.

    A cache holds what is final for ever. Where a chain was replaced below that, it is not used any more.
    """

    def __init__(self, present: Source, past: Source) -> None:
        self.newest = present.newest
        self._present = present
        self._past = past
        self._given: dict[int, str] = {}
        """The hashes of the newest blocks that were handed out, by number."""

    async def block(self, number: int) -> Head:
        found = await self._present.block(number)
        if self._given.get(number, found.hash) != found.hash:
            self.distrust()
        return found

    async def page(self, number: int, topics: Collection[Topic]) -> EventPage:
        page = await self._past.page(number, topics)
        self._given[number] = page.head.hash
        if len(self._given) > 2 * AHEAD:
            del self._given[next(iter(self._given))]
        return page

    def distrust(self) -> None:
        """Fetch whole blocks from nodes as well."""
        self._past = self._present


class Feeds:
    """The feeds of a worker, each made when it is first wanted."""

    def __init__(self, make: Callable[[str], Feed]) -> None:
        self._make = make
        self._feeds: dict[str, Feed] = {}

    def feed(self, path: str) -> Feed:
        feed = self._feeds.get(path)
        if feed is None:
            feed = self._feeds[path] = self._make(path)
        return feed

    def tick(self) -> None:
        """Once a second: let the prober know that there are subscribers, for whom heads must be fresh."""
        for feed in self._feeds.values():
            feed.tick()

    def close(self) -> None:
        for feed in self._feeds.values():
            feed.close()


async def repeat(path: str, step: Callable[[], Awaitable[bool]], sleep: Sleep) -> None:
    """Do something again and again until it is done; after a failure wait, longer each time."""
    delay, warned = _SOONEST, False
    while True:
        try:
            if await step():
                return
        except NotNow as error:
            if delay >= _LATEST and not warned:
                warned = True
                _log.warning("blocks cannot be had; subscribers wait", network=path, why=str(error))
            await sleep(delay)
            delay = min(2 * delay, _LATEST)
        except Exception:  # noqa: BLE001 - the border of a background job
            _log.exception("a feed failed", network=path)
            await sleep(_LATEST)
        else:
            delay, warned = _SOONEST, False
            await sleep(LOOK_SECONDS)
