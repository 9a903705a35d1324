"""Blocks: the records of one team, side by side, as every backend of the ledger stores them. Pure.

A block has a header of small facts, by which a search skips it, and data: a byte with the version of the format,
the lengths of its records, the number of log entries of each where some have more than one, and the records as
they came from the spool. Entries are numbered for each team, without gaps, in the order of their commit; the
number of one is the block's first plus its place, so it stays the same when blocks are joined. Months and costs
are decided when a record is committed; the facts have them, by runs of entries with the same month and cost.
"""

from __future__ import annotations

import heapq
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate, groupby
from typing import Protocol, TypeVar

import msgspec
from msgspec import Struct

from tollgate.core import entries
from tollgate.core.entries import (
    BILLABLE,
    MAX_METHOD_BYTES,
    MAX_TEXT_BYTES,
    CountedCall,
    Detail,
    Record,
    Subject,
)
from tollgate.core.logs import LogEntry, LogFilter

# Entries of a block: enough to compress well, few enough that a page which needs one reads little.
FULL_ENTRIES = 1_024
# A block with so many entries is not joined any more.
ENOUGH_ENTRIES = 256
# With so many entries in one commit a team gets a block of its own: writing them twice costs more than it saves.
OWN_ENTRIES = 128
# Values of one kind of fact in one block. With more, a search cannot skip the block by this kind.
MAX_WORDS = 64
# Cached, because they repeat from entry to entry: subjects; agents, origins and methods.
_MAX_SUBJECTS, _MAX_TEXTS = 4_096, 1_024
VERSION = 2
"""Of blocks, shared blocks and the records in them."""
HEAD = bytes([VERSION])
"""Begins the data of a block."""
LENGTHS, COUNTS = "I", "H"
_NIL = entries.pack(None)
_ENDS_OF_ONE = 2
LENGTH_BYTES, COUNT_BYTES = array(LENGTHS).itemsize, array(COUNTS).itemsize


class Run(Struct, array_like=True, gc=False):
    """Entries that follow each other and have the same month."""

    entries: int
    month: str
    costs: int | list[int]
    """What each billable request of theirs costs, or what each entry costs."""


class Facts(Struct, array_like=True, gc=False):
    """What occurs in a block. None for a kind with too many values to list."""

    runs: list[Run]
    sources: list[str] | None
    networks: list[str] | None
    methods: list[str] | None
    statuses: list[int] | None
    outcomes: list[str] | None


class LogBlock(Struct, frozen=True):
    """Some entries of a team, ready to be stored."""

    team_id: str
    first_no: int
    entries: int
    records: int
    errors: int
    """Entries with another outcome than `ok`."""
    least_at: float
    greatest_at: float
    facts: bytes
    """`Facts`, encoded."""
    data: bytes
    """Not compressed."""


read_facts = msgspec.msgpack.Decoder(Facts).decode


T = TypeVar("T")
Word = TypeVar("Word", str, int)


def words(found: Iterable[Word]) -> list[Word] | None:
    """One kind of facts, in an order that is always the same."""
    kept = set(found)
    if len(kept) == 1:
        return list(kept)
    return sorted(kept) if len(kept) <= MAX_WORDS else None


class RecordedCaller(Protocol):
    """What facts are made of."""

    @property
    def source_id(self) -> str: ...
    @property
    def network(self) -> str: ...
    @property
    def status(self) -> int: ...
    @property
    def calls(self) -> tuple[CountedCall, ...]: ...


def facts_of(runs: list[Run], callers: Collection[RecordedCaller]) -> Facts:
    calls = {call for caller in callers for call in caller.calls}
    return Facts(
        runs,
        words([caller.source_id for caller in callers]),
        words([caller.network for caller in callers]),
        words([cut(method) for method, _ in calls]),
        words([caller.status for caller in callers]),
        words([outcome for _, outcome in calls]),
    )


def cut(method: str) -> str:
    """A method as a log shows it."""
    if method.isascii():
        return method[:MAX_METHOD_BYTES]
    return method.encode()[:MAX_METHOD_BYTES].decode("utf-8", "ignore")


def written(records: Sequence[bytes], counts: Sequence[int] | None) -> bytes:
    """The data of a block. `counts` are the entries of each record, None where all have one."""
    head = HEAD + as_bytes(array(LENGTHS, map(len, records)))
    if counts is not None:
        head += as_bytes(array(COUNTS, counts))
    return head + b"".join(records)


def joined(blocks: Sequence[LogBlock]) -> LogBlock:
    """One block of several whose entries follow each other."""
    if len(blocks) == 1:
        return blocks[0]
    parts = [split(block.data, block.records, block.entries) for block in blocks]
    total, records = (sum(getattr(block, name) for block in blocks) for name in ("entries", "records"))
    counts = b""
    if total != records:
        counts = b"".join(as_bytes(each or array(COUNTS, [1] * len(lengths))) for lengths, each, _ in parts)
    lengths = b"".join(as_bytes(each) for each, _, _ in parts)
    facts = [read_facts(block.facts) for block in blocks]
    return LogBlock(
        team_id=blocks[0].team_id,
        first_no=blocks[0].first_no,
        entries=total,
        records=records,
        errors=sum(block.errors for block in blocks),
        least_at=min(block.least_at for block in blocks),
        greatest_at=max(block.greatest_at for block in blocks),
        facts=entries.pack(_joined_facts(facts)),
        data=b"".join((HEAD, lengths, counts, *(content for _, _, content in parts))),
    )


def groups(parts: Iterable[T], numbers: Callable[[T], tuple[int, int]]) -> Iterator[list[T]]:
    """Parts of a team, in their order, as they are to be joined: side by side, until there are enough entries.

    `numbers` returns the number of a part's first entry, and how many it has.
    """
    group: list[T] = []
    total = following = 0
    for part in parts:
        first, count = numbers(part)
        if group and (first != following or total >= ENOUGH_ENTRIES):
            yield group
            group, total = [], 0
        group.append(part)
        total += count
        following = first + count
    if group:
        yield group


def _joined_facts(facts: Sequence[Facts]) -> Facts:
    kinds = []
    for name in ("sources", "networks", "methods", "statuses", "outcomes"):
        each = [getattr(fact, name) for fact in facts]
        kinds.append(None if None in each else words(word for some in each for word in some))
    return Facts(joined_runs(run for each in facts for run in each.runs), *kinds)


def joined_runs(parts: Iterable[Run]) -> list[Run]:
    """Runs that follow each other, those that have a month and a cost in common as one."""
    runs: list[Run] = []
    for run in parts:
        last = runs[-1] if runs else None
        if last is not None and last.month == run.month and isinstance(run.costs, int) and last.costs == run.costs:
            runs[-1] = Run(last.entries + run.entries, last.month, last.costs)
        elif (
            last is not None
            and last.month == run.month
            and isinstance(last.costs, list)
            and isinstance(run.costs, list)
        ):
            runs[-1] = Run(last.entries + run.entries, last.month, last.costs + run.costs)
        else:
            runs.append(run)
    return runs


def as_bytes(numbers: array[int]) -> bytes:
    """As bytes, the least significant first on any machine."""
    if sys.byteorder == "big":
        numbers = array(numbers.typecode, numbers)
        numbers.byteswap()
    return numbers.tobytes()


def numbers_of(kind: str, data: bytes) -> array[int]:
    numbers = array(kind, data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


read_subject = lru_cache(_MAX_SUBJECTS)(entries.read_subject)


class Broken(ValueError):
    """Data that no writer wrote."""


def split(data: bytes, records: int, total: int) -> tuple[array[int], array[int] | None, bytes]:
    """Lengths, entries of each record, and the records."""
    if not data.startswith(HEAD):
        raise Broken(f"its data is not of version {VERSION}")
    start = len(HEAD) + LENGTH_BYTES * records
    lengths, counts = numbers_of(LENGTHS, data[len(HEAD) : start]), None
    if total != records:
        counts = numbers_of(COUNTS, data[start : start + COUNT_BYTES * records])
        start += COUNT_BYTES * records
    content = data[start:]
    if len(lengths) != records or sum(lengths) != len(content) or (counts is not None and sum(counts) != total):
        raise Broken("its records do not fill it")
    return lengths, counts, content


# --- Reading -----------------------------------------------------------------------------------------------


class OpenBlock:
    """The entries of a block, as a page reads them."""

    def __init__(self, first_no: int, total: int, records: int, facts: Facts, data: bytes) -> None:
        self._open(first_no, facts, *split(data, records, total))

    @classmethod
    def of(
        cls, first_no: int, facts: Facts, lengths: array[int], counts: array[int] | None, content: bytes
    ) -> OpenBlock:
        """Entries whose records are apart already."""
        found = cls.__new__(cls)
        found._open(first_no, facts, lengths, counts, content)
        return found

    def _open(
        self, first_no: int, facts: Facts, lengths: array[int], counts: array[int] | None, content: bytes
    ) -> None:
        self._lengths = lengths
        self._content = content
        self._facts = facts
        self._firsts: Sequence[int] = (
            range(first_no, first_no + len(lengths) + 1)
            if counts is None
            else list(accumulate(counts, initial=first_no))
        )
        self._run_ends = list(accumulate([run.entries for run in facts.runs], initial=first_no))

    @cached_property
    def _starts(self) -> list[int]:
        """Where records begin, and where the last ends. Not needed where a search finds nothing."""
        return list(accumulate(self._lengths, initial=0))

    def records(self) -> Iterator[tuple[int, bytes]]:
        """All records, each with the number of its first entry."""
        for place, first in enumerate(self._firsts[:-1]):
            yield first, self._content[self._starts[place] : self._starts[place + 1]]

    def older(self, wanted: LogFilter, below: int) -> Iterator[LogEntry]:
        """Entries that fit, from below a number down."""
        is_plain = wanted.is_plain
        for place in self._places(wanted, bisect_left(self._firsts, below) - 1):
            for entry in reversed(self._entries(place)):
                if entry.seq < below and (is_plain or wanted.fits(entry)):
                    yield entry

    def newer(self, wanted: LogFilter, above: int) -> list[LogEntry]:
        """Entries that fit, from above a number up."""
        first = max(0, bisect_right(self._firsts, above + 1) - 1)
        found = []
        for place in sorted(place for place in self._places(wanted, len(self._lengths)) if place >= first):
            found += [entry for entry in self._entries(place) if entry.seq > above and wanted.fits(entry)]
        return found

    def price(self, no: int, count: int, *, is_billable: bool) -> tuple[int, str]:
        """The cost and the month of an entry that counts for so many requests."""
        place = bisect_right(self._run_ends, no) - 1 if len(self._run_ends) > _ENDS_OF_ONE else 0
        run = self._facts.runs[place]
        if isinstance(run.costs, list):
            return run.costs[no - self._run_ends[place]], run.month
        return run.costs * count if is_billable else 0, run.month

    def _places(self, wanted: LogFilter, last: int) -> Iterator[int]:
        """Records that may fit, the last first. Their bytes are searched before one is decoded."""
        needles = _needles(wanted, self._facts)
        if needles is None:
            yield from range(min(last, len(self._lengths) - 1), -1, -1)
            return
        end = len(self._content) if last >= len(self._lengths) - 1 else self._starts[last + 1]
        for place, _ in groupby(heapq.merge(*(self._hits(needle, end) for needle in needles), reverse=True)):
            yield place

    def _hits(self, needle: bytes, end: int) -> Iterator[int]:
        """Records that have these bytes, the last first."""
        while (found := self._content.rfind(needle, 0, end)) >= 0:
            place = bisect_right(self._starts, found) - 1
            yield place
            end = self._starts[place]

    def _entries(self, place: int) -> list[LogEntry]:
        starts, first = self._starts, self._firsts[place]
        payload = self._content[starts[place] : starts[place + 1]]
        try:
            record = entries.read_record(payload)
            subject = read_subject(record.subject)
            details = entries.details_of(record)
            if len(subject.calls) == len(details):
                return self._shown(record, subject, details, first)
        except ValueError:
            pass
        return self._entries_of_damaged(payload, first)

    def _entries_of_damaged(self, payload: bytes, first: int) -> list[LogEntry]:
        """What was counted of a record that cannot be read whole; `doctor` names it."""
        try:
            counted = entries.read_counted(payload)
            subject = read_subject(counted.subject)
        except ValueError:
            return []
        details = (Detail(),) * len(subject.calls)
        record = Record(counted.at, counted.subject, counted.duration_micros, details)
        return self._shown(record, subject, details, first)

    def _shown(self, record: Record, subject: Subject, details: Sequence[Detail], first: int) -> list[LogEntry]:
        stands_for, count = subject.stands_for, len(subject.calls)
        shared = (
            record.at, _text(record.request_id), subject.team_id, subject.source_id, subject.source_name,
            record.address, _known_text(record.agent), _known_text(record.origin), subject.network,
        )  # fmt: skip
        shown = []
        for no, ((method, outcome), detail) in enumerate(zip(subject.calls, details, strict=True), first):
            billable = outcome in BILLABLE
            cost, month = self.price(no, stands_for, is_billable=billable)
            way = record if detail.upstream is None else detail
            upstream = way.upstream or ""
            attempts = entries.attempts_of(way.attempts, upstream, record.duration_micros, outcome)
            shown.append(
                LogEntry(
                    no, *shared, _known_cut(method), subject.status, outcome, detail.code,
                    record.request_bytes // count, detail.response_bytes, record.duration_micros,
                    upstream, attempts, way.cache, billable, cost, month, stands_for,
                )
            )  # fmt: skip
        return shown


def may_hold(wanted: LogFilter, facts: bytes, errors: int) -> bool:
    """Whether a block may have an entry that fits, by the bytes of its facts."""
    if wanted.errors and not errors:
        return False
    if not wanted.words and not wanted.lineage:
        return True
    if all(word in facts for word in wanted.words) and (
        not wanted.lineage or any(source in facts for source in wanted.sources)
    ):
        return True
    if _NIL not in facts:
        return False
    # A kind of which there is too much is not listed.
    read = read_facts(facts)
    if wanted.lineage and read.sources is not None and not {wanted.source_id, *wanted.lineage} & set(read.sources):
        return False
    return all(
        value is None or listed is None or value in listed
        for value, listed in (
            (None if wanted.lineage else wanted.source_id, read.sources),
            (wanted.network, read.networks),
            (wanted.method, read.methods),
            (wanted.status, read.statuses),
        )
    )


def _needles(wanted: LogFilter, facts: Facts) -> list[bytes] | None:
    """Bytes of which one is in every record that fits; None where none are known. The rarest first."""
    if wanted.request_id is not None and "\ufffd" not in wanted.request_id:
        return [wanted.request_id.encode()]
    if wanted.source_id is not None:
        named = (wanted.source_id, *wanted.lineage)
        return [entries.pack(each) for each in named if facts.sources is None or each in facts.sources]
    if wanted.method is not None:
        # One that was cut may go on in the record.
        sent = wanted.method.encode()
        return [sent if len(sent) > MAX_METHOD_BYTES - 4 else entries.pack(wanted.method)]
    if wanted.status is not None:
        return [entries.pack(wanted.status)]
    if wanted.errors and facts.outcomes is not None:
        return [entries.pack(outcome) for outcome in facts.outcomes if outcome != "ok"]
    if wanted.network is not None:
        return [entries.pack(wanted.network)]
    return None


def _text(sent: bytes) -> str:
    return sent.decode("utf-8", "replace")[:MAX_TEXT_BYTES] if sent else ""


_known_text, _known_cut = lru_cache(_MAX_TEXTS)(_text), lru_cache(_MAX_TEXTS)(cut)
