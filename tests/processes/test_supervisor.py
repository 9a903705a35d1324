"""The parent of processes, with real forks: it runs in a child of the test, and its children report in files."""

import errno
import itertools
import os
import pty
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from parts.processes import alive, eventually
from tollgate.processes import supervisor
from tollgate.processes.supervisor import Child, Lifeline, StartFailed, Supervisor

pytestmark = pytest.mark.e2e

Run = Callable[[Lifeline], None]
# What a shell does before it becomes the program that was started.
Shell = Callable[[], object]


def until_stopped(lifeline: Lifeline) -> None:
    """A good child: beats until the parent stops it or is gone."""
    while not select.select([lifeline.parent_pipe], [], [], 0.02)[0]:
        lifeline.beat()


class Harness:
    """A supervisor in a process of its own, and what its children write down."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pid = 0
        self.terminal = -1

    def noted(self, run: Run) -> Run:
        """A child that writes down its process id when it starts."""

        def run_noted(lifeline: Lifeline) -> None:
            (self.folder / f"child.{time.monotonic_ns()}").write_text(str(os.getpid()))
            run(lifeline)

        return run_noted

    @property
    def started(self) -> list[int]:
        """The children that were started so far, in their order."""
        files = sorted(self.folder.glob("child.*"), key=lambda path: int(path.suffix[1:]))
        return [int(text) for path in files if (text := path.read_text())]

    @property
    def moments(self) -> list[float]:
        return sorted(int(path.suffix[1:]) / 1e9 for path in self.folder.glob("child.*"))

    @property
    def hangups(self) -> int:
        return len(list(self.folder.glob("hangup.*")))

    def tick(self) -> bool:
        self.note("turn")
        return self.happened("busy")

    def see_turns(self, count: int) -> None:
        """Wait for so many turns from now on; the first may have started before."""
        for _ in range(count + 1):
            (self.folder / "turn").unlink(missing_ok=True)
            eventually(lambda: self.happened("turn"))

    def hang_up(self) -> None:
        """Let its terminal go away."""
        os.close(self.terminal)
        self.terminal = -1

    def happened(self, what: str) -> bool:
        return (self.folder / what).exists()

    def note(self, what: str) -> None:
        (self.folder / what).touch()

    def fork(
        self, children: Sequence[Run], grace: float, constants: dict[str, float], shell: Shell | None
    ) -> None:
        # `forkpty` gives the child a terminal, of which we hold the other end.
        self.pid, self.terminal = pty.fork() if shell else (os.fork(), -1)
        if self.pid:
            return
        code = 1
        try:
            if shell:
                shell()
            # In this process only; there is no other way to make a minute short.
            for name, value in constants.items():
                setattr(supervisor, name, value)
            sys.stderr = (self.folder / "output").open("w")
            Supervisor(
                [Child(f"c{number}", self.noted(run)) for number, run in enumerate(children)],
                grace_seconds=grace,
                on_ready=lambda: self.note("ready"),
                on_stop=lambda: self.note("stopping"),
                on_start=lambda child: None,
                on_hangup=lambda: self.note(f"hangup.{time.monotonic_ns()}"),
                on_tick=self.tick,
            ).run()
            code = 0
        except StartFailed as failed:
            (self.folder / "failed").write_text(str(failed))
        finally:
            os._exit(code)


@contextmanager
def supervised(
    folder: Path,
    *children: Run,
    grace: float = 0.2,
    ready: bool = True,
    shell: Shell | None = None,
    **constants: float,
) -> Iterator[Harness]:
    harness = Harness(folder)
    harness.fork(children, grace, constants, shell)
    try:
        if ready:
            eventually(lambda: harness.happened("ready"), what="being ready")
        yield harness
    finally:
        for pid in (harness.pid, *harness.started):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(harness.pid, 0)
        if harness.terminal >= 0:
            os.close(harness.terminal)


def ended(harness: Harness) -> int:
    """The exit code of the supervisor, once it has one."""
    found: list[int] = []

    def look() -> bool:
        pid, status = os.waitpid(harness.pid, os.WNOHANG)
        if pid:
            found.append(os.waitstatus_to_exitcode(status))
        return bool(pid)

    eventually(look, within=10.0, what="the end of the supervisor")
    return found[0]


def gone(pids: Sequence[int]) -> bool:
    return not any(alive(pid) for pid in pids)


def test_it_is_ready_when_every_child_has_beaten(tmp_path: Path) -> None:
    def late(lifeline: Lifeline) -> None:
        eventually((tmp_path / "go").exists)
        until_stopped(lifeline)

    with supervised(tmp_path, until_stopped, late, ready=False) as harness:
        eventually(lambda: len(harness.started) == 2)
        assert not harness.happened("ready")
        harness.note("go")
        eventually(lambda: harness.happened("ready"))


def test_child_that_is_killed_is_replaced_and_the_others_live_on(tmp_path: Path) -> None:
    with supervised(tmp_path, until_stopped, until_stopped, TURN_SECONDS=60.0) as harness:
        first, second = harness.started
        os.kill(first, signal.SIGKILL)
        eventually(lambda: len(harness.started) == 3)
        assert not alive(first)
        assert alive(second)
        assert alive(harness.started[2])


def refuse_forks(monkeypatch: pytest.MonkeyPatch, *numbers: int) -> None:
    """Let the system have no process left at these forks."""
    fork, forks = os.fork, itertools.count(1)

    def fork_or_fail() -> int:
        if next(forks) in numbers:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return fork()

    monkeypatch.setattr(os, "fork", fork_or_fail)


def test_replacement_that_the_system_refuses_is_tried_again_and_the_others_live_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The supervisor, its children, then the replacement.
    refuse_forks(monkeypatch, 4, 5)
    with supervised(tmp_path, until_stopped, until_stopped, MAX_BACKOFF_SECONDS=0.05) as harness:
        first, second = harness.started
        os.kill(first, signal.SIGKILL)
        eventually(lambda: len(harness.started) == 3)
        assert alive(second)


def test_child_that_the_system_refuses_at_the_start_ends_it_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The supervisor, its first child, then the second.
    refuse_forks(monkeypatch, 3)
    with supervised(tmp_path, until_stopped, until_stopped, ready=False) as harness:
        assert ended(harness) == 1
        reason = (tmp_path / "failed").read_text()
        assert reason.startswith("c1 cannot be started: Resource temporarily unavailable. Allow this user more")
        assert gone(harness.started)


def test_child_that_dies_at_birth_is_started_ever_more_slowly(tmp_path: Path) -> None:
    def dies_after_the_first_time(lifeline: Lifeline) -> None:
        if len(list(tmp_path.glob("child.*"))) == 1:
            lifeline.beat()
            eventually((tmp_path / "ready").exists)
        os._exit(3)

    with supervised(tmp_path, dies_after_the_first_time) as harness:
        eventually(lambda: len(harness.started) >= 5)
        waits = [after - before for before, after in zip(harness.moments, harness.moments[1:], strict=False)]
        # The first has served, and the first that has not may have had bad luck.
        assert waits[2] >= 0.4
        assert waits[3] >= 0.8


def test_child_that_has_served_is_replaced_at_once_however_often_it_dies(tmp_path: Path) -> None:
    def serves(lifeline: Lifeline) -> None:
        lifeline.beat()
        (tmp_path / f"beaten.{os.getpid()}").touch()
        until_stopped(lifeline)

    def more_than(harness: Harness, count: int) -> bool:
        return len(harness.started) > count

    with supervised(tmp_path, serves, MAX_BACKOFF_SECONDS=3_600.0) as harness:
        # Ever more slowly, the eighth would take longer than we wait, and the last minutes.
        for count in range(1, 13):
            victim = harness.started[-1]
            eventually((tmp_path / f"beaten.{victim}").exists, what="a beat")
            os.kill(victim, signal.SIGKILL)
            eventually(partial(more_than, harness, count))


def test_child_that_lives_before_it_is_ready_is_not_killed(tmp_path: Path) -> None:
    def slow_to_start(lifeline: Lifeline) -> None:
        is_successor = len(list(tmp_path.glob("child.*"))) > 1
        if not is_successor:
            lifeline.beat()
            eventually((tmp_path / "ready").exists)
            os._exit(3)
        while not (tmp_path / "go").exists():
            lifeline.live()
            select.select([], [], [], 0.02)
        until_stopped(lifeline)

    with supervised(tmp_path, slow_to_start, HUNG_SECONDS=0.4, TURN_SECONDS=0.05) as harness:
        eventually(lambda: len(harness.started) == 2)
        harness.see_turns(20)  # more than a second
        assert alive(harness.started[1])
        assert len(harness.started) == 2
        harness.note("go")


def test_sibling_is_silent_while_it_is_dead_or_not_ready(tmp_path: Path) -> None:
    def watches(lifeline: Lifeline) -> None:
        while not select.select([lifeline.parent_pipe], [], [], 0.02)[0]:
            lifeline.beat()
            (tmp_path / "silent").write_text(str(lifeline.is_silent(1)))

    def dies(lifeline: Lifeline) -> None:
        (tmp_path / "dies").write_text(str(os.getpid()))
        if len(list(tmp_path.glob("child.*"))) > 3:
            eventually((tmp_path / "go").exists)
        until_stopped(lifeline)

    def silent() -> str:
        return (tmp_path / "silent").read_text()

    with supervised(tmp_path, until_stopped, watches, dies) as harness:
        eventually(lambda: silent() == "False")
        os.kill(int((tmp_path / "dies").read_text()), signal.SIGKILL)
        eventually(lambda: silent() == "True")
        harness.note("go")
        eventually(lambda: silent() == "False")


def test_child_that_dies_before_it_is_ready_fails_the_start(tmp_path: Path) -> None:
    def dies(_: Lifeline) -> None:
        raise ValueError("no luck")

    with supervised(tmp_path, until_stopped, dies, ready=False) as harness:
        assert ended(harness) == 1
        assert (tmp_path / "failed").read_text().startswith("c1 ended at its start")
        assert "no luck" in (tmp_path / "output").read_text()
        assert not harness.happened("ready")
        eventually(lambda: gone(harness.started))


def test_child_that_never_becomes_ready_fails_the_start(tmp_path: Path) -> None:
    def never(lifeline: Lifeline) -> None:
        select.select([lifeline.parent_pipe], [], [])

    with supervised(tmp_path, until_stopped, never, ready=False, START_SECONDS=0.3) as harness:
        assert ended(harness) == 1
        assert "Not ready" in (tmp_path / "failed").read_text()
        assert gone(harness.started)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stop_ends_every_child(tmp_path: Path, number: signal.Signals) -> None:
    with supervised(tmp_path, until_stopped, until_stopped, KILL_AFTER_SECONDS=3_600.0) as harness:
        os.kill(harness.pid, number)
        assert ended(harness) == 0
        assert gone(harness.started)
        assert harness.happened("stopping")
        assert len(harness.started) == 2


def test_children_are_given_time_to_stop_by_themselves(tmp_path: Path) -> None:
    def tidy(lifeline: Lifeline) -> None:
        stopping: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
        while not stopping:
            lifeline.beat()
            select.select([], [], [], 0.02)
        (tmp_path / "tidied").touch()

    with supervised(tmp_path, tidy, grace=5.0) as harness:
        os.kill(harness.pid, signal.SIGTERM)
        assert ended(harness) == 0
        assert harness.happened("tidied")


def test_child_that_does_not_stop_is_killed_after_the_grace(tmp_path: Path) -> None:
    def deaf(lifeline: Lifeline) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        lifeline.beat()
        while True:
            signal.pause()

    with supervised(tmp_path, deaf, until_stopped, grace=0.2, KILL_AFTER_SECONDS=0.2) as harness:
        start = time.monotonic()
        os.kill(harness.pid, signal.SIGTERM)
        assert ended(harness) == 0
        assert time.monotonic() - start >= 0.4
        assert gone(harness.started)


def test_children_see_that_their_parent_was_killed(tmp_path: Path) -> None:
    with supervised(tmp_path, until_stopped, until_stopped) as harness:
        os.kill(harness.pid, signal.SIGKILL)
        assert ended(harness) == -signal.SIGKILL
        eventually(lambda: gone(harness.started))


def test_replaced_child_also_sees_that_its_parent_was_killed(tmp_path: Path) -> None:
    with supervised(tmp_path, until_stopped, until_stopped) as harness:
        os.kill(harness.started[0], signal.SIGKILL)
        eventually(lambda: len(harness.started) == 3)
        os.kill(harness.pid, signal.SIGKILL)
        assert ended(harness) == -signal.SIGKILL
        eventually(lambda: gone(harness.started))


def test_child_that_no_longer_beats_is_killed_and_replaced(tmp_path: Path) -> None:
    def hangs_the_first_time(lifeline: Lifeline) -> None:
        if len(list(tmp_path.glob("child.*"))) > 1:
            until_stopped(lifeline)
        lifeline.beat()
        while True:
            signal.pause()

    with supervised(tmp_path, hangs_the_first_time, HUNG_SECONDS=0.4) as harness:
        (hung,) = harness.started
        eventually(lambda: len(harness.started) == 2)
        assert not alive(hung)
        assert alive(harness.started[1])


def test_hangup_is_reported_and_ends_no_process(tmp_path: Path) -> None:
    with supervised(tmp_path, until_stopped, until_stopped) as harness:
        for pid in (*harness.started, harness.pid):
            os.kill(pid, signal.SIGHUP)
        eventually(lambda: harness.hangups == 1)
        os.kill(harness.pid, signal.SIGHUP)
        eventually(lambda: harness.hangups == 2)
        assert all(map(alive, harness.started))
        assert len(harness.started) == 2


def test_hangup_before_everybody_is_ready_is_reported_later(tmp_path: Path) -> None:
    def late(lifeline: Lifeline) -> None:
        eventually((tmp_path / "go").exists)
        until_stopped(lifeline)

    with supervised(tmp_path, late, ready=False) as harness:
        eventually(lambda: harness.started)
        os.kill(harness.pid, signal.SIGHUP)
        harness.note("go")
        eventually(lambda: harness.hangups == 1)


def test_turns_come_soon_while_something_is_under_way(tmp_path: Path) -> None:
    with supervised(tmp_path, until_stopped, TURN_SECONDS=60.0) as harness:
        harness.note("busy")
        os.kill(harness.pid, signal.SIGHUP)  # wakes it
        harness.see_turns(3)


def test_terminal_that_goes_away_ends_what_was_started_on_it(tmp_path: Path) -> None:
    def plain() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

    with supervised(tmp_path, until_stopped, shell=plain) as harness:
        os.kill(harness.pid, signal.SIGHUP)
        eventually(lambda: harness.hangups == 1, what="a reload, while the terminal is there")
        harness.hang_up()
        assert ended(harness) == 0
        assert harness.hangups == 1
        assert gone(harness.started)


def test_nohup_outlives_its_terminal(tmp_path: Path) -> None:
    def nohup() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    with supervised(tmp_path, until_stopped, shell=nohup) as harness:
        harness.hang_up()
        eventually(lambda: harness.hangups == 1)
        os.kill(harness.pid, signal.SIGHUP)
        eventually(lambda: harness.hangups == 2)
        assert alive(harness.pid)


def test_what_a_terminal_left_running_is_reloaded_and_not_ended(tmp_path: Path) -> None:
    def in_background() -> None:
        # A job that the shell has let go: only the shell learns of the terminal's end.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        if os.fork():
            while True:
                signal.pause()
        os.setpgid(0, 0)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        (tmp_path / "pid").write_text(str(os.getpid()))

    with supervised(tmp_path, until_stopped, shell=in_background, TURN_SECONDS=0.02) as harness:
        pid = int((tmp_path / "pid").read_text())
        try:
            harness.hang_up()
            harness.see_turns(2)
            assert harness.hangups == 0
            os.kill(pid, signal.SIGHUP)
            eventually(lambda: harness.hangups == 1)
            harness.see_turns(2)
            assert alive(pid)
        finally:
            os.kill(pid, signal.SIGKILL)
