"""What tokens did since the store was last told: when each was last used, and its calls for the monthly cap.

Owns the gathering and its way to the store. A request adds to a number in memory and never waits; `flush` runs
in the background. Rules:
- The clock is read for a flush, not for a request: a use is dated to the flush that collects it, so flush far
  more often than once a minute.
- What is on its way to the store is nowhere else. It is gone when the store has it and put back when not, so
  nothing is told twice.
- Nothing but ids and numbers: no secret, no rule about caps.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Iterable
from itertools import islice

from tollgate import log
from tollgate.store.base import StoreUnavailable, Use, UseBook

# Tokens told of at once: a transaction short enough not to keep other writers waiting.
MOST_AT_ONCE = 500
# The store has a deadline of its own for each transaction; this is for a long line of them.
FLUSH_SECONDS = 10.0
# Together less than the 3 s after the grace in which the supervisor lets a worker end.
CLOSE_SECONDS = 2.0
CANCEL_SECONDS = 0.5
_log = log.get("uses")


class Uses:
    """Gathers for one worker. Holds at most `most` tokens, and as many again while the store is slow."""

    def __init__(self, book: UseBook, *, most: int, time: Callable[[], float]) -> None:
        self._book = book
        self._most = most
        self._time = time
        self._gathered: dict[str, int] = {}
        """Calls by token since the last flush."""
        self._kept: dict[str, Use] = {}
        """What the store is to be told, with its date."""
        self._telling: asyncio.Task[None] | None = None
        self._dropping = False

    def used(self, token_id: str | None, calls: int) -> None:
        """Note that a token was used, for so many calls that count. Domains have no token and are not noted."""
        if token_id in self._gathered:
            self._gathered[token_id] += calls
        elif token_id is not None:
            if len(self._gathered) >= self._most:
                self._date()
            self._gathered[token_id] = calls

    async def flush(self) -> None:
        """Tell the store what has gathered. What it does not take now is kept for the next time."""
        await self._flush(FLUSH_SECONDS)

    async def close(self) -> None:
        """Tell the store the last of it, once no request is under way; say so if it does not take that."""
        try:
            await self._flush(CLOSE_SECONDS)
        except Exception:  # noqa: BLE001 - whoever closes has other things to close
            _log.exception("the last uses of tokens could not be told")
        if self._telling is not None and not self._telling.done():
            self._telling.cancel()
            await asyncio.wait((self._telling,), timeout=CANCEL_SECONDS)
        if self._kept:
            _log.error(
                "the store did not take the last uses of tokens; they are lost", **_sums(self._kept.values())
            )

    async def _flush(self, seconds: float) -> None:
        self._date()
        telling = self._telling
        if telling is None or telling.done():
            if not self._kept:
                return
            # A task of its own: whoever waits for it may be cancelled, and then nobody would know whether the
            # store has it.
            telling = self._telling = asyncio.get_running_loop().create_task(self._tell())
        done, _ = await asyncio.wait((telling,), timeout=seconds)
        if done:
            telling.result()

    async def _tell(self) -> None:
        """Tell all that is kept, also what a flush adds meanwhile; stop where the store fails."""
        while self._kept:
            uses = list(islice(self._kept.values(), MOST_AT_ONCE))
            for use in uses:
                del self._kept[use.token_id]
            try:
                await self._book.note_uses(uses)
            except StoreUnavailable:
                self._keep(uses)
                return
            except BaseException:
                self._keep(uses)
                raise
        self._dropping = False

    def _date(self) -> None:
        """Give what has gathered the time of now, and keep it until the store has it."""
        gathered, self._gathered = self._gathered, {}
        if gathered:
            now = self._time()
            self._keep([Use(token_id, calls, now) for token_id, calls in gathered.items()])

    def _keep(self, uses: Iterable[Use]) -> None:
        kept = self._kept
        for use in uses:
            known = kept.get(use.token_id)
            kept[use.token_id] = use if known is None else _joined(known, use)
        if len(kept) > self._most:
            self._drop(len(kept) - self._most)

    def _drop(self, count: int) -> None:
        """Forget what matters least: times without a call first, the oldest first, then the fewest calls."""
        dropped = heapq.nsmallest(count, self._kept.values(), key=lambda use: (use.calls, use.last_at))
        for use in dropped:
            del self._kept[use.token_id]
        if not self._dropping:
            self._dropping = True
            _log.error(
                "more tokens in use than are kept until the store takes them; forgetting some uses",
                **_sums(dropped),
            )


def _joined(one: Use, other: Use) -> Use:
    return Use(one.token_id, one.calls + other.calls, max(one.last_at, other.last_at))


def _sums(uses: Iterable[Use]) -> dict[str, int]:
    counts = [use.calls for use in uses]
    return {"tokens": len(counts), "calls": sum(counts)}
