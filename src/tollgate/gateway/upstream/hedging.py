"""Several attempts at the same call at once: the first good answer wins, the others run to their ends unheard."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any, Generic, TypeVar

from msgspec import Struct

from tollgate.chains.faults import Verdict
from tollgate.gateway.upstream.completion import Flight, Pending
from tollgate.gateway.upstream.connection import AttemptFailed
from tollgate.gateway.upstream.health import Upstream

T = TypeVar("T")

# More calls than were asked for, at most: one hedge for twenty calls, and no more than this saved up.
_HEDGES_PER_CALL = 0.05
_MAX_SAVED = 20.0
# Where calls are few, one in so many seconds: a single call must not wait for a silent upstream because nobody
# else calls.
_SECONDS_PER_HEDGE = 2.0
# A hedge that could not be paid for, or for which there was nobody, is looked at again after this.
_AGAIN_SECONDS = 0.02


class AttemptOutcome(Struct, Generic[T], gc=False):
    """What became of one attempt: an answer and what it means, or a failure."""

    upstream: Upstream
    answer: T | None = None
    """None: a failure, or no more than the word that a quota is used up."""
    verdict: Verdict = Verdict.FINAL
    failure: AttemptFailed | None = None

    @property
    def good(self) -> bool:
        """Whether the call is answered by it."""
        return self.failure is None and self.verdict is Verdict.FINAL


class Race(Generic[T]):
    """Attempts under way. Awaited by a flight, it gives the first good outcome, or the last bad one."""

    __slots__ = ("_good", "_left", "_pending", "bad", "over")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        good: Callable[[AttemptOutcome[T]], bool] = lambda outcome: outcome.good,
    ) -> None:
        self._pending: Pending[AttemptOutcome[T]] = Pending(loop)
        self._good = good
        self._left = 0
        self.bad: list[AttemptOutcome[T]] = []
        self.over = False

    def start(self, *attempts: Coroutine[Any, Any, AttemptOutcome[T]]) -> None:
        """Begin, or begin one more. Those that begin together are all heard, however soon one of them ends."""
        self._left += len(attempts)
        for attempt in attempts:
            Flight(attempt, self._landed).step()

    def _landed(
        self, _flight: Flight[AttemptOutcome[T]], outcome: AttemptOutcome[T] | None, error: BaseException | None
    ) -> None:
        self._left -= 1
        if self.over:
            return
        if outcome is None:
            self.over = True
            self._pending.fail(error or AssertionError("an attempt without an outcome"))
        elif self._good(outcome):
            self.over = True
            self._pending.settle(outcome)
        else:
            self.bad.append(outcome)
            if not self._left:
                self.over = True
                self._pending.settle(outcome)

    def __await__(self) -> Generator[Any, None, AttemptOutcome[T]]:
        """Wait for the end."""
        return self._pending.__await__()


class Relay(Generic[T]):
    """Attempts at one call, one after the other, and beside each other where one is slow: outcomes as they land.

    Whoever takes them may let it go at any time: what is still under way runs to its end unheard.
    """

    __slots__ = ("_hedge", "_landed", "_loop", "_waiting", "left")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.left = 0
        """How many are under way, or have landed and were not taken yet."""
        self._landed: list[AttemptOutcome[T] | BaseException] = []
        self._waiting: Pending[None] | None = None
        self._hedge: Hedge | None = None

    def start(self, attempt: Coroutine[Any, Any, AttemptOutcome[T]]) -> None:
        """Begin one more."""
        self.left += 1
        Flight(attempt, self._land).step()

    def hedge(self, hedge: Hedge) -> None:
        """Take over the hedge of the newest attempt; the one before is no longer needed."""
        self.call_off()
        self._hedge = hedge

    def call_off(self) -> None:
        """Start nothing any more."""
        if self._hedge is not None:
            self._hedge.call_off()

    async def next(self, seconds: float | None = None) -> AttemptOutcome[T] | None:
        """The next outcome; None where nothing has landed for so many seconds."""
        if not self._landed:
            self._waiting = Pending(self._loop)
            timer = None if seconds is None else self._loop.call_later(seconds, self._wake)
            await self._waiting
            if timer is not None:
                timer.cancel()
        if not self._landed:
            return None
        # What comes next is decided anew.
        self.call_off()
        self.left -= 1
        landed = self._landed.pop(0)
        if isinstance(landed, BaseException):
            raise landed
        return landed

    def _land(
        self, _flight: Flight[AttemptOutcome[T]], outcome: AttemptOutcome[T] | None, error: BaseException | None
    ) -> None:
        self._landed.append(outcome or error or AssertionError("an attempt without an outcome"))
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.settle(None)


class Hedge:
    """A second attempt that may be started when its time has come."""

    __slots__ = ("due", "start")

    def __init__(self, due: float, start: Callable[[], bool]) -> None:
        self.due = due
        self.start: Callable[[], bool] | None = start
        """Says whether there was somebody else to ask. None: no longer needed."""

    def call_off(self) -> None:
        """Let go of it, and of the call that it belongs to."""
        self.start = None


class Hedges:
    """Starts second attempts where first ones take too long, within a budget.

    Each upstream has a line of its own: what goes into it is due in the order in which it came, nearly. One timer
    for a line, not one for each call.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, now: Callable[[], float]) -> None:
        self._loop = loop
        self._now = now
        self._lines: dict[int, deque[Hedge]] = {}
        self._timers: dict[int, tuple[float, asyncio.TimerHandle]] = {}
        """When the first of a line will be looked at."""
        self._saved = 0.0
        self._seen, self._looked_at = 0.0, now()
        """What was saved at the last look for those that are due, and when that was."""
        self.started = 0

    def earn(self) -> None:
        """Count a call: twenty of them pay for a hedge."""
        self._saved = min(self._saved + _HEDGES_PER_CALL, _MAX_SAVED)

    def watch(self, slot: int, due: float, start: Callable[[], bool]) -> Hedge:
        """Call `start` then, unless it is called off before."""
        line = self._lines.get(slot)
        if line is None:
            line = self._lines[slot] = deque()
        # Most calls are over long before: they must not pile up.
        while line and line[0].start is None:
            line.popleft()
        hedge = Hedge(due, start)
        line.append(hedge)
        self._arm(slot, line[0].due)
        return hedge

    def _arm(self, slot: int, due: float) -> None:
        timer = self._timers.get(slot)
        if timer is not None:
            if timer[0] <= due:
                return
            timer[1].cancel()
        handle = self._loop.call_later(max(0.0, due - self._now()), self._fire, slot)
        self._timers[slot] = (due, handle)

    def _fire(self, slot: int) -> None:
        del self._timers[slot]
        line, now = self._lines[slot], self._now()
        if self._saved == self._seen and self._saved < 1:
            # Nobody has called since the last look.
            self._saved = min(1.0, self._saved + (now - self._looked_at) / _SECONDS_PER_HEDGE)
        self._looked_at = now
        late: list[Hedge] = []
        while line and (line[0].start is None or line[0].due <= now):
            hedge = line.popleft()
            if hedge.start is None:
                continue
            if self._saved >= 1 and hedge.start():
                self._saved -= 1
                self.started += 1
            else:
                late.append(hedge)
        self._seen = self._saved
        for hedge in late:
            hedge.due = now + _AGAIN_SECONDS
            line.appendleft(hedge)
        if line:
            self._arm(slot, line[0].due)


class Together(Generic[T]):
    """Several coroutines at once, in flights. Awaited, it gives all of their results, in their order."""

    __slots__ = ("_left", "_pending", "_results")

    def __init__(self, loop: asyncio.AbstractEventLoop, parts: list[Coroutine[Any, Any, T]]) -> None:
        self._pending: Pending[list[T]] = Pending(loop)
        self._results: list[T | None] = [None] * len(parts)
        self._left = len(parts)
        for index, part in enumerate(parts):
            Flight(part, partial(self._landed, index)).step()

    def _landed(self, index: int, _flight: Flight[T], value: T | None, error: BaseException | None) -> None:
        self._results[index] = value
        self._left -= 1
        if error is not None and not self._pending.done:
            self._pending.fail(error)
        elif not self._left and not self._pending.done:
            self._pending.settle(self._results)  # type: ignore[arg-type]

    def __await__(self) -> Generator[Any, None, list[T]]:
        """Wait for all of them."""
        return self._pending.__await__()
