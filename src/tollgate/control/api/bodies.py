"""The forms of OAuth, read one by one in `oauth.py`; unknown parameters are ignored (RFC 6749, section 3.2)."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

LONGEST_NAME = 100


def text(description: str, example: str, *, minimum: int = 1, maximum: int = LONGEST_NAME) -> Meta:
    """Describe a text."""
    bounds = {"minLength": minimum, "maxLength": maximum}
    return Meta(description=description, examples=[example], extra_json_schema=bounds)


Client = Annotated[str, Meta(description="Always `tollgate-cli`.", examples=["tollgate-cli"])]


class DeviceStart(Struct, frozen=True, kw_only=True):
    """A device login to begin."""

    client_id: Client
    machine: Annotated[
        str | UnsetType,
        text("The machine that requests the login, for the person to recognise.", "ada@laptop", minimum=0),
    ] = UNSET


class TokenRequest(Struct, frozen=True, kw_only=True):
    """A question for an access token."""

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
