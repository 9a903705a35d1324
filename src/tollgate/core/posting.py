"""What a batch of records becomes: blocks of log rows, usage, costs.

Pure: what stood before comes in, increments go out. Each call gets its billing month (its own, or the open one if
that is closed) and its cost in the order of commit; so usage, invoices and logs agree by billing month to the
single request. A cost follows from what the team had used before, and from the price and the spending cap that
were in force when the call was admitted: row by row where they change, or where the free requests end.

Written for speed where it reads worse: of each record only the beginning is decoded, of equal subjects one, and
calls that cost the same are counted together.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, chain, groupby, pairwise
from operator import itemgetter
from sys import intern
from typing import Any

import msgspec
from msgspec import Raw, Struct, field

from tollgate.core import entries
from tollgate.core.blocks import (
    FULL_ROWS,
    OWN_ROWS,
    RowBlock,
    Run,
    facts_of,
    written,
)
from tollgate.core.entries import BILLABLE, CountedCall, CountedRecord, Subject, pack
from tollgate.core.latencies import buckets_of
from tollgate.core.pricing import MILLION, OwnPrice, Plan, Price, cost
from tollgate.core.shared_blocks import SharedBlock, SharedWriter, errors_of

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
_NOTHING = (0, 0)


class Rules(Struct, frozen=True):
    """What a batch is posted by."""

    price: Callable[[str], Price]
    """Of a team, where a record does not carry its own."""
    month_for: Callable[[float, frozenset[str]], str]
    """Time and closed months -> billing month. One month for all moments of an hour."""


class Opening(Struct, frozen=True):
    """What stands in the ledger before a batch."""

    next_no: Mapping[str, int]
    """The number of each team's next row; 1 where it has none."""
    months: Mapping[MonthKey, tuple[int, int]]
    """Billable requests and cost of teams."""
    closed: frozenset[str] = frozenset()
    """Months that take nothing more."""


class UsageLine:
    """What a line of usage is about: a `LineKey`, encoded once, as JSON. Compared as an object, which is quick."""

    __slots__ = ("is_billable", "key")

    def __init__(self, source_id: str, network: str, method: str, outcome: str) -> None:
        self.key = Raw(_encode_key((source_id, network, method, outcome)))
        self.is_billable = outcome in BILLABLE


_encode_key = msgspec.json.Encoder().encode
_read_key = msgspec.json.Decoder(LineKey).decode

Lines = dict[UsageLine, list[Any]]
"""Lines of usage: the key again, requests, cost."""


class LatencyLine:
    """What a histogram is about: a network and an outcome. Compared as an object, too."""

    __slots__ = ("network", "outcome")

    def __init__(self, network: str, outcome: str) -> None:
        self.network = network
        self.outcome = outcome


Histograms = dict[LatencyLine, tuple[str, str, dict[int, int]]]
"""The network and the outcome again, and calls by bucket."""


class Posting(Struct):
    """What is to be written."""

    blocks: list[RowBlock] = field(default_factory=list)
    """Of teams that have many rows, in the order of those."""
    shared: list[SharedBlock] = field(default_factory=list)
    """Of all other teams."""
    lines: dict[tuple[str, int], dict[str, Lines]] = field(default_factory=dict)
    """Usage: requests and cost to add, by month and hour, then by team. Two lines may have the same key."""
    latencies: dict[int, dict[str, Histograms]] = field(default_factory=dict)
    """Calls to add, by hour, then by team."""
    months: dict[MonthKey, list[int]] = field(default_factory=dict)
    """Billable requests and cost to add, by team."""
    last_used: dict[str, float] = field(default_factory=dict)
    rows: int = 0
    next_no: dict[str, int] = field(default_factory=dict)
    """The number of the next row of each team that has new ones."""

    @property
    def usage(self) -> dict[UsageKey, list[int]]:
        """Usage, line by line."""
        found: dict[UsageKey, list[int]] = {}
        for (month, hour), teams in self.lines.items():
            for team_id, lines in teams.items():
                for key, requests, charged in lines.values():
                    sums = found.setdefault((team_id, month, hour, *_read_key(key)), [0, 0])
                    sums[0] += requests
                    sums[1] += charged
        return found


class LatencyKind:
    """A network, and how many calls of a record had each outcome: what a duration counts for."""

    __slots__ = ("lines", "network", "outcomes")

    def __init__(
        self, network: str, outcomes: Iterable[tuple[str, int]], line: Callable[[str, str], LatencyLine]
    ) -> None:
        self.network = network
        self.outcomes = tuple(outcomes)
        self.lines = tuple([(line(network, outcome), calls) for outcome, calls in self.outcomes])


class CountedSubject:
    """A subject, worked out once: what one record of it adds."""

    __slots__ = (
        "billable", "calls", "cap", "errors", "is_used", "latency", "lines", "network", "price", "rows",
        "source_id", "stands_for", "status", "team_id",
    )  # fmt: skip

    def __init__(
        self,
        subject: Subject,
        calls: Mapping[CountedCall, int],
        latency: LatencyKind,
        line: Callable[[str, str, str, str], UsageLine],
    ) -> None:
        """`calls` are its calls, equal ones counted together."""
        # Tens of thousands are remembered: what they have in common is kept once.
        self.team_id, self.source_id = intern(subject.team_id), intern(subject.source_id)
        self.network = latency.network
        self.status = subject.status
        self.cap = subject.cap
        self.price = subject.price
        self.stands_for = subject.stands_for
        # A token that is refused itself, because it has expired, is not used.
        self.is_used = subject.status != UNAUTHORIZED
        self.calls = subject.calls
        self.rows = len(subject.calls)
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
    """Subjects that were met, by their bytes. `label` gives the method as usage counts it."""

    def __init__(self, label: Callable[[str, str], str]) -> None:
        self._label = label
        self.line = lru_cache(MAX_SUBJECTS)(self._line)
        """The line of a call, by source, network, method and outcome."""
        self._latency_line = lru_cache(MAX_SUBJECTS)(LatencyLine)
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
        lines = _calls(subject.calls)
        found = CountedSubject(subject, lines, self._latency(subject.network, lines), self.line)
        if len(content) <= LONGEST_SUBJECT:
            if len(self._known) >= MAX_SUBJECTS:
                self._known.clear()
            self._known[content] = found
        return found

    def _line(self, source_id: str, network: str, method: str, outcome: str) -> UsageLine:
        return UsageLine(source_id, network, self._label(network, method), outcome)

    def _latency(self, network: str, lines: Mapping[CountedCall, int]) -> LatencyKind:
        outcomes: dict[str, int] = {}
        for (_, outcome), count in lines.items():
            outcomes[outcome] = outcomes.get(outcome, 0) + count
        key = (network, tuple(outcomes.items()))
        kind = self._latencies.get(key)
        if kind is None:
            if len(self._latencies) >= MAX_SUBJECTS:
                self._latencies.clear()
            kind = self._latencies[key] = LatencyKind(network, outcomes.items(), self._latency_line)
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


def post(batch: Batch, opening: Opening, rules: Rules) -> Posting:
    posting = Posting(last_used=batch.last_used)
    for hour, start, end in _hours(batch.times):
        month = rules.month_for(float(hour * _SECONDS_OF_HOUR), opening.closed)
        by_team = _by_team(batch.subjects, start, end)
        accounts = _Accounts(posting, _Sorted(batch, by_team), opening, rules, hour, month)
        ends = accumulate(map(len, by_team.values()), initial=0)
        for team_id, (first, behind) in zip(by_team, pairwise(ends), strict=True):
            accounts.add(team_id, first, behind)
        accounts.close()
    return posting


Kinds = Iterable[tuple[CountedSubject, int]]
"""Subjects, and how many records there are of each."""


def _counted(subjects: Sequence[CountedSubject]) -> Kinds:
    """Equal ones together. Of a few it is not worth while to count them."""
    if len(subjects) > _FEW:
        return Counter(subjects).items()
    return [(subject, 1) for subject in subjects]


def _calls(calls: Sequence[CountedCall]) -> dict[CountedCall, int]:
    """Calls, equal ones counted together."""
    counts: dict[CountedCall, int] = {}
    for call in calls:
        counts[call] = counts.get(call, 0) + 1
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
    found: defaultdict[str, list[int]] = defaultdict(list)
    for place, subject in enumerate(subjects[start:end], start):
        if subject.rows:
            found[subject.team_id].append(place)
    return found


def _picker(places: list[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Takes what stands at these places out of a list, at once: that is several times quicker than one by one."""
    return itemgetter(*places) if len(places) > 1 else lambda values: [values[place] for place in places]


class _Sorted:
    """Records of a batch, those of each team together."""

    def __init__(self, batch: Batch, by_team: Mapping[str, list[int]]) -> None:
        pick = _picker(list(chain.from_iterable(by_team.values())))
        self.payloads: Sequence[bytes] = pick(batch.payloads)
        self.times: Sequence[float] = pick(batch.times)
        self.subjects: Sequence[CountedSubject] = pick(batch.subjects)
        self.buckets = buckets_of(pick(batch.durations))
        self.line = batch.line


class _Accounts:
    """The accounts of teams in one hour, whose calls have one billing month."""

    def __init__(
        self, posting: Posting, records: _Sorted, opening: Opening, rules: Rules, hour: int, month: str
    ) -> None:
        self._posting = posting
        self._records = records
        self._opening = opening
        self._rules = rules
        self._month = month
        self._lines = posting.lines.setdefault((month, hour), {})
        self._latencies = posting.latencies.setdefault(hour, {})
        self._shared = SharedWriter()

    def add(self, team_id: str, start: int, end: int) -> None:
        """Count a team's records, and make a block or a part of one of them."""
        posting, opening, month, records = self._posting, self._opening, self._month, self._records
        subjects = records.subjects[start:end]
        kinds = _counted(subjects)
        billed = rows = 0
        lowest: int | None = None
        own, is_changed = subjects[0].price, False
        for subject, count in kinds:
            billed += subject.billable * count
            rows += subject.rows * count
            if subject.cap is not None and (lowest is None or subject.cap < lowest):
                lowest = subject.cap
            if subject.price != own:
                is_changed = True
        key = (team_id, month)
        total = posting.months.get(key)
        if total is None:
            total = posting.months[key] = [0, 0]
        before, spent = opening.months.get(key, _NOTHING)
        before, spent = before + total[0], spent + total[1]
        usual = self._rules.price(team_id)
        price = usual if own is None else own.over(usual)
        unit = None if is_changed else _unit(price, before, billed, lowest, spent)
        usage = self._lines.get(team_id)
        if usage is None:
            usage = self._lines[team_id] = {}
        costs: int | list[int]
        if unit is None:
            costs = _costs(usage, subjects, usual, before, spent, records.line)
            total[1] += sum(costs)
        else:
            costs = unit
            _add_usage(usage, kinds, unit)
            total[1] += unit * billed
        total[0] += billed
        self._add_latencies(team_id, subjects, kinds, records.buckets[start:end])
        first_no = posting.next_no.get(team_id) or opening.next_no.get(team_id, 1)
        posting.rows += rows
        posting.next_no[team_id] = first_no + rows
        payloads, times = records.payloads[start:end], records.times[start:end]
        if rows >= OWN_ROWS:
            self._add_blocks(team_id, first_no, payloads, times, subjects, costs)
            return
        self._shared.add(team_id, first_no, Run(rows, month, costs), payloads, times, subjects)

    def close(self) -> None:
        """Make shared blocks of the parts of small teams."""
        self._shared.end()
        self._posting.shared += self._shared.blocks

    def _add_latencies(
        self, team_id: str, subjects: Sequence[CountedSubject], kinds: Kinds, buckets: Sequence[int]
    ) -> None:
        found = self._latencies.get(team_id)
        if found is None:
            found = self._latencies[team_id] = {}
        if len(buckets) <= _FEW:
            for bucket, subject in zip(buckets, subjects, strict=True):
                for line, calls in subject.latency.lines:
                    histogram = found.get(line)
                    if histogram is None:
                        found[line] = (line.network, line.outcome, {bucket: calls})
                    else:
                        counts = histogram[2]
                        counts[bucket] = counts.get(bucket, 0) + calls
            return
        latencies = {subject.latency for subject, _ in kinds}
        for kind in latencies:
            its = buckets
            if len(latencies) > 1:
                its = [bucket for bucket, each in zip(buckets, subjects, strict=True) if each.latency is kind]
            records = Counter(its)
            for line, calls in kind.lines:
                histogram = found.get(line)
                if histogram is None:
                    counts = dict(records)
                    if calls > 1:
                        counts = {bucket: count * calls for bucket, count in counts.items()}
                    found[line] = (line.network, line.outcome, counts)
                else:
                    counts = histogram[2]
                    for bucket, count in records.items():
                        counts[bucket] = counts.get(bucket, 0) + count * calls

    def _add_blocks(
        self,
        team_id: str,
        first_no: int,
        payloads: Sequence[bytes],
        times: Sequence[float],
        subjects: Sequence[CountedSubject],
        costs: int | list[int],
    ) -> None:
        row = 0
        for start, end in _pieces(subjects):
            some, of, at = payloads[start:end], subjects[start:end], times[start:end]
            counts = [subject.rows for subject in of]
            rows, kinds = sum(counts), set(of)
            run = Run(rows, self._month, costs if isinstance(costs, int) else costs[row : row + rows])
            self._posting.blocks.append(
                RowBlock(
                    team_id,
                    first_no + row,
                    rows,
                    len(some),
                    errors_of(of, kinds),
                    min(at),
                    max(at),
                    pack(facts_of([run], kinds)),
                    written(some, counts if rows != len(some) else None),
                )
            )
            row += rows


def _unit(price: Price, before: int, billed: int, lowest_cap: int | None, spent: int) -> int | None:
    """What each of these requests costs; None where they do not all cost the same."""
    if before + billed <= price.free_requests or not billed or not price.total(before + billed):
        return 0
    unit = price.micros_per_million // MILLION
    if (
        price.plan is Plan.PER_REQUEST
        and price.micros_per_million % MILLION == 0
        and before >= price.free_requests
        and (lowest_cap is None or spent + unit * billed <= lowest_cap)
    ):
        return unit
    return None


def _costs(
    usage: Lines,
    subjects: Iterable[CountedSubject],
    usual: Price,
    requests: int,
    spent: int,
    line_of: Callable[[str, str, str, str], UsageLine],
) -> list[int]:
    """What each row costs, one after the other; counted as usage on the way."""
    costs = []
    prices: dict[OwnPrice | None, Price] = {None: usual}
    for subject in subjects:
        count = subject.stands_for
        own = subject.price
        if own is not None and own not in prices:
            prices[own] = own.over(usual)
        price = prices[own]
        for method, outcome in subject.calls:
            line = line_of(subject.source_id, subject.network, method, outcome)
            charged = 0
            if line.is_billable:
                charged = cost(price, requests, count, subject.cap, spent)
                requests += count
                spent += charged
            sums = usage.get(line)
            if sums is None:
                usage[line] = [line.key, count, charged]
            else:
                sums[1] += count
                sums[2] += charged
            costs.append(charged)
    return costs


def _add_usage(usage: Lines, kinds: Kinds, unit: int) -> None:
    for subject, records in kinds:
        requests = records * subject.stands_for
        for line, calls in subject.lines:
            count = requests * calls
            charged = count * unit if unit and line.is_billable else 0
            sums = usage.get(line)
            if sums is None:
                usage[line] = [line.key, count, charged]
            else:
                sums[1] += count
                sums[2] += charged


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
