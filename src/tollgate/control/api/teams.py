"""Teams, and a team's audit log."""

from __future__ import annotations

from tollgate.control.api import bodies, reading, shapes
from tollgate.control.api.access import Asked, Part, Plane, Who
from tollgate.control.api.creation import Made, once
from tollgate.control.api.operations import AUDIT, TEAMS, Operation, endpoint
from tollgate.control.api.render import Answer, listed, listed_items, shown
from tollgate.control.problems import LimitReached, NameTaken, RoleNeeded


@endpoint(
    "POST",
    "/teams",
    Operation(
        id="createTeam",
        tag=TEAMS,
        summary="Make a team, as its owner",
        takes=bodies.NewTeam,
        creates=True,
        status=201,
        gives=shapes.TeamView,
        tagged=True,
        raises=(NameTaken, LimitReached),
    ),
)
async def create(request: Asked, plane: Plane, actor: Who) -> Answer:
    sent = await reading.body(request, bodies.NewTeam)

    async def make() -> Made:
        membership = await plane.teams.create(actor, sent.name)
        return Made(shapes.team(membership), membership.team)

    return await once(request, plane, actor, make)


@endpoint(
    "GET",
    "/teams",
    Operation(id="listTeams", tag=TEAMS, summary="List one's teams", lists=True, gives=shapes.TeamPage),
)
async def list_teams(request: Asked, plane: Plane, actor: Who) -> Answer:
    page = await plane.teams.list(actor, reading.page(request))
    roles = await plane.teams.roles(actor)
    # One that was left between the two looks is not one's own any more.
    mine = (shapes.of(shapes.TeamView, team, role=roles[team.id]) for team in page.items if team.id in roles)
    return listed_items(mine, page.next)


@endpoint(
    "GET",
    "/teams/{team}",
    Operation(id="getTeam", tag=TEAMS, summary="Show a team", gives=shapes.TeamView, tagged=True),
)
async def show(plane: Plane, actor: Who, team: Part) -> Answer:
    membership = await plane.teams.show(actor, team)
    return shown(shapes.team(membership), membership.team)


@endpoint(
    "PATCH",
    "/teams/{team}",
    Operation(
        id="updateTeam",
        tag=TEAMS,
        summary="Give a team another name",
        takes=bodies.TeamChange,
        conditional=True,
        gives=shapes.TeamView,
        tagged=True,
        raises=(NameTaken, RoleNeeded),
    ),
)
async def update(request: Asked, plane: Plane, actor: Who, team: Part) -> Answer:
    change = await reading.body(request, bodies.TeamChange)
    membership = await plane.teams.rename(actor, team, change.name, reading.if_match(request))
    return shown(shapes.team(membership), membership.team)


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
    return listed(await plane.audit.of_team(actor, team, reading.page(request)), shapes.audit_entry)


HANDLERS = [create, list_teams, show, update, list_audit]
