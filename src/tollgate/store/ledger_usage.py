"""Usage, months and latencies in the ledger's database: added by each commit, folded later.

Within the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, Table, case, func, select

from tollgate.core.entries import BILLABLE, pack
from tollgate.core.posting import LatencyKey, MonthKey, Posting
from tollgate.core.pricing import MonthUse
from tollgate.core.subjects import LineKey
from tollgate.store import ledger_tables as tables
from tollgate.store.ledger_engine import among, engine_of, fetched
from tollgate.store.statements import Sql, statement

# Lines of usage and of latencies that are folded at once, and old ones that are deleted at once.
SLICE_LINES, SLICE_OLD = 40_000, 20_000
# Months of teams that are remembered.
MAX_MONTHS = 50_000

Lines = dict[str, list[tuple[msgspec.Raw, int, int]]]
"""Team -> `LineKey` as it is written, requests, cost."""
LatencyLines = dict[str, list[tuple[str, str, dict[int, int]]]]
"""Team -> network, outcome, buckets."""

_usage = tables.usage_all.c
USAGE_SUMS: tuple[ColumnElement[int], ...] = (
    func.sum(_usage.requests).label("requests"),
    func.coalesce(func.sum(case((_usage.outcome.in_(sorted(BILLABLE)), _usage.requests))), 0).label("billable"),
    func.sum(_usage.cost).label("cost"),
)
"""Columns of a query over `usage_all`."""

_write = msgspec.json.Encoder().encode
_read_lines = msgspec.json.Decoder(Lines).decode
_read_key = msgspec.json.Decoder(LineKey).decode
_read_latencies = msgspec.msgpack.Decoder(LatencyLines).decode
_read_raw = msgspec.msgpack.Decoder(dict[str, msgspec.Raw]).decode
_read_of_team = msgspec.msgpack.Decoder(list[tuple[str, str, dict[int, int]]]).decode
_read_buckets = msgspec.msgpack.Decoder(dict[int, int]).decode


def _add_on_conflict(table: Table) -> Sql:
    """Add to the sums of a row that exists."""
    keys = tuple(column.name for column in table.primary_key)
    sums = [column.name for column in table.columns if column.name not in keys]
    added = ", ".join(
        statement("{name} = {table}.{name} + excluded.{name}", name=each, table=table.name) for each in sums
    )
    return statement("ON CONFLICT ({keys}) DO UPDATE SET {added}", keys=keys, added=Sql(added))


_ADD_USAGE = "INSERT INTO usage_new (month, hour, lines) VALUES (?, ?, ?)"
_ADD_LATENCIES = "INSERT INTO latencies_new (hour, lines) VALUES (?, ?)"
FOLD_MONTH = (
    statement(
        "INSERT INTO usage SELECT {keys}, sum(requests), sum(cost) FROM usage_lines WHERE month = ? "
        "GROUP BY {keys} {add}",
        keys=tuple(column.name for column in tables.usage.primary_key),
        add=_add_on_conflict(tables.usage),
    ),
    statement(
        "INSERT INTO source_months SELECT source_id, month, sum(requests) FROM usage_lines "
        "WHERE month = ? AND outcome IN ({billable}) GROUP BY source_id, month {add}",
        billable=Sql(", ".join(map(repr, sorted(BILLABLE)))),
        add=_add_on_conflict(tables.source_months),
    ),
    "DELETE FROM usage_new WHERE month = ?",
)
"""The statements that fold all of a month, before it is closed."""


def add(connection: Connection, posting: Posting) -> None:
    usage = [
        (month, hour, _write({team_id: [*lines.values()] for team_id, lines in teams.items()}).decode())
        for (month, hour), teams in posting.lines.items()
    ]
    latencies = [
        (hour, pack({team_id: [*histograms.values()] for team_id, histograms in teams.items()}))
        for hour, teams in posting.latencies.items()
    ]
    for insert, appended in ((_ADD_USAGE, usage), (_ADD_LATENCIES, latencies)):
        if appended:
            connection.exec_driver_sql(insert, appended)
    _add_up(connection, tables.months, [(*key, *sums) for key, sums in posting.months.items() if sums[0]])
    # In order, so that collectors wait for each other and not in a circle.
    _add_up(connection, tables.payer_months, [(*key, free) for key, free in sorted(posting.free.items())])


def _add_up(connection: Connection, table: Table, rows: Sequence[tuple[Any, ...]]) -> None:
    if rows:
        engine_of(connection).upsert(connection, table, _add_on_conflict(table), rows)


def lines_in(posting: Posting) -> int:
    return sum([sum(map(len, teams.values())) for teams in posting.lines.values()])


def fold(connection: Connection) -> bool:
    """Fold a slice of what was appended; whether there may be more."""
    execute = connection.exec_driver_sql
    # Lines that are equal are written equally: what one says is read once, when all are added up.
    sums: dict[tuple[str, int], dict[str, dict[bytes, list[int]]]] = {}
    taken: list[tuple[int]] = []
    size = 0
    query = "SELECT rowid, month, hour, lines FROM usage_new ORDER BY rowid"
    with closing(engine_of(connection).stream(connection, query)) as rows:
        for rowid, month, hour, content in rows:
            taken.append((rowid,))
            of_hour = sums.setdefault((month, hour), {})
            for team_id, lines in _read_lines(content).items():
                size += len(lines)
                of_team = of_hour.get(team_id)
                if of_team is None:
                    of_team = of_hour[team_id] = {}
                for line, requests, cost in lines:
                    written = bytes(line)
                    total = of_team.get(written)
                    if total is None:
                        of_team[written] = [requests, cost]
                    else:
                        total[0] += requests
                        total[1] += cost
            if size >= SLICE_LINES:
                break
    if not taken:
        return _fold_latencies(connection)
    if size:
        # In the order of keys, so that each page of the table is met once.
        values = [
            (team_id, month, hour, *_read_key(line), *total)
            for team_id, month, hour, of_team in sorted(
                (team_id, month, hour, of_team)
                for (month, hour), teams in sums.items()
                for team_id, of_team in teams.items()
            )
            for line, total in sorted(of_team.items())
        ]
        _add_up(connection, tables.usage, values)
        _add_up(connection, tables.source_months, _by_source(values))
    # Those alone: others may have been committed in between.
    execute("DELETE FROM usage_new WHERE rowid = ?", taken)
    return True


def _by_source(lines: Iterable[Sequence[Any]]) -> list[tuple[str, str, int]]:
    """Billable requests of tokens and domains, by month."""
    found: dict[tuple[str, str], int] = {}
    for _, month, _, source_id, _, _, outcome, requests, _ in lines:
        if outcome in BILLABLE:
            found[source_id, month] = found.get((source_id, month), 0) + requests
    return [(*key, found[key]) for key in sorted(found)]


def _fold_latencies(connection: Connection) -> bool:
    execute = connection.exec_driver_sql
    sums: dict[LatencyKey, dict[int, int]] = {}
    taken: list[tuple[int]] = []
    size = 0
    query = "SELECT rowid, hour, lines FROM latencies_new ORDER BY rowid"
    with closing(engine_of(connection).stream(connection, query)) as rows:
        for rowid, hour, content in rows:
            taken.append((rowid,))
            for team_id, lines in _read_latencies(content).items():
                size += len(lines)
                for network, outcome, buckets in lines:
                    key = (team_id, hour, network, outcome)
                    total = sums.get(key)
                    if total is None:
                        sums[key] = buckets
                    else:
                        _add_buckets(total, buckets)
            if size >= SLICE_LINES:
                break
    if not taken:
        return False
    # Hour by hour, not one by one: there may be thousands.
    query = "SELECT team_id, hour, network, outcome, buckets FROM latencies WHERE hour = ?"
    for hour in {key[1] for key in sums}:
        for *names, buckets in fetched(execute(query, (hour,))):
            total = sums.get(tuple(names))
            if total is not None:
                _add_buckets(total, _read_buckets(buckets))
    values = [(*key, pack(sums[key])) for key in sorted(sums)]
    replace = Sql("ON CONFLICT (team_id, hour, network, outcome) DO UPDATE SET buckets = excluded.buckets")
    engine_of(connection).upsert(connection, tables.latencies, replace, values)
    execute("DELETE FROM latencies_new WHERE rowid = ?", taken)
    return bool(execute("SELECT 1 FROM latencies_new LIMIT 1").first())


def _add_buckets(total: dict[int, int], more: Mapping[int, int]) -> None:
    for bucket, count in more.items():
        total[bucket] = total.get(bucket, 0) + count


def latencies_of(team_id: str, content: bytes) -> list[tuple[str, str, dict[int, int]]]:
    """What was appended of a team's latencies: network, outcome, buckets."""
    lines = _read_raw(content).get(team_id)
    return [] if lines is None else _read_of_team(lines)


def forget_latencies(connection: Connection, before_hour: int) -> bool:
    """Delete a slice of the histograms of hours before one; whether there may be more."""
    removed = connection.exec_driver_sql(
        "DELETE FROM latencies WHERE (team_id, hour, network, outcome) IN "
        "(SELECT team_id, hour, network, outcome FROM latencies WHERE hour < ? LIMIT ?)",
        (before_hour, SLICE_OLD),
    )
    return removed.rowcount == SLICE_OLD


def free_of_payers(connection: Connection, payers: Iterable[str]) -> dict[MonthKey, int]:
    """Free requests that payers have had in open months. Not remembered: other collectors count them too."""
    query = statement(
        "SELECT payer, month, free FROM payer_months WHERE payer IN ({named}) "
        "AND month NOT IN (SELECT month FROM closed_months)",
        named=engine_of(connection).named,
    )
    rows = fetched(connection.exec_driver_sql(query, (_write(list(payers)).decode(),)))
    return {(payer, month): free for payer, month, free in rows}


def team_uses(connection: Connection, month: str, payers: Mapping[str, str]) -> dict[str, MonthUse]:
    """What teams, each with its payer, have used in a month, in one snapshot."""
    months, free = tables.months.c, tables.payer_months.c
    sums = select(months.team_id, months.requests, months.cost, months.uncapped, months.free)
    of_payers = select(free.payer, free.free).where(
        free.month == month, among(free.payer, {payer or team_id for team_id, payer in payers.items()})
    )
    rows = connection.execute(sums.where(months.month == month, among(months.team_id, set(payers))))
    used = {team_id: MonthUse(*each) for team_id, *each in rows}
    had = {row.payer: row.free for row in connection.execute(of_payers)}
    return {
        team_id: use._replace(others_free=max(0, had.get(payer or team_id, 0) - use.free))
        for team_id, payer in payers.items()
        for use in [used.get(team_id, MonthUse())]
    }


class OpenMonths:
    """What teams have used by month, remembered from commit to commit.

    A commit that adds to a team's month adds log entries of that team as well. So what is remembered of a team
    holds as long as the number of its next entry is the one that is remembered, whichever collector commits.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._sums: dict[MonthKey, MonthUse] = {}

    def read(
        self, connection: Connection, teams: Iterable[str], numbers: Mapping[str, int]
    ) -> Mapping[MonthKey, MonthUse]:
        """Those of teams, among others. Months that are closed may be missing."""
        known = self._numbers
        new = [team_id for team_id in teams if known.get(team_id) != numbers.get(team_id, 0)]
        if new:
            query = statement(
                "SELECT team_id, month, requests, cost, uncapped, free FROM months WHERE team_id IN ({named}) "
                "AND month NOT IN (SELECT month FROM closed_months)",
                named=engine_of(connection).named,
            )
            rows = fetched(connection.exec_driver_sql(query, (_write(new).decode(),)))
            self._sums.update({(team_id, month): MonthUse(*sums) for team_id, month, *sums in rows})
        return self._sums

    def committed(self, posting: Posting) -> None:
        """Remember what a batch counted, when it is committed."""
        sums = self._sums
        if len(sums) > MAX_MONTHS:
            sums.clear()
            self._numbers.clear()
            return
        for key, added in posting.months.items():
            before = sums.get(key)
            sums[key] = MonthUse(*(added if before is None else map(sum, zip(before, added, strict=False))))
        self._numbers.update(posting.next_no)
