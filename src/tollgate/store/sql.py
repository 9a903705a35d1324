"""The ports Directory and ControlStore over SQLAlchemy Core. Nothing in here knows which database answers.

Every statement has a deadline, and every failure of the database becomes `StoreUnavailable` at one border.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import Any

from sqlalchemy import RowMapping, Select, func, select
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from tollgate.core.models import Domain, Grant, Team, Token
from tollgate.store import retries, tables
from tollgate.store.base import Changes, StoreUnavailable
from tollgate.store.repository import SqlRepositories, value_of

# Long enough for a busy disk, short enough that a caller who waits for a look-up still gets an answer.
DEADLINE_SECONDS = 5.0
# A worker that has missed more changes than this forgets everything instead of reading them one by one.
MAX_CHANGES = 1_000
# After these a transaction may be retried: serialisation failure and deadlock.
RETRIED = frozenset({"40001", "40P01"})
_NOT_SUSPENDED = tables.teams.c.suspended_at.is_(None)


class SqlStore:
    """All that is kept, in a relational database."""

    def __init__(
        self,
        engine: AsyncEngine,
        deadline: float = DEADLINE_SECONDS,
        *,
        changes_at_once: int = 1,
        locks_rows: bool = False,
    ) -> None:
        """`locks_rows` where a transaction that changes does not have the whole database to itself."""
        self._engine = engine
        self._deadline = deadline
        self._locks_rows = locks_rows
        # Changes of this process wait here for each other, without a connection: a few that wait with one would
        # leave none for the gateway's look-ups.
        self._turn = asyncio.Semaphore(changes_at_once)

    async def close(self) -> None:
        await self._engine.dispose()

    # --- Directory -------------------------------------------------------------------------------------

    async def token(self, digest: bytes) -> Grant | None:
        row = await self._first(
            _TOKEN_GRANT.where(tables.tokens.c.digest == digest, tables.tokens.c.active, _NOT_SUSPENDED)
        )
        return None if row is None else Grant(team=value_of(Team, row, "team_"), token=value_of(Token, row))

    async def domain(self, names: Sequence[str]) -> Grant | None:
        row = await self._first(
            _DOMAIN_GRANT.where(tables.domains.c.domain.in_(names), tables.domains.c.active, _NOT_SUSPENDED)
        )
        return None if row is None else Grant(team=value_of(Team, row, "team_"), domain=value_of(Domain, row))

    async def changes(self, since: int | None) -> Changes | None:
        table = tables.changes
        async with self._connection() as connection:
            oldest, newest = (value or 0 for value in (await connection.execute(_REVISIONS)).one())
            if since is None:
                return Changes(newest)
            if newest == since:
                return None
            # Trimmed since we looked, too many, or another database in its place.
            if newest < since or oldest > since + 1 or newest - since > MAX_CHANGES:
                return Changes(newest, everything=True)
            rows = (
                await connection.execute(select(table.c.kind, table.c.key).where(table.c.revision > since))
            ).all()
        keys = {kind: {row.key for row in rows if row.kind == kind} for kind in ("token", "domain", "team")}
        return Changes(
            newest, tuple(map(bytes.fromhex, keys["token"])), tuple(keys["domain"]), tuple(keys["team"])
        )

    # --- ControlStore ----------------------------------------------------------------------------------

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[SqlRepositories]:
        async with self._connection() as connection:
            yield SqlRepositories(connection)

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[SqlRepositories]:
        async with self._connection(immediate=True) as connection:
            yield SqlRepositories(connection, locks_rows=self._locks_rows)
        retries.note_commit()

    # --- Statements ------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _connection(self, *, immediate: bool = False) -> AsyncIterator[AsyncConnection]:
        """Lend a connection in a transaction. The one border where the database's exceptions become ours."""
        deadline = asyncio.timeout(self._deadline)
        turn = self._turn if immediate else nullcontext()
        lent = False
        try:
            async with deadline, turn, self._engine.connect() as connection:
                await connection.execution_options(immediate=immediate)
                async with connection.begin():
                    lent = True
                    yield connection
                    lent = False
        except IntegrityError:
            raise
        except (SQLAlchemyError, OSError) as error:
            if getattr(getattr(error, "orig", None), "sqlstate", None) in RETRIED:
                retries.note_undone()
            # A timeout of the caller's own, while ours has not expired, is no failure of the store.
            if lent and isinstance(error, OSError) and not deadline.expired():
                raise
            raise StoreUnavailable(f"{type(error).__name__}: the store cannot be reached") from error

    async def _first(self, query: Select[Any]) -> RowMapping | None:
        async with self._connection() as connection:
            row: RowMapping | None = (await connection.execute(query)).mappings().first()
            return row


# `team_id` is in both tables already.
_TEAM_COLUMNS = [column.label(f"team_{column.name}") for column in tables.teams.c if column.name != "id"]
_TOKEN_GRANT = select(tables.tokens, *_TEAM_COLUMNS).join(tables.teams)
_DOMAIN_GRANT = select(tables.domains, *_TEAM_COLUMNS).join(tables.teams)
# The oldest and the newest. Several times a second in each worker: made once.
_REVISIONS = select(
    select(func.min(tables.changes.c.revision)).scalar_subquery(),
    select(func.max(tables.changes.c.revision)).scalar_subquery(),
)
