"""What leaves at the end of a loop iteration: requests to upstreams, and answers after their records.

The outbox is flushed once per iteration. First all requests leave: sent together, they wake an upstream only once.
Then the records of all answers are written at once, and the answers leave.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from tollgate import log
from tollgate.gateway.memory_budget import SMALL, Budget
from tollgate.gateway.messages import Request
from tollgate.gateway.recording.journal import Journal, Recordable

_log = log.get("gateway")


class Leaving(Protocol):
    """A connection that answers leave on."""

    def leave(self, answer: Outgoing) -> None:
        """Send an answer whose record is written."""


class Outgoing(Recordable, Protocol):
    """An answer on its way out: a call, or an `Answered`."""

    data: bytes

    @property
    def connection(self) -> Leaving:
        """Where it leaves."""

    @property
    def close(self) -> bool:
        """Whether the connection closes after it."""


class Answered(Struct):
    """An answer of the slow path on its way out."""

    connection: Leaving
    data: bytes
    request: Request | None = None
    close: bool = False

    @property
    def request_id(self) -> bytes:
        return self.request.request_id if self.request is not None else b""

    def record(self, journal: Journal, at: bytes, now: float) -> None:
        if self.request is not None:
            self.request.record(journal, at, now)


class Countable(Protocol):
    """Counts answers, and adds them to the metrics once per loop iteration."""

    def count(self, now: float) -> None:
        """Add them."""


class WorkerOutbox:
    """Requests and answers of this loop iteration."""

    __slots__ = ("_budget", "_journal", "_loop", "_now", "_write", "answers", "counted", "flushing", "requests")

    def __init__(
        self, journal: Journal, write: Callable[[], None], budget: Budget, now: Callable[[], float]
    ) -> None:
        self._journal = journal
        self._write = write
        """Writes what the journal took to the disk."""
        self._budget = budget
        self._now = now
        self._loop = asyncio.get_running_loop()
        self.answers: list[Outgoing] = []
        """What adds one here or to `requests` calls `flush_later`, unless `flushing` is set."""
        self.requests: list[tuple[asyncio.Transport, bytes]] = []
        """Requests to upstreams."""
        self.counted: list[Countable] = []
        """What has counted answers."""
        self.flushing = False
        """Whether a flush is scheduled."""

    def put(self, answer: Outgoing) -> None:
        """Let an answer leave, after its record."""
        if not self.flushing:
            self.flush_later()
        self.answers.append(answer)

    def put_request(self, request: tuple[asyncio.Transport, bytes]) -> None:
        """Let a request to an upstream leave."""
        if not self.flushing:
            self.flush_later()
        self.requests.append(request)

    def flush_later(self) -> None:
        """Flush at the end of this loop iteration."""
        self.flushing = True
        self._loop.call_soon(self._flush)

    def count_large(self, data: bytes) -> None:
        """Count an answer until it has left: it is a copy of its upstream's answer, whose memory is freed now.

        To be called after `put`. What its caller does not read is counted by the connection.
        """
        if len(data) > SMALL:
            self._budget.held += len(data)
            self._loop.call_soon(self._budget.free, len(data))

    def _flush(self) -> None:
        # First: after any failure below, the next to put something in must find it empty and schedule a flush.
        self.flushing = False
        requests, self.requests = self.requests, []
        answers, self.answers = self.answers, []
        for transport, data in requests:
            try:
                if not transport.is_closing():
                    transport.write(data)
            except Exception:  # noqa: BLE001 - one connection must not hold up the requests of others
                _log.exception("a request could not leave")
                transport.abort()
        if answers:
            self._answer_all(answers)

    def _answer_all(self, answers: list[Outgoing]) -> None:
        counted, self.counted = self.counted, []
        now = self._now()
        for counter in counted:
            counter.count(now)
        try:
            self._journal.write(answers)
            self._write()
        finally:
            for each in answers:
                try:
                    each.connection.leave(each)
                except Exception:  # noqa: BLE001 - one connection must not hold up the answers of others
                    _log.exception("an answer could not leave")
