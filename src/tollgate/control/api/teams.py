"""Teams, and a team's audit log."""

from __future__ import annotations

from litestar import Response
from litestar.params import JSONBody

from tollgate.api import teams
from tollgate.api.teams import NewTeam, Team, TeamChange, TeamPage
from tollgate.control.api import reading, shapes
from tollgate.control.api.access import CurrentActor, HttpRequest, Part, Plane
from tollgate.control.api.creation import CreatesOnce, Made
from tollgate.control.api.errors import NO_STORE
from tollgate.control.api.operations import AUDIT, TEAMS, Operation, Query, endpoint, serves
from tollgate.control.api.reading import IfMatch, WantedPage
from tollgate.control.api.render import Answer, Versioned, done, listed, page_of, versioned
from tollgate.control.problems import (
    AddressUnproved,
    InvalidInput,
    LimitReached,
    NameTaken,
    PersonalTokenRefused,
    RoleNeeded,
)
from tollgate.control.service_context import MAX_ROWS, Membership
from tollgate.core.audit_chain import line_of

LINES = "application/x-ndjson"
_MAX_NUMBER = 2**31 - 1


@serves(teams.CREATE, NameTaken, LimitReached, AddressUnproved, tag=TEAMS)
async def create_team(
    plane: Plane, actor: CurrentActor, data: JSONBody[NewTeam], once: CreatesOnce
) -> Versioned[Team]:
    """Create a team, as its owner."""
    return await once(
        lambda: plane.teams.create(actor, data), lambda membership: Made(shown_team(membership), membership.team)
    )


@serves(teams.LIST, tag=TEAMS)
async def list_teams(plane: Plane, actor: CurrentActor, page: WantedPage) -> Response[TeamPage]:
    """List one's teams."""
    return page_of(TeamPage, await plane.teams.list(actor, page), shown_team)


@serves(teams.SHOW, tag=TEAMS)
async def get_team(plane: Plane, actor: CurrentActor, team: Part) -> Versioned[Team]:
    """Show a team."""
    membership = await plane.teams.show(actor, team)
    return versioned(shown_team(membership), membership.team)


@serves(teams.UPDATE, NameTaken, RoleNeeded, tag=TEAMS)
async def update_team(
    plane: Plane, actor: CurrentActor, team: Part, data: JSONBody[TeamChange], if_match: IfMatch
) -> Versioned[Team]:
    """Rename a team."""
    membership = await plane.teams.update(actor, team, data, if_match)
    return versioned(shown_team(membership), membership.team)


@serves(teams.DELETE, RoleNeeded, PersonalTokenRefused, tag=TEAMS)
async def delete_team(plane: Plane, actor: CurrentActor, team: Part) -> Response[None]:
    """Delete a team with its tokens, domains and members.

    Its tokens and domains stop working within a second. Its usage and invoices are kept.
    """
    await plane.teams.delete(actor, team)
    return done()


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


def shown_team(membership: Membership) -> Team:
    """A team as one of its members sees it."""
    return shapes.of(Team, membership.team, role=membership.member.role)


HANDLERS = [create_team, list_teams, get_team, update_team, delete_team, list_audit, export_audit]
