"""A collector that is killed at every fault point, and at every line that it runs. Then another one continues.

Real processes, killed by SIGKILL. What they leave in files and in the database is what the next one finds.
"""

import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from tests.ledger.harness import Harness, entry, segment_bytes
from tests.store.migrated import make_ledger

from tollgate.core.entries import encode
from tollgate.ledger import collector as collecting
from tollgate.ledger.segments import DAMAGED_SUFFIX, HEADER_BYTES, frame
from tollgate.store import ledger as storing
from tollgate.store import ledger_blocks, ledger_shared, ledger_usage

A, B, D, E, F = (entry(name) for name in "abdef")
BATCH = entry("batch", "ok", "node_error", "method_not_allowed", team="team_2")
LATE = entry("late", at=A.at - 40 * 86_400)
ALL = (A, B, BATCH, D, E, F, LATE)
FILES = {each.__file__ for each in (collecting, storing, ledger_blocks, ledger_shared, ledger_usage)}


def fill(harness: Harness) -> None:
    """Whole segments, a copy, a torn end, damage, and the file of a worker that was killed while it created it."""
    harness.segment(1, A, B)
    harness.put("2.seg", segment_bytes(2, [BATCH, LATE]) + frame(encode(A))[:30])
    harness.segment(3, D)
    harness.segment(1, A, name="0-copy.seg")
    damaged = segment_bytes(4, [E, A])
    harness.put("4.seg", damaged[:-3] + b"\xff" + damaged[-2:])
    harness.segment(5)
    harness.segment(6, F)
    harness.segment(6, F, name="7-copy.seg")


def check(harness: Harness) -> None:
    harness.check(*ALL)
    assert harness.files() == [f"4{DAMAGED_SUFFIX}"]
    sizes = {1: [A, B], 2: [BATCH, LATE], 3: [D], 4: [E], 5: [], 6: [F]}
    assert harness.marks() == {
        number: (len(segment_bytes(number, entries)) - HEADER_BYTES, True) for number, entries in sizes.items()
    }


def in_child(work: Callable[[], None]) -> int:
    """Run in a process of its own; the signal that killed it, or 0."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "the collector failed by itself"
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at_point(number: int) -> Callable[[str], None]:
    """Kill the process at the fault point with this number, counted from 1."""
    left = number

    def fault(_: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            kill_self()

    return fault


Line = tuple[str, int]


def collect_traced(harness: Harness, at_line: Callable[[Line], None]) -> None:
    """Collect, and call back before every line that the collector and its store run, and before every commit."""

    def trace(frame_: FrameType, event: str, _: Any) -> Any:
        code = frame_.f_code
        if code.co_filename not in FILES and code.co_name != "do_commit":
            return None
        if event == "line":
            at_line((code.co_filename, frame_.f_lineno))
        return trace

    collector = harness.collector()
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        harness.collect(collector)
    finally:
        sys.settrace(before)


def collect_killed_at_line(harness: Harness, number: int) -> int:
    """Collect in a process that exits at the line with this number, counted from 1."""
    left = number

    def at_line(_: Line) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            kill_self()

    return in_child(lambda: collect_traced(harness, at_line))


@pytest.fixture
def another_spool() -> Iterator[Callable[[], Harness]]:
    """Makes the same spool again on each call; in memory where there is such a disk."""
    harnesses: list[Harness] = []
    memory = Path("/dev/shm")

    def make() -> Harness:
        if harnesses:
            harnesses[-1].close()
            shutil.rmtree(harnesses[-1].folder)
        folder = top / str(len(harnesses))
        folder.mkdir()
        make_ledger(folder)
        harnesses.append(Harness(folder))
        fill(harnesses[-1])
        return harnesses[-1]

    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        top = Path(name)
        yield make
        harnesses[-1].close()


def test_run_without_a_crash_ends_with_the_expected_ledger(another_spool: Callable[[], Harness]) -> None:
    harness = another_spool()
    harness.collect()
    check(harness)


@pytest.mark.e2e
def test_records_count_once_after_a_crash_at_every_fault_point(another_spool: Callable[[], Harness]) -> None:
    number = 0
    killed = signal.SIGKILL.value
    while killed:
        number += 1
        harness = another_spool()
        killed = in_child(lambda: _collect_killed_at_point(harness, number))  # noqa: B023 - it runs at once
        harness.collect()
        check(harness)
    assert number > 10, "each step has several"


def _collect_killed_at_point(harness: Harness, number: int) -> None:
    harness.collect(harness.collector(kill_at_point(number)))


@pytest.mark.e2e
@pytest.mark.timeout(400)  # a process for each of some hundred lines, and the machine may be busy
def test_records_count_once_after_a_crash_at_every_line(another_spool: Callable[[], Harness]) -> None:
    lines: list[Line] = []
    collect_traced(another_spool(), lines.append)
    # A line is run many times; the one to exit at is random, and a failure shows it.
    times: dict[Line, list[int]] = {}
    for number, line in enumerate(lines, 1):
        times.setdefault(line, []).append(number)
    assert len(times) > 100
    for line, numbers in times.items():
        number = random.choice(numbers)
        print(f"killed at {line}, the line number {number}")
        harness = another_spool()
        assert collect_killed_at_line(harness, number)
        harness.collect()
        check(harness)


@pytest.mark.e2e
@pytest.mark.parametrize("seed", range(3))
def test_records_count_once_after_repeated_crashes(another_spool: Callable[[], Harness], seed: int) -> None:
    chance = random.Random(seed)
    harness = another_spool()
    for _ in range(12):
        collect_killed_at_line(harness, chance.randint(1, 250))
    harness.collect()
    check(harness)


def test_commit_that_fails_leaves_nothing_behind_and_is_done_again(another_spool: Callable[[], Harness]) -> None:
    harness = another_spool()

    class Failed(Exception):
        pass

    def fail(point: str) -> None:
        if point == "committed":
            raise Failed

    for _ in range(10):
        collector = harness.collector(fail)
        with pytest.raises(Failed):
            collector.step()
    harness.collect()
    check(harness)
