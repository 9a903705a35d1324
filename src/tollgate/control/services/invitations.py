"""Invitations: a link with which one person joins a team or signs up for the service.

Accepting one takes the link and an account with the invited address.
"""

from __future__ import annotations

from msgspec import Struct

from tollgate.api.members import InvitationLink, NewInvitation
from tollgate.control.commands import checked
from tollgate.control.mail import Mailer
from tollgate.control.problems import (
    AlreadyMember,
    InvitationForOther,
    LimitReached,
    NotFound,
    RoleNeeded,
    SignUpClosed,
)
from tollgate.control.service_context import (
    Actor,
    ClientInfo,
    Membership,
    PageRequest,
    ResultPage,
    ServiceContext,
    constant_time,
    email_of,
)
from tollgate.control.services import throttle
from tollgate.control.services.teams import Teams
from tollgate.core import secrets
from tollgate.core.models import Team
from tollgate.core.people import Invitation
from tollgate.core.roles import Action, Role, may_change_member
from tollgate.store.base import Repositories

PATH = "/console/invitations/"
DAY = 86_400.0
# Sign-up links of one address that are valid at the same time.
MAX_OWN = 8


class Invited(Struct, frozen=True):
    """A new invitation, and its link, which is shown once."""

    invitation: Invitation
    link: str
    mailed: bool

    def __repr__(self) -> str:
        return f"Invited({self.invitation.id})"


class Invitations:
    """Invitations to teams and to the service, and sign-up links."""

    def __init__(self, context: ServiceContext, teams: Teams, mailer: Mailer) -> None:
        self._context = context
        self._teams = teams
        self._mailer = mailer

    async def create(self, actor: Actor, team: str, wanted: NewInvitation) -> Invited:
        """Invite a person to a team; an older invitation for the same address is replaced."""
        address, role = email_of(checked(wanted).email), Role(wanted.role)
        async with self._context.changing(actor, team, Action.CHANGE_MEMBERS) as (records, membership):
            _check_rank(membership, role)
            account = await records.accounts.find(email=address)
            if account and await records.members.find(team_id=membership.team.id, account_id=account.id):
                raise AlreadyMember(f"{address} belongs to {membership.team.name} already.")
            older = await records.invitations.find(team_id=membership.team.id, email=address)
            if older is not None:
                _check_rank(membership, Role(older.role))
                await records.invitations.remove(id=older.id)
            await self._check_room(records, membership.team)
            invitation, link = await self._add(records, actor, address, membership.team, role, by_operator=False)
            may_mail = await self._may_mail(records, actor, address)
        mailed = may_mail and self._mail(invitation, link, f"join the team {membership.team.name}")
        return Invited(invitation, link, mailed)

    async def _may_mail(self, records: Repositories, actor: Actor, address: str) -> bool:
        """Whether one more mail may be sent to this address, by this account; the inviter has the link anyway."""
        to = (self._context.key("invitation-to", address), throttle.LINK)
        by = (self._context.key("invitation-by", actor.id), throttle.MAILS)
        return await throttle.may(self._context, records, to) and await throttle.may(self._context, records, by)

    async def create_by_operator(self, actor: Actor, wanted: NewInvitation, team: str | None = None) -> Invited:
        """Invite a person to the service, and optionally to a team, whatever the `sign_up` setting."""
        address, role = email_of(checked(wanted).email), Role(wanted.role)
        async with self._context.store.changing() as records:
            found = await records.teams.find(name=team) if team else None
            if team and found is None:
                raise NotFound(f"There is no team {team[:60]}: check its name, or have it created first.")
            await records.invitations.remove(team_id=found.id if found else None, email=address)
            invitation, link = await self._add(records, actor, address, found, role, by_operator=True)
        return Invited(invitation, link, self._mail(invitation, link, "use Tollgate"))

    async def request_link(self, client: ClientInfo, email: str) -> None:
        """Mail a link that creates an account, where sign-up is open.

        The account is created when the link is opened, with a password chosen there, so that no account has an
        address its owner cannot read. Only the mail reveals whether the address has an account already.
        """
        if self._context.settings.accounts.sign_up != "open" or not self._mailer.enabled:
            raise SignUpClosed("Accounts are created by the operator here: ask for an invitation.")
        address = email_of(email)
        guards = throttle.guards_from(self._context, "sign-up", client, throttle.ADDRESS)
        async with self._context.store.changing() as records:
            await throttle.begin(self._context, records, guards, "new accounts from this address")
        async with constant_time():
            await self._send_link(address)

    async def _send_link(self, address: str) -> None:
        async with self._context.store.changing() as records:
            guard = (self._context.key("sign-up-mail", address), throttle.LINK)
            if not await throttle.may(self._context, records, guard):
                return
            account = await records.accounts.find(email=address)
            link = None if account else await self._add_own(records, address)
        if link:
            days = self._context.settings.accounts.invitation_days
            text = f"Open this link within {days} days to create your account:\n\n{link}\n\n"
        else:
            console = f"{self._context.base_url}/console"
            text = (
                f"You already have an account. Sign in: {console}/sign-in\n"
                f"Forgot your password? {console}/forgot\n\n"
            )
        text += "If you did not request this, ignore this mail.\n"
        self._mailer.post(address, "Your Tollgate account", text)

    async def _add_own(self, records: Repositories, email: str) -> str:
        """Add a sign-up link; the newest ones that were mailed before stay valid."""
        older = await records.invitations.page(MAX_OWN, newest_first=True, email=email, created_by=email)
        await records.invitations.remove(id=tuple(each.id for each in older[MAX_OWN - 1 :]))
        _, link = await self._store(records, email, email, None, Role.VIEWER, by_operator=False)
        return link

    async def list(self, actor: Actor, team: str, page: PageRequest) -> ResultPage[Invitation]:
        async with self._context.reading(actor, team, Action.CHANGE_MEMBERS) as (records, membership):
            team_id = membership.team.id
            return await page.read(records.invitations, f"invitations:{team_id}", team_id=team_id)

    async def revoke(self, actor: Actor, team: str, invitation_id: str) -> None:
        async with self._context.changing(actor, team, Action.CHANGE_MEMBERS) as (records, membership):
            invitation = await records.invitations.find(id=invitation_id, team_id=membership.team.id)
            if invitation is None:
                raise NotFound(
                    f"The team {membership.team.name} has no invitation {invitation_id[:60]}: "
                    "see `tollgate teams invitations list`."
                )
            _check_rank(membership, Role(invitation.role))
            await records.invitations.remove(id=invitation.id)
            await self._context.note(
                records,
                actor,
                "invitation.revoke",
                team_id=membership.team.id,
                target=invitation.id,
                name=invitation.email,
            )

    async def look(self, link: str) -> tuple[Invitation, Team | None]:
        async with self._context.store.reading() as records:
            invitation = await self._open(records, link)
            return invitation, await records.teams.get(invitation.team_id) if invitation.team_id else None

    async def accept(self, actor: Actor, given: InvitationLink) -> Membership | None:
        """Join the team of an invitation; None if it was to the service alone."""
        async with self._context.store.changing() as records:
            invitation = await self._open(records, checked(given).link)
            if actor.account is None or actor.account.email != invitation.email:
                raise InvitationForOther(
                    f"This invitation is for {invitation.email}, and you are logged in as {actor.label}: "
                    "log in with that address."
                )
            await records.invitations.remove(id=invitation.id)
            team = await records.teams.get(invitation.team_id) if invitation.team_id else None
            if team is None:
                await self._context.note(
                    records, actor, "invitation.accept", target=invitation.id, name=invitation.email
                )
                return None
            if await records.members.find(team_id=team.id, account_id=actor.id):
                raise AlreadyMember(f"You belong to {team.name} already.")
            member = await self._teams.add_member(records, actor, team, actor.id, Role(invitation.role))
        return Membership(team, member)

    async def _open(self, records: Repositories, link: str) -> Invitation:
        secret = link.strip().rpartition("/")[2]
        invitation = None
        if secrets.well_formed(secret, secrets.INVITATION):
            invitation = await records.invitations.find(digest=self._context.digests(secret))
        if invitation is None or self._context.now() >= invitation.expires_at:
            raise NotFound("This invitation was used, withdrawn or has expired: ask for another.")
        return invitation

    async def _check_room(self, records: Repositories, team: Team) -> None:
        maximum = self._context.settings.accounts.members_per_team
        held = await records.members.count(team_id=team.id) + await records.invitations.count(team_id=team.id)
        if held >= maximum:
            raise LimitReached(
                f"The team {team.name} has {held} members and invitations, the maximum.", limit=maximum
            )

    async def _add(
        self, records: Repositories, actor: Actor, email: str, team: Team | None, role: Role, *, by_operator: bool
    ) -> tuple[Invitation, str]:
        made, link = await self._store(records, email, actor.label, team, role, by_operator=by_operator)
        await self._context.note(
            records, actor, "invitation.create", team_id=made.team_id, target=made.id, name=email, role=role.value
        )
        return made, link

    async def _store(
        self,
        records: Repositories,
        email: str,
        created_by: str,
        team: Team | None,
        role: Role,
        *,
        by_operator: bool,
    ) -> tuple[Invitation, str]:
        secret = secrets.new_token(secrets.INVITATION)
        now = self._context.now()
        invitation = Invitation(
            id=secrets.new_id("inv"),
            email=email,
            digest=self._context.digest(secret),
            created_at=now,
            expires_at=now + DAY * self._context.settings.accounts.invitation_days,
            created_by=created_by,
            team_id=team.id if team else None,
            role=role.value,
            by_operator=by_operator,
        )
        await records.invitations.add(invitation)
        return invitation, f"{self._context.base_url}{PATH}{secret}"

    def _mail(self, invitation: Invitation, link: str, what: str) -> bool:
        return self._mailer.post(
            invitation.email,
            f"You are invited to {what}",
            f"{invitation.created_by} invites you to {what}.\n\n{link}\n\n"
            f"The link works for {self._context.settings.accounts.invitation_days} days, once.\n",
        )


def _check_rank(membership: Membership, invited: Role) -> None:
    if not may_change_member(membership.role, invited):
        raise RoleNeeded("invite an owner or withdraw that", membership.role.value, [Role.OWNER.value])
