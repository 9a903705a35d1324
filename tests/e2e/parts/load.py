"""Callers that go on and on, each on a connection of its own, and what became of every request."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .wire import Wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BROKEN = 0
"""The status of a request that got no whole answer."""


@dataclass(frozen=True)
class Outcome:
    """What became of one request."""

    caller: int
    began: float
    ended: float
    status: int
    closing: bool = False
    """Whether the answer said that the connection ends with it."""


class Load:
    """Several callers, until told to stop."""

    def __init__(self, wires: list[Wire], request: bytes, reopen: Callable[[], Wire] | None) -> None:
        self.outcomes: list[Outcome] = []
        self._request = request
        self._reopen = reopen
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=self._go_on, args=(number, wire), daemon=True)
            for number, wire in enumerate(wires)
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
        """Give the requests that began after a moment."""
        return [outcome for outcome in list(self.outcomes) if outcome.began >= moment]

    def _go_on(self, number: int, wire: Wire | None) -> None:
        while wire is not None and not self._stopped.is_set():
            began = time.monotonic()
            try:
                wire.send(self._request)
                answer = wire.read()
            except (OSError, EOFError):
                self.outcomes.append(Outcome(number, began, time.monotonic(), BROKEN))
                wire = self._another(wire)
                continue
            closing = answer.headers.get("connection") == "close"
            self.outcomes.append(Outcome(number, began, time.monotonic(), answer.status, closing))
            if closing:
                wire = self._another(wire)
        if wire is not None:
            wire.socket.close()

    def _another(self, wire: Wire) -> Wire | None:
        wire.socket.close()
        while self._reopen is not None and not self._stopped.is_set():
            try:
                return self._reopen()
            except OSError:
                self._stopped.wait(0.01)
        return None


@contextmanager
def load(wires: list[Wire], request: bytes, *, reopen: Callable[[], Wire] | None = None) -> Iterator[Load]:
    """Send one request over and over on each connection; a broken one is opened anew if `reopen` says how."""
    callers = Load(wires, request, reopen)
    callers.start()
    try:
        yield callers
    finally:
        callers.stop()
