"""Writes one worker's segment files. No record of an answered call is lost when the process is killed.

Records gather in memory and are written as one frame, by one call, for each tick of the loop, before the answers
of that tick leave. The kernel has them then, so SIGKILL loses none; `sync`, on a timer, bounds what a power cut
loses.

When the disk refuses a write, records are held in bounded memory and an error is logged. When that is full,
`is_full` is set, and the service refuses calls. The disk is tried again once a second (`tick`). What it took of a
write stays where it is, because the collector may have read it: only frames that are not there whole are written
again, to a new segment.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from tollgate import log
from tollgate.file_lock import try_lock
from tollgate.ledger.segments import HEADER_BYTES, HIDDEN_SUFFIX, ID_BYTES, MAGIC, SUFFIX, frame, records_in

# Written at once: what was held for long must not stop the loop for long, nor make one huge segment.
MAX_WRITTEN_BYTES = 1 << 20
# Segments that wait for `sync`. More only when that hangs; then the kernel syncs them when it likes.
MAX_UNSYNCED = 16
_log = log.get("spool")


class Spool:
    """The segments of one worker."""

    def __init__(
        self,
        folder: Path,
        *,
        segment_bytes: int,
        segment_seconds: float,
        max_held_bytes: int,
        now: Callable[[], float],
        opener: Callable[[Path], int] | None = None,
    ) -> None:
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._segment_seconds = segment_seconds
        self._max_held = max_held_bytes
        self._now = now
        self._open = opener or _open
        self._records: list[bytes] = []
        """Of this tick."""
        self._frames: list[bytes] = []
        """Of this tick and, where the disk refused them, of earlier ones."""
        self._held = 0
        self._descriptor = -1
        self._size = 0
        self._opened_at = 0.0
        self._unsynced: list[int] = []
        """Closed segments with unsynced records. Still locked, so the collector does not delete them."""
        self._written = False
        """Whether something was written since the last sync."""
        self._created = False
        """Whether a segment was created since then."""
        self.failing = False
        """Whether the disk refused the last write."""
        self.is_full = False
        """Whether records can no longer be held: calls must be refused."""

    @property
    def held_bytes(self) -> int:
        """Bytes of records that are not on the disk yet."""
        return self._held

    @property
    def waiting(self) -> bool:
        """Whether something is to be written."""
        return bool(self._records or self._frames)

    def append(self, payload: bytes) -> None:
        """Take a record; `write` puts it on the disk."""
        self._records.append(payload)
        self._held += len(payload)

    def extend(self, payloads: list[bytes]) -> None:
        """Take records; `write` puts them on the disk."""
        self._records += payloads
        self._held += sum(map(len, payloads))

    def write(self) -> None:
        """Write what has gathered. Never raises: what the disk refuses is held, and `tick` tries it again."""
        if self._records:
            self._frame()
        if self.failing:
            self._weigh()
        elif self._frames:
            self._write_all()

    def tick(self) -> None:
        """Once a second: try again what was refused, and leave an old segment to the collector."""
        if self._records:
            self._frame()
        if self._frames:
            self._write_all()
        if self._descriptor < 0:
            return
        if os.fstat(self._descriptor).st_nlink == 0:
            _try_log(_log.error, "a spool file was deleted while records were written to it: those are lost")
            self.close_segment()
        elif self._size > HEADER_BYTES and self._now() - self._opened_at >= self._segment_seconds:
            self.close_segment()

    async def sync(self) -> None:
        """Make what was written outlive a power cut, in a thread; its segment may end meanwhile."""
        if not self._written:
            return
        folder = self._folder if self._created else None
        self._written = self._created = False
        descriptors, self._unsynced = self._unsynced, []
        if self._descriptor >= 0:
            descriptors.append(os.dup(self._descriptor))
        try:
            await asyncio.to_thread(_sync, folder, descriptors)
        except OSError as error:
            _try_log(
                _log.error, "records cannot be forced to the disk: a power cut would take them", error=str(error)
            )
            self.close_segment()

    def close(self) -> None:
        """Write the last records and let go."""
        if self._records:
            self._frame()
        if self._frames:
            self._write_all()
        if self._frames:
            lost = sum(map(records_in, self._frames))
            _try_log(_log.error, "records are lost: the disk takes none", records=lost, bytes=self._held)
        self.close_segment()
        descriptors, self._unsynced = self._unsynced, []
        with suppress(OSError):
            _sync(self._folder, descriptors)

    def close_segment(self) -> None:
        """Leave the segment to the collector, when it is synced."""
        if self._descriptor < 0:
            return
        if self._written and len(self._unsynced) < MAX_UNSYNCED:
            self._unsynced.append(self._descriptor)
        else:
            os.close(self._descriptor)
        self._descriptor = -1
        self._size = 0

    def _frame(self) -> None:
        """Make frames of the records of this tick: one, unless they are more than may be written at once."""
        records, self._records = self._records, []
        while records:
            some = records if self._held <= MAX_WRITTEN_BYTES else _beginning(records)
            framed = frame(*some)
            self._frames.append(framed)
            self._held += len(framed) - sum(map(len, some))
            records = records[len(some) :]

    def _write_all(self) -> None:
        while self._frames:
            frames = self._frames if self._held <= MAX_WRITTEN_BYTES else _beginning(self._frames)
            data = b"".join(frames)
            taken, error = self._write(data)
            if taken == len(data) == self._held:
                self._frames = []
                self._held = 0
            else:
                self._take_off(taken)
            if error is not None:
                self._refused(error)
                return
        if self.failing:
            self.failing = self.is_full = False
            _try_log(_log.warning, "records are written again")

    def _write(self, data: bytes) -> tuple[int, OSError | None]:
        """Write to the segment: how many bytes the disk took, and why not all."""
        try:
            if self._size > HEADER_BYTES and self._size + len(data) > self._segment_bytes:
                self.close_segment()
            if self._descriptor < 0:
                self._create()
            taken = os.write(self._descriptor, data)
        except OSError as error:
            taken, failure = self._grown(len(data)), error
        else:
            if taken == len(data):
                self._size += taken
                self._written = True
                return taken, None
            failure = OSError(f"only {taken} of {len(data)} bytes were taken")
        self._size += taken
        self._written = self._written or taken > 0
        # Never behind what may be a part of a record. An empty segment is kept: its file must not become many.
        if self._size > HEADER_BYTES:
            self.close_segment()
        return taken, failure

    def _grown(self, max_bytes: int) -> int:
        """How much of a write that failed is in the file all the same."""
        if self._descriptor < 0:
            return 0
        return min(max(0, os.fstat(self._descriptor).st_size - self._size), max_bytes)

    def _take_off(self, taken: int) -> None:
        """Forget the frames that are written whole."""
        count = 0
        for each in self._frames:
            if len(each) > taken:
                break
            taken -= len(each)
            self._held -= len(each)
            count += 1
        del self._frames[:count]

    def _create(self) -> None:
        """Create a segment. It is renamed to its name when it is locked and has its header, never before."""
        identity = secrets.token_bytes(ID_BYTES)
        path = self._folder / f"{int(self._now() * 1000):014d}-{identity.hex()}{SUFFIX}"
        hidden = path.with_suffix(HIDDEN_SUFFIX)
        descriptor = self._open(hidden)
        try:
            if not try_lock(descriptor) or os.write(descriptor, MAGIC + identity) != HEADER_BYTES:
                raise OSError("not even a header was taken")  # noqa: TRY301 - undone below, as any other
            hidden.rename(path)
        except BaseException:
            os.close(descriptor)
            hidden.unlink(missing_ok=True)
            raise
        self._descriptor = descriptor
        self._created = True
        self._size = HEADER_BYTES
        self._opened_at = self._now()

    def _refused(self, error: OSError) -> None:
        if not self.failing:
            self.failing = True
            _try_log(_log.error, "records cannot be written and are held in memory", error=str(error))
        self._weigh()

    def _weigh(self) -> None:
        full = self._held >= self._max_held
        if full and not self.is_full:
            _try_log(_log.error, "no more records can be held: calls are refused", bytes=self._held)
        self.is_full = full


def _try_log(level: Callable[..., object], message: str, **facts: object) -> None:
    """Log. A disk that takes no records may take no log either, and that must not be the end."""
    with suppress(OSError):
        level(message, **facts)


def _beginning(pieces: Sequence[bytes]) -> list[bytes]:
    """As many records or frames as are written at once, at least one."""
    found: list[bytes] = []
    size = 0
    for each in pieces:
        size += len(each)
        if found and size > MAX_WRITTEN_BYTES:
            break
        found.append(each)
    return found


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)


def _sync(folder: Path | None, descriptors: Sequence[int]) -> None:
    """Sync files and the names of a folder, and let go of the files."""
    try:
        for descriptor in descriptors:
            os.fdatasync(descriptor)
        if folder is None:
            return
        names = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(names)
        finally:
            os.close(names)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
