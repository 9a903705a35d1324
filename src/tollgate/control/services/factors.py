"""Second factors: codes of an authenticator app with recovery codes, and passkeys (WebAuthn).

A passkey signs in by itself; a code is required after the password. State between two steps (a challenge, an
account whose password was correct) is not stored: it goes to the browser and back, signed and short-lived.
"""

from __future__ import annotations

import base64
import hmac
import secrets as random
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from tollgate.api.factors import Code, Enrolment, NewPasskey
from tollgate.control.commands import checked
from tollgate.control.problems import InvalidInput, LimitReached, NotFound, WrongPassword
from tollgate.control.service_context import MAX_ROWS, Actor, ClientInfo, ServiceContext, name_of
from tollgate.control.services import throttle
from tollgate.core import secrets, totp
from tollgate.core.address_shares import limit_key
from tollgate.core.people import PASSKEY, RECOVERY, TOTP, Account, Factor, Replay
from tollgate.core.sealed import BrokenSeal, Seal
from tollgate.lazy_module import LazyModule
from tollgate.store.base import Conflict, Repositories

if TYPE_CHECKING:
    import webauthn
    from webauthn.helpers import exceptions, structs
else:
    # Eight megabytes: loaded when a passkey is first used.
    webauthn = LazyModule("webauthn")
    exceptions, structs = LazyModule("webauthn.helpers.exceptions"), LazyModule("webauthn.helpers.structs")

LOOPBACK = ("127.0.0.1", "::1")
MAX_PASSKEYS = 20
RECOVERY_CODES = 10
TICKET_SECONDS = 300.0
_CODE_LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"
WRONG_CODE = "The code is wrong or was used before: type the one that the app shows now."
WRONG_PASSKEY = "The passkey was not accepted: try again, or sign in with your password."


class AccountFactors(Struct, frozen=True):
    """What an account has beside its password."""

    passkeys: list[Factor]
    totp: Factor | None
    recovery_left: int


class Challenge(Struct, frozen=True):
    """WebAuthn's options for a browser, and a ticket that it sends back."""

    options: str
    ticket: str


class SecondFactors:
    """Codes and passkeys."""

    def __init__(self, context: ServiceContext, *keys: bytes | None) -> None:
        """Under the first key; what is under the others is found, and moved when it is used."""
        self._context = context
        self._keys = [key for key in keys if key]
        self._seals = [Seal(key, "totp_", totp.SECRET_BYTES) for key in self._keys]

    async def list(self, actor: Actor) -> AccountFactors:
        async with self._context.store.reading() as records:
            return await self._of(records, actor.id)

    async def _of(self, records: Repositories, account_id: str) -> AccountFactors:
        factors = await records.factors.page(100, account_id=account_id)
        codes = next((each for each in factors if each.kind == TOTP and each.active), None)
        left = sum(1 for each in factors if each.kind == RECOVERY)
        return AccountFactors([each for each in factors if each.kind == PASSKEY], codes, left)

    async def remove(self, actor: Actor, factor_id: str) -> None:
        self._context.recent(actor, "remove a passkey")
        async with self._context.store.changing() as records:
            passkey = await records.factors.find(id=factor_id, account_id=actor.id, kind=PASSKEY)
            if passkey is None:
                raise NotFound(f"You have no passkey {factor_id[:60]}: see your account's page.")
            await records.factors.remove(id=passkey.id)
            await self._context.note(records, actor, "passkey.remove", target=passkey.id, name=passkey.name)

    # --- Codes -----------------------------------------------------------------------------------------

    async def begin_totp(self, actor: Actor) -> Enrolment:
        """Create a secret for an app. It takes effect when a first code of it is confirmed."""
        account = self._context.recent(actor, "set up codes")
        secret = random.token_bytes(totp.SECRET_BYTES)
        sealed = self._seals[0].close(account.id, secret).encode()
        async with self._context.store.changing() as records:
            if (await self._of(records, account.id)).totp is not None:
                raise InvalidInput("Codes are on already: turn them off first.")
            await records.factors.remove(account_id=account.id, kind=TOTP)
            await records.factors.add(
                Factor(secrets.new_id("fac"), account.id, TOTP, "App", self._context.now(), sealed, active=False)
            )
        return Enrolment(totp.shown(secret), totp.uri(secret, account.email, "Tollgate"))

    async def confirm_totp(self, actor: Actor, given: Code) -> Sequence[str]:
        """Turn codes on with a first code; return the recovery codes, which are shown once."""
        account = actor.person("set up codes")
        code = checked(given).code
        async with self._context.store.changing() as records:
            app = await records.factors.find(account_id=account.id, kind=TOTP, active=False)
            if app is None:
                raise InvalidInput("There is no new secret to confirm: start again.")
            step = totp.step_of(self._secret(app), _digits(code), self._context.now())
            if step is None:
                raise InvalidInput(WRONG_CODE, field="code")
            await records.factors.replace(replace(app, active=True, counter=step))
            codes = await self._new_recovery_codes(records, account)
            await self._context.note(records, actor, "totp.on", target=app.id, name=account.email)
        return codes

    async def end_totp(self, actor: Actor, given: Code) -> None:
        account = actor.person("turn codes off")
        await self.check_code(actor.client, account, checked(given).code)
        async with self._context.store.changing() as records:
            await records.factors.remove(account_id=account.id, kind=(TOTP, RECOVERY))
            await self._context.note(records, actor, "totp.off", target=account.id, name=account.email)

    async def needs_code(self, account: Account) -> bool:
        """Whether this account signs in with a code after the password."""
        async with self._context.store.reading() as records:
            return await records.factors.find(account_id=account.id, kind=TOTP, active=True) is not None

    async def check_code(self, client: ClientInfo, account: Account, code: str) -> None:
        """Accept a code of the app, or a recovery code, once. Wrong codes are throttled."""
        async with self._context.store.changing() as records:
            guards = await self._guards(records, client, account)
            before = await throttle.begin(self._context, records, guards, "wrong codes")
            fits = await self._take_code(records, account, code)
            if fits:
                await throttle.take_back_all(records, guards, before)
        # After the transaction, so that the failure stays counted.
        if not fits:
            raise WrongPassword(WRONG_CODE)

    async def _guards(
        self, records: Repositories, client: ClientInfo, account: Account
    ) -> Sequence[throttle.Guard]:
        """What a wrong code counts against: the client address, and the account.

        For the account, addresses with a login of it are counted apart from all others: an attacker who knows the
        password must not lock the owner out.
        """
        here = limit_key(client.address)
        logins = await records.logins.page(MAX_ROWS, account_id=account.id)
        known = any(limit_key(login.address) == here for login in logins)
        key = self._context.key("totp", f"{account.id} {here}" if known else account.id)
        from_here = throttle.guards_from(self._context, "totp-from", client, throttle.CODE)
        return [(key, throttle.CODE), *from_here]

    async def _take_code(self, records: Repositories, account: Account, code: str) -> bool:
        now = self._context.now()
        app = await records.factors.find(account_id=account.id, kind=TOTP, active=True)
        if app is not None:
            step = totp.step_of(self._secret(app), _digits(code), now, app.counter)
            if step is not None:
                # Sealed again, so that an old key can be removed.
                sealed = self._seals[0].close(account.id, self._secret(app)).encode()
                await records.factors.replace(replace(app, counter=step, last_used_at=now, secret=sealed))
                return True
        digests = self._recovery_digests(account, code)
        return await records.factors.remove(account_id=account.id, kind=RECOVERY, secret=digests) > 0

    async def _new_recovery_codes(self, records: Repositories, account: Account) -> Sequence[str]:
        await records.factors.remove(account_id=account.id, kind=RECOVERY)
        codes = ["".join(random.choice(_CODE_LETTERS) for _ in range(10)) for _ in range(RECOVERY_CODES)]
        for code in codes:
            digest = self._recovery_digests(account, code)[0]
            await records.factors.add(
                Factor(secrets.new_id("fac"), account.id, RECOVERY, "", self._context.now(), digest)
            )
        return [f"{code[:5]}-{code[5:]}" for code in codes]

    def _secret(self, app: Factor) -> bytes:
        for seal in self._seals:
            with suppress(BrokenSeal):
                return seal.open(app.account_id, app.secret.decode())
        raise NotFound("The secret of the app can no longer be read: contact the operator.")

    def _recovery_digests(self, account: Account, code: str) -> tuple[bytes, ...]:
        text = _recovery_text(account, code).encode(errors="surrogatepass")
        return tuple(secrets.digest(text, key, secrets.RECOVERY_CODES) for key in self._keys)

    # --- Passkeys --------------------------------------------------------------------------------------

    async def begin_passkey(self, actor: Actor) -> Challenge:
        account = self._context.recent(actor, "add a passkey")
        async with self._context.store.reading() as records:
            held = (await self._of(records, account.id)).passkeys
        _check_room(len(held))
        options = webauthn.generate_registration_options(
            rp_id=self._host,
            rp_name="Tollgate",
            user_id=account.id.encode(),
            user_name=account.email,
            user_display_name=account.name or account.email,
            exclude_credentials=[structs.PublicKeyCredentialDescriptor(each.credential or b"") for each in held],
            authenticator_selection=structs.AuthenticatorSelectionCriteria(
                resident_key=structs.ResidentKeyRequirement.REQUIRED,
                user_verification=structs.UserVerificationRequirement.REQUIRED,
            ),
        )
        return Challenge(webauthn.options_to_json(options), self._ticket("make", account.id, options.challenge))

    async def add_passkey(self, actor: Actor, wanted: NewPasskey) -> Factor:
        account = actor.person("add a passkey")
        challenge = self._challenge("make", account.id, checked(wanted).ticket)
        try:
            found = webauthn.verify_registration_response(
                credential=msgspec.json.encode(wanted.credential).decode(),
                expected_challenge=challenge,
                expected_rp_id=self._host,
                expected_origin=self._origins,
                require_user_verification=True,
            )
        except _unreadable() as error:
            raise InvalidInput("The browser's passkey could not be read: try again.") from error
        passkey = Factor(
            secrets.new_id("fac"),
            account.id,
            PASSKEY,
            name_of(wanted.name or "Passkey"),
            self._context.now(),
            found.credential_public_key,
            found.credential_id,
            found.sign_count,
        )
        async with self._context.store.changing() as records:
            # Again: one ticket may be used for several passkeys.
            _check_room(await records.factors.count(account_id=account.id, kind=PASSKEY))
            try:
                await records.factors.add(passkey)
            except Conflict as error:
                raise InvalidInput("This passkey is registered already.") from error
            await self._context.note(records, actor, "passkey.add", target=passkey.id, name=passkey.name)
        return passkey

    def begin_sign_in(self) -> Challenge:
        """Options for a browser to sign in with a passkey of any account."""
        options = webauthn.generate_authentication_options(
            rp_id=self._host, user_verification=structs.UserVerificationRequirement.REQUIRED
        )
        return Challenge(webauthn.options_to_json(options), self._ticket("use", "", options.challenge))

    async def sign_in(self, ticket: str, credential: str) -> Account:
        """The account whose passkey signed the challenge."""
        challenge = self._challenge("use", "", ticket)
        async with self._context.store.changing() as records:
            passkey = await records.factors.find(credential=_credential_id(credential), kind=PASSKEY)
            account = await records.accounts.get(passkey.account_id) if passkey else None
            if passkey is None or account is None or not account.active:
                raise WrongPassword(WRONG_PASSKEY)
            try:
                used = webauthn.verify_authentication_response(
                    credential=credential,
                    expected_challenge=challenge,
                    expected_rp_id=self._host,
                    expected_origin=self._origins,
                    require_user_verification=True,
                    credential_public_key=passkey.secret,
                    credential_current_sign_count=passkey.counter,
                )
            except _unreadable():
                raise WrongPassword(WRONG_PASSKEY) from None
            # Synchronised passkeys have no counter, so each challenge is accepted once.
            used_up = Replay(self._context.key("passkey", challenge.hex()), b"", self._context.now())
            try:
                await records.replays.add(used_up)
            except Conflict:
                raise WrongPassword(WRONG_PASSKEY) from None
            await records.factors.replace(
                replace(passkey, counter=used.new_sign_count, last_used_at=self._context.now())
            )
        return account

    @property
    def _host(self) -> str:
        """The relying party id of passkeys. It cannot be an IP address, so for loopback it is `localhost`."""
        host = urlsplit(self._context.base_url).hostname or ""
        return "localhost" if host in LOOPBACK else host

    @property
    def _origins(self) -> Any:
        parts = urlsplit(self._context.base_url)
        port = f":{parts.port}" if parts.port else ""
        return [f"{parts.scheme}://{parts.netloc}", f"{parts.scheme}://{self._host}{port}"]

    # --- Tickets ---------------------------------------------------------------------------------------

    def pending(self, account: Account) -> str:
        """A ticket for an account whose password was correct and whose code is not checked yet."""
        return self._ticket("code", "", f"{account.id} {self._password_proof(account)}".encode())

    async def account_of(self, ticket: str) -> Account:
        account_id, _, proof = self._challenge("code", "", ticket).decode().partition(" ")
        async with self._context.store.reading() as records:
            account = await records.accounts.get(account_id)
        # The password may have been changed since.
        if account is None or not account.active or proof != self._password_proof(account):
            raise WrongPassword
        return account

    def _password_proof(self, account: Account) -> str:
        return self._context.digest(account.password_hash, secrets.PASSWORD_PROOFS).hex()

    def _ticket(self, purpose: str, scope: str, content: bytes) -> str:
        until = int(self._context.now() + TICKET_SECONDS)
        text = base64.urlsafe_b64encode(content).decode()
        return f"{until}.{text}.{self._mark(purpose, scope, until, text)}"

    def _challenge(self, purpose: str, scope: str, ticket: str) -> bytes:
        until, _, rest = ticket[:1_000].partition(".")
        text, _, mark = rest.partition(".")
        good = until.isdecimal() and hmac.compare_digest(
            mark.encode(), self._mark(purpose, scope, int(until or 0), text).encode()
        )
        if not good or self._context.now() >= int(until):
            raise WrongPassword("It took too long: start again.")
        return base64.urlsafe_b64decode(text)

    def _mark(self, purpose: str, scope: str, until: int, text: str) -> str:
        return self._context.digest(f"{purpose} {scope} {until} {text}", secrets.TICKETS).hex()


def _check_room(passkeys: int) -> None:
    if passkeys >= MAX_PASSKEYS:
        raise LimitReached(f"You have {passkeys} passkeys: remove some first.", limit=MAX_PASSKEYS)


def _recovery_text(account: Account, code: str) -> str:
    plain = "".join(letter for letter in code.lower() if letter.isalnum())
    return f"recovery code {account.id} {plain}"


def _digits(code: str) -> str:
    return "".join(letter for letter in code if letter.isdecimal() and letter.isascii())


class _Credential(Struct):
    rawId: str  # noqa: N815 - WebAuthn's name


def _credential_id(credential: str) -> bytes:
    try:
        text = msgspec.json.decode(credential, type=_Credential).rawId
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise WrongPassword(WRONG_PASSKEY) from None


def _unreadable() -> tuple[type[Exception], ...]:
    """What the library raises for malformed or forged input."""
    wrong_types = (TypeError, AttributeError, IndexError)
    return (exceptions.WebAuthnException, ValueError, KeyError, RecursionError, *wrong_types)
