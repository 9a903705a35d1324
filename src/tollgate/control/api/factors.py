"""Second factors of the caller's account: codes of an authenticator app, and passkeys."""

from __future__ import annotations

import msgspec
from litestar import Response
from litestar.params import JSONBody

from tollgate.api import factors
from tollgate.api.factors import Code, Enrolment, Factors, NewPasskey, Passkey, PasskeyOptions, RecoveryCodes
from tollgate.control.api.access import CurrentActor, Part, Plane
from tollgate.control.api.operations import SELF, serves
from tollgate.control.api.render import done, of, unstored
from tollgate.control.problems import (
    InvalidInput,
    LimitReached,
    LogInAgain,
    NotFound,
    PersonalTokenRefused,
    WrongPassword,
)

_REFUSED = (PersonalTokenRefused, InvalidInput)
_NEW = (*_REFUSED, LogInAgain)


@serves(factors.SHOW, tag=SELF)
async def get_factors(plane: Plane, actor: CurrentActor) -> Response[Factors]:
    """Show your second factors."""
    found = await plane.factors.list(actor)
    passkeys = [of(Passkey, each) for each in found.passkeys]
    return unstored(Factors(found.totp is not None, found.recovery_left, passkeys))


@serves(factors.BEGIN_TOTP, *_NEW, tag=SELF)
async def begin_totp(plane: Plane, actor: CurrentActor) -> Response[Enrolment]:
    """Get a secret for an authenticator app.

    It takes effect when a first code of it is sent to `/me/factors/totp/confirm`.
    """
    return unstored(await plane.factors.begin_totp(actor))


@serves(factors.CONFIRM_TOTP, *_REFUSED, tag=SELF)
async def confirm_totp(plane: Plane, actor: CurrentActor, data: JSONBody[Code]) -> Response[RecoveryCodes]:
    """Turn codes on with a first code."""
    return unstored(RecoveryCodes([*await plane.factors.confirm_totp(actor, data)]))


@serves(factors.END_TOTP, *_REFUSED, WrongPassword, tag=SELF)
async def end_totp(plane: Plane, actor: CurrentActor, data: JSONBody[Code]) -> Response[None]:
    """Turn codes off with a code."""
    await plane.factors.end_totp(actor, data)
    return done()


@serves(factors.BEGIN_PASSKEY, *_NEW, LimitReached, tag=SELF)
async def begin_passkey(plane: Plane, actor: CurrentActor) -> Response[PasskeyOptions]:
    """Get what a browser needs to create a passkey."""
    made = await plane.factors.begin_passkey(actor)
    return unstored(PasskeyOptions(made.ticket, msgspec.json.decode(made.options)))


@serves(factors.ADD_PASSKEY, *_REFUSED, WrongPassword, LimitReached, tag=SELF)
async def add_passkey(plane: Plane, actor: CurrentActor, data: JSONBody[NewPasskey]) -> Response[Passkey]:
    """Add a passkey that a browser created."""
    return unstored(of(Passkey, await plane.factors.add_passkey(actor, data)))


@serves(factors.REMOVE_PASSKEY, *_NEW, NotFound, tag=SELF)
async def remove_passkey(plane: Plane, actor: CurrentActor, factor: Part) -> Response[None]:
    """Remove a passkey."""
    await plane.factors.remove(actor, factor)
    return done()
