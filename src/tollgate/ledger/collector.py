"""Spool -> store, exactly once. Can be stopped at any instruction and started again.

Segments of all workers, running or not, are read in the order of their names. What was read is committed together
with its read offset. Offsets are kept by a segment's id, whatever its files are called: of a copy, only what
follows the offset is read. A segment without a writer is deleted when all of it is committed. A damaged segment
is renamed for an operator to look at; records before the damage are committed.

`fault` is called between steps. Tests raise there.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from tollgate import log
from tollgate.core import posting
from tollgate.core.posting import Posting, post
from tollgate.core.pricing import Price
from tollgate.core.subjects import Batch, Subjects
from tollgate.ledger import segments
from tollgate.store.base import LedgerBook, Mark

# Read at once: enough that a commit is worth its sync, little enough that readers are not kept waiting.
PIECE_BYTES = 3 << 20
MAX_ENTRIES = 20_000
# A file that never had a writer may be a copy that is still being written. After this long it is complete.
SETTLED_SECONDS = 5.0
# What reading bytes as an entry may raise.
_NO_ENTRY = (msgspec.MsgspecError, ValueError)
_log = log.get("collector")


class CollectorRules(Struct, frozen=True):
    """What a batch is posted by."""

    price: Callable[[str], Price]
    """Of a team."""
    label: Callable[[str, str], str]
    """Network and method -> the method as usage counts it."""
    month_for: Callable[[float, frozenset[str]], str]
    """Time and closed months -> billing month."""


class Segment(Struct, frozen=True):
    """One segment: its files, of which all but one are copies."""

    identity: bytes
    paths: list[Path]


class Collector:
    """Reads the spool and writes the store."""

    def __init__(
        self,
        folder: Path,
        book: LedgerBook,
        rules: CollectorRules,
        now: Callable[[], float],
        *,
        fault: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._folder = folder
        self._book = book
        self._rules = posting.Rules(rules.price, rules.month_for)
        self._subjects = Subjects(rules.label)
        self._now = now
        self._fault = fault
        self._marks: dict[bytes, Mark] = {}
        """Of the segments that are in the folder."""
        self._ids: dict[Path, bytes] = {}
        self._written: set[Path] = set()
        """Files that a writer has had: when it lets go of one, that is its end."""
        self._reported: set[Path] = set()
        """Damaged files of living writers that were logged."""
        self._spoilt: list[tuple[Path, str]] = []
        """Damaged files to be put aside when all that could be read of them is committed, each with its damage."""
        self.torn_bytes = 0

    def step(self) -> Posting | None:
        """Commit what is there, up to a bound; None where there was nothing new."""
        marks: dict[bytes, Mark] = {}
        batch = Batch(self._subjects)
        finished: list[Path] = []
        self._spoilt.clear()
        for segment in self._segments():
            known = self._marks.get(segment.identity, segments.BEGINNING)
            try:
                mark = self._read(segment, known, batch)
            except FileNotFoundError:
                # The file was removed. Other files of this segment are read next time.
                continue
            if mark != known:
                marks[segment.identity] = mark
            if mark.done:
                finished += segment.paths
            if len(batch) >= MAX_ENTRIES:
                break
        self._fault("read")
        posted = self._commit(marks, batch) if marks else None
        self._fault("committed")
        for path in finished:
            path.unlink(missing_ok=True)
            self._forget(path)
            self._fault("removed")
        for path, why in self._spoilt:
            self._put_aside(path, why)
            self._fault("aside")
        return posted

    def damaged(self) -> int:
        """How many damaged files wait for an operator."""
        return sum(1 for _ in self._folder.glob(f"*{segments.DAMAGED_SUFFIX}"))

    def lag(self) -> int:
        """Bytes in the spool that are not committed."""
        self._segments()
        return segments.backlog(self._ids, self._marks).bytes

    def has_writers(self) -> bool:
        for segment in self._segments():
            with suppress(FileNotFoundError):
                if any(map(segments.is_alive, segment.paths)):
                    return True
        return False

    def has_segments(self) -> bool:
        return bool(self._segments())

    def tidy(self) -> None:
        """Delete files that were about to become segments when their writer was killed."""
        for path in self._folder.glob(f"*{segments.HIDDEN_SUFFIX}"):
            with suppress(FileNotFoundError):
                if self._is_settled(path) and not segments.is_alive(path):
                    path.unlink()

    def _segments(self) -> list[Segment]:
        """What is in the folder, in the order of names."""
        paths = sorted(self._folder.glob(f"*{segments.SUFFIX}"))
        ids = self._ids
        self._ids = {}
        found: dict[bytes, Segment] = {}
        for path in paths:
            identity = ids.get(path) or self._identify(path)
            if identity is not None:
                self._ids[path] = identity
                found.setdefault(identity, Segment(identity, [])).paths.append(path)
        self._written &= self._ids.keys()
        self._reported &= self._ids.keys()
        self._marks = {identity: mark for identity, mark in self._marks.items() if identity in found}
        # Only we write marks: one that was not there when its segment was first seen is still not there.
        if new := found.keys() - set(ids.values()):
            self._marks |= self._book.marks(new)
        return list(found.values())

    def _identify(self, path: Path) -> bytes | None:
        with suppress(FileNotFoundError):
            identity = segments.read_id(path)
            if identity is not None:
                return identity
            if self._is_settled(path):
                self._put_aside(path, f"it does not begin with the header {segments.MAGIC.decode()}")
        return None

    def _read(self, segment: Segment, known: Mark, batch: Batch) -> Mark:
        """Read on in a segment, in the first of its files that has more."""
        # Checked before reading: what a writer adds in between is then still read next time.
        alive = set(filter(segments.is_alive, segment.paths))
        self._written |= alive
        damaged: list[tuple[Path, str]] = []
        torn: list[tuple[Path, int]] = []
        for path in segment.paths:
            try:
                piece = segments.read_piece(path, known.offset, PIECE_BYTES)
                if piece.payloads:
                    return Mark(self._add(piece, batch))
            except (segments.Damaged, *_NO_ENTRY) as error:
                damaged.append((path, str(error)))
            else:
                if piece.torn_bytes:
                    torn.append((path, piece.torn_bytes))
        if alive:
            self._report_damage(damaged)
            return known
        if not all(path in self._written or self._is_settled(path) for path in segment.paths):
            return known
        for path, why in damaged:
            segment.paths.remove(path)
            self._spoilt.append((path, why))
        if not known.done:
            for path, size in torn:
                self.torn_bytes += size
                _log.warning("a torn end was cut", segment=path.name, bytes=size)
        # Also where only damage is left: the segment ends here. A repaired file is read from this offset on.
        return Mark(known.offset, done=True)

    def _add(self, piece: segments.Piece, batch: Batch) -> int:
        """Add the frames of a piece to a batch, up to one with something that is no record; where to continue."""
        try:
            batch.add(piece.payloads)
        except _NO_ENTRY:
            return self._add_sound(piece, batch)
        return piece.offset

    def _add_sound(self, piece: segments.Piece, batch: Batch) -> int:
        """Add frame by frame; at least one, or what is wrong with it is raised."""
        start = offset = 0
        try:
            for end, place in piece.frames:
                batch.add(piece.payloads[start:end])
                start, offset = end, place
        except _NO_ENTRY:
            if not start:
                raise
        return offset

    def _commit(self, marks: dict[bytes, Mark], batch: Batch) -> Posting:
        known = {identity: self._marks[identity] for identity in marks if identity in self._marks}
        posted = self._book.commit(
            marks,
            batch.teams(),
            lambda opening: post(batch, opening, self._rules),
            self._now(),
            payers=batch.payers(),
            known=known,
        )
        self._marks.update(marks)
        return posted

    def _is_settled(self, path: Path) -> bool:
        return self._now() - path.stat().st_mtime >= SETTLED_SECONDS

    def _report_damage(self, damaged: list[tuple[Path, str]]) -> None:
        """A writer would continue in a file that is put aside: it is left there until it is done."""
        for path, why in damaged:
            if path not in self._reported:
                self._reported.add(path)
                _log.error("a segment is damaged while it is written", segment=path.name, why=why)

    def _put_aside(self, path: Path, why: str) -> None:
        aside = path.with_suffix(segments.DAMAGED_SUFFIX)
        number = 1
        while aside.exists():
            number += 1
            aside = path.with_suffix(f".{number}{segments.DAMAGED_SUFFIX}")
        _log.error("a damaged segment is put aside", segment=path.name, aside=aside.name, why=why)
        path.rename(aside)
        self._forget(path)

    def _forget(self, path: Path) -> None:
        self._ids.pop(path, None)
        self._written.discard(path)
