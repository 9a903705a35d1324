"""A team's audit log."""

from __future__ import annotations

from tollgate.control.api import reading, shapes
from tollgate.control.api.access import Asked, Part, Plane, Who
from tollgate.control.api.operations import AUDIT, Operation, endpoint
from tollgate.control.api.render import Answer, listed
from tollgate.control.problems import RoleNeeded


@endpoint(
    "GET",
    "/teams/{team}/audit",
    Operation(
        id="listAudit",
        tag=AUDIT,
        summary="List what was done to a team and its things, newest first",
        lists=True,
        gives=shapes.AuditPage,
        raises=(RoleNeeded,),
    ),
)
async def list_audit(request: Asked, plane: Plane, actor: Who, team: Part) -> Answer:
    """List what was done."""
    return listed(await plane.audit.of_team(actor, team, reading.page(request)), shapes.audit_entry)


HANDLERS = [list_audit]
