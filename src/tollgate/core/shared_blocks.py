"""Shared blocks: the records of many teams with few rows each, of one commit, side by side. Pure.

A thousand teams with two calls each cost a few of these a commit, not a thousand blocks. One has a part for each
team. Its facts are not listed: whoever looks for a team's rows opens its part. A chore sorts the parts of several
commits into blocks of one team each (`sorted_out`), and lists their facts then.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise

import msgspec
from msgspec import Struct

from tollgate.core.blocks import (
    COUNTS,
    ENOUGH_ROWS,
    Block,
    Facts,
    OpenBlock,
    Run,
    facts_of,
    joined_runs,
    split,
    written,
)
from tollgate.core.entries import CountedRecord, pack, read_counted, read_subject

# Rows of a shared block: enough to compress well, few enough that a page of one of its teams reads little.
SHARED_ROWS = 512


class Part(Struct, frozen=True, array_like=True, gc=False):
    """The rows of one team in a shared block."""

    first_no: int
    run: Run
    place: int
    """Where its records begin among those of the block."""
    records: int


class SharedBlock(Struct, frozen=True):
    """Some rows of several teams, ready to be stored."""

    rows: int
    records: int
    errors: int
    least_at: float
    greatest_at: float
    parts: bytes
    """Team -> `Part`, encoded."""
    data: bytes
    """In the form of a block's, not compressed."""


read_parts = msgspec.msgpack.Decoder(dict[str, Part]).decode
_read_raw_parts = msgspec.msgpack.Decoder(dict[str, msgspec.Raw]).decode
_read_part = msgspec.msgpack.Decoder(Part).decode


def part_of(team_id: str, parts: bytes) -> Part | None:
    """The part of a team, where it has one."""
    if team_id.encode() not in parts:
        return None
    found = _read_raw_parts(parts).get(team_id)
    return None if found is None else _read_part(found)


class SharedWriter:
    """Puts parts together, each of another team, until a block has enough rows."""

    def __init__(self) -> None:
        self._full: list[tuple[int, int, dict[str, object], list[bytes], list[int]]] = []
        self._begin()

    def _begin(self) -> None:
        self._parts: dict[str, object] = {}
        self._records: list[bytes] = []
        self._counts: list[int] = []
        self._rows = self._errors = 0

    def add(
        self,
        team_id: str,
        first_no: int,
        errors: int,
        run: tuple[int, str, int | list[int]],
        records: Sequence[bytes],
        counts: Sequence[int],
    ) -> None:
        """Add the part of a team. `counts` are the rows of each record."""
        self._parts[team_id] = (first_no, run, len(self._records), len(records))
        self._records += records
        self._counts += counts
        self._rows += run[0]
        self._errors += errors
        if self._rows >= SHARED_ROWS:
            self._end()

    def _end(self) -> None:
        self._full.append((self._rows, self._errors, self._parts, self._records, self._counts))
        self._begin()

    def blocks(self, least_at: float, greatest_at: float) -> list[SharedBlock]:
        """What came together, with bounds of the times of all of it."""
        if self._parts:
            self._end()
        return [
            SharedBlock(
                rows,
                len(records),
                errors,
                least_at,
                greatest_at,
                pack(parts),
                written(records, None if rows == len(records) else counts),
            )
            for rows, errors, parts, records, counts in self._full
        ]


class Stored(Struct, frozen=True):
    """A shared block as it is read back."""

    rows: int
    records: int
    committed_at: float
    parts: bytes
    data: bytes
    """Not compressed any more."""

    def opened(self, part: Part) -> OpenBlock:
        """The rows of a part, as a page reads them."""
        lengths, counts, content = split(self.data, self.records, self.rows)
        end = part.place + part.records
        start = sum(lengths[: part.place])
        content = content[start : start + sum(lengths[part.place : end])]
        facts = Facts([part.run], None, None, None, None, None)
        its_counts = None if counts is None else counts[part.place : end]
        return OpenBlock.of(part.first_no, facts, lengths[part.place : end], its_counts, content)


class _Rows(Struct, frozen=True):
    """A part, with its records."""

    part: Part
    committed_at: float
    records: list[bytes]
    counted: list[CountedRecord]
    counts: Sequence[int]


def sorted_out(blocks: Iterable[Stored]) -> Iterator[tuple[Block, float]]:
    """Blocks of one team each, in the order of teams and numbers, each with its time of commit.

    Shared blocks come in the order of their commits.
    """
    by_team: dict[str, list[_Rows]] = {}
    for block in blocks:
        lengths, counts, content = split(block.data, block.records, block.rows)
        if counts is None:
            counts = array(COUNTS, [1]) * block.records
        records = [content[start:end] for start, end in pairwise(accumulate(lengths, initial=0))]
        counted = list(map(read_counted, records))
        for team_id, part in read_parts(block.parts).items():
            start, end = part.place, part.place + part.records
            rows = _Rows(part, block.committed_at, records[start:end], counted[start:end], counts[start:end])
            try:
                by_team[team_id].append(rows)
            except KeyError:
                by_team[team_id] = [rows]
    for team_id in sorted(by_team):
        for group in _groups(by_team[team_id]):
            yield _block(team_id, group), max([rows.committed_at for rows in group])


def _groups(parts: Sequence[_Rows]) -> Iterator[list[_Rows]]:
    """Parts of a team that follow each other, until there are enough rows."""
    group: list[_Rows] = []
    count = following = 0
    for rows in parts:
        first_no, run = rows.part.first_no, rows.part.run
        if group and (first_no != following or count >= ENOUGH_ROWS):
            yield group
            group, count = [], 0
        group.append(rows)
        count += run.rows
        following = first_no + run.rows
    if group:
        yield group


def _block(team_id: str, parts: Sequence[_Rows]) -> Block:
    records = [record for part in parts for record in part.records]
    counted = [record for part in parts for record in part.counted]
    runs = joined_runs([part.part.run for part in parts])
    rows = sum([run.rows for run in runs])
    counts = None
    if rows != len(records):
        counts = [count for part in parts for count in part.counts]
    times = [record.at for record in counted]
    errors, subjects = 0, []
    for content, count in Counter([each.subject for each in counted]).items():
        subject = read_subject(content)
        subjects.append(subject)
        for _, outcome in subject.calls:
            if outcome != "ok":
                errors += count
    return Block(
        team_id,
        parts[0].part.first_no,
        rows,
        len(records),
        errors,
        min(times),
        max(times),
        pack(facts_of(runs, subjects)),
        written(records, counts),
    )
