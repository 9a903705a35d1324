"""The forms and answers of OAuth, as its RFCs define them."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from tollgate.api.base import Confidential, text
from tollgate.control.services.devices import OAuthError

Client = Annotated[str, Meta(description="Always `tollgate-cli`.", examples=["tollgate-cli"])]


class DeviceStart(Struct, frozen=True, kw_only=True):
    """A device login to start."""

    client_id: Client
    machine: Annotated[
        str | UnsetType,
        text("The machine that requests the login, for the person to recognise.", "ada@laptop", min_length=0),
    ] = UNSET


class TokenRequest(Struct, frozen=True, kw_only=True):
    """A request for an access token."""

    grant_type: Annotated[
        str,
        Meta(
            description="`urn:ietf:params:oauth:grant-type:device_code` or `refresh_token`.",
            examples=["refresh_token"],
        ),
    ]
    client_id: Client
    device_code: Annotated[str | UnsetType, Meta(description="With the first grant.")] = UNSET
    refresh_token: Annotated[
        str | UnsetType,
        Meta(description="With the second grant.", examples=["tgr_0123456789abcdefghijABCDEFGHIJ0123456789"]),
    ] = UNSET


class Revocation(Struct, frozen=True, kw_only=True):
    """A login to end."""

    token: Annotated[
        str,
        Meta(
            description="An access or refresh token of the login.",
            examples=["tgr_0123456789abcdefghijABCDEFGHIJ0123456789"],
        ),
    ]
    token_type_hint: Annotated[str | UnsetType, Meta(description="Not needed.")] = UNSET
    client_id: Client | UnsetType = UNSET


class DeviceAuthorization(Confidential, frozen=True):
    """A device login that waits for approval (RFC 8628, section 3.2)."""

    device_code: Annotated[str, Meta(description="For the token endpoint.")]
    user_code: Annotated[str, Meta(description="What the person enters to approve the login.")]
    verification_uri: Annotated[str, Meta(description="Where the person enters it.")]
    verification_uri_complete: Annotated[str, Meta(description="The same address with the code in it.")]
    expires_in: Annotated[int, Meta(description="Seconds until the codes expire.")]
    interval: Annotated[int, Meta(description="Seconds to wait between requests for the token.")]


class AccessToken(Confidential, frozen=True):
    """The tokens of a login (RFC 6749, section 5.1)."""

    access_token: Annotated[str, Meta(description="The credential of requests.")]
    token_type: Annotated[str, Meta(description="Always `Bearer`.")]
    expires_in: Annotated[int, Meta(description="Seconds until the access token expires.")]
    refresh_token: Annotated[str, Meta(description="For the next access token; it works once.")]


class ServerMetadata(Struct, frozen=True):
    """Where the endpoints of OAuth are (RFC 8414)."""

    issuer: Annotated[str, Meta(description="The address of the service.")]
    device_authorization_endpoint: Annotated[str, Meta(description="Where a device login is started.")]
    token_endpoint: Annotated[str, Meta(description="Where tokens are issued.")]
    revocation_endpoint: Annotated[str, Meta(description="Where a login is ended.")]
    grant_types_supported: Annotated[list[str], Meta(description="Grants of the token endpoint.")]
    response_types_supported: Annotated[list[str], Meta(description="None: there is no authorization endpoint.")]
    token_endpoint_auth_methods_supported: Annotated[
        list[str], Meta(description="How clients authenticate at the token endpoint.")
    ]
    revocation_endpoint_auth_methods_supported: Annotated[
        list[str], Meta(description="How clients authenticate at the revocation endpoint.")
    ]
    service_documentation: Annotated[str, Meta(description="The address of the documentation.")]


class OAuthProblem(Struct, frozen=True):
    """An error of OAuth (RFC 6749, section 5.2; RFC 8628, section 3.5)."""

    error: Annotated[
        str, Meta(description="Which error it is.", extra_json_schema={"enum": list(OAuthError.codes)})
    ]
    error_description: Annotated[str, Meta(description="What happened and what to do next.")]
