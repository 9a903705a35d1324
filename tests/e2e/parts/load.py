"""Callers that go on and on, each on a connection of its own, and what became of every request."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .raw_http import RawConnection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BROKEN = 0
"""The status of a request that got no whole answer."""


@dataclass(frozen=True)
class Outcome:
    """What became of one request."""

    caller: int
    started: float
    ended: float
    status: int
    closing: bool = False
    """Whether the answer announced the end of the connection."""


class Load:
    """Several callers, until they are stopped."""

    def __init__(
        self, connections: list[RawConnection], request: bytes, reopen: Callable[[], RawConnection] | None
    ) -> None:
        self.outcomes: list[Outcome] = []
        self._request = request
        self._reopen = reopen
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=self._go_on, args=(number, connection), daemon=True)
            for number, connection in enumerate(connections)
        ]

    def __len__(self) -> int:
        return len(self.outcomes)

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let each caller have its last answer, and end."""
        self._stopped.set()
        self.join()

    def join(self) -> None:
        """Wait until all callers have ended."""
        for thread in self._threads:
            thread.join(30)
            if thread.is_alive():
                raise AssertionError("a caller hangs")

    def since(self, moment: float) -> list[Outcome]:
        """Give the requests that were sent after a moment."""
        return [outcome for outcome in list(self.outcomes) if outcome.started >= moment]

    def _go_on(self, number: int, connection: RawConnection | None) -> None:
        while connection is not None and not self._stopped.is_set():
            started = time.monotonic()
            try:
                connection.send(self._request)
                answer = connection.read()
            except (OSError, EOFError):
                self.outcomes.append(Outcome(number, started, time.monotonic(), BROKEN))
                connection = self._another(connection)
                continue
            closing = answer.headers.get("connection") == "close"
            self.outcomes.append(Outcome(number, started, time.monotonic(), answer.status, closing))
            if closing:
                connection = self._another(connection)
        if connection is not None:
            connection.socket.close()

    def _another(self, connection: RawConnection) -> RawConnection | None:
        connection.socket.close()
        while self._reopen is not None and not self._stopped.is_set():
            try:
                return self._reopen()
            except OSError:
                self._stopped.wait(0.01)
        return None


@contextmanager
def load(
    connections: list[RawConnection], request: bytes, *, reopen: Callable[[], RawConnection] | None = None
) -> Iterator[Load]:
    """Send one request over and over on each connection; a broken one is replaced by `reopen`."""
    callers = Load(connections, request, reopen)
    callers.start()
    try:
        yield callers
    finally:
        callers.stop()
