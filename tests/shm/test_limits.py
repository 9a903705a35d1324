"""Limits that several processes keep together: real forks, synthetic time."""

import fcntl
import hashlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tollgate.core.limits import Limit, Taken
from tollgate.shm.limits import SharedMeters

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


def test_keys_do_not_touch_each_other(meters: SharedMeters) -> None:
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


def test_wait_that_was_told_is_enough(meters: SharedMeters) -> None:
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


def test_killed_worker_leaves_no_lock(meters: SharedMeters, tmp_path: Path) -> None:
    limit = Limit(1, 60.0)
    for attempt in range(10):
        started, say = os.pipe()

        def claim_for_ever(say: int = say) -> int:
            meters.attach(1)
            number = 0
            while True:
                number += 1
                take(meters, f"flood {number}", limit, NOW)
                if number == 50:
                    os.write(say, b"!")

        pid, reader = fork(claim_for_ever)
        assert os.read(started, 1) == b"!"
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        for descriptor in (started, say, reader):
            os.close(descriptor)
        with (tmp_path / "limits.lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert take(meters, f"fresh {attempt}", limit, NOW).allowed
        assert not take(meters, f"fresh {attempt}", limit, NOW).allowed


def test_holder_of_the_lock_that_was_stopped_stops_nobody_else(meters: SharedMeters, tmp_path: Path) -> None:
    limit = Limit(1, 60.0)
    with (tmp_path / "limits.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert take(meters, "key", limit, NOW).allowed
        assert not take(meters, "key", limit, NOW).allowed


# --- More callers than rows --------------------------------------------------------------------------------


def test_more_keys_than_rows_only_evict(tmp_path: Path) -> None:
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
    # Whatever stands in its old row now is another's; a fresh allowance is the price of a full table.
    assert take(meters, "mine", limit, NOW + 1.0).allowed


def test_row_of_a_key_whose_time_has_passed_gives_the_next_one_its_whole_count(tmp_path: Path) -> None:
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
