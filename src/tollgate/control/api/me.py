"""The caller's account, its logins and personal access tokens, and its audit log."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from litestar import Response
from litestar.params import JSONBody

from tollgate.api import me
from tollgate.api.me import (
    Account,
    CurrentLogin,
    EmailChange,
    EmailLink,
    LoginPage,
    NewEmail,
    NewPersonalToken,
    PasswordChange,
    PersonalToken,
    SelfChange,
)
from tollgate.control.api import render
from tollgate.control.api.access import CurrentActor, Part, Plane
from tollgate.control.api.creation import CreatesOnce, Made
from tollgate.control.api.operations import SELF, serves
from tollgate.control.api.reading import WantedPage
from tollgate.control.api.render import done, of, page_of, unstored
from tollgate.control.problems import (
    Busy,
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
from tollgate.control.service_context import Actor
from tollgate.core import people


@serves(me.SHOW, tag=SELF)
async def get_self(actor: CurrentActor) -> Response[Account]:
    """Show your account."""
    return unstored(_shown(actor, actor.account))


@serves(me.UPDATE, NotFound, tag=SELF)
async def update_self(plane: Plane, actor: CurrentActor, data: JSONBody[SelfChange]) -> Response[Account]:
    """Change your name."""
    return unstored(_shown(actor, await plane.accounts.update(actor, data)))


@serves(me.DELETE, PersonalTokenRefused, LastOwner, tag=SELF)
async def delete_self(plane: Plane, actor: CurrentActor) -> Response[None]:
    """Delete your account with its logins and memberships.

    The last owner of a team must first make another member an owner, or delete the team.
    """
    await plane.accounts.delete(actor)
    return done()


@serves(
    me.CHANGE_PASSWORD, WrongPassword, PersonalTokenRefused, LogInAgain, NotFound, TooManyAttempts, Busy, tag=SELF
)
async def change_password(plane: Plane, actor: CurrentActor, data: JSONBody[PasswordChange]) -> Response[None]:
    """Change your password.

    Other sessions, logins of the tool and personal access tokens end unless the body keeps them; `end_passkeys`
    removes the passkeys as well.
    """
    await plane.accounts.change_password(actor, data)
    return done()


@serves(
    me.CHANGE_EMAIL, WrongPassword, PersonalTokenRefused, LogInAgain, NotFound, NameTaken, TooManyAttempts, Busy,
    tag=SELF,
)  # fmt: skip
async def change_email(plane: Plane, actor: CurrentActor, data: JSONBody[NewEmail]) -> Response[EmailChange]:
    """Change your address.

    Where the service sends mail, a link goes to the new address, and the change takes effect when the link is
    opened or confirmed. Otherwise the address changes immediately and counts as not verified.
    """
    return unstored(await plane.email_changes.request(actor, data))


@serves(me.CONFIRM_EMAIL, PersonalTokenRefused, NotFound, NameTaken, tag=SELF)
async def confirm_email(plane: Plane, actor: CurrentActor, data: JSONBody[EmailLink]) -> Response[EmailChange]:
    """Confirm your new address with the link that was mailed to it."""
    return unstored(await plane.email_changes.confirm(actor, data))


@serves(me.LIST_LOGINS, tag=SELF)
async def list_logins(plane: Plane, actor: CurrentActor, page: WantedPage) -> Response[LoginPage]:
    """List your logins and personal access tokens."""
    current = actor.login.id if actor.login else ""
    found = await plane.logins.list(actor, page)
    return page_of(LoginPage, found, lambda login: _login(me.Login, login, current=login.id == current))


@serves(me.END_LOGIN, tag=SELF)
async def end_login(plane: Plane, actor: CurrentActor, login: Part) -> Response[None]:
    """End one of your logins, or delete a personal access token."""
    await plane.logins.end(actor, login)
    return done()


@serves(me.CREATE_TOKEN, PersonalTokenRefused, LogInAgain, LimitReached, NoSuchTeam, tag=SELF)
async def create_personal_token(
    plane: Plane, actor: CurrentActor, data: JSONBody[NewPersonalToken], once: CreatesOnce
) -> Response[PersonalToken]:
    """Create a personal access token.

    For programs that use this API. It appears in the list of logins.
    """
    return await once(lambda: plane.logins.new_personal(actor, data), _made)


def _shown(actor: Actor, account: people.Account | None) -> Account:
    assert account is not None  # noqa: S101 - `authenticate` requires an account and a login
    assert actor.login is not None  # noqa: S101
    login = _login(CurrentLogin, actor.login)
    return of(Account, account, has_password=bool(account.password_hash), login=login)


def _login(kind: type[render.Shape], login: people.Login, **members: Any) -> render.Shape:
    # The tool's login ends with its refresh token, not with its access token.
    expires_at: datetime | None = render.moment(login.refresh_until or login.expires_at)
    return of(kind, login, expires_at=expires_at, **members)


def _made(created: tuple[people.Login, str]) -> Made:
    login, secret = created
    return Made(_login(PersonalToken, login, current=False, secret=secret))
