"""A collector that dies, anywhere: at every fault point, and at every line that it runs. Then another goes on.

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
from tests.ledger.house import House, entry, segment_bytes

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


def fill(house: House) -> None:
    """What a bad night leaves: whole segments, a copy, a torn end, damage, a worker that died at a beginning."""
    house.segment(1, A, B)
    house.put("2.seg", segment_bytes(2, [BATCH, LATE]) + frame(encode(A))[:30])
    house.segment(3, D)
    house.segment(1, A, name="0-copy.seg")
    damaged = segment_bytes(4, [E, A])
    house.put("4.seg", damaged[:-3] + b"\xff" + damaged[-2:])
    house.segment(5)
    house.segment(6, F)
    house.segment(6, F, name="7-copy.seg")


def check(house: House) -> None:
    house.check(*ALL)
    assert house.files() == [f"4{DAMAGED_SUFFIX}"]
    sizes = {1: [A, B], 2: [BATCH, LATE], 3: [D], 4: [E], 5: [], 6: [F]}
    assert house.marks() == {
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


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dying_at_point(number: int) -> Callable[[str], None]:
    """Dies at the fault point with this number, counted from 1."""
    left = number

    def fault(_: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            die()

    return fault


Line = tuple[str, int]


def collect_traced(house: House, at_line: Callable[[Line], None]) -> None:
    """Collect, and call back before every line that the collector and its store run, and before every commit."""

    def trace(frame_: FrameType, event: str, _: Any) -> Any:
        code = frame_.f_code
        if code.co_filename not in FILES and code.co_name != "do_commit":
            return None
        if event == "line":
            at_line((code.co_filename, frame_.f_lineno))
        return trace

    collector = house.collector()
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        house.collect(collector)
    finally:
        sys.settrace(before)


def collect_dying_at_line(house: House, number: int) -> int:
    """Collect in a process that dies at the line with this number, counted from 1."""
    left = number

    def at_line(_: Line) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            die()

    return in_child(lambda: collect_traced(house, at_line))


@pytest.fixture
def nights(blank: Path) -> Iterator[Callable[[], House]]:
    """Makes the same bad night again, as often as it is asked to; in memory where there is such a disk."""
    houses: list[House] = []
    memory = Path("/dev/shm")

    def another() -> House:
        if houses:
            houses[-1].close()
            shutil.rmtree(houses[-1].folder)
        folder = top / str(len(houses))
        folder.mkdir()
        shutil.copy(blank, folder / "ledger.db")
        houses.append(House(folder))
        fill(houses[-1])
        return houses[-1]

    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        top = Path(name)
        yield another
        houses[-1].close()


def test_undisturbed_night_ends_as_it_should(nights: Callable[[], House]) -> None:
    house = nights()
    house.collect()
    check(house)


@pytest.mark.e2e
def test_death_at_every_fault_point(nights: Callable[[], House]) -> None:
    number = 0
    killed = signal.SIGKILL.value
    while killed:
        number += 1
        house = nights()
        killed = in_child(lambda: _collect_dying_at_point(house, number))  # noqa: B023 - it runs at once
        house.collect()
        check(house)
    assert number > 10, "each step has several"


def _collect_dying_at_point(house: House, number: int) -> None:
    house.collect(house.collector(dying_at_point(number)))


@pytest.mark.e2e
def test_death_at_every_line(nights: Callable[[], House]) -> None:
    lines: list[Line] = []
    collect_traced(nights(), lines.append)
    # A line is run many times; at which of them to die is left to chance, which a failure tells.
    times: dict[Line, list[int]] = {}
    for number, line in enumerate(lines, 1):
        times.setdefault(line, []).append(number)
    assert len(times) > 100
    for line, numbers in times.items():
        number = random.choice(numbers)
        print(f"death at {line}, the line number {number}")
        house = nights()
        assert collect_dying_at_line(house, number)
        house.collect()
        check(house)


@pytest.mark.e2e
@pytest.mark.parametrize("seed", range(3))
def test_death_again_and_again(nights: Callable[[], House], seed: int) -> None:
    chance = random.Random(seed)
    house = nights()
    for _ in range(12):
        collect_dying_at_line(house, chance.randint(1, 250))
    house.collect()
    check(house)


def test_commit_that_fails_leaves_nothing_behind_and_is_done_again(nights: Callable[[], House]) -> None:
    house = nights()

    class Failed(Exception):
        pass

    def fail(point: str) -> None:
        if point == "committed":
            raise Failed

    for _ in range(10):
        collector = house.collector(fail)
        with pytest.raises(Failed):
            collector.step()
    house.collect()
    check(house)
