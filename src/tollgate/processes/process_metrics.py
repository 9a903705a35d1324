"""What each process of the service uses, read by the parent from /proc: processor time, memory, descriptors.

Where there is no /proc (macOS) nothing is shown.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct

from tollgate import __version__
from tollgate.processes.supervisor import Child
from tollgate.shm import metrics

LOOK_SECONDS = 5.0
PARENT = "parent"
_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
# Fields of /proc/<pid>/stat behind the name. proc(5): utime is 14, stime 15, starttime 22, rss 24.
_UTIME, _STIME, _START, _RSS = 14 - 3, 15 - 3, 22 - 3, 24 - 3


class ProcessStat(Struct, frozen=True):
    """What a process uses."""

    name: str
    cpu_milliseconds: int
    start_seconds: float
    """After the system's own start."""
    memory_bytes: int


def read_stat(folder: Path) -> ProcessStat:
    """Read it from a process's folder in /proc. OSError where it is gone."""
    # The name is in parentheses and may hold anything.
    before, _, rest = (folder / "stat").read_text("utf-8", "replace").rpartition(") ")
    fields = rest.split()
    used = (int(fields[_UTIME]) + int(fields[_STIME])) * 1_000 // _TICKS
    return ProcessStat(before.partition("(")[2], used, int(fields[_START]) / _TICKS, int(fields[_RSS]) * _PAGE)


def show_build(writer: metrics.Writer) -> None:
    writer.set(writer.cell(metrics.BUILD_INFO, __version__, platform.python_version()), 1)


class ProcessWatch:
    """Shows in the parent what all processes use. `tick` is called now and then."""

    def __init__(
        self,
        children: Sequence[Child],
        writer: metrics.Writer,
        now: Callable[[], float] = time.monotonic,
        proc: Path = _PROC,
    ) -> None:
        self._children = children
        self._writer = writer
        self._now = now
        self._proc = proc
        self._look_at = 0.0
        self._seen: dict[str, tuple[int, int]] = {}
        """The process that each name belonged to, and its processor time in milliseconds."""

    def tick(self) -> None:
        now = self._now()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_SECONDS
        self._show(PARENT, os.getpid())
        for child in self._children:
            self._show(child.name, child.pid)

    def _show(self, name: str, pid: int) -> None:
        writer = self._writer
        folder = self._proc / str(pid)
        try:
            stat = read_stat(folder)
            descriptors = len(os.listdir(folder / "fd"))  # noqa: PTH208 - no path is needed for each
        except OSError:
            # Gone, or not on this system.
            if name in self._seen:
                writer.set(writer.cell(metrics.PROCESS_MEMORY, name), metrics.GONE)
                writer.set(writer.cell(metrics.PROCESS_DESCRIPTORS, name), metrics.GONE)
            return
        used = stat.cpu_milliseconds
        before, counted = self._seen.get(name, (pid, 0))
        # A successor starts at zero, the counter keeps its value.
        writer.add(writer.cell(metrics.PROCESS_CPU, name), used - (counted if before == pid else 0))
        self._seen[name] = (pid, used)
        writer.set(writer.cell(metrics.PROCESS_MEMORY, name), stat.memory_bytes)
        writer.set(writer.cell(metrics.PROCESS_DESCRIPTORS, name), descriptors)
