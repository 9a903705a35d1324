"""The writing end: rotation, disks that take a part or nothing, and records that are neither lost nor doubled."""

import asyncio
import errno
import os
import resource
import signal
import subprocess
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from tollgate import log
from tollgate.ledger import segments
from tollgate.ledger.segments import FRAME_BYTES, HEADER_BYTES, SUFFIX, frame
from tollgate.ledger.spool import MAX_UNSYNCED, MAX_WRITTEN_BYTES, Spool, _beginning

Lines = list[MutableMapping[str, Any]]
NOW = 1_800_000_000.0


class Disk:
    """A folder with a clock, and a spool that writes to it."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self.now = NOW
        usual = {"segment_bytes": 1 << 20, "segment_seconds": 10.0, "max_held_bytes": 1 << 20}
        self.spool = Spool(folder, now=lambda: self.now, **{**usual, **settings})

    def put(self, *records: bytes) -> None:
        """Take records and write them, as one tick of the loop does."""
        for record in records:
            self.spool.append(record)
        self.spool.write()

    def paths(self, suffix: str = SUFFIX) -> list[Path]:
        return sorted(self.folder.glob(f"*{suffix}"))

    def read(self) -> list[list[bytes]]:
        """What the collector would find, by segment."""
        return [_records(path) for path in self.paths()]

    def flat(self) -> list[bytes]:
        return [record for records in self.read() for record in records]


def _records(path: Path) -> list[bytes]:
    assert segments.read_id(path) is not None, path
    found: list[bytes] = []
    offset = HEADER_BYTES
    while (piece := segments.read_piece(path, offset, MAX_WRITTEN_BYTES)).payloads:
        found += piece.payloads
        offset = piece.offset
    return found


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


@pytest.fixture(autouse=True)
def lines() -> Iterator[Lines]:
    """What was logged so far. Nothing is printed: the limits below hold for the tester's own files too."""
    with capture_logs() as captured:
        yield captured


def messages_of(lines: Lines) -> list[str]:
    return [f"{line['log_level']}: {line['event']}" for line in lines]


# --- Writing -----------------------------------------------------------------------------------------------


def test_records_are_in_the_file_when_write_returns(disk: Disk) -> None:
    disk.put(b"a", b"b")
    assert disk.read() == [[b"a", b"b"]]
    disk.put(b"c")
    assert disk.read() == [[b"a", b"b", b"c"]]
    assert (disk.spool.held_bytes, disk.spool.waiting, disk.spool.failing) == (0, False, False)


def test_records_that_no_turn_has_written_are_written_by_the_tick_and_at_the_end(disk: Disk) -> None:
    disk.spool.extend([b"a", b"bc"])
    assert disk.spool.held_bytes == 3
    disk.spool.tick()
    assert (disk.flat(), disk.spool.held_bytes) == ([b"a", b"bc"], 0)
    disk.spool.append(b"d")
    disk.spool.close()
    assert (disk.flat(), disk.spool.held_bytes) == ([b"a", b"bc", b"d"], 0)


def test_nothing_is_written_before_write_is_called_and_no_file_made_for_nothing(disk: Disk) -> None:
    disk.spool.write()
    disk.spool.append(b"a")
    assert disk.paths() == []
    assert disk.spool.waiting
    assert disk.spool.held_bytes == 1


def test_segment_is_alive_until_it_is_left_and_only_we_may_read_it(disk: Disk) -> None:
    disk.put(b"a")
    (path,) = disk.paths()
    assert segments.is_alive(path)
    assert path.stat().st_mode & 0o777 == 0o600
    disk.spool.close()
    assert not segments.is_alive(path)


def test_names_sort_by_time_and_ids_differ(disk: Disk) -> None:
    for _ in range(3):
        disk.put(b"a")
        disk.spool.close_segment()
        disk.now += 1
    paths = disk.paths()
    assert [int(path.name.partition("-")[0]) for path in paths] == [int(NOW + n) * 1000 for n in range(3)]
    assert len({segments.read_id(path) for path in paths}) == 3
    disk.spool.close()


# --- Rotation ----------------------------------------------------------------------------------------------


def test_segment_is_left_before_it_grows_over_its_size(tmp_path: Path) -> None:
    disk = Disk(tmp_path, segment_bytes=HEADER_BYTES + 3 * (FRAME_BYTES + 10))
    for number in range(8):
        disk.put(b"%010d" % number)
        disk.now += 0.001
    assert [len(records) for records in disk.read()] == [3, 3, 2]
    assert all(path.stat().st_size <= HEADER_BYTES + 3 * (FRAME_BYTES + 10) for path in disk.paths())


def test_turn_larger_than_a_segment_is_one_of_its_own(tmp_path: Path) -> None:
    disk = Disk(tmp_path, segment_bytes=100)
    disk.put(*[b"x" * 50] * 10)
    disk.now += 1
    disk.put(b"y")
    assert [len(records) for records in disk.read()] == [10, 1]


def test_segment_is_left_when_it_is_old(disk: Disk) -> None:
    disk.put(b"a")
    disk.now += 9.9
    disk.spool.tick()
    disk.put(b"b")
    disk.now += 0.1
    disk.spool.tick()
    disk.put(b"c")
    assert disk.read() == [[b"a", b"b"], [b"c"]]


def test_left_segment_is_let_go_when_it_is_synced(disk: Disk) -> None:
    disk.put(b"a")
    (path,) = disk.paths()
    disk.spool.close_segment()
    assert segments.is_alive(path), "a power cut could still lose it: it must not be deleted"
    asyncio.run(disk.spool.sync())
    assert not segments.is_alive(path)


def test_synced_segment_is_let_go_at_once(disk: Disk) -> None:
    disk.put(b"a")
    asyncio.run(disk.spool.sync())
    disk.spool.close_segment()
    assert not segments.is_alive(disk.paths()[0])


def test_segments_that_wait_for_a_sync_are_bounded(disk: Disk) -> None:
    for _ in range(MAX_UNSYNCED + 5):
        disk.put(b"a")
        disk.spool.close_segment()
    assert sum(map(segments.is_alive, disk.paths())) == MAX_UNSYNCED
    disk.spool.close()
    assert not any(map(segments.is_alive, disk.paths()))


def test_segment_that_ends_while_it_is_synced_is_fine(disk: Disk) -> None:
    async def test() -> None:
        disk.put(b"a")
        syncing = asyncio.ensure_future(disk.spool.sync())
        await asyncio.sleep(0)
        disk.spool.close_segment()
        disk.put(b"b")
        await syncing
        await disk.spool.sync()

    asyncio.run(test())
    disk.spool.close()
    assert sorted(disk.flat()) == [b"a", b"b"]


def test_each_sync_forces_what_was_written_since_and_names_only_of_new_segments(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut takes what was not synced: a second sync of one segment counts as much as the first."""
    forced: list[tuple[str, int]] = []
    real = {name: getattr(os, name) for name in ("fdatasync", "fsync")}

    def watched(name: str) -> Callable[[int], None]:
        def sync(descriptor: int) -> None:
            forced.append((name, os.fstat(descriptor).st_ino))
            real[name](descriptor)

        return sync

    for name in real:
        monkeypatch.setattr(os, name, watched(name))

    def synced() -> list[tuple[str, int]]:
        forced.clear()
        asyncio.run(disk.spool.sync())
        return list(forced)

    disk.put(b"a")
    file, folder = ("fdatasync", disk.paths()[0].stat().st_ino), ("fsync", disk.folder.stat().st_ino)
    assert synced() == [file, folder]
    assert synced() == [], "nothing was written since"
    disk.put(b"b")
    assert synced() == [file]
    disk.put(b"c")
    assert synced() == [file]
    disk.put(b"d")
    disk.spool.close_segment()
    disk.now += 1
    disk.put(b"e")
    new = ("fdatasync", disk.paths()[1].stat().st_ino)
    assert synced() == [file, new, folder]
    disk.put(b"f")
    assert synced() == [new]
    disk.put(b"g")
    disk.spool.close_segment()
    assert synced() == [new], "a segment that was left with records that are not synced"


def test_failing_sync_is_reported_and_the_next_records_go_elsewhere(tmp_path: Path, lines: Lines) -> None:
    reader, writer = os.pipe()  # cannot be synced
    disk = Disk(tmp_path, opener=lambda _: os.dup(writer))
    try:
        disk.spool._descriptor = os.dup(writer)
        disk.spool._size, disk.spool._written = HEADER_BYTES, True
        asyncio.run(disk.spool.sync())
    finally:
        os.close(reader)
        os.close(writer)
    assert messages_of(lines) == ["error: records cannot be forced to the disk: a power cut would take them"]
    assert disk.spool._descriptor == -1


def test_deleted_segment_is_reported_and_the_next_records_go_elsewhere(disk: Disk, lines: Lines) -> None:
    disk.put(b"a")
    disk.paths()[0].unlink()
    disk.spool.tick()
    disk.put(b"b")
    assert disk.read() == [[b"b"]]
    assert messages_of(lines) == [
        "error: a spool file was deleted while records were written to it: those are lost"
    ]


# --- Disks that take nothing -------------------------------------------------------------------------------


class Full:
    """A disk that is full while it is set to be: files are made, and take no byte."""

    def __init__(self) -> None:
        self.full = True

    def __call__(self, path: Path) -> int:
        if self.full:
            path.touch()
            return os.open("/dev/full", os.O_WRONLY)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND)


def test_refused_records_are_held_reported_once_and_written_when_the_disk_is_back(
    tmp_path: Path, lines: Lines
) -> None:
    opener = Full()
    disk = Disk(tmp_path, opener=opener, max_held_bytes=3 * (FRAME_BYTES + 1))
    disk.put(b"a")
    disk.put(b"b")
    assert (disk.spool.failing, disk.spool.is_full) == (True, False)
    assert disk.spool.held_bytes == 2 * (FRAME_BYTES + 1)
    disk.put(b"c")
    assert disk.spool.is_full
    disk.spool.tick()
    disk.spool.tick()
    assert list(tmp_path.iterdir()) == [], "no litter"
    opener.full = False
    disk.spool.tick()
    assert (disk.spool.failing, disk.spool.is_full, disk.spool.held_bytes) == (False, False, 0)
    disk.put(b"d")
    assert disk.read() == [[b"a", b"b", b"c", b"d"]]
    assert messages_of(lines) == [
        "error: records cannot be written and are held in memory",
        "error: no more records can be held: calls are refused",
        "warning: records are written again",
    ]


def test_refusing_disk_is_tried_once_a_second_and_not_for_every_answer(tmp_path: Path) -> None:
    tried: list[Path] = []

    def opener(path: Path) -> int:
        tried.append(path)
        raise OSError(errno.ENOSPC, "No space left on device")

    disk = Disk(tmp_path, opener=opener)
    for number in range(50):
        disk.put(b"%d" % number)
    assert len(tried) == 1
    disk.spool.tick()
    assert len(tried) == 2


def test_log_on_the_same_full_disk_causes_no_failure(tmp_path: Path) -> None:
    opener = Full()
    disk = Disk(tmp_path, opener=opener, max_held_bytes=1)
    with Path("/dev/full").open("w") as nowhere:
        before = structlog.get_config()
        log.configure("info", "json", nowhere)
        try:
            disk.put(b"a")
        finally:
            structlog.configure(**before)
            with suppress(OSError):
                nowhere.close()
    assert disk.spool.is_full
    opener.full = False
    disk.spool.tick()
    assert disk.read() == [[b"a"]]


def test_folder_that_is_gone_is_a_refusing_disk(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "spool")
    disk.put(b"a")
    assert disk.spool.failing
    disk.folder.mkdir()
    disk.spool.tick()
    assert disk.read() == [[b"a"]]


def test_last_records_that_cannot_be_written_are_reported_as_lost(tmp_path: Path, lines: Lines) -> None:
    disk = Disk(tmp_path, opener=Full())
    disk.put(b"a", b"b")
    disk.spool.close()
    assert messages_of(lines)[-1] == "error: records are lost: the disk takes none"
    assert lines[-1]["records"] == 2


@pytest.mark.parametrize(
    ("sizes", "together"),
    [
        ((1, 1), 2),
        ((MAX_WRITTEN_BYTES - 1, 1, 1), 2),
        ((MAX_WRITTEN_BYTES, 1), 1),
        ((MAX_WRITTEN_BYTES + 1, 1), 1),
    ],
)
def test_bytes_of_one_write_are_bounded_and_at_least_one_frame(sizes: tuple[int, ...], together: int) -> None:
    assert len(_beginning([bytes(size) for size in sizes])) == together


def test_long_outage_is_made_up_for_in_segments_of_ordinary_size(tmp_path: Path) -> None:
    opener = Full()
    disk = Disk(tmp_path, opener=opener, segment_bytes=2 * MAX_WRITTEN_BYTES, max_held_bytes=1 << 30)
    records = [b"%06d" % number * 1_000 for number in range(1_000)]
    disk.put(*records)
    opener.full = False
    disk.spool.tick()
    assert disk.spool.held_bytes == 0
    assert sorted(disk.flat()) == records
    assert len(disk.paths()) > 2
    assert all(path.stat().st_size <= 2 * MAX_WRITTEN_BYTES for path in disk.paths())


# --- Disks that take a part --------------------------------------------------------------------------------


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """The kernel takes no byte of a file beyond this size: a short write first, then an error."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


RECORD = FRAME_BYTES + 10
THREE = [b"%010d" % number for number in range(3)]


@pytest.mark.parametrize("room", range(0, HEADER_BYTES + len(frame(*THREE)) + 5, 5))
def test_short_write_of_a_turn_loses_and_doubles_nothing(tmp_path: Path, room: int) -> None:
    disk = Disk(tmp_path)
    with files_of_at_most(room):
        disk.put(*THREE)
        early = disk.flat()
    whole = room >= HEADER_BYTES + len(frame(*THREE))
    assert early == (THREE if whole else []), "all records of a tick or none: no call was answered yet"
    assert disk.spool.held_bytes == (0 if whole else len(frame(*THREE)))
    disk.spool.tick()
    disk.put(b"more")
    assert not disk.spool.failing
    assert sorted(disk.flat()) == [*THREE, b"more"]


@pytest.mark.parametrize("room", range(0, HEADER_BYTES + 3 * RECORD + 1, 5))
def test_short_write_anywhere_loses_and_doubles_nothing(tmp_path: Path, room: int) -> None:
    opener = Full()
    disk = Disk(tmp_path, opener=opener)
    records = THREE
    for record in records:
        disk.put(record)
    opener.full = False
    with files_of_at_most(room):
        # Three turns at once.
        disk.spool.tick()
        # The collector may read at any time, also between the short write and its repair.
        early = disk.flat()
    assert early == records[: max(0, room - HEADER_BYTES) // RECORD]
    assert disk.spool.held_bytes == (3 - len(early)) * RECORD
    disk.spool.tick()
    disk.put(b"more")
    assert not disk.spool.failing
    assert sorted(disk.flat()) == [*records, b"more"]


def test_segment_with_a_torn_record_is_never_written_to_again(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    with files_of_at_most(HEADER_BYTES + RECORD + 5):
        disk.put(b"0123456789")
        disk.put(b"abcdefghij")
    (torn,) = disk.paths()
    size = torn.stat().st_size
    disk.now += 1
    disk.spool.tick()
    assert torn.stat().st_size == size == HEADER_BYTES + RECORD + 5
    assert disk.read() == [[b"0123456789"], [b"abcdefghij"]]
    disk.spool.close()
    assert not segments.is_alive(torn)


def test_what_a_short_write_took_waits_for_its_sync(tmp_path: Path) -> None:
    opener = Full()
    disk = Disk(tmp_path, opener=opener)
    for record in THREE:
        disk.put(record)
    opener.full = False
    with files_of_at_most(HEADER_BYTES + RECORD + 5):
        disk.spool.tick()
    (torn,) = disk.paths()
    assert disk.read() == [THREE[:1]]
    assert segments.is_alive(torn)
    asyncio.run(disk.spool.sync())
    assert not segments.is_alive(torn)


def test_segment_that_took_nothing_is_kept_for_the_next_try_and_does_not_become_many(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    with files_of_at_most(HEADER_BYTES):
        disk.put(b"a")
        for _ in range(5):
            disk.now += 10.0
            disk.spool.tick()
        assert len(disk.paths()) == 1
    disk.spool.tick()
    assert disk.read() == [[b"a"]]


def test_header_that_is_not_taken_whole_leaves_no_file(tmp_path: Path) -> None:
    opened: list[int] = []

    def opener(path: Path) -> int:
        opened.append(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND))
        return opened[-1]

    disk = Disk(tmp_path, opener=opener)
    with files_of_at_most(HEADER_BYTES - 1):
        disk.put(b"a")
        assert list(tmp_path.iterdir()) == []
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(opened[0])
    disk.spool.tick()
    assert disk.read() == [[b"a"]]


def test_records_written_to_a_full_disk_are_kept_until_it_has_room(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("no right to mount a small disk; the limit of file sizes is tested above")
    try:
        disk = Disk(folder, max_held_bytes=20_000)
        records = [b"%04d" % number * 250 for number in range(90)]
        for record in records:
            disk.put(record)
            if disk.spool.is_full:
                break
        taken = disk.flat()
        assert disk.spool.failing
        assert disk.spool.is_full
        assert 50_000 < sum(map(len, taken)) < 65_536
        assert 20_000 <= disk.spool.held_bytes <= 22_000
        asyncio.run(disk.spool.sync())
        for path in disk.paths():
            assert not segments.is_alive(path)
            path.unlink()  # as the collector does
        disk.spool.tick()
        disk.spool.close()
        assert disk.spool.held_bytes == 0
        answered = len(taken) + len(disk.flat())
        assert answered < len(records), "the others would have been refused"
        assert taken + disk.flat() == records[:answered]
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(st.integers(1, 400), min_size=1, max_size=6), st.none() | st.integers(0, 1_500)),
        min_size=1,
        max_size=12,
    )
)
def test_whatever_the_disk_takes_every_record_is_there_once_in_the_end(
    tmp_path_factory: pytest.TempPathFactory, turns: list[tuple[list[int], int | None]]
) -> None:
    disk = Disk(tmp_path_factory.mktemp("spool"), segment_bytes=1_000, max_held_bytes=1 << 30)
    records: list[bytes] = []
    for sizes, room in turns:
        fresh = [b"%08d" % (len(records) + number) + b"." * size for number, size in enumerate(sizes)]
        records += fresh
        with files_of_at_most(room) if room is not None else _any_size():
            disk.put(*fresh)
            if len(records) % 3 == 0:
                disk.spool.tick()
        disk.now += 0.5
    disk.spool.tick()
    assert disk.spool.held_bytes == 0
    assert sorted(disk.flat()) == records
    disk.spool.close()


@contextmanager
def _any_size() -> Iterator[None]:
    yield
