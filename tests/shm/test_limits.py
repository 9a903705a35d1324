"""Limits that several processes keep together: real forks, synthetic time."""

import fcntl
import hashlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tollgate.core.limits import Limit, Taken
from tollgate.core.limits import take as limit_take
from tollgate.shm.limits import WAYS, SharedMeters

NOW = 1_000.0
WORKERS = 4


def take(meters: SharedMeters, key: str, limit: Limit, now: float, cost: int = 1) -> Taken:
    [taken] = meters.take([(key, limit)], now, cost)
    return taken


@pytest.fixture
def meters(tmp_path: Path) -> SharedMeters:
    return SharedMeters(1_024, WORKERS, tmp_path / "limits.lock")


def fork(work: Callable[[], int]) -> tuple[int, int]:
    """Run `work` in a child; return its pid, and a pipe from which its number can be read."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return pid, reader
    try:
        os.write(writer, work().to_bytes(8, "little"))
    finally:
        os._exit(0)


def in_processes(works: list[Callable[[], int]]) -> list[int]:
    """Run all at the same time, none before the last is there; return their numbers."""
    gate, opener = os.pipe()

    def behind_the_gate(work: Callable[[], int]) -> Callable[[], int]:
        def wait_and_work() -> int:
            os.close(opener)
            os.read(gate, 1)
            return work()

        return wait_and_work

    children = [fork(behind_the_gate(work)) for work in works]
    os.close(opener)
    numbers = []
    for pid, reader in children:
        with os.fdopen(reader, "rb") as pipe:
            numbers.append(int.from_bytes(pipe.read(), "little"))
        os.waitpid(pid, 0)
    os.close(gate)
    return numbers


def hammer(
    meters: SharedMeters, worker: int, limit: Limit, tries: int, step: float, *, busy: int = 16_000
) -> Callable[[], int]:
    def work() -> int:
        meters.attach(worker)
        admitted = 0
        for number in range(tries):
            admitted += take(meters, "key", limit, NOW + number * step).allowed
            # The other work of a call. Beside it taking is short, but workers do meet in it now and then.
            hashlib.sha256(bytes(busy)).digest()
        return admitted

    return work


# --- One process -------------------------------------------------------------------------------------------


def test_key_gets_its_count_and_no_more(meters: SharedMeters) -> None:
    limit = Limit(3, 60.0)
    assert [take(meters, "key", limit, NOW).allowed for _ in range(5)] == [True, True, True, False, False]
    assert take(meters, "key", limit, NOW + 20.0).allowed
    assert not take(meters, "key", limit, NOW + 20.0).allowed


def test_keys_are_counted_separately(meters: SharedMeters) -> None:
    limit = Limit(1, 60.0)
    assert all(take(meters, f"key {number}", limit, NOW).allowed for number in range(50))
    assert not any(take(meters, f"key {number}", limit, NOW).allowed for number in range(50))


def test_batch_takes_as_many_as_it_has_calls(meters: SharedMeters) -> None:
    limit = Limit(10, 60.0)
    assert take(meters, "key", limit, NOW, 7).remaining == 3
    assert not take(meters, "key", limit, NOW, 4).allowed
    assert take(meters, "key", limit, NOW, 3).allowed


def test_peek_sees_and_takes_nothing(meters: SharedMeters) -> None:
    limit = Limit(1, 60.0)
    assert meters.peek("key", limit, NOW).allowed
    assert meters.peek("key", limit, NOW).allowed
    assert take(meters, "key", limit, NOW).allowed
    assert not meters.peek("key", limit, NOW).allowed


def test_reported_wait_is_long_enough(meters: SharedMeters) -> None:
    limit = Limit(5, 1.0)
    take(meters, "key", limit, NOW, 5)
    refused = take(meters, "key", limit, NOW, 2)
    assert not take(meters, "key", limit, NOW + refused.retry_after * 0.9, 2).allowed
    assert take(meters, "key", limit, NOW + refused.retry_after, 2).allowed


# --- Several processes -------------------------------------------------------------------------------------


def test_one_worker_sees_what_another_took(meters: SharedMeters) -> None:
    limit = Limit(10, 60.0)

    def take_six() -> int:
        meters.attach(1)
        return sum(take(meters, "key", limit, NOW).allowed for _ in range(6))

    assert in_processes([take_six]) == [6]
    assert meters.peek("key", limit, NOW).remaining == 3
    assert sum(take(meters, "key", limit, NOW).allowed for _ in range(10)) == 4


def test_workers_that_come_one_after_the_other_share_one_count_exactly(meters: SharedMeters) -> None:
    limit = Limit(100, 60.0)
    admitted = [in_processes([hammer(meters, worker, limit, 40, 0.0)])[0] for worker in range(WORKERS)]
    assert admitted == [40, 40, 20, 0]


def test_workers_together_keep_to_the_burst(meters: SharedMeters) -> None:
    limit = Limit(2_000, 60.0)
    admitted = in_processes([hammer(meters, worker, limit, 2_000, 0.0) for worker in range(WORKERS)])
    assert 0.9 * limit.count <= sum(admitted) <= 1.1 * limit.count


def test_workers_that_do_nothing_but_take_keep_to_the_burst_too(tmp_path: Path) -> None:
    # What two of them take at the very same moment must count for two; on many cores that is often.
    limit = Limit(10_000, 60.0)
    for attempt in range(3):
        meters = SharedMeters(16, WORKERS, tmp_path / f"{attempt}.lock")
        admitted = in_processes([hammer(meters, worker, limit, 8_000, 0.0, busy=0) for worker in range(WORKERS)])
        assert 0.9 * limit.count <= sum(admitted) <= 1.1 * limit.count


def test_workers_together_keep_to_the_rate_over_time(meters: SharedMeters) -> None:
    limit = Limit(100, 1.0)
    tries, step = 2_000, 0.005
    admitted = in_processes([hammer(meters, worker, limit, tries, step) for worker in range(WORKERS)])
    allowed = limit.count + limit.count * tries * step
    assert 0.9 * allowed <= sum(admitted) <= 1.1 * allowed


def test_single_busy_worker_of_many_gets_nearly_the_whole_limit(meters: SharedMeters) -> None:
    limit = Limit(100, 1.0)
    (admitted,) = in_processes([hammer(meters, 2, limit, 2_000, 0.005)])
    assert admitted >= 0.9 * limit.count * 2_000 * 0.005


def test_restarted_worker_gives_no_fresh_allowance(meters: SharedMeters) -> None:
    limit = Limit(50, 60.0)
    assert in_processes([hammer(meters, 1, limit, 60, 0.0)]) == [50]
    assert in_processes([hammer(meters, 1, limit, 60, 0.0)]) == [0]


# --- Locks -------------------------------------------------------------------------------------------------


def test_killed_worker_releases_its_lock(meters: SharedMeters, tmp_path: Path) -> None:
    limit = Limit(1, 60.0)
    for attempt in range(10):
        started, signal_end = os.pipe()

        def claim_for_ever(signal_end: int = signal_end) -> int:
            meters.attach(1)
            number = 0
            while True:
                number += 1
                take(meters, f"flood {number}", limit, NOW)
                if number == 50:
                    os.write(signal_end, b"!")

        pid, reader = fork(claim_for_ever)
        assert os.read(started, 1) == b"!"
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        for descriptor in (started, signal_end, reader):
            os.close(descriptor)
        with (tmp_path / "limits.lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert take(meters, f"fresh {attempt}", limit, NOW).allowed
        assert not take(meters, f"fresh {attempt}", limit, NOW).allowed


def test_stopped_holder_of_the_lock_blocks_no_other_worker(meters: SharedMeters, tmp_path: Path) -> None:
    limit = Limit(1, 60.0)
    with (tmp_path / "limits.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert take(meters, "key", limit, NOW).allowed
        assert not take(meters, "key", limit, NOW).allowed


# --- More callers than slots --------------------------------------------------------------------------------


def test_more_keys_than_slots_only_evict(tmp_path: Path) -> None:
    meters = SharedMeters(16, 2, tmp_path / "limits.lock")
    limit = Limit(5, 60.0)
    for number in range(500):
        assert take(meters, f"key {number}", limit, NOW + number * 0.001, 5).allowed


def test_key_that_is_used_again_and_again_is_not_evicted_by_callers_that_come_once(tmp_path: Path) -> None:
    meters = SharedMeters(16, 2, tmp_path / "limits.lock")
    limit = Limit(100, 60.0)
    admitted = 0
    for number in range(300):
        admitted += take(meters, "busy", limit, NOW).allowed
        take(meters, f"once {number}", limit, NOW)
    assert admitted <= 1.1 * limit.count


def test_evicted_key_is_forgotten_by_every_worker(tmp_path: Path) -> None:
    meters = SharedMeters(16, 2, tmp_path / "limits.lock")
    limit = Limit(1, 60.0)
    assert take(meters, "mine", limit, NOW).allowed

    def flood() -> int:
        meters.attach(1)
        return sum(take(meters, f"key {number}", limit, NOW + 1.0).allowed for number in range(100))

    assert in_processes([flood]) == [100]
    # Its old slot belongs to another key now; a fresh allowance is the price of a full table.
    assert take(meters, "mine", limit, NOW + 1.0).allowed


def test_slot_of_a_key_whose_time_has_passed_gives_the_next_one_its_whole_count(tmp_path: Path) -> None:
    meters = SharedMeters(16, 1, tmp_path / "limits.lock")
    limit = Limit(4, 1.0)
    for number in range(16):
        take(meters, f"old {number}", limit, NOW, 4)
    for number in range(16):
        assert take(meters, f"new {number}", limit, NOW + 1.0, 4).allowed


def test_limits_are_taken_in_order_until_one_refuses(tmp_path: Path) -> None:
    meters = SharedMeters(1_024, 1, tmp_path / "lock")
    limits = [("wide", Limit(10, 1.0)), ("narrow", Limit(1, 1.0)), ("never reached", Limit(10, 1.0))]
    assert [taken.allowed for taken in meters.take(limits, NOW)] == [True, True, True]
    assert [taken.allowed for taken in meters.take(limits, NOW)] == [True, False]
    assert take(meters, "never reached", Limit(10, 1.0), NOW).remaining == 8


# --- All limits of a caller at once -------------------------------------------------------------------------

LIMITS = st.builds(Limit, st.integers(1, 20), st.sampled_from([0.5, 1.0, 60.0]))


@pytest.mark.parametrize("workers", [1, 2])
@given(
    limits=st.lists(LIMITS, min_size=1, max_size=3),
    calls=st.lists(st.tuples(st.sampled_from([0.0, 0.01, 0.3, 5.0]), st.integers(1, 12)), max_size=20),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_all_limits_together_are_taken_as_each_alone_or_none_is(
    workers: int, tmp_path: Path, limits: list[Limit], calls: list[tuple[float, int]]
) -> None:
    """Against the arithmetic: an arrival for each limit, moved only where all of them allow it."""
    meters = SharedMeters(1_024, workers, tmp_path / "limits.lock")
    slots = meters.slots([(f"key{place}", limit) for place, limit in enumerate(limits)], NOW)
    arrivals, now = [0.0] * len(limits), NOW
    for step, cost in calls:
        now += step
        found = [limit_take(limit, arrival, now, cost) for limit, arrival in zip(limits, arrivals, strict=True)]
        if all(taken.allowed for taken in found):
            arrivals = [taken.arrival for taken in found]
            left: list[int] = []
            for limit, taken in zip(limits, found, strict=True):
                left += (
                    [taken.remaining] if limit.seconds <= 1 else [taken.remaining, int(taken.arrival - now + 1)]
                )
            assert meters.take_all(slots, now, cost)
            assert meters.left(slots, now) == tuple(left)
        else:
            assert not meters.take_all(slots, now, cost)
        for place, (limit, arrival) in enumerate(zip(limits, arrivals, strict=True)):
            expected = limit_take(limit, arrival, now)
            seen = meters.peek(f"key{place}", limit, now)
            assert (seen.allowed, seen.remaining) == (expected.allowed, expected.remaining)
            assert seen.arrival == pytest.approx(expected.arrival)


@pytest.mark.parametrize("workers", [1, 2])
def test_nothing_is_taken_from_a_slot_that_was_given_to_another(workers: int, tmp_path: Path) -> None:
    meters = SharedMeters(16, workers, tmp_path / "limits.lock")
    limits = [("first", Limit(10, 1.0)), ("second", Limit(10, 1.0))]
    slots = meters.slots(limits, NOW)
    assert meters.take_all(slots, NOW)
    assert meters.left(slots, NOW) == (9, 9)
    assert not meters.moved(slots)
    for number in range(15):
        # One more than there is room for: the slot that was unused for the longest time makes room.
        take(meters, f"other{number}", Limit(10, 1.0), NOW + 2 + number)
    assert meters.moved(slots)
    before = [meters.peek(key, limit, NOW + 20).remaining for key, limit in limits]
    assert not meters.take_all(slots, NOW + 20)
    assert [meters.peek(key, limit, NOW + 20).remaining for key, limit in limits] == before


def test_slots_that_a_worker_remembers_by_key_are_bounded(tmp_path: Path) -> None:
    meters = SharedMeters(16, 1, tmp_path / "limits.lock")
    for number in range(100):
        take(meters, f"key {number}", Limit(10, 1.0), NOW)
        assert len(meters._known) <= 16


@pytest.mark.parametrize("workers", [1, WORKERS])
def test_windows_of_more_than_a_second_show_when_they_are_whole_again(workers: int, tmp_path: Path) -> None:
    meters = SharedMeters(64, workers, tmp_path / "limits.lock")
    slots = meters.slots([("a", Limit(4, 1.0)), ("b", Limit(4, 2.0))], NOW)
    for left in ((3, 3, 1), (2, 2, 2)):
        assert meters.take_all(slots, NOW)
        assert meters.left(slots, NOW) == left


@pytest.mark.parametrize("workers", [1, WORKERS])
def test_slot_given_to_another_key_leaves_the_next_slot_as_it_is(workers: int, tmp_path: Path) -> None:
    meters, limit = SharedMeters(WAYS, workers, tmp_path / "limits.lock"), Limit(20, 20.0)
    for number in range(WAYS):
        assert take(meters, f"key {number}", limit, NOW, 2 + number).allowed
    assert take(meters, "new", limit, NOW).remaining == 19
    left = [meters.peek(f"key {number}", limit, NOW).remaining for number in range(1, WAYS)]
    assert left == [17 - number for number in range(1, WAYS)]


def test_writer_that_lost_a_race_adds_its_take_after_the_other(meters: SharedMeters) -> None:
    written: list[tuple[float, ...]] = []
    limit = Limit(10, 1.0)
    slots = meters.slots([("a", limit)], NOW)
    write = meters._write
    meters._write = lambda *values: written.append(values)  # type: ignore[method-assign]
    assert meters.take_all(slots, NOW, 3)
    assert take(meters, "a", limit, NOW, 3).allowed
    start = slots[0][0] * WORKERS
    assert written == [(start, 0.0, NOW + 3 * limit.interval, 3 * limit.interval)] * 2
    meters._arrivals[start + 1] = NOW + 0.5
    write(start, 0.0, NOW + 0.3, 0.3)
    assert list(meters._arrivals[start : start + 2]) == [NOW + 0.8, NOW + 0.5]


@pytest.mark.parametrize("workers", [1, WORKERS])
def test_rounding_costs_no_request(workers: int, tmp_path: Path) -> None:
    meters = SharedMeters(64, workers, tmp_path / "limits.lock")
    for count in (3, 7, 10, 30, 49, 1_000):
        slots = meters.slots([(str(count), Limit(count, 1.0))], 1_000_000.1)
        assert sum(meters.take_all(slots, 1_000_000.1) for _ in range(count + 2)) == count
