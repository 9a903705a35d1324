"""A listener that begins in the past: it walks alone until it has come up to the others.

Its own walk is like theirs, with its own reorganisations. It joins them where its newest block is theirs: so
nothing is told twice or left out, however the chain moves meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tollgate.board import NOTHING
from tollgate.chains.subscriptions import Head
from tollgate.gateway.feeds.audience import Audience, Listener
from tollgate.gateway.feeds.source import Source
from tollgate.gateway.feeds.walker import TooDeep, Walker

TOO_DEEP = "The chain was reorganised too deeply to follow: subscribe again."


class Latecomer:
    """One listener on its way from a block in the past."""

    def __init__(
        self,
        listener: Listener,
        number: int,
        source: Source,
        together: Callable[[], Walker | None],
        arrive: Callable[[Listener], None],
    ) -> None:
        self._listener = listener
        self._number = number
        self._source = source
        self._together = together
        """The walk of the others."""
        self._arrive = arrive
        self._alone = Audience(listener.family)
        self._alone.add(listener)
        self._walker: Walker | None = None
        self._opened = asyncio.Event()
        others = together()
        self._known = NOTHING if others is None else others.reached
        """Blocks up to here may have been fetched for the others without what this one needs."""
        listener.since = number - 1
        listener.begin = self._opened.set

    async def step(self) -> bool:
        """Go on; return whether it has arrived."""
        await self._opened.wait()
        together = self._together()
        if together is None:
            return False
        if self._walker is None:
            first = await self._source.block(self._number)
            self._walker = Walker(self._source, Head(self._number - 1, first.parent, ""), self._alone)
        walker, newest = self._walker, together.trail.last.number
        if newest < walker.trail.first.number:
            return False
        try:
            if newest > walker.trail.last.number:
                await walker.advance(newest)
            else:
                await walker.verify(newest)
        except TooDeep:
            # Everything that it was told of is replaced, and what was before that: it begins again.
            self._alone.take_back(walker.trail.cut(walker.trail.first.number))
            self._walker = None
            return False
        mine, theirs = walker.trail.last, together.trail.last
        if self._together() is not together or mine.number < self._known or mine.hash != theirs.hash:
            return False
        self._arrive(self._listener)
        return True
