"""Programs that a test starts: waited for until they are ready, and stopped whatever happens.

The only place that polls (`eventually`), so that no test sleeps for a guessed time. A program runs in
a session of its own: what it leaves behind when it ends is killed with its process group.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

T = TypeVar("T")

TAIL = 4000
"""How much of a program's output, in characters, a failure shows."""


def eventually(predicate: Callable[[], T], *, within: float = 40.0, what: str = "the condition") -> T:
    """Try again until the result is true, and return it; fail when the time has passed."""
    deadline = time.monotonic() + within
    while True:
        if answer := predicate():
            return answer
        if time.monotonic() >= deadline:
            raise AssertionError(f"{what} did not come true within {within} s")
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether a process exists, and is more than a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except OSError:
        return not Path("/proc/self").exists()  # no /proc (macOS): the signal has to do
    return state not in "ZX"


def descendants(pid: int) -> set[int]:
    """Give the processes that a process has started, directly or through others, and that live."""
    children: dict[int, list[int]] = {}
    for child, parent in _families():
        children.setdefault(parent, []).append(child)
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        for child in children.get(waiting.pop(), []):
            found.add(child)
            waiting.append(child)
    return {child for child in found if alive(child)}


def _families() -> Iterator[tuple[int, int]]:
    """Give each process of the machine with its parent."""
    if not Path("/proc/self").exists():
        listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True)
        for line in listed.stdout.splitlines():
            child, parent = line.split()
            yield int(child), int(parent)
        return
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it may end while it is looked at
            yield int(entry.name), int((entry / "stat").read_text().rpartition(") ")[2].split()[1])


class Program:
    """One started program and what it has written so far."""

    def __init__(self, argv: Sequence[str], popen: subprocess.Popen[bytes], out: Path, err: Path) -> None:
        self.argv = list(argv)
        self.popen = popen
        self.out = out
        self.err = err

    @property
    def pid(self) -> int:
        """Give its process id, which is also that of its process group."""
        return self.popen.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended by itself."""
        return self.popen.poll() is None

    def lines(self) -> list[str]:
        """Give the whole lines on its standard output so far."""
        return [line for line in self.out.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def send(self, signal_number: signal.Signals) -> None:
        """Send it a signal; the members of its group get none."""
        self.popen.send_signal(signal_number)

    def report(self) -> str:
        """Give its command, its state and the end of its output, for the words of a failure."""
        state = "running" if self.running else f"ended with {self.popen.returncode}"
        return (
            f"{' '.join(self.argv)}: {state}\n"
            f"--- stdout\n{self.out.read_text(errors='replace')[-TAIL:]}\n"
            f"--- stderr\n{self.err.read_text(errors='replace')[-TAIL:]}"
        )

    def stop(self, grace: float) -> None:
        """Request its end, and kill it and its group when it has not within the grace."""
        if self.running:
            self.popen.terminate()
        try:
            self.popen.wait(grace)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"did not end within {grace} s of SIGTERM: {self.report()}") from None
        finally:
            kill_group(self.pid)
            self.popen.wait()


def kill_group(group: int) -> None:
    """Kill every process of a group that is still there."""
    # macOS raises PermissionError where a group holds nothing but zombies.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


@contextmanager
def running(
    argv: Sequence[str],
    *,
    folder: Path,
    ready: Callable[[Program], object],
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    within: float = 60.0,
    grace: float = 10.0,
) -> Iterator[Program]:
    """Start a program, yield it once `ready(program)` is true, and stop it in the end.

    Its output goes to files in `folder`; `env` is added to the test's own environment. It fails when
    the program ends before it is ready, is not ready in time, or outlives its SIGTERM by the grace.
    """
    with _started(argv, folder, env, cwd) as program:
        try:
            eventually(
                lambda: not program.running or ready(program), within=within, what=f"being ready: {argv[0]}"
            )
            if not program.running:
                raise AssertionError("it ended before it was ready")  # noqa: TRY301
        except AssertionError as error:
            raise AssertionError(f"{error}\n{program.report()}") from None
        try:
            yield program
        finally:
            program.stop(grace)


@contextmanager
def _started(
    argv: Sequence[str], folder: Path, env: Mapping[str, str] | None, cwd: Path | None
) -> Iterator[Program]:
    """Start a program with its output in new files of the folder; kill what is left of it."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{Path(argv[0]).name}-{len(list(folder.iterdir()))}"
    out, err = folder / f"{name}.out", folder / f"{name}.err"
    with out.open("xb") as stdout, err.open("xb") as stderr:
        popen = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env={**os.environ, **(env or {})},
            cwd=cwd,
            start_new_session=True,
        )
    try:
        yield Program(argv, popen, out, err)
    finally:
        kill_group(popen.pid)
        popen.wait()


def answer(
    argv: Sequence[str],
    *,
    folder: Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    within: float = 60.0,
) -> dict[str, Any]:
    """Run a program to its end and give the one JSON object that it prints."""
    with _started(argv, folder, env, cwd) as program:
        try:
            program.popen.wait(within)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"no answer within {within} s\n{program.report()}") from None
        if program.popen.returncode != 0:
            raise AssertionError(program.report())
        try:
            parsed = json.loads(program.out.read_bytes())
        except ValueError:
            raise AssertionError(f"the answer is not JSON\n{program.report()}") from None
    if isinstance(parsed, dict):
        return parsed
    raise AssertionError(f"the answer is not a JSON object\n{program.report()}")
