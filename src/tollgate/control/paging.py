"""Going through all rows of a table, a page at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from tollgate.control.unit_of_work import MOST_ROWS, Item
from tollgate.core.cursors import Position
from tollgate.store.base import Rows


async def every(rows: Rows[Any], kind: type[Item], **where: Any) -> AsyncIterator[Item]:  # noqa: ARG001 - types
    """Give every row that fits, in the order of their making. `kind` is what the table holds."""
    after: Position | None = None
    while True:
        page: list[Item] = await rows.page(MOST_ROWS, after, **where)
        for row in page:
            yield row
        if len(page) < MOST_ROWS:
            return
        after = Position(page[-1].created_at, page[-1].id)
