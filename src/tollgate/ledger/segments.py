"""Segment files: their format, and reading them. Knows nothing of what a record means.

A segment is a header and records. The header has an id, so that a copy is recognised whatever its name. A record
is its length, the length again with all bits turned, the CRC-32 of its bytes, and its bytes. Its writer holds a
lock on the file while it lives.

Two things can be wrong with a file, and they are not the same. A torn end is the beginning of a record that was
never written whole, so nobody was answered: whoever finds it in a file that nobody has locked may cut it. Anything
else that no writer wrote is damage, and may hide records that were answered: a person has to look.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

from msgspec import Struct

from tollgate.file_lock import try_lock

SUFFIX = ".seg"
HIDDEN_SUFFIX = ".new"
"""Of a file that is about to become a segment."""
DAMAGED_SUFFIX = ".damaged"
MAGIC = b"TGSPOOL1"
ID_BYTES = 16
HEADER_BYTES = len(MAGIC) + ID_BYTES
_FRAME = struct.Struct("<III")
FRAME_BYTES = _FRAME.size
_TURNED = 0xFFFF_FFFF
# Larger than any record can be: a length beyond it is damage.
MAX_RECORD_BYTES = 1 << 20


def frame(payload: bytes) -> bytes:
    """A record as it stands in a file."""
    length = len(payload)
    return _FRAME.pack(length, length ^ _TURNED, zlib.crc32(payload)) + payload


class Damaged(Exception):
    """Bytes in a segment that no writer wrote."""


class Piece(Struct, frozen=True):
    """Some records of a segment, and where the next begins. No records: there is none to be read now."""

    payloads: list[bytes]
    offset: int
    torn_bytes: int = 0
    """Where there are no records: what stands behind the last one, the beginning of one more."""

    def end_of(self, count: int, offset: int) -> int:
        """Where the record after the first `count` begins, if the piece was read from `offset`."""
        return offset + sum(FRAME_BYTES + len(payload) for payload in self.payloads[:count])


def read_id(path: Path) -> bytes | None:
    """The id of a segment; None where its header is not whole."""
    with path.open("rb") as file:
        header = file.read(HEADER_BYTES)
    return header[len(MAGIC) :] if len(header) == HEADER_BYTES and header.startswith(MAGIC) else None


def is_alive(path: Path) -> bool:
    """Whether a writer holds it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return not try_lock(descriptor, shared=True)
    finally:
        os.close(descriptor)


def read_piece(path: Path, offset: int, max_bytes: int) -> Piece:
    """Read whole records from an offset on, about so many bytes and at least one record, if there is one.

    A torn end is left unread. Damage right at the offset is `Damaged`; behind it, what stands before is returned.
    """
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if offset > size:
            # A copy that is shorter than what was read elsewhere.
            return Piece([], offset)
        file.seek(offset)
        # A writer may have added to it since: what is beyond `size` waits.
        data = file.read(min(max(max_bytes, FRAME_BYTES + MAX_RECORD_BYTES), size - offset))
    payloads, position = _records(data)
    if payloads:
        return Piece(payloads, offset + position)
    rest = len(data)
    if rest >= FRAME_BYTES:
        _check(data, offset)
    return Piece([], offset, rest)


def _records(data: bytes) -> tuple[list[bytes], int]:
    """The whole and sound records at the beginning of some bytes, and where they end."""
    payloads: list[bytes] = []
    position, last = 0, len(data) - FRAME_BYTES
    unpack, crc32 = _FRAME.unpack_from, zlib.crc32
    while position <= last:
        length, turned, checksum = unpack(data, position)
        end = position + FRAME_BYTES + length
        payload = data[position + FRAME_BYTES : end]
        if (
            length ^ turned != _TURNED
            or len(payload) != length
            or not 0 < length <= MAX_RECORD_BYTES
            or crc32(payload) != checksum
        ):
            break
        payloads.append(payload)
        position = end
    return payloads, position


def _check(data: bytes, offset: int) -> None:
    """Tell the beginning of a record, which is fine, from damage."""
    length, turned, _ = _FRAME.unpack_from(data)
    if length ^ turned != _TURNED or not 0 < length <= MAX_RECORD_BYTES:
        raise Damaged(f"no record begins at byte {offset}")
    if FRAME_BYTES + length <= len(data):
        raise Damaged(f"the checksum of the record at byte {offset} is wrong")
