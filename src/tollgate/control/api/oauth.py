"""OAuth 2.0 for the command-line tool: device login (RFC 8628), refresh (RFC 6749), revocation (RFC 7009).

Requests are forms; errors are OAuth's own JSON, not problem details.
"""

from __future__ import annotations

from litestar import Router

from tollgate.api.base import Nothing
from tollgate.control.api import oauth_types, reading
from tollgate.control.api.access import CurrentClient, HttpRequest, Plane
from tollgate.control.api.errors import DOCUMENTATION, oauth_answer
from tollgate.control.api.operations import LOGIN, Operation, endpoint
from tollgate.control.api.render import Answer, of, shown
from tollgate.control.problems import InvalidInput, LoginExpired, TooManyAttempts
from tollgate.control.services.devices import CLIENT_ID, OAuthError
from tollgate.control.services.logins import Secrets

DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
REFRESH_GRANT = "refresh_token"


class _Malformed(OAuthError):
    """A malformed request, with our own description."""

    def __init__(self, why: str) -> None:
        super().__init__("invalid_request")
        self.description = why


@endpoint(
    "POST",
    "/device_authorization",
    Operation(
        id="startDeviceLogin",
        tag=LOGIN,
        summary="Start a device login",
        description="A person approves it in a browser, at `verification_uri`, with `user_code`.",
        takes=oauth_types.DeviceStart,
        form=True,
        gives=oauth_types.DeviceAuthorization,
        raises=(TooManyAttempts,),
    ),
)
async def start(request: HttpRequest, plane: Plane, client: CurrentClient) -> Answer:
    form = await reading.form(request)
    _check_client(form)
    started = await plane.devices.start(client, form.get("machine", ""))
    return shown(of(oauth_types.DeviceAuthorization, started))


@endpoint(
    "POST",
    "/token",
    Operation(
        id="getAccessToken",
        tag=LOGIN,
        summary="Request an access token",
        description="After a device login (`authorization_pending` until it is approved), or with a refresh "
        "token, which is replaced on every use.",
        takes=oauth_types.TokenRequest,
        form=True,
        gives=oauth_types.AccessToken,
    ),
)
async def token(request: HttpRequest, plane: Plane, client: CurrentClient) -> Answer:
    form = await reading.form(request)
    grant = _need(form, "grant_type")
    _check_client(form)
    if grant == DEVICE_GRANT:
        return _given(await plane.devices.poll(client, _need(form, "device_code")))
    if grant == REFRESH_GRANT:
        return _given(await plane.logins.refresh(_need(form, "refresh_token"), client))
    raise OAuthError("unsupported_grant_type")


@endpoint(
    "POST",
    "/revoke",
    Operation(
        id="revokeLogin",
        tag=LOGIN,
        summary="End a login",
        description="The login that an access or refresh token belongs to. An unknown token is not an error.",
        takes=oauth_types.Revocation,
        form=True,
        gives=Nothing,
    ),
)
async def revoke(request: HttpRequest, plane: Plane, client: CurrentClient) -> Answer:
    form = await reading.form(request)
    secret = _need(form, "token")
    if "client_id" in form:
        _check_client(form)
    await plane.logins.revoke(client, secret)
    return shown(Nothing())


@endpoint(
    "GET",
    "/.well-known/oauth-authorization-server",
    Operation(
        id="getOAuthMetadata",
        tag=LOGIN,
        summary="Where the endpoints of OAuth are (RFC 8414)",
        gives=oauth_types.ServerMetadata,
    ),
)
async def metadata(plane: Plane) -> Answer:
    base = f"{plane.base_url}/api/v1/oauth"
    return shown(
        oauth_types.ServerMetadata(
            issuer=plane.base_url,
            device_authorization_endpoint=f"{base}/device_authorization",
            token_endpoint=f"{base}/token",
            revocation_endpoint=f"{base}/revoke",
            grant_types_supported=[DEVICE_GRANT, REFRESH_GRANT],
            response_types_supported=[],
            token_endpoint_auth_methods_supported=["none"],
            revocation_endpoint_auth_methods_supported=["none"],
            service_documentation=plane.base_url + DOCUMENTATION,
        )
    )


def router() -> Router:
    """The endpoints of OAuth under `/api/v1`."""
    return Router(
        path="/oauth",
        route_handlers=[start, token, revoke],
        exception_handlers={
            InvalidInput: lambda request, error: oauth_answer(request, _Malformed(error.detail)),
            LoginExpired: lambda request, _: oauth_answer(request, OAuthError("invalid_grant")),
        },
    )


def _need(form: dict[str, str], name: str) -> str:
    if name not in form:
        raise _Malformed(f"The parameter {name} is missing.")
    return form[name]


def _check_client(form: dict[str, str]) -> None:
    if _need(form, "client_id") != CLIENT_ID:
        raise OAuthError("invalid_client")


def _given(secrets: Secrets) -> Answer:
    return shown(
        oauth_types.AccessToken(
            access_token=secrets.access,
            token_type="Bearer",  # noqa: S106 - the name of a kind
            expires_in=secrets.expires_in,
            refresh_token=secrets.refresh,
        )
    )
