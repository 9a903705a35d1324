"""Teams, and a team's audit log."""

from __future__ import annotations

from litestar import Response

from tollgate.control.api import bodies, reading, shapes
from tollgate.control.api.access import CurrentActor, HttpRequest, Part, Plane
from tollgate.control.api.creation import Made, once
from tollgate.control.api.errors import NO_STORE
from tollgate.control.api.operations import AUDIT, TEAMS, Operation, Query, endpoint
from tollgate.control.api.render import Answer, done, listed, listed_items, shown
from tollgate.control.problems import (
    AddressUnproved,
    InvalidInput,
    LimitReached,
    NameTaken,
    PersonalTokenRefused,
    RoleNeeded,
)
from tollgate.control.service_context import MAX_ROWS
from tollgate.core.audit_chain import line_of

LINES = "application/x-ndjson"
_MAX_NUMBER = 2**31 - 1


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
        raises=(NameTaken, LimitReached, AddressUnproved),
    ),
)
async def create(request: HttpRequest, plane: Plane, actor: CurrentActor) -> Answer:
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
async def list_teams(request: HttpRequest, plane: Plane, actor: CurrentActor) -> Answer:
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
async def show(plane: Plane, actor: CurrentActor, team: Part) -> Answer:
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
async def update(request: HttpRequest, plane: Plane, actor: CurrentActor, team: Part) -> Answer:
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
        query=(
            Query("action", "Only this action, such as `token.create`.", {"type": "string", "maxLength": 40}),
            Query("actor", "Only what this person did, by email.", {"type": "string", "maxLength": 254}),
            Query(
                "object",
                "Only what was done to this: its id, or the name that it had.",
                {"type": "string", "maxLength": 254},
            ),
            Query("since", "Only changes of this last time.", reading.DURATION),
            Query("until", "Only changes before this time.", {"type": "string", "format": "date-time"}),
        ),
        gives=shapes.AuditPage,
        raises=(InvalidInput, RoleNeeded),
    ),
)
async def list_audit(request: HttpRequest, plane: Plane, actor: CurrentActor, team: Part) -> Answer:
    page = await plane.audit.of_team(
        actor,
        team,
        reading.page(request),
        action=reading.query(request, "action"),
        who=reading.query(request, "actor"),
        target=reading.query(request, "object"),
        since=reading.duration(request, "since"),
        until=reading.moment(request, "until"),
    )
    return listed(page, shapes.audit_entry)


@endpoint(
    "GET",
    "/teams/{team}/audit/export",
    Operation(
        id="exportAudit",
        tag=AUDIT,
        summary="Export a team's audit log, oldest first, with the hashes that chain its entries",
        description=(
            "One JSON object a line. `number` counts the entries of the team; `previous` is the `hash` of the one "
            "before; `hash` is the SHA-256 of the line without `hash`, members sorted by name, no spaces, in "
            "UTF-8. Give the last `number` as `after` for what follows; an empty answer: there is nothing more."
        ),
        query=(
            Query(
                "after",
                "Only entries with a higher `number`.",
                {"type": "integer", "minimum": 0, "maximum": _MAX_NUMBER, "default": 0},
            ),
            Query("limit", "How many at most.", {"type": "integer", "minimum": 1, "maximum": MAX_ROWS}),
        ),
        gives=str,
        media_type=LINES,
        raises=(InvalidInput, RoleNeeded),
        cost=5,
    ),
)
async def export_audit(request: HttpRequest, plane: Plane, actor: CurrentActor, team: Part) -> Answer:
    after = reading.number(request, "after", 0, _MAX_NUMBER, usual=0)
    limit = reading.number(request, "limit", 1, MAX_ROWS, usual=MAX_ROWS)
    entries = await plane.audit.chain(actor, team, after, limit)
    return Response(b"".join(map(line_of, entries)), media_type=LINES, headers=NO_STORE)


@endpoint(
    "DELETE",
    "/teams/{team}",
    Operation(
        id="deleteTeam",
        tag=TEAMS,
        summary="Delete a team with its tokens, domains and members",
        description="Its tokens and domains stop working within a second. What it used and owes is kept.",
        status=204,
        raises=(RoleNeeded, PersonalTokenRefused),
    ),
)
async def delete(plane: Plane, actor: CurrentActor, team: Part) -> Answer:
    await plane.teams.delete(actor, team)
    return done()


HANDLERS = [create, list_teams, show, update, delete, list_audit, export_audit]
