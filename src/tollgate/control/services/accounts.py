"""Accounts: creating them, checking and resetting passwords, signing in through a provider.

An unknown address and a wrong password cannot be distinguished, neither by message nor by timing.
"""

from __future__ import annotations

from msgspec import UNSET
from msgspec.structs import replace

from tollgate.api.me import PasswordChange, SelfChange
from tollgate.control.commands import checked
from tollgate.control.mail import Mailer
from tollgate.control.oidc_rules import ProviderIdentity
from tollgate.control.passwords import Passwords
from tollgate.control.problems import (
    Busy,
    InvalidInput,
    LastOwner,
    NameTaken,
    NotFound,
    SignUpClosed,
    WrongPassword,
)
from tollgate.control.service_context import (
    MAX_ROWS,
    Actor,
    ClientInfo,
    ServiceContext,
    changes,
    constant_time,
    email_of,
    name_of,
)
from tollgate.control.services import throttle
from tollgate.control.services.tokens import end_playground
from tollgate.core import secrets
from tollgate.core.people import CONSOLE, PASSKEY, PERSONAL, TOOL, Account, Identity, Invitation, ResetLink
from tollgate.core.roles import Role
from tollgate.store.base import Repositories

RESET_PATH = "/console/reset/"
# Links of one account that are valid at the same time.
MAX_LINKS = 8
CLOSED = "Accounts are created by the operator here: ask for an invitation."


class Accounts:
    """Accounts of people."""

    def __init__(self, context: ServiceContext, passwords: Passwords, mailer: Mailer) -> None:
        self._context = context
        self._passwords = passwords
        self._mailer = mailer

    # --- Creation --------------------------------------------------------------------------------------

    async def sign_up(self, client: ClientInfo, email: str, password: str, *, name: str = "") -> Account:
        """Sign up, where sign-up is open and no mail can be sent."""
        if self._context.settings.accounts.sign_up != "open":
            raise SignUpClosed(CLOSED)
        if self._mailer.enabled:
            raise SignUpClosed("Accounts are created with a link that is sent by mail: request one.")
        address = email_of(email)
        self._passwords.check_new(password, address)
        self._passwords.check_room(client.address)
        # Hashing is expensive, and the answer shows whether an address has an account: both are limited.
        guards = throttle.guards_from(self._context, "sign-up", client, throttle.ADDRESS)
        async with self._context.store.changing() as records:
            await throttle.begin(self._context, records, guards, "new accounts from this address")
        hashed = await self._passwords.hash(password, client.address)
        async with self._context.store.changing() as records:
            return await self.add(records, Actor(None, None, client), address, hashed, name=name, verified=False)

    async def sign_up_invited(
        self, client: ClientInfo, invitation: Invitation, password: str, *, name: str = ""
    ) -> Account:
        """Create the account of an invited person.

        Only a link of the operator, or a sign-up link that was mailed, verifies the address. A team's link was
        seen by the inviter, who must not be able to create an account that a provider would later link to the
        invited person.
        """
        sign_up = self._context.settings.accounts.sign_up
        if (not invitation.by_operator and sign_up == "closed") or (invitation.by_oneself and sign_up != "open"):
            raise SignUpClosed(CLOSED)
        self._passwords.check_new(password, invitation.email)
        hashed = await self._passwords.hash(password, client.address)
        async with self._context.store.changing() as records:
            current = await records.invitations.get(invitation.id)
            if current is None or self._context.now() >= current.expires_at:
                raise NotFound("This invitation was used, withdrawn or has expired: ask for another.")
            actor = Actor(None, None, client)
            verified = invitation.proves_address
            return await self.add(records, actor, current.email, hashed, name=name, verified=verified)

    async def add(
        self, records: Repositories, actor: Actor, email: str, hashed: str, *,
        name: str, verified: bool, **details: object,
    ) -> Account:  # fmt: skip
        if await records.accounts.find(email=email) is not None:
            raise NameTaken(f"{email} has an account already: sign in, or reset its password.", "email")
        now = self._context.now()
        account = Account(
            id=secrets.new_id("acc"),
            email=email,
            created_at=now,
            name=name_of(name, min_length=0),
            password_hash=hashed,
            verified_at=now if verified else None,
        )
        await records.accounts.add(account)
        # On sign-up the new account is the actor.
        who = actor if actor.account or not actor.client.address else Actor(account, None, actor.client)
        await self._context.note(
            records, who, "account.create", team_id=None, target=account.id, name=email, **details
        )
        return account

    async def find(self, email: str) -> Account | None:
        async with self._context.store.reading() as records:
            return await records.accounts.find(email=email_of(email))

    async def update(self, actor: Actor, wanted: SelfChange) -> Account:
        """Change the actor's own name."""
        name = checked(wanted).name
        async with self._context.store.changing() as records:
            account = await _own(records, actor)
            if name is UNSET:
                return account
            renamed = replace(account, name=name_of(name, min_length=0))
            await records.accounts.replace(renamed)
            await self._context.note(
                records, actor, "account.rename", team_id=None, target=account.id, name=account.email,
                **changes(account, renamed, ["name"]),
            )  # fmt: skip
        return renamed

    async def delete(self, actor: Actor) -> None:
        """Delete the actor's account; the last owner of a team must hand the team over first."""
        account = actor.person("delete the account")
        async with self._context.store.changing() as records:
            for owned in await records.members.page(MAX_ROWS, account_id=account.id, role=Role.OWNER.value):
                if await records.members.count(team_id=owned.team_id, role=Role.OWNER.value) < 2:
                    team = await records.teams.get(owned.team_id)
                    raise LastOwner(
                        f"You are the last owner of {team.name if team else owned.team_id}: make "
                        "another member an owner, or delete the team."
                    )
            await records.accounts.remove(id=account.id)
            await records.invitations.remove(created_by=account.email)
            await end_playground(records, account.id)
            await self._context.note(records, actor, "account.delete", target=account.id, name=account.email)

    # --- Passwords -------------------------------------------------------------------------------------

    async def check_password(self, client: ClientInfo, email: str, password: str) -> Account:
        """Return the account whose password this is.

        Failures slow down the address, and the account from this address alone: an attacker elsewhere must not
        lock the owner out.
        """
        try:
            address = email_of(email)
        except InvalidInput:
            raise WrongPassword from None
        # Before the store is read, so that a flood of guesses is cheap to refuse.
        self._passwords.check_room(client.address)
        of_account = self._password_guards(address, client)
        from_here = throttle.guards_from(self._context, "address", client, throttle.ADDRESS)
        async with self._context.store.changing() as records:
            before = await throttle.begin(self._context, records, [*of_account, *from_here], "failed sign-ins")
            account = await records.accounts.find(email=address)
        while True:
            account = await self._whose(client, address, account, password, before)
            hashed = ""
            if self._passwords.outdated(account.password_hash):
                hashed = await self._passwords.hash(password, client.address)
            async with self._context.store.changing() as records:
                # Read again: checking took a while, and changes to the account in the meantime must be kept.
                now = await records.accounts.get(account.id)
                if now is None or not now.active:
                    raise WrongPassword
                if now.password_hash == account.password_hash:
                    await throttle.forgive(records, [key for key, _ in of_account])
                    await throttle.take_back_all(records, from_here, before)
                    if hashed:
                        now = replace(now, password_hash=hashed)
                        await records.accounts.replace(now)
                    return now
            # The password was changed in the meantime, or hashed again.
            account = now

    async def _whose(
        self, client: ClientInfo, email: str, account: Account | None, password: str, before: throttle.Before
    ) -> Account:
        hashed = account.password_hash if account else ""
        try:
            fits = await self._passwords.fits(password, hashed, client.address)
        except Busy:
            # No password was checked, so the attempt does not count.
            async with self._context.store.changing() as records:
                for each in before:
                    await throttle.take_back(records, each, before)
            raise
        if account is None or not fits or not account.active:
            await self._note_failure(client, email, account)
            raise WrongPassword
        return account

    async def check_own_password(self, actor: Actor, account: Account, password: str) -> None:
        """Check the password of the actor, who is signed in: the error may say that it is the password."""
        try:
            await self.check_password(actor.client, account.email, password)
        except WrongPassword:
            raise WrongPassword("Your current password is wrong: nothing was changed.") from None

    def _password_guards(self, email: str, client: ClientInfo) -> list[throttle.Guard]:
        return throttle.guards_from(self._context, "password", client, throttle.PASSWORD, email)

    async def _note_failure(self, client: ClientInfo, email: str, account: Account | None) -> None:
        """Record a failed sign-in for the account. Takes as long where there is no account."""
        async with constant_time(), self._context.store.changing() as records:
            guard = (self._context.key("failed-noted", email), throttle.NOTED)
            if await throttle.may(self._context, records, guard) and account is not None:
                who = Actor(account, None, client)
                await self._context.note(records, who, "login.failed", target=account.id, name=account.email)

    async def change_password(self, actor: Actor, wanted: PasswordChange) -> None:
        """Change the actor's own password, and end the other ways in that are chosen."""
        account = actor.person("change the password")
        if account.password_hash:
            await self.check_own_password(actor, account, wanted.current)
        else:
            self._context.recent(actor, "set a password")
        self._passwords.check_new(wanted.new, account.email, field="new")
        hashed = await self._passwords.hash(wanted.new, actor.client.address)
        async with self._context.store.changing() as records:
            account = await _own(records, actor)
            await self._set_password(records, actor, account, hashed)
            await self._end(records, actor, account, wanted)

    async def reset_link(self, actor: Actor, email: str) -> str:
        """Create a link to set a password, for the operator to hand over; it is mailed too, if possible."""
        address = email_of(email)
        async with self._context.store.changing() as records:
            account = await records.accounts.find(email=address)
            if account is None:
                raise NotFound(f"{address} has no account: list them with `tollgate admin accounts`.")
            if not account.active:
                raise InvalidInput(f"{address} is disabled: run `tollgate admin enable {address}` first.")
            link = await self._new_reset_link(records, actor, account)
        self._mail_reset(address, link)
        return link

    async def forgot(self, client: ClientInfo, email: str) -> None:
        """Send a link to reset the password, if the address has an account. The result is the same either way.

        After several requests no further mail is sent for a while, but the links that were sent stay valid:
        repeated requests can neither flood a mailbox nor lock its owner out.
        """
        address = email_of(email)
        guards = throttle.guards_from(self._context, "forgot-from", client, throttle.ADDRESS)
        async with self._context.store.changing() as records:
            await throttle.begin(self._context, records, guards, "requests for a link")
        async with constant_time():
            await self._send_reset(client, address)

    async def _send_reset(self, client: ClientInfo, address: str) -> None:
        async with self._context.store.changing() as records:
            account = await records.accounts.find(email=address)
            if account is None or not account.active or not self._mailer.enabled:
                return
            guard = (self._context.key("forgot", address), throttle.LINK)
            if not await throttle.may(self._context, records, guard):
                return
            link = await self._new_reset_link(records, Actor(account, None, client), account)
        self._mail_reset(address, link)

    def _mail_reset(self, address: str, link: str) -> None:
        minutes = self._context.settings.accounts.reset_minutes
        self._mailer.post(
            address,
            "Reset your Tollgate password",
            f"Open this link within {minutes} minutes to choose a new password:\n\n{link}\n\n"
            "If you did not request this, ignore this mail: your password stays as it is.\n",
        )

    async def account_of_reset(self, secret: str) -> Account:
        """The account whose password this link resets."""
        async with self._context.store.reading() as records:
            return await self._reset_account(records, secret)

    async def reset(self, client: ClientInfo, secret: str, password: str) -> Account:
        """Set the password by a link, once; all logins end."""
        account = await self.account_of_reset(secret)
        self._passwords.check_new(password, account.email)
        hashed = await self._passwords.hash(password, client.address)
        async with self._context.store.changing() as records:
            account = await self._reset_account(records, secret)
            return await self._reset_password(records, Actor(account, None, client), account, hashed)

    async def _new_reset_link(self, records: Repositories, actor: Actor, account: Account) -> str:
        secret = secrets.new_token(secrets.RESET)
        now = self._context.now()
        if actor.account is not None:
            # Anyone can request one: links that were mailed before must stay valid.
            older = await records.reset_links.page(MAX_LINKS, newest_first=True, account_id=account.id)
            await records.reset_links.remove(id=tuple(link.id for link in older[MAX_LINKS - 1 :]))
        else:
            await records.reset_links.remove(account_id=account.id)
        until = now + 60 * self._context.settings.accounts.reset_minutes
        await records.reset_links.add(
            ResetLink(secrets.new_id("rst"), account.id, self._context.digest(secret), now, until)
        )
        await self._context.note(records, actor, "account.reset_link", target=account.id, name=account.email)
        return f"{self._context.base_url}{RESET_PATH}{secret}"

    async def _reset_account(self, records: Repositories, secret: str) -> Account:
        link = await records.reset_links.find(digest=self._context.digests(secret))
        account = await records.accounts.get(link.account_id) if link else None
        if link is None or account is None or not account.active or self._context.now() >= link.expires_at:
            raise NotFound("This link was used or has expired: ask for another.")
        return account

    async def _reset_password(self, records: Repositories, actor: Actor, account: Account, hashed: str) -> Account:
        changed = account
        if account.verified_at is None:
            changed = replace(account, verified_at=self._context.now())
            # Someone else may have signed up with this address: their other ways to sign in are removed.
            await records.identities.remove(account_id=account.id)
            await records.factors.remove(account_id=account.id)
        changed = await self._set_password(records, actor, changed, hashed)
        await self._end(records, actor, account, PasswordChange("", ""))
        return changed

    async def _set_password(self, records: Repositories, actor: Actor, account: Account, hashed: str) -> Account:
        changed = replace(account, password_hash=hashed)
        await records.accounts.replace(changed)
        await records.reset_links.remove(account_id=account.id)
        guards = self._password_guards(account.email, actor.client)
        await throttle.forgive(records, [key for key, _ in guards])
        await self._context.note(records, actor, "account.password", target=account.id, name=account.email)
        return changed

    async def _end(self, records: Repositories, actor: Actor, account: Account, wanted: PasswordChange) -> None:
        """End the ways in that are chosen, but not the login in use, whose owner has just authenticated."""
        ending = {CONSOLE: wanted.end_sessions, TOOL: wanted.end_devices, PERSONAL: wanted.end_tokens}
        for login in await records.logins.page(10_000, account_id=account.id):
            if actor.login is not None and login.id == actor.login.id:
                await records.logins.replace(replace(login, authenticated_at=self._context.now()))
            elif ending[login.kind]:
                await records.logins.remove(id=login.id)
        if wanted.end_devices:
            # A device login that is approved but not fetched yet is a login too.
            await records.device_logins.remove(account_id=account.id)
        if wanted.end_passkeys:
            for passkey in await records.factors.page(100, account_id=account.id, kind=PASSKEY):
                await records.factors.remove(id=passkey.id)
                await self._context.note(records, actor, "passkey.remove", target=passkey.id, name=passkey.name)

    # --- Providers -------------------------------------------------------------------------------------

    async def by_provider(
        self, client: ClientInfo, claim: ProviderIdentity, invitation: Invitation | None = None
    ) -> Account:
        """The account that a provider vouches for: known by its subject, else by a verified address, else new."""
        async with self._context.store.changing() as records:
            identity = await records.identities.find(issuer=claim.issuer, subject=claim.subject)
            account = await records.accounts.get(identity.account_id) if identity else None
            if account is None:
                account = await self._by_address(records, client, claim, invitation)
                await records.identities.add(
                    Identity(secrets.new_id("idn"), account.id, claim.issuer, claim.subject, self._context.now())
                )
            # In the transaction, so that nothing is linked to a disabled account.
            if not account.active:
                raise WrongPassword("This account is disabled: ask the operator.")
        return account

    async def _by_address(
        self, records: Repositories, client: ClientInfo, claim: ProviderIdentity, invitation: Invitation | None
    ) -> Account:
        email = email_of(claim.email)
        account = await records.accounts.find(email=email)
        if account is None:
            self._check_provider_sign_up(email, claim, invitation)
            actor, verified = Actor(None, None, client), claim.email_verified
            return await self.add(
                records, actor, email, "", name=claim.name[:100], verified=verified, issuer=claim.issuer
            )
        if not claim.email_verified or account.verified_at is None:
            # Otherwise an attacker who signs up first with an address would share the account with its owner.
            raise NameTaken(f"{email} has an account already: sign in with its password.", "email")
        who = Actor(account, None, client)
        await self._context.note(records, who, "account.link", target=account.id, name=email, issuer=claim.issuer)
        return account

    def _check_provider_sign_up(self, email: str, claim: ProviderIdentity, invitation: Invitation | None) -> None:
        sign_up = self._context.settings.accounts.sign_up
        if sign_up == "open":
            return
        invited = invitation is not None and invitation.email == email and claim.email_verified
        if invited and invitation is not None and (invitation.by_operator or sign_up == "invited"):
            return
        raise SignUpClosed(f"{email} has no account here. {CLOSED}")


async def _own(records: Repositories, actor: Actor) -> Account:
    account = await records.accounts.get(actor.id)
    if account is None:
        raise NotFound("This account is gone.")
    return account
