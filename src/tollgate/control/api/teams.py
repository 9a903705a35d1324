"""Teams."""

from __future__ import annotations

from litestar import Response
from litestar.params import JSONBody

from tollgate.api import teams
from tollgate.api.teams import NewTeam, Team, TeamChange, TeamPage
from tollgate.control.api import render
from tollgate.control.api.access import CurrentActor, Part, Plane
from tollgate.control.api.creation import CreatesOnce, Made
from tollgate.control.api.operations import TEAMS, serves
from tollgate.control.api.reading import IfMatch, WantedPage
from tollgate.control.api.render import Versioned, done, page_of, versioned
from tollgate.control.problems import AddressUnproved, LimitReached, NameTaken, PersonalTokenRefused, RoleNeeded
from tollgate.control.service_context import Membership


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
    """List your teams."""
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


def shown_team(membership: Membership) -> Team:
    """A team as one of its members sees it."""
    return render.of(Team, membership.team, role=membership.member.role)
