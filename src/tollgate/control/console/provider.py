"""Signing in with OpenID Connect: to the provider and back, with a cookie that is valid for minutes."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING

import msgspec
from litestar import Response
from msgspec import Struct

from tollgate.control.api.access import client
from tollgate.control.console import render, session
from tollgate.control.console.forms import FormFault
from tollgate.control.console.paths import HttpRequest, Plane, shown
from tollgate.control.console.safety import local_path
from tollgate.control.console.sign_in import form_page
from tollgate.control.oidc_rules import OidcError, ProviderIdentity, SignInStart
from tollgate.control.plane import ControlPlane
from tollgate.control.problems import NotFound, Problem
from tollgate.control.services.invitations import PATH as INVITATIONS
from tollgate.core.people import Invitation

if TYPE_CHECKING:
    from tollgate.control.oidc import OidcClient

SECONDS = 600


class _PendingSignIn(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A sign-in in progress, as the cookie stores it."""

    state: str
    nonce: str
    verifier: str
    back: str

    def __repr__(self) -> str:
        return "_PendingSignIn(…)"


@shown("/oidc/start")
async def start(request: HttpRequest, plane: Plane) -> Response[str]:
    """Send the browser to the provider."""
    oidc = _client(plane)
    back = local_path(request.query_params.get("next"))
    try:
        started = await oidc.start()
    except OidcError as error:
        return form_page(plane, back, fault=FormFault(str(error)), status=502)
    kept = _PendingSignIn(started.state, started.nonce, started.verifier, back)
    value = base64.urlsafe_b64encode(msgspec.json.encode(kept)).rstrip(b"=").decode()
    return render.to(started.url, [session.cookie(plane, _cookie_name(plane), value, SECONDS)])


@shown("/oidc/callback")
async def callback(request: HttpRequest, plane: Plane) -> Response[str]:
    """Handle the browser's return from the provider, once, and sign it in."""
    oidc = _client(plane)
    kept = _kept(request.cookies.get(_cookie_name(plane), ""))
    back = local_path(kept.back if kept else None)
    try:
        claim = await _finish(request, oidc, kept)
        invitation = await _invitation(plane, back)
        account = await plane.accounts.by_provider(client(request), claim, invitation)
    except OidcError as error:
        answer = form_page(plane, back, fault=FormFault(str(error)), status=400)
    except Problem as problem:
        answer = form_page(plane, back, fault=FormFault(problem.detail), problem=problem)
    else:
        answer = await session.enter(request, plane, account, back)
    answer.cookies.append(session.cookie(plane, _cookie_name(plane), "", 0))
    return answer


async def _finish(request: HttpRequest, oidc: OidcClient, kept: _PendingSignIn | None) -> ProviderIdentity:
    if kept is None:
        raise OidcError("The sign-in took too long, or was started in another browser. Start again.")
    query = {name: str(value) for name, value in request.query_params.items()}
    return await oidc.finish(query, SignInStart("", kept.state, kept.nonce, kept.verifier))


async def _invitation(plane: ControlPlane, back: str) -> Invitation | None:
    """The invitation that the sign-in returns to, with which an account may be created."""
    if not back.startswith(INVITATIONS):
        return None
    try:
        return (await plane.invitations.look(back))[0]
    except NotFound:
        return None


def _client(plane: ControlPlane) -> OidcClient:
    if plane.oidc is None:
        raise NotFound("This service has no sign-in provider: sign in with email and password.")
    return plane.oidc


def _kept(value: str) -> _PendingSignIn | None:
    try:
        padded = value + "=" * (-len(value) % 4)
        return msgspec.json.decode(base64.b64decode(padded, b"-_", validate=True), type=_PendingSignIn)
    except (binascii.Error, msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _cookie_name(plane: ControlPlane) -> str:
    """As that of the session: no other host, and no plain http, can have set it."""
    return "__Host-tollgate-oidc" if session.is_secure(plane) else "tollgate-oidc"
