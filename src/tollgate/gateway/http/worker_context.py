"""What all connections of a worker share: the pipeline, the bounds, the clock of idle connections, the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from email.utils import formatdate
from typing import Protocol

from tollgate import log
from tollgate.gateway.call.pipeline import Pipeline
from tollgate.gateway.http import request
from tollgate.gateway.memory_budget import SMALL, Budget
from tollgate.gateway.messages import Answer, Network
from tollgate.gateway.recording.counters import Counters
from tollgate.gateway.recording.journal import Journal
from tollgate.gateway.upstream.completion import Flight
from tollgate.settings.model import LimitSettings
from tollgate.shm import metrics

_log = log.get("gateway")


class Waiting(Protocol):
    """A connection that may have waited too long."""

    def check(self, now: float) -> None:
        """Close it if so."""
        ...


class Leaving(Protocol):
    """A connection with an answer that may leave."""

    def leave(self, data: bytes, *, close: bool) -> None:
        """Send it."""
        ...


class WorkerContext:
    """What all connections of a worker share."""

    def __init__(
        self,
        pipeline: Pipeline,
        door: request.RequestReader,
        counters: Counters,
        writer: metrics.Writer,
        budget: Budget,
        journal: Journal,
        write: Callable[[], None],
        *,
        max_bytes: int,
        max_connections: int,
        max_in_flight: int,
        keep_alive_seconds: float,
        read_seconds: float,
        now: Callable[[], float],
        time: Callable[[], float],
    ) -> None:
        self.pipeline = pipeline
        self.intake = door
        self.counters = counters
        self.budget = budget
        self.journal = journal
        self._write = write
        """Puts what the journal took on the disk."""
        self._outbox: list[tuple[Leaving, bytes, bool]] = []
        self.max_connections = max_connections
        self.keep_alive_seconds = keep_alive_seconds
        self.read_seconds = read_seconds
        self._bound(max_bytes, max_in_flight)
        self.now = now
        self._time = time
        self._writer = writer
        self._cells = [
            writer.cell(spec) for spec in (metrics.CONNECTIONS, metrics.IN_FLIGHT, metrics.BUFFERED_BYTES)
        ]
        self.connections: set[Waiting] = set()
        self.flights: set[Flight[Answer]] = set()
        self.draining = False
        self.date = b""
        self.clock = now()
        """The time of the last tick: exact enough for idle connections, and costs nothing."""

    def change(self, networks: Iterable[Network], limits: LimitSettings) -> None:
        """Take over networks and limits; what was begun goes on."""
        self.intake.change(networks, limits.body_bytes)
        self.budget.most = limits.buffer_bytes
        self._bound(limits.body_bytes, limits.in_flight)

    def _bound(self, max_bytes: int, max_in_flight: int) -> None:
        self.max_bytes = max_bytes
        self.weighed_from = min(SMALL, max_bytes)
        self.max_in_flight = max_in_flight

    def tick(self) -> None:
        """Once a second: the date, the gauges, and connections that have waited too long."""
        self.date = b"date: %b\r\n" % formatdate(self._time(), usegmt=True).encode()
        for cell, value in zip(
            self._cells, (len(self.connections), len(self.flights), self.budget.held), strict=True
        ):
            self._writer.set(cell, value)
        self.clock = self.now()
        self.journal.tick()
        for connection in list(self.connections):
            connection.check(self.clock)

    def send(self, connection: Leaving, data: bytes, *, close: bool) -> None:
        """Let an answer leave at the end of this turn of the loop, when all of its records are written."""
        self._outbox.append((connection, data, close))
        if len(self._outbox) == 1:
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        # Taken first: whatever happens below, the next answer must find an empty box, or nobody empties it again.
        outbox, self._outbox = self._outbox, []
        try:
            self.journal.flush()
            self._write()
        finally:
            for connection, data, close in outbox:
                try:
                    connection.leave(data, close=close)
                except Exception:  # noqa: BLE001 - one connection must not keep the answers of others
                    _log.exception("an answer could not leave")

    def stop(self) -> None:
        """At the end of the grace: answer what is still under way, with a refusal."""
        for flight in list(self.flights):
            flight.cancel()
