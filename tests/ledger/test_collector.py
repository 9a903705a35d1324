"""From the spool to the ledger: each record once, whatever files there are."""

import os
import shutil

import pytest
from structlog.testing import capture_logs
from tests.ledger.harness import FREE, NOON, Harness, entry, identity, segment_bytes
from tests.store.migrated import make_ledger

from tollgate.core.entries import Entry, encode
from tollgate.ledger import collector as collecting
from tollgate.ledger.collector import SETTLED_SECONDS
from tollgate.ledger.segments import DAMAGED_SUFFIX, HEADER_BYTES, HIDDEN_SUFFIX, MAGIC, frame
from tollgate.ledger.spool import Spool
from tollgate.store.ledger import LedgerBehind

A, B, C, D = (entry(name) for name in "abcd")
BATCH = entry("batch", "ok", "node_error", "method_not_allowed")


def writer(harness: Harness) -> Spool:
    """The spool of a running worker."""
    return Spool(
        harness.spool, segment_bytes=1 << 20, segment_seconds=10.0, max_held_bytes=1 << 20, now=lambda: harness.now
    )


def size(*entries: Entry) -> int:
    return sum(len(frame(encode(each))) for each in entries)


# --- Without damage ----------------------------------------------------------------------------------------


def test_segments_of_ended_workers_are_committed_and_deleted(harness: Harness) -> None:
    harness.segment(1, A, BATCH)
    harness.segment(2, B)
    assert harness.collect() == 5
    harness.check(A, BATCH, B)
    assert harness.names() == ["a", "batch", "batch", "batch", "b"], "in the order of files and records"
    assert harness.marks() == {1: (size(A, BATCH), True), 2: (size(B), True)}
    assert harness.files() == []


def test_segment_of_a_running_worker_is_read_on_and_kept(harness: Harness) -> None:
    spool, collector = writer(harness), harness.collector()
    seen = []
    for each in (A, B, C):
        spool.append(encode(each))
        spool.write()
        harness.collect(collector)
        seen.append(harness.names())
    assert seen == [["a"], ["a", "b"], ["a", "b", "c"]]
    assert len(harness.files()) == 1
    spool.close()
    harness.collect(collector)
    assert harness.files() == []
    harness.check(A, B, C)


def test_empty_segment_and_empty_folder_leave_no_row(harness: Harness) -> None:
    assert harness.collector().step() is None
    harness.segment(1)
    assert harness.collect() == 0
    assert harness.files() == []
    assert harness.rows() == []


def test_nothing_new_writes_nothing(harness: Harness) -> None:
    spool, collector = writer(harness), harness.collector()
    spool.append(encode(A))
    spool.write()
    assert collector.step() is not None
    before = harness.sql("SELECT * FROM segments")
    harness.now += 1
    assert collector.step() is None
    assert harness.sql("SELECT * FROM segments") == before
    spool.close()


def test_new_collector_goes_on_where_the_old_one_was(harness: Harness) -> None:
    spool = writer(harness)
    for each in (A, B):
        spool.append(encode(each))
        spool.write()
        harness.collect()
    harness.check(A, B)
    spool.close()


def test_large_backlog_is_committed_in_several_batches(harness: Harness) -> None:
    entries = [entry(f"r{number}", "rate_limited") for number in range(collecting.MAX_ENTRIES // 2 + 1)]
    for number in range(1, 4):
        harness.segment(number, *entries)
    collector = harness.collector()
    sizes = []
    while (posting := collector.step()) is not None:
        sizes.append(posting.entries)
    assert [each for each in sizes if each] == [2 * len(entries), len(entries)]
    assert harness.files() == []


def test_commit_ends_with_the_segment_that_fills_it(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "MAX_ENTRIES", 2)
    harness.segment(1, A, B)
    harness.segment(2, C)
    assert harness.collector().step() is not None
    assert harness.names() == ["a", "b"]


def test_costs_follow_the_order_of_commit_over_batches(harness: Harness) -> None:
    for number in range(1, 4):
        harness.segment(number, entry(f"x{number}", "ok", "ok"))
        harness.collect()
    assert harness.rows("cost") == [(0,), (0,), (0,), (1,), (1,), (1,)]
    assert FREE == 3


def test_row_of_many_refusals_counts_as_many(harness: Harness) -> None:
    many = entry("many", "rate_limited", stands_for=312, status=429)
    harness.segment(1, many)
    harness.collect()
    harness.check(many)
    assert harness.sql("SELECT sum(requests) FROM usage_all") == [(312,)]


def test_lag_is_what_is_not_committed(harness: Harness) -> None:
    harness.segment(1, A)
    harness.segment(2, B, C)
    harness.segment(2, B, C, name="copy.seg")
    collector = harness.collector()
    assert collector.lag() == size(A, B, C)
    collector.step()
    assert collector.lag() == 0


# --- Months ------------------------------------------------------------------------------------------------


def test_month_that_is_closed_while_a_batch_is_on_its_way_takes_nothing_of_it(harness: Harness) -> None:
    def close_november(point: str) -> None:
        if point == "read":
            harness.sql("INSERT OR IGNORE INTO closed_months VALUES ('2026-11', ?)", harness.now)

    harness.segment(1, A)
    harness.collect(harness.collector(close_november))
    assert harness.rows("month") == [("2026-12",)]
    assert harness.sql("SELECT month, requests FROM months") == [("2026-12", 1)]


def test_cap_that_is_set_while_the_collector_is_behind_frees_nothing_of_the_backlog(harness: Harness) -> None:
    harness.segment(1, *[entry(f"free{number}") for number in range(FREE)])
    harness.segment(2, entry("before"), entry("capped", cap=0), entry("after"), entry("other", cap=10_000))
    harness.collect()
    assert harness.rows("cost") == [(0,)] * FREE + [(1,), (0,), (2,), (1,)], "charged once no cap is in force"


# --- Torn ends ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [1, 11, 12, 13, 40])
def test_torn_end_of_an_ended_worker_is_cut(harness: Harness, kept: int) -> None:
    harness.put("1.seg", segment_bytes(1, [A, B]) + frame(encode(C))[:kept])
    collector = harness.collector()
    harness.collect(collector)
    harness.check(A, B)
    assert collector.torn_bytes == kept
    assert collector.damaged() == 0
    assert harness.marks() == {1: (size(A, B), True)}
    assert harness.files() == []


def test_torn_end_is_not_counted_again_after_a_crash_between_commit_and_removal(harness: Harness) -> None:
    class Crash(Exception):
        pass

    def crash(point: str) -> None:
        if point == "committed":
            raise Crash

    harness.put("1.seg", segment_bytes(1, [A, B]) + frame(encode(C))[:20])
    collector = harness.collector()
    collector.step()
    assert collector.torn_bytes == 0, "its end is looked at when all before it is committed"
    collector._fault = crash
    with pytest.raises(Crash):
        collector.step()
    assert (collector.torn_bytes, harness.files()) == (20, ["1.seg"])
    again = harness.collector()
    harness.collect(again)
    assert (again.torn_bytes, again.damaged(), harness.files()) == (0, 0, [])
    harness.check(A, B)


def test_unfinished_record_of_a_running_worker_is_waited_for(harness: Harness) -> None:
    spool, collector = writer(harness), harness.collector()
    spool.append(encode(A))
    spool.write()
    framed = frame(encode(B))
    os.write(spool._descriptor, framed[:20])
    harness.now += 100
    harness.collect(collector)
    assert harness.names() == ["a"]
    assert (collector.torn_bytes, len(harness.files())) == (0, 1)
    os.write(spool._descriptor, framed[20:])
    harness.collect(collector)
    assert harness.names() == ["a", "b"]
    spool.close()


def test_file_copied_into_the_spool_is_waited_for(harness: Harness) -> None:
    data = segment_bytes(1, [A, B, C])
    collector = harness.collector()
    for length in (0, 5, HEADER_BYTES, HEADER_BYTES + 5, HEADER_BYTES + size(A) + 30, len(data)):
        path = harness.put("1.seg", data[:length], settled=length == len(data))
        harness.collect(collector)
        assert path.exists() == (length < len(data))
    assert collector.damaged() == collector.torn_bytes == 0
    harness.check(A, B, C)


# --- Copies ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["0.seg", "2.seg"])
@pytest.mark.parametrize("cut", [0, 5, 60, 10_000])
def test_copy_that_was_there_before_counts_nothing_twice(harness: Harness, name: str, cut: int) -> None:
    data = segment_bytes(1, [A, B, C])
    harness.put("1.seg", data)
    harness.put(name, data[: max(HEADER_BYTES, len(data) - cut)])
    harness.collect()
    harness.check(A, B, C)
    assert harness.files() == []


@pytest.mark.parametrize("name", ["0.seg", "z.seg"])
def test_copy_that_is_made_while_the_worker_writes_neither_ends_nor_doubles_it(
    harness: Harness, name: str
) -> None:
    spool, collector = writer(harness), harness.collector()
    spool.append(encode(A))
    spool.write()
    (original,) = harness.spool.glob("*.seg")
    shutil.copy(original, harness.spool / name)
    os.utime(harness.spool / name, (NOON - 100, NOON - 100))
    harness.collect(collector)
    assert harness.names() == ["a"]
    assert original.exists()
    spool.append(encode(B))
    spool.write()
    harness.collect(collector)
    assert harness.names() == ["a", "b"]
    spool.close()
    harness.collect(collector)
    harness.check(A, B)
    assert harness.files() == []


@pytest.mark.parametrize("same", [True, False])
def test_copy_that_comes_after_the_end_is_thrown_away(harness: Harness, same: bool) -> None:
    path = harness.segment(1, A, B)
    data = path.read_bytes()
    collector = harness.collector()
    harness.collect(collector)
    harness.put("9.seg", data)
    harness.collect(collector if same else None)
    harness.check(A, B)
    assert harness.files() == []


def test_copy_that_has_more_than_what_was_collected_is_read_on(harness: Harness) -> None:
    data = segment_bytes(1, [A, B, C])
    harness.put("1.seg", data[: HEADER_BYTES + size(A)])
    harness.collect()
    assert harness.marks() == {1: (size(A), True)}
    harness.put("2.seg", data)
    harness.collect()
    harness.check(A, B, C)
    assert harness.marks() == {1: (size(A, B, C), True)}
    assert harness.files() == []


# --- Damage ------------------------------------------------------------------------------------------------


def broken(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def test_damage_in_the_middle_keeps_records_before_it_and_quarantines_the_rest(harness: Harness) -> None:
    data = broken(segment_bytes(1, [A, B, C]), HEADER_BYTES + size(A) + 30)
    harness.put("1.seg", data)
    harness.segment(2, D)
    collector = harness.collector()
    harness.collect(collector)
    harness.check(A, D)
    assert harness.files() == [f"1{DAMAGED_SUFFIX}"]
    assert (harness.spool / f"1{DAMAGED_SUFFIX}").read_bytes() == data
    assert collector.damaged() == 1
    assert harness.marks()[1] == (size(A), True)


def test_every_byte_flipped_never_makes_a_row_that_was_not_recorded(harness: Harness) -> None:
    data = segment_bytes(1, [A, B])
    for at in range(0, len(data), 3):
        make_ledger(harness.folder)
        harness.put("1.seg", broken(data, at))
        harness.collect()
        harness.close()
        whole = ["a"] if at >= HEADER_BYTES + size(A) else []
        if 8 <= at < HEADER_BYTES:  # another id: a segment like any other
            whole = ["a", "b"]
        assert harness.names() == whole, at
        for suffix in ("-wal", "-shm"):
            (harness.folder / f"ledger.db{suffix}").unlink(missing_ok=True)
        for path in harness.spool.iterdir():
            path.unlink()


def test_intact_copy_of_a_damaged_segment_replaces_it(harness: Harness) -> None:
    data = segment_bytes(1, [A, B, C])
    harness.put("1.seg", broken(data, HEADER_BYTES + size(A) + 30))
    harness.put("2.seg", data)
    harness.collect()
    harness.check(A, B, C)


def test_repaired_segment_is_read_on(harness: Harness) -> None:
    data = segment_bytes(1, [A, B, C])
    harness.put("1.seg", broken(data, HEADER_BYTES + size(A) + 30))
    harness.collect()
    harness.put("1.seg", data)
    harness.collect()
    harness.check(A, B, C)
    assert harness.files() == [f"1{DAMAGED_SUFFIX}"]


def test_damaged_files_of_one_name_are_all_kept(harness: Harness) -> None:
    for _ in range(3):
        harness.put("1.seg", b"no segment at all, whatever it is")
        harness.collect()
    assert harness.files() == [f"1.2{DAMAGED_SUFFIX}", f"1.3{DAMAGED_SUFFIX}", f"1{DAMAGED_SUFFIX}"]


def test_frame_with_something_that_is_no_record_is_damage_and_frames_before_it_count(harness: Harness) -> None:
    data = segment_bytes(1, [A]) + frame(encode(B), encode(C)) + frame(encode(D), b"\xc1", encode(A))
    harness.put("1.seg", data)
    harness.collect()
    harness.check(A, B, C)
    assert harness.files() == [f"1{DAMAGED_SUFFIX}"]


def test_segment_of_another_version_is_quarantined_with_the_reason(harness: Harness) -> None:
    data = segment_bytes(1, [A])
    harness.put("1.seg", data.replace(MAGIC, b"TGSPOOL9", 1))
    with capture_logs() as lines:
        harness.collect()
    assert [line["why"] for line in lines] == ["it does not begin with the header TGSPOOL2"]
    assert harness.files() == [f"1{DAMAGED_SUFFIX}"]


def test_record_that_is_no_entry_is_damage_and_those_before_it_count(harness: Harness) -> None:
    harness.put("1.seg", segment_bytes(1, [A, B]) + frame(b"\xc1 not MessagePack") + frame(encode(C)))
    harness.collect()
    harness.check(A, B)
    assert harness.marks() == {1: (size(A, B), True)}
    assert harness.files() == [f"1{DAMAGED_SUFFIX}"]


def test_damaged_segment_of_a_running_worker_is_left_until_the_worker_ends(harness: Harness) -> None:
    spool, collector = writer(harness), harness.collector()
    spool.append(encode(A))
    spool.write()
    (path,) = harness.spool.glob("*.seg")
    os.write(spool._descriptor, b"\0" * 64)
    with capture_logs() as lines:
        harness.collect(collector)
        harness.collect(collector)
    assert [line["event"] for line in lines] == ["a segment is damaged while it is written"], "logged once"
    assert path.exists()
    assert collector.damaged() == 0
    spool.close()
    harness.collect(collector)
    assert not path.exists()
    assert collector.damaged() == 1
    harness.check(A)


def test_cut_header_is_quarantined_when_it_has_no_writer(harness: Harness) -> None:
    harness.put("1.seg", segment_bytes(1, [])[:-1], settled=False)
    collector = harness.collector()
    harness.collect(collector)
    assert harness.files() == ["1.seg"]
    harness.now += SETTLED_SECONDS
    harness.collect(collector)
    assert harness.files() == [f"1{DAMAGED_SUFFIX}"]


# --- Leftovers ---------------------------------------------------------------------------------------------


def test_file_without_a_header_is_deleted_when_its_writer_has_ended(harness: Harness) -> None:
    harness.put(f"old{HIDDEN_SUFFIX}", b"TGSPOOL2")
    harness.put(f"young{HIDDEN_SUFFIX}", b"", settled=False)
    collector = harness.collector()
    harness.collect(collector)
    collector.tidy()
    assert harness.files() == [f"young{HIDDEN_SUFFIX}"]


def test_file_removed_meanwhile_causes_no_failure(harness: Harness) -> None:
    paths = [harness.segment(number, entry(f"r{number}")) for number in (1, 2, 3)]
    collector = harness.collector()
    collector._segments()
    paths[1].unlink()
    harness.collect(collector)
    assert harness.names() == ["r1", "r3"]


def test_file_removed_between_commit_and_removal_causes_no_failure(harness: Harness) -> None:
    path = harness.segment(1, A)

    def take_away(point: str) -> None:
        if point == "committed" and harness.marks()[1] == (size(A), True):
            path.unlink(missing_ok=True)

    harness.collect(harness.collector(take_away))
    harness.check(A)


@pytest.mark.parametrize("is_damaged", [False, True])
def test_other_segment_under_the_name_of_one_that_is_gone_is_read(harness: Harness, is_damaged: bool) -> None:
    path = harness.put("1.seg", segment_bytes(1, [A]) + (b"\0" * 64 if is_damaged else b""))
    collector = harness.collector()
    while path.exists():
        collector.step()
    harness.segment(2, B, name=path.name)
    harness.collect(collector)
    harness.check(A, B)


def test_file_under_the_name_of_a_workers_is_waited_for_like_any_other(harness: Harness) -> None:
    spool, collector = writer(harness), harness.collector()
    spool.append(encode(A))
    spool.write()
    (path,) = harness.spool.glob("*.seg")
    collector.step()
    spool.close()
    while path.exists():
        collector.step()
    harness.put(path.name, segment_bytes(2, [B]) + frame(encode(C))[:20], settled=False)
    harness.collect(collector)
    assert (harness.names(), path.exists(), collector.torn_bytes) == (["a", "b"], True, 0)


def test_memory_of_removed_segments_is_freed(harness: Harness) -> None:
    collector = harness.collector()
    for number in range(1, 20):
        harness.segment(number, entry(f"r{number}"))
        harness.collect(collector)
    collector._segments()
    assert (collector._marks, collector._ids) == ({}, {})
    assert len(harness.marks()) == 19


def test_writers_and_what_is_left_are_seen(harness: Harness) -> None:
    collector = harness.collector()
    assert (collector.has_writers(), collector.has_segments()) == (False, False)
    harness.segment(1, A)
    assert (collector.has_writers(), collector.has_segments()) == (False, True)
    spool = writer(harness)
    spool.append(encode(B))
    spool.write()
    assert collector.has_writers()
    spool.close()
    assert not collector.has_writers()


def test_fault_points_are_between_all_steps(harness: Harness) -> None:
    harness.segment(1, A)
    harness.put("2.seg", segment_bytes(2, [B]) + b"\0" * 64)
    points: list[str] = []
    harness.collect(harness.collector(points.append))
    assert points == ["read", "committed", "read", "committed", "removed", "aside", "read", "committed"]


# --- Two at once -------------------------------------------------------------------------------------------


def test_two_collectors_that_read_the_same_cannot_both_commit_it(harness: Harness) -> None:
    other = harness.collector()

    def meanwhile(point: str) -> None:
        if point == "read" and harness.names() == []:
            other.step()

    harness.segment(1, A, B)
    with pytest.raises(LedgerBehind):
        harness.collector(meanwhile).step()
    harness.collect()
    harness.check(A, B)


def test_collector_overtaken_by_another_continues_from_the_committed_offset(harness: Harness) -> None:
    spool, slow = writer(harness), harness.collector()
    spool.append(encode(A))
    spool.write()
    slow.step()
    spool.append(encode(B))
    spool.write()
    harness.collect()
    with pytest.raises(LedgerBehind):
        slow.step()
    spool.close()
    harness.age()
    harness.collect()
    harness.check(A, B)
    assert harness.marks() == {int.from_bytes(next(iter(slow._marks)), "big"): (size(A, B), True)}


def test_request_ids_of_the_harness_are_readable() -> None:
    assert identity(7) == b"\0" * 15 + b"\7"
