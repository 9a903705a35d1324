"""Teams and their members. The last owner cannot leave; only an owner may add, change or remove owners."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from tollgate.api.members import RoleChange
from tollgate.api.teams import NewTeam, TeamChange
from tollgate.control.commands import checked
from tollgate.control.problems import AddressUnproved, LastOwner, LimitReached, NameTaken, NotFound, RoleNeeded
from tollgate.control.service_context import (
    MAX_ROWS,
    Actor,
    Membership,
    PageRequest,
    ResultPage,
    ServiceContext,
    changes,
    page_of,
)
from tollgate.control.services.tokens import end_playground
from tollgate.control.versions import check_version
from tollgate.core import secrets
from tollgate.core.alerts import BillingSettings
from tollgate.core.models import FormerTeam, Team
from tollgate.core.people import Account, Member
from tollgate.core.roles import Action, Role, may_change_member
from tollgate.store.base import Conflict, Repositories


class Person(Struct, frozen=True):
    """A member and its account."""

    member: Member
    account: Account

    @property
    def id(self) -> str:
        return self.member.id

    @property
    def created_at(self) -> float:
        return self.member.created_at


class Teams:
    """Teams and their members."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    async def create(self, actor: Actor, wanted: NewTeam) -> Membership:
        checked(wanted)
        self._check_verified(actor)
        async with self._context.store.changing() as records:
            owned = await records.members.count(account_id=actor.id, role=Role.OWNER.value)
            maximum = self._context.settings.accounts.teams_per_account
            if owned >= maximum:
                raise LimitReached(f"You own {owned} teams, the maximum of an account.", limit=maximum)
            return await self.add(records, actor, wanted, actor.id)

    def _check_verified(self, actor: Actor) -> None:
        """Where mail can be sent, only an account with a verified address may own a team.

        Accounts without a password are verified by their provider; without mail no address can be verified.
        """
        account = actor.account
        if not self._context.settings.mail.host or account is None or not account.password_hash:
            return
        if account.verified_at is None:
            raise AddressUnproved(
                f"{account.email} is not verified: request a link at {self._context.base_url}/console/forgot and "
                "set your password with it, then create the team."
            )

    async def add(self, records: Repositories, actor: Actor, wanted: NewTeam, owner_id: str) -> Membership:
        """Add a team with its first owner to the records."""
        team = Team(
            id=secrets.new_id("team"), name=checked(wanted).name, created_at=self._context.now(), payer=owner_id
        )
        try:
            await records.teams.add(team)
        except Conflict as error:
            raise _name_taken(team) from error
        member = self._new_member(actor, team, owner_id, Role.OWNER)
        await records.members.add(member)
        owner = (await _account(records, member)).email
        await self._context.note(
            records, actor, "team.create", team_id=team.id, target=team.id, name=team.name, owner=owner
        )
        return Membership(team, member)

    async def list(self, actor: Actor, page: PageRequest) -> ResultPage[Membership]:
        """The actor's teams, oldest first."""
        async with self._context.store.reading() as records:
            members = {each.team_id: each for each in await records.members.page(MAX_ROWS, account_id=actor.id)}
            found: ResultPage[Team] = await page.read(records.teams, f"teams:{actor.id}", id=tuple(members))
        return ResultPage([Membership(team, members[team.id]) for team in found.items], found.next)

    async def show(self, actor: Actor, team: str) -> Membership:
        return await self._context.member(actor, team, Action.SEE_TEAM)

    async def update(self, actor: Actor, team: str, wanted: TeamChange, if_match: str | None = None) -> Membership:
        async with self._context.changing(actor, team, Action.RENAME_TEAM) as (records, membership):
            check_version(membership.team, if_match)
            renamed = replace(membership.team, name=checked(wanted).name)
            try:
                await records.teams.replace(renamed)
            except Conflict as error:
                raise _name_taken(renamed) from error
            await self._context.note(
                records, actor, "team.rename", team_id=renamed.id, target=renamed.id, name=renamed.name,
                **changes(membership.team, renamed, ["name"]),
            )  # fmt: skip
        return Membership(renamed, membership.member)

    async def delete(self, actor: Actor, team: str) -> None:
        """Delete a team with its tokens, domains and members. Its usage and invoices stay in the ledger.

        What it owes for the month is invoiced to the address that it had.
        """
        async with self._context.changing(actor, team, Action.DELETE_TEAM) as (records, membership):
            actor.person("delete a team")
            await records.former_teams.add(await self._former(records, membership.team))
            await records.teams.remove(id=membership.team.id)
            await self._context.note(
                records, actor, "team.delete", team_id=membership.team.id, target=membership.team.id,
                name=membership.team.name,
            )  # fmt: skip

    async def _former(self, records: Repositories, team: Team) -> FormerTeam:
        """What invoices need of a team that is about to be deleted."""
        members = await records.members.page(
            MAX_ROWS, team_id=team.id, role=(Role.OWNER.value, Role.BILLING.value)
        )
        accounts = await records.accounts.page(MAX_ROWS, id=tuple(each.account_id for each in members))
        emails = tuple(account.email for account in accounts)
        settings = await records.billing.get(team.id) or BillingSettings(team.id, 0.0)
        return FormerTeam(
            team.id, team.name, self._context.now(), team.cap, settings.buyer, settings.tax_number, emails
        )

    # --- Members ---------------------------------------------------------------------------------------

    async def members(self, actor: Actor, team: str, page: PageRequest) -> ResultPage[Person]:
        async with self._context.reading(actor, team, Action.SEE_MEMBERS) as (records, membership):
            scope = f"members:{membership.team.id}"
            members = await records.members.page(page.limit + 1, page.place(scope), team_id=membership.team.id)
            accounts = await records.accounts.page(len(members), id=tuple(each.account_id for each in members))
        by_id = {account.id: account for account in accounts}
        return page_of(scope, [Person(each, by_id[each.account_id]) for each in members], page.limit)

    async def add_member(
        self, records: Repositories, actor: Actor, team: Team, account_id: str, role: Role
    ) -> Member:
        member = self._new_member(actor, team, account_id, role)
        await records.members.add(member)
        account = await _account(records, member)
        await self._context.note(
            records, actor, "member.add", team_id=team.id, target=member.id, name=account.email, role=role.value
        )
        return member

    def _new_member(self, actor: Actor, team: Team, account_id: str, role: Role) -> Member:
        return Member(secrets.new_id("mem"), team.id, account_id, role.value, self._context.now(), actor.label)

    async def set_role(self, actor: Actor, team: str, member_id: str, wanted: RoleChange) -> Person:
        new = Role(checked(wanted).role)
        async with self._context.store.changing() as records:
            membership, member = await self._member(records, actor, team, member_id)
            old = Role(member.role)
            for touched in (old, new):
                _check_rank(membership.role, touched)
            if old is Role.OWNER and new is not Role.OWNER:
                await _keep_an_owner(records, membership.team)
            changed = replace(member, role=new.value)
            await records.members.replace(changed)
            account = await _account(records, member)
            await self._end_invitations(records, membership.team.id, account, new)
            await end_playground(records, account.id, team_id=membership.team.id)
            await self._context.note(
                records, actor, "member.role", team_id=membership.team.id, target=member.id, name=account.email,
                **changes(member, changed, ["role"]),
            )  # fmt: skip
        return Person(changed, account)

    async def remove(self, actor: Actor, team: str, member_id: str) -> None:
        """Remove a member from a team; members may remove themselves."""
        async with self._context.changing(actor, team, Action.SEE_TEAM) as (records, membership):
            if membership.member.id != member_id:
                membership, member = await self._member(records, actor, team, member_id)
                _check_rank(membership.role, Role(member.role))
            else:
                member = membership.member
            if member.role == Role.OWNER:
                await _keep_an_owner(records, membership.team)
            await records.members.remove(id=member.id)
            account = await _account(records, member)
            await self._end_invitations(records, membership.team.id, account)
            await end_playground(records, account.id, team_id=membership.team.id)
            await self._context.note(
                records, actor, "member.remove", team_id=membership.team.id, target=member.id, name=account.email
            )

    async def _end_invitations(
        self, records: Repositories, team_id: str, account: Account, left: Role | None = None
    ) -> None:
        """Delete the account's open invitations that its role, `left`, no longer allows: it has their links."""
        ended = tuple(role.value for role in Role if left is None or not may_change_member(left, role))
        await records.invitations.remove(team_id=team_id, created_by=account.email, role=ended)

    async def _member(
        self, records: Repositories, actor: Actor, team: str, member_id: str
    ) -> tuple[Membership, Member]:
        membership = await self._context.membership(records, actor, team, Action.CHANGE_MEMBERS)
        member = await records.members.find(id=member_id, team_id=membership.team.id)
        if member is None:
            raise NotFound(
                f"The team {membership.team.name} has no member {member_id[:60]}: "
                "see `tollgate teams members list`."
            )
        return membership, member


def _name_taken(team: Team) -> NameTaken:
    return NameTaken(f"The team name {team.name} is taken: choose another.", "name")


def _check_rank(mine: Role, touched: Role) -> None:
    if not may_change_member(mine, touched):
        raise RoleNeeded("invite, change or remove an owner", mine.value, [Role.OWNER.value])


async def _keep_an_owner(records: Repositories, team: Team) -> None:
    if await records.members.count(team_id=team.id, role=Role.OWNER.value) < 2:
        raise LastOwner


async def _account(records: Repositories, member: Member) -> Account:
    account = await records.accounts.get(member.account_id)
    assert account is not None  # noqa: S101 - a foreign key ensures it
    return account
