"""What the operator does on the machine itself, without a login: accounts, and helping people back in."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from tollgate.api.teams import NewTeam
from tollgate.control.commands import checked
from tollgate.control.passwords import Passwords
from tollgate.control.problems import NotFound
from tollgate.control.service_context import OPERATOR, ServiceContext, email_of
from tollgate.control.services.accounts import Accounts
from tollgate.control.services.teams import Teams
from tollgate.control.services.tokens import end_playground
from tollgate.core.people import Account
from tollgate.store.base import Repositories


class Admin:
    """The operator's own commands."""

    def __init__(self, context: ServiceContext, passwords: Passwords, accounts: Accounts, teams: Teams) -> None:
        self._context = context
        self._passwords = passwords
        self._accounts = accounts
        self._teams = teams

    async def create_account(
        self, email: str, password: str, *, name: str = "", team: str | None = None, operator: bool = False
    ) -> Account:
        """Create an account, a team that it owns, and its access to the operator's pages: all or nothing."""
        address = email_of(email)
        if team is not None:
            checked(NewTeam(team))
        self._passwords.check_new(password, address)
        hashed = await self._passwords.hash(password)
        async with self._context.store.changing() as records:
            account = await self._accounts.add(records, OPERATOR, address, hashed, name=name, verified=True)
            if team is not None:
                await self._teams.add(records, OPERATOR, NewTeam(team), account.id)
            return await self._mark(records, account, operator=True) if operator else account

    async def accounts(self, limit: int) -> Sequence[Account]:
        async with self._context.store.reading() as records:
            return await records.accounts.page(limit)

    async def switch(self, email: str, *, active: bool) -> Account:
        """Disable or enable an account. Its logins stop working; its teams' API tokens do not."""
        async with self._context.store.changing() as records:
            account = await _found(records, email)
            switched = replace(account, active=active)
            await records.accounts.replace(switched)
            if not active:
                await end_playground(records, account.id)
                await records.logins.remove(account_id=account.id)
                await records.device_logins.remove(account_id=account.id)
                await records.reset_links.remove(account_id=account.id)
                await records.invitations.remove(created_by=account.email)
            action = "account.enable" if active else "account.disable"
            await self._context.note(records, OPERATOR, action, target=account.id, name=account.email)
        return switched

    async def mark(self, email: str, *, operator: bool) -> Account:
        """Grant or revoke an account's access to the operator's pages."""
        async with self._context.store.changing() as records:
            return await self._mark(records, await _found(records, email), operator=operator)

    async def _mark(self, records: Repositories, account: Account, *, operator: bool) -> Account:
        marked = replace(account, operator=operator)
        await records.accounts.replace(marked)
        action = "account.operator" if operator else "account.no_operator"
        await self._context.note(records, OPERATOR, action, target=account.id, name=account.email)
        return marked


async def _found(records: Repositories, email: str) -> Account:
    address = email_of(email)
    account = await records.accounts.find(email=address)
    if account is None:
        raise NotFound(f"{address} has no account: list them with `tollgate admin accounts`.")
    return account
