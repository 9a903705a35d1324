"""The feed of a network: what a worker's subscribers are told, made of blocks that are fetched once for all.

The shared status has a new head; the missing blocks are fetched by number, through whichever upstream
answers, and handed on in order (`follower.py`). So an upstream that dies costs time, never a block. A feed runs
while somebody listens. Who begins in the past walks alone until it has come up to the others (`catch_up.py`).

Nothing here knows a connection: listeners are told and, where they cannot be served any more, lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tollgate import log
from tollgate.chains.subscriptions import Start, Topic, Wrong
from tollgate.chains.subscriptions_starknet import BLOCK_NOT_FOUND, MAX_BLOCKS_BACK, TOO_FAR_BACK
from tollgate.core.health import NOTHING
from tollgate.errors import UpstreamUnavailable
from tollgate.gateway.feeds.catch_up import MAX_AT_ONCE, TOO_DEEP, CatchUp
from tollgate.gateway.feeds.follower import ChainFollower, TooDeep
from tollgate.gateway.feeds.pending import PendingTransactions
from tollgate.gateway.feeds.source import EthSource, NotNow, Source, StarknetSource
from tollgate.gateway.feeds.statuses import Statuses
from tollgate.gateway.feeds.subscribers import Subscriber, Subscribers
from tollgate.shm.upstream_status import NetworkStatus

LOOK_SECONDS = 0.03
# Without the prober's word the upstreams are asked for their head this often.
ASK_SECONDS = 1.0
_SOONEST, _LATEST = 0.05, 2.0
MAX_BEHIND = 1_024
# A reorganisation below the first block that is kept is followed this far down, where its depth is known.
_DEEPEST = 256
_log = log.get("feed")

Sleep = Callable[[float], Awaitable[None]]


class Feed:
    """What happens on one network."""

    def __init__(
        self,
        path: str,
        row: NetworkStatus,
        source: EthSource | StarknetSource,
        pending: PendingTransactions,
        now: Callable[[], float],
        sleep: Sleep = asyncio.sleep,
        past: Source | None = None,
    ) -> None:
        self._path = path
        self._row = row
        self._source = source
        self._past = past or source
        """Where blocks of the past come from: the cache may know them."""
        self._pending = pending
        self._now = now
        self._sleep = sleep
        self._subscribers = Subscribers(path.partition("/")[0])
        self._statuses = (
            Statuses(path, source, lambda: row.head, now, sleep) if isinstance(source, StarknetSource) else None
        )
        self._follower: ChainFollower | None = None
        self._start: int | None = None
        """The head when the first listener came: what comes after it is told."""
        self._polled: int | None = None
        self._asked_at = 0.0
        self._sign: tuple[int, int, int] | None = None
        self._reorgs = 0
        self._task: asyncio.Task[None] | None = None
        self._alone: dict[Subscriber, asyncio.Task[None]] = {}
        """Those who have begun in the past and have not come up yet."""
        self._turns = asyncio.Semaphore(MAX_AT_ONCE)

    # --- Who listens -----------------------------------------------------------------------------------

    async def join(self, listener: Subscriber) -> None:
        """Let somebody listen from here on. Raise `Wrong`, or a Refusal, where that cannot be."""
        if listener.topic is Topic.PENDING:
            self._pending.join(listener)
        elif listener.topic is Topic.STATUS and self._statuses is not None:
            self._statuses.join(listener)
        elif listener.subscription.start is None and not self._begins_with_newest(listener):
            self._join_now(listener)
        else:
            number = await self._number(listener.subscription.start)
            if listener.gone:
                return
            if listener.subscription.start is not None and self._is_heard:
                # Each block of the past is asked for once more, unless it is in the cache.
                listener.charge(max(0, self._row.head - number))
            if self._follower is None and self._start is None and listener.subscription.start is None:
                self._start = number
            self._join_later(listener, number)

    def _begins_with_newest(self, listener: Subscriber) -> bool:
        """Whether the newest block is told first: so nodes read the `latest` with which Starknet begins."""
        return isinstance(self._source, StarknetSource) and listener.topic in (Topic.HEADS, Topic.EVENTS)

    def tick(self) -> None:
        """Let the prober know that heads are wanted, where they are."""
        if self._subscribers or self._alone:
            self._row.want()

    def leave(self, listener: Subscriber) -> None:
        """Let somebody go."""
        listener.gone = True
        self._pending.leave(listener)
        if self._statuses is not None:
            self._statuses.leave(listener)
        self._subscribers.discard(listener)
        task = self._alone.pop(listener, None)
        if task is not None:
            self._subscribers.unwant(listener.topic)
            task.cancel()
        if not self._subscribers and not self._alone:
            self._stop()

    def _join_now(self, listener: Subscriber) -> None:
        if self._follower is not None:
            listener.since = self._follower.reached
        elif self._start is not None:
            listener.since = self._start
        elif self._is_heard:
            self._start = listener.since = self._row.head
        self._subscribers.add(listener)
        self._run()

    def _join_later(self, listener: Subscriber, number: int) -> None:
        late = CatchUp(
            listener, number, _Past(self._source, self._past), lambda: self._follower, self._arrive, self._turns
        )
        self._subscribers.want(listener.topic)
        self._alone[listener] = asyncio.create_task(repeat(self._path, late.step, self._sleep))
        self._run()

    async def _number(self, start: Start | None) -> int:
        """The number of the block with which to begin; the newest where none is named."""
        try:
            if start is None:
                return self._row.head if self._is_heard else await self._source.newest()
            number = start.number
            if number is None:
                assert isinstance(self._source, StarknetSource)  # noqa: S101 - only Starknet begins in the past
                number = await self._source.number_of(start.hash)
            newest = self._row.head if self._is_heard else NOTHING
            if number is not None and number > newest:
                # The shared status may be a moment behind what a caller has heard elsewhere.
                newest = await self._source.newest()
        except NotNow as error:
            raise UpstreamUnavailable from error
        if number is None or number > newest:
            raise Wrong(BLOCK_NOT_FOUND, "Block not found")
        if newest - number > MAX_BLOCKS_BACK:
            raise Wrong(TOO_FAR_BACK, "Cannot go back more than 1024 blocks")
        return number

    # --- The walk --------------------------------------------------------------------------------------

    def _run(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(repeat(self._path, self.step, self._sleep))

    def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._task = self._follower = self._start = self._polled = self._sign = None

    def close(self) -> None:
        """End, whoever listens."""
        for listener in [*self._subscribers, *self._alone]:
            self.leave(listener)
        self._pending.close()
        if self._statuses is not None:
            self._statuses.close()

    async def step(self) -> bool:
        """Look at the shared status, and go on where there is something new. It is never done."""
        newest = await self._newest()
        if newest is None:
            return False
        if self._follower is None:
            await self._begin(newest)
        follower = self._follower
        assert follower is not None  # noqa: S101 - begun just now
        if newest - follower.history.last.number > MAX_BEHIND:
            self._lose_all(f"More than {MAX_BEHIND} blocks could not be delivered in time: subscribe again.")
            return False
        sign = self._seen()
        try:
            if newest > follower.history.last.number:
                await follower.advance(newest)
            elif sign != self._sign:
                await follower.verify(newest)
        except TooDeep:
            await self._begin_below(follower)
            return False
        self._sign, self._reorgs = sign, sign[2]
        return False

    async def _newest(self) -> int | None:
        if self._is_heard:
            return self._row.head
        now = self._now()
        if now - self._asked_at >= ASK_SECONDS or self._polled is None:
            self._asked_at = now
            self._polled = await self._source.newest()
            # Whoever is told of it must not find an older one afterwards.
            self._row.saw(self._polled)
        return self._polled

    @property
    def _is_heard(self) -> bool:
        return self._row.heard and self._row.head > NOTHING

    def _seen(self) -> tuple[int, int, int]:
        """What changes with each new head, but not with what callers send."""
        row = self._row
        return row.version - row.nudges, row.head, row.reorgs

    async def _begin(self, newest: int) -> None:
        # A chain may become shorter before it was looked at for the first time.
        number = newest if self._start is None else min(self._start, newest)
        self._reorgs = self._row.reorgs
        follower = ChainFollower(self._source, await self._source.block(number), self._subscribers)
        for listener in self._subscribers:
            listener.since = number if listener.since is None else min(listener.since, number)
        self._follower = follower

    async def _begin_below(self, follower: ChainFollower) -> None:
        """Go on after a reorganisation that went below all blocks that are kept."""
        first = follower.history.first
        ancestor = self._row.ancestor(self._reorgs)
        if not max(0, first.number - _DEEPEST) <= ancestor < first.number:
            ancestor = max(0, first.number - 1)
        if follower.history.is_full:
            self._lose_all(TOO_DEEP)
            return
        below = await self._source.block(ancestor)
        for listener in self._subscribers:
            if listener.since is not None and listener.since < first.number - 1:
                # It was told of blocks that are not kept here.
                listener.lose(TOO_DEEP)
        await self._subscribers.take_back(follower.history.cut(first.number - 1))
        for listener in self._subscribers:
            listener.since = ancestor if listener.since is None else min(listener.since, ancestor)
        self._follower = ChainFollower(self._source, below, self._subscribers)

    def _lose_all(self, why: str) -> None:
        _log.error("subscribers were lost", network=self._path, why=why)
        for listener in self._subscribers:
            listener.lose(why)
            self.leave(listener)
        self._follower = self._start = self._sign = None

    def _arrive(self, listener: Subscriber) -> None:
        """Let somebody in with the others who has begun in the past."""
        del self._alone[listener]
        self._subscribers.add(listener)
        self._subscribers.unwant(listener.topic)


class _Past:
    """Blocks for those who begin in the past: whole ones from the cache; where the chain goes, from nodes."""

    def __init__(self, present: Source, past: Source) -> None:
        self.newest = present.newest
        self.block = present.block
        self.page = past.page


class Feeds:
    """The feeds of a worker, each made when it is first wanted."""

    def __init__(self, make: Callable[[str], Feed]) -> None:
        self._make = make
        self._feeds: dict[str, Feed] = {}

    def feed(self, path: str) -> Feed:
        """The feed of a network."""
        feed = self._feeds.get(path)
        if feed is None:
            feed = self._feeds[path] = self._make(path)
        return feed

    def tick(self) -> None:
        """Once a second: let the prober know that there are subscribers, for whom heads must be fresh."""
        for feed in self._feeds.values():
            feed.tick()

    def close(self) -> None:
        """End all of them."""
        for feed in self._feeds.values():
            feed.close()


async def repeat(path: str, step: Callable[[], Awaitable[bool]], sleep: Sleep) -> None:
    """Do something again and again until it is done; after a failure wait, longer each time."""
    delay, told = _SOONEST, False
    while True:
        try:
            if await step():
                return
        except NotNow as error:
            if delay >= _LATEST and not told:
                told = True
                _log.warning("blocks cannot be had; subscribers wait", network=path, why=str(error))
            await sleep(delay)
            delay = min(2 * delay, _LATEST)
        except Exception:  # noqa: BLE001 - the border of a background job
            _log.exception("a feed failed", network=path)
            await sleep(_LATEST)
        else:
            delay, told = _SOONEST, False
            await sleep(LOOK_SECONDS)
