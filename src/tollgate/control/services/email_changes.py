"""Changing the email address of an account.

Where mail can be sent, the address changes when the link mailed to the new one is opened while signed in: a link
alone would give the account to the owner of a mistyped address. Links are signed, not stored, and stay valid while
address and password are unchanged. Without mail, the address changes immediately and counts as not verified.
"""

from __future__ import annotations

import base64
import binascii
import hmac

from msgspec.structs import replace

from tollgate.api.me import MAX_LINK, EmailChange, EmailLink, NewEmail
from tollgate.control.commands import checked
from tollgate.control.mail import Mailer
from tollgate.control.problems import InvalidInput, NameTaken, NotFound
from tollgate.control.service_context import MAX_ROWS, Actor, ServiceContext, email_of, every
from tollgate.control.services import throttle
from tollgate.control.services.accounts import Accounts
from tollgate.core import secrets
from tollgate.core.people import Account, Invitation
from tollgate.store.base import Conflict, Given, Repositories

PATH = "/console/account/email/"
_MARK_BYTES = 24
_GONE = "This link was used, is of another account or has expired: request another on your account page."


class EmailChanges:
    """Addresses of accounts."""

    def __init__(self, context: ServiceContext, accounts: Accounts, mailer: Mailer) -> None:
        self._context = context
        self._accounts = accounts
        self._mailer = mailer

    async def request(self, actor: Actor, wanted: NewEmail) -> EmailChange:
        """Change the actor's address, or mail a link that does.

        Where mail can be sent, only the mail reveals whether the address has an account already.
        """
        account = actor.person("change the address")
        address = email_of(checked(wanted).email)
        if address == account.email:
            raise InvalidInput(f"{address} is your address already.", field="email")
        if account.password_hash:
            await self._accounts.check_own_password(actor, account, wanted.password)
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
                return EmailChange(address)
            is_taken = await records.accounts.find(email=address) is not None
        self._mail(account, address, is_taken=is_taken)
        return EmailChange(account.email, address)

    def look(self, actor: Actor, link: str) -> str:
        """The address that a link changes the actor's to; refuse a link that is not valid."""
        account = actor.person("change the address")
        secret = link.strip().rpartition("/")[2][:MAX_LINK]
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

    async def confirm(self, actor: Actor, given: EmailLink) -> EmailChange:
        """Change the actor's address by the link that was mailed to the new one."""
        address = self.look(actor, checked(given).link)
        async with self._context.store.changing() as records:
            await self._set(records, actor, address, verified_at=self._context.now())
        self._mailer.post(
            actor.label,
            "The address of your Tollgate account has changed",
            f"The address of your account is now {address}. If you did not change it, contact the operator of "
            f"{self._context.base_url} immediately.\n",
        )
        return EmailChange(address)

    async def _set(self, records: Repositories, actor: Actor, address: str, *, verified_at: float | None) -> None:
        account = await records.accounts.get(actor.id)
        # Read again: the address may have changed since the link was sent.
        if account is None or account.email != actor.label:
            raise NotFound(_GONE)
        changed = replace(account, email=address, verified_at=verified_at)
        try:
            await records.accounts.replace(changed)
        except Conflict:
            raise NameTaken(f"{address} has an account already.", "email") from None
        # Links that were mailed to the old address stop working.
        await records.reset_links.remove(account_id=account.id)
        # Invitations are linked to their creator by the address, and are deleted when the creator loses the role.
        async for made in every(records.invitations, Invitation, created_by=account.email, team_id=Given.GIVEN):
            await records.invitations.replace(replace(made, created_by=address))
        before, after = {"email": account.email}, {"email": address}
        await self._context.note(
            records, actor, "account.email", target=account.id, name=address, before=before, after=after
        )
        # Members know each other by address, so the audit log of each team records the change too.
        for member in await records.members.page(MAX_ROWS, account_id=account.id):
            await self._context.note(
                records, actor, "member.email", team_id=member.team_id, target=member.id, name=address,
                before=before, after=after,
            )  # fmt: skip

    def _mail(self, account: Account, address: str, *, is_taken: bool) -> None:
        if is_taken:
            text = (
                f"{account.email} requested this address for their account, but it already belongs to another "
                "account, so nothing changes.\n"
            )
        else:
            minutes = self._context.settings.accounts.reset_minutes
            until = int(self._context.now() + 60 * minutes)
            content = next(iter(self._marks(account, address, until))) + f"{until} {address}".encode()
            secret = base64.urlsafe_b64encode(content).decode().rstrip("=")
            text = (
                f"Open this link within {minutes} minutes, signed in as {account.email}, to use this address for "
                f"your account:\n\n{self._context.base_url}{PATH}{secret}\n\n"
                "If you did not request this, ignore this mail.\n"
            )
        self._mailer.post(address, "Your address at Tollgate", text)

    def _marks(self, account: Account, address: str, until: int) -> list[bytes]:
        """The valid signatures of a link: two while a pepper is being replaced."""
        text = f"email change {account.id} {account.email} {account.password_hash} {until} {address}"
        return [digest[:_MARK_BYTES] for digest in self._context.digests(text, secrets.LINKS)]
