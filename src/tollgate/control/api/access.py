"""The authenticated actor and the client's address, which handlers take beside the request.

The only credential is `Authorization: Bearer`. Cookies are never read, which rules out cross-site request forgery.
"""

from __future__ import annotations

from typing import Any, cast

from litestar import Request
from litestar.connection import ASGIConnection
from litestar.di import NamedDependency
from litestar.handlers import BaseRouteHandler
from litestar.params import FromPath
from litestar.types import Scope

from tollgate.control.plane import ControlPlane
from tollgate.control.problems import NotLoggedIn, PersonalTokenRefused
from tollgate.control.service_context import OPERATOR, Actor, ClientInfo
from tollgate.core.people import PERSONAL, TOOL

ME = "/api/v1/me"

# Set in the state of a request whose credential is valid: workers reserve slots for such clients.
KNOWN = "known"

# What handlers and dependencies take, by name: `request`, `plane`, `client`, `actor`, and parts of the path.
HttpRequest = Request[Any, Any, Any]
Plane = NamedDependency[ControlPlane]
CurrentClient = NamedDependency[ClientInfo]
CurrentActor = NamedDependency[Actor]
Part = FromPath[str]


def request_id(scope: Scope) -> str:
    """The request's id, which the forwarding worker always sets."""
    given: bytes = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
    return given.decode("latin-1")


def client(request: HttpRequest) -> ClientInfo:
    sender = request.scope.get("client")
    agent, name = (request.headers.get(header, "") for header in ("user-agent", "x-request-id"))
    return ClientInfo(sender[0] if sender else "", agent, name)


async def actor(request: HttpRequest, plane: Plane, client: CurrentClient) -> Actor:
    return request.scope.get("user") or await _authenticated(request, plane, client)


async def authenticate(connection: ASGIConnection[Any, Any, Any, Any], _handler: BaseRouteHandler) -> None:
    """Guard an endpoint: the credential is checked before the body is read.

    `tollgate admin` calls the application in its own process, as the operator.
    """
    request = cast("HttpRequest", connection)
    plane: ControlPlane = connection.app.state.plane
    if request.scope.get("user") is not OPERATOR:
        request.scope["user"] = await _authenticated(request, plane, client(request))


async def _authenticated(request: HttpRequest, plane: ControlPlane, client: ClientInfo) -> Actor:
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        raise NotLoggedIn
    found = await plane.logins.actor(client, secret.strip(), TOOL, PERSONAL)
    request.scope.setdefault("state", {})[KNOWN] = True
    login, reads = found.login, request.method in {"GET", "HEAD"}
    if login is not None and login.read_only and not reads:
        raise PersonalTokenRefused("change anything: it is for reading")
    is_within = "team" in request.path_params or (reads and request.scope["path"].rstrip("/") == ME)
    if login is not None and login.team_id is not None and not is_within:
        raise PersonalTokenRefused("do this: it is for one team")
    return found
