"""One's second factors: codes of an authenticator app, and passkeys."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from tollgate.control.api import reading, shapes
from tollgate.control.api.access import CurrentActor, HttpRequest, Part, Plane
from tollgate.control.api.operations import SELF, Operation, endpoint
from tollgate.control.api.render import Answer, done, shown
from tollgate.control.problems import (
    InvalidInput,
    LimitReached,
    LogInAgain,
    NotFound,
    PersonalTokenRefused,
    WrongPassword,
)
from tollgate.control.services.factors import Enrolment
from tollgate.core.people import Factor

_EXAMPLE = {"id": "eA", "rawId": "eA", "type": "public-key", "response": {}}
_REFUSED = (PersonalTokenRefused, InvalidInput)
_NEW = (*_REFUSED, LogInAgain)


class Passkey(Struct, frozen=True):
    """A passkey."""

    id: str
    name: str
    created_at: datetime
    last_used_at: datetime | None


class Factors(Struct, frozen=True):
    """What signs one in beside the password."""

    totp: Annotated[bool, Meta(description="Whether a code is required after the password.")]
    recovery_codes_left: int
    passkeys: list[Passkey]


class RecoveryCodes(Struct, frozen=True):
    """Codes that work once each, when the app is gone. Shown once."""

    recovery_codes: list[str]

    def __repr__(self) -> str:
        return "RecoveryCodes(…)"


class Code(Struct, frozen=True, forbid_unknown_fields=True):
    """A code of the app, or a recovery code."""

    code: Annotated[str, Meta(description="Six digits, or a recovery code.", examples=["123456"], max_length=40)]


class PasskeyOptions(Struct, frozen=True):
    """What a browser needs to make a passkey (WebAuthn, PublicKeyCredentialCreationOptionsJSON)."""

    ticket: str
    options: dict[str, Any]


class PasskeyCredential(Struct, frozen=True):
    """What a browser made (WebAuthn, RegistrationResponseJSON)."""

    id: str
    rawId: str  # noqa: N815 - WebAuthn's name
    type: str
    response: dict[str, Any]


class NewPasskey(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A passkey that a browser made."""

    ticket: Annotated[
        str, Meta(description="The one that came with the options.", examples=["1700000000.x.y"], max_length=1_000)
    ]
    credential: Annotated[PasskeyCredential, Meta(description="As the browser gives it.", examples=[_EXAMPLE])]
    name: Annotated[str, Meta(description="A name for people to read.", examples=["laptop"], max_length=100)] = ""


@endpoint(
    "GET", "/me/factors", Operation(id="getFactors", tag=SELF, summary="Show one's second factors", gives=Factors)
)
async def show(plane: Plane, actor: CurrentActor) -> Answer:
    found = await plane.factors.list(actor)
    return shown(Factors(found.totp is not None, found.recovery_left, [_shape(each) for each in found.passkeys]))


@endpoint(
    "POST",
    "/me/factors/totp",
    Operation(
        id="beginTotp",
        tag=SELF,
        summary="Get a secret for an authenticator app",
        description="It counts once a first code of it was sent to `/me/factors/totp/confirm`.",
        gives=Enrolment,
        raises=_NEW,
    ),
)
async def begin(plane: Plane, actor: CurrentActor) -> Answer:
    return shown(await plane.factors.begin_totp(actor))


@endpoint(
    "POST",
    "/me/factors/totp/confirm",
    Operation(
        id="confirmTotp",
        tag=SELF,
        summary="Switch codes on by a first one",
        takes=Code,
        gives=RecoveryCodes,
        raises=_REFUSED,
    ),
)
async def confirm(request: HttpRequest, plane: Plane, actor: CurrentActor) -> Answer:
    sent = await reading.body(request, Code)
    return shown(RecoveryCodes([*await plane.factors.confirm_totp(actor, sent.code)]))


@endpoint(
    "POST",
    "/me/factors/totp/end",
    Operation(
        id="endTotp",
        tag=SELF,
        summary="Switch codes off, by one",
        takes=Code,
        status=204,
        raises=(*_REFUSED, WrongPassword),
    ),
)
async def end(request: HttpRequest, plane: Plane, actor: CurrentActor) -> Answer:
    await plane.factors.end_totp(actor, (await reading.body(request, Code)).code)
    return done()


@endpoint(
    "POST",
    "/me/factors/passkeys/options",
    Operation(
        id="beginPasskey",
        tag=SELF,
        summary="Get what a browser needs to make a passkey",
        gives=PasskeyOptions,
        raises=(*_NEW, LimitReached),
    ),
)
async def passkey_options(plane: Plane, actor: CurrentActor) -> Answer:
    made = await plane.factors.begin_passkey(actor)
    return shown(PasskeyOptions(made.ticket, msgspec.json.decode(made.options)))


@endpoint(
    "POST",
    "/me/factors/passkeys",
    Operation(
        id="addPasskey",
        tag=SELF,
        summary="Add a passkey that a browser made",
        takes=NewPasskey,
        gives=Passkey,
        raises=(*_REFUSED, WrongPassword, LimitReached),
    ),
)
async def add_passkey(request: HttpRequest, plane: Plane, actor: CurrentActor) -> Answer:
    sent = await reading.body(request, NewPasskey)
    credential = msgspec.json.encode(sent.credential).decode()
    return shown(_shape(await plane.factors.add_passkey(actor, sent.ticket, credential, sent.name)))


@endpoint(
    "DELETE",
    "/me/factors/{factor}",
    Operation(id="removePasskey", tag=SELF, summary="Remove a passkey", status=204, raises=(*_REFUSED, NotFound)),
)
async def remove(plane: Plane, actor: CurrentActor, factor: Part) -> Answer:
    await plane.factors.remove(actor, factor)
    return done()


def _shape(row: Factor) -> Passkey:
    return shapes.of(Passkey, row)


HANDLERS = [show, begin, confirm, end, passkey_options, add_passkey, remove]
