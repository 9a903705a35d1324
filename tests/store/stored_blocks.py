"""Reads the tables of a ledger's blocks a second way: by SQL and a few lines of the tests' own."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from tollgate.core.entries import BILLABLE, Entry, attempts_of, decode, encode
from tollgate.core.logs import LogEntry
from tollgate.core.subjects import Batch, Subjects
from tollgate.core.zstandard import decompress


def batch_of(entries: Iterable[Entry], label: Callable[[str, str], str] = lambda _, method: method) -> Batch:
    """Entries as the collector reads them."""
    batch = Batch(Subjects(label))
    batch.add([encode(entry) for entry in entries])
    return batch


def stored_rows(path: Path) -> list[LogEntry]:
    """All log rows, in the order of commit as far as is known: days, then batches, then teams and numbers."""
    with closing(sqlite3.connect(path)) as connection:
        return [row for day in _days(connection) for row in (*_of_day(connection, day), *_shared(connection, day))]


def stored_blocks(path: Path) -> list[tuple[str, str, int, int, int]]:
    """Day, team, first number, rows and level of every block; parts of shared ones have level 0."""
    with closing(sqlite3.connect(path)) as connection:
        found = [
            (day, *row)
            for day in _days(connection)
            for row in connection.execute(f"SELECT team_id, first_no, rows, level FROM blocks_{day} ORDER BY 1, 2")
        ]
        for day, parts in connection.execute("SELECT day, parts FROM shared_blocks ORDER BY id"):
            for team, (first, (rows, _, _), _, _) in msgspec.msgpack.decode(parts).items():
                found.append((day, team, first, rows, 0))
        return found


def _days(connection: sqlite3.Connection) -> list[str]:
    return [day for (day,) in connection.execute("SELECT day FROM days ORDER BY day")]


def _of_day(connection: sqlite3.Connection, day: str) -> Iterator[LogEntry]:
    query = (
        "SELECT team_id, first_no, rows, records, errors, least_at, greatest_at, facts, start, size, data "
        f"FROM blocks_{day} JOIN data_{day} ON id = data_id ORDER BY data_id, start"
    )
    for team, first, rows, records, errors, least, greatest, facts, start, size, data in connection.execute(query):
        found = list(rows_of_block(first, rows, records, facts, decompress(data)[start : start + size]))
        assert [row.seq for row in found] == list(range(first, first + rows))
        assert {row.team_id for row in found} == {team}
        assert sum(row.outcome != "ok" for row in found) == errors
        assert (min(row.at for row in found), max(row.at for row in found)) == (least, greatest)
        _check_facts(found, facts)
        yield from found


def _shared(connection: sqlite3.Connection, day: str) -> Iterator[LogEntry]:
    columns = "rows, records, errors, least_at, greatest_at, parts, data"
    query = f"SELECT {columns} FROM shared_blocks WHERE day = ? ORDER BY id"
    for rows, records, errors, least, greatest, content, data in connection.execute(query, (day,)):
        parts = msgspec.msgpack.decode(content)
        runs = [run for _, run, _, _ in parts.values()]
        found = list(rows_of_block(1, rows, records, msgspec.msgpack.encode([runs]), decompress(data)))
        place = done = 0
        for team, (first, (count, _, _), start, size) in parts.items():
            assert start == place
            assert {row.team_id for row in found[done : done + count]} == {team}
            for number in range(count):
                found[done + number] = msgspec.structs.replace(found[done + number], seq=first + number)
            place, done = place + size, done + count
        assert (done, place) == (rows, records)
        assert sum(row.outcome != "ok" for row in found) == errors
        assert all(least <= row.at <= greatest for row in found)
        yield from found


def rows_of_block(first: int, rows: int, records: int, facts: bytes, data: bytes) -> Iterator[LogEntry]:
    """The rows of one block, in their order."""
    assert data[0] == 2, "the version"
    lengths = struct.unpack_from(f"<{records}I", data, 1)
    place = 1 + 4 * records
    counts = (1,) * records
    if rows != records:
        counts = struct.unpack_from(f"<{records}H", data, place)
        place += 2 * records
    prices = list(_prices(msgspec.msgpack.decode(facts)[0]))
    assert len(prices) == rows
    no = first
    for length, count in zip(lengths, counts, strict=True):
        entry = decode(data[place : place + length])
        place += length
        assert len(entry.calls) == count
        for call in entry.calls:
            month, unit, cost = prices[no - first]
            billable = call.outcome in BILLABLE
            charged = cost if unit is None else (unit * entry.stands_for if billable else 0)
            way = entry if call.upstream is None else call
            upstream = way.upstream or ""
            attempts = attempts_of(way.attempts, upstream, entry.duration_micros, call.outcome)
            yield LogEntry(
                no, entry.at, entry.request_id.decode(), entry.team_id, entry.source_id, entry.source_name,
                entry.address, entry.agent.decode(), entry.origin.decode(), entry.network, call.method,
                entry.status, call.outcome, call.code, entry.request_bytes // count, call.response_bytes,
                entry.duration_micros, upstream, attempts, way.cache, billable, charged, month,
                entry.stands_for,
            )  # fmt: skip
            no += 1
    assert place == len(data)


def _prices(runs: list[Any]) -> Iterator[tuple[str, int | None, int]]:
    for rows, month, costs in runs:
        for place in range(rows):
            yield (month, costs, 0) if isinstance(costs, int) else (month, None, costs[place])


def _check_facts(rows: list[LogEntry], facts: bytes) -> None:
    listed = msgspec.msgpack.decode(facts)[1:]
    for name, words in zip(("source_id", "network", "method", "status", "outcome"), listed, strict=True):
        if words is not None:
            assert set(words) == {getattr(row, name) for row in rows}, name
