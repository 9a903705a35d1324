"""What each process uses is read from /proc by the parent, and counters go on when a process is replaced."""

import os
import sys
from pathlib import Path

import pytest
from tests.gateway.fakes import Clock

from tollgate import __version__
from tollgate.processes.process_metrics import LOOK_SECONDS, ProcessWatch, show_build
from tollgate.processes.supervisor import Child
from tollgate.shm import metrics
from tollgate.shm.metrics import GONE, Regions

PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")


class Proc:
    """A folder like /proc."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.put(os.getpid(), 1, 10)

    def put(self, pid: int, seconds: int, pages: int, descriptors: int = 3) -> None:
        folder = self.folder / str(pid) / "fd"
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(descriptors):
            (folder / str(number)).touch()
        # A name may hold spaces and brackets.
        fields = ["S", *["0"] * 10, str(seconds * TICKS), str(seconds * TICKS), *["0"] * 8, str(pages), "0"]
        (folder.parent / "stat").write_text(f"{pid} (tg-w) 0 (x) {' '.join(fields)}\n")


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def test_processor_time_memory_and_descriptors_of_each_process_are_shown(proc: Proc) -> None:
    regions, child, clock = Regions(1), Child("worker-0", lambda _: None), Clock(0.0)
    child.pid = 77
    proc.put(77, 2, 100)
    watch = ProcessWatch([child], regions.writer(0), clock, proc.folder)
    watch.tick()
    totals = regions.totals()
    assert totals[metrics.PROCESS_CPU.name, "worker-0"] == 4_000
    assert totals[metrics.PROCESS_MEMORY.name, "worker-0"] == 100 * PAGE
    assert totals[metrics.PROCESS_DESCRIPTORS.name, "worker-0"] == 3
    assert totals[metrics.PROCESS_CPU.name, "parent"] == 2_000
    proc.put(77, 3, 100)
    watch.tick()
    assert regions.totals() == totals, "looked again too soon"
    clock.now += LOOK_SECONDS
    watch.tick()
    assert regions.totals()[metrics.PROCESS_CPU.name, "worker-0"] == 6_000


def test_counter_goes_on_with_the_successor_of_a_process(proc: Proc) -> None:
    regions, child, clock = Regions(1), Child("worker-0", lambda _: None), Clock(0.0)
    child.pid = 77
    proc.put(77, 2, 100)
    watch = ProcessWatch([child], regions.writer(0), clock, proc.folder)
    watch.tick()
    child.pid = 0
    clock.now += LOOK_SECONDS
    watch.tick()
    assert regions.totals()[metrics.PROCESS_MEMORY.name, "worker-0"] == GONE
    assert regions.totals()[metrics.PROCESS_DESCRIPTORS.name, "worker-0"] == GONE
    child.pid = 78
    proc.put(78, 1, 50)
    clock.now += LOOK_SECONDS
    watch.tick()
    assert regions.totals()[metrics.PROCESS_CPU.name, "worker-0"] == 6_000
    assert regions.totals()[metrics.PROCESS_MEMORY.name, "worker-0"] == 50 * PAGE


def test_nothing_is_shown_where_there_is_no_proc(tmp_path: Path) -> None:
    regions = Regions(1)
    ProcessWatch([], regions.writer(0), Clock(0.0), tmp_path / "none").tick()
    assert regions.totals() == {}


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_this_process_uses_memory_and_descriptors() -> None:
    regions = Regions(1)
    ProcessWatch([], regions.writer(0)).tick()
    totals = regions.totals()
    assert 1_000_000 < totals[metrics.PROCESS_MEMORY.name, "parent"] < 10_000_000_000
    assert totals[metrics.PROCESS_DESCRIPTORS.name, "parent"] >= 3
    assert totals[metrics.PROCESS_CPU.name, "parent"] > 0


def test_build_is_shown() -> None:
    regions = Regions(1)
    show_build(regions.writer(0))
    python = ".".join(map(str, sys.version_info[:3]))
    assert regions.totals() == {(metrics.BUILD_INFO.name, __version__, python): 1}
