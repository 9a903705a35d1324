"""Usage, months and latencies in the ledger's database: added by each commit, folded later.

Within the transaction of whoever calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from sqlalchemy import Connection, Table

from tollgate.core.entries import pack
from tollgate.core.posting import LatencyKey, LineKey, Posting, UsageKey
from tollgate.store import ledger_tables as tables

# Rows of usage and of latencies that are folded at once, and old ones that are deleted at once.
SLICE_ROWS, SLICE_LINES = 10_000, 20_000

Lines = list[tuple[str, str, str, str, int, int]]
"""source, network, method, outcome, requests, cost"""

_write_lines = msgspec.json.Encoder().encode
_read_lines = msgspec.json.Decoder(Lines).decode
_read_buckets = msgspec.msgpack.Decoder(dict[int, int]).decode


def _appending(table: Table) -> str:
    names = [column.name for column in table.columns]
    return f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"  # noqa: S608


def _sums(table: Table) -> str:
    """What adds to the sums of a table where there are some already."""
    keys = [column.name for column in table.primary_key]
    sums = ", ".join(
        f"{each.name} = {each.name} + excluded.{each.name}" for each in table.columns if each.name not in keys
    )
    return f"ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {sums}"


_ADD_USAGE, _ADD_LATENCIES = _appending(tables.usage_new), _appending(tables.latencies_new)
_ADD_MONTHS, _ADD_TOKENS = (
    f"{_appending(table)} {_sums(table)}" for table in (tables.months, tables.token_months)
)
_KEYS = "team_id, month, hour, source_id, network, method, outcome"
_ADD_UP = f"{_appending(tables.usage)} {_sums(tables.usage)}"
_FOLD = f"INSERT INTO usage SELECT {_KEYS}, sum(requests), sum(cost) FROM usage_lines WHERE month = ?"  # noqa: S608
FOLD_MONTH = (f"{_FOLD} GROUP BY {_KEYS} {_sums(tables.usage)}", "DELETE FROM usage_new WHERE month = ?")
"""The statements that fold all of a month, before it is closed."""


def add(connection: Connection, posting: Posting) -> None:
    """Add what a batch counts. Past the expression language: there may be a line for every record."""
    for statement, values in (
        (_ADD_USAGE, [(*key, _written(lines)) for key, lines in posting.lines.items()]),
        (_ADD_LATENCIES, [(*key, pack(buckets)) for key, buckets in posting.latencies.items()]),
        (_ADD_MONTHS, [(*key, *sums) for key, sums in posting.months.items() if sums[0]]),
        (_ADD_TOKENS, [(*key, requests) for key, requests in posting.tokens.items()]),
    ):
        if values:
            connection.exec_driver_sql(statement, values)


def _written(lines: Mapping[LineKey, list[int]]) -> str:
    return _write_lines([(*key, *sums) for key, sums in lines.items()]).decode()


def fold(connection: Connection) -> bool:
    """Fold a slice of what was appended; whether there may be more."""
    execute = connection.exec_driver_sql
    first = execute("SELECT min(rowid) FROM usage_new").scalar()
    if first is None:
        return _fold_latencies(connection)
    below = first + SLICE_ROWS
    sums: dict[UsageKey, list[int]] = {}
    for team_id, month, hour, lines in execute(
        "SELECT team_id, month, hour, lines FROM usage_new WHERE rowid < ?", (below,)
    ):
        for source_id, network, method, outcome, requests, cost in _read_lines(lines):
            total = sums.setdefault((team_id, month, hour, source_id, network, method, outcome), [0, 0])
            total[0] += requests
            total[1] += cost
    execute(_ADD_UP, [(*key, *total) for key, total in sums.items()])
    execute("DELETE FROM usage_new WHERE rowid < ?", (below,))
    return True


def _fold_latencies(connection: Connection) -> bool:
    execute = connection.exec_driver_sql
    first = execute("SELECT min(rowid) FROM latencies_new").scalar()
    if first is None:
        return False
    below = first + SLICE_LINES
    names = "team_id, hour, network, outcome"
    rows = execute(f"SELECT {names}, buckets FROM latencies_new WHERE rowid < ?", (below,))  # noqa: S608
    sums = added((tuple(row[:4]), row[4]) for row in rows)
    known = f"SELECT buckets FROM latencies WHERE ({names}) = (?, ?, ?, ?)"  # noqa: S608 - names of our own
    values = []
    for key, buckets in sums.items():
        before = execute(known, key).scalar()
        if before is not None:
            buckets = added([(key, before), (key, pack(buckets))])[key]
        values.append((*key, pack(buckets)))
    execute("INSERT OR REPLACE INTO latencies VALUES (?, ?, ?, ?, ?)", values)
    execute("DELETE FROM latencies_new WHERE rowid < ?", (below,))
    return bool(execute("SELECT 1 FROM latencies_new LIMIT 1").first())


def added(lines: Iterable[tuple[LatencyKey, bytes]]) -> dict[LatencyKey, dict[int, int]]:
    """Histograms of the same key, added up."""
    sums: dict[LatencyKey, dict[int, int]] = {}
    for key, content in lines:
        total = sums.setdefault(key, {})
        for bucket, count in _read_buckets(content).items():
            total[bucket] = total.get(bucket, 0) + count
    return sums


def forget_latencies(connection: Connection, before_hour: int) -> bool:
    """Delete a slice of the histograms of hours before one; whether there may be more."""
    removed = connection.exec_driver_sql(
        "DELETE FROM latencies WHERE (team_id, hour, network, outcome) IN "
        "(SELECT team_id, hour, network, outcome FROM latencies WHERE hour < ? LIMIT ?)",
        (before_hour, SLICE_LINES),
    )
    return removed.rowcount == SLICE_LINES


def requests_of(connection: Connection, teams: str) -> Mapping[tuple[str, str], int]:
    """Billable requests of some teams, named as a JSON array, by month."""
    query = "SELECT team_id, month, requests FROM months WHERE team_id IN (SELECT value FROM json_each(?))"
    return {(row[0], row[1]): row[2] for row in connection.exec_driver_sql(query, (teams,))}
