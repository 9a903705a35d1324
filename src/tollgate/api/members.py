"""Members of a team, and invitations to it: commands, answers and routes."""

from __future__ import annotations

from types import NoneType
from typing import Annotated

from msgspec import Meta, Struct

from tollgate.api.base import Confidential, CreatedAt, CreatedBy, Id, Moment, Page, Route, Secret, text
from tollgate.api.teams import RoleName, Team

MAX_LINK = 1_000

Email = Annotated[str, text("The person's email address.", "grace@example.com", max_length=254)]
Link = Annotated[
    str,
    text(
        "The whole link, or its last part (`tgi_…`).",
        "tgi_0123456789abcdefghijABCDEFGHIJ0123456789",
        min_length=0,
        max_length=MAX_LINK,
    ),
]


class RoleChange(Struct, frozen=True, forbid_unknown_fields=True):
    """A member's new role."""

    role: RoleName


class Member(Struct, frozen=True):
    """An account in a team."""

    id: Id
    account_id: Annotated[str, Meta(description="The id of the account.")]
    email: Email
    name: Annotated[str, Meta(description="The person's name; may be empty.")]
    role: RoleName
    created_at: Annotated[Moment, Meta(description="When it joined the team.")]


class MemberPage(Page[Member], frozen=True):
    """A page of the list of members."""


class NewInvitation(Struct, frozen=True, forbid_unknown_fields=True):
    """Whom to invite."""

    email: Email
    role: RoleName


class InvitationLink(Confidential, frozen=True, forbid_unknown_fields=True):
    """An invitation to be accepted."""

    link: Link


class Invitation(Struct, frozen=True):
    """An invitation that was not accepted yet."""

    id: Id
    email: Email
    role: RoleName
    created_at: CreatedAt
    created_by: CreatedBy
    expires_at: Annotated[Moment, Meta(description="When the link stops working.")]


class InvitationWithLink(Invitation, Confidential, frozen=True):
    """A new invitation."""

    link: Secret = None
    mailed: Annotated[bool, Meta(description="Whether the link was also sent by mail.")] = False


class InvitationPage(Page[Invitation], frozen=True):
    """A page of the list of invitations."""


LIST = Route("GET", "/teams/{team}/members", MemberPage)
UPDATE = Route("PATCH", "/teams/{team}/members/{member}", Member)
REMOVE = Route("DELETE", "/teams/{team}/members/{member}", NoneType)
INVITE = Route("POST", "/teams/{team}/invitations", InvitationWithLink, creates=True)
LIST_INVITATIONS = Route("GET", "/teams/{team}/invitations", InvitationPage)
REVOKE = Route("DELETE", "/teams/{team}/invitations/{invitation}", NoneType)
ACCEPT: Route[Team | None] = Route("POST", "/invitations/accept", Team, may_be_empty=True)
