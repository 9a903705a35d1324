"""The control plane's rows over SQLAlchemy Core: one small class for all tables. No rule lives here.

A value's fields are the columns of the same name. Tuples are kept as JSON text.

A transaction that changes rows must not run into others. Where the database does not serialise writers by itself,
what was read is locked until the transaction ends: the row that was found, or the conditions under which no row
was found or rows were counted.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Generic, get_args, get_origin, get_type_hints

import msgspec
from sqlalchemy import ColumnElement, Table, delete, func, insert, or_, select, tuple_, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from tollgate.core.cursors import Position
from tollgate.store import tables
from tollgate.store.base import Conflict, Given, Repositories, Value


class SqlRepository(Generic[Value]):
    """The rows of one table, inside one transaction."""

    def __init__(
        self, connection: AsyncConnection, table: Table, kind: type[Value], *, locks: bool = False
    ) -> None:
        self._connection = connection
        self._locks = locks
        self._table = table
        self._kind = kind
        self._columns = [table.c[name] for name in kind.__struct_fields__]

    async def add(self, row: Value, **hidden: bytes) -> None:
        await self._write(insert(self._table).values(**columns_of(row), **hidden))

    async def get(self, row_id: str) -> Value | None:
        return await self.find(id=row_id)

    async def find(self, **where: object) -> Value | None:
        query = select(*self._columns).where(*self._conditions(where)).limit(1)
        if self._locks:
            query = query.with_for_update(key_share=True)
        row = (await self._connection.execute(query)).mappings().first()
        if row is None and self._locks:
            await self._lock(where)
            row = (await self._connection.execute(query)).mappings().first()
        return None if row is None else value_of(self._kind, row)

    async def page(
        self,
        limit: int,
        after: Position | None = None,
        *,
        newest_first: bool = False,
        made_since: float | None = None,
        made_before: float | None = None,
        **where: object,
    ) -> list[Value]:
        order = tuple_(self._table.c.created_at, self._table.c.id)
        query = select(*self._columns).where(*self._conditions(where)).limit(limit)
        if made_since is not None:
            query = query.where(self._table.c.created_at >= made_since)
        if made_before is not None:
            query = query.where(self._table.c.created_at < made_before)
        if after is not None:
            place = tuple_(after.created_at, after.id)
            query = query.where(order < place if newest_first else order > place)
        for column in (self._table.c.created_at, self._table.c.id):
            query = query.order_by(column.desc() if newest_first else column)
        rows = (await self._connection.execute(query)).mappings()
        return [value_of(self._kind, row) for row in rows]

    async def numbered(self, above: int, limit: int, **where: object) -> list[Value]:
        number = self._table.c.number
        query = select(*self._columns).where(number > above, *self._conditions(where)).order_by(number)
        rows = (await self._connection.execute(query.limit(limit))).mappings()
        return [value_of(self._kind, row) for row in rows]

    async def replace(self, row: Value) -> bool:
        """Write what differs. An untouched column must not look like a change of a grant."""
        new = columns_of(row)
        stored = await self.get(new["id"])
        if stored is None:
            return False
        old = columns_of(stored)
        changed = {name: value for name, value in new.items() if value != old[name]}
        if changed:
            await self._write(update(self._table).where(self._table.c.id == new["id"]).values(**changed))
        return True

    async def remove(self, **where: object) -> int:
        result = await self._connection.execute(delete(self._table).where(*self._conditions(where)))
        return int(result.rowcount)

    async def remove_older(self, column: str, than: float, **where: object) -> int:
        passed = self._table.c[column] < than
        result = await self._connection.execute(delete(self._table).where(passed, *self._conditions(where)))
        return int(result.rowcount)

    async def count(self, **where: object) -> int:
        if self._locks:
            await self._lock(where)
        query = select(func.count()).select_from(self._table).where(*self._conditions(where))
        return int((await self._connection.execute(query)).scalar_one())

    def _conditions(self, where: Mapping[str, object]) -> list[ColumnElement[bool]]:
        return [_fits(self._table.c[name], value) for name, value in where.items()]

    async def _lock(self, where: Mapping[str, object]) -> None:
        """Let no other transaction look under these conditions before this one ends."""
        name = f"{self._table.name} {sorted(where.items(), key=lambda item: item[0])}"
        await self._connection.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(name, 0))))

    async def _write(self, statement: Any) -> None:
        try:
            await self._connection.execute(statement)
        except IntegrityError as error:
            # A foreign key that does not hold is a defect, and must not pass for something taken.
            if not _is_taken(error):
                raise
            raise Conflict(f"taken in {self._table.name}") from error


class SqlRepositories(Repositories):
    """All tables of the control plane, inside one transaction."""

    def __init__(self, connection: AsyncConnection, *, locks_rows: bool = False) -> None:
        for name, kind in _KINDS.items():
            setattr(self, name, SqlRepository(connection, getattr(tables, name), kind, locks=locks_rows))


# A repository has the name of its table.
_KINDS: dict[str, type[msgspec.Struct]] = {
    name: get_args(repository)[0] for name, repository in get_type_hints(Repositories).items()
}


def _is_taken(error: IntegrityError) -> bool:
    state = getattr(error.orig, "sqlstate", None)
    return "unique" in str(error.orig).lower() if state is None else state == "23505"


def _fits(column: ColumnElement[Any], value: object) -> ColumnElement[bool]:
    if value is Given.GIVEN:
        return column.is_not(None)
    if not isinstance(value, tuple):
        return column == value
    fits = column.in_([each for each in value if each is not None])
    # Nothing is IN a list by being NULL.
    return or_(fits, column.is_(None)) if None in value else fits


def columns_of(value: msgspec.Struct) -> dict[str, Any]:
    columns = msgspec.structs.asdict(value)
    return {
        name: msgspec.json.encode(item).decode() if isinstance(item, tuple) else item
        for name, item in columns.items()
    }


def value_of(kind: type[Value], row: Mapping[Any, Any], prefix: str = "") -> Value:
    values = {name: row[prefix + name] for name in kind.__struct_fields__}
    for name in _lists(kind):
        values[name] = msgspec.json.decode(values[name], type=tuple[str, ...])
    return kind(**values)


@functools.cache
def _lists(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    return tuple(name for name, hint in get_type_hints(kind).items() if get_origin(hint) is tuple)
