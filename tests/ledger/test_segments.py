"""Segment files: every byte of one cut or flipped, and never a record that was not written."""

import fcntl
import os
import signal
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tollgate.ledger import segments
from tollgate.ledger.segments import FRAME_BYTES, HEADER_BYTES, MAGIC, Damaged, frame
from tollgate.store.base import Mark

ID = bytes(range(16))
RECORDS = [b"first", b"x" * 300, b"\0", b"last record"]
MOST = 1 << 20


def segment(path: Path, records: list[bytes] | None = None) -> bytes:
    """Write a segment; give its bytes."""
    data = MAGIC + ID + b"".join(map(frame, RECORDS if records is None else records))
    path.write_bytes(data)
    return data


def starts(records: list[bytes]) -> list[int]:
    """Where each record begins, and where the last ends."""
    slots = [HEADER_BYTES]
    for record in records:
        slots.append(slots[-1] + FRAME_BYTES + len(record))
    return slots


def read_all(path: Path, most: int = MOST) -> tuple[list[bytes], int, str]:
    """Read a file to its end: records, where that is, and what it is: clean, torn or damaged."""
    found: list[bytes] = []
    offset = HEADER_BYTES
    while True:
        try:
            piece = segments.read_piece(path, offset, most)
        except Damaged:
            return found, offset, "damaged"
        if not piece.payloads:
            return found, offset, "torn" if piece.torn_bytes else "clean"
        found += piece.payloads
        offset = piece.offset


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.seg"


def test_records_are_read_as_they_were_written(path: Path) -> None:
    data = segment(path)
    assert segments.read_id(path) == ID
    assert read_all(path) == (RECORDS, len(data), "clean")


def test_segment_without_records_is_at_its_end(path: Path) -> None:
    segment(path, [])
    assert read_all(path) == ([], HEADER_BYTES, "clean")


def test_reading_goes_on_where_it_ended(path: Path) -> None:
    segment(path, RECORDS[:2])
    first = segments.read_piece(path, HEADER_BYTES, MOST)
    segment(path)
    assert segments.read_piece(path, first.offset, MOST).payloads == RECORDS[2:]


def test_offset_behind_the_end_finds_nothing(path: Path) -> None:
    data = segment(path)
    assert segments.read_piece(path, len(data) + 5, MOST) == segments.Piece([], len(data) + 5)


def test_large_segment_is_read_in_pieces_and_the_largest_record_fits_into_one(path: Path) -> None:
    records = [bytes([number]) * (segments.MAX_RECORD_BYTES - number) for number in range(3)]
    segment(path, records)
    assert [len(payload) for payload in segments.read_piece(path, HEADER_BYTES, 1).payloads] == [len(records[0])]
    assert read_all(path, 1)[0] == records


def test_piece_shows_where_each_frame_ends(path: Path) -> None:
    segment(path)
    piece = segments.read_piece(path, HEADER_BYTES, MOST)
    assert piece.frames == list(enumerate(starts(RECORDS)))[1:]


def test_frame_of_several_records_is_whole_or_not_there(path: Path) -> None:
    begin = MAGIC + ID + frame(b"before")
    framed = frame(*RECORDS)
    for length in range(len(framed)):
        path.write_bytes(begin + framed[:length])
        assert read_all(path) == ([b"before"], len(begin), "torn" if length else "clean"), length
    path.write_bytes(begin + framed + frame(b"after"))
    piece = segments.read_piece(path, HEADER_BYTES, MOST)
    assert piece.payloads == [b"before", *RECORDS, b"after"]
    assert [count for count, _ in piece.frames] == [1, 1 + len(RECORDS), 2 + len(RECORDS)]
    for position in range(len(framed)):
        broken = bytearray(begin + framed)
        broken[len(begin) + position] ^= 1
        path.write_bytes(broken)
        assert read_all(path) == ([b"before"], len(begin), "damaged"), position


@pytest.mark.parametrize(
    "body",
    [
        b"\1\0\0\0",
        b"\0\0\0\0x",
        b"\2\0\0\0" + b"\1\0\0\0" + b"x",
        b"\2\0\0\0" + b"\0\0\0\0" + b"xy",
        b"\2\0\0\0" + b"\xff\xff\xff\xff" + b"xy",
        b"\xff\xff\xff\x3f" + b"xy",
    ],
)
def test_frame_whose_records_do_not_fill_it_is_damage(path: Path, body: bytes) -> None:
    checksum = zlib.crc32(body)
    path.write_bytes(MAGIC + ID + struct.pack("<III", len(body), len(body) ^ 0xFFFF_FFFF, checksum) + body)
    assert read_all(path) == ([], HEADER_BYTES, "damaged")


def test_format_of_version_2_is_pinned(path: Path) -> None:
    """Files of this version must be read by every later one. A change of the format needs a new version."""
    assert (segments.VERSION, MAGIC) == (2, b"TGSPOOL2")
    one = bytes.fromhex("05000000 faffffff 638ff7c1 01000000 61")
    two = bytes.fromhex("0b000000 f4ffffff 00000000 02000000 01000000 616263")
    two = two[:8] + zlib.crc32(two[12:]).to_bytes(4, "little") + two[12:]
    assert (frame(b"a"), frame(b"a", b"bc")) == (one, two)
    path.write_bytes(MAGIC + ID + one + two)
    assert read_all(path) == ([b"a", b"a", b"bc"], HEADER_BYTES + len(one + two), "clean")


# --- Cut ---------------------------------------------------------------------------------------------------


def test_cut_at_every_byte_leaves_the_whole_records_and_a_torn_end(path: Path) -> None:
    data = segment(path)
    slots = starts(RECORDS)
    for length in range(HEADER_BYTES, len(data)):
        path.write_bytes(data[:length])
        whole = sum(1 for place in slots[1:] if place <= length)
        state = "clean" if length in slots else "torn"
        assert read_all(path) == (RECORDS[:whole], slots[whole], state), length


def test_header_cut_at_every_byte_has_no_id(path: Path) -> None:
    data = segment(path)
    for length in range(HEADER_BYTES):
        path.write_bytes(data[:length])
        assert segments.read_id(path) is None


# --- Flipped -----------------------------------------------------------------------------------------------


def test_every_flipped_bit_is_damage_and_records_before_it_are_read(path: Path) -> None:
    data = segment(path)
    slots = starts(RECORDS)
    for position in range(HEADER_BYTES, len(data)):
        before = sum(1 for place in slots[1:] if place <= position)
        for bit in range(8):
            broken = bytearray(data)
            broken[position] ^= 1 << bit
            path.write_bytes(broken)
            assert read_all(path) == (RECORDS[:before], slots[before], "damaged"), (position, bit)


def test_wrong_magic_has_no_id(path: Path) -> None:
    data = segment(path)
    for position in range(len(MAGIC)):
        broken = bytearray(data)
        broken[position] ^= 0xFF
        path.write_bytes(broken)
        assert segments.read_id(path) is None


@pytest.mark.parametrize("hole", [b"\0" * 4096, b"\xff" * 4096, b"\0" * FRAME_BYTES])
def test_hole_that_a_power_cut_leaves_is_damage(path: Path, hole: bytes) -> None:
    data = segment(path)
    path.write_bytes(data + hole)
    assert read_all(path) == (RECORDS, len(data), "damaged")


@settings(max_examples=150)
@given(records=st.lists(st.binary(min_size=1, max_size=60), max_size=8), data=st.data())
def test_bytes_changed_in_any_way_never_give_another_record(
    records: list[bytes], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("any") / "a.seg"
    whole = segment(path, records)
    start = data.draw(st.integers(HEADER_BYTES, len(whole)))
    end = data.draw(st.integers(start, len(whole)))
    path.write_bytes(whole[:start] + data.draw(st.binary(max_size=80)) + whole[end:])
    found, offset, _ = read_all(path)
    kept = sum(1 for place in starts(records)[1:] if place <= start)
    assert found[:kept] == records[:kept], "records before the change are kept"
    assert all(record in records for record in found)
    assert offset >= starts(records)[kept]


# --- Who holds it ------------------------------------------------------------------------------------------


@pytest.fixture
def held(path: Path) -> Iterator[int]:
    segment(path)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield descriptor
    os.close(descriptor)


def test_segment_is_in_use_while_its_writer_holds_it(path: Path, held: int) -> None:
    assert segments.is_alive(path)
    fcntl.flock(held, fcntl.LOCK_UN)
    assert not segments.is_alive(path)


def test_checking_does_not_take_the_lock(path: Path, held: int) -> None:
    fcntl.flock(held, fcntl.LOCK_UN)
    assert not segments.is_alive(path)
    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert segments.is_alive(path)
    assert segments.is_alive(path)


def test_killed_writer_releases_its_segment(path: Path) -> None:
    segment(path)
    ready, report = os.pipe()
    pid = os.fork()
    if pid == 0:
        descriptor = os.open(path, os.O_WRONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.write(report, b".")
        signal.pause()
        os._exit(0)
    try:
        assert os.read(ready, 1) == b"."
        assert segments.is_alive(path)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(ready)
        os.close(report)
    assert not segments.is_alive(path)


# --- What waits --------------------------------------------------------------------------------------------


def test_backlog_is_the_bytes_after_the_marks_and_their_age(tmp_path: Path) -> None:
    files: dict[Path, bytes] = {}
    for name, identity, at in (
        ("a", b"a", 50),
        ("b", b"b", 40),
        ("b copy", b"b", 30),
        ("c", b"c", 20),
        ("d", b"d", 10),
    ):
        segment(tmp_path / name)
        os.utime(tmp_path / name, (at, at))
        files[tmp_path / name] = identity
    files[tmp_path / "gone"] = b"e"
    size = (tmp_path / "a").stat().st_size
    marks = {b"b": Mark(size - 7), b"c": Mark(size), b"d": Mark(size - 9, done=True)}
    assert segments.backlog(files, marks) == segments.Backlog(size - HEADER_BYTES + 7 + 9, 30)
    assert segments.backlog({}, {}) == segments.Backlog(0, None)
