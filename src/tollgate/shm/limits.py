"""Rate limits in memory that the workers of one machine share.

A table of slots, one for each limit of a caller, with a column for each worker. A worker writes only its own
column and reads all: the arrival time of a slot is the latest in it. So a request takes no lock, nothing is lost
when a worker is killed, and its successor, which gets the same column, gives no fresh allowance. A worker that
finds, after it wrote, that another took meanwhile adds its own after the other's.

A slot is given to a new limit under a file lock, which the kernel frees when its holder ends. A slot whose
arrival time has passed limits nothing and may be reused as it is. When a slot gets another limit the epoch of the
table changes, so that holders of slots need not compare each of them each time.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import os
import random
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import floor
from pathlib import Path

from tollgate.core.limits import HAIR, Limit, Taken, take
from tollgate.file_lock import open_lock_file, try_lock

# A limit may be in any slot of its set; the one unused for longest is evicted.
WAYS = 16
_LOCK_TRIES = 1_000
LimitSlot = tuple[int, int, float, float]
"""A slot and its mark, and the limit: seconds that one request uses up, and of the whole window."""
# A slot, and a mark that none has.
NOWHERE = (0, -1)


def numbers_left(used: float, interval: float, seconds: float) -> tuple[int, ...]:
    """What is left of a limit of which these seconds are used up; for a long window also when it is full again."""
    room = max(0, floor((seconds - used) / interval + HAIR))
    return (room,) if seconds <= 1 else (room, floor(used + 1))


class LimitSlots(list[LimitSlot]):
    """Where the limits of a caller are."""

    __slots__ = ("epoch", "steps")

    def __init__(self) -> None:
        super().__init__()
        self.epoch = math.nan
        """That of the table when these slots were last seen to be theirs."""
        self.steps: list[tuple[int, float, float]] = []
        """Slot, seconds that one request uses up, and how far ahead of now an arrival may lie."""


class SharedMeters:
    """The table. Made before the workers are forked, attached by each of them."""

    def __init__(self, slots: int, workers: int, lock: Path) -> None:
        self._sets = max(1, slots // WAYS)
        self._workers = workers
        self._lock = lock
        self._salt = secrets.token_bytes(16)
        slots = self._sets * WAYS
        memory = memoryview(mmap.mmap(-1, 8 * (1 + slots * (1 + workers))))
        self._epoch = memory[:8].cast("d")
        self._marks = memory[8 : 8 * (1 + slots)].cast("Q")
        self._arrivals = memory[8 * (1 + slots) :].cast("d")
        self._max_known = slots
        self.attach(0)

    def attach(self, worker: int) -> None:
        """Write to this worker's column from now on."""
        self._column = worker
        self._known: dict[str, tuple[int, int]] = {}

    def take(self, limits: Sequence[tuple[str, Limit]], now: float, cost: int = 1) -> list[Taken]:
        """Take `cost` requests out of each limit, until one refuses; that one comes last."""
        arrivals, marks, known, workers = self._arrivals, self._marks, self._known, self._workers
        found = []
        for key, limit in limits:
            slot, mark = known.get(key, NOWHERE)
            if marks[slot] != mark:
                slot = self._slot(key, now)
            if workers == 1:
                taken = take(limit, arrivals[slot], now, cost)
                if taken.allowed:
                    arrivals[slot] = taken.arrival
            else:
                taken = self._take_together(slot * workers, limit, now, cost)
            found.append(taken)
            if not taken.allowed:
                break
        return found

    def slots(self, limits: Sequence[tuple[str, Limit]], now: float) -> LimitSlots:
        """Where these limits are, for `take_all`: as long as their slots are not given to another caller."""
        found = LimitSlots()
        for key, limit in limits:
            slot = self._slot(key, now)
            found.append((slot, self._marks[slot], limit.interval, limit.seconds))
        return found

    def moved(self, slots: LimitSlots) -> bool:
        return any(self._marks[slot] != mark for slot, mark, _, _ in slots)

    def _look_again(self, slots: LimitSlots) -> bool:
        """Bring slots up to the present epoch; False where another limit was given one."""
        epoch = self._epoch[0]
        if self.moved(slots):
            return False
        slots.steps = [(slot, interval, seconds + HAIR * interval) for slot, _, interval, seconds in slots]
        slots.epoch = epoch
        return True

    def take_all(self, slots: LimitSlots, now: float, cost: float = 1.0) -> bool:
        if slots.epoch != self._epoch[0] and not self._look_again(slots):
            return False
        if self._workers > 1:
            return self._take_all_together(slots, now, cost)
        arrivals = self._arrivals
        # As `core.limits.take`, without its call and its value: every request comes by.
        for slot, interval, ahead in slots.steps:
            arrival = arrivals[slot]
            after = (now if now > arrival else arrival) + cost * interval  # noqa: FURB136
            if after - now > ahead:
                self._give_back(((each, step) for each, step, _ in slots.steps), slot, cost)
                return False
            arrivals[slot] = after
        return True

    def left(self, slots: LimitSlots, now: float) -> tuple[int, ...]:
        """What each limit has left, and for windows of more than a second when it is whole again.

        That is in seconds, plus one. `now`: when one was last taken.
        """
        found: tuple[int, ...] = ()
        for slot, _, interval, seconds in slots:
            found += numbers_left(max(0.0, self._highest(slot) - now), interval, seconds)
        return found

    def _give_back(self, steps: Iterable[tuple[int, float]], until: int, cost: float) -> None:
        """Undo what was taken a moment ago from the slots before this one; no other worker writes to them."""
        for slot, step in steps:
            if slot == until:
                break
            self._arrivals[slot] -= cost * step

    def _highest(self, slot: int) -> float:
        start = slot * self._workers
        return max(self._arrivals[start : start + self._workers])

    def _take_all_together(self, slots: LimitSlots, now: float, cost: float) -> bool:
        """Take from slots that other workers write to as well."""
        new = []
        for slot, interval, ahead in slots.steps:
            start = slot * self._workers
            arrival = max(self._arrivals[start : start + self._workers])
            after = max(now, arrival) + cost * interval
            if after - now > ahead:
                return False
            new.append((start, arrival, after, cost * interval))
        for each in new:
            self._write(*each)
        return True

    def _write(self, start: int, arrival: float, after: float, used: float) -> None:
        """Write an arrival into a slot that other workers write to as well."""
        arrivals, end, mine = self._arrivals, start + self._workers, start + self._column
        arrivals[mine] = after
        # Another worker may have taken since we looked: then go behind it, or one of both is lost.
        others = max((*arrivals[start:mine], *arrivals[mine + 1 : end]))
        if others > arrival:
            arrivals[mine] = others + used

    def _take_together(self, start: int, limit: Limit, now: float, cost: int) -> Taken:
        """Take from a slot that other workers write to as well."""
        arrival = max(self._arrivals[start : start + self._workers])
        taken = take(limit, arrival, now, cost)
        if taken.allowed:
            self._write(start, arrival, taken.arrival, cost * limit.interval)
        return taken

    def peek(self, key: str, limit: Limit, now: float, cost: int = 1) -> Taken:
        slot, mark = self._known.get(key, NOWHERE)
        if self._marks[slot] != mark:
            slot = self._slot(key, now)
        return take(limit, self._highest(slot), now, cost)

    def _slot(self, key: str, now: float) -> int:
        if len(self._known) >= self._max_known:
            self._known.clear()
        digest = hashlib.blake2b(key.encode(), digest_size=8, key=self._salt).digest()
        mark = int.from_bytes(digest, "little") or 1
        with claiming(self._lock):
            slot = self._claim(mark, now)
        self._known[key] = (slot, mark)
        return slot

    def _claim(self, mark: int, now: float) -> int:
        first = mark % self._sets * WAYS
        best, best_arrival = first, float("inf")
        for slot in range(first, first + WAYS):
            if self._marks[slot] == mark:
                return slot
            arrival = self._highest(slot) if self._marks[slot] else -1.0
            if arrival < best_arrival:
                best, best_arrival = slot, arrival
        if best_arrival > now:
            for column in range(best * self._workers, (best + 1) * self._workers):
                self._arrivals[column] = 0.0
        self._marks[best] = mark
        self._change()
        return best

    def _change(self) -> None:
        """Begin another epoch. At random: two at once must not write the same as one."""
        self._epoch[0] = random.random()


@contextmanager
def claiming(lock: Path) -> Iterator[None]:
    """Hold the lock, but never wait for a holder that was stopped: a doubled slot is the lesser evil."""
    # Opened anew each time: a descriptor that was inherited by a fork would share its lock.
    descriptor = open_lock_file(lock)
    try:
        for _ in range(_LOCK_TRIES):
            if try_lock(descriptor):
                break
            os.sched_yield() if hasattr(os, "sched_yield") else None
        yield
    finally:
        os.close(descriptor)
