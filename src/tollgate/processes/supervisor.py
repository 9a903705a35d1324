"""Parent of the service's processes: forks them, replaces those that exit, stops them all.

Knows nothing of what they do. The parent has no threads and no event loop, so forking is safe, a replacement
starts in milliseconds with everything imported, and shared memory is simply inherited.

A child ends with its parent, however that ends: it holds the read end of a pipe whose write end only the
parent has. A child that no longer beats is killed and replaced.

SIGHUP requests a reload (`on_hangup`); children ignore it. A terminal that goes away sends it as well: there it
means the end, unless the service was started with `nohup`.
"""

from __future__ import annotations

import gc
import mmap
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from tollgate import log
from tollgate.processes.run_in_child import FORK_REFUSED

# Without a beat for so long a child is taken for hung. Beats come ten times a second.
HUNG_SECONDS = 20.0
START_SECONDS = 30.0
# On top of the grace that children have themselves.
KILL_AFTER_SECONDS = 3.0
# A child that has served is replaced at once, whatever its age; one that ends before, ever more slowly.
MAX_BACKOFF_SECONDS = 5.0
# Without a sign of life for so long a child's connections are accepted by others.
SILENT_SECONDS = 0.5
# Between two checks of the children, and while something is in progress.
TURN_SECONDS = 0.5
SOON_SECONDS = 0.05
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_log = log.get("supervisor")


class Lifeline:
    """A child's link to its parent."""

    def __init__(self, parent_pipe: int, beats: memoryview[float], alive: memoryview[float], index: int) -> None:
        self.parent_pipe = parent_pipe
        """Readable when the parent is gone."""
        self._beats = beats
        self._alive = alive
        self._index = index

    def beat(self) -> None:
        """Report that this process is alive. The first beat reports that it is ready."""
        self._beats[self._index] = self._alive[self._index] = time.monotonic()

    def live(self) -> None:
        """Report that this process is alive, before it is ready."""
        self._alive[self._index] = time.monotonic()

    def is_silent(self, distance: int) -> bool:
        """Whether the child so many places after this one does not serve: dead, not ready yet, or stuck."""
        return time.monotonic() - self._beats[self._index + distance] > SILENT_SECONDS


class Child:
    """A process to keep running."""

    def __init__(self, name: str, run: Callable[[Lifeline], None]) -> None:
        self.name = name
        self.run = run
        self.pid = 0
        self.started_at = 0.0
        self.failures = 0
        self.restart_at = 0.0


class StartFailed(Exception):
    """A child did not become ready."""


class Supervisor:
    """Runs children until SIGTERM or SIGINT."""

    def __init__(
        self,
        children: Sequence[Child],
        *,
        grace_seconds: float,
        on_ready: Callable[[], None],
        on_stop: Callable[[], None],
        on_start: Callable[[Child], None],
        on_hangup: Callable[[], None] = lambda: None,
        on_tick: Callable[[], bool] = lambda: False,
    ) -> None:
        """`on_tick` is called in every iteration of the loop; iterations are shorter while it returns True."""
        self._children = list(children)
        self._grace = grace_seconds
        self._on_ready = on_ready
        self._on_stop = on_stop
        self._on_start = on_start
        self._on_hangup = on_hangup
        self._on_tick = on_tick
        self._beats = memoryview(mmap.mmap(-1, 8 * len(self._children))).cast("d")
        """When each gave its last sign of life since it was ready; 0 before."""
        self._alive = memoryview(mmap.mmap(-1, 8 * len(self._children))).cast("d")
        """The same, whether it was ready or not."""
        self._pipe = os.pipe()
        self._stopping = False
        self._hung_up = False
        self._terminal = False

    def run(self) -> None:
        """Fork, watch and replace until SIGTERM or SIGINT, then stop everything."""
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        os.set_blocking(wake_read, False)
        previous = {number: signal.getsignal(number) for number in (*_STOP_SIGNALS, signal.SIGHUP, signal.SIGCHLD)}
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for number in _STOP_SIGNALS:
            signal.signal(number, self._stop)
        signal.signal(signal.SIGHUP, self._hang_up)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        may_end = previous[signal.SIGHUP] != signal.SIG_IGN
        self._terminal = _has_terminal()
        # Memory of now is shared with the children, page by page, for as long as neither side writes to it. The
        # garbage collector would write to all of it.
        gc.collect()
        gc.freeze()
        try:
            self._start_all(wake_read)
            busy = False
            while not self._stopping:
                self._sleep(wake_read, SOON_SECONDS if busy else TURN_SECONDS)
                self._look_after()
                busy = self._listen(may_end)
        finally:
            self._stop_all(wake_read)
            signal.set_wakeup_fd(-1)
            for number, handler in previous.items():
                signal.signal(number, handler)
            for descriptor in (wake_read, wake_write, *self._pipe):
                os.close(descriptor)

    def _stop(self, *_: object) -> None:
        self._stopping = True

    def _hang_up(self, *_: object) -> None:
        self._hung_up = True

    def _listen(self, may_end: bool) -> bool:
        """Handle SIGHUP; whether something is in progress."""
        # Lost with the signal. What was left running by a terminal that is long gone is reloaded.
        had, self._terminal = self._terminal, _has_terminal()
        if self._hung_up:
            self._hung_up = False
            if may_end and had and not self._terminal:
                self._stopping = True
                return False
            self._on_hangup()
        return self._on_tick()

    def _sleep(self, wake_read: int, seconds: float) -> None:
        select.select([wake_read], [], [], seconds)
        with suppress(BlockingIOError):
            os.read(wake_read, 4096)

    # --- Starting --------------------------------------------------------------------------------------

    def _start_all(self, wake_read: int) -> None:
        for index, child in enumerate(self._children):
            try:
                self._fork(index)
            except OSError as error:
                raise StartFailed(f"{child.name} cannot be started: {error.strerror}. {FORK_REFUSED}") from error
        deadline = time.monotonic() + START_SECONDS
        while not self._stopping and not all(self._beats):
            self._sleep(wake_read, 0.02)
            dead = self._reap()
            if dead:
                raise StartFailed(f"{dead[0].name} ended at its start; the lines above show why.")
            if time.monotonic() > deadline:
                raise StartFailed(f"Not ready after {START_SECONDS:g} s.")
        if not self._stopping:
            self._on_ready()

    def _fork(self, index: int) -> None:
        child = self._children[index]
        self._beats[index] = self._alive[index] = 0.0
        self._on_start(child)
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            self._become(child, index)
        child.pid = pid
        child.started_at = time.monotonic()

    def _become(self, child: Child, index: int) -> None:
        """Run in the child; never returns."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            # A terminal's Ctrl-C, or its end, reaches the whole group; the parent decides.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            os.close(self._pipe[1])
            with suppress(OSError):
                Path("/proc/self/comm").write_text(f"tg-{child.name}", encoding="ascii")
            child.run(Lifeline(self._pipe[0], self._beats, self._alive, index))
            code = 0
        except BaseException:  # noqa: BLE001 - the end of the process, whatever it was
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    # --- Watching --------------------------------------------------------------------------------------

    def _reap(self) -> list[Child]:
        dead = []
        for child in self._children:
            if child.pid and os.waitpid(child.pid, os.WNOHANG)[0]:
                child.pid = 0
                dead.append(child)
        return dead

    def _look_after(self) -> None:
        now = time.monotonic()
        for child in self._reap():
            lived = now - child.started_at
            index = self._children.index(child)
            has_served, self._beats[index] = self._beats[index] > 0, 0.0
            child.failures = 0 if has_served else child.failures + 1
            wait = min(0.1 * 2**child.failures, MAX_BACKOFF_SECONDS) if child.failures > 1 else 0.0
            child.restart_at = now + wait
            _log.error("a process ended and is replaced", process=child.name, lived=round(lived, 1))
        for index, child in enumerate(self._children):
            if self._stopping:
                return
            if not child.pid and now >= child.restart_at:
                try:
                    self._fork(index)
                except OSError as error:
                    # No memory or no process is left at the moment: the others keep running.
                    child.restart_at = now + MAX_BACKOFF_SECONDS
                    _log.error("a process cannot be started", process=child.name, error=error.strerror)
            elif child.pid and now - max(self._alive[index], child.started_at) > HUNG_SECONDS:
                _log.error("a process hangs and is killed", process=child.name)
                os.kill(child.pid, signal.SIGKILL)

    # --- Stopping --------------------------------------------------------------------------------------

    def _stop_all(self, wake_read: int) -> None:
        self._on_stop()
        self._signal_all(signal.SIGTERM)
        deadline = time.monotonic() + self._grace + KILL_AFTER_SECONDS
        while any(child.pid for child in self._children):
            self._reap()
            if not any(child.pid for child in self._children):
                return
            if time.monotonic() > deadline:
                _log.error("processes did not stop in time and are killed")
                self._signal_all(signal.SIGKILL)
                deadline = time.monotonic() + KILL_AFTER_SECONDS
            self._sleep(wake_read, 0.05)

    def _signal_all(self, number: int) -> None:
        for child in self._children:
            if child.pid:
                with suppress(ProcessLookupError):
                    os.kill(child.pid, number)


def _has_terminal() -> bool:
    """Whether there is a terminal whose end would reach us."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True
