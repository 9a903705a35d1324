"""The session cookie: from a request to its actor. Services decide what a session may do."""

from __future__ import annotations

from litestar import Response
from litestar.datastructures import Cookie

from tollgate.control.api.access import KNOWN, client
from tollgate.control.console import render
from tollgate.control.console.paths import HttpRequest
from tollgate.control.plane import ControlPlane
from tollgate.control.problems import LoginExpired, NotLoggedIn
from tollgate.control.service_context import Actor
from tollgate.core.people import CONSOLE, Account
from tollgate.errors import TollgateError


class SignInFirst(TollgateError):
    """The page requires signing in; after that, the browser is sent to `back`."""

    def __init__(self, back: str) -> None:
        self.back = back
        super().__init__("sign in first")


async def actor_of(request: HttpRequest, plane: ControlPlane) -> Actor | None:
    secret = request.cookies.get(cookie_name(plane))
    if secret is None:
        return None
    try:
        found = await plane.logins.actor(client(request), secret, CONSOLE)
    except (NotLoggedIn, LoginExpired):
        return None
    request.scope.setdefault("state", {})[KNOWN] = True
    return found


async def signed_in(request: HttpRequest, plane: ControlPlane, *, back: str) -> tuple[Actor, Account]:
    """The signed-in actor; without one, redirect to sign in and back."""
    actor = await actor_of(request, plane)
    if actor is None or actor.account is None:
        raise SignInFirst(back)
    return actor, actor.account


async def begin(request: HttpRequest, plane: ControlPlane, account: Account) -> tuple[str, Cookie]:
    """Sign a browser in, always with a new session, which prevents session fixation."""
    old = request.cookies.get(cookie_name(plane))
    if old is not None:
        await plane.logins.revoke(client(request), old)
    secret = await plane.logins.open_session(client(request), account)
    seconds = 3600 * plane.settings.accounts.session_hours
    return secret, cookie(plane, cookie_name(plane), secret, seconds)


async def enter(request: HttpRequest, plane: ControlPlane, account: Account, path: str) -> Response[str]:
    _, session_cookie = await begin(request, plane, account)
    return render.to(path, [session_cookie])


async def leave(request: HttpRequest, plane: ControlPlane, path: str) -> Response[str]:
    secret = request.cookies.get(cookie_name(plane))
    if secret is not None:
        await plane.logins.revoke(client(request), secret)
    return render.to(path, [cookie(plane, cookie_name(plane), "", 0)])


def cookie_name(plane: ControlPlane) -> str:
    """Over https, the `__Host-` prefix ensures that no other host and no plain http has set it."""
    return "__Host-tollgate" if is_secure(plane) else "tollgate"


def is_secure(plane: ControlPlane) -> bool:
    return plane.base_url.startswith("https://")


def cookie(plane: ControlPlane, name: str, value: str, seconds: int) -> Cookie:
    """A cookie for our pages alone; with 0 seconds, its deletion."""
    return Cookie(
        key=name, value=value, max_age=seconds, path="/", secure=is_secure(plane), httponly=True, samesite="lax"
    )
