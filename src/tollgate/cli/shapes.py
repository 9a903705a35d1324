"""Types of answers that `tollgate.api` does not define. The server's own object is kept for `--json`.

Only essential members are required: the tool must work with servers of other versions. Reprs contain no secret.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field


class DeviceGrant(Struct, frozen=True):
    """A started device login (RFC 8628)."""

    device_code: str
    user_code: str
    verification_uri: str
    expires_in: Annotated[float, Meta(gt=0)]
    verification_uri_complete: str | None = None
    interval: Annotated[float, Meta(gt=0)] = 5

    def __repr__(self) -> str:
        return "DeviceGrant(…)"


class TokenResponse(Struct, frozen=True):
    """The answer of the token endpoint (RFC 6749)."""

    access_token: str
    refresh_token: str | None = None
    expires_in: Annotated[float, Meta(gt=0)] | None = None

    def __repr__(self) -> str:
        return "Tokens(…)"


class ApiFieldError(Struct, frozen=True):
    """One wrong member of a request."""

    detail: str = ""


class ApiProblem(Struct, frozen=True):
    """An error of the API (RFC 9457)."""

    status: int
    detail: str
    reason: str = ""
    request_id: str | None = None
    dns_name: str | None = None
    dns_value: str | None = None
    well_known_url: str | None = None
    problems: list[str] = field(default_factory=list)
    errors: list[ApiFieldError] = field(default_factory=list)


class TokenError(Struct, frozen=True):
    """An error of the token endpoint."""

    error: str
    error_description: str = ""
