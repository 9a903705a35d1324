"""Rate limits of which this node has a part, because other nodes let the same callers in.

The table of `limits.py`, and for each row what the node may use of its limit. Workers take as there; only the
lease keeper (`processes/leases.py`) writes fractions, a whole cell at a time, so that no request waits for it.
A request uses up more of a smaller fraction: `interval` times the row's factor, which is one over the fraction.

The keeper never writes arrival times. Where a row's backlog must change with its fraction, it writes a credit that
all workers subtract; a worker that takes meanwhile loses nothing.

A worker keeps what it has read of a caller's rows until the epoch of the table changes. What it took is counted
there, and written for the keeper a hundred times a second (`settle`).
"""

from __future__ import annotations

import hashlib
import math
import mmap
from collections.abc import Iterator, Sequence
from math import floor
from pathlib import Path

from msgspec import Struct

from tollgate.core.limits import HAIR, Limit, Taken
from tollgate.shm.limits import NOWHERE, WAYS, LimitRows, SharedMeters, numbers_left

# What was taken is written for the keeper this often while calls come, and this long after the last one.
SETTLE_SECONDS, LAST_SECONDS = 0.01, 0.05
# Rows are compared in pieces of this many bytes: few change between two looks.
_PIECE = 4096


class LeasedRow(Struct, frozen=True):
    """A row as the keeper sees it."""

    row: int
    mark: int
    window: float
    count: float
    fraction: float
    backlog: float
    """Seconds until all is there again."""
    used: float
    """Seconds of the whole limit that were used up on this node, ever."""


class LeasedRows(LimitRows):
    """Where the limits of a caller are, their leases, and what was taken out of them lately."""

    __slots__ = ("leases", "taken")

    def __init__(self) -> None:
        super().__init__()
        self.leases: list[tuple[int, float, float, float]] = []
        """Row, seconds that one request uses up, how far ahead an arrival may lie, credit."""
        self.taken = 0.0


class LeasedMeters(SharedMeters):
    """The table. Made before the workers are forked, attached by each of them."""

    def __init__(self, rows: int, workers: int, lock: Path, secret: bytes) -> None:
        super().__init__(rows, workers, lock)
        # The same on all nodes, so that a mark names the same limit on each; whose it is cannot be derived.
        self._salt = hashlib.blake2b(b"shared limits" + secret, digest_size=16).digest()
        rows = self._sets * WAYS
        memory = memoryview(mmap.mmap(-1, 8 * (1 + rows * (4 + workers)))).cast("B").cast("d")
        self._default = memory[:1]
        self._factors, self._credits, self._windows, self._intervals = (
            memory[1 + rows * number : 1 + rows * (number + 1)] for number in range(4)
        )
        self._used = memory[1 + rows * 4 :]
        self._default[0] = 1.0
        self._seen = bytes(len(self._used) * 8)
        self._unsettled: list[LeasedRows] = []
        self._settle_at = 0.0

    # --- Workers ---------------------------------------------------------------------------------------

    def take(self, limits: Sequence[tuple[str, Limit]], now: float, cost: int = 1) -> list[Taken]:
        """Take `cost` requests out of each limit, until one refuses; that one comes last."""
        found = []
        for key, limit in limits:
            row, mark = self._known.get(key, NOWHERE)
            if self._marks[row] != mark:
                row = self._described(key, limit, now)
            taken = self._look(row, limit, now, cost)
            if taken.allowed:
                self._use(row, taken.arrival, self._step(row, limit.interval, limit.seconds) * cost)
                self._used[row * self._workers + self._column] += cost * limit.interval
            found.append(taken)
            if not taken.allowed:
                break
        return found

    def rows(self, limits: Sequence[tuple[str, Limit]], now: float) -> LeasedRows:
        """Where these limits are, for `take_all`: as long as their rows are not given to another caller."""
        found = LeasedRows()
        for key, limit in limits:
            row = self._described(key, limit, now)
            found.append((row, self._marks[row], limit.interval, limit.seconds))
        return found

    def take_all(self, rows: LeasedRows, now: float, cost: float = 1.0) -> bool:  # type: ignore[override] # those of `rows`
        """Take `cost` requests out of all limits, or out of none: False where one refuses or has another row."""
        if rows.epoch != self._epoch[0] and not self._look_again(rows):
            return False
        if self._workers > 1:
            if not self._take_together_leased(rows, now, cost):
                return False
        else:
            # Here, without a call: every request comes by.
            arrivals = self._arrivals
            for row, step, ahead, credit in rows.leases:
                arrival, moved = arrivals[row], now + credit
                after = (moved if moved > arrival else arrival) + cost * step  # noqa: FURB136
                if after - moved > ahead:
                    self._give_back_leased(rows, row, cost)
                    return False
                arrivals[row] = after
        if not rows.taken:
            self._unsettled.append(rows)
        rows.taken += cost
        if now >= self._settle_at:
            self._settle_at = now + SETTLE_SECONDS
            self.settle()
        return True

    def left(self, rows: LeasedRows, now: float) -> tuple[int, ...]:  # type: ignore[override] # those of `rows`
        """What each limit has left here, and for windows of more than a second when it is whole again."""
        found: tuple[int, ...] = ()
        for row, _, interval, seconds in rows:
            used = self._highest(row) - self._credits[row] - now
            found += numbers_left(max(0.0, used), self._step(row, interval, seconds), seconds)
        return found

    def _give_back_leased(self, rows: LeasedRows, until: int, cost: float) -> None:
        """Undo what was taken a moment ago from the rows before this one; no other worker writes to them."""
        for row, step, _, _ in rows.leases:
            if row == until:
                break
            self._arrivals[row] -= cost * step

    def _take_together_leased(self, rows: LeasedRows, now: float, cost: float) -> bool:
        """Take from rows that other workers write to as well."""
        arrivals, workers = self._arrivals, self._workers
        new = []
        for row, step, ahead, credit in rows.leases:
            start, moved = row * workers, now + credit
            arrival = max(arrivals[start : start + workers])
            after = (moved if moved > arrival else arrival) + cost * step  # noqa: FURB136
            if after - moved > ahead:
                return False
            new.append((start, after - cost * step, after, cost * step))
        for each in new:
            self._write(*each)
        return True

    def _look_again(self, rows: LeasedRows) -> bool:  # type: ignore[override] # those of `rows`
        epoch = self._epoch[0]
        if self.moved(rows):
            return False
        rows.leases = []
        for row, _, interval, seconds in rows:
            step = self._step(row, interval, seconds)
            rows.leases.append((row, step, seconds + HAIR * step, self._credits[row]))
        rows.epoch = epoch
        return True

    def settle(self) -> None:
        """Write what was taken for the keeper."""
        for rows in self._unsettled:
            for row, mark, interval, _ in rows:
                if self._marks[row] == mark:
                    self._used[row * self._workers + self._column] += rows.taken * interval
            rows.taken = 0.0
        self._unsettled.clear()

    def peek(self, key: str, limit: Limit, now: float) -> Taken:
        """Return what `take` of one request would find, and take nothing."""
        return self._look(self._described(key, limit, now), limit, now, 1)

    def _described(self, key: str, limit: Limit, now: float) -> int:
        """Find or claim the row of a key; the keeper reads there which limit it is."""
        row = self._row(key, now)
        self._windows[row], self._intervals[row] = limit.seconds, limit.interval
        return row

    def _step(self, row: int, interval: float, seconds: float) -> float:
        """Seconds that one request uses up here; a node without a share may still send one in a window."""
        return min(seconds, interval * (self._factors[row] or self._default[0]))

    def _highest(self, row: int) -> float:
        start = row * self._workers
        return max(self._arrivals[start : start + self._workers])

    def _look(self, row: int, limit: Limit, now: float, cost: int) -> Taken:
        """As `core.limits.take`, with the row's own step."""
        step = self._step(row, limit.interval, limit.seconds)
        arrival = self._highest(row) - self._credits[row]
        after = max(now, arrival) + cost * step
        room = (now + limit.seconds - after) / step
        if room < -HAIR:
            wait = math.inf if cost > limit.count else -room * step
            return Taken(False, arrival, max(0, floor(room + cost + HAIR)), wait)
        return Taken(True, after, int(room + HAIR), 0.0)

    def _use(self, row: int, after: float, used: float) -> None:
        """Write an arrival, behind those that others wrote meanwhile."""
        start, credit = row * self._workers, self._credits[row]
        if self._workers == 1:
            self._arrivals[start] = after + credit
        else:
            self._write(start, after - used + credit, after + credit, used)

    def _claim(self, mark: int, now: float) -> int:
        first = mark % self._sets * WAYS
        is_new = mark not in self._marks[first : first + WAYS].tolist()
        row = super()._claim(mark, now)
        if is_new:
            self._factors[row] = self._credits[row] = 0.0
            self._change()
        return row

    # --- The keeper ------------------------------------------------------------------------------------

    def backlogged(self, now: float) -> Iterator[int]:
        """Rows that were used since the last look and have used up half of what they may."""
        self.settle()
        used = bytes(self._used.cast("B"))
        seen, self._seen = self._seen, used
        for start in range(0, len(used), _PIECE):
            if used[start : start + _PIECE] == seen[start : start + _PIECE]:
                continue
            rows = {number // 8 // self._workers for number in range(start, min(start + _PIECE, len(used)), 8)}
            for row in sorted(rows):
                backlog = self._highest(row) - self._credits[row] - now
                if self._marks[row] and backlog > self._windows[row] / 2:
                    yield row

    def read(self, row: int, now: float) -> LeasedRow:
        """What a row holds now."""
        self.settle()
        window, start = self._windows[row], row * self._workers
        return LeasedRow(
            row,
            self._marks[row],
            window,
            window / self._intervals[row],
            1 / (self._factors[row] or self._default[0]),
            min(window, max(0.0, self._highest(row) - self._credits[row] - now)),
            sum(self._used[start : start + self._workers]),
        )

    def find(self, mark: int, window: float, count: float, now: float) -> int:
        """Find or claim the row of a limit that another node named."""
        with self._claiming():
            row = self._claim(mark, now)
        self._windows[row], self._intervals[row] = window, window / count
        return row

    def lease(self, row: int, fraction: float, backlog: float | None, now: float) -> None:
        """Let a row use another fraction of its limit; `backlog`: what is used of it from now on."""
        if backlog is not None:
            self._credits[row] = self._highest(row) - now - backlog
        elif self._factors[row] == 1 / fraction:
            return
        self._factors[row] = 1 / fraction
        self._change()

    def unlease(self, row: int) -> None:
        """Let a row use the equal part again."""
        self._factors[row] = 0.0
        self._change()

    def divide(self, fraction: float) -> None:
        """Let rows without a lease use this fraction of their limits."""
        if self._default[0] != 1 / fraction:
            self._default[0] = 1 / fraction
            self._change()

    def alone(self) -> None:
        """Let every row use the whole of its limit: what other nodes do is unknown."""
        self._factors.cast("B")[:] = bytes(len(self._factors) * 8)
        self._default[0] = 1.0
        self._change()
