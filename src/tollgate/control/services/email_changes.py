"""Changing the address of one's own account.

Where mail can be sent, the address changes by a link that went to the new one, opened by whoever is signed in: a
link alone would hand the account to a stranger whose address was typed by mistake. The link is not kept here: it
is signed, and good for as long as neither address nor password have changed. Elsewhere the address changes at
once, and counts as not verified.
"""

from __future__ import annotations

import base64
import binascii
import hmac

from msgspec.structs import replace

from tollgate.control.mail import Mailer
from tollgate.control.problems import InvalidInput, NameTaken, NotFound
from tollgate.control.service_context import MAX_ROWS, Actor, ServiceContext, email_of, every
from tollgate.control.services import throttle
from tollgate.control.services.accounts import Accounts
from tollgate.core.people import Account, Invitation
from tollgate.store.base import Conflict, Given, Repositories

PATH = "/console/account/email/"
LONGEST_LINK = 1_000
_MARK_BYTES = 24
_GONE = "This link was used, is of another account or has expired: ask for another on your account's page."


class EmailChanges:
    """Addresses of accounts."""

    def __init__(self, context: ServiceContext, accounts: Accounts, mailer: Mailer) -> None:
        self._context = context
        self._accounts = accounts
        self._mailer = mailer

    async def request(self, actor: Actor, email: str, password: str) -> bool:
        """Change one's address, or mail a link that does; whether one was mailed.

        Where mail can be sent, only the mail reveals whether the address has an account already.
        """
        account = actor.person("change the address")
        address = email_of(email)
        if address == account.email:
            raise InvalidInput(f"{address} is your address already.", field="email")
        if account.password_hash:
            await self._accounts.check_own_password(actor, account, password)
        else:
            self._context.recent(actor, "change the address")
        guards = [
            (self._context.key("email-change", account.id), throttle.LINK),
            (self._context.key("email-change-to", address), throttle.LINK),
        ]
        async with self._context.store.changing() as records:
            await throttle.begin(self._context, records, guards, "changes of the address")
            if not self._mailer.enabled:
                await self._set(records, actor, address, verified_at=None)
                return False
            is_taken = await records.accounts.find(email=address) is not None
        self._mail(account, address, is_taken=is_taken)
        return True

    def look(self, actor: Actor, link: str) -> str:
        """The address that a link changes one's own to, or refuse it."""
        account = actor.person("change the address")
        secret = link.strip().rpartition("/")[2][:LONGEST_LINK]
        try:
            content = base64.urlsafe_b64decode(secret + "=" * (-len(secret) % 4))
            mark, (until, address) = content[:_MARK_BYTES], content[_MARK_BYTES:].decode().split(" ")
            expires_at = int(until)
        except (binascii.Error, ValueError):
            raise NotFound(_GONE) from None
        good = any(hmac.compare_digest(mark, each) for each in self._marks(account, address, expires_at))
        if not good or self._context.now() >= expires_at:
            raise NotFound(_GONE)
        return address

    async def confirm(self, actor: Actor, link: str) -> Account:
        """Change one's address by a link that was mailed to the new one."""
        address = self.look(actor, link)
        async with self._context.store.changing() as records:
            changed = await self._set(records, actor, address, verified_at=self._context.now())
        self._mailer.post(
            actor.label,
            "The address of your Tollgate account has changed",
            f"Your account's address is {address} from now on. If you did not change it, ask the operator of "
            f"{self._context.base_url} at once.\n",
        )
        return changed

    async def _set(
        self, records: Repositories, actor: Actor, address: str, *, verified_at: float | None
    ) -> Account:
        account = await records.accounts.get(actor.id)
        # Read anew: the address that a link was for may have changed since.
        if account is None or account.email != actor.label:
            raise NotFound(_GONE)
        changed = replace(account, email=address, verified_at=verified_at)
        try:
            await records.accounts.replace(changed)
        except Conflict:
            raise NameTaken(f"{address} has an account already.", "email") from None
        # What was mailed to the old address ends with it.
        await records.reset_links.remove(account_id=account.id)
        # Invitations know their maker by the address, and end with what the maker may do.
        async for made in every(records.invitations, Invitation, created_by=account.email, team_id=Given.GIVEN):
            await records.invitations.replace(replace(made, created_by=address))
        before, after = {"email": account.email}, {"email": address}
        await self._context.note(
            records, actor, "account.email", target=account.id, name=address, before=before, after=after
        )
        # Members of a team know each other by their addresses: each team's log has it as well.
        for member in await records.members.page(MAX_ROWS, account_id=account.id):
            await self._context.note(
                records, actor, "member.email", team_id=member.team_id, target=member.id, name=address,
                before=before, after=after,
            )  # fmt: skip
        return changed

    def _mail(self, account: Account, address: str, *, is_taken: bool) -> None:
        if is_taken:
            text = (
                f"{account.email} wants to use this address for their account, but it has one already, so nothing "
                "changes.\n"
            )
        else:
            minutes = self._context.settings.accounts.reset_minutes
            until = int(self._context.now() + 60 * minutes)
            content = next(iter(self._marks(account, address, until))) + f"{until} {address}".encode()
            secret = base64.urlsafe_b64encode(content).decode().rstrip("=")
            text = (
                f"Open this link within {minutes} minutes, signed in as {account.email}, to use this address for "
                f"your account:\n\n{self._context.base_url}{PATH}{secret}\n\n"
                "If you did not ask for it, do nothing.\n"
            )
        self._mailer.post(address, "Your address at Tollgate", text)

    def _marks(self, account: Account, address: str, until: int) -> list[bytes]:
        """What proves a link; while a pepper is replaced, either proof is good."""
        text = f"email change {account.id} {account.email} {account.password_hash} {until} {address}"
        return [digest[:_MARK_BYTES] for digest in self._context.digests(text)]
