"""Second factors of the caller's account: commands, answers and routes."""

from __future__ import annotations

from types import NoneType
from typing import Annotated, Any

from msgspec import Meta, Struct

from tollgate.api.base import Confidential, CreatedAt, Id, Moment, Route, text

MAX_TICKET = 1_000

_EXAMPLE = {"id": "eA", "rawId": "eA", "type": "public-key", "response": {}}

Name = Annotated[str, text("A display name; may be empty.", "laptop", min_length=0)]
Ticket = Annotated[
    str, text("Comes with the options; send it back.", "1700000000.x.y", min_length=0, max_length=MAX_TICKET)
]


class Passkey(Struct, frozen=True):
    """A passkey."""

    id: Id
    name: Name
    created_at: CreatedAt
    last_used_at: Annotated[Moment | None, Meta(description="When it last signed in; null: never.")] = None


class Factors(Struct, frozen=True):
    """What the account signs in with besides the password."""

    totp: Annotated[bool, Meta(description="Whether a code is required after the password.")]
    recovery_codes_left: Annotated[int, Meta(description="How many recovery codes are unused.")]
    passkeys: Annotated[list[Passkey], Meta(description="The account's passkeys.")]


class Enrolment(Confidential, frozen=True):
    """A secret for an authenticator app."""

    secret: Annotated[str, Meta(description="To enter in the app, in base32.")]
    uri: Annotated[str, Meta(description="The same for a QR code, `otpauth://…`.")]


class Code(Confidential, frozen=True, forbid_unknown_fields=True):
    """A code of the app, or a recovery code."""

    code: Annotated[str, text("Six digits, or a recovery code.", "123456", min_length=0, max_length=40)]


class RecoveryCodes(Confidential, frozen=True):
    """Codes that work once each, when the app is lost. Shown once."""

    recovery_codes: Annotated[list[str], Meta(description="Each works once.")]


class PasskeyOptions(Struct, frozen=True):
    """What a browser needs to create a passkey (WebAuthn, PublicKeyCredentialCreationOptionsJSON)."""

    ticket: Ticket
    options: Annotated[dict[str, Any], Meta(description="For `navigator.credentials.create`.")]


class PasskeyCredential(Struct, frozen=True):
    """What a browser created (WebAuthn, RegistrationResponseJSON)."""

    id: Annotated[str, Meta(description="The credential's id, in base64url.")]
    rawId: Annotated[str, Meta(description="The same.")]  # noqa: N815 - WebAuthn's name
    type: Annotated[str, Meta(description="`public-key`.")]
    response: Annotated[dict[str, Any], Meta(description="The authenticator's response.")]


class NewPasskey(Struct, frozen=True, forbid_unknown_fields=True):
    """A passkey that a browser created."""

    ticket: Ticket
    credential: Annotated[PasskeyCredential, Meta(description="As the browser returns it.", examples=[_EXAMPLE])]
    name: Name = ""


SHOW = Route("GET", "/me/factors", Factors)
BEGIN_TOTP = Route("POST", "/me/factors/totp", Enrolment)
CONFIRM_TOTP = Route("POST", "/me/factors/totp/confirm", RecoveryCodes)
END_TOTP = Route("POST", "/me/factors/totp/end", NoneType)
BEGIN_PASSKEY = Route("POST", "/me/factors/passkeys/options", PasskeyOptions)
ADD_PASSKEY = Route("POST", "/me/factors/passkeys", Passkey)
REMOVE_PASSKEY = Route("DELETE", "/me/factors/{factor}", NoneType)
