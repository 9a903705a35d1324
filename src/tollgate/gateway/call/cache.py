"""Answers of upstreams that may be given again.

An answer is kept for as long as it holds by `chains/`: for ever, until the chain is reorganised below it,
or until the next block. An answer is stamped with the shared status at the time of the *call*: one that was under
way while a block came is never taken for an answer about that block. Nothing is swept: what no longer holds is
found out when it is requested, or makes room as the longest unused.

An answer remembers the teams that have had it: others are not told that it was kept (`resolver.py`).

Bounded in bytes. When there is little room left, only what was requested before is taken in: who reads each
block of a chain once does not push out what others read again and again. One for each network and worker; it
takes no lock.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec
from msgspec import Raw

from tollgate.chains.catalogue import Catalogue, Holds, Scope
from tollgate.chains.keeping import keep as kept_for
from tollgate.core.shapes import ABSENT, Call, Reply
from tollgate.shm.upstream_status import NOTHING, NetworkStatus, Snapshot, Stamp
from tollgate.store.base import SharedAnswer

# What an entry costs beside its answer and its key, roughly.
_OVERHEAD = 250
# And each team that has had it, but for the first.
_TEAM_BYTES = 64
_NEVER, _TIP, _BLOCK, _FOREVER = Holds.NEVER, Holds.TIP, Holds.BLOCK, Holds.FOREVER
# Marks of keys that were requested, and how many may be set before all are cleared.
_MARKS, _MAX_MARKS = 1 << 16, 1 << 15
# Entries that are looked at for those to share: what is requested again moves to the end.
_LOOKED_AT = 512
_json = msgspec.json.encode

Teams = tuple[str, ...] | set[str]
"""Ids; most answers are for one team alone."""


class Kept(Reply, gc=False):
    """An answer, and for how long it holds. That is found out when it is first requested again: most never are."""

    size: int = 0
    stamp: Stamp = (0, 0, NOTHING, NOTHING)
    scope: Scope | None = None
    """Which blocks the call refers to; None once it is found out."""
    version: int = -1
    """The version that it holds for; -1: for longer."""
    reorgs: int = 0
    number: int = NOTHING
    """The block that it refers to; a reorganisation below it ends it."""
    final: bool = False
    """Whether it is valid while no prober watches for reorganisations."""
    is_shared: bool = False
    """Whether it came from another worker, or went to others."""
    teams: Teams = ()
    """Those that have had it."""
    upstream: str = ""
    """That gave it; empty: not known here."""


class Cache:
    """The answers of one network."""

    def __init__(self, catalogue: Catalogue, status: NetworkStatus, max_bytes: int, max_entry: int) -> None:
        self._status = status
        self._bound(max_bytes, max_entry)
        self._seen = bytearray()
        """A mark for each key that was requested while there was little room; keys may share one."""
        self._marks = 0
        self.used = 0
        """Bytes."""
        # Not a dict: finding its first key takes longer the more were dropped before.
        self.entries: OrderedDict[bytes, Kept] = OrderedDict()
        self.methods = catalogue.cached

    def __len__(self) -> int:
        return len(self.entries)

    def get(self, key: bytes, status: Snapshot | None = None) -> Kept | None:
        """The answer to a call, where one is kept that still holds; `status`: the network's, if it is at hand."""
        entry = self.entries.get(key)
        if entry is None:
            return None
        if entry.scope is not None and not _find_out(entry, entry.scope):
            self._end(key)
            return None
        is_fresh = status is not None or self._status.is_fresh
        status = status or self._status.snapshot()
        if entry.version >= 0:
            if entry.version == status.version and is_fresh:
                return entry
        elif not entry.final and (not is_fresh or status.floor > status.head):
            # A block that the prober has not seen yet: it may not be a child of the last.
            return None
        elif entry.reorgs == status.reorgs or self._stands(entry):
            # Used last: it moves to the end of the line.
            self.entries.move_to_end(key)
            return entry
        self._end(key)
        return None

    def holds_any(self, keys: Sequence[bytes]) -> bool:
        """Whether there may be an answer to one of these calls."""
        return not self.entries.keys().isdisjoint(keys)

    def put(
        self, key: bytes, scope: Scope, reply: Reply, stamp: Stamp, teams: Teams = (), upstream: str = ""
    ) -> None:
        """Keep an answer of an upstream that may hold for a while, and that these teams have had."""
        # A head that was not observed belongs to an unknown chain.
        if scope.holds is _NEVER or stamp[2] == NOTHING:
            return
        if self.used > self._brim and key not in self.entries and not self._was_seen(key):
            return
        # A copy: what msgspec gives is a view of all that the upstream sent.
        result = bytes(reply.result)
        size = len(key) + len(result) + _OVERHEAD
        if size > self._max_entry:
            return
        entries = self.entries
        if key in entries:
            self._drop(key)
        self.used += size
        if self.used > self._max_bytes:
            self._make_room()
        entries[key] = Kept(Raw(result), ABSENT, size, stamp, scope, teams=teams, upstream=upstream)

    def give(self, entry: Kept, team: str) -> None:
        """Note that a team has had an answer."""
        entry.teams = with_team(entry.teams, team)
        entry.size += _TEAM_BYTES
        self.used += _TEAM_BYTES
        if self.used > self._max_bytes:
            self._make_room()

    def unshared(self, max_entry: int) -> Iterator[SharedAnswer]:
        """Answers about final blocks that were requested again, and that others do not know yet; newest first."""
        finalized = self._status.stamp[3]
        for key, entry in islice(reversed(self.entries.items()), _LOOKED_AT):
            if (
                entry.final
                and not entry.is_shared
                and NOTHING < entry.number <= finalized
                and entry.size <= max_entry
            ):
                entry.is_shared = True
                yield SharedAnswer(key, entry.number, bytes(entry.result))

    def not_shared(self, answers: Sequence[SharedAnswer]) -> None:
        """Let answers be shared later that could not be sent."""
        for answer in answers:
            if answer.key in self.entries:
                self.entries[answer.key].is_shared = False

    def take_in(self, answer: SharedAnswer) -> bool:
        """Keep an answer that another worker shares, where its block is final here as well and there is room."""
        _, reorgs, _, finalized = stamp = self._status.stamp
        size = len(answer.key) + len(answer.result) + _OVERHEAD
        if not NOTHING < answer.number <= finalized or answer.key in self.entries:
            return False
        # It was not requested here: it takes no other's place.
        if size > self._max_entry or self.used + size > self._brim or method_of(answer.key) not in self.methods:
            return False
        self.used += size
        self.entries[answer.key] = Kept(
            Raw(answer.result), ABSENT, size, stamp, None, -1, reorgs, answer.number, final=True, is_shared=True
        )
        return True

    def resize(self, max_bytes: int, max_entry: int) -> None:
        """Take over bounds; what is too much makes room."""
        self._bound(max_bytes, max_entry)
        self._make_room()

    def _bound(self, max_bytes: int, max_entry: int) -> None:
        self._max_bytes = max_bytes
        self._max_entry = min(max_entry, max_bytes)
        self._brim = max_bytes - max_bytes // 16

    def _was_seen(self, key: bytes) -> bool:
        """Whether this was requested before; marks it as requested."""
        if not self._seen or self._marks > _MAX_MARKS:
            self._seen, self._marks = bytearray(_MARKS), 0
        place = hash(key) % _MARKS
        if self._seen[place]:
            return True
        self._seen[place] = 1
        self._marks += 1
        return False

    def _end(self, key: bytes) -> None:
        """Drop an answer that does not hold any more. It was requested twice: the next one may have its place."""
        self._drop(key)
        if self._seen:
            self._was_seen(key)

    def _stands(self, entry: Kept) -> bool:
        """Whether an answer has outlived the reorganisations since it was given."""
        if entry.number != NOTHING and self._status.ancestor(entry.reorgs) < entry.number:
            return False
        entry.reorgs = self._status.reorgs
        return True

    def _make_room(self) -> None:
        entries = self.entries
        while entries and self.used > self._max_bytes:
            self.used -= entries.popitem(last=False)[1].size

    def _drop(self, key: bytes) -> None:
        self.used -= self.entries.pop(key).size


def _find_out(entry: Kept, scope: Scope) -> bool:
    """Find out for how long an answer holds; whether it does at all."""
    version, reorgs, head, finalized = entry.stamp
    keep = kept_for(scope, bytes(entry.result), head, finalized)
    holds = keep.holds
    if holds is not _TIP and holds is not _BLOCK and holds is not _FOREVER:
        return False
    entry.scope = None
    entry.version = version if holds is _TIP else -1
    entry.reorgs, entry.number, entry.final = reorgs, keep.number, holds is _FOREVER
    return True


def with_team(teams: Teams, team: str) -> set[str]:
    """The teams that have had an answer, once this one has it."""
    if isinstance(teams, tuple):
        return {*teams, team}
    teams.add(team)
    return teams


def method_of(key: bytes) -> str:
    """The method that a key is about."""
    return re.split(rb"[({]", key, maxsplit=1)[0].decode(errors="replace")


def key_of(call: Call) -> bytes:
    """What makes two calls equal: the method and its parameters, as they are written."""
    params = call.params
    if not params:
        return call.method.encode()
    if isinstance(params, dict):
        # Names as JSON: what a caller writes into one must not end it.
        parts = [part for name, value in params.items() for part in (_json(name), value)]
        return call.method.encode() + b"{" + b"\0".join(parts)
    return call.method.encode() + b"(" + b"\0".join(params)
