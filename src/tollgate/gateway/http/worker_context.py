"""What all connections of a worker share: the pipeline, bounds, the outbox, what is under way, the clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from email.utils import formatdate
from typing import Any, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from tollgate.gateway.http import response
from tollgate.gateway.http.connection_counts import ConnectionCounts
from tollgate.gateway.http.outbox import WorkerOutbox
from tollgate.gateway.http.request import RequestReader
from tollgate.gateway.http.under_way import HttpCaller, UnderWay
from tollgate.gateway.memory_budget import SMALL, Budget
from tollgate.gateway.messages import Answer, Request, ServedNetwork
from tollgate.gateway.recording.counters import Counters
from tollgate.gateway.recording.journal import Journal
from tollgate.gateway.tracing import Tracer
from tollgate.settings.model import LimitSettings
from tollgate.shm import metrics


class Idle(Protocol):
    """A connection that may have waited too long."""

    def check(self, now: float) -> None:
        """Close it if so."""


class SlowPath(Protocol):
    """Answers requests that the fast path does not take."""

    def answer(self, request: Request) -> Answer | Coroutine[Any, Any, Answer | None] | None:
        """Answer at once, later by `Request.connection`, or by a coroutine to run."""

    def outcome(self, request: Request, task: asyncio.Task[Answer | None]) -> Answer | None:
        """The answer of a coroutine that has ended, or a refusal instead; None: it comes later."""

    def failed(self, request: Request, error: BaseException | None) -> Answer:
        """The answer to a request that ended with a defect."""


class Answering(Struct):
    """What reads and answers requests."""

    pipeline: SlowPath
    reader: RequestReader
    tracer: Tracer | None = None
    """Makes spans; None: nothing is traced."""


class Recording(Struct):
    """Where answers are counted and recorded."""

    counters: Counters
    writer: metrics.Writer
    journal: Journal
    write: Callable[[], None]
    """Writes what the journal took to the disk."""


class Bounds(Struct, frozen=True):
    """What the connections of a worker may take together."""

    budget: Budget
    max_bytes: int
    """Of a request's body."""
    max_in_flight: int
    max_connections: int
    keep_alive_seconds: float
    read_seconds: float
    addresses: ConnectionCounts = field(default_factory=ConnectionCounts)
    """Connections by client address."""


class Clocks(Struct, frozen=True):
    """The monotonic clock, and the time of day."""

    now: Callable[[], float]
    time: Callable[[], float]


class ResponseHeads:
    """Header lines that every answer has."""

    __slots__ = ("_constant", "date", "ok_head")

    def __init__(self, constant: bytes = b"") -> None:
        self._constant = constant
        self.date = constant
        """The date, and what never changes."""
        self.ok_head = response.ok_head(constant)
        """The head of every answer with status 200, up to the request's id."""

    def tick(self, time: float) -> None:
        """Once a second: write the date."""
        self.date = b"date: %b\r\n%b" % (formatdate(time, usegmt=True).encode(), self._constant)
        self.ok_head = response.ok_head(self.date)


class WorkerContext:
    """What all connections of a worker share. What every call reads is a slot here, without a hop."""

    # Slots: with more than thirty attributes Python looks each up in a dictionary.
    __slots__ = (
        "_cells",
        "_writer",
        "addresses",
        "admit",
        "begin",
        "bounds",
        "budget",
        "calls",
        "clock",
        "connections",
        "counted_from",
        "counters",
        "draining",
        "epoch",
        "heads",
        "ids",
        "journal",
        "max_bytes",
        "max_in_flight",
        "now",
        "ok_head",
        "outbox",
        "pipeline",
        "reader",
        "tasks",
        "time",
        "tracer",
        "under_way",
        "upgraded",
    )

    def __init__(
        self, answering: Answering, recording: Recording, bounds: Bounds, clocks: Clocks, heads: ResponseHeads
    ) -> None:
        self.pipeline, self.reader, self.tracer = answering.pipeline, answering.reader, answering.tracer
        self.ids = answering.reader.ids
        self.begin: Callable[[HttpCaller, Request], bool] = _start_nothing
        """Starts the call of a request that was read; False: nothing was done."""
        self.admit: Callable[[Request], Any] = _admit_nothing
        """Admits a caller that is in memory; None: its calls take the slow path."""
        self.counters, self.journal, self._writer = recording.counters, recording.journal, recording.writer
        self._cells = [
            self._writer.cell(spec) for spec in (metrics.CONNECTIONS, metrics.IN_FLIGHT, metrics.BUFFERED_BYTES)
        ]
        self.budget, self.addresses = bounds.budget, bounds.addresses
        self._bound(bounds)
        self.now, self.time = clocks.now, clocks.time
        self.heads, self.ok_head = heads, heads.ok_head
        self.outbox = WorkerOutbox(recording.journal, recording.write, bounds.budget, clocks.now)
        self.under_way = UnderWay(clocks.now)
        self.calls, self.tasks = self.under_way.calls, self.under_way.tasks
        self.epoch = 0
        """Raised by every change of grants, settings or the store: admissions of before are void then."""
        self.connections: set[Idle] = set()
        self.upgraded = 0
        """Connections that have become WebSockets, or are in their TLS handshake: each is an open file, too."""
        self.draining = False
        self.clock = clocks.now()
        """The time of the last tick: exact enough for idle connections, and costs nothing."""

    def change(self, networks: Iterable[ServedNetwork], limits: LimitSettings) -> None:
        """Apply networks and limits; requests under way continue with the old ones."""
        self.reader.change(networks, limits.body_bytes)
        self.budget.max_bytes, self.budget.least_part = limits.buffer_bytes, limits.body_bytes
        self._bound(replace(self.bounds, max_bytes=limits.body_bytes, max_in_flight=limits.in_flight))
        self.renew()

    def _bound(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.max_bytes, self.max_in_flight = bounds.max_bytes, bounds.max_in_flight
        self.counted_from = min(SMALL, bounds.max_bytes)
        """Bodies larger than this count against the budget."""

    def renew(self) -> None:
        """Void all admissions."""
        self.epoch += 1

    def drain(self) -> None:
        """Start to stop."""
        self.draining = True
        self.renew()

    def tick(self) -> None:
        """Once a second: the date, the gauges, and connections that have waited too long."""
        self.heads.tick(self.time())
        self.ok_head = self.heads.ok_head
        for cell, value in zip(
            self._cells, (len(self.connections), len(self.under_way), self.budget.held), strict=True
        ):
            self._writer.set(cell, value)
        self.clock = self.now()
        self.journal.tick()
        for connection in list(self.connections):
            connection.check(self.clock)


def _admit_nothing(_request: Request) -> None:
    return None


def _start_nothing(_connection: HttpCaller, _request: Request) -> bool:
    return False
