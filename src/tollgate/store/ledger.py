"""The ledger's store, as the collector writes it: one transaction takes blocks, usage, costs and the read offsets.

A transaction locks what it reads from the start (`store/ledger_engine.py`), so nothing that a batch is posted by
can change before it is committed. A segment that was read from another offset than the ledger's is refused
(`LedgerBehind`): two collectors cannot count a record twice. Chores are done in slices, each in a transaction of
its own, so that collecting never waits for long.

Synchronous: the collector is a process of its own that does nothing else. Reading is in `store/logbook.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import wraps
from itertools import islice
from typing import Concatenate, ParamSpec

import msgspec
from sqlalchemy import URL, Connection, Engine, create_engine, delete, func, select

from tollgate.core.blocks import OpenBlock
from tollgate.core.clock import Clock
from tollgate.core.entries import read_counted, read_subject
from tollgate.core.posting import Opening, Posting
from tollgate.core.pricing import MonthUse
from tollgate.core.shared_blocks import Content
from tollgate.core.subjects import UNAUTHORIZED
from tollgate.errors import TollgateError
from tollgate.store import ledger_tables as tables
from tollgate.store import ledger_usage, postgresql, sqlite
from tollgate.store.base import Mark
from tollgate.store.ledger_blocks import FAN, FIRST, DayBlocks, Days, Joining
from tollgate.store.ledger_engine import among, engine_of
from tollgate.store.ledger_shared import SharedBlocks, Waiting
from tollgate.store.ledger_usage import OpenMonths
from tollgate.store.postgresql import LEDGER_SCHEMA, is_postgresql
from tollgate.store.statements import Sql

BUSY_MILLISECONDS = 10_000
# Values in one statement; SQLite takes 32,766.
_MAX_NAMED = 10_000
# Entries of shared blocks that are remembered until those are sorted.
MAX_REMEMBERED = 50_000

P = ParamSpec("P")


class LedgerBehind(TollgateError):
    """Another collector has been at work on the same segments."""


def open_ledger(url: URL) -> LedgerStore:
    """Open the ledger for the collector."""
    if is_postgresql(url):
        seconds = BUSY_MILLISECONDS / 1_000
        return LedgerStore(postgresql.make_engine(url, LEDGER_SCHEMA, pool_size=1, seconds=seconds))
    engine = create_engine(url, hide_parameters=True)
    sqlite.set_pragmas(engine, BUSY_MILLISECONDS)
    sqlite.run_on_connect(
        engine,
        # A segment is deleted when its log entries are committed: they must outlive a power cut as it would have.
        "synchronous=FULL",
        # Pages that every commit touches, those of indexes, are kept at hand and written back now and then.
        "wal_autocheckpoint=8000",
        "cache_size=-6000",
        # Many builds write zeros over what is deleted: 7 times the time, and a WAL as large as the dropped day.
        "secure_delete=FAST",
    )
    return LedgerStore(engine)


class _DoneByAnother(Exception):
    """Another collector does chores now."""


def _by_one(chore: Callable[Concatenate[LedgerStore, P], bool]) -> Callable[Concatenate[LedgerStore, P], bool]:
    """A chore that one collector does at a time; there is nothing to do for the others."""

    @wraps(chore)
    def done(store: LedgerStore, /, *args: P.args, **options: P.kwargs) -> bool:
        try:
            return chore(store, *args, **options)
        except _DoneByAnother:
            return False

    return done


class LedgerStore:
    """What the collector writes to."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiting: Waiting | None = None
        """Shared blocks that are not sorted; None where they are to be counted."""
        self._contents: dict[bytes, Content] = {}
        """Their content by their parts, so that sorting need not read it again."""
        self._months = OpenMonths()
        self._unfolded: int | None = None
        """Lines of usage that are not folded; None where that is not known."""
        self._generations: dict[int, int] | None = None
        """Of open blocks of the newest day, by level; None where they are to be counted."""
        self._joining: Joining | None = None
        self._settling: tuple[str, tuple[str, int]] | None = None

    def close(self) -> None:
        self._engine.dispose()

    def marks(self, ids: Iterable[bytes] | None = None) -> dict[bytes, Mark]:
        with self._engine.connect() as connection:
            return _marks(connection, ids)

    def clock(self) -> Clock:
        with self._engine.connect() as connection:
            return _clock(connection)

    def commit(
        self,
        marks: Mapping[bytes, Mark],
        teams: Iterable[str],
        post: Callable[[Opening], Posting],
        now: float,
        *,
        payers: Iterable[str] = (),
        known: Mapping[bytes, Mark] | None = None,
    ) -> Posting:
        """Post a batch and note how far its segments were read: both, or neither.

        `known` is where its segments were read from; `LedgerBehind` where the ledger has other offsets.
        """
        # What is remembered holds only if all of this is committed.
        waiting, self._waiting = self._waiting, None
        contents, self._contents = self._contents, {}
        months, self._months = self._months, OpenMonths()
        unfolded, self._unfolded = self._unfolded, None
        with self._writing() as connection:
            listed, paying = list(teams), list(payers)
            named = msgspec.json.encode(listed).decode()
            numbers = engine_of(connection).begin_commit(connection, marks, named, paying)
            if known is not None and _marks(connection, marks) != known:
                raise LedgerBehind("Another collector works on this spool: stop one of them.")
            closed = frozenset(row[0] for row in connection.exec_driver_sql("SELECT month FROM closed_months"))
            used, free = months.read(connection, listed, numbers), ledger_usage.free_of_payers(connection, paying)
            posting = post(Opening(numbers, used, closed, free))
            if posting.entries:
                self._write(connection, posting, now)
            if marks:
                rows = [(key, mark.offset, mark.done, now) for key, mark in marks.items()]
                connection.exec_driver_sql(_MARK, rows)
        months.committed(posting)
        self._months = months
        for block in posting.shared:
            contents[block.parts] = block.content
        is_much = sum([content.entries for content in contents.values()]) > MAX_REMEMBERED
        self._contents = {} if is_much else contents
        if waiting is not None:
            self._waiting = waiting.and_more(posting.shared)
        if unfolded is not None:
            self._unfolded = unfolded + ledger_usage.lines_in(posting)
        return posting

    def _write(self, connection: Connection, posting: Posting, now: float) -> None:
        days = Days(connection)
        newest = days.newest()
        day = days.at(datetime.fromtimestamp(now, UTC).strftime("%Y%m%d"), newest)
        if day != newest:
            self._generations = None
        clock, committed_at = _times(connection, now)
        if posting.shared:
            SharedBlocks(connection).add(day, posting.shared, committed_at)
        if posting.blocks:
            DayBlocks(connection, day).add(posting.blocks, committed_at)
        ledger_usage.add(connection, posting)
        engine_of(connection).upsert(connection, tables.teams, _NUMBER, list(posting.next_no.items()))
        # Last: all collectors write this row.
        connection.exec_driver_sql(_STATE, (committed_at, clock.seen_at, clock.doubted_at))

    def team_months(self, month: str, payers: Mapping[str, str]) -> dict[str, MonthUse]:
        """What teams, each with its payer, have used in a month."""
        with self._engine.connect() as connection:
            return ledger_usage.team_uses(connection, month, payers)

    @property
    def is_shared(self) -> bool:
        """Whether other nodes may write to it."""
        return self._engine.dialect.name == "postgresql"

    def lease_calls(
        self,
        node: str,
        month: str,
        payers: Mapping[str, str],
        share: Callable[[str, MonthUse, int, bool], int],
        now: float,
        until: float,
    ) -> dict[str, int]:
        """Lease calls of teams, each with its payer, for a node until then, in one transaction.

        `share` decides how many, by what the team has used, what other nodes have leased, and whether there are
        none.
        """
        table = tables.call_leases
        listed = list(payers)
        with self._writing() as connection:
            engine_of(connection).begin_leasing(connection)
            # Read after the lock: what another node committed before it leased less is in it.
            uses = ledger_usage.team_uses(connection, month, payers)
            alive = select(table.c.team_id, table.c.node, table.c.calls, table.c.until).where(
                table.c.until > now, among(table.c.team_id, set(listed))
            )
            others: dict[str, int] = {}
            mine: dict[str, tuple[int, float]] = {}
            for row in connection.execute(alive):
                if row.node == node:
                    mine[row.team_id] = (row.calls, row.until)
                else:
                    others[row.team_id] = others.get(row.team_id, 0) + row.calls
            leased = {
                team_id: share(team_id, uses[team_id], others.get(team_id, 0), team_id not in others)
                for team_id in listed
            }
            # Written only where it changes, or would end soon: there may be thousands.
            half = now + (until - now) / 2
            rows = [
                (team_id, node, calls, until)
                for team_id, calls in sorted(leased.items())
                if mine.get(team_id, (None, 0.0))[0] != calls or mine[team_id][1] < half
            ]
            if rows:
                engine_of(connection).upsert(connection, table, _LEASE, rows)
            connection.execute(delete(table).where(table.c.until < now))
        return leased

    def source_months(self, month: str, ids: Iterable[str]) -> dict[str, int]:
        wanted = set(ids)
        if not wanted:
            return {}
        table = tables.source_months_all.c
        query = (
            select(table.source_id, func.sum(table.requests))
            .where(table.month == month, among(table.source_id, wanted))
            .group_by(table.source_id)
        )
        with self._engine.connect() as connection:
            return {source_id: int(requests) for source_id, requests in connection.execute(query)}

    def last_uses(self, seconds: float) -> dict[str, float]:
        """When tokens and domains were last used, by the log entries of the seconds up to the last commit."""
        found: dict[str, float] = {}
        with self._engine.connect() as connection:
            newest = connection.execute(select(tables.state.c.committed_at)).scalar()
            if newest is None:
                return {}
            recent = SharedBlocks(connection).recent(newest - seconds)
            for day in reversed(Days(connection).listed()):
                blocks = DayBlocks(connection, day)
                of_day = blocks.recent(newest - seconds)
                recent += of_day
                if not of_day and not blocks.is_empty():
                    break
        for block in recent:
            _note_uses(block, found)
        return found

    # --- Chores --------------------------------------------------------------------------------------------

    @_by_one
    def join(self) -> bool:
        """Sort shared blocks, or join small ones of the newest day, when there are many: a slice of it.

        Whether there may be more to do.
        """
        if self._waiting is None or self._waiting.is_enough:
            return self._sort_out()
        if self._generations is not None and not self._joining and self._crowded_level() is None:
            return False
        with self._chore() as connection:
            day = Days(connection).newest()
            if day is None:
                return False
            blocks = DayBlocks(connection, day)
            if self._generations is None:
                self._generations, self._joining = blocks.generations(), None
            joining, self._joining = self._joining, None
            if joining is None:
                level = self._crowded_level()
                if level is None:
                    return False
                joining = Joining(level, blocks.newest_generation())
            following = blocks.join(joining)
        self._joining = following
        if following is None:
            self._generations = None
        return True

    def _sort_out(self) -> bool:
        contents, self._contents = self._contents, {}
        with self._chore() as connection:
            shared = SharedBlocks(connection, contents)
            waiting = shared.waiting()
            if waiting.is_enough:
                shared.sort_out()
                waiting = shared.waiting()
                self._generations = None
        self._waiting, self._contents = waiting, contents if waiting.entries else {}
        return True

    def _crowded_level(self) -> int | None:
        """The lowest level whose blocks are to be joined."""
        return min((level for level, count in (self._generations or {}).items() if count >= FAN), default=None)

    @_by_one
    def settle(self) -> bool:
        """Make a slice of the open blocks of days that are over final; whether there is more to do."""
        with self._chore() as connection:
            days = Days(connection).listed()
            if days and SharedBlocks(connection, self._contents).sort_out(before=days[-1]):
                self._waiting, self._contents = None, {}
                return True
            for day in days[:-1]:
                blocks = DayBlocks(connection, day)
                if blocks.has_open():
                    after = self._settling[1] if self._settling and self._settling[0] == day else FIRST
                    self._settling = None
                    following = blocks.settle(after)
                    break
            else:
                return False
        self._settling = None if following is None else (day, following)
        return True

    @_by_one
    def fold(self, at_least: int = 0) -> bool:
        """Fold a slice of the usage that was appended, where it has so many lines; whether there is more to do."""
        if self._unfolded is not None and self._unfolded < at_least:
            return False
        with self._chore() as connection:
            folded = ledger_usage.fold(connection)
        self._unfolded = None if folded else 0
        return folded

    def drop_days(self, before: str) -> list[str]:
        """Take logs that were committed before a day away from all readers; return the days. `sweep` deletes."""
        with self._writing() as connection:
            gone = Days(connection).drop(before)
            if gone:
                SharedBlocks(connection).drop(before)
                self._waiting, self._contents = None, {}
                connection.exec_driver_sql("UPDATE state SET dropped_before = ?", (before,))
        return gone

    @_by_one
    def sweep(self, oldest_hour: int) -> bool:
        """Delete a slice of what was dropped, and of histograms before an hour; whether there is more to do."""
        with self._chore() as connection:
            more = Days(connection).sweep()
            return ledger_usage.forget_latencies(connection, oldest_hour) or more

    def tick(self, now: float) -> Clock:
        """Note that time passes, also while nothing is committed; what the ledger knows of it."""
        with self._writing() as connection:
            clock = _clock(connection).seen(now)
            connection.exec_driver_sql(_CLOCK, msgspec.structs.astuple(clock))
        return clock

    def forget_segments(self, before: float) -> None:
        """Forget segments that have been gone for long."""
        table = tables.segments
        with self._writing() as connection:
            connection.execute(delete(table).where(table.c.done, table.c.updated_at < before))

    @contextmanager
    def _chore(self) -> Iterator[Connection]:
        """A transaction for chores, unless another collector does them now."""
        with self._writing() as connection:
            if not engine_of(connection).begin_chore(connection):
                raise _DoneByAnother
            yield connection

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        with self._engine.begin() as connection:
            engine_of(connection).begin(connection)
            yield connection


def _marks(connection: Connection, ids: Iterable[bytes] | None) -> dict[bytes, Mark]:
    query = 'SELECT id, "offset", done FROM segments'
    if ids is None:
        rows = connection.exec_driver_sql(query).all()
    else:
        rows = [
            row
            for some in _in_parts(ids)
            for row in connection.exec_driver_sql(f"{query} WHERE id IN ({', '.join('?' * len(some))})", some)
        ]
    return {row[0]: Mark(row[1], bool(row[2])) for row in rows}


def _in_parts(ids: Iterable[bytes]) -> Iterator[tuple[bytes, ...]]:
    """As many ids at once as one statement may name."""
    rest = iter(ids)
    while part := tuple(islice(rest, _MAX_NAMED)):
        yield part


_MARK = (
    'INSERT INTO segments (id, "offset", done, updated_at) VALUES (?, ?, ?, ?) ON CONFLICT (id) DO UPDATE '
    'SET "offset" = excluded."offset", done = excluded.done, updated_at = excluded.updated_at'
)
_LEASE = Sql("ON CONFLICT (team_id, node) DO UPDATE SET calls = excluded.calls, until = excluded.until")
_NUMBER = Sql("ON CONFLICT (id) DO UPDATE SET next_no = excluded.next_no")


def _times(connection: Connection, now: float) -> tuple[Clock, float]:
    """What is known of time now, and when a batch is committed.

    For a team these times never go back, whatever clocks do: `since` needs that.
    """
    row = connection.exec_driver_sql("SELECT committed_at, seen_at, doubted_at FROM state").first()
    before, clock = (None, Clock()) if row is None else (row[0], Clock(row[1], row[2]))
    return clock.seen(now), now if before is None else max(now, before)


_STATE = (
    "INSERT INTO state (id, committed_at, seen_at, doubted_at) VALUES (1, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
    "committed_at = CASE WHEN state.committed_at > excluded.committed_at THEN state.committed_at "
    "ELSE excluded.committed_at END, seen_at = excluded.seen_at, doubted_at = excluded.doubted_at"
)
_CLOCK = (
    "INSERT INTO state (id, seen_at, doubted_at) VALUES (1, ?, ?) "
    "ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at, doubted_at = excluded.doubted_at"
)


def _clock(connection: Connection) -> Clock:
    row = connection.exec_driver_sql("SELECT seen_at, doubted_at FROM state").first()
    return Clock() if row is None else Clock(*row)


def _note_uses(block: OpenBlock, found: dict[str, float]) -> None:
    for _, payload in block.records():
        record = read_counted(payload)
        subject = read_subject(record.subject)
        if subject.status != UNAUTHORIZED and record.at > found.get(subject.source_id, 0.0):
            found[subject.source_id] = record.at
