"""Rate limits of which this node has a part, because other nodes let the same callers in.

The table of `limits.py`, and for each slot what the node may use of its limit. Workers take as there; only the
lease keeper (`processes/leases.py`) writes fractions, a whole cell at a time, so that no request waits for it.
A request uses up more of a smaller fraction: `interval` times the slot's factor, which is one over the fraction.

The keeper never writes arrival times. Where a slot's backlog must change with its fraction, it writes a credit
that all workers subtract; what a worker takes meanwhile is not lost.

A worker keeps what it has read of a caller's slots until the epoch of the table changes. What it took is counted
there, and written for the keeper a hundred times a second (`settle`).
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator, Sequence
from math import floor
from pathlib import Path

from msgspec import Struct

from tollgate.core.limits import HAIR, Limit, Taken
from tollgate.core.secrets import derive
from tollgate.shm.limits import NOWHERE, WAYS, LimitSlots, SharedMeters, claiming, numbers_left

# What was taken is written for the keeper this often while calls come, and this long after the last one.
SETTLE_SECONDS, LAST_SECONDS = 0.01, 0.05
# Slots are compared in pieces of this many bytes: few change between two looks.
_PIECE = 4096


class LeasedSlot(Struct, frozen=True):
    """A slot as the keeper sees it."""

    slot: int
    mark: int
    window: float
    count: float
    fraction: float
    backlog: float
    """Seconds until all is there again."""
    used: float
    """Seconds of the whole limit that were used up on this node, ever."""


class LeasedSlots(LimitSlots):
    """Where the limits of a caller are, their leases, and what was taken out of them lately."""

    __slots__ = ("leases", "taken")

    def __init__(self) -> None:
        super().__init__()
        self.leases: list[tuple[int, float, float, float]] = []
        """Slot, seconds that one request uses up, how far ahead an arrival may lie, credit."""
        self.taken = 0.0


class LeasedMeters(SharedMeters):
    """The table. Made before the workers are forked, attached by each of them."""

    def __init__(self, slots: int, workers: int, lock: Path, secret: bytes) -> None:
        super().__init__(slots, workers, lock)
        # The same on all nodes, so that a mark names the same limit on each; whose it is cannot be derived.
        self._salt = derive(secret, "shared limits")[:16]
        slots = self._sets * WAYS
        memory = memoryview(mmap.mmap(-1, 8 * (1 + slots * (4 + workers)))).cast("B").cast("d")
        self._default = memory[:1]
        self._factors, self._credits, self._windows, self._intervals = (
            memory[1 + slots * number : 1 + slots * (number + 1)] for number in range(4)
        )
        self._used = memory[1 + slots * 4 :]
        self._default[0] = 1.0
        self._seen = bytes(len(self._used) * 8)
        self._unsettled: list[LeasedSlots] = []
        self._settle_at = 0.0

    # --- Workers ---------------------------------------------------------------------------------------

    def take(self, limits: Sequence[tuple[str, Limit]], now: float, cost: int = 1) -> list[Taken]:
        found = []
        for key, limit in limits:
            slot, mark = self._known.get(key, NOWHERE)
            if self._marks[slot] != mark:
                slot = self._described(key, limit, now)
            taken = self._look(slot, limit, now, cost)
            if taken.allowed:
                self._use(slot, taken.arrival, self._step(slot, limit.interval, limit.seconds) * cost)
                self._used[slot * self._workers + self._column] += cost * limit.interval
            found.append(taken)
            if not taken.allowed:
                break
        return found

    def slots(self, limits: Sequence[tuple[str, Limit]], now: float) -> LeasedSlots:
        found = LeasedSlots()
        for key, limit in limits:
            slot = self._described(key, limit, now)
            found.append((slot, self._marks[slot], limit.interval, limit.seconds))
        return found

    def take_all(self, slots: LeasedSlots, now: float, cost: float = 1.0) -> bool:  # type: ignore[override] # those of `slots`
        if slots.epoch != self._epoch[0] and not self._look_again(slots):
            return False
        if self._workers > 1:
            if not self._take_together_leased(slots, now, cost):
                return False
        else:
            # Here, without a call: every request comes by.
            arrivals = self._arrivals
            for slot, step, ahead, credit in slots.leases:
                arrival, moved = arrivals[slot], now + credit
                after = (moved if moved > arrival else arrival) + cost * step  # noqa: FURB136
                if after - moved > ahead:
                    self._give_back(((each, size) for each, size, _, _ in slots.leases), slot, cost)
                    return False
                arrivals[slot] = after
        if not slots.taken:
            self._unsettled.append(slots)
        slots.taken += cost
        if now >= self._settle_at:
            self._settle_at = now + SETTLE_SECONDS
            self.settle()
        return True

    def left(self, slots: LeasedSlots, now: float) -> tuple[int, ...]:  # type: ignore[override] # those of `slots`
        """What each limit has left here, and for windows of more than a second when it is whole again."""
        found: tuple[int, ...] = ()
        for slot, _, interval, seconds in slots:
            used = self._highest(slot) - self._credits[slot] - now
            found += numbers_left(max(0.0, used), self._step(slot, interval, seconds), seconds)
        return found

    def _take_together_leased(self, slots: LeasedSlots, now: float, cost: float) -> bool:
        """Take from slots that other workers write to as well."""
        arrivals, workers = self._arrivals, self._workers
        new = []
        for slot, step, ahead, credit in slots.leases:
            start, moved = slot * workers, now + credit
            arrival = max(arrivals[start : start + workers])
            after = (moved if moved > arrival else arrival) + cost * step  # noqa: FURB136
            if after - moved > ahead:
                return False
            new.append((start, after - cost * step, after, cost * step))
        for each in new:
            self._write(*each)
        return True

    def _look_again(self, slots: LeasedSlots) -> bool:  # type: ignore[override] # those of `slots`
        epoch = self._epoch[0]
        if self.moved(slots):
            return False
        slots.leases = []
        for slot, _, interval, seconds in slots:
            step = self._step(slot, interval, seconds)
            slots.leases.append((slot, step, seconds + HAIR * step, self._credits[slot]))
        slots.epoch = epoch
        return True

    def settle(self) -> None:
        """Write what was taken for the keeper."""
        for slots in self._unsettled:
            for slot, mark, interval, _ in slots:
                if self._marks[slot] == mark:
                    self._used[slot * self._workers + self._column] += slots.taken * interval
            slots.taken = 0.0
        self._unsettled.clear()

    def peek(self, key: str, limit: Limit, now: float, cost: int = 1) -> Taken:
        slot, mark = self._known.get(key, NOWHERE)
        if self._marks[slot] != mark:
            slot = self._described(key, limit, now)
        return self._look(slot, limit, now, cost)

    def _described(self, key: str, limit: Limit, now: float) -> int:
        """Find or claim the slot of a key; the keeper reads there which limit it is."""
        slot = self._slot(key, now)
        self._windows[slot], self._intervals[slot] = limit.seconds, limit.interval
        return slot

    def _step(self, slot: int, interval: float, seconds: float) -> float:
        """Seconds that one request uses up here; a node without a share may still send one in a window."""
        return min(seconds, interval * (self._factors[slot] or self._default[0]))

    def _look(self, slot: int, limit: Limit, now: float, cost: int) -> Taken:
        """As `core.limits.take`, with the slot's own step."""
        step = self._step(slot, limit.interval, limit.seconds)
        arrival = self._highest(slot) - self._credits[slot]
        after = max(now, arrival) + cost * step
        room = (now + limit.seconds - after) / step
        if room < -HAIR:
            wait = math.inf if cost > limit.count else -room * step
            return Taken(False, arrival, max(0, floor(room + cost + HAIR)), wait)
        return Taken(True, after, int(room + HAIR), 0.0)

    def _use(self, slot: int, after: float, used: float) -> None:
        """Write an arrival, behind those that others wrote meanwhile."""
        start, credit = slot * self._workers, self._credits[slot]
        if self._workers == 1:
            self._arrivals[start] = after + credit
        else:
            self._write(start, after - used + credit, after + credit, used)

    def _claim(self, mark: int, now: float) -> int:
        first = mark % self._sets * WAYS
        is_new = mark not in self._marks[first : first + WAYS].tolist()
        slot = super()._claim(mark, now)
        if is_new:
            self._factors[slot] = self._credits[slot] = 0.0
            self._change()
        return slot

    # --- The keeper ------------------------------------------------------------------------------------

    def backlogged(self, now: float) -> Iterator[int]:
        """Slots that were used since the last look and have used up half of what they may."""
        self.settle()
        used = bytes(self._used.cast("B"))
        seen, self._seen = self._seen, used
        for start in range(0, len(used), _PIECE):
            if used[start : start + _PIECE] == seen[start : start + _PIECE]:
                continue
            slots = {number // 8 // self._workers for number in range(start, min(start + _PIECE, len(used)), 8)}
            for slot in sorted(slots):
                backlog = self._highest(slot) - self._credits[slot] - now
                if self._marks[slot] and backlog > self._windows[slot] / 2:
                    yield slot

    def read(self, slot: int, now: float) -> LeasedSlot:
        self.settle()
        window, start = self._windows[slot], slot * self._workers
        return LeasedSlot(
            slot,
            self._marks[slot],
            window,
            window / self._intervals[slot],
            1 / (self._factors[slot] or self._default[0]),
            min(window, max(0.0, self._highest(slot) - self._credits[slot] - now)),
            sum(self._used[start : start + self._workers]),
        )

    def find(self, mark: int, window: float, count: float, now: float) -> int:
        """Find or claim the slot of a limit that another node named."""
        with claiming(self._lock):
            slot = self._claim(mark, now)
        self._windows[slot], self._intervals[slot] = window, window / count
        return slot

    def lease(self, slot: int, fraction: float, backlog: float | None, now: float) -> None:
        """Let a slot use another fraction of its limit; `backlog`: what is used of it from now on."""
        if backlog is not None:
            self._credits[slot] = self._highest(slot) - now - backlog
        elif self._factors[slot] == 1 / fraction:
            return
        self._factors[slot] = 1 / fraction
        self._change()

    def unlease(self, slot: int) -> None:
        """Let a slot use the equal part again."""
        self._factors[slot] = 0.0
        self._change()

    def divide(self, fraction: float) -> None:
        """Let slots without a lease use this fraction of their limits."""
        if self._default[0] != 1 / fraction:
            self._default[0] = 1 / fraction
            self._change()

    def alone(self) -> None:
        """Let every slot use the whole of its limit: what other nodes do is unknown."""
        self._factors.cast("B")[:] = bytes(len(self._factors) * 8)
        self._default[0] = 1.0
        self._change()
