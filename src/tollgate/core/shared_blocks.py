"""Shared blocks: the records of many teams with few rows each, of one commit, side by side. Pure.

A thousand teams with two calls each cost a few of these a commit, not a thousand blocks. One has a part for each
team. Its facts are not listed: whoever looks for a team's rows opens its part. A chore sorts the parts of several
commits into blocks of one team each (`sorted_out`), and lists their facts then.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain

import msgspec
from msgspec import Struct

from tollgate.core.blocks import (
    COUNT_BYTES,
    COUNTS,
    ENOUGH_ROWS,
    LENGTH_BYTES,
    Block,
    Broken,
    Caller,
    Facts,
    OpenBlock,
    Run,
    as_bytes,
    facts_of,
    joined_runs,
    split,
    written,
)
from tollgate.core.entries import pack, read_counted, read_subject

# Rows of a shared block: enough to compress well, few enough that a page of one of its teams reads little.
SHARED_ROWS = 512
_ONE = (1,)


class Part(Struct, frozen=True, array_like=True, gc=False):
    """The rows of one team in a shared block."""

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


PartKey = tuple[str, int]
"""Team, first number."""


class Seen(Struct, frozen=True, gc=False):
    """What was seen of a part's records when they were committed; later it is read from them."""

    first_no: int
    rows: int
    errors: int
    least_at: float
    greatest_at: float
    callers: Collection[Caller]


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
    seen: dict[PartKey, Seen]
    """Not stored: whoever sorts the block soon is spared reading its records."""


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
        self.blocks: list[SharedBlock] = []
        self._begin()

    def _begin(self) -> None:
        self._parts: dict[str, object] = {}
        self._seen: dict[PartKey, Seen] = {}
        self._records: list[bytes] = []
        self._counts: list[int] = []
        self._rows = 0

    def add(
        self,
        team_id: str,
        run: tuple[int, str, int | list[int]],
        records: Sequence[bytes],
        counts: Sequence[int] | None,
        seen: Seen,
    ) -> None:
        """Add the part of a team. `counts` are the rows of each record, None where all have one."""
        self._parts[team_id] = (seen.first_no, run, len(self._records), len(records))
        self._seen[team_id, seen.first_no] = seen
        self._records += records
        self._counts += counts or _ONE * len(records)
        self._rows += seen.rows
        if self._rows >= SHARED_ROWS:
            self.end()

    def end(self) -> None:
        """Make a block of what came together."""
        if self._parts:
            records, rows = self._records, self._rows
            data = written(records, None if rows == len(records) else self._counts)
            seen = self._seen.values()
            self.blocks.append(
                SharedBlock(
                    rows,
                    len(records),
                    sum([each.errors for each in seen]),
                    min([each.least_at for each in seen]),
                    max([each.greatest_at for each in seen]),
                    pack(self._parts),
                    data,
                    self._seen,
                )
            )
            self._begin()


class Stored(Struct, frozen=True):
    """A shared block as it is read back."""

    rows: int
    records: int
    committed_at: float
    parts: bytes
    data: bytes
    """Not compressed any more."""
    seen: Mapping[PartKey, Seen] = {}

    def opened(self, part: Part) -> OpenBlock:
        """The rows of a part, as a page reads them."""
        lengths, counts, content = split(self.data, self.records, self.rows)
        end = part.end_in(self.records)
        start = sum(lengths[: part.place])
        lengths = lengths[part.place : end]
        content = content[start : start + sum(lengths)]
        facts = Facts([part.run], None, None, None, None, None)
        its_counts = None if counts is None else counts[part.place : end]
        return OpenBlock.of(part.first_no, facts, lengths, its_counts, content)


class _Rows(Struct, frozen=True, gc=False):
    """A part, with its data in pieces."""

    part: Part
    seen: Seen
    committed_at: float
    lengths: bytes
    counts: bytes | None
    """None where each record is a row."""
    content: bytes


def sorted_out(blocks: Iterable[Stored]) -> Iterator[tuple[Block, float]]:
    """Blocks of one team each, in the order of teams and numbers, each with its time of commit.

    Shared blocks come in the order of their commits.
    """
    by_team: dict[str, list[_Rows]] = {}
    for block in blocks:
        for team_id, rows in _rows_of(block):
            try:
                by_team[team_id].append(rows)
            except KeyError:
                by_team[team_id] = [rows]
    for team_id in sorted(by_team):
        for group in _groups(by_team[team_id]):
            yield _block(team_id, group), max([rows.committed_at for rows in group])


def _rows_of(block: Stored) -> Iterator[tuple[str, _Rows]]:
    lengths, counts, content = split(block.data, block.records, block.rows)
    its_lengths = as_bytes(lengths)
    its_counts = None if counts is None else as_bytes(counts)
    starts = list(accumulate(lengths, initial=0))
    for team_id, part in read_parts(block.parts).items():
        begin, end = part.place, part.end_in(block.records)
        seen = block.seen.get((team_id, part.first_no))
        if seen is None or seen.rows != part.run.rows:
            seen = _seen(part, [content[starts[place] : starts[place + 1]] for place in range(begin, end)])
        yield (
            team_id,
            _Rows(
                part,
                seen,
                block.committed_at,
                its_lengths[LENGTH_BYTES * begin : LENGTH_BYTES * end],
                None if its_counts is None else its_counts[COUNT_BYTES * begin : COUNT_BYTES * end],
                content[starts[begin] : starts[end]],
            ),
        )


def _seen(part: Part, records: Sequence[bytes]) -> Seen:
    """Read the records of a part."""
    counted = list(map(read_counted, records))
    times = [record.at for record in counted]
    errors, callers = 0, []
    for content, count in Counter([record.subject for record in counted]).items():
        subject = read_subject(content)
        callers.append(subject)
        errors += count * sum([outcome != "ok" for _, outcome in subject.calls])
    return Seen(part.first_no, part.run.rows, errors, min(times), max(times), callers)


def _groups(parts: Sequence[_Rows]) -> Iterator[list[_Rows]]:
    """Parts of a team that follow each other, until there are enough rows."""
    group: list[_Rows] = []
    count = following = 0
    for each in parts:
        seen = each.seen
        if group and (seen.first_no != following or count >= ENOUGH_ROWS):
            yield group
            group, count = [], 0
        group.append(each)
        count += seen.rows
        following = seen.first_no + seen.rows
    if group:
        yield group


def _block(team_id: str, group: Sequence[_Rows]) -> Block:
    seen = [each.seen for each in group]
    rows = sum([each.rows for each in seen])
    records = sum([each.part.records for each in group])
    pieces = [each.lengths for each in group]
    if rows != records:
        pieces += [
            as_bytes(array(COUNTS, _ONE * each.part.records)) if each.counts is None else each.counts
            for each in group
        ]
    pieces += [each.content for each in group]
    callers = set(chain.from_iterable([each.callers for each in seen]))
    return Block(
        team_id,
        seen[0].first_no,
        rows,
        records,
        sum([each.errors for each in seen]),
        min([each.least_at for each in seen]),
        max([each.greatest_at for each in seen]),
        pack(facts_of(joined_runs([each.part.run for each in group]), callers)),
        b"".join(pieces),
    )
