"""Shared blocks: the records of many teams with few entries each, of one commit, in one block. Pure.

A thousand teams with two calls each cost a few shared blocks a commit, not a thousand blocks. A shared block has
a part for each team. It lists no facts, so a search for a team's entries opens the team's part. A chore sorts the
parts of several commits into blocks of one team each (`sorted_out`), and lists their facts then.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Protocol

import msgspec
from msgspec import Struct

from tollgate.core import entries
from tollgate.core.blocks import (
    COUNT_BYTES,
    COUNTS,
    HEAD,
    LENGTH_BYTES,
    LENGTHS,
    Broken,
    Facts,
    LogBlock,
    OpenBlock,
    RecordedCaller,
    Run,
    as_bytes,
    facts_of,
    groups,
    joined_runs,
    numbers_of,
    split,
    written,
)
from tollgate.core.entries import CountedCall, pack, read_counted

# Entries of a shared block: enough to compress well, few enough that a page of one of its teams reads little.
SHARED_ENTRIES = 512


class Part(Struct, frozen=True, array_like=True, gc=False):
    """The entries of one team in a shared block."""

    first_no: int
    run: Run
    place: int
    """Where its records begin among those of the block."""
    records: int

    def end_in(self, records: int) -> int:
        """Where its records end, in a block that has so many."""
        end = self.place + self.records
        if not 0 <= self.place < end <= records:
            raise Broken("a part is not within it")
        return end


class CountedCaller(RecordedCaller, Protocol):
    """What a record says of its entries."""

    @property
    def entries(self) -> int: ...
    @property
    def errors(self) -> int: ...


class Content(Struct, frozen=True, gc=False):
    """What a shared block has: its parts, its data, and what was read of each record."""

    parts: Mapping[str, Part]
    entries: int
    data: bytes
    """In the form of a block's, not compressed."""
    times: array[float]
    callers: Sequence[CountedCaller]


class SharedBlock(Struct, frozen=True):
    """Some entries of several teams, ready to be stored."""

    entries: int
    records: int
    errors: int
    least_at: float
    greatest_at: float
    parts: bytes
    """Team -> `Part`, encoded."""
    content: Content
    """Its data is stored; the rest saves decoding it again when the block is sorted soon after."""


read_parts = msgspec.msgpack.Decoder(dict[str, Part]).decode
_read_raw_parts = msgspec.msgpack.Decoder(dict[str, msgspec.Raw]).decode
_read_part = msgspec.msgpack.Decoder(Part).decode


def part_of(team_id: str, parts: bytes) -> Part | None:
    if team_id.encode() not in parts:
        return None
    found = _read_raw_parts(parts).get(team_id)
    return None if found is None else _read_part(found)


class SharedWriter:
    """Puts parts together, each of another team, until a block has enough entries."""

    def __init__(self) -> None:
        self.blocks: list[SharedBlock] = []
        self._begin()

    def _begin(self) -> None:
        self._parts: dict[str, Part] = {}
        self._entries = 0
        self._records: list[bytes] = []
        self._times: list[float] = []
        self._callers: list[CountedCaller] = []

    def add(
        self,
        team_id: str,
        first_no: int,
        run: Run,
        records: Sequence[bytes],
        times: Sequence[float],
        callers: Sequence[CountedCaller],
    ) -> None:
        """Add the part of a team: its records, with their times and callers."""
        self._parts[team_id] = Part(first_no, run, len(self._records), len(records))
        self._records += records
        self._times += times
        self._callers += callers
        self._entries += run.entries
        if self._entries >= SHARED_ENTRIES:
            self.end()

    def end(self) -> None:
        """Make a block of what came together."""
        if not self._parts:
            return
        total, callers = self._entries, self._callers
        counts = None if total == len(callers) else [caller.entries for caller in callers]
        self.blocks.append(
            SharedBlock(
                total,
                len(callers),
                errors_of(callers, set(callers)),
                min(self._times),
                max(self._times),
                pack(self._parts),
                Content(self._parts, total, written(self._records, counts), array("d", self._times), callers),
            )
        )
        self._begin()


def errors_of(callers: Sequence[CountedCaller], kinds: Iterable[CountedCaller]) -> int:
    """Entries with errors; `kinds`: the same callers, each once. Most have none."""
    if not any(caller.errors for caller in kinds):
        return 0
    return sum([caller.errors for caller in callers])


class Stored(Struct, frozen=True):
    """A shared block as it is read back."""

    entries: int
    records: int
    parts: bytes
    data: bytes
    """Not compressed any more."""

    def content(self) -> Content:
        """What sorting needs; a `ValueError` where that cannot be read."""
        lengths, counts, content = split(self.data, self.records, self.entries)
        ends = accumulate(lengths, initial=0)
        counted = [read_counted(content[start:end]) for start, end in pairwise(ends)]
        callers = [_caller(record.subject) for record in counted]
        expected = [caller.entries for caller in callers]
        if expected != ([1] * self.records if counts is None else counts.tolist()):
            raise Broken("its records have other rows")
        parts = read_parts(self.parts)
        for part in parts.values():
            if sum(expected[part.place : part.end_in(self.records)]) != part.run.entries:
                raise Broken("a part has other rows than its records")
        return Content(parts, self.entries, self.data, array("d", [record.at for record in counted]), callers)

    def opened(self, part: Part) -> OpenBlock:
        """The entries of a part, as a page reads them."""
        lengths, counts, content = split(self.data, self.records, self.entries)
        end = part.end_in(self.records)
        start = sum(lengths[: part.place])
        lengths = lengths[part.place : end]
        content = content[start : start + sum(lengths)]
        facts = Facts([part.run], None, None, None, None, None)
        its_counts = None if counts is None else counts[part.place : end]
        return OpenBlock.of(part.first_no, facts, lengths, its_counts, content)


class _Caller(Struct, frozen=True, gc=False):
    """As it is read back."""

    source_id: str
    network: str
    status: int
    calls: tuple[CountedCall, ...]
    entries: int
    errors: int


@lru_cache(4_096)
def _caller(content: bytes) -> _Caller:
    subject = entries.read_subject(content)
    errors = sum([outcome != "ok" for _, outcome in subject.calls])
    return _Caller(subject.source_id, subject.network, subject.status, subject.calls, len(subject.calls), errors)


class _Opened:
    """The content of a shared block, and where its records begin."""

    def __init__(self, content: Content, committed_at: float) -> None:
        self.times, self.callers, self.data = content.times, content.callers, content.data
        self.committed_at = committed_at
        count = len(self.times)
        self.lengths = self.data[len(HEAD) : len(HEAD) + LENGTH_BYTES * count]
        head = len(HEAD) + len(self.lengths) + (COUNT_BYTES * count if content.entries != count else 0)
        self.starts = list(accumulate(numbers_of(LENGTHS, self.lengths), initial=head))


_Placed = tuple[Part, _Opened]
"""A part, and its block."""


def sorted_out(blocks: Iterable[tuple[Content, float]]) -> Iterator[tuple[LogBlock, float]]:
    """Blocks of one team each, in the order of teams and numbers, each with its time of commit.

    Shared blocks come in the order of their commits, with the times of those.
    """
    by_team: defaultdict[str, list[_Placed]] = defaultdict(list)
    for content, committed_at in blocks:
        opened = _Opened(content, committed_at)
        for team_id, part in content.parts.items():
            by_team[team_id].append((part, opened))
    for team_id in sorted(by_team):
        for group in groups(by_team[team_id], lambda placed: (placed[0].first_no, placed[0].run.entries)):
            yield _block(team_id, group), max([opened.committed_at for _, opened in group])


def _block(team_id: str, group: Sequence[_Placed]) -> LogBlock:
    times: array[float] = array("d")
    callers: list[CountedCaller] = []
    lengths: list[bytes] = []
    records: list[bytes] = []
    for part, opened in group:
        start, end = part.place, part.place + part.records
        times += opened.times[start:end]
        callers += opened.callers[start:end]
        lengths.append(opened.lengths[LENGTH_BYTES * start : LENGTH_BYTES * end])
        records.append(opened.data[opened.starts[start] : opened.starts[end]])
    runs = [part.run for part, _ in group]
    total = sum([run.entries for run in runs])
    counts = b"" if total == len(times) else as_bytes(array(COUNTS, [caller.entries for caller in callers]))
    kinds = set(callers)
    return LogBlock(
        team_id,
        group[0][0].first_no,
        total,
        len(times),
        errors_of(callers, kinds),
        min(times),
        max(times),
        pack(facts_of(joined_runs(runs), kinds)),
        b"".join((HEAD, *lengths, counts, *records)),
    )
