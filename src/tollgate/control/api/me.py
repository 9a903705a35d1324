"""One's own account: its name, password, logins, personal access tokens, and what one did."""

from __future__ import annotations

from msgspec import UNSET

from tollgate.control.api import bodies, reading, shapes
from tollgate.control.api.access import CurrentActor, HttpRequest, Part, Plane
from tollgate.control.api.creation import Made, once
from tollgate.control.api.operations import SELF, Operation, endpoint
from tollgate.control.api.render import Answer, done, listed, shown
from tollgate.control.problems import (
    Busy,
    InvalidInput,
    LastOwner,
    LimitReached,
    LogInAgain,
    NameTaken,
    NoSuchTeam,
    NotFound,
    PersonalTokenRefused,
    TooManyAttempts,
    WrongPassword,
)
from tollgate.control.service_context import Actor, email_of
from tollgate.control.services.logins import USUAL_DAYS
from tollgate.core.people import Account


@endpoint("GET", "/me", Operation(id="getSelf", tag=SELF, summary="Show oneself", gives=shapes.AccountView))
async def show(actor: CurrentActor) -> Answer:
    return _shown(actor, actor.account)


@endpoint(
    "PATCH",
    "/me",
    Operation(
        id="updateSelf",
        tag=SELF,
        summary="Change one's name",
        takes=bodies.SelfChange,
        gives=shapes.AccountView,
        raises=(NotFound,),
    ),
)
async def update(request: HttpRequest, plane: Plane, actor: CurrentActor) -> Answer:
    change = await reading.body(request, bodies.SelfChange)
    account = actor.account if change.name is UNSET else await plane.accounts.rename(actor, change.name)
    return _shown(actor, account)


@endpoint(
    "POST",
    "/me/password",
    Operation(
        id="changePassword",
        tag=SELF,
        summary="Change one's password",
        description="All other logins end, personal access tokens included.",
        takes=bodies.PasswordChange,
        status=204,
        raises=(WrongPassword, PersonalTokenRefused, LogInAgain, NotFound, TooManyAttempts, Busy),
    ),
)
async def change_password(request: HttpRequest, plane: Plane, actor: CurrentActor) -> Answer:
    change = await reading.body(request, bodies.PasswordChange)
    try:
        await plane.accounts.change_password(actor, change.current, change.new)
    except InvalidInput as refused:
        # The service knows one password, this body two.
        raise InvalidInput(refused.detail, field="new") from refused
    return done()


@endpoint(
    "POST",
    "/me/email",
    Operation(
        id="changeEmail",
        tag=SELF,
        summary="Change one's address",
        description="Where the service sends mail, a link goes to the new address, which stays unused until the "
        "link is opened or confirmed. Elsewhere the address changes at once and counts as not verified.",
        takes=bodies.NewEmail,
        gives=shapes.EmailChangeView,
        raises=(WrongPassword, PersonalTokenRefused, LogInAgain, NotFound, NameTaken, TooManyAttempts, Busy),
    ),
)
async def change_email(request: HttpRequest, plane: Plane, actor: CurrentActor) -> Answer:
    change = await reading.body(request, bodies.NewEmail)
    is_mailed = await plane.email_changes.request(actor, change.email, change.password)
    address = email_of(change.email)
    return shown(shapes.EmailChangeView(actor.label if is_mailed else address, address if is_mailed else None))


@endpoint(
    "POST",
    "/me/email/confirm",
    Operation(
        id="confirmEmail",
        tag=SELF,
        summary="Confirm one's new address by the link that was mailed to it",
        takes=bodies.EmailLink,
        gives=shapes.EmailChangeView,
        raises=(PersonalTokenRefused, NotFound, NameTaken),
    ),
)
async def confirm_email(request: HttpRequest, plane: Plane, actor: CurrentActor) -> Answer:
    link = (await reading.body(request, bodies.EmailLink)).link
    return shown(shapes.EmailChangeView((await plane.email_changes.confirm(actor, link)).email, None))


@endpoint(
    "GET",
    "/me/logins",
    Operation(
        id="listLogins",
        tag=SELF,
        summary="List one's logins and personal access tokens",
        lists=True,
        gives=shapes.LoginPage,
    ),
)
async def logins(request: HttpRequest, plane: Plane, actor: CurrentActor) -> Answer:
    return listed(await plane.logins.list(actor, reading.page(request)), lambda row: shapes.login(row, actor))


@endpoint(
    "DELETE",
    "/me/logins/{login}",
    Operation(
        id="endLogin", tag=SELF, summary="End a login, or delete a personal access token of one's own", status=204
    ),
)
async def end_login(plane: Plane, actor: CurrentActor, login: Part) -> Answer:
    await plane.logins.end(actor, login)
    return done()


@endpoint(
    "POST",
    "/me/tokens",
    Operation(
        id="createPersonalToken",
        tag=SELF,
        summary="Make a personal access token",
        description="For programs that use this API. They are in the list of logins.",
        takes=bodies.NewPersonalToken,
        creates=True,
        status=201,
        gives=shapes.PersonalToken,
        raises=(PersonalTokenRefused, LimitReached, NoSuchTeam),
    ),
)
async def create_token(request: HttpRequest, plane: Plane, actor: CurrentActor) -> Answer:
    sent = await reading.body(request, bodies.NewPersonalToken)
    days = USUAL_DAYS if sent.expires_in_days is UNSET else sent.expires_in_days
    team = None if sent.team is UNSET else sent.team
    read_only = False if sent.read_only is UNSET else sent.read_only

    async def create() -> Made:
        login, secret = await plane.logins.new_personal(actor, sent.name, days, team=team, read_only=read_only)
        return Made(shapes.personal_token(login, actor, secret))

    return await once(request, plane, actor, create)


@endpoint(
    "GET",
    "/me/audit",
    Operation(
        id="listOwnAudit",
        tag=SELF,
        summary="List what one did oneself, newest first",
        lists=True,
        gives=shapes.AuditPage,
    ),
)
async def audit(request: HttpRequest, plane: Plane, actor: CurrentActor) -> Answer:
    return listed(await plane.audit.of_self(actor, reading.page(request)), shapes.audit_entry)


def _shown(actor: Actor, account: Account | None) -> Answer:
    assert account is not None  # noqa: S101 - nobody gets here without an account and a login
    assert actor.login is not None  # noqa: S101
    return shown(shapes.account(account, actor.login))


@endpoint(
    "DELETE",
    "/me",
    Operation(
        id="deleteSelf",
        tag=SELF,
        summary="Delete one's account with its logins and memberships",
        description="The last owner of a team makes somebody else one, or deletes the team, first.",
        status=204,
        raises=(PersonalTokenRefused, LastOwner),
    ),
)
async def delete(plane: Plane, actor: CurrentActor) -> Answer:
    await plane.accounts.delete(actor)
    return done()


HANDLERS = [
    show, update, delete, change_password, change_email, confirm_email, logins, end_login, create_token, audit,
]  # fmt: skip
