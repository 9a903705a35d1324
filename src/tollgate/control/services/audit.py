"""Reading what was noted."""

from __future__ import annotations

from tollgate.control.unit_of_work import Actor, Ask, Desk, Page, page_of
from tollgate.core.people import AuditEntry
from tollgate.core.roles import Action


class Audit:
    """The audit log."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def of_team(self, actor: Actor, team: str, ask: Ask) -> Page[AuditEntry]:
        """What was done to a team and its things, newest first."""
        async with self._desk.office.reading() as records:
            seat = await self._desk.seat(records, actor, team, Action.SEE_AUDIT)
            scope = f"audit:{seat.team.id}"
            rows = await records.audit.page(
                ask.limit + 1, ask.place(scope), newest_first=True, team_id=seat.team.id
            )
        return page_of(scope, rows, ask.limit)

    async def of_self(self, actor: Actor, ask: Ask) -> Page[AuditEntry]:
        """What one did oneself, newest first."""
        scope = f"audit:{actor.id}"
        async with self._desk.office.reading() as records:
            rows = await records.audit.page(ask.limit + 1, ask.place(scope), newest_first=True, actor_id=actor.id)
        return page_of(scope, rows, ask.limit)
