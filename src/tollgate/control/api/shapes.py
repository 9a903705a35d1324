"""What answers show. Every member is always there; times are RFC 3339 in UTC.

`of` takes from a row what its shape names and nothing else, so that a new column is never shown by accident.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

from msgspec import Meta, Struct

from tollgate.control.services.devices import OAuthError

Shape = TypeVar("Shape", bound=Struct)
_TIMES = ("_at", "_until")

Next = Annotated[str | None, Meta(description="Give it as `after` for the next part; null at the end.")]
Secret = Annotated[str | None, Meta(description="Shown once: null where an `Idempotency-Key` is repeated.")]


def of(shape: type[Shape], row: Struct, **members: Any) -> Shape:
    """Show a row: members that are not given are its columns."""
    for name in shape.__struct_fields__:
        if name not in members:
            value = getattr(row, name)
            members[name] = moment(value) if name.endswith(_TIMES) else value
    return shape(**members)


def moment(seconds: float | None) -> datetime | None:
    """A time, from seconds since 1970."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


# --- Service and login ---------------------------------------------------------------------------------


class DeviceAuthorization(Struct, frozen=True):
    """A device login that waits for approval (RFC 8628, section 3.2)."""

    device_code: str
    user_code: str
    verification_uri: str
    verification_uri_complete: str
    expires_in: int
    interval: int

    def __repr__(self) -> str:
        return "DeviceAuthorization(…)"


class AccessToken(Struct, frozen=True):
    """What lets the tool in (RFC 6749, section 5.1)."""

    access_token: str
    token_type: str
    expires_in: int
    refresh_token: str

    def __repr__(self) -> str:
        return "AccessToken(…)"


class ServerMetadata(Struct, frozen=True):
    """Where the endpoints of OAuth are (RFC 8414)."""

    issuer: str
    device_authorization_endpoint: str
    token_endpoint: str
    revocation_endpoint: str
    grant_types_supported: list[str]
    response_types_supported: list[str]
    token_endpoint_auth_methods_supported: list[str]
    revocation_endpoint_auth_methods_supported: list[str]
    service_documentation: str


# --- What is wrong -------------------------------------------------------------------------------------


class OAuthProblem(Struct, frozen=True):
    """An error of OAuth (RFC 6749, section 5.2; RFC 8628, section 3.5)."""

    error: Annotated[str, Meta(extra_json_schema={"enum": list(OAuthError.codes)})]
    error_description: str
