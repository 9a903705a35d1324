"""Shared blocks: the records of many teams with few rows each, of one commit, side by side. Pure.

A thousand teams with two calls each cost a few of these a commit, not a thousand blocks. One has a part for each
team. Its facts are not listed: whoever looks for a team's rows opens its part. A chore sorts the parts of several
commits into blocks of one team each (`sorted_out`), and lists their facts then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise

import msgspec
from msgspec import Struct

from tollgate.core.blocks import (
    ENOUGH_ROWS,
    Block,
    Facts,
    OpenBlock,
    Run,
    facts_of,
    joined_runs,
    read_subject,
    split,
    written,
)
from tollgate.core.entries import Subject, pack, read_counted

# Rows of a shared block: enough to compress well, few enough that a page of one of its teams reads little.
SHARED_ROWS = 512


class Part(Struct, frozen=True, array_like=True, gc=False):
    """The rows of one team in a shared block."""

    first_no: int
    records: int
    run: Run
    start: int
    """Where its data begins in that of the block."""
    size: int

    def data(self, shared: bytes) -> bytes:
        """Its own data, in the form of a block's."""
        return shared[self.start : self.start + self.size]

    def opened(self, shared: bytes) -> OpenBlock:
        """Its rows, as a page reads them."""
        facts = Facts([self.run], None, None, None, None, None)
        return OpenBlock(self.first_no, self.run.rows, self.records, facts, self.data(shared))


class SharedBlock(Struct, frozen=True):
    """Some rows of several teams, ready to be stored."""

    rows: int
    errors: int
    least_at: float
    greatest_at: float
    parts: bytes
    """Team -> `Part`, encoded."""
    data: bytes
    """Not compressed."""


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
        self._full: list[tuple[int, int, dict[str, object], list[bytes]]] = []
        self._begin()

    def _begin(self) -> None:
        self._parts: dict[str, object] = {}
        self._data: list[bytes] = []
        self._size = self._rows = self._errors = 0

    def add(
        self,
        team_id: str,
        first_no: int,
        errors: int,
        run: tuple[int, str, int | list[int]],
        records: Sequence[bytes],
        counts: Sequence[int] | None,
    ) -> None:
        """Add the part of a team. `counts` are the rows of each record, None where all have one."""
        data = written(records, counts)
        size = len(data)
        self._parts[team_id] = (first_no, len(records), run, self._size, size)
        self._data.append(data)
        self._size += size
        self._rows += run[0]
        self._errors += errors
        if self._rows >= SHARED_ROWS:
            self._end()

    def _end(self) -> None:
        self._full.append((self._rows, self._errors, self._parts, self._data))
        self._begin()

    def blocks(self, least_at: float, greatest_at: float) -> list[SharedBlock]:
        """What came together, with bounds of the times of all of it."""
        if self._parts:
            self._end()
        return [
            SharedBlock(rows, errors, least_at, greatest_at, pack(parts), b"".join(data))
            for rows, errors, parts, data in self._full
        ]


class Stored(Struct, frozen=True):
    """A shared block as it is read back."""

    committed_at: float
    parts: bytes
    data: bytes
    """Not compressed any more."""


def sorted_out(blocks: Iterable[Stored]) -> Iterator[tuple[Block, float]]:
    """Blocks of one team each, in the order of teams and numbers, each with its time of commit.

    Shared blocks come in the order of their commits.
    """
    by_team: dict[str, list[tuple[Part, float, bytes]]] = {}
    for block in blocks:
        for team_id, part in read_parts(block.parts).items():
            by_team.setdefault(team_id, []).append((part, block.committed_at, block.data))
    for team_id in sorted(by_team):
        for group in _groups(by_team[team_id]):
            yield _block(team_id, group), max([committed_at for _, committed_at, _ in group])


def _groups(parts: Sequence[tuple[Part, float, bytes]]) -> Iterator[list[tuple[Part, float, bytes]]]:
    """Parts of a team that follow each other, until there are enough rows."""
    group: list[tuple[Part, float, bytes]] = []
    rows = following = 0
    for each in parts:
        part = each[0]
        if group and (part.first_no != following or rows >= ENOUGH_ROWS):
            yield group
            group, rows = [], 0
        group.append(each)
        rows += part.run.rows
        following = part.first_no + part.run.rows
    if group:
        yield group


def _block(team_id: str, parts: Sequence[tuple[Part, float, bytes]]) -> Block:
    records: list[bytes] = []
    counts: list[int] = []
    rows = 0
    for part, _, data in parts:
        lengths, each, content = split(part.data(data), part.records, part.run.rows)
        records += [content[start:end] for start, end in pairwise(accumulate(lengths, initial=0))]
        counts += [1] * part.records if each is None else each
        rows += part.run.rows
    counted = list(map(read_counted, records))
    times = [record.at for record in counted]
    # Each distinct subject is looked at once.
    kinds = [
        (read_subject(content), count) for content, count in Counter([each.subject for each in counted]).items()
    ]
    errors = sum([count * _errors(subject) for subject, count in kinds])
    runs = joined_runs(part.run for part, _, _ in parts)
    return Block(
        team_id,
        parts[0][0].first_no,
        rows,
        len(records),
        errors,
        min(times),
        max(times),
        pack(facts_of(runs, [subject for subject, _ in kinds])),
        written(records, None if rows == len(records) else counts),
    )


def _errors(subject: Subject) -> int:
    return sum([outcome != "ok" for _, outcome in subject.calls])
