"""Records each request of a known team: one record for the ledger, before its answer leaves.

`write` makes the records of all requests that were answered in one loop tick. Nothing is decoded, looked up or
awaited here. A call on the fast path makes its record itself, from parts that are encoded already.

A request none of whose calls a node has answered is a refusal. It costs nothing, so a team's are written singly
up to a number a second; beyond that one record a second counts for the rest, with their number. So a caller who
is refused cannot fill the disk, and while the sink is full only that number grows. What is counted so in a
second dies with the process; all that is billed is written first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tollgate import log
from tollgate.core.entries import BILLABLE, MAX_CALLS, MAX_TEXT_BYTES, Entry, encode, pack
from tollgate.gateway.messages import CallNote, Request
from tollgate.gateway.recording.counters import NODE_ERROR, OK
from tollgate.gateway.recording.latencies import CallerLatencies

SINGLE_REFUSALS = 10
REFUSED = "refused"
# Places in a record, in the order of `Entry`.
_STANDS_FOR, _CALLS, _REQUEST_BYTES = map(Entry.__struct_fields__.index, ("stands_for", "calls", "request_bytes"))
# A record is an array of twelve, as MessagePack.
_TWELVE = b"\x9c"
_log = log.get("journal")


class RecordSink(Protocol):
    """Where records go."""

    is_full: bool

    def append(self, payload: bytes) -> None:
        """Take a record."""

    def extend(self, payloads: list[bytes]) -> None:
        """Take several."""


class Recordable(Protocol):
    """An answered request, or a call on the fast path."""

    @property
    def request_id(self) -> bytes: ...

    def record(self, journal: Journal, at: bytes, now: float) -> bytes | None:
        """Its record, which begins with `at`; None: there is none, or the journal has it already."""


class Journal:
    """Records answered requests."""

    def __init__(
        self,
        sink: RecordSink,
        address: Callable[[Request], str],
        latencies: CallerLatencies,
        *,
        time: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._sink = sink
        self._append = sink.append
        self._extend = sink.extend
        self._address = address
        self.latencies = latencies
        self._time = time
        self._monotonic = monotonic
        self._at = 0.0
        """The time of this loop tick."""
        self._refusals: dict[str, int] = {}
        """Refusals of this second, by team."""
        self._rest: dict[str, tuple[tuple[Any, ...], int]] = {}
        """The first refusal that was not written singly, and how many there are."""

    def write(self, answered: Sequence[Recordable]) -> None:
        """Make the records of what was answered in this loop tick."""
        self._at, now = self._time(), self._monotonic()
        beginning = _TWELVE + pack(self._at)
        records: list[bytes] = []
        for each in answered:
            try:
                record = each.record(self, beginning, now)
                if record is not None:
                    records.append(record)
            except Exception:  # noqa: BLE001 - a defect must not take the records of others with it
                _log.exception("a request could not be recorded", request_id=each.request_id.decode("latin-1"))
        if records:
            self._extend(records)
        self.latencies.appended(len(answered))

    def record(self, request: Request, now: float) -> None:
        """Take the record of a refusal, or of what the pipeline has answered."""
        caller, network, calls, origin = request.caller, request.network, request.calls, request.origin
        assert caller is not None  # noqa: S101 - checked at the edge
        assert network is not None  # noqa: S101 - the intake refuses what has none
        micros = int((now - request.started) * 1e6)
        self.latencies.durations(network.path, outcome_of(calls)).append(micros)
        record = (
            self._at,
            caller.team_id,
            caller.source_id,
            network.path,
            caller.source_name,
            request.status,
            1,
            caller.cap,
            caller.price,
            calls,
            micros,
            len(request.body),
            request.request_id,
            request.route.upstream,
            request.route.kept,
            request.route.cache,
            self._address(request),
            request.headers.get(b"user-agent", b"")[:MAX_TEXT_BYTES],
            b"" if origin is None else origin[:MAX_TEXT_BYTES],
        )
        if calls[0][1] not in BILLABLE and not any(call[1] in BILLABLE for call in calls):
            self._refused(caller.team_id, record, calls)
        elif len(calls) <= MAX_CALLS:
            self._append(encode(record))
        else:
            self._append_parts(record, calls)

    def tick(self) -> None:
        """Once a second: write the records that count for the rest, and reset the counts."""
        self.latencies.fold()
        self._refusals.clear()
        if self._sink.is_full:
            return
        rest, self._rest = self._rest, {}
        for record, count in rest.values():
            self._append(encode((*record[:_STANDS_FOR], count, *record[_STANDS_FOR + 1 :])))

    def _refused(self, team_id: str, record: tuple[Any, ...], calls: Sequence[CallNote]) -> None:
        count = self._refusals[team_id] = self._refusals.get(team_id, 0) + len(calls)
        if count <= SINGLE_REFUSALS and not self._sink.is_full:
            self._append(encode(record))
        else:
            first, others = self._rest.get(team_id) or (_with_calls(record, calls[:1]), 0)
            self._rest[team_id] = (first, others + len(calls))

    def _append_parts(self, record: tuple[Any, ...], calls: Sequence[CallNote]) -> None:
        """Write a batch that is too large for one record; each part has its share of the bytes."""
        for start in range(0, len(calls), MAX_CALLS):
            part = calls[start : start + MAX_CALLS]
            shared = list(_with_calls(record, part))
            shared[_REQUEST_BYTES] = record[_REQUEST_BYTES] * len(part) // len(calls)
            self._append(encode(shared))


def outcome_of(calls: Sequence[CallNote]) -> str:
    """What became of a request: the best of its calls. Reasons of refusals are counted elsewhere, without time."""
    if len(calls) == 1:
        return calls[0][1] if calls[0][1] in BILLABLE else REFUSED
    outcomes = {call[1] for call in calls}
    return OK if OK in outcomes else NODE_ERROR if NODE_ERROR in outcomes else REFUSED


def _with_calls(record: tuple[Any, ...], calls: Sequence[CallNote]) -> tuple[Any, ...]:
    return (*record[:_CALLS], calls, *record[_CALLS + 1 :])
