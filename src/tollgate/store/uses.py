"""Which tokens are in use: when each was last, and how much of its monthly cap is gone.

Written in batches by the workers. The count is what they told; one that was killed may have kept a few seconds
of calls to itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import bindparam, func, select, update
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from tollgate.core.months import month_of, next_month
from tollgate.store import tables
from tollgate.store.base import Use

_tokens, _months = tables.tokens, tables.token_months
_LAST_USED = (
    update(_tokens)
    .where(
        _tokens.c.id == bindparam("token"),
        func.coalesce(_tokens.c.last_used_at, 0) < bindparam("at"),
    )
    .values(last_used_at=bindparam("at"))
)


async def note(connection: AsyncConnection, uses: Sequence[Use]) -> None:
    """Write a batch. The column of last use alone is touched, so that no worker takes it for a change."""
    if not uses:
        return
    await connection.execute(_LAST_USED, [{"token": use.token_id, "at": use.last_at} for use in uses])
    counted = [use for use in uses if use.calls]
    ids = {use.token_id for use in counted}
    # A token that was deleted meanwhile has nothing left to count.
    known = set((await connection.execute(select(_tokens.c.id).where(_tokens.c.id.in_(ids)))).scalars())
    rows = [
        {"token_id": use.token_id, "month": month_of(use.last_at), "requests": use.calls}
        for use in counted
        if use.token_id in known
    ]
    if not rows:
        return
    statement = insert(_months)
    await connection.execute(
        statement.on_conflict_do_update(
            index_elements=["token_id", "month"],
            set_={"requests": _months.c.requests + statement.excluded.requests},
        ),
        rows,
    )
    await _cap(connection, ids, max(use.last_at for use in counted))


async def _cap(connection: AsyncConnection, ids: set[str], now: float) -> None:
    """Stop tokens that have reached their own cap, until the month ends."""
    until = next_month(now)
    reached = (
        select(_tokens.c.id)
        .join(_months, _months.c.token_id == _tokens.c.id)
        .where(
            _tokens.c.id.in_(ids),
            _months.c.month == month_of(now),
            _months.c.requests >= _tokens.c.monthly_requests,
            func.coalesce(_tokens.c.capped_until, 0) < until,
        )
    )
    found = list((await connection.execute(reached)).scalars())
    if found:
        await connection.execute(update(_tokens).where(_tokens.c.id.in_(found)).values(capped_until=until))
