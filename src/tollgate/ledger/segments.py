"""Segment files: their format, and reading them. Knows nothing of what a record means.

A segment is a header and frames. The header has the version of the format and an id, so that a copy is recognised
whatever its name. A frame has the records of one tick of a worker's loop: the length of its body, the length
again with all bits inverted, the CRC-32 of the body, and the body: how many records there are, the lengths of all
but the last, and the records. The writer holds a lock on the file until it closes it or is killed.

Two things can be wrong with a file. A torn end is the beginning of a frame that was never written whole, so its
calls were not answered: in a file without a lock it may be cut off. Anything else that no writer wrote is damage,
and may hide records of answered calls: an operator has to look at it.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Mapping
from contextlib import suppress
from itertools import accumulate
from operator import itemgetter
from pathlib import Path

from msgspec import Struct

from tollgate.file_lock import try_lock
from tollgate.store.base import Mark

SUFFIX = ".seg"
HIDDEN_SUFFIX = ".new"
"""Of a file that is about to become a segment."""
DAMAGED_SUFFIX = ".damaged"
VERSION = 2
"""Of this format, and of the records in it."""
MAGIC = b"TGSPOOL%d" % VERSION
ID_BYTES = 16
HEADER_BYTES = len(MAGIC) + ID_BYTES
BEGINNING = Mark(HEADER_BYTES)
"""Of a segment of which nothing was read."""
_FRAME = struct.Struct("<III")
_FRAME_OF_ONE = struct.Struct("<IIII")
_COUNT_BYTES = 4
_CRC_OF_ONE = zlib.crc32((1).to_bytes(_COUNT_BYTES, "little"))
FRAME_BYTES = _FRAME_OF_ONE.size
"""What a frame of one record has beside it."""
_INVERTED = 0xFFFF_FFFF
# Larger than any record can be: a length beyond it is damage. A frame of several records is not larger either.
MAX_RECORD_BYTES = 1 << 20
_MAX_BODY_BYTES = MAX_RECORD_BYTES + _COUNT_BYTES


def frame(*records: bytes) -> bytes:
    if len(records) == 1:
        length, checksum = _COUNT_BYTES + len(records[0]), zlib.crc32(records[0], _CRC_OF_ONE)
        return _FRAME_OF_ONE.pack(length, length ^ _INVERTED, checksum, 1) + records[0]
    count = len(records)
    body = b"".join((struct.pack(f"<{count}I", count, *map(len, records[:-1])), *records))
    return _FRAME.pack(len(body), len(body) ^ _INVERTED, zlib.crc32(body)) + body


def records_in(framed: bytes) -> int:
    return int.from_bytes(framed[_FRAME.size : FRAME_BYTES], "little")


class Damaged(Exception):
    """Bytes in a segment that no writer wrote."""


class Piece(Struct, frozen=True):
    """Records of whole frames, and where the next frame begins. No records: there is none to be read now."""

    payloads: list[bytes]
    offset: int
    torn_bytes: int = 0
    """Where there are no records: bytes after the last frame, the beginning of one more."""
    frames: list[tuple[int, int]] = []
    """Of each frame: how many records there are up to its end, and where it ends."""


def read_id(path: Path) -> bytes | None:
    """The id of a segment; None where its header is not whole."""
    with path.open("rb") as file:
        header = file.read(HEADER_BYTES)
    return header[len(MAGIC) :] if len(header) == HEADER_BYTES and header.startswith(MAGIC) else None


def find_all(folder: Path) -> dict[Path, bytes]:
    """The segments in a folder, each with its id."""
    found = {}
    for path in folder.glob(f"*{SUFFIX}"):
        # It may be finished and deleted at any moment.
        with suppress(OSError):
            if (identity := read_id(path)) is not None:
                found[path] = identity
    return found


class Backlog(Struct, frozen=True):
    """What of some segments is not committed."""

    bytes: int
    oldest: float | None
    """When the file of them that waits longest was last written."""


def backlog(files: Mapping[Path, bytes], marks: Mapping[bytes, Mark]) -> Backlog:
    """What files, each with its id, have after these marks. Copies of a segment count once."""
    waiting: dict[bytes, int] = {}
    times = []
    for path, identity in files.items():
        mark = marks.get(identity, BEGINNING)
        with suppress(OSError):
            status = path.stat()
            left = max(0, status.st_size - mark.offset)
            waiting[identity] = max(waiting.get(identity, 0), left)
            if left and not mark.done:
                times.append(status.st_mtime)
    return Backlog(sum(waiting.values()), min(times, default=None))


def is_alive(path: Path) -> bool:
    """Whether a writer holds it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return not try_lock(descriptor, shared=True)
    finally:
        os.close(descriptor)


def read_piece(path: Path, offset: int, max_bytes: int) -> Piece:
    """Read whole frames from an offset on, about so many bytes and at least one frame, if there is one.

    A torn end is left unread. Damage at the offset raises `Damaged`; records before later damage are returned.
    """
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if offset > size:
            # A copy that is shorter than what was read elsewhere.
            return Piece([], offset)
        file.seek(offset)
        # A writer may have added to it since: what is beyond `size` waits.
        data = file.read(min(max(max_bytes, _FRAME.size + _MAX_BODY_BYTES), size - offset))
    payloads, frames = _records(data)
    if frames:
        ends = [(count, offset + end) for count, end in frames]
        return Piece(payloads, ends[-1][1], frames=ends)
    rest = len(data)
    if rest >= _FRAME.size:
        _check(data, offset)
    return Piece([], offset, rest)


def _records(data: bytes) -> tuple[list[bytes], list[tuple[int, int]]]:
    """The records of the whole and sound frames at the beginning of some bytes, and where those end."""
    payloads: list[bytes] = []
    frames: list[tuple[int, int]] = []
    position, last, begin = 0, len(data) - _FRAME.size, _FRAME.size
    unpack, crc32 = _FRAME.unpack_from, zlib.crc32
    while position <= last:
        length, inverted, checksum = unpack(data, position)
        end = position + begin + length
        body = data[position + begin : end]
        if (
            length ^ inverted != _INVERTED
            or len(body) != length
            or not 0 < length <= _MAX_BODY_BYTES
            or crc32(body) != checksum
        ):
            break
        if not _add(payloads, body):
            break
        position = end
        frames.append((len(payloads), position))
    return payloads, frames


def _add(payloads: list[bytes], body: bytes) -> bool:
    """Add the records of a frame; whether its content matches its header."""
    if len(body) <= _COUNT_BYTES:
        return False
    count = int.from_bytes(body[:_COUNT_BYTES], "little")
    if count == 1:
        payloads.append(body[_COUNT_BYTES:])
        return True
    start = _COUNT_BYTES * count
    if not 0 < start < len(body):
        return False
    lengths = struct.unpack_from(f"<{count - 1}I", body, _COUNT_BYTES)
    ends = list(accumulate(lengths, initial=start))
    if ends[-1] >= len(body) or 0 in lengths:
        return False
    payloads += itemgetter(*map(slice, ends, (*ends[1:], len(body))))(body)
    return True


def _check(data: bytes, offset: int) -> None:
    """Raise on damage; the incomplete beginning of a frame is none."""
    length, inverted, _ = _FRAME.unpack_from(data)
    if length ^ inverted != _INVERTED or not 0 < length <= _MAX_BODY_BYTES:
        raise Damaged(f"no record begins at byte {offset}")
    if _FRAME.size + length <= len(data):
        raise Damaged(f"the checksum of the record at byte {offset} is wrong")
