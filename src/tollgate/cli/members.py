"""`tollgate teams members` and `tollgate teams invitations`: a team's members and invitations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tollgate.api.roles import Role
from tollgate.cli import show
from tollgate.cli.failures import Failure, NotFoundFailure
from tollgate.cli.lazy import Group
from tollgate.cli.options import confirm, for_team, page_options, yes_option
from tollgate.cli.settings_options import lines
from tollgate.lazy_module import LazyModule

if TYPE_CHECKING:
    import difflib

    from tollgate.api import members as api
    from tollgate.api import service as service_api
    from tollgate.cli import address
    from tollgate.cli.session import Session
else:
    # Not for help.
    api, service_api = LazyModule("tollgate.api.members"), LazyModule("tollgate.api.service")
    address, difflib = LazyModule("tollgate.cli.address"), LazyModule("difflib")

_role = click.Choice([role.value for role in Role])


@click.group(cls=Group, epilog="Example: tollgate teams members list --team acme")
def members() -> None:
    """Who is in a team, and in which role."""


@members.command("list", epilog="Example: tollgate teams members list --team acme")
@page_options
@for_team
def list_members(session: Session, limit: int, after: str | None) -> None:
    """List the members of a team."""
    answer = session.client.call(api.LIST, session.team, limit=limit, after=after)
    rows = [
        (member.id, member.email, member.name, member.role, member.created_at) for member in answer.value.items
    ]
    session.page(answer, ("ID", "EMAIL", "NAME", "ROLE", "SINCE"), rows, empty="The team has no members.")


@members.command(epilog="Example: tollgate teams members invite ann@example.com --role developer")
@click.argument("email")
@click.option("--role", type=_role, required=True, help="What the new member may do.")
@yes_option
@for_team
def invite(session: Session, email: str, role: str, yes: bool) -> None:
    """Invite a person to a team. The link is shown once."""
    service = session.client.call(service_api.SHOW).value
    if service.sign_up == "closed":
        show.note(
            f"Warning: sign-up is closed at {session.url}. Only a person who already has an account can accept "
            "the invitation; for others, ask the operator to run `tollgate admin invite`."
        )
        confirm("Invite anyway?", yes)
    answer = session.client.call(api.INVITE, session.team, body=api.NewInvitation(email, role))
    invitation = answer.value
    if invitation.link is None:
        raise Failure(
            f"{invitation.email} is invited, but the connection broke before the link arrived, and it is shown "
            f"only once. Run: tollgate teams invitations revoke {invitation.id} --team {session.team}, "
            "then invite again."
        )
    link = address.from_here(invitation.link, session.url)
    shown = lines(invitation, but=("created_at", "created_by", "link", "mailed"))
    session.thing({**answer.raw, "link": link}, [*shown, ("link", link)])
    show.note(
        f"The link was mailed to {invitation.email}."
        if invitation.mailed
        else f"Send the link to {invitation.email}: it was not mailed, and is shown only once."
    )


@members.command(epilog="Example: tollgate teams members remove ann@example.com --team acme")
@click.argument("member", metavar="EMAIL_OR_ID")
@yes_option
@for_team
def remove(session: Session, member: str, yes: bool) -> None:
    """Remove a member from a team; name yourself to leave."""
    found, name = _find(session, member)
    confirm(f"Remove {show.clean(name)} from team {session.team}?", yes)
    session.client.call(api.REMOVE, session.team, found)
    session.deleted(found, f"{name} is no longer in team {session.team}.")


@members.command("set-role", epilog="Example: tollgate teams members set-role ann@example.com admin")
@click.argument("member", metavar="EMAIL_OR_ID")
@click.argument("role", type=_role)
@for_team
def set_role(session: Session, member: str, role: str) -> None:
    """Change a member's role."""
    found, _ = _find(session, member)
    answer = session.client.call(api.UPDATE, session.team, found, body=api.RoleChange(role))
    session.thing(answer.raw, [*lines(answer.value, but=("account_id", "name", "created_at"))])


def _find(session: Session, member: str) -> tuple[str, str]:
    """Return the id of the member that is named by an id or an email, and the name for messages."""
    if "@" not in member:
        return member, member
    known: list[str] = []
    for each in session.client.every(api.LIST, session.team):
        if each.email.casefold() == member.casefold():
            return each.id, each.email
        known.append(each.email)
    near = difflib.get_close_matches(member.casefold(), known, n=1, cutoff=0.8)
    hint = f"Did you mean {near[0]}?" if near else "See: tollgate teams members list"
    raise NotFoundFailure(f"{member} is not in team {session.team}. {hint}")


@click.group(cls=Group, epilog="Example: tollgate teams invitations list --team acme")
def invitations() -> None:
    """Invitations that are not accepted yet."""


@invitations.command("list", epilog="Example: tollgate teams invitations list --team acme")
@page_options
@for_team
def list_invitations(session: Session, limit: int, after: str | None) -> None:
    """List the open invitations of a team."""
    answer = session.client.call(api.LIST_INVITATIONS, session.team, limit=limit, after=after)
    rows = [(each.id, each.email, each.role, each.created_by, each.expires_at) for each in answer.value.items]
    session.page(
        answer,
        ("ID", "EMAIL", "ROLE", "BY", "EXPIRES"),
        rows,
        empty="No invitation is open. Invite a person: tollgate teams members invite EMAIL --role ROLE",
    )


@invitations.command(epilog="Example: tollgate teams invitations revoke inv_5nUx0Y2b --team acme")
@click.argument("invitation_id", metavar="ID")
@yes_option
@for_team
def revoke(session: Session, invitation_id: str, yes: bool) -> None:
    """Revoke an invitation: its link stops working."""
    confirm(f"Revoke invitation {show.clean(invitation_id)} of team {session.team}?", yes)
    session.client.call(api.REVOKE, session.team, invitation_id)
    session.deleted(invitation_id, f"Invitation {invitation_id} is revoked.")
