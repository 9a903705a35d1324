"""What the collector writes into the control data: which teams and tokens are capped, and last uses.

Both follow from the ledger and may be written again at any time: a collector that is killed between its commit and
this catches up when it starts again. Synchronous, as the collector is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, Engine, or_, select, update

from tollgate.core.models import Team
from tollgate.core.months import month_of, next_month
from tollgate.core.pricing import MonthUse, Price
from tollgate.store import tables
from tollgate.store.ledger import LedgerStore
from tollgate.store.ledger_engine import among
from tollgate.store.postgresql import TEXTS, TIMES
from tollgate.store.statements import statement

# Past the expression language: there may be thousands a second.
_LAST_USED = "UPDATE tokens SET last_used_at = ? WHERE id = ? AND coalesce(last_used_at, 0) < ?"
# In one statement, as one is as long on its way as its work takes. Rows are locked in order all the same.
_LAST_USED_AT_ONCE = statement(
    "UPDATE tokens SET last_used_at = later.at FROM ("
    "SELECT tokens.id, used.at FROM unnest({ids}, {times}) AS used (id, at) "
    "JOIN tokens ON tokens.id = used.id WHERE coalesce(last_used_at, 0) < used.at "
    "ORDER BY tokens.id FOR UPDATE OF tokens) AS later WHERE tokens.id = later.id",
    ids=TEXTS.sql,
    times=TIMES.sql,
)


class Caps:
    """Stops teams and tokens that have reached their caps, until the month ends or the cap is raised."""

    def __init__(self, control: Engine, ledger: LedgerStore, price: Price) -> None:
        self._control = control
        self._ledger = ledger
        self._price = price

    def close(self) -> None:
        self._control.dispose()

    def note_uses(self, last_used: Mapping[str, float]) -> None:
        """Note when tokens were last used. That column alone: no worker must take it for a change."""
        # In order, so that collectors wait for each other and not in a circle.
        used = [(key, at) for key, at in sorted(last_used.items()) if key.startswith("tok_")]
        if not used:
            return
        with self._control.begin() as connection:
            if connection.dialect.name == "postgresql":
                ids, times = zip(*used, strict=True)
                connection.exec_driver_sql(_LAST_USED_AT_ONCE, (TEXTS.text(ids), TIMES.text(times)))
            else:
                connection.exec_driver_sql(_LAST_USED, [(at, key, at) for key, at in used])

    def reconcile(self, now: float) -> dict[str, tuple[Team, MonthUse]]:
        """Bring every flag in line with what was used and what is allowed; return the teams that have a cap."""
        month, until = month_of(now), next_month(now)
        with self._control.connect() as connection:
            teams = _capped_teams(connection)
            tokens = _limited_tokens(connection)
            older = _predecessors(connection, [row.id for row in tokens])
        spent = self._ledger.team_months(month, {team.id: team.payer for team in teams}) if teams else {}
        used = self._ledger.source_months(month, {each for chain in older.values() for each in chain})
        stopped = [
            *(
                (tables.teams, team, spent[team.id].reaches(team.price_over(self._price), team.cap))
                for team in teams
            ),
            *(
                (
                    tables.tokens,
                    row,
                    row.limit is not None and sum(used.get(each, 0) for each in older[row.id]) >= row.limit,
                )
                for row in tokens
            ),
        ]
        changed = [
            (table, row.id, until if is_stopped else None)
            for table, row, is_stopped in stopped
            if row.capped_until != (until if is_stopped else None)
        ]
        if changed:
            with self._control.begin() as connection:
                for table, key, value in changed:
                    connection.execute(update(table).where(table.c.id == key).values(capped_until=value))
        return {team.id: (team, spent[team.id]) for team in teams if team.cap is not None}


def _capped_teams(connection: Connection) -> list[Team]:
    """Teams that have a cap, or are stopped by one that they had."""
    table = tables.teams
    query = select(*(table.c[name] for name in Team.__struct_fields__))
    stopped = _any(table.c.spending_cap, table.c.operator_cap, table.c.capped_until)
    return [Team(*row) for row in connection.execute(query.where(stopped))]


def _limited_tokens(connection: Connection) -> list[Any]:
    """Tokens that have a cap, or are stopped by one that they had."""
    table = tables.tokens
    limit = table.c.monthly_requests
    query = select(table.c.id, limit.label("limit"), table.c.capped_until)
    return list(connection.execute(query.where(_any(limit, table.c.capped_until))))


def _any(*columns: Column[Any]) -> ColumnElement[bool]:
    return or_(*(column.is_not(None) for column in columns))


def _predecessors(connection: Connection, ids: Iterable[str]) -> dict[str, list[str]]:
    """Tokens, each with itself and those that it has replaced: a new secret is no new allowance."""
    table = tables.tokens
    query = select(table.c.id, table.c.replaces).where(table.c.replaces != "")
    chains = {token_id: [token_id] for token_id in ids}
    replaced: dict[str, str] = {}
    looked_up: set[str] = set()
    while new := {chain[-1] for chain in chains.values()} - looked_up:
        looked_up |= new
        replaced.update({row.id: row.replaces for row in connection.execute(query.where(among(table.c.id, new)))})
        for chain in chains.values():
            while (older := replaced.get(chain[-1])) and older not in chain:
                chain.append(older)
    return chains
