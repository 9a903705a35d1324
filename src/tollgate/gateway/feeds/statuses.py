"""Transaction statuses (Starknet): queried when a block has them, and at intervals.

One query serves all subscribers of a transaction. A block names its transactions, so one query for a
block serves all that it has. Before that a transaction is queried at growing intervals, a settled one every half
minute: the way from there to L1 takes hours. However many are waited for, the rate of queries is bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from tollgate import log
from tollgate.chains.heads import Misread
from tollgate.chains.subscriptions_starknet import FINAL_STATUSES, read_status, status_result
from tollgate.core.health import NOTHING
from tollgate.core.limits import Limit, take
from tollgate.errors import Refusal
from tollgate.gateway.feeds.source import NotNow, StarknetSource
from tollgate.gateway.feeds.subscribers import Subscriber

POLL_SECONDS = 2.0
SETTLED_SECONDS = 30.0
_LOOK_SECONDS = 0.1
# Queries at once, and a second.
_AT_ONCE = 8
PER_SECOND = 10
# Blocks that are looked into after a pause; what is in older ones is found by polling.
_MAX_BLOCKS = 8
_log = log.get("feed")


class _Transaction:
    def __init__(self) -> None:
        self.subscribers: dict[Subscriber, None] = {}
        self.sent: bytes | None = None
        """The last notification."""
        self.queried_at = float("-inf")
        self.wait = POLL_SECONDS
        """Until it is queried again."""
        self.final = False

    def is_due(self, now: float) -> bool:
        return not self.final and now - self.queried_at >= self.wait


class Statuses:
    """The transactions of one network that have subscribers."""

    def __init__(
        self,
        path: str,
        source: StarknetSource,
        head: Callable[[], int],
        now: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._path = path
        self._source = source
        self._head = head
        self._now = now
        self._sleep = sleep
        self._waited_for: dict[str, _Transaction] = {}
        self._head_seen = NOTHING
        self._limit = Limit(PER_SECOND, 1.0)
        self._arrival = 0.0
        self._task: asyncio.Task[None] | None = None

    def join(self, subscriber: Subscriber) -> None:
        transaction = self._waited_for.setdefault(subscriber.subscription.hash, _Transaction())
        transaction.subscribers[subscriber] = None
        if transaction.sent is not None:
            subscriber.notify(transaction.sent)
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    def leave(self, subscriber: Subscriber) -> None:
        transaction = self._waited_for.get(subscriber.subscription.hash)
        if transaction is None or subscriber not in transaction.subscribers:
            return
        del transaction.subscribers[subscriber]
        if not transaction.subscribers:
            del self._waited_for[subscriber.subscription.hash]
        if not self._waited_for:
            self.close()

    def close(self) -> None:
        self._head_seen = NOTHING
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        while True:
            try:
                await self.step()
            except Exception:  # noqa: BLE001 - the border of a background job
                _log.exception("statuses failed", network=self._path)
            await self._sleep(_LOOK_SECONDS)

    async def step(self) -> None:
        await self._look_into_blocks()
        now = self._now()
        due = [each for each in self._waited_for.items() if each[1].is_due(now)]
        # Those that have waited longest come first, so that none starves.
        due.sort(key=lambda each: each[1].queried_at + each[1].wait)
        polled = [each for each in due if self._may_query(now, each[1])]
        for start in range(0, len(polled), _AT_ONCE):
            await asyncio.gather(
                *(self._query(name, waiting) for name, waiting in polled[start : start + _AT_ONCE])
            )

    async def _look_into_blocks(self) -> None:
        """Make transactions that are in new blocks due at once."""
        head, seen = self._head(), self._head_seen
        self._head_seen = head
        if seen == NOTHING:
            return
        for number in range(max(seen + 1, head - _MAX_BLOCKS + 1), head + 1):
            with suppress(NotNow):
                for name in await self._source.transactions(number):
                    if name in self._waited_for:
                        self._waited_for[name].wait = 0.0

    def _may_query(self, now: float, transaction: _Transaction) -> bool:
        """Whether it may be queried now: within our own rate and that of one of its subscribers."""
        taken = take(self._limit, self._arrival, now)
        if not taken.allowed:
            return False
        for subscriber in transaction.subscribers:
            try:
                subscriber.charge(1)
            except Refusal:
                continue
            self._arrival = taken.arrival
            transaction.queried_at = now
            transaction.wait = min(max(2 * transaction.wait, POLL_SECONDS), SETTLED_SECONDS)
            return True
        transaction.queried_at = now
        return False

    async def _query(self, name: str, transaction: _Transaction) -> None:
        try:
            result = await self._source.status(name)
            if result is None:
                return
            status = read_status(result)
        except (NotNow, Misread):
            return
        sent = status_result(name, result)
        transaction.final = status in FINAL_STATUSES
        if status == "ACCEPTED_ON_L2":
            transaction.wait = SETTLED_SECONDS
        elif sent != transaction.sent:
            transaction.wait = POLL_SECONDS
        if sent != transaction.sent:
            transaction.sent = sent
            for subscriber in list(transaction.subscribers):
                subscriber.notify(sent)
