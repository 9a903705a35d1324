"""Invitations: a link that lets one person in, to a team or to the service.

Whoever accepts must hold the link and the address that it was made for.
"""

from __future__ import annotations

from msgspec import Struct

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
from tollgate.control.services.teams import Teams, role_of
from tollgate.core import secrets
from tollgate.core.models import Team
from tollgate.core.people import Invitation
from tollgate.core.roles import Action, Role, may_change_member
from tollgate.store.base import Repositories

PATH = "/console/invitations/"
DAY = 86_400.0
# Links that were mailed to one who signs up and are good at the same time.
MAX_OWN = 8


class Invited(Struct, frozen=True):
    """A new invitation, and its link, which is shown once."""

    invitation: Invitation
    link: str
    mailed: bool

    def __repr__(self) -> str:
        return f"Invited({self.invitation.id})"


class Invitations:
    """Links that let people in."""

    def __init__(self, context: ServiceContext, teams: Teams, mailer: Mailer) -> None:
        self._context = context
        self._teams = teams
        self._mailer = mailer

    async def create(self, actor: Actor, team: str, email: str, role: str) -> Invited:
        """Invite someone to a team; an older invitation of the same person is replaced."""
        address, wanted = email_of(email), role_of(role)
        async with self._context.store.changing() as records:
            membership = await self._context.membership(records, actor, team, Action.CHANGE_MEMBERS)
            _check_rank(membership, wanted)
            account = await records.accounts.find(email=address)
            if account and await records.members.find(team_id=membership.team.id, account_id=account.id):
                raise AlreadyMember(f"{address} belongs to {membership.team.name} already.")
            older = await records.invitations.find(team_id=membership.team.id, email=address)
            if older is not None:
                _check_rank(membership, Role(older.role))
                await records.invitations.remove(id=older.id)
            await self._check_room(records, membership.team)
            invitation, link = await self._add(records, actor, address, membership.team, wanted, by_operator=False)
            may_mail = await self._may_mail(records, actor, address)
        mailed = may_mail and self._mail(invitation, link, f"join the team {membership.team.name}")
        return Invited(invitation, link, mailed)

    async def _may_mail(self, records: Repositories, actor: Actor, address: str) -> bool:
        """Whether a mailbox gets one more mail of somebody; who invites has the link in any case."""
        to = (self._context.key("invitation-to", address), throttle.LINK)
        by = (self._context.key("invitation-by", actor.id), throttle.MAILS)
        return await throttle.may(self._context, records, to) and await throttle.may(self._context, records, by)

    async def create_by_operator(self, actor: Actor, email: str, team: str | None, role: str) -> Invited:
        """Invite someone to the service, and to a team of it, whatever the setting of sign-up."""
        address, wanted = email_of(email), role_of(role)
        async with self._context.store.changing() as records:
            found = await records.teams.find(name=team) if team else None
            if team and found is None:
                raise NotFound(f"There is no team {team[:60]}: check its name, or let it be made first.")
            await records.invitations.remove(team_id=found.id if found else None, email=address)
            invitation, link = await self._add(records, actor, address, found, wanted, by_operator=True)
        return Invited(invitation, link, self._mail(invitation, link, "use Tollgate"))

    async def request_link(self, client: ClientInfo, email: str) -> None:
        """Mail a link that creates an account, where sign-up is open.

        The account is made by the link alone, with a password chosen there: so nobody has one with another's
        address. Only the mail reveals whether the address has an account already.
        """
        if self._context.settings.accounts.sign_up != "open" or not self._mailer.enabled:
            raise SignUpClosed("Accounts are made by the operator here: ask for an invitation.")
        address = email_of(email)
        guards = [(self._context.key_from("sign-up", client), throttle.ADDRESS)]
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
            text = f"Open this link within {days} days to make your account:\n\n{link}\n\n"
        else:
            console = f"{self._context.base_url}/console"
            text = f"You have an account already. Sign in: {console}/sign-in\nForgotten? {console}/forgot\n\n"
        self._mailer.post(address, "Your Tollgate account", f"{text}If you did not ask for it, do nothing.\n")

    async def _add_own(self, records: Repositories, email: str) -> str:
        """Add an invitation of somebody for themselves; the newest that were mailed before stay good."""
        older = await records.invitations.page(MAX_OWN, newest_first=True, email=email, created_by=email)
        await records.invitations.remove(id=tuple(row.id for row in older[MAX_OWN - 1 :]))
        row, secret = self._new(email, email, None, Role.VIEWER, by_operator=False)
        await records.invitations.add(row)
        return f"{self._context.base_url}{PATH}{secret}"

    async def list(self, actor: Actor, team: str, page: PageRequest) -> ResultPage[Invitation]:
        """The open invitations of a team."""
        async with self._context.store.reading() as records:
            membership = await self._context.membership(records, actor, team, Action.CHANGE_MEMBERS)
            team_id = membership.team.id
            return await page.read(records.invitations, f"invitations:{team_id}", team_id=team_id)

    async def revoke(self, actor: Actor, team: str, invitation_id: str) -> None:
        async with self._context.store.changing() as records:
            membership = await self._context.membership(records, actor, team, Action.CHANGE_MEMBERS)
            row = await records.invitations.find(id=invitation_id, team_id=membership.team.id)
            if row is None:
                raise NotFound(
                    f"The team {membership.team.name} has no invitation {invitation_id[:60]}: "
                    "see `tollgate teams invitations list`."
                )
            _check_rank(membership, Role(row.role))
            await records.invitations.remove(id=row.id)
            await self._context.note(
                records, actor, "invitation.revoke", team_id=membership.team.id, target=row.id, name=row.email
            )

    async def look(self, link: str) -> tuple[Invitation, Team | None]:
        """What a link invites to."""
        async with self._context.store.reading() as records:
            row = await self._open(records, link)
            return row, await records.teams.get(row.team_id) if row.team_id else None

    async def accept(self, actor: Actor, link: str) -> Membership | None:
        """Follow a link: membership in its team, or None where it was to the service alone."""
        async with self._context.store.changing() as records:
            row = await self._open(records, link)
            if actor.account is None or actor.account.email != row.email:
                raise InvitationForOther(
                    f"This invitation is for {row.email}, and you are logged in as {actor.label}: "
                    "log in as the one it is for."
                )
            await records.invitations.remove(id=row.id)
            team = await records.teams.get(row.team_id) if row.team_id else None
            if team is None:
                await self._context.note(records, actor, "invitation.accept", target=row.id, name=row.email)
                return None
            if await records.members.find(team_id=team.id, account_id=actor.id):
                raise AlreadyMember(f"You belong to {team.name} already.")
            member = await self._teams.add_member(records, actor, team, actor.id, Role(row.role))
        return Membership(team, member)

    async def _open(self, records: Repositories, link: str) -> Invitation:
        secret = link.strip().rpartition("/")[2]
        row = None
        if secrets.well_formed(secret, secrets.INVITATION):
            row = await records.invitations.find(digest=self._context.digests(secret))
        if row is None or self._context.now() >= row.expires_at:
            raise NotFound("This invitation was used, withdrawn or has expired: ask for another.")
        return row

    async def _check_room(self, records: Repositories, team: Team) -> None:
        most = self._context.settings.accounts.members_per_team
        held = await records.members.count(team_id=team.id) + await records.invitations.count(team_id=team.id)
        if held >= most:
            raise LimitReached(f"The team {team.name} has {held} members and invitations, the most.", limit=most)

    async def _add(
        self, records: Repositories, actor: Actor, email: str, team: Team | None, role: Role, *, by_operator: bool
    ) -> tuple[Invitation, str]:
        row, secret = self._new(email, actor.label, team, role, by_operator=by_operator)
        await records.invitations.add(row)
        await self._context.note(
            records, actor, "invitation.create", team_id=row.team_id, target=row.id, name=email, role=role.value
        )
        return row, f"{self._context.base_url}{PATH}{secret}"

    def _new(
        self, email: str, created_by: str, team: Team | None, role: Role, *, by_operator: bool
    ) -> tuple[Invitation, str]:
        secret = secrets.new_token(secrets.INVITATION)
        now = self._context.now()
        row = Invitation(
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
        return row, secret

    def _mail(self, row: Invitation, link: str, what: str) -> bool:
        return self._mailer.post(
            row.email,
            f"You are invited to {what}",
            f"{row.created_by} invites you to {what}.\n\n{link}\n\n"
            f"The link works for {self._context.settings.accounts.invitation_days} days, once.\n",
        )


def _check_rank(membership: Membership, invited: Role) -> None:
    if not may_change_member(membership.role, invited):
        raise RoleNeeded("invite an owner or withdraw that", membership.role.value, [Role.OWNER.value])
