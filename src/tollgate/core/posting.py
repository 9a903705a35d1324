"""Posting: what a batch of records adds to the ledger. Pure: balances come in, increments go out.

`post` takes the records of each hour, sorted by team. They become lines of usage, histograms of latencies, and
log entries: a block of their own where a team has many, else a part of a shared block. Each call has a billing
month (its own, or the open one if that is closed) and gets its cost in the order of commit, so usage, invoices and
logs agree by billing month to the single request. A cost depends on what the team had used before, on the free
requests that its payer has left, and on the price and the spending cap in force when the call was admitted.

A team is charged the price of all that was answered, up to its cap. What lay beyond a lower cap is charged with
the first call that a higher one admits.

The common case is fast: calls that all cost the same are counted by subject, not one by one. Only hours in which a
price changes, the free requests end or a cap is reached or raised are counted call by call.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, groupby, pairwise
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct, field

from tollgate.api.usage import Plan
from tollgate.core.blocks import FULL_ENTRIES, OWN_ENTRIES, LogBlock, Run, facts_of, written
from tollgate.core.entries import pack
from tollgate.core.latencies import buckets_of
from tollgate.core.pricing import MILLION, MonthUse, OwnPrice, Price, charge, cost
from tollgate.core.shared_blocks import SharedBlock, SharedWriter, errors_of
from tollgate.core.subjects import Batch, CountedSubject, LatencyLine, LineKey, UsageLine

UsageKey = tuple[str, str, int, str, str, str, str]
"""team, month, hour, source, network, method, outcome"""
LatencyKey = tuple[str, int, str, str]
"""team, hour, network, outcome"""
MonthKey = tuple[str, str]
"""team, token or payer, month"""
UsageLines = dict[UsageLine, list[Any]]
"""By line: its key, requests, cost."""
Histograms = dict[LatencyLine, tuple[str, str, dict[int, int]]]
"""By line: its network and outcome, and calls by bucket."""
SubjectCounts = Iterable[tuple[CountedSubject, int]]
"""Subjects, and how many records there are of each."""

_SECONDS_OF_HOUR = 3_600
# Up to so many records, one by one is quicker than counting equal ones first.
_FEW = 16
_NO_USE = MonthUse()
_read_key = msgspec.json.Decoder(LineKey).decode


class Rules(Struct, frozen=True):
    """What a batch is posted by."""

    price: Callable[[str], Price]
    """The price of a team whose records carry none of its own."""
    month_for: Callable[[float, frozenset[str]], str]
    """Time and closed months -> billing month. One month for all moments of an hour."""


class Opening(Struct, frozen=True):
    """The ledger before a batch."""

    next_no: Mapping[str, int]
    """The number of each team's next log entry; 1 where a team is missing."""
    months: Mapping[MonthKey, MonthUse]
    """What teams have used, but for what other teams of their payers have."""
    closed: frozenset[str] = frozenset()
    """Closed months: nothing is added to them."""
    free: Mapping[MonthKey, int] = {}
    """Free requests that all teams of a payer have had."""


class Posting(Struct):
    """What a batch adds to the ledger."""

    blocks: list[LogBlock] = field(default_factory=list)
    """Of teams with many log entries, in the order of their numbers."""
    shared: list[SharedBlock] = field(default_factory=list)
    """Of all other teams."""
    lines: dict[tuple[str, int], dict[str, UsageLines]] = field(default_factory=dict)
    """Requests and cost by month and hour, then by team. Two lines may have the same key."""
    latencies: dict[int, dict[str, Histograms]] = field(default_factory=dict)
    """Calls by hour, then by team."""
    months: dict[MonthKey, list[int]] = field(default_factory=dict)
    """What each team has used more: billable requests, cost, cost before caps, free requests."""
    free: dict[MonthKey, int] = field(default_factory=dict)
    """Free requests by payer."""
    admitted: dict[str, int] = field(default_factory=dict)
    """Billable requests that were admitted under a spending cap, by team."""
    last_used: dict[str, float] = field(default_factory=dict)
    """When tokens and domains were last used."""
    entries: int = 0
    """Log entries."""
    next_no: dict[str, int] = field(default_factory=dict)
    """The number of the next log entry of each team that has new ones."""

    @property
    def usage(self) -> dict[UsageKey, list[int]]:
        """Requests and cost, one entry for each key."""
        found: dict[UsageKey, list[int]] = {}
        for (month, hour), teams in self.lines.items():
            for team_id, lines in teams.items():
                for key, requests, charged in lines.values():
                    sums = found.setdefault((team_id, month, hour, *_read_key(key)), [0, 0])
                    sums[0] += requests
                    sums[1] += charged
        return found


def post(batch: Batch, opening: Opening, rules: Rules) -> Posting:
    """What a batch adds to the ledger, whose balances are `opening`."""
    posting = Posting(last_used=batch.last_used)
    for hour, start, end in _hours(batch.times):
        month = rules.month_for(float(hour * _SECONDS_OF_HOUR), opening.closed)
        places = _places_by_team(batch.subjects, start, end)
        poster = _HourPoster(posting, _SortedRecords(batch, places), opening, rules, hour, month)
        ends = accumulate(map(len, places.values()), initial=0)
        for team_id, (first, behind) in zip(places, pairwise(ends), strict=True):
            poster.add_team(team_id, first, behind)
        poster.finish()
    return posting


# --- Records by hour and team ------------------------------------------------------------------------------


def _hours(times: Sequence[float]) -> Iterator[tuple[int, int, int]]:
    """The hours of a batch: which, and where its records start and end. An hour may occur again later."""
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


def _places_by_team(subjects: Sequence[CountedSubject], start: int, end: int) -> dict[str, list[int]]:
    """Where in a batch the records of each team are."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for place, subject in enumerate(subjects[start:end], start):
        if subject.entries:
            found[subject.team_id].append(place)
    return found


class _SortedRecords:
    """The records of an hour, those of each team together."""

    def __init__(self, batch: Batch, places: Mapping[str, list[int]]) -> None:
        sorted_places = list(chain.from_iterable(places.values()))

        def pick(values: Sequence[Any]) -> Sequence[Any]:
            # At once: several times quicker than one by one. Of one place `itemgetter` returns no tuple.
            if len(sorted_places) > 1:
                found: Sequence[Any] = itemgetter(*sorted_places)(values)
                return found
            return [values[place] for place in sorted_places]

        self.payloads: Sequence[bytes] = pick(batch.payloads)
        self.times: Sequence[float] = pick(batch.times)
        self.subjects: Sequence[CountedSubject] = pick(batch.subjects)
        self.buckets = buckets_of(pick(batch.durations))
        self.line = batch.line


def _count_equal(subjects: Sequence[CountedSubject]) -> SubjectCounts:
    if len(subjects) > _FEW:
        return Counter(subjects).items()
    return [(subject, 1) for subject in subjects]


class _Totals(NamedTuple):
    """What decides the costs of a team's records."""

    entries: int
    billable: int
    lowest_cap: int | None
    price: OwnPrice | None
    """The team's own price in the first of them."""
    is_price_changed: bool
    admitted: int
    """Billable requests that were admitted under a cap."""


def _totals(counts: SubjectCounts, price: OwnPrice | None) -> _Totals:
    total = billable = admitted = 0
    lowest_cap: int | None = None
    is_price_changed = False
    for subject, count in counts:
        total += subject.entries * count
        billable += subject.billable * count
        if subject.cap is not None:
            admitted += subject.billable * count
            if lowest_cap is None or subject.cap < lowest_cap:
                lowest_cap = subject.cap
        if subject.price != price:
            is_price_changed = True
    return _Totals(total, billable, lowest_cap, price, is_price_changed, admitted)


# --- One hour ----------------------------------------------------------------------------------------------


class _HourPoster:
    """Posts the records of one hour, team by team. All of them have the same billing month."""

    def __init__(
        self, posting: Posting, records: _SortedRecords, opening: Opening, rules: Rules, hour: int, month: str
    ) -> None:
        self._posting = posting
        self._records = records
        self._opening = opening
        self._rules = rules
        self._month = month
        self._lines = posting.lines.setdefault((month, hour), {})
        self._latencies = posting.latencies.setdefault(hour, {})
        self._shared = SharedWriter()

    def add_team(self, team_id: str, start: int, end: int) -> None:
        """Post a team's records, which are those from `start` to `end`."""
        records = self._records
        subjects = records.subjects[start:end]
        counts = _count_equal(subjects)
        totals = _totals(counts, subjects[0].price)
        costs = self._add_usage(team_id, subjects, counts, totals)
        self._add_latencies(team_id, subjects, counts, records.buckets[start:end])
        payloads, times = records.payloads[start:end], records.times[start:end]
        self._add_entries(team_id, totals.entries, costs, subjects, payloads, times)

    def finish(self) -> None:
        """Make shared blocks of the teams with few entries."""
        self._shared.end()
        self._posting.shared += self._shared.blocks

    def _add_usage(
        self, team_id: str, subjects: Sequence[CountedSubject], counts: SubjectCounts, totals: _Totals
    ) -> int | list[int]:
        """Count usage; return what each billable request costs, or the cost of each entry where they differ."""
        _, billable, lowest_cap, own, is_changed, admitted = totals
        if admitted:
            self._posting.admitted[team_id] = self._posting.admitted.get(team_id, 0) + admitted
        lines = self._lines.get(team_id)
        if lines is None:
            lines = self._lines[team_id] = {}
        usual, payer = self._rules.price(team_id), subjects[0].payer
        use = self._use(team_id, payer)
        price = (usual if own is None else own.over(usual)).without(use.others_free)
        unit = None if is_changed else _unit_cost(price, use, billable, lowest_cap)
        if unit is None:
            counted = _CallByCall(lines, usual, use, self._records.line)
            costs = counted.add(subjects)
            self._count(team_id, payer, (billable, sum(costs), counted.uncapped - use.uncapped, counted.free))
            return costs
        _add_at_unit_cost(lines, counts, unit)
        charged = unit * billable
        free = min(billable, max(0, price.free_requests - use.requests))
        self._count(team_id, payer, (billable, charged, charged, free))
        return unit

    def _use(self, team_id: str, payer: str) -> MonthUse:
        """What a team has used up to now, and other teams of its payer of the free requests."""
        month, posting, opening = self._month, self._posting, self._opening
        before = opening.months.get((team_id, month), _NO_USE)
        added = posting.months.get((team_id, month))
        requests, cost_, uncapped, free, _ = before
        if added is not None:
            requests, cost_, uncapped, free = map(sum, zip(before, added, strict=False))
        of_payer = opening.free.get((payer, month), 0) + posting.free.get((payer, month), 0)
        return MonthUse(requests, cost_, uncapped, free, max(0, of_payer - free))

    def _count(self, team_id: str, payer: str, added: tuple[int, int, int, int]) -> None:
        posting = self._posting
        sums = posting.months.get((team_id, self._month))
        posting.months[team_id, self._month] = (
            list(added) if sums is None else [one + more for one, more in zip(sums, added, strict=True)]
        )
        if added[3]:
            posting.free[payer, self._month] = posting.free.get((payer, self._month), 0) + added[3]

    def _add_latencies(
        self, team_id: str, subjects: Sequence[CountedSubject], counts: SubjectCounts, buckets: Sequence[int]
    ) -> None:
        histograms = self._latencies.get(team_id)
        if histograms is None:
            histograms = self._latencies[team_id] = {}
        if len(buckets) <= _FEW:
            for bucket, subject in zip(buckets, subjects, strict=True):
                for line, calls in subject.latency.lines:
                    histogram = histograms.get(line)
                    if histogram is None:
                        histograms[line] = (line.network, line.outcome, {bucket: calls})
                    else:
                        by_bucket = histogram[2]
                        by_bucket[bucket] = by_bucket.get(bucket, 0) + calls
            return
        kinds = {subject.latency for subject, _ in counts}
        for kind in kinds:
            its = buckets
            if len(kinds) > 1:
                its = [bucket for bucket, each in zip(buckets, subjects, strict=True) if each.latency is kind]
            records = Counter(its)
            for line, calls in kind.lines:
                histogram = histograms.get(line)
                if histogram is None and calls == 1:
                    histograms[line] = (line.network, line.outcome, dict(records))
                    continue
                by_bucket = histograms.setdefault(line, (line.network, line.outcome, {}))[2]
                for bucket, count in records.items():
                    by_bucket[bucket] = by_bucket.get(bucket, 0) + count * calls

    def _add_entries(
        self,
        team_id: str,
        total: int,
        costs: int | list[int],
        subjects: Sequence[CountedSubject],
        payloads: Sequence[bytes],
        times: Sequence[float],
    ) -> None:
        """Number the log entries, and store them in blocks."""
        posting = self._posting
        first_no = posting.next_no.get(team_id) or self._opening.next_no.get(team_id, 1)
        posting.entries += total
        posting.next_no[team_id] = first_no + total
        if total < OWN_ENTRIES:
            self._shared.add(team_id, first_no, Run(total, self._month, costs), payloads, times, subjects)
            return
        done = 0
        for start, end in _block_bounds(subjects, total):
            its = subjects[start:end]
            kinds = set(its)
            entry_counts = [subject.entries for subject in its]
            count = sum(entry_counts)
            run = Run(count, self._month, costs if isinstance(costs, int) else costs[done : done + count])
            posting.blocks.append(
                LogBlock(
                    team_id,
                    first_no + done,
                    count,
                    end - start,
                    errors_of(its, kinds),
                    min(times[start:end]),
                    max(times[start:end]),
                    pack(facts_of([run], kinds)),
                    written(payloads[start:end], entry_counts if count != end - start else None),
                )
            )
            done += count


def _block_bounds(subjects: Sequence[CountedSubject], total: int) -> list[tuple[int, int]]:
    """Where blocks start and end among records with so many entries; all blocks are of about the same size."""
    if total <= FULL_ENTRIES:
        return [(0, len(subjects))]
    blocks = -(-total // FULL_ENTRIES)
    max_entries = -(-total // blocks)
    bounds, start, size = [], 0, 0
    for place, subject in enumerate(subjects):
        if size and size + subject.entries > max_entries:
            bounds.append((start, place))
            start, size = place, 0
        size += subject.entries
    return [*bounds, (start, len(subjects))]


# --- Costs -------------------------------------------------------------------------------------------------


def _unit_cost(price: Price, use: MonthUse, billable: int, lowest_cap: int | None) -> int | None:
    """What each of these billable requests costs; None where they do not all cost the same."""
    if not billable:
        return 0
    if use.cost != use.uncapped:
        # Some lies beyond a cap: it may be charged now.
        return None
    before = use.requests
    if before + billable <= price.free_requests or not price.total(before + billable):
        return 0
    unit = price.micros_per_million // MILLION
    if (
        price.plan is Plan.PER_REQUEST
        and price.micros_per_million % MILLION == 0
        and before >= price.free_requests
        and (lowest_cap is None or use.uncapped + unit * billable <= lowest_cap)
    ):
        return unit
    return None


def _add_at_unit_cost(lines: UsageLines, counts: SubjectCounts, unit: int) -> None:
    for subject, records in counts:
        requests = records * subject.stands_for
        for line, calls in subject.lines:
            count = requests * calls
            charged = count * unit if unit and line.is_billable else 0
            sums = lines.get(line)
            if sums is None:
                lines[line] = [line.key, count, charged]
            else:
                sums[1] += count
                sums[2] += charged


class _CallByCall:
    """Counts the usage of a team call by call."""

    def __init__(
        self,
        lines: UsageLines,
        usual: Price,
        use: MonthUse,
        line_of: Callable[[str, str, str, str], UsageLine],
    ) -> None:
        self._lines = lines
        self._usual = usual
        self._line_of = line_of
        self._requests, self._spent, self.uncapped, _, self._others_free = use
        self._prices: dict[OwnPrice | None, Price] = {None: usual.without(use.others_free)}
        self.free = 0
        """Requests that were free."""

    def add(self, subjects: Iterable[CountedSubject]) -> list[int]:
        """Count these; return the cost of each call."""
        costs = []
        lines = self._lines
        for subject in subjects:
            count = subject.stands_for
            for method, outcome in subject.calls:
                line = self._line_of(subject.source_id, subject.network, method, outcome)
                charged = self._charge(subject, count) if line.is_billable else 0
                sums = lines.get(line)
                if sums is None:
                    lines[line] = [line.key, count, charged]
                else:
                    sums[1] += count
                    sums[2] += charged
                costs.append(charged)
        return costs

    def _charge(self, subject: CountedSubject, count: int) -> int:
        own = subject.price
        price = self._prices.get(own)
        if price is None:
            assert own is not None  # noqa: S101 - the usual price is there
            price = self._prices[own] = own.over(self._usual).without(self._others_free)
        before = self._requests
        self._requests += count
        self.uncapped += cost(price, before, count)
        self.free += min(count, max(0, price.free_requests - before))
        charged = charge(self.uncapped, self._spent, subject.cap)
        self._spent += charged
        return charged
