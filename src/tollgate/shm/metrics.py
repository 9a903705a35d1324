"""Metrics: what is counted, and how counts of many processes become one page.

Each process of the service has a region of shared memory in which it alone writes; the metrics listener adds
the regions up. A process that ends leaves its region to its successor, so counters never fall. A cell is an
integer: adding to it costs a look-up and a store, which is why the cells are ours and only the page
(`processes/metrics_page.py`) is made by prometheus-client: its multi-process mode takes a lock for each sample.

The reference page `docs/reference/metrics.md` is generated from the table below.
"""

from __future__ import annotations

import mmap
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from enum import Enum

import msgspec
from msgspec import Struct


class MetricKind(Enum):
    """How a metric behaves."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Spec(Struct, frozen=True):
    """One metric. Histograms are in microseconds inside and in seconds on the page."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    divisor: int = 1
    """What a cell's value is divided by on the page: cells are integers."""
    greatest: bool = False
    """Whether the greatest value of all processes and nodes counts, not their sum."""

    @property
    def page_name(self) -> str:
        """Its name on the page; a histogram's has `_bucket`, `_sum` and `_count` behind it."""
        return f"{self.name}_total" if self.kind is MetricKind.COUNTER else self.name


GONE = -1
"""The value of a gauge whose subject is gone: it is not shown. For gauges that one process alone sets."""

BUCKETS_MICROSECONDS = (
    250,
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    10_000_000,
)

REQUESTS = Spec(
    "tollgate_requests",
    MetricKind.COUNTER,
    "HTTP requests under /x/ that were answered, by status.",
    ("family", "network", "status"),
)
CALLS = Spec(
    "tollgate_calls",
    MetricKind.COUNTER,
    "JSON-RPC calls of known callers, by method (`other` outside the catalogue) and outcome "
    "(`ok`, `node_error`, or the reason of the refusal).",
    ("family", "network", "method", "outcome"),
)
REFUSALS = Spec(
    "tollgate_refusals",
    MetricKind.COUNTER,
    "Requests that were refused as a whole, by reason.",
    ("reason",),
)
REQUEST_SECONDS = Spec(
    "tollgate_request_seconds",
    MetricKind.HISTOGRAM,
    "Time from a request of a known caller, read whole, to its answer, by outcome (`ok`; `node_error`; `refused`: "
    "no upstream answered). A batch counts once, as `ok` where one of its calls is.",
    ("family", "network", "outcome"),
)
UPSTREAM_ATTEMPTS = Spec(
    "tollgate_upstream_attempts",
    MetricKind.COUNTER,
    "Attempts at an upstream, by outcome (`ok`, `connect`, `broken`, `status`, `nonsense`, `timeout`, `full`, "
    "`too_large`, `no_room`).",
    ("family", "network", "upstream", "outcome"),
)
UPSTREAM_SECONDS = Spec(
    "tollgate_upstream_seconds",
    MetricKind.HISTOGRAM,
    "Time an upstream took to answer.",
    ("family", "network", "upstream"),
)
UPSTREAM_HEDGES = Spec(
    "tollgate_upstream_hedges",
    MetricKind.COUNTER,
    "Second attempts at reads that took longer than usual.",
    ("family", "network"),
)
CACHE = Spec(
    "tollgate_cache",
    MetricKind.COUNTER,
    "Calls by how the cache answered (`hit`, `miss`, `coalesced`, `bypass`).",
    ("family", "network", "how"),
)
CACHE_BYTES = Spec(
    "tollgate_cache_bytes", MetricKind.GAUGE, "Memory that answers are kept in.", ("family", "network")
)
WS_CONNECTIONS = Spec("tollgate_ws_connections", MetricKind.GAUGE, "Open WebSockets.")
WS_NOTIFICATIONS = Spec(
    "tollgate_ws_notifications", MetricKind.COUNTER, "Notifications sent to subscribers.", ("family", "network")
)
WS_CUT = Spec(
    "tollgate_ws_cut",
    MetricKind.COUNTER,
    "WebSockets that were closed by the service (`slow`: the client did not read; `behind`: its subscription "
    "could not go on; `grant`: its token or domain is not valid any more; `stop`).",
    ("reason",),
)
CONNECTIONS = Spec("tollgate_connections", MetricKind.GAUGE, "Open connections of callers.")
IN_FLIGHT = Spec("tollgate_in_flight", MetricKind.GAUGE, "Requests in progress.")
UPSTREAM_CONNECTIONS = Spec(
    "tollgate_upstream_connections",
    MetricKind.GAUGE,
    "Open connections to an upstream.",
    ("family", "network", "upstream"),
)
UPSTREAM_STATE = Spec(
    "tollgate_upstream_state",
    MetricKind.GAUGE,
    "1 for the state in which the prober finds an upstream (`unknown`, `up`, `down`, `lagging`, `syncing`, "
    "`forked`, `wrong_chain`), 0 for the others. In rotation are `up` and `unknown`.",
    ("family", "network", "upstream", "state"),
    greatest=True,
)
UPSTREAM_HEAD = Spec(
    "tollgate_upstream_head",
    MetricKind.GAUGE,
    "Number of an upstream's newest block; 0 while it is not known.",
    ("family", "network", "upstream"),
    greatest=True,
)
UPSTREAM_PROBES = Spec(
    "tollgate_upstream_probes",
    MetricKind.COUNTER,
    "Probes of an upstream, by outcome (`ok`, `failed`).",
    ("family", "network", "upstream", "outcome"),
)
NETWORK_HEAD = Spec(
    "tollgate_network_head",
    MetricKind.GAUGE,
    "Number of the newest block that an upstream in rotation has.",
    ("family", "network"),
    greatest=True,
)
NETWORK_FINALIZED = Spec(
    "tollgate_network_finalized",
    MetricKind.GAUGE,
    "Number of the newest block that will not change any more; 0 while it is not known.",
    ("family", "network"),
    greatest=True,
)
REORGS = Spec(
    "tollgate_reorgs",
    MetricKind.COUNTER,
    "Reorganisations: blocks of a network that were replaced or taken back.",
    ("family", "network"),
)
HEADS_LOST = Spec(
    "tollgate_heads_lost",
    MetricKind.COUNTER,
    "Heads that were given up because the upstreams that had them are gone.",
    ("family", "network"),
)
DIRECTORY_ENTRIES = Spec("tollgate_directory_entries", MetricKind.GAUGE, "Grants held in memory.")
DIRECTORY_LOOKUPS = Spec(
    "tollgate_directory_lookups",
    MetricKind.COUNTER,
    "Look-ups of tokens and domains in the store, by outcome (`found`, `unknown`, `failed`).",
    ("outcome",),
)
DIRECTORY_STALE_SECONDS = Spec(
    "tollgate_directory_stale_seconds",
    MetricKind.GAUGE,
    "Seconds since the store last answered; beyond directory.stale_seconds calls are refused.",
    greatest=True,
)
BUFFERED_BYTES = Spec(
    "tollgate_buffered_bytes", MetricKind.GAUGE, "Bytes of large bodies held for callers and upstreams."
)
WORKER_STARTS = Spec(
    "tollgate_process_starts", MetricKind.COUNTER, "Starts of child processes, restarts included.", ("process",)
)
PROCESS_CPU = Spec(
    "tollgate_process_cpu_seconds",
    MetricKind.COUNTER,
    "Processor time of each process, user and system. Processes are measured on Linux alone.",
    ("process",),
    1_000,
)
PROCESS_MEMORY = Spec(
    "tollgate_process_resident_bytes",
    MetricKind.GAUGE,
    "Memory of each process that is in RAM, shared parts included.",
    ("process",),
)
PROCESS_DESCRIPTORS = Spec(
    "tollgate_process_open_fds", MetricKind.GAUGE, "Open file descriptors of each process.", ("process",)
)
BUILD_INFO = Spec("tollgate_build_info", MetricKind.GAUGE, "1, with what is running.", ("version", "python"))
SPOOL_HELD = Spec(
    "tollgate_spool_held_bytes",
    MetricKind.GAUGE,
    "Records that the disk refused and that are held in memory. Above 0 is an alarm.",
)
LEDGER_ROWS = Spec("tollgate_ledger_rows", MetricKind.COUNTER, "Log rows that the collector committed.")
LEDGER_LAG = Spec("tollgate_ledger_lag_bytes", MetricKind.GAUGE, "Bytes in the spool that are not committed yet.")
LEDGER_DAMAGED = Spec(
    "tollgate_ledger_damaged_segments",
    MetricKind.GAUGE,
    "Spool files that were put aside because they are damaged, and still lie there.",
)
LEDGER_TORN = Spec(
    "tollgate_ledger_torn_bytes",
    MetricKind.GAUGE,
    "Bytes that were cut from the ends of dead workers' spool files.",
)
LEDGER_CLOCK = Spec(
    "tollgate_ledger_clock_doubted",
    MetricKind.GAUGE,
    "1 while the clock is far beyond what the ledger has seen: no month is closed and no logs are dropped.",
    greatest=True,
)
CERTIFICATE_EXPIRY = Spec(
    "tollgate_certificate_expiry_timestamp_seconds",
    MetricKind.GAUGE,
    "When the certificate of `server.tls_certificate` ends, as a Unix time. Absent without TLS.",
)
NODES = Spec(
    "tollgate_nodes",
    MetricKind.GAUGE,
    "Nodes that share the store, by their last sign of life (`up`, `gone`), as of the last minute.",
    ("state",),
    greatest=True,
)
SHARED_UP = Spec(
    "tollgate_shared_up",
    MetricKind.GAUGE,
    "1 while limits are shared through Valkey (`shared.url`); 0 while they count for this node alone.",
)
SHARED_LOST = Spec(
    "tollgate_shared_lost", MetricKind.COUNTER, "How often Valkey was lost, slow or emptied, or away at the start."
)
SHARED_NODES = Spec(
    "tollgate_shared_nodes",
    MetricKind.GAUGE,
    "Nodes that share limits, this one included; 0 while that is unknown.",
    greatest=True,
)
SHARED_LEASES = Spec(
    "tollgate_shared_leases",
    MetricKind.GAUGE,
    "Limits that some node uses more of than an equal part.",
    greatest=True,
)
TRACE_SPANS = Spec(
    "tollgate_trace_spans",
    MetricKind.COUNTER,
    "Spans, by what became of them (`exported`; `dropped`: too many waited; `failed`: the receiver refused).",
    ("outcome",),
)
SHARED_ANSWERS = Spec(
    "tollgate_shared_answers",
    MetricKind.COUNTER,
    "Answers about final blocks that workers exchanged through Valkey (`sent`, `taken`), and turns that failed "
    "(`failed`, for all networks).",
    ("family", "network", "how"),
)
DROPPED_LABELS = Spec(
    "tollgate_metrics_dropped", MetricKind.COUNTER, "Samples that found no free cell: a sign of a defect."
)

ALL = tuple(each for each in list(globals().values()) if isinstance(each, Spec))
"""In the order of their definitions."""
_BY_NAME = {spec.name: spec for spec in ALL}

Key = tuple[str, ...]

# A cell: 8 bytes of value, then its key as JSON. Memory is touched only where cells are used.
_CELL_BYTES = 512
_KEY_BYTES = _CELL_BYTES - 16
_CELLS = 16_384
# A cell that is never read, in the head of the region: for gauges that found no cell.
_SCRATCH = 1
_key_of = msgspec.json.Decoder(tuple[str, ...]).decode


class Regions:
    """The shared memory: a region for each process. Made before the processes are forked."""

    def __init__(self, count: int) -> None:
        self._memory = [mmap.mmap(-1, _CELL_BYTES * (_CELLS + 1)) for _ in range(count)]

    def writer(self, region: int) -> Writer:
        """Take over a region; its counters continue from their last values."""
        return Writer(self._memory[region])

    def by_label(self, region: int, spec: Spec) -> dict[str, int]:
        return {key[1]: value for key, value in _read(self._memory[region]) if key[0] == spec.name}

    def totals(self) -> dict[Key, int]:
        totals: dict[Key, int] = {}
        for memory in self._memory:
            for key, value in _read(memory):
                if key in totals and _BY_NAME[key[0]].greatest:
                    totals[key] = max(totals[key], value)
                else:
                    totals[key] = totals.get(key, 0) + value
        return totals


def _read(memory: mmap.mmap) -> Iterator[tuple[Key, int]]:
    used = int.from_bytes(memory[:8], "little")
    for start in range(_CELL_BYTES, (used + 1) * _CELL_BYTES, _CELL_BYTES):
        length = int.from_bytes(memory[start + 8 : start + 16], "little")
        value = int.from_bytes(memory[start : start + 8], "little", signed=True)
        yield _key_of(memory[start + 16 : start + 16 + length]), value


class Writer:
    """The writing side of one process's region."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self.cells = memoryview(memory).cast("q")
        """What the hot path adds to by itself, to save a call."""
        self._index: dict[Key, int] = {}
        for position, (key, _) in enumerate(_read(memory), 1):
            self._index[key] = position * (_CELL_BYTES // 8)
            if _BY_NAME[key[0]].kind is MetricKind.GAUGE:
                self.cells[self._index[key]] = 0

    def cell(self, spec: Spec, *labels: str) -> int:
        """Return the cell of a metric, for `add` and `set`. Worth keeping."""
        return self._cell((spec.name, *labels))

    def histogram(self, spec: Spec, *labels: str) -> list[int]:
        """Return the cells of a histogram, for `observe`: its buckets, the last without bound, and its sum."""
        return [self._cell((spec.name, *labels, str(bound))) for bound in (*BUCKETS_MICROSECONDS, "+Inf", "sum")]

    def add(self, cell: int, amount: int = 1) -> None:
        self.cells[cell] += amount

    def set(self, cell: int, value: int) -> None:
        self.cells[cell] = value

    def observe(self, histogram: Sequence[int], durations: list[int]) -> None:
        """Put durations, in microseconds, into their buckets; sorted, they are searched once for each bound."""
        durations.sort()
        cells, below = self.cells, 0
        for place, bound in enumerate(BUCKETS_MICROSECONDS):
            count = bisect_right(durations, bound, below)
            cells[histogram[place]] += count - below
            below = count
        cells[histogram[len(BUCKETS_MICROSECONDS)]] += len(durations) - below
        cells[histogram[-1]] += sum(durations)

    def _cell(self, key: Key) -> int:
        return self._index.get(key) or self._claim(key)

    def _claim(self, key: Key) -> int:
        encoded = msgspec.json.encode(key)
        used = self.cells[0]
        if used < _CELLS - 1 and len(encoded) <= _KEY_BYTES:
            return self._write(key, encoded, used)
        if _BY_NAME[key[0]].kind is MetricKind.GAUGE:
            return _SCRATCH
        dropped = (DROPPED_LABELS.name,)
        # One cell is always left for this.
        return self._index.get(dropped) or self._write(dropped, msgspec.json.encode(dropped), used)

    def _write(self, key: Key, encoded: bytes, used: int) -> int:
        start = (used + 1) * _CELL_BYTES
        self._memory[start + 8 : start + 16] = len(encoded).to_bytes(8, "little")
        self._memory[start + 16 : start + 16 + len(encoded)] = encoded
        self.cells[0] = used + 1  # last, so that a reader never sees half a key
        self._index[key] = start // 8
        return start // 8
