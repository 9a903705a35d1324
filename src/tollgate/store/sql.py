"""Directory and Registry over SQLAlchemy Core. Nothing in here knows which database answers.

Every statement has a deadline, and every failure of the database becomes `StoreUnavailable` at one border.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from sqlalchemy import Row, Select, Table, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from tollgate.core.models import Domain, Grant, Team, Token
from tollgate.store import tables
from tollgate.store.base import Changes, Conflict, StoreUnavailable

# Long enough for a busy disk, short enough that a caller who waits for a look-up still gets an answer.
DEADLINE_SECONDS = 5.0
# A worker that has missed more changes than this forgets everything instead of reading them one by one.
MOST_CHANGES = 1_000


class SqlStore:
    """Teams, tokens and domains in a relational database."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def close(self) -> None:
        """Close all connections."""
        await self._engine.dispose()

    # --- Directory -------------------------------------------------------------------------------------

    async def token(self, digest: bytes) -> Grant | None:
        """Return the grant of an active token."""
        row = await self._first(_TOKEN_GRANT.where(tables.tokens.c.digest == digest, tables.tokens.c.active))
        return None if row is None else Grant(team=_team(row, "team_"), token=_token(row))

    async def domain(self, names: Sequence[str]) -> Grant | None:
        """Return the grant of the active entry among these names."""
        row = await self._first(_DOMAIN_GRANT.where(tables.domains.c.domain.in_(names), tables.domains.c.active))
        return None if row is None else Grant(team=_team(row, "team_"), domain=_domain(row))

    async def changes(self, since: int | None) -> Changes | None:
        """Return what changed after `since`."""
        table = tables.changes
        async with self._connection() as connection:
            bounds = select(
                select(func.min(table.c.revision)).scalar_subquery(),
                select(func.max(table.c.revision)).scalar_subquery(),
            )
            oldest, newest = (value or 0 for value in (await connection.execute(bounds)).one())
            if since is None:
                return Changes(newest)
            if newest == since:
                return None
            # Trimmed since we looked, too many, or another database in its place.
            if newest < since or oldest > since + 1 or newest - since > MOST_CHANGES:
                return Changes(newest, everything=True)
            rows = (
                await connection.execute(select(table.c.kind, table.c.key).where(table.c.revision > since))
            ).all()
        keys = {kind: {row.key for row in rows if row.kind == kind} for kind in ("token", "domain", "team")}
        return Changes(
            newest, tuple(map(bytes.fromhex, keys["token"])), tuple(keys["domain"]), tuple(keys["team"])
        )

    # --- Registry --------------------------------------------------------------------------------------

    async def add_team(self, team: Team) -> None:
        """Add a team."""
        await self._insert(
            tables.teams, {**_columns(team), "created_at": time.time()}, f"the team name {team.name} is taken"
        )

    async def add_token(self, token: Token, digest: bytes) -> None:
        """Add a token under its digest."""
        await self._insert(
            tables.tokens, {**_columns(token), "digest": digest}, f"the token name {token.name} is taken"
        )

    async def add_domain(self, domain: Domain) -> None:
        """Add a whitelist entry."""
        await self._insert(tables.domains, _columns(domain), f"the domain {domain.domain} is taken")

    async def update_team(self, team: Team) -> bool:
        """Replace a team."""
        return await self._update(tables.teams, _columns(team))

    async def update_token(self, token: Token) -> bool:
        """Replace a token."""
        return await self._update(tables.tokens, _columns(token))

    async def update_domain(self, domain: Domain) -> bool:
        """Replace an entry."""
        return await self._update(tables.domains, _columns(domain))

    async def delete_token(self, token_id: str) -> bool:
        """Delete a token."""
        return await self._delete(tables.tokens, token_id)

    async def delete_domain(self, domain_id: str) -> bool:
        """Delete an entry."""
        return await self._delete(tables.domains, domain_id)

    async def team(self, name: str) -> Team | None:
        """Return the team of this name."""
        row = await self._first(select(tables.teams).where(tables.teams.c.name == name))
        return None if row is None else _team(row)

    async def tokens(self, team_id: str) -> list[Token]:
        """Return a team's tokens."""
        table = tables.tokens
        query = select(table).where(table.c.team_id == team_id).order_by(table.c.created_at, table.c.id)
        async with self._connection() as connection:
            return [_token(row) for row in await connection.execute(query)]

    async def domains(self, team_id: str) -> list[Domain]:
        """Return a team's entries."""
        table = tables.domains
        query = select(table).where(table.c.team_id == team_id).order_by(table.c.created_at, table.c.id)
        async with self._connection() as connection:
            return [_domain(row) for row in await connection.execute(query)]

    # --- Statements ------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[AsyncConnection]:
        """Lend a connection in a transaction. The one border where the database's exceptions become ours."""
        try:
            async with asyncio.timeout(DEADLINE_SECONDS), self._engine.begin() as connection:
                yield connection
        except IntegrityError:
            raise
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            raise StoreUnavailable(f"{type(error).__name__}: the store cannot be reached") from error

    async def _first(self, query: Select[Any]) -> Row[Any] | None:
        async with self._connection() as connection:
            row: Row[Any] | None = (await connection.execute(query)).first()
            return row

    async def _insert(self, table: Table, values: dict[str, Any], taken: str) -> None:
        try:
            async with self._connection() as connection:
                await connection.execute(insert(table).values(values))
        except IntegrityError as error:
            raise Conflict(taken) from error

    async def _update(self, table: Table, values: dict[str, Any]) -> bool:
        row_id = values.pop("id")
        for fixed in ("created_at", "created_by", "domain"):
            values.pop(fixed, None)
        try:
            async with self._connection() as connection:
                result = await connection.execute(update(table).where(table.c.id == row_id).values(values))
        except IntegrityError as error:
            raise Conflict(f"the name {values.get('name')} is taken") from error
        return bool(result.rowcount)

    async def _delete(self, table: Table, row_id: str) -> bool:
        async with self._connection() as connection:
            result = await connection.execute(delete(table).where(table.c.id == row_id))
        return bool(result.rowcount)


# `team_id` stands in both tables already.
_TEAM_COLUMNS = [
    column.label(f"team_{column.name}") for column in tables.teams.c if column.name not in ("id", "created_at")
]
_TOKEN_GRANT = select(tables.tokens, *_TEAM_COLUMNS).join(tables.teams)
_DOMAIN_GRANT = select(tables.domains, *_TEAM_COLUMNS).join(tables.teams)


def _columns(value: Team | Token | Domain) -> dict[str, Any]:
    columns = msgspec.structs.asdict(value)
    for name in ("networks", "methods"):
        if name in columns:
            columns[name] = msgspec.json.encode(columns[name]).decode()
    return columns


def _team(row: Row[Any], prefix: str = "") -> Team:
    values = row._mapping
    return Team(
        id=values[f"{prefix}id"],
        name=values[f"{prefix}name"],
        requests_per_second=values[f"{prefix}requests_per_second"],
        capped_until=values[f"{prefix}capped_until"],
    )


def _token(row: Row[Any]) -> Token:
    return Token(
        id=row.id,
        team_id=row.team_id,
        name=row.name,
        prefix=row.prefix,
        created_at=row.created_at,
        created_by=row.created_by,
        last_used_at=row.last_used_at,
        expires_at=row.expires_at,
        active=bool(row.active),
        networks=_texts(row.networks),
        methods=_texts(row.methods),
        requests_per_second=row.requests_per_second,
        monthly_requests=row.monthly_requests,
        capped_until=row.capped_until,
        allow_in_url=bool(row.allow_in_url),
    )


def _domain(row: Row[Any]) -> Domain:
    return Domain(
        id=row.id,
        team_id=row.team_id,
        domain=row.domain,
        created_at=row.created_at,
        created_by=row.created_by,
        verified_at=row.verified_at,
        address_per_minute=row.address_per_minute,
        domain_per_minute=row.domain_per_minute,
        active=bool(row.active),
    )


def _texts(text: str) -> tuple[str, ...]:
    return msgspec.json.decode(text, type=tuple[str, ...])
