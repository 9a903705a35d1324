"""Going through all rows of a table, a page at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from tollgate.control.service_context import MAX_ROWS, Item
from tollgate.core.cursors import Position
from tollgate.store.base import Repository


async def every(rows: Repository[Any], kind: type[Item], **where: Any) -> AsyncIterator[Item]:  # noqa: ARG001 - types
    """Give every row that fits, in the order of their making. `kind` is what the table holds."""
    after: Position | None = None
    while True:
        page: list[Item] = await rows.page(MAX_ROWS, after, **where)
        for row in page:
            yield row
        if len(page) < MAX_ROWS:
            return
        after = Position(page[-1].created_at, page[-1].id)
