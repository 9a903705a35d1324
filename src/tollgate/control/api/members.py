"""Members of a team, and invitations to it."""

from __future__ import annotations

from typing import cast

from litestar import Response
from litestar.params import JSONBody

from tollgate.api import members
from tollgate.api.members import (
    Invitation,
    InvitationLink,
    InvitationPage,
    InvitationWithLink,
    Member,
    MemberPage,
    NewInvitation,
    RoleChange,
)
from tollgate.api.teams import Team
from tollgate.control.api.access import CurrentActor, Part, Plane
from tollgate.control.api.creation import CreatesOnce, Made
from tollgate.control.api.operations import INVITATIONS, MEMBERS, serves
from tollgate.control.api.reading import WantedPage
from tollgate.control.api.render import Versioned, done, of, page_of, unstored, versioned
from tollgate.control.api.teams import shown_team
from tollgate.control.problems import (
    AlreadyMember,
    InvitationForOther,
    LastOwner,
    LimitReached,
    NotFound,
    RoleNeeded,
)
from tollgate.control.services.invitations import Invited
from tollgate.control.services.teams import Person
from tollgate.core.roles import Action


@serves(members.LIST, tag=MEMBERS)
async def list_members(plane: Plane, actor: CurrentActor, team: Part, page: WantedPage) -> Response[MemberPage]:
    """List the members."""
    return page_of(MemberPage, await plane.teams.members(actor, team, page), _shown)


@serves(members.UPDATE, RoleNeeded, LastOwner, tag=MEMBERS)
async def set_role(
    plane: Plane, actor: CurrentActor, team: Part, member: Part, data: JSONBody[RoleChange]
) -> Response[Member]:
    """Change a member's role."""
    return unstored(_shown(await plane.teams.set_role(actor, team, member, data)))


@serves(members.REMOVE, RoleNeeded, LastOwner, tag=MEMBERS)
async def remove_member(plane: Plane, actor: CurrentActor, team: Part, member: Part) -> Response[None]:
    """Remove a member, or leave the team yourself."""
    await plane.teams.remove(actor, team, member)
    return done()


@serves(members.INVITE, RoleNeeded, AlreadyMember, LimitReached, tag=INVITATIONS)
async def create_invitation(
    plane: Plane, actor: CurrentActor, team: Part, data: JSONBody[NewInvitation], once: CreatesOnce
) -> Response[InvitationWithLink]:
    """Invite a person.

    An older invitation for the same address is replaced.
    """
    return await once(lambda: plane.invitations.create(actor, team, data), _made, (team, Action.CHANGE_MEMBERS))


@serves(members.LIST_INVITATIONS, RoleNeeded, tag=INVITATIONS)
async def list_invitations(
    plane: Plane, actor: CurrentActor, team: Part, page: WantedPage
) -> Response[InvitationPage]:
    """List the open invitations."""
    found = await plane.invitations.list(actor, team, page)
    return page_of(InvitationPage, found, lambda each: of(Invitation, each))


@serves(members.REVOKE, RoleNeeded, tag=INVITATIONS)
async def revoke_invitation(plane: Plane, actor: CurrentActor, team: Part, invitation: Part) -> Response[None]:
    """Revoke an invitation."""
    await plane.invitations.revoke(actor, team, invitation)
    return done()


@serves(members.ACCEPT, InvitationForOther, NotFound, AlreadyMember, tag=INVITATIONS)
async def accept_invitation(
    plane: Plane, actor: CurrentActor, data: JSONBody[InvitationLink]
) -> Versioned[Team | None]:
    """Accept an invitation.

    It must be for your email. An invitation to the service alone has no team to show.
    """
    membership = await plane.invitations.accept(actor, data)
    if membership is None:
        return cast("Versioned[Team | None]", done())
    return versioned(shown_team(membership), membership.team)


def _shown(person: Person) -> Member:
    return of(Member, person.member, email=person.account.email, name=person.account.name)


def _made(invited: Invited) -> Made:
    return Made(of(InvitationWithLink, invited.invitation, link=invited.link, mailed=invited.mailed))
