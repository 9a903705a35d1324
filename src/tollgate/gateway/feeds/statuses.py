"""How far transactions have come (Starknet): asked at each new head and every other second, told when it changes.

One question serves all who wait for the same transaction. A transaction that has reached L2 is asked for less
often: the way from there to L1 takes hours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tollgate import log
from tollgate.chains.heads import Misread
from tollgate.chains.subscriptions_starknet import FINAL_STATUSES, read_status, status_result
from tollgate.gateway.feeds.source import NotNow, StarknetSource
from tollgate.gateway.feeds.subscribers import Subscriber

ASK_SECONDS = 2.0
SETTLED_SECONDS = 30.0
_LOOK_SECONDS = 0.1
# Questions at once.
_AT_ONCE = 8
_log = log.get("feed")


class _Transaction:
    def __init__(self) -> None:
        self.listeners: dict[Subscriber, None] = {}
        self.told: bytes | None = None
        """What was told last."""
        self.asked_at = float("-inf")
        self.asked_head = -1
        self.settled = False
        self.final = False

    def is_due(self, now: float, head: int) -> bool:
        if self.final:
            return False
        waited = now - self.asked_at
        return waited >= SETTLED_SECONDS if self.settled else waited >= ASK_SECONDS or head != self.asked_head


class Statuses:
    """The transactions of one network that somebody waits for."""

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
        self._task: asyncio.Task[None] | None = None

    def join(self, listener: Subscriber) -> None:
        """Wait for a transaction."""
        transaction = self._waited_for.setdefault(listener.subscription.hash, _Transaction())
        transaction.listeners[listener] = None
        if transaction.told is not None:
            listener.tell(transaction.told)
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    def leave(self, listener: Subscriber) -> None:
        """Wait no more."""
        transaction = self._waited_for.get(listener.subscription.hash)
        if transaction is None or listener not in transaction.listeners:
            return
        del transaction.listeners[listener]
        if not transaction.listeners:
            del self._waited_for[listener.subscription.hash]
        if not self._waited_for:
            self._stop()

    def close(self) -> None:
        """End, whoever waits."""
        self._waited_for.clear()
        self._stop()

    def _stop(self) -> None:
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
        """Ask for what is due."""
        now, head = self._now(), self._head()
        due = [each for each in self._waited_for.items() if each[1].is_due(now, head)]
        for start in range(0, len(due), _AT_ONCE):
            part = due[start : start + _AT_ONCE]
            for _, transaction in part:
                transaction.asked_at, transaction.asked_head = now, head
            await asyncio.gather(*(self._ask(name, transaction) for name, transaction in part))

    async def _ask(self, name: str, transaction: _Transaction) -> None:
        try:
            result = await self._source.status(name)
            if result is None:
                return
            status = read_status(result)
        except (NotNow, Misread):
            return
        told = status_result(name, result)
        transaction.settled = status == "ACCEPTED_ON_L2"
        transaction.final = status in FINAL_STATUSES
        if told != transaction.told:
            transaction.told = told
            for listener in list(transaction.listeners):
                listener.tell(told)
