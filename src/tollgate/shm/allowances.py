"""How many calls teams with a spending cap may still make, in memory that the processes of one machine share.

A slot for each such team: how many calls it was granted, how many of them the ledger has recorded, and for each
worker how many it has taken, all counted from the beginning. A worker compares, and adds to its own column alone,
so a call takes no lock, and nothing is lost when a worker is killed. The collector writes the rest: it grants what
the ledger's balance covers, beyond what is recorded. So calls under way, and those whose records wait in the
spool, are within the grant, however far the collector is behind.

A slot is given to a team under a file lock, as those of limits are. A new one has a few calls, so that a team need
not wait for the collector. Where no slot is left, the flag that the collector sets in the store stops a team.
"""

from __future__ import annotations

import hashlib
import mmap
import secrets
from pathlib import Path

from tollgate.shm.limits import WAYS, claiming

FIRST_CALLS = 100
"""What a team may call before the collector has granted it anything."""


class Allowance:
    """The slot of one team, as a worker uses it."""

    __slots__ = ("_column", "_granted", "_mark", "_marks", "_slot", "_start", "_table", "_taken", "_team_id")

    def __init__(self, table: Allowances, team_id: str, slot: int, mark: int) -> None:
        self._table = table
        self._team_id = team_id
        self._marks, self._granted, self._taken = table.marks, table.granted, table.taken
        self._use(slot, mark)

    def _use(self, slot: int, mark: int) -> None:
        self._slot, self._mark = slot, mark
        self._start = slot * self._table.workers
        self._column = self._start + self._table.column

    def take(self, calls: int = 1) -> bool:
        """Take so many calls, or none."""
        if self._marks[self._slot] != self._mark:
            found = self._table.find(self._team_id)
            if found is None:
                return True
            self._use(*found)
        taken, start = self._taken, self._start
        used = taken[start] if self._table.workers == 1 else sum(taken[start : start + self._table.workers])
        if used + calls > self._granted[self._slot]:
            return False
        taken[self._column] += calls
        return True

    def give_back(self, calls: int) -> None:
        """Give back calls that will not be charged."""
        if self._marks[self._slot] == self._mark:
            self._taken[self._column] -= calls

    @property
    def is_short(self) -> bool:
        """Whether the balance may cover more than was granted: another grant follows."""
        return bool(self._table.short[self._slot])


class Allowances:
    """The table. Made before the processes are forked, attached by each worker."""

    def __init__(self, slots: int, workers: int, lock: Path) -> None:
        self._sets = max(1, slots // WAYS)
        slots = self._sets * WAYS
        self.workers = workers
        self.column = 0
        self._lock = lock
        self._salt = secrets.token_bytes(16)
        memory = memoryview(mmap.mmap(-1, 8 * slots * (4 + workers)))
        self.marks = memory[: 8 * slots].cast("Q")
        self.granted, self.recorded, self.short = (
            memory[8 * slots * number : 8 * slots * (number + 1)].cast("q") for number in range(1, 4)
        )
        self.taken = memory[8 * slots * 4 :].cast("q")
        self._known: dict[str, Allowance | None] = {}

    # --- Workers ---------------------------------------------------------------------------------------

    def attach(self, worker: int) -> None:
        """Count in this worker's column from now on."""
        self.column = worker
        self._known = {}

    def of(self, team_id: str) -> Allowance | None:
        """The allowance of a team; None where there is no slot for it."""
        known = self._known.get(team_id)
        if known is None:
            found = self.find(team_id)
            if found is None:
                return None
            if len(self._known) >= len(self.marks):
                self._known.clear()
            known = self._known[team_id] = Allowance(self, team_id, *found)
        return known

    def find(self, team_id: str) -> tuple[int, int] | None:
        """The slot of a team, found or claimed, and its mark."""
        mark = self._mark(team_id)
        slot = self._slot_of(mark)
        if slot is None:
            with claiming(self._lock):
                slot = self._slot_of(mark)
                if slot is None:
                    slot = self._slot_of(0, mark)
                    if slot is None:
                        return None
                    self._clear(slot)
                    self.marks[slot] = mark
        return slot, mark

    def _mark(self, team_id: str) -> int:
        digest = hashlib.blake2b(team_id.encode(), digest_size=8, key=self._salt).digest()
        return int.from_bytes(digest, "little") or 1

    def _slot_of(self, mark: int, near: int | None = None) -> int | None:
        """The slot with a mark, in the set of a mark."""
        first = (mark if near is None else near) % self._sets * WAYS
        listed = self.marks[first : first + WAYS].tolist()
        return first + listed.index(mark) if mark in listed else None

    def _clear(self, slot: int) -> None:
        for column in range(slot * self.workers, (slot + 1) * self.workers):
            self.taken[column] = 0
        self.recorded[slot], self.granted[slot], self.short[slot] = 0, FIRST_CALLS, 1

    # --- The collector ---------------------------------------------------------------------------------

    def unrecorded(self, team_id: str) -> tuple[int, int]:
        """Calls that a team has taken, ever, and those of them that are not recorded yet."""
        found = self.find(team_id)
        if found is None:
            return 0, 0
        slot = found[0]
        taken = self._taken_of(slot)
        return taken, max(0, taken - self.recorded[slot])

    def grant(self, team_id: str, calls: int, *, short: bool = False) -> None:
        """Let a team make so many calls that are not recorded yet; `short`: its balance covers more."""
        found = self.find(team_id)
        if found is not None:
            slot = found[0]
            self.short[slot] = short
            self.granted[slot] = self.recorded[slot] + calls

    def record(self, team_id: str, calls: int) -> None:
        """Count calls that the ledger has recorded."""
        slot = self._slot_of(self._mark(team_id))
        if slot is not None:
            # Never more than were taken: those of an earlier service were taken elsewhere.
            self.recorded[slot] = min(self.recorded[slot] + calls, self._taken_of(slot))

    def settle(self, team_id: str) -> None:
        """Count all calls as recorded: those that are not have been lost with their worker."""
        slot = self._slot_of(self._mark(team_id))
        if slot is not None:
            self.recorded[slot] = self._taken_of(slot)

    def keep(self, team_ids: set[str]) -> None:
        """Free the slots of all other teams."""
        kept = {self._mark(team_id) for team_id in team_ids}
        for slot, mark in enumerate(self.marks.tolist()):
            if mark and mark not in kept:
                self.marks[slot] = 0

    def _taken_of(self, slot: int) -> int:
        start = slot * self.workers
        return sum(self.taken[start : start + self.workers])
