"""Follows a chain block by block: hands each on once, in order, and takes back what was replaced.

Each block must be the child of the one before. Where it is not, the walk goes back to the newest block that is
still in place, and on from there. Several blocks are fetched at once when many are missing; they are handed on
one by one. Nothing is ever skipped: what is not available now is `NotNow`, and the next call continues from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Protocol

from tollgate.chains.subscriptions import Head, Item, Topic
from tollgate.gateway.feeds.history import BlockHistory, Kept
from tollgate.gateway.feeds.source import EventPage, NotNow, Source

# Blocks that are fetched at once: as many while they are small, one while their events and logs are large.
AHEAD = 8
LARGE_BYTES = 1_048_576


class BlockSink(Protocol):
    """Receives the blocks."""

    def topics(self) -> Collection[Topic]:
        """What it needs of a block."""

    async def publish(self, page: EventPage) -> Sequence[Item]:
        """Hand a block on; return what would have to be taken back."""

    async def take_back(self, replaced: Sequence[Kept]) -> None:
        """Take back blocks that were replaced."""


class TooDeep(Exception):
    """A reorganisation below all blocks that are kept."""


class Unlinked(NotNow):
    """A block whose parent is not the one before, wherever that comes from."""


class ChainFollower:
    """The walk along one chain."""

    def __init__(self, source: Source, first: Head, sink: BlockSink) -> None:
        self._source = source
        self._sink = sink
        self._ahead = 1
        self.history = BlockHistory(first)
        self.reached = first.number
        """The newest block that was fetched, with what was needed of it then."""

    async def advance(self, newest: int) -> None:
        """Continue until this block was delivered."""
        under_way: dict[int, asyncio.Task[EventPage]] = {}
        try:
            while self.history.last.number < newest:
                page = await self._next(newest, under_way)
                if self.history.is_next(page.head):
                    kept = self.history.push(page.head)
                    self.history.keep(kept, await self._sink.publish(page))
                    continue
                await _drop(under_way)
                if await self._go_back(self.history.last.number) == page.head.number - 1:
                    raise Unlinked("a block whose parent no upstream has")
        finally:
            await _drop(under_way)
            self.reached = self.history.last.number

    async def verify(self, newest: int) -> None:
        """Go back where the block of this number, or the newest, is not the one that was handed on any more."""
        await self._go_back(newest)
        self.reached = self.history.last.number

    async def _next(self, newest: int, under_way: dict[int, asyncio.Task[EventPage]]) -> EventPage:
        number = self.history.last.number + 1
        topics = self._sink.topics()
        for ahead in range(number, min(newest, number + self._ahead - 1) + 1):
            if ahead not in under_way:
                under_way[ahead] = asyncio.create_task(self._source.page(ahead, topics))
                self.reached = max(self.reached, ahead)
        page = await under_way.pop(number)
        self._ahead = 1 if page.size > LARGE_BYTES else min(2 * self._ahead, AHEAD)
        return page

    async def _go_back(self, newest: int) -> int:
        """Return to the newest block that is still in place, and take back those above it."""
        search = self.history.ancestor(newest)
        ancestor: int | None = None
        try:
            number = next(search)
            while True:
                number = search.send(await self._source.block(number))
        except StopIteration as stop:
            ancestor = stop.value
        if ancestor is None:
            raise TooDeep
        if ancestor < min(newest, self.history.last.number):
            await self._sink.take_back(self.history.cut(ancestor))
        return ancestor


async def _drop(under_way: dict[int, asyncio.Task[EventPage]]) -> None:
    for task in under_way.values():
        task.cancel()
    await asyncio.gather(*under_way.values(), return_exceptions=True)
    under_way.clear()
