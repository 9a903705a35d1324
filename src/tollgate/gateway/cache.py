"""Answers of upstreams that may be given again, and questions that are being asked already.

An answer is kept for as long as `chains/` says that it holds: for ever, until the chain is reorganised below it,
or until the next block. What the board says at the time of the *question* is what an answer is stamped with: one
that was under way while a block came is never taken for an answer about that block. Nothing is swept: what no
longer holds is found out when it is asked for, or makes room as the longest unused.

Bounded in bytes. One for each network and worker; it shares no lock with anybody.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec
from msgspec import Raw

from tollgate.board import NOTHING, NetworkRow
from tollgate.chains.catalogue import Catalogue, Holds, Scope
from tollgate.core.shapes import Call, Reply

# What an entry costs beside its answer and its key, roughly.
_OVERHEAD = 250
_json = msgspec.json.encode
Stamp = tuple[int, int]
"""Version and reorganisations of the network when a question was asked."""


class _Entry:
    __slots__ = ("final", "number", "reorgs", "reply", "size", "version")

    def __init__(self, reply: Reply, size: int, version: int, reorgs: int, number: int, final: bool) -> None:
        self.reply = reply
        self.size = size
        self.version = version
        """The version that it holds for; -1: for longer."""
        self.reorgs = reorgs
        self.number = number
        """The block that it tells of; a reorganisation below it ends it. -1: none does."""
        self.final = final
        """Whether it holds while nobody watches for reorganisations."""


class Cache:
    """The answers of one network."""

    def __init__(self, catalogue: Catalogue, row: NetworkRow, most_bytes: int, most_entry: int) -> None:
        self._catalogue = catalogue
        self._row = row
        self._most_bytes = most_bytes
        self._most_entry = min(most_entry, most_bytes)
        self.used = 0
        """Bytes."""
        # Not a dict: finding its first key takes longer the more were dropped before.
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self.methods = catalogue.cached

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: bytes) -> Reply | None:
        """The answer to a question, where one is kept that still holds."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        row = self._row
        if entry.version >= 0:
            if entry.version == row.version and row.heard:
                return entry.reply
        elif not entry.final and (not row.heard or row.floor > row.head):
            # A block that the prober has not seen yet: nobody knows whether it is the child of the last.
            return None
        elif entry.reorgs == row.reorgs or self._stands(entry):
            # Used last: it moves to the end of the line.
            self._entries.move_to_end(key)
            return entry.reply
        self._drop(key)
        return None

    def stamp(self) -> Stamp:
        """What the board says now: to be noted before a question is asked."""
        return self._row.version, self._row.reorgs

    def put(self, key: bytes, scope: Scope, reply: Reply, stamp: Stamp) -> None:
        """Keep an answer, if it may be kept."""
        row = self._row
        size = len(key) + len(memoryview(reply.result)) + _OVERHEAD
        # Where nobody has seen the head, nobody has seen whose chain it is.
        if size > self._most_entry or not row.heard:
            return
        keep = self._catalogue.keep(scope, reply.result, row.head, row.finalized)
        version, reorgs = stamp
        if keep.holds is Holds.TIP:
            if version != row.version:
                return
        elif keep.holds is Holds.BLOCK or keep.holds is Holds.FOREVER:
            version = -1
        else:
            return
        if key in self._entries:
            self._drop(key)
        self._make_room(size)
        # A copy: what msgspec gives is a view of all that the upstream sent.
        kept = Reply(Raw(bytes(reply.result)))
        self._entries[key] = _Entry(kept, size, version, reorgs, keep.number, keep.holds is Holds.FOREVER)
        self.used += size

    def resize(self, most_bytes: int, most_entry: int) -> None:
        """Take over bounds; what is too much makes room as more comes."""
        self._most_bytes = most_bytes
        self._most_entry = min(most_entry, most_bytes)
        self._make_room(0)

    def _stands(self, entry: _Entry) -> bool:
        """Whether an answer has outlived the reorganisations since it was given."""
        if entry.number != NOTHING and self._row.ancestor(entry.reorgs) < entry.number:
            return False
        entry.reorgs = self._row.reorgs
        return True

    def _make_room(self, size: int) -> None:
        while self._entries and self.used + size > self._most_bytes:
            self.used -= self._entries.popitem(last=False)[1].size

    def _drop(self, key: bytes) -> None:
        self.used -= self._entries.pop(key).size


def key_of(call: Call) -> bytes:
    """What makes two calls the same question: the method and its parameters, as they are written."""
    params = call.params
    if not params:
        return call.method.encode()
    if isinstance(params, dict):
        # Names as JSON: what a caller writes into one must not end it.
        parts = [part for name, value in params.items() for part in (_json(name), value)]
        return b"%b{%b" % (call.method.encode(), b"\0".join(parts))
    return b"%b(%b" % (call.method.encode(), b"\0".join(params))
