"""Processes of a run: start them on a core, weigh them, stop them by pid. Knows `/proc`, and no server.

CPU time is read from `/proc/<pid>/task/*/schedstat`, in nanoseconds; a tick of `/proc/<pid>/stat` is 10 ms,
which is 1 % of a short round.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.plan import BenchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

PROC = Path("/proc")
STOP_SECONDS = 10.0
LOG_TAIL = 2_000


@dataclass(frozen=True, slots=True)
class Cores:
    """One core for what is measured, one for load and stub; the same one if the machine has no other."""

    server: int
    load: int
    all: tuple[int, ...]

    @classmethod
    def choose(cls) -> Cores:
        """Take the last and the first core that this process may use."""
        allowed = sorted(os.sched_getaffinity(0))
        return cls(server=allowed[-1], load=allowed[0], all=tuple(allowed))

    def servers(self, workers: int) -> set[int]:
        """Return a core for each worker; the last of all is also that of the load."""
        return set(self.all[-workers:])


def free_port() -> int:
    """Return a loopback port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def allow_open_files(wanted: int) -> None:
    """Raise the soft limit of open files, for this process and those it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise BenchError(f"{wanted} open files are needed and the limit is {hard}; raise `ulimit -Hn`")
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@contextlib.contextmanager
def running(
    command: Sequence[str], cores: set[int], log: Path, identity: Mapping[str, Any] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command on some cores, its output in `log`; stop it and all its descendants at the end.

    It gets its own session, so that Ctrl-C reaches this process alone and the order of stopping stays ours.
    `identity` is what `Popen` takes to run it as another user.
    """
    own = os.sched_getaffinity(0)
    with log.open("wb") as output:
        os.sched_setaffinity(0, cores)  # what is started inherits it, with all its threads and children
        try:
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **(identity or {}),
            )
        finally:
            os.sched_setaffinity(0, own)
    try:
        yield process
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    family = {pid: _born(pid) for pid in tree(process.pid)} if process.poll() is None else {}
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pid, born in family.items():
        if pid != process.pid and born is not None and _born(pid) == born:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def wait_until(
    ready: Callable[[], bool], process: subprocess.Popen[bytes], log: Path, seconds: float = 30.0
) -> None:
    """Wait until a started process is ready; report what it wrote if it ends or takes too long."""
    end = time.monotonic() + seconds
    while not ready():
        if process.poll() is not None or time.monotonic() > end:
            how = "is not ready" if process.poll() is None else f"ended with {process.returncode}"
            tail = log.read_text(errors="replace")[-LOG_TAIL:]
            raise BenchError(f"{log.parent.name} {how}; it wrote:\n{tail}")
        time.sleep(0.05)


def _stat(pid: int) -> list[str] | None:
    """Return the fields of `/proc/<pid>/stat` from the third on (the second may hold spaces)."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def _born(pid: int) -> str | None:
    fields = _stat(pid)
    return fields[19] if fields else None


def tree(pid: int) -> list[int]:
    """Return a process and all its descendants. Not every kernel has `task/*/children`, so all are read."""
    children: dict[int, list[int]] = {}
    for entry in PROC.iterdir():
        fields = _stat(int(entry.name)) if entry.name.isdigit() else None
        if fields:
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [pid]
    for parent in found:
        found.extend(sorted(children.get(parent, [])))
    return found


def named(pids: Sequence[int], prefix: str) -> list[int]:
    """Return those processes whose name (`comm`) begins with `prefix`."""
    return [pid for pid in pids if (PROC / str(pid) / "comm").read_text().startswith(prefix)]


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds that processes ran, and that they were ready to run while something else had their core."""

    ran: float
    waited: float


def family_seconds(pid: int) -> float:
    """Return the seconds that a process and its descendants have run, with those that have ended; in ticks."""
    found = 0
    for each in tree(pid):
        if fields := _stat(each):
            found += sum(map(int, fields[11:15])) if each == pid else int(fields[11]) + int(fields[12])
    return found / os.sysconf("SC_CLK_TCK")


class Meter:
    """Counts what processes spend from now on, all their threads together."""

    def __init__(self, pids: Sequence[int], cores: set[int]) -> None:
        self._pids, self._cores = pids, cores
        self._threads, self._stolen = _threads(pids), _stolen(cores)

    def read(self) -> Spent:
        """Return what was spent since the start; a hypervisor's share counts as waiting."""
        ran = waited = 0
        for thread, (run, wait) in _threads(self._pids).items():
            run_before, wait_before = self._threads.get(thread, (0, 0))
            ran += run - run_before
            waited += wait - wait_before
        return Spent(ran / 1e9, waited / 1e9 + _stolen(self._cores) - self._stolen)


def _threads(pids: Sequence[int]) -> dict[int, tuple[int, int]]:
    found = {}
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for task in (PROC / str(pid) / "task").iterdir():
                run, wait, _ = (task / "schedstat").read_text().split()
                found[int(task.name)] = int(run), int(wait)
    return found


def _stolen(cores: set[int]) -> float:
    names = {f"cpu{core}" for core in cores}
    lines = (line.split() for line in (PROC / "stat").read_text().splitlines())
    return sum(int(words[8]) for words in lines if words[0] in names) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of one process in bytes: `pss` shares out shared pages among their users; `peak` is of RSS."""

    rss: int
    pss: int
    peak: int


def memory(pid: int) -> Memory:
    """Weigh one process."""
    status = _kilobytes(PROC / str(pid) / "status")
    rollup = _kilobytes(PROC / str(pid) / "smaps_rollup")
    return Memory(rss=status["VmRSS"], pss=rollup["Pss"], peak=status["VmHWM"])


def _kilobytes(path: Path) -> dict[str, int]:
    lines = (line.split() for line in path.read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if words[-1] == "kB"}


def open_files(pid: int) -> int:
    """Count the descriptors of a process; connections are most of them."""
    return sum(1 for _ in (PROC / str(pid) / "fd").iterdir())
