"""Rate limits in memory that the workers of one machine share.

A table of rows; a row is a limited caller and has one column for each worker. A worker writes only its own
column and reads all: the arrival time of a row is the latest in it. So no lock is between a request and
its limit, nothing is lost when a worker is killed, and its successor, which gets the same column, gives no
fresh allowance. A worker that finds, after it wrote, that another took meanwhile puts itself behind it.

A row is handed to a new caller under a file lock, which the kernel frees when its holder ends. A row whose
arrival time has passed limits nothing and may be reused as it is. Whenever a row gets another caller the epoch of
the table changes, so that holders of rows need not compare each of them each time.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import os
import random
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import floor
from pathlib import Path

from tollgate.core.limits import HAIR, Limit, Taken, take
from tollgate.file_lock import open_lock_file, try_lock

# A caller may be in any row of its set; the longest unused one makes room.
WAYS = 16
_LOCK_TRIES = 1_000
LimitRow = tuple[int, int, float, float]
"""A row and its mark, and the limit: seconds that one request uses up, and of the whole window."""
# A row, and a mark that none has.
NOWHERE = (0, -1)


def numbers_left(used: float, interval: float, seconds: float) -> tuple[int, ...]:
    """What is left of a limit of which these seconds are used up; for a long window also when it is full again."""
    room = max(0, floor((seconds - used) / interval + HAIR))
    return (room,) if seconds <= 1 else (room, floor(used + 1))


class LimitRows(list[LimitRow]):
    """Where the limits of a caller are."""

    __slots__ = ("epoch", "steps")

    def __init__(self) -> None:
        super().__init__()
        self.epoch = math.nan
        """That of the table when these rows were last seen to be theirs."""
        self.steps: list[tuple[int, float, float]] = []
        """Row, seconds that one request uses up, and how far ahead of now an arrival may lie."""


class SharedMeters:
    """The table. Made before the workers are forked, attached by each of them."""

    def __init__(self, rows: int, workers: int, lock: Path) -> None:
        self._sets = max(1, rows // WAYS)
        self._workers = workers
        self._lock = lock
        self._salt = secrets.token_bytes(16)
        rows = self._sets * WAYS
        memory = memoryview(mmap.mmap(-1, 8 * (1 + rows * (1 + workers))))
        self._epoch = memory[:8].cast("d")
        self._marks = memory[8 : 8 * (1 + rows)].cast("Q")
        self._arrivals = memory[8 * (1 + rows) :].cast("d")
        self._max_known = rows
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
            row, mark = known.get(key, NOWHERE)
            if marks[row] != mark:
                row = self._row(key, now)
            if workers == 1:
                taken = take(limit, arrivals[row], now, cost)
                if taken.allowed:
                    arrivals[row] = taken.arrival
            else:
                taken = self._take_together(row * workers, limit, now, cost)
            found.append(taken)
            if not taken.allowed:
                break
        return found

    def rows(self, limits: Sequence[tuple[str, Limit]], now: float) -> LimitRows:
        """Where these limits are, for `take_all`: as long as their rows are not given to another caller."""
        found = LimitRows()
        for key, limit in limits:
            row = self._row(key, now)
            found.append((row, self._marks[row], limit.interval, limit.seconds))
        return found

    def moved(self, rows: LimitRows) -> bool:
        """Whether one of these rows was given to another limit."""
        return any(self._marks[row] != mark for row, mark, _, _ in rows)

    def _look_again(self, rows: LimitRows) -> bool:
        """Bring rows up to the present epoch; False where another limit was given one."""
        epoch = self._epoch[0]
        if self.moved(rows):
            return False
        rows.steps = [(row, interval, seconds + HAIR * interval) for row, _, interval, seconds in rows]
        rows.epoch = epoch
        return True

    def take_all(self, rows: LimitRows, now: float, cost: float = 1.0) -> bool:
        """Take `cost` requests out of all limits, or out of none: False where one refuses or has another row."""
        if rows.epoch != self._epoch[0] and not self._look_again(rows):
            return False
        if self._workers > 1:
            return self._take_all_together(rows, now, cost)
        arrivals = self._arrivals
        # As `core.limits.take`, without its call and its value: every request comes by.
        for row, interval, ahead in rows.steps:
            arrival = arrivals[row]
            after = (now if now > arrival else arrival) + cost * interval  # noqa: FURB136
            if after - now > ahead:
                self._give_back(rows, row, cost)
                return False
            arrivals[row] = after
        return True

    def left(self, rows: LimitRows, now: float) -> tuple[int, ...]:
        """What each limit has left, and for windows of more than a second when it is whole again.

        That is in seconds, plus one. `now`: when one was last taken.
        """
        found: tuple[int, ...] = ()
        for row, _, interval, seconds in rows:
            start = row * self._workers
            used = max(self._arrivals[start : start + self._workers]) - now
            found += numbers_left(max(0.0, used), interval, seconds)
        return found

    def _give_back(self, rows: LimitRows, until: int, cost: float) -> None:
        """Undo what was taken a moment ago from the rows before this one; no other worker writes to them."""
        for row, interval, _ in rows.steps:
            if row == until:
                break
            self._arrivals[row] -= cost * interval

    def _take_all_together(self, rows: LimitRows, now: float, cost: float) -> bool:
        """Take from rows that other workers write to as well."""
        new = []
        for row, interval, ahead in rows.steps:
            start = row * self._workers
            arrival = max(self._arrivals[start : start + self._workers])
            after = max(now, arrival) + cost * interval
            if after - now > ahead:
                return False
            new.append((start, arrival, after, cost * interval))
        for each in new:
            self._write(*each)
        return True

    def _write(self, start: int, arrival: float, after: float, used: float) -> None:
        """Write an arrival into a row that other workers write to as well."""
        arrivals, end, mine = self._arrivals, start + self._workers, start + self._column
        arrivals[mine] = after
        # Another worker may have taken since we looked: then go behind it, or one of both is lost.
        others = max((*arrivals[start:mine], *arrivals[mine + 1 : end]))
        if others > arrival:
            arrivals[mine] = others + used

    def _take_together(self, start: int, limit: Limit, now: float, cost: int) -> Taken:
        """Take from a row that other workers write to as well."""
        arrival = max(self._arrivals[start : start + self._workers])
        taken = take(limit, arrival, now, cost)
        if taken.allowed:
            self._write(start, arrival, taken.arrival, cost * limit.interval)
        return taken

    def peek(self, key: str, limit: Limit, now: float) -> Taken:
        """Return what `take` of one request would find, and take nothing."""
        start = self._row(key, now) * self._workers
        return take(limit, max(self._arrivals[start : start + self._workers]), now)

    def _row(self, key: str, now: float) -> int:
        """Find or claim the row of a key."""
        if len(self._known) >= self._max_known:
            self._known.clear()
        digest = hashlib.blake2b(key.encode(), digest_size=8, key=self._salt).digest()
        mark = int.from_bytes(digest, "little") or 1
        with self._claiming():
            row = self._claim(mark, now)
        self._known[key] = (row, mark)
        return row

    def _claim(self, mark: int, now: float) -> int:
        first = mark % self._sets * WAYS
        best, best_arrival = first, float("inf")
        for row in range(first, first + WAYS):
            if self._marks[row] == mark:
                return row
            start = row * self._workers
            arrival = max(self._arrivals[start : start + self._workers]) if self._marks[row] else -1.0
            if arrival < best_arrival:
                best, best_arrival = row, arrival
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
    def _claiming(self) -> Iterator[None]:
        """Hold the lock, but never wait for a holder that was stopped: a doubled row is the lesser evil."""
        # Opened anew each time: a descriptor that was inherited by a fork would share its lock.
        descriptor = open_lock_file(self._lock)
        try:
            for _ in range(_LOCK_TRIES):
                if try_lock(descriptor):
                    break
                os.sched_yield() if hasattr(os, "sched_yield") else None
            yield
        finally:
            os.close(descriptor)
