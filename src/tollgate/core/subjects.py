"""The records of a batch, read as far as counting needs them.

Of each record only the beginning is decoded, and of equal subjects one: what one more record of a subject adds to
usage, latencies and months is worked out once and remembered. Names of usage lines and histograms are objects that
compare by identity, which is quicker than comparing tuples of text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from sys import intern

import msgspec
from msgspec import Raw

from tollgate.core import entries
from tollgate.core.entries import BILLABLE, CountedCall, CountedRecord, Subject

# Subjects that are remembered, and the bytes of one: a batch of many calls is seldom repeated.
MAX_SUBJECTS, MAX_SUBJECT_BYTES = 50_000, 2_048
UNAUTHORIZED = 401

LineKey = tuple[str, str, str, str]
"""source, network, method, outcome"""

_encode_key = msgspec.json.Encoder().encode


class UsageLine:
    """The key of a line of usage: a `LineKey`, encoded as JSON once."""

    __slots__ = ("is_billable", "key")

    def __init__(self, source_id: str, network: str, method: str, outcome: str) -> None:
        self.key = Raw(_encode_key((source_id, network, method, outcome)))
        self.is_billable = outcome in BILLABLE


class LatencyLine:
    """The key of a histogram: a network and an outcome."""

    __slots__ = ("network", "outcome")

    def __init__(self, network: str, outcome: str) -> None:
        self.network = network
        self.outcome = outcome


class OutcomeCounts:
    """A network, and how many calls of a record had each outcome: what the duration of the record counts for."""

    __slots__ = ("lines", "network", "outcomes")

    def __init__(
        self, network: str, outcomes: Iterable[tuple[str, int]], line: Callable[[str, str], LatencyLine]
    ) -> None:
        self.network = network
        self.outcomes = tuple(outcomes)
        self.lines = tuple([(line(network, outcome), calls) for outcome, calls in self.outcomes])


class CountedSubject:
    """What one record of a subject adds to the ledger."""

    __slots__ = (
        "billable", "calls", "cap", "entries", "errors", "is_used", "latency", "lines", "network", "payer",
        "price", "source_id", "stands_for", "status", "team_id",
    )  # fmt: skip

    def __init__(
        self,
        subject: Subject,
        calls: Mapping[CountedCall, int],
        latency: OutcomeCounts,
        line: Callable[[str, str, str, str], UsageLine],
    ) -> None:
        """`calls`: how often each of its calls occurs."""
        # Tens of thousands are remembered: equal text is kept once.
        self.team_id, self.source_id = intern(subject.team_id), intern(subject.source_id)
        self.network = latency.network
        self.status = subject.status
        self.cap = subject.cap
        self.price = subject.price
        self.payer = intern(subject.payer or subject.team_id)
        self.stands_for = subject.stands_for
        # A token that was refused, because it has expired, was not used.
        self.is_used = subject.status != UNAUTHORIZED
        self.calls = subject.calls
        self.entries = len(subject.calls)
        self.latency = latency
        self.errors = sum([count for outcome, count in latency.outcomes if outcome != "ok"])
        billable = sum([count for outcome, count in latency.outcomes if outcome in BILLABLE])
        self.billable = billable * self.stands_for
        """Requests that one record of it bills."""
        self.lines = tuple(
            [
                (line(self.source_id, self.network, method, outcome), count)
                for (method, outcome), count in calls.items()
            ]
        )


class Subjects:
    """Subjects by their bytes. `label` returns the method that usage counts a call under."""

    def __init__(self, label: Callable[[str, str], str]) -> None:
        self._label = label
        self.line = lru_cache(MAX_SUBJECTS)(self._line)
        """The line of a call, by source, network, method and outcome."""
        self._latency_line = lru_cache(MAX_SUBJECTS)(LatencyLine)
        self._known: dict[bytes, CountedSubject] = {}
        self._latencies: dict[tuple[str, tuple[tuple[str, int], ...]], OutcomeCounts] = {}

    def read(self, records: Sequence[CountedRecord]) -> list[CountedSubject]:
        """The subject of each record; a `ValueError` where one is none."""
        known = self._known
        try:
            return [known[record.subject] for record in records]
        except KeyError:
            return [known.get(record.subject) or self._remember(record.subject) for record in records]

    def _remember(self, content: bytes) -> CountedSubject:
        subject = entries.read_subject(content)
        lines = _count_equal(subject.calls)
        found = CountedSubject(subject, lines, self._latency(subject.network, lines), self.line)
        if len(content) <= MAX_SUBJECT_BYTES:
            if len(self._known) >= MAX_SUBJECTS:
                self._known.clear()
            self._known[content] = found
        return found

    def _line(self, source_id: str, network: str, method: str, outcome: str) -> UsageLine:
        return UsageLine(source_id, network, self._label(network, method), outcome)

    def _latency(self, network: str, lines: Mapping[CountedCall, int]) -> OutcomeCounts:
        outcomes: dict[str, int] = {}
        for (_, outcome), count in lines.items():
            outcomes[outcome] = outcomes.get(outcome, 0) + count
        key = (network, tuple(outcomes.items()))
        kind = self._latencies.get(key)
        if kind is None:
            if len(self._latencies) >= MAX_SUBJECTS:
                self._latencies.clear()
            kind = self._latencies[key] = OutcomeCounts(network, outcomes.items(), self._latency_line)
        return kind


def _count_equal(calls: Sequence[CountedCall]) -> dict[CountedCall, int]:
    counts: dict[CountedCall, int] = {}
    for call in calls:
        counts[call] = counts.get(call, 0) + 1
    return counts


class Batch:
    """Records that are posted together, in their order."""

    def __init__(self, subjects: Subjects) -> None:
        self._subjects = subjects
        self.payloads: list[bytes] = []
        self.times: list[float] = []
        self.durations: list[int] = []
        self.subjects: list[CountedSubject] = []
        self.last_used: dict[str, float] = {}
        """When tokens and domains were last used."""

    def __len__(self) -> int:
        return len(self.payloads)

    def add(self, payloads: Sequence[bytes]) -> None:
        """Add records: all of them, or none and a `ValueError`."""
        records = list(map(entries.read_counted, payloads))
        subjects = self._subjects.read(records)
        times = [record.at for record in records]
        self._note_uses(subjects, times)
        self.subjects += subjects
        self.times += times
        self.durations += [record.duration_micros for record in records]
        self.payloads += payloads

    def teams(self) -> set[str]:
        return {subject.team_id for subject in set(self.subjects)}

    def payers(self) -> set[str]:
        return {subject.payer for subject in set(self.subjects)}

    @property
    def line(self) -> Callable[[str, str, str, str], UsageLine]:
        """The line of a call, by source, network, method and outcome."""
        return self._subjects.line

    def _note_uses(self, subjects: list[CountedSubject], times: list[float]) -> None:
        # As a worker writes them they are in the order of time, unless its clock was set back.
        ordered = sorted(times)
        pairs = zip(subjects, times, strict=True)
        latest = dict(pairs if ordered == times else sorted(pairs, key=itemgetter(1)))
        last_used = self.last_used
        for subject, at in latest.items():
            if subject.is_used and at > last_used.get(subject.source_id, 0.0):
                last_used[subject.source_id] = at
