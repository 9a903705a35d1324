"""Reading and exporting the audit log."""

from __future__ import annotations

import re

from tollgate.api.audit import AuditQuery
from tollgate.control.commands import checked
from tollgate.control.service_context import Actor, PageRequest, ResultPage, ServiceContext, seconds_of
from tollgate.core.audit_chain import chain_of
from tollgate.core.people import AuditEntry
from tollgate.core.roles import Action

ALL = AuditQuery()
_ID = re.compile(r"[a-z]{3,4}_[0-9A-Za-z]{16}")


class Audit:
    """The audit log."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    async def of_team(
        self, actor: Actor, team: str, page: PageRequest, wanted: AuditQuery = ALL
    ) -> ResultPage[AuditEntry]:
        async with self._context.reading(actor, team, Action.SEE_AUDIT) as (records, membership):
            wanted = checked(wanted)
            thing = "target" if wanted.object and _ID.fullmatch(wanted.object) else "name"
            filters = {"action": wanted.action, "actor": wanted.actor, thing: wanted.object}
            since = seconds_of(wanted.since)
            return await page.read(
                records.audit,
                f"audit:{membership.team.id}",
                newest_first=True,
                made_since=None if since is None else self._context.now() - since,
                made_before=None if wanted.until is None else wanted.until.timestamp(),
                team_id=membership.team.id,
                **{name: value for name, value in filters.items() if value},
            )

    async def chain(self, actor: Actor, team: str, above: int, limit: int) -> list[AuditEntry]:
        """A team's entries above a number, in order: for an export whose hashes can be checked."""
        async with self._context.reading(actor, team, Action.SEE_AUDIT) as (records, membership):
            return await records.audit.numbered(above, limit, chain=chain_of(membership.team.id))

    async def of_self(self, actor: Actor, page: PageRequest) -> ResultPage[AuditEntry]:
        """The entries of the actor's own changes, newest first."""
        async with self._context.store.reading() as records:
            return await page.read(records.audit, f"audit:{actor.id}", newest_first=True, actor_id=actor.id)
