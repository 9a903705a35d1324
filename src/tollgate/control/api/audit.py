"""The audit log of a team, and of the caller's account."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Response

from tollgate.api import audit
from tollgate.api.audit import AuditPage, AuditQuery, ExportQuery
from tollgate.api.base import ND_JSON
from tollgate.control.api.access import CurrentActor, Part, Plane
from tollgate.control.api.errors import NO_STORE
from tollgate.control.api.operations import AUDIT, SELF, serves
from tollgate.control.api.reading import Wanted, WantedPage
from tollgate.control.api.render import moment, of, page_of
from tollgate.control.problems import RoleNeeded
from tollgate.core.audit_chain import line_of
from tollgate.core.people import AuditEntry


@serves(audit.LIST, RoleNeeded, tag=AUDIT)
async def list_audit(
    plane: Plane, actor: CurrentActor, team: Part, page: WantedPage, wanted: Wanted[AuditQuery]
) -> Response[AuditPage]:
    """List the audit log of a team, newest first."""
    return page_of(AuditPage, await plane.audit.of_team(actor, team, page, wanted), _shown)


@serves(audit.EXPORT, RoleNeeded, tag=AUDIT, cost=5)
async def export_audit(
    plane: Plane, actor: CurrentActor, team: Part, wanted: Wanted[ExportQuery]
) -> Response[Any]:
    """Export a team's audit log, oldest first, with the hashes that chain its entries.

    One JSON object a line. `number` counts the entries of the team; `previous` is the `hash` of the one before;
    `hash` is the SHA-256 of the line without `hash`, members sorted by name, no spaces, in UTF-8. Give the last
    `number` as `after` for what follows; an empty answer is the end.
    """
    entries = await plane.audit.chain(actor, team, wanted.after, wanted.limit)
    return Response(b"".join(map(line_of, entries)), media_type=ND_JSON, headers=NO_STORE)


@serves(audit.OWN, tag=SELF)
async def list_own_audit(plane: Plane, actor: CurrentActor, page: WantedPage) -> Response[AuditPage]:
    """List your own changes, newest first."""
    return page_of(AuditPage, await plane.audit.of_self(actor, page), _shown)


def _shown(entry: AuditEntry) -> audit.AuditEntry:
    details = msgspec.json.decode(entry.details, type=dict[str, Any])
    return of(audit.AuditEntry, entry, at=moment(entry.created_at), details=details)
