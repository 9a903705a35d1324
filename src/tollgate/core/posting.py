"""What a batch of records becomes: blocks of log rows, usage, costs.

Pure: what stood before comes in, increments go out. Each call gets its billing month (its own, or the open one if
that is closed) and its cost in the order of commit; so usage, invoices and logs agree by billing month to the
single request. A cost follows from the price, from what the team had used before, and from the spending cap that
was in force when the call was admitted.

Written for speed where it reads worse: of each record only the beginning is decoded, of equal subjects one, and
calls that cost the same are counted together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import TypeVar

from msgspec import Struct, field

from tollgate.core import entries
from tollgate.core.blocks import FULL_ROWS, Block, Facts, Run, cut, words, written
from tollgate.core.entries import BILLABLE, CountedCall, CountedRecord, Subject
from tollgate.core.latencies import bucket_of
from tollgate.core.pricing import MILLION, Plan, Price, cost

__all__ = [
    "BILLABLE",
    "Batch",
    "LatencyKey",
    "MonthKey",
    "Opening",
    "Posting",
    "Rules",
    "Subjects",
    "UsageKey",
    "post",
]

UsageKey = tuple[str, str, int, str, str, str, str]
"""team, month, hour, source, network, method, outcome"""
LineKey = tuple[str, str, str, str]
"""source, network, method, outcome"""
LatencyKey = tuple[str, int, str, str]
"""team, hour, network, outcome"""
MonthKey = tuple[str, str]
"""team or token, month"""

# Subjects that are remembered, and how long one may be: a batch of many calls hardly comes twice.
MAX_SUBJECTS, LONGEST_SUBJECT = 50_000, 2_048
_SECONDS_OF_HOUR = 3_600
_FEW = 16
UNAUTHORIZED = 401


class Rules(Struct, frozen=True):
    """What a batch is posted by."""

    price: Callable[[str], Price]
    """Of a team."""
    month_for: Callable[[float, frozenset[str]], str]
    """Time and closed months -> billing month. One month for all moments of an hour."""


class Opening(Struct, frozen=True):
    """What stands in the ledger before a batch."""

    next_no: Mapping[str, int]
    """The number of each team's next row; 1 where it has none."""
    requests: Mapping[MonthKey, int]
    """Billable requests of teams."""
    closed: frozenset[str] = frozenset()
    """Months that take nothing more."""


class Posting(Struct):
    """What is to be written."""

    blocks: list[Block] = field(default_factory=list)
    """In the order of their teams' rows."""
    lines: dict[tuple[str, str, int], dict[LineKey, list[int]]] = field(default_factory=dict)
    """Usage: requests and cost to add, by team, month and hour, then by line."""
    latencies: dict[LatencyKey, dict[int, int]] = field(default_factory=dict)
    """Calls to add, by bucket."""
    months: dict[MonthKey, list[int]] = field(default_factory=dict)
    """Billable requests and cost to add, by team."""
    tokens: dict[MonthKey, int] = field(default_factory=dict)
    """Billable requests to add, by token or domain."""
    last_used: dict[str, float] = field(default_factory=dict)
    rows: int = 0
    next_no: dict[str, int] = field(default_factory=dict)
    """The number of the next row of each team that has new ones."""

    @property
    def usage(self) -> dict[UsageKey, list[int]]:
        """Usage, line by line."""
        return {(*key, *line): sums for key, lines in self.lines.items() for line, sums in lines.items()}


class LatencyKind:
    """A network, and how many calls of a record had each outcome: what a duration counts for."""

    __slots__ = ("network", "outcomes")

    def __init__(self, network: str, outcomes: Iterable[tuple[str, int]]) -> None:
        self.network = network
        self.outcomes = tuple(outcomes)


class CountedSubject:
    """A subject, worked out once: what one record of it adds."""

    __slots__ = (
        "billable", "calls", "cap", "errors", "facts", "is_used", "latency", "lines", "methods", "network",
        "outcomes", "rows", "source_id", "stands_for", "status", "team_id",
    )  # fmt: skip

    def __init__(
        self,
        subject: Subject,
        lines: Mapping[CountedCall, int],
        latency: LatencyKind,
        label: Callable[[str, str], str],
    ) -> None:
        """`lines` are its calls, equal ones counted together."""
        self.team_id = subject.team_id
        self.source_id = subject.source_id
        self.network = subject.network
        self.status = subject.status
        self.cap = subject.cap
        self.stands_for = subject.stands_for
        # A token that is refused itself, because it has expired, is not used.
        self.is_used = subject.status != UNAUTHORIZED
        self.calls = subject.calls
        self.rows = len(subject.calls)
        self.latency = latency
        self.outcomes = [outcome for outcome, _ in latency.outcomes]
        self.errors = sum(count for outcome, count in latency.outcomes if outcome != "ok")
        billable = sum(count for outcome, count in latency.outcomes if outcome in BILLABLE)
        self.billable = billable * self.stands_for
        """Requests that one record of it bills."""
        # Under the name that usage has for their method.
        self.lines = [(label(self.network, method), outcome, count) for (method, outcome), count in lines.items()]
        self.methods = {cut(method) for method, _ in lines}
        self.facts: bytes | None = None
        """What the facts of a block say that has no other subject; made when it is needed."""


class Subjects:
    """Subjects that were met, by their bytes. `label` gives the method as usage counts it."""

    def __init__(self, label: Callable[[str, str], str]) -> None:
        self.label = lru_cache(MAX_SUBJECTS)(label)
        self._known: dict[bytes, CountedSubject] = {}
        self._latencies: dict[tuple[str, tuple[tuple[str, int], ...]], LatencyKind] = {}

    def read(self, records: Sequence[CountedRecord]) -> list[CountedSubject]:
        """The subject of each record; a `ValueError` where one is none."""
        known = self._known
        try:
            return [known[record.subject] for record in records]
        except KeyError:
            return [known.get(record.subject) or self._meet(record.subject) for record in records]

    def _meet(self, content: bytes) -> CountedSubject:
        subject = entries.read_subject(content)
        lines = _counted(subject.calls)
        found = CountedSubject(subject, lines, self._latency(subject.network, lines), self.label)
        if len(content) <= LONGEST_SUBJECT:
            if len(self._known) >= MAX_SUBJECTS:
                self._known.clear()
            self._known[content] = found
        return found

    def _latency(self, network: str, lines: Mapping[CountedCall, int]) -> LatencyKind:
        outcomes: dict[str, int] = {}
        for (_, outcome), count in lines.items():
            outcomes[outcome] = outcomes.get(outcome, 0) + count
        key = (network, tuple(outcomes.items()))
        kind = self._latencies.get(key)
        if kind is None:
            if len(self._latencies) >= MAX_SUBJECTS:
                self._latencies.clear()
            kind = self._latencies[key] = LatencyKind(network, outcomes.items())
        return kind


class Batch:
    """Records that are to be posted together, in their order."""

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
        """Whose records these are."""
        return {subject.team_id for subject in set(self.subjects)}

    def label(self, network: str, method: str) -> str:
        """A method as usage counts it."""
        return self._subjects.label(network, method)

    def _note_uses(self, subjects: list[CountedSubject], times: list[float]) -> None:
        # As a worker writes them they are in the order of time, unless its clock was set back.
        ordered = sorted(times)
        pairs = zip(subjects, times, strict=True)
        latest = dict(pairs if ordered == times else sorted(pairs, key=itemgetter(1)))
        last_used = self.last_used
        for subject, at in latest.items():
            if subject.is_used and at > last_used.get(subject.source_id, 0.0):
                last_used[subject.source_id] = at


def post(batch: Batch, opening: Opening, rules: Rules) -> Posting:
    """Post a batch."""
    posting = Posting(last_used=batch.last_used)
    for hour, start, end in _hours(batch.times):
        month = rules.month_for(float(hour * _SECONDS_OF_HOUR), opening.closed)
        for team_id, places in _by_team(batch.subjects, start, end).items():
            _Account(posting, opening, rules, team_id, hour, month).add(batch, places)
    _sum_up(posting)
    return posting


Thing = TypeVar("Thing")


def _counted(things: Sequence[Thing]) -> dict[Thing, int]:
    """How many there are of each. A `Counter` is faster for many, and slower to make than to count a few."""
    if len(things) > _FEW:
        return Counter(things)
    counts: dict[Thing, int] = {}
    for thing in things:
        counts[thing] = counts.get(thing, 0) + 1
    return counts


def _hours(times: Sequence[float]) -> Iterator[tuple[int, int, int]]:
    """The hours of a batch: which, and where its records begin and end. One may come again."""
    if not times:
        return
    first = int(min(times)) // _SECONDS_OF_HOUR
    if first == int(max(times)) // _SECONDS_OF_HOUR:
        yield first, 0, len(times)
        return
    start = 0
    for hour, run in groupby(int(at) // _SECONDS_OF_HOUR for at in times):
        end = start + sum(1 for _ in run)
        yield hour, start, end
        start = end


def _by_team(subjects: Sequence[CountedSubject], start: int, end: int) -> dict[str, list[int]]:
    """The places of each team's records in a batch."""
    found: dict[str, list[int]] = {}
    for place in range(start, end):
        subject = subjects[place]
        if not subject.rows:
            continue
        try:
            found[subject.team_id].append(place)
        except KeyError:
            found[subject.team_id] = [place]
    return found


def _sum_up(posting: Posting) -> None:
    """What follows from the usage of the batch: the requests of each token and domain."""
    tokens = posting.tokens
    for (_, month, _), lines in posting.lines.items():
        for (source_id, _, _, outcome), (requests, _) in lines.items():
            if outcome in BILLABLE:
                tokens[source_id, month] = tokens.get((source_id, month), 0) + requests


class _Account:
    """A team's calls of one hour, which have one billing month."""

    def __init__(
        self, posting: Posting, opening: Opening, rules: Rules, team_id: str, hour: int, month: str
    ) -> None:
        self._posting = posting
        self._key = (team_id, month)
        self._hour = hour
        self._price = rules.price(team_id)
        self._total = posting.months.setdefault(self._key, [0, 0])
        self._lines = posting.lines.setdefault((team_id, month, hour), {})
        self._before = opening.requests.get(self._key, 0) + self._total[0]
        self._next_no = posting.next_no.get(team_id) or opening.next_no.get(team_id, 1)

    def add(self, batch: Batch, places: list[int]) -> None:
        """Count records and make blocks of them."""
        subjects = [batch.subjects[place] for place in places]
        counts = _counted(subjects)
        billed = sum(subject.billable * count for subject, count in counts.items())
        unit = self._unit(billed, {subject.cap for subject in counts})
        costs: int | list[int]
        if unit is None:
            costs = self._costs(subjects, batch.label)
            self._total[1] += sum(costs)
        else:
            costs = unit
            self._add_usage(counts, unit)
            self._total[1] += unit * billed
        self._total[0] += billed
        durations = batch.durations
        self._add_latencies(subjects, [durations[place] for place in places])
        self._add_blocks(batch, places, subjects, costs)

    def _unit(self, billed: int, caps: set[int | None]) -> int | None:
        """What each of these requests costs; None where they do not all cost the same."""
        price, before = self._price, self._before
        after = price.total(before + billed)
        if not after or not billed:
            return 0
        lowest = min((cap for cap in caps if cap is not None), default=after)
        if (
            price.plan is Plan.PER_REQUEST
            and price.micros_per_million % MILLION == 0
            and before >= price.free_requests
            and after <= lowest
        ):
            return price.micros_per_million // MILLION
        return None

    def _costs(self, subjects: Iterable[CountedSubject], label: Callable[[str, str], str]) -> list[int]:
        """What each row costs, one after the other; counted as usage on the way."""
        usage, price, requests, costs = self._lines, self._price, self._before, []
        for subject in subjects:
            count = subject.stands_for
            for method, outcome in subject.calls:
                charged = 0
                if outcome in BILLABLE:
                    charged = cost(price, requests, count, subject.cap)
                    requests += count
                key = (subject.source_id, subject.network, label(subject.network, method), outcome)
                line = usage.setdefault(key, [0, 0])
                line[0] += count
                line[1] += charged
                costs.append(charged)
        return costs

    def _add_usage(self, counts: Mapping[CountedSubject, int], unit: int) -> None:
        usage = self._lines
        for subject, records in counts.items():
            for method, outcome, calls in subject.lines:
                requests = records * calls * subject.stands_for
                key = (subject.source_id, subject.network, method, outcome)
                line = usage.get(key)
                if line is None:
                    line = usage[key] = [0, 0]
                line[0] += requests
                if unit and outcome in BILLABLE:
                    line[1] += requests * unit

    def _add_latencies(self, subjects: Sequence[CountedSubject], durations: Sequence[int]) -> None:
        found, (team_id, _), hour = self._posting.latencies, self._key, self._hour
        kinds = [subject.latency for subject in subjects]
        for kind in set(kinds):
            of_kind = durations
            if kinds.count(kind) != len(kinds):
                of_kind = [each for each, other in zip(durations, kinds, strict=True) if other is kind]
            counts = _counted(list(map(bucket_of, of_kind)))
            for outcome, calls in kind.outcomes:
                key = (team_id, hour, kind.network, outcome)
                buckets = found.get(key)
                if buckets is None:
                    buckets = found[key] = {}
                for bucket, records in counts.items():
                    buckets[bucket] = buckets.get(bucket, 0) + records * calls

    def _add_blocks(
        self, batch: Batch, places: list[int], subjects: list[CountedSubject], costs: int | list[int]
    ) -> None:
        team_id, month = self._key
        payloads, times = batch.payloads, batch.times
        row = 0
        for start, end in _pieces(subjects):
            some, of = places[start:end], subjects[start:end]
            kinds = set(of)
            rows, counts = len(some), None
            if any(kind.rows != 1 for kind in kinds):
                counts = [subject.rows for subject in of]
                rows = sum(counts)
            at = [times[place] for place in some]
            run = Run(rows, month, costs if isinstance(costs, int) else costs[row : row + rows])
            self._posting.blocks.append(
                Block(
                    team_id,
                    self._next_no + row,
                    rows,
                    len(some),
                    sum([subject.errors for subject in of if subject.errors]),
                    min(at),
                    max(at),
                    _facts(run, kinds),
                    written([payloads[place] for place in some], counts if rows != len(some) else None),
                )
            )
            row += rows
        self._posting.rows += row
        self._posting.next_no[team_id] = self._next_no + row


def _facts(run: Run, kinds: Collection[CountedSubject]) -> bytes:
    """The facts of a block, encoded."""
    if len(kinds) > 1:
        return entries.pack(Facts([run], *_words(kinds)))
    (only,) = kinds
    if only.facts is None:
        only.facts = b"".join(map(entries.pack, _words(kinds)))
    return b"\x96\x91" + entries.pack(run) + only.facts


def _words(
    kinds: Iterable[CountedSubject],
) -> tuple[list[str] | None, list[str] | None, list[str] | None, list[int] | None, list[str] | None]:
    return (
        words([kind.source_id for kind in kinds]),
        words([kind.network for kind in kinds]),
        words([method for kind in kinds for method in kind.methods]),
        words([kind.status for kind in kinds]),
        words([outcome for kind in kinds for outcome in kind.outcomes]),
    )


def _pieces(subjects: Sequence[CountedSubject]) -> list[tuple[int, int]]:
    """Where blocks begin and end, all of about the same size."""
    rows = sum([subject.rows for subject in subjects])
    if rows <= FULL_ROWS:
        return [(0, len(subjects))]
    most = -(-rows // -(-rows // FULL_ROWS))
    pieces, start, size = [], 0, 0
    for place, subject in enumerate(subjects):
        if size and size + subject.rows > most:
            pieces.append((start, place))
            start, size = place, 0
        size += subject.rows
    return [*pieces, (start, len(subjects))]
