"""Members of a team, and invitations to one."""

from __future__ import annotations

from tollgate.control.api import bodies, reading, shapes
from tollgate.control.api.access import CurrentActor, HttpRequest, Part, Plane
from tollgate.control.api.creation import Made, once
from tollgate.control.api.operations import INVITATIONS, MEMBERS, Operation, endpoint
from tollgate.control.api.render import Answer, done, listed, shown
from tollgate.control.problems import (
    AlreadyMember,
    InvitationForOther,
    LastOwner,
    LimitReached,
    NotFound,
    RoleNeeded,
)


@endpoint(
    "GET",
    "/teams/{team}/members",
    Operation(id="listMembers", tag=MEMBERS, summary="List the members", lists=True, gives=shapes.MemberPage),
)
async def list_members(request: HttpRequest, plane: Plane, actor: CurrentActor, team: Part) -> Answer:
    return listed(await plane.teams.members(actor, team, reading.page(request)), shapes.member)


@endpoint(
    "PATCH",
    "/teams/{team}/members/{member}",
    Operation(
        id="setRole",
        tag=MEMBERS,
        summary="Give a member another role",
        takes=bodies.RoleChange,
        gives=shapes.MemberView,
        raises=(RoleNeeded, LastOwner),
    ),
)
async def set_role(request: HttpRequest, plane: Plane, actor: CurrentActor, team: Part, member: Part) -> Answer:
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
async def remove_member(plane: Plane, actor: CurrentActor, team: Part, member: Part) -> Answer:
    await plane.teams.remove(actor, team, member)
    return done()


@endpoint(
    "POST",
    "/teams/{team}/invitations",
    Operation(
        id="createInvitation",
        tag=INVITATIONS,
        summary="Invite a person",
        description="An older invitation of the same person is replaced.",
        takes=bodies.NewInvitation,
        creates=True,
        status=201,
        gives=shapes.InvitationWithLink,
        raises=(RoleNeeded, AlreadyMember, LimitReached),
    ),
)
async def create_invitation(request: HttpRequest, plane: Plane, actor: CurrentActor, team: Part) -> Answer:
    sent = await reading.body(request, bodies.NewInvitation)

    async def make() -> Made:
        invited = await plane.invitations.create(actor, team, sent.email, sent.role)
        return Made(
            shapes.of(shapes.InvitationWithLink, invited.invitation, link=invited.link, mailed=invited.mailed)
        )

    return await once(request, plane, actor, make)


@endpoint(
    "GET",
    "/teams/{team}/invitations",
    Operation(
        id="listInvitations",
        tag=INVITATIONS,
        summary="List the open invitations",
        lists=True,
        gives=shapes.InvitationPage,
        raises=(RoleNeeded,),
    ),
)
async def list_invitations(request: HttpRequest, plane: Plane, actor: CurrentActor, team: Part) -> Answer:
    found = await plane.invitations.list(actor, team, reading.page(request))
    return listed(found, lambda row: shapes.of(shapes.InvitationView, row))


@endpoint(
    "DELETE",
    "/teams/{team}/invitations/{invitation}",
    Operation(
        id="revokeInvitation", tag=INVITATIONS, summary="Withdraw an invitation", status=204, raises=(RoleNeeded,)
    ),
)
async def revoke_invitation(plane: Plane, actor: CurrentActor, team: Part, invitation: Part) -> Answer:
    await plane.invitations.revoke(actor, team, invitation)
    return done()


@endpoint(
    "POST",
    "/invitations/accept",
    Operation(
        id="acceptInvitation",
        tag=INVITATIONS,
        summary="Accept an invitation",
        description="It must be for one's own email. One to the service alone has no team to show.",
        takes=bodies.InvitationLink,
        gives=shapes.TeamView,
        also_empty=True,
        tagged=True,
        raises=(InvitationForOther, NotFound, AlreadyMember),
    ),
)
async def accept_invitation(request: HttpRequest, plane: Plane, actor: CurrentActor) -> Answer:
    sent = await reading.body(request, bodies.InvitationLink)
    membership = await plane.invitations.accept(actor, sent.link)
    return done() if membership is None else shown(shapes.team(membership), membership.team)


HANDLERS = [
    list_members,
    set_role,
    remove_member,
    create_invitation,
    list_invitations,
    revoke_invitation,
    accept_invitation,
]
