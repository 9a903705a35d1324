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
from typing import Protocol

from msgspec.structs import replace

from tollgate import log
from tollgate.core.entries import BILLABLE, MAX_CALLS, CallEntry, Entry, encode, pack
from tollgate.gateway.messages import Request
from tollgate.gateway.recording.counters import NODE_ERROR, OK
from tollgate.gateway.recording.latencies import CallerLatencies

SINGLE_REFUSALS = 10
REFUSED = "refused"
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
        self.address = address
        self.latencies = latencies
        self._time = time
        self._monotonic = monotonic
        self.at = 0.0
        """The time of this loop tick."""
        self._refusals: dict[str, int] = {}
        """Refusals of this second, by team."""
        self._rest: dict[str, Entry] = {}
        """The first refusal that was not written singly; it counts for the others."""

    def write(self, answered: Sequence[Recordable]) -> None:
        """Make the records of what was answered in this loop tick."""
        self.at, now = self._time(), self._monotonic()
        beginning = _TWELVE + pack(self.at)
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

    def take(self, entry: Entry) -> None:
        """Take what is recorded of a refusal, or of what the pipeline has answered."""
        calls = entry.calls
        self.latencies.durations(entry.network, outcome_of(calls)).append(entry.duration_micros)
        if not any(call.outcome in BILLABLE for call in calls):
            self._refused(entry)
            return
        for start in range(0, len(calls), MAX_CALLS):
            part = calls[start : start + MAX_CALLS]
            # Each part of a large batch has its share of the bytes.
            share = entry.request_bytes * len(part) // len(calls)
            self._append(
                encode(replace(entry, calls=part, request_bytes=share) if len(calls) > MAX_CALLS else entry)
            )

    def tick(self) -> None:
        """Once a second: write the records that count for the rest, and reset the counts."""
        self.latencies.fold()
        self._refusals.clear()
        if self._sink.is_full:
            return
        rest, self._rest = self._rest, {}
        for entry in rest.values():
            self._append(encode(entry))

    def _refused(self, entry: Entry) -> None:
        team_id, calls = entry.team_id, len(entry.calls)
        count = self._refusals[team_id] = self._refusals.get(team_id, 0) + calls
        if count <= SINGLE_REFUSALS and not self._sink.is_full:
            self._append(encode(entry))
            return
        first = self._rest.get(team_id)
        self._rest[team_id] = (
            replace(entry, calls=entry.calls[:1], stands_for=calls)
            if first is None
            else replace(first, stands_for=first.stands_for + calls)
        )


def outcome_of(calls: Sequence[CallEntry]) -> str:
    """What became of a request: the best of its calls. Reasons of refusals are counted elsewhere, without time."""
    if len(calls) == 1:
        return calls[0].outcome if calls[0].outcome in BILLABLE else REFUSED
    outcomes = {call.outcome for call in calls}
    return OK if OK in outcomes else NODE_ERROR if NODE_ERROR in outcomes else REFUSED
