"""What all connections of a worker share: who answers, bounds, the outbox, the clock of idle connections, the end.

The outbox is flushed once a loop turn: first the records of all answers, by one write, then the answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from email.utils import formatdate
from typing import Any, Protocol

from msgspec import Struct

from tollgate import log
from tollgate.core import addresses
from tollgate.gateway.http import response
from tollgate.gateway.http.known_heads import Admitted
from tollgate.gateway.http.request import RequestReader
from tollgate.gateway.memory_budget import SMALL, Budget
from tollgate.gateway.messages import Answer, Request, ServedNetwork
from tollgate.gateway.recording.counters import Counters
from tollgate.gateway.recording.journal import Journal, Recordable
from tollgate.gateway.tracing import Tracer
from tollgate.settings.model import LimitSettings
from tollgate.shm import metrics

_log = log.get("gateway")
# How often calls under way are compared with what their upstreams usually take.
HEDGE_SWEEP_SECONDS = 0.005
# A network has as many connections as so many addresses: who has one of IPv6 may well have 65,536 /64s.
NETWORK_ADDRESSES = 2


class ConnectionCounts:
    """How many connections each client address has open, and each network (`network_of`)."""

    def __init__(self, trusted: tuple[addresses.Network, ...] = (), max_connections: int = 0) -> None:
        self._trusted = trusted
        self._max = max_connections
        """0: any number."""
        self._open: dict[str, int] = {}

    def key(self, peer: str) -> str:
        """What is counted for an address; empty where nothing is."""
        if not self._max or not peer or addresses.is_within(peer, self._trusted):
            return ""
        return addresses.limit_key(peer)

    def enter(self, peer: str, kind: str = "") -> str:
        """Count a connection, by itself if it is of a kind; what `leave` takes back."""
        if not (key := self.key(peer)):
            return ""
        key = kind + key
        for each in (key, _network_key(key)):
            self._open[each] = self._open.get(each, 0) + 1
        return key

    def is_crowded(self, key: str) -> bool:
        """Whether an address has too many, or its network."""
        of_network = self._open.get(_network_key(key), 0)
        return self._open.get(key, 0) > self._max or of_network > NETWORK_ADDRESSES * self._max

    def leave(self, key: str) -> None:
        """Count a connection no more."""
        if key in self._open:
            for each in (key, _network_key(key)):
                self._open[each] -= 1
                if not self._open[each]:
                    del self._open[each]


def _network_key(key: str) -> str:
    kind, space, address = key.rpartition(" ")
    return kind + space + addresses.network_of(address)


class Idle(Protocol):
    """A connection that may have waited too long."""

    def check(self, now: float) -> None:
        """Close it if so."""


class Leaving(Protocol):
    """A connection with answers that may leave."""

    def leave(self, answer: Outgoing) -> None:
        """Send an answer whose record is written."""


class Outgoing(Recordable, Protocol):
    """An answer on its way out: a straight call, or what `WorkerContext.send` makes."""

    data: bytes

    @property
    def connection(self) -> Leaving:
        """Where it leaves."""

    @property
    def close(self) -> bool:
        """Whether the connection closes after it."""


class Answered(Struct):
    """An answer of the general way on its way out."""

    connection: Leaving
    data: bytes
    request: Request | None
    close: bool

    @property
    def request_id(self) -> bytes:
        return self.request.request_id if self.request is not None else b""

    def record(self, _at: bytes, _now: float) -> Request | None:
        return self.request


class CallUnderWay(Outgoing, Protocol):
    """A call or a batch that waits for its answer."""

    def hedge_if_late(self, now: float) -> None:
        """Send a second attempt where the first takes too long."""

    def stop(self) -> None:
        """Answer with a refusal: the service stops."""


class ConnectionCall(CallUnderWay, Protocol):
    """The call object of a connection. It gets back the admissions that it was given by `FastPath`."""

    def start(self, admission: Admitted, body: bytes) -> bool:
        """Send a call on the fast path; False: nothing was done."""

    def go(self, admission: Admitted, body: bytes) -> bool:
        """Start a call of any kind; False: nothing was done, it is a batch or to be refused."""


class CallerSide(Leaving, Protocol):
    """What a call needs of its caller's connection."""

    answering: CallUnderWay | Request | None
    """What is being answered."""

    @property
    def eof(self) -> bool:
        """Whether the caller has sent its last byte, or there is no HTTP to be written."""

    @property
    def closing(self) -> bool:
        """Whether the connection closes after this answer."""

    def answered(self, request: Request, answer: Answer) -> None:
        """Send an answer that the call does not write itself."""


class HttpCaller(CallerSide, Protocol):
    """A connection that uses one call object for one request after the other."""

    call: ConnectionCall | None
    admission: Admitted | None

    def begin(self, request: Request) -> None:
        """Wait for an answer of the slow path."""


class Cancellable(Protocol):
    """A request under way on the general way, or the task that answers it."""

    def cancel(self) -> object:
        """End it with a refusal: the service stops."""


class Countable(Protocol):
    """Counts answers, and adds them to the metrics once a loop turn."""

    def count(self, now: float) -> None:
        """Add them."""


class GeneralPipeline(Protocol):
    """Answers requests by the general way."""

    def answer(self, request: Request) -> Answer | Coroutine[Any, Any, Answer | None] | None:
        """Answer at once, later by `Request.done`, or by a coroutine to run."""

    def outcome(self, request: Request, task: asyncio.Task[Answer | None]) -> Answer | None:
        """The answer that a finished coroutine gave, or the refusal that stands for it; None: it comes later."""

    def failed(self, request: Request, error: BaseException | None) -> Answer:
        """The answer to a request that a defect has ended."""


class WorkerContext:
    """What all connections of a worker share."""

    # Slots: with more than thirty attributes Python looks each up in a dictionary, and every call comes by.
    __slots__ = (
        "_cells",
        "_constant_headers",
        "_loop",
        "_write",
        "_writer",
        "addresses",
        "admit",
        "begin",
        "budget",
        "calls",
        "clock",
        "connections",
        "counted",
        "counted_from",
        "counters",
        "date",
        "draining",
        "epoch",
        "flushing",
        "hedging",
        "ids",
        "journal",
        "keep_alive_seconds",
        "max_bytes",
        "max_connections",
        "max_in_flight",
        "now",
        "ok_head",
        "outbox",
        "pipeline",
        "read_seconds",
        "reader",
        "tasks",
        "time",
        "tracer",
        "upgraded",
        "upstream_requests",
    )

    def __init__(
        self,
        pipeline: GeneralPipeline,
        reader: RequestReader,
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
        by_address: ConnectionCounts | None = None,
        constant_headers: bytes = b"",
        tracer: Tracer | None = None,
    ) -> None:
        self.tracer = tracer
        """Makes spans; None: nothing is traced."""
        self.addresses = by_address or ConnectionCounts()
        self.pipeline = pipeline
        self.begin: Callable[[HttpCaller, Request], bool] = _nothing_straight
        """Starts the call of a request that was read; False: nothing was done."""
        self.admit: Callable[[Request], Any] = _nobody_let_in
        """Admits a caller that is in memory; None: its calls take the slow path."""
        self.reader = reader
        self.ids = reader.ids
        self.counters = counters
        self.budget = budget
        self.journal = journal
        self._write = write
        """Puts what the journal took on the disk."""
        self.epoch = 0
        """Raised by every change of grants, settings or the store: what connections keep is void then."""
        self.calls: set[CallUnderWay] = set()
        """Straight calls under way."""
        self.tasks: set[Cancellable] = set()
        """Requests under way on the general way."""
        self.counted: list[Countable] = []
        """What has counted answers of this loop turn."""
        self.outbox: list[Outgoing] = []
        """Answers of this loop turn. Whoever puts one in calls `flush_later`, unless it is `flushing`."""
        self.upstream_requests: list[tuple[asyncio.Transport, bytes]] = []
        """Requests to upstreams of this loop turn, likewise: sent together, they wake an upstream only once."""
        self.flushing = False
        """Whether both leave at the end of this loop turn."""
        self.max_connections = max_connections
        self.keep_alive_seconds = keep_alive_seconds
        self.read_seconds = read_seconds
        self._bound(max_bytes, max_in_flight)
        self.now = now
        self.time = time
        self._writer = writer
        self._cells = [
            writer.cell(spec) for spec in (metrics.CONNECTIONS, metrics.IN_FLIGHT, metrics.BUFFERED_BYTES)
        ]
        self.connections: set[Idle] = set()
        self.upgraded = 0
        """Connections that have become WebSockets, or are in their TLS handshake: each is an open file, too."""
        self.draining = False
        self._constant_headers = constant_headers
        self.date = constant_headers
        """Header lines of every answer: the date, and what never changes."""
        self.ok_head = response.ok_head(self.date)
        """The head of every answer with status 200, up to the request's id."""
        self.clock = now()
        """The time of the last tick: exact enough for idle connections, and costs nothing."""
        self._loop = asyncio.get_running_loop()
        self.hedging = False
        """Whether a sweep for late calls is scheduled."""

    @property
    def in_flight(self) -> int:
        """Requests under way."""
        return len(self.calls) + len(self.tasks)

    def change(self, networks: Iterable[ServedNetwork], limits: LimitSettings) -> None:
        """Take over networks and limits; what was begun goes on."""
        self.reader.change(networks, limits.body_bytes)
        self.budget.max_bytes, self.budget.least_part = limits.buffer_bytes, limits.body_bytes
        self._bound(limits.body_bytes, limits.in_flight)
        self.renew()

    def renew(self) -> None:
        """Void what connections keep of their callers."""
        self.epoch += 1

    def drain(self) -> None:
        """Begin to stop."""
        self.draining = True
        self.renew()

    def _bound(self, max_bytes: int, max_in_flight: int) -> None:
        self.max_bytes = max_bytes
        self.counted_from = min(SMALL, max_bytes)
        self.max_in_flight = max_in_flight

    def tick(self) -> None:
        """Once a second: the date, the gauges, and connections that have waited too long."""
        date = formatdate(self.time(), usegmt=True).encode()
        self.date = b"date: %b\r\n%b" % (date, self._constant_headers)
        self.ok_head = response.ok_head(self.date)
        for cell, value in zip(
            self._cells, (len(self.connections), self.in_flight, self.budget.held), strict=True
        ):
            self._writer.set(cell, value)
        self.clock = self.now()
        self.journal.tick()
        for connection in list(self.connections):
            connection.check(self.clock)

    # --- The general way -------------------------------------------------------------------------------

    def start(
        self, answering: Coroutine[Any, Any, Answer | None], done: Callable[[asyncio.Task[Answer | None]], None]
    ) -> asyncio.Task[Answer | None]:
        """Run the coroutine of a request as a task; `done` is called with it at the end."""
        task = self._loop.create_task(answering)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        task.add_done_callback(done)
        return task

    # --- Late calls ------------------------------------------------------------------------------------

    def sweep_later(self) -> None:
        """Compare the calls under way with what their upstreams usually take, in a moment."""
        self.hedging = True
        self._loop.call_later(HEDGE_SWEEP_SECONDS, self._sweep)

    def _sweep(self) -> None:
        self.hedging = False
        if self.calls:
            now = self.now()
            for call in list(self.calls):
                call.hedge_if_late(now)
            self.sweep_later()

    # --- The outbox ------------------------------------------------------------------------------------

    def send(
        self, connection: Leaving, data: bytes, request: Request | None = None, *, close: bool = False
    ) -> None:
        """Let an answer leave at the end of this loop turn, when all records are written, also of its request."""
        self.put(Answered(connection, data, request, close))

    def put(self, answer: Outgoing) -> None:
        """Put an answer into the outbox."""
        if not self.flushing:
            self.flush_later()
        self.outbox.append(answer)

    def send_upstream(self, request: tuple[asyncio.Transport, bytes]) -> None:
        """Let a request to an upstream leave at the end of this loop turn."""
        if not self.flushing:
            self.flush_later()
        self.upstream_requests.append(request)

    def flush_later(self) -> None:
        """Let requests and answers leave at the end of this loop turn."""
        self.flushing = True
        self._loop.call_soon(self._flush)

    def count_large(self, data: bytes) -> None:
        """Count an answer until it has left: it is a copy of its upstream's answer, whose memory is freed now.

        To be called after `send`. What its caller does not take is counted by the connection.
        """
        if len(data) > SMALL:
            self.budget.held += len(data)
            self._loop.call_soon(self.budget.free, len(data))

    def _flush(self) -> None:
        # First: whatever happens below, what comes next must find empty boxes, or nobody empties them again.
        self.flushing = False
        requests, self.upstream_requests = self.upstream_requests, []
        outbox, self.outbox = self.outbox, []
        for transport, data in requests:
            try:
                if not transport.is_closing():
                    transport.write(data)
            except Exception:  # noqa: BLE001 - one connection must not keep the requests of others
                _log.exception("a request could not leave")
                transport.abort()
        if outbox:
            self._answer_all(outbox)

    def _answer_all(self, outbox: list[Outgoing]) -> None:
        counted, self.counted = self.counted, []
        now = self.now()
        for counter in counted:
            counter.count(now)
        try:
            self.journal.write(outbox)
            self._write()
        finally:
            for each in outbox:
                try:
                    each.connection.leave(each)
                except Exception:  # noqa: BLE001 - one connection must not keep the answers of others
                    _log.exception("an answer could not leave")

    def stop(self) -> None:
        """At the end of the grace: answer what is still under way, with a refusal."""
        while self.calls:
            # Those that wait for its answer are refused with it, and leave the set.
            self.calls.pop().stop()
        for task in list(self.tasks):
            task.cancel()


def _nobody_let_in(_request: Request) -> None:
    return None


def _nothing_straight(_connection: HttpCaller, _request: Request) -> bool:
    return False
