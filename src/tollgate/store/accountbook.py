"""Usage, months and invoices of the ledger, for the control plane. Asynchronous; writes final invoices alone.

Each question is answered from one transaction, so that parts and their sum agree. A month is closed in one that
excludes other writers: what the collector commits before is in the invoices, and what it commits after belongs to
another month, which triggers of the tables enforce.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, case, exists, func, insert, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from tollgate.api.usage import By, Split
from tollgate.core.clock import Clock
from tollgate.core.invoices import Invoice
from tollgate.core.models import Team
from tollgate.core.months import month_of, start_of
from tollgate.core.pricing import MonthUse
from tollgate.core.usage import MonthTotals, Period, Point, TeamMonth, UsageItem
from tollgate.store import ledger_tables as tables
from tollgate.store.base import Bill, ClockDoubted, StoreUnavailable
from tollgate.store.ledger_engine import engine_of
from tollgate.store.ledger_usage import FOLD_MONTH, USAGE_SUMS, latencies_of, team_uses

DEADLINE_SECONDS = 10.0
# All of a month's usage is added up, once a month.
CLOSING_SECONDS = 120.0
HOUR = 3_600

_usage = tables.usage_all.c
_KEYS: dict[By, ColumnElement[Any]] = {
    # Usage of other sources is summed under an empty key, so that the total is complete.
    By.TOKEN: case((_usage.source_id.startswith("tok_", autoescape=True), _usage.source_id), else_=""),
    By.DOMAIN: case((_usage.source_id.startswith("dom_", autoescape=True), _usage.source_id), else_=""),
    By.NETWORK: _usage.network,
    By.METHOD: _usage.method,
    By.DAY: (_usage.hour - _usage.hour % 24),
    By.MONTH: _usage.month,
}

_SPLITS: dict[Split, ColumnElement[str]] = {
    Split.NETWORK: _usage.network,
    Split.OUTCOME: _usage.outcome,
    Split.SOURCE: _usage.source_id,
}


class SqlAccountBook:
    """What was used and what is owed."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def close(self) -> None:
        await self._engine.dispose()

    async def usage(
        self,
        team_id: str,
        months: str | Sequence[str],
        by: By | Split,
        *,
        sources: Sequence[str] | None = None,
        hours: tuple[int, int] | None = None,
    ) -> list[UsageItem]:
        key = (_SPLITS[by] if isinstance(by, Split) else _KEYS[by]).label("key")
        within = _usage.month == months if isinstance(months, str) else _usage.month.in_(months)
        query = select(key, *USAGE_SUMS).where(_usage.team_id == team_id, within).group_by(key)
        if sources is not None:
            query = query.where(_usage.source_id.in_(sources))
        if hours is not None:
            query = query.where(_usage.hour >= hours[0], _usage.hour < hours[1])
        async with self._connection() as connection:
            rows = (await connection.execute(query.order_by(key))).all()
        return [
            UsageItem(_day(row.key) if by is By.DAY else row.key, row.requests, row.billable, row.cost)
            for row in rows
        ]

    async def series(
        self, team_id: str, months: Sequence[str], hours: tuple[int, int], step: int, split: Split
    ) -> list[Point]:
        key = _SPLITS[split].label("key")
        first, end = hours
        # Hours are numbered from 1970, and no span has more than thousands of them: whole numbers throughout.
        start = (
            (_usage.hour - (_usage.hour - first) % step).label("start") if step else _usage.month.label("start")
        )
        within = (_usage.hour >= first, _usage.hour < end) if step else ()
        query = (
            select(start, key, func.sum(_usage.requests).label("requests"))
            .where(_usage.team_id == team_id, _usage.month.in_(months), *within)
            .group_by(start, key)
        )
        async with self._connection() as connection:
            rows = (await connection.execute(query)).all()
        return [
            Point(row.start if step else int(start_of(row.start)) // HOUR, row.key, row.requests) for row in rows
        ]

    async def spent(self, month: str, teams: Iterable[Team]) -> dict[str, MonthUse]:
        payers = {team.id: team.payer for team in teams}
        async with self._connection() as connection:
            return await connection.run_sync(team_uses, month, payers)

    async def spenders(self, month: str, limit: int) -> tuple[MonthTotals, dict[str, tuple[int, int]]]:
        table = tables.months.c
        sums = (func.coalesce(func.sum(each), 0) for each in (table.requests, table.cost))
        total = select(func.count(), *sums).where(table.month == month)
        query = select(table.team_id, table.requests, table.cost).where(table.month == month)
        ordered = query.order_by(table.cost.desc(), table.requests.desc(), table.team_id).limit(limit)
        async with self._connection() as connection:
            count, requests, cost = (await connection.execute(total)).one()
            rows = (await connection.execute(ordered)).all()
        # PostgreSQL adds up whole numbers to decimal ones.
        return MonthTotals(count, int(requests), int(cost)), {row[0]: (row[1], row[2]) for row in rows}

    async def bill(self, team_id: str, month: str) -> Bill:
        table = tables.invoices.c
        query = select(table.document).where(table.team_id == team_id, table.month == month)
        async with self._connection() as connection:
            document = (await connection.execute(query)).scalar()
            return Bill(
                await _used(connection, team_id, month),
                await _is_closed(connection, month),
                None if document is None else _read(document),
            )

    async def invoices(
        self, limit: int, *, team_id: str | None = None, before: str | None = None, month: str | None = None
    ) -> list[Invoice]:
        table = tables.invoices.c
        query = select(table.document).order_by(table.month.desc(), table.team_id).limit(limit)
        if team_id is not None:
            query = query.where(table.team_id == team_id)
        if before is not None:
            query = query.where(table.month < before)
        if month is not None:
            query = query.where(table.month == month)
        async with self._connection() as connection:
            return [_read(document) for document in (await connection.execute(query)).scalars()]

    async def open_months(self, before: str) -> list[str]:
        month = tables.months.c.month
        closed = select(tables.closed_months.c.month)
        query = select(month).where(month < before, month.not_in(closed)).distinct().order_by(month)
        async with self._connection() as connection:
            return list((await connection.execute(query)).scalars())

    async def is_closed(self, month: str) -> bool:
        async with self._connection() as connection:
            return await _is_closed(connection, month)

    async def close_month(
        self, month: str, now: float, draw: Callable[[TeamMonth], Invoice]
    ) -> list[Invoice] | None:
        async with self._connection(CLOSING_SECONDS, immediate=True) as connection:
            await connection.run_sync(lambda writer: engine_of(writer).begin_closing(writer))
            if await _is_closed(connection, month):
                return None
            if await _is_doubtful(connection, now):
                raise ClockDoubted(
                    f"The clock is far beyond what the ledger has seen, so {month} is not closed. "
                    "See `tollgate doctor`."
                )
            for statement in FOLD_MONTH:
                await connection.exec_driver_sql(statement, (month,))
            drawn = [draw(await _used(connection, team, month)) for team in await _teams(connection, month)]
            await connection.execute(insert(tables.closed_months).values(month=month, closed_at=now))
            if drawn:
                await connection.execute(insert(tables.invoices), [_row(invoice, now) for invoice in drawn])
        return drawn

    async def is_doubtful(self, now: float) -> bool:
        async with self._connection() as connection:
            return await _is_doubtful(connection, now)

    async def latencies(
        self, team_id: str, first_hour: int, last_hour: int
    ) -> dict[tuple[str, str], dict[int, int]]:
        found: dict[tuple[str, str], dict[int, int]] = {}
        table, appended = tables.latencies.c, tables.latencies_new.c
        folded = select(table.network, table.outcome, table.buckets).where(
            table.team_id == team_id, table.hour.between(first_hour, last_hour)
        )
        waiting = select(appended.lines).where(appended.hour.between(first_hour, last_hour))
        async with self._connection() as connection:
            lines = [
                (row.network, row.outcome, msgspec.msgpack.decode(row.buckets, type=dict[int, int]))
                for row in await connection.execute(folded)
            ]
            for content in (await connection.execute(waiting)).scalars():
                lines += latencies_of(team_id, content)
        for network, outcome, buckets in lines:
            total = found.setdefault((network, outcome), {})
            for bucket, count in buckets.items():
                total[bucket] = total.get(bucket, 0) + count
        return found

    @asynccontextmanager
    async def _connection(
        self, seconds: float = DEADLINE_SECONDS, *, immediate: bool = False
    ) -> AsyncIterator[AsyncConnection]:
        """Lend a connection in a transaction. The border where the database's exceptions become ours."""
        try:
            async with asyncio.timeout(seconds), self._engine.connect() as connection:
                await connection.execution_options(immediate=immediate, seconds=seconds)
                async with connection.begin():
                    yield connection
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            raise StoreUnavailable(f"{type(error).__name__}: the ledger cannot be used") from error


async def _is_closed(connection: AsyncConnection, month: str) -> bool:
    table = tables.closed_months
    return bool((await connection.execute(select(exists().where(table.c.month == month)))).scalar())


async def _is_doubtful(connection: AsyncConnection, now: float) -> bool:
    table = tables.state.c
    row = (await connection.execute(select(table.seen_at, table.doubted_at))).first()
    return row is not None and Clock(row.seen_at, row.doubted_at).is_doubtful(now)


async def _used(connection: AsyncConnection, team_id: str, month: str) -> TeamMonth:
    """What a team used, by the calendar month of the calls."""
    begins = int(start_of(month)) // HOUR
    # One group for the month itself, which may have hundreds of hours; late calls have few.
    hour = case((_usage.hour >= begins, begins), else_=_usage.hour).label("first_hour")
    query = select(hour, *USAGE_SUMS).where(_usage.team_id == team_id, _usage.month == month).group_by(hour)
    sums: dict[str, list[int]] = {}
    for row in await connection.execute(query):
        total = sums.setdefault(month_of(row.first_hour * HOUR), [0, 0, 0])
        for place, value in enumerate((row.requests, row.billable, row.cost)):
            total[place] += value
    months = tables.months.c
    free = select(months.free).where(months.team_id == team_id, months.month == month)
    periods = tuple(Period(name, *sums[name]) for name in sorted(sums))
    return TeamMonth(team_id, month, periods, (await connection.execute(free)).scalar())


async def _teams(connection: AsyncConnection, month: str) -> list[str]:
    """The teams with usage in a month. From team to team through the primary key: years of usage lie between."""
    table = tables.usage
    ahead = table.alias()
    first = select(func.min(table.c.team_id).label("id")).cte("team", recursive=True)
    following = select(func.min(ahead.c.team_id)).where(ahead.c.team_id > first.c.id).scalar_subquery()
    team = first.union_all(select(following).where(first.c.id.is_not(None)))
    used = exists().where(table.c.team_id == team.c.id, table.c.month == month)
    return list((await connection.execute(select(team.c.id).where(used).order_by(team.c.id))).scalars())


def _row(invoice: Invoice, now: float) -> dict[str, Any]:
    return {
        "team_id": invoice.team_id,
        "month": invoice.month,
        "number": invoice.number,
        "issued_at": now,
        "billable": invoice.billable,
        "cost": invoice.cost,
        "total_cents": invoice.total_cents,
        "document": msgspec.json.encode(invoice).decode(),
    }


def _read(document: str) -> Invoice:
    return msgspec.json.decode(document, type=Invoice)


def _day(hour: int) -> str:
    return datetime.fromtimestamp(hour * HOUR, UTC).strftime("%Y-%m-%d")
