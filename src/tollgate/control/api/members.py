"""Members of a team."""

from __future__ import annotations

from tollgate.control.api import bodies, reading, shapes
from tollgate.control.api.access import Asked, Part, Plane, Who
from tollgate.control.api.operations import MEMBERS, Operation, endpoint
from tollgate.control.api.render import Answer, done, listed, shown
from tollgate.control.problems import LastOwner, RoleNeeded


@endpoint(
    "GET",
    "/teams/{team}/members",
    Operation(id="listMembers", tag=MEMBERS, summary="List the members", lists=True, gives=shapes.MemberPage),
)
async def list_members(request: Asked, plane: Plane, actor: Who, team: Part) -> Answer:
    """List the members."""
    return listed(await plane.teams.members(actor, team, reading.page(request)), shapes.member)


@endpoint(
    "PATCH",
    "/teams/{team}/members/{member}",
    Operation(
        id="setRole",
        tag=MEMBERS,
        summary="Give a member another role",
        takes=bodies.RoleChange,
        gives=shapes.Member,
        raises=(RoleNeeded, LastOwner),
    ),
)
async def set_role(request: Asked, plane: Plane, actor: Who, team: Part, member: Part) -> Answer:
    """Give a member another role."""
    change = await reading.body(request, bodies.RoleChange)
    return shown(shapes.member(await plane.teams.set_role(actor, team, member, change.role)))


@endpoint(
    "DELETE",
    "/teams/{team}/members/{member}",
    Operation(
        id="removeMember",
        tag=MEMBERS,
        summary="Remove a member, or leave the team oneself",
        status=204,
        raises=(RoleNeeded, LastOwner),
    ),
)
async def remove(plane: Plane, actor: Who, team: Part, member: Part) -> Answer:
    """Remove a member."""
    await plane.teams.remove(actor, team, member)
    return done()


HANDLERS = [list_members, set_role, remove]
