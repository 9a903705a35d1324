"""What requests bring. Members that are left out stay as they are; unknown ones are refused.

A member's type is checked here. Its bounds stand here for the document alone: the services know them, and refuse
in words of their own. Only where a service would repeat a text of any length is it bound here.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from tollgate.control import webhooks
from tollgate.control.services import billing

LONGEST_NAME = 100


def text(description: str, example: str, *, minimum: int = 1, maximum: int = LONGEST_NAME) -> Meta:
    """Describe a text."""
    bounds = {"minLength": minimum, "maxLength": maximum}
    return Meta(description=description, examples=[example], extra_json_schema=bounds)


def count(description: str, example: int, minimum: int, maximum: int) -> Meta:
    """Describe a number."""
    bounds = {"minimum": minimum, "maximum": maximum}
    return Meta(description=description, examples=[example], extra_json_schema=bounds)


Moment = Annotated[datetime, Meta(tz=True)]


class _Body(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A body whose repr shows nothing, because some hold secrets."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"


# --- Money ---------------------------------------------------------------------------------------------


class BillingChange(_Body, frozen=True):
    """What to change of a team's spending cap and alerts."""

    spending_cap_micros: Annotated[
        int | UnsetType | None,
        count(
            "What it pays for a month at most, in millionths of a US dollar; null: no cap.",
            25_000_000,
            0,
            billing.MAX_CAP,
        ),
    ] = UNSET
    alert_webhook: Annotated[
        str | UnsetType | None,
        Meta(
            description="An https:// URL that is called at 50, 80 and 100 % of the cap; null: none.",
            examples=["https://app.example.com/alerts"],
            extra_json_schema={"maxLength": webhooks.LONGEST},
        ),
    ] = UNSET
    alert_emails: Annotated[
        bool | UnsetType,
        Meta(description="Whether owners and billing members get mail then.", examples=[True]),
    ] = UNSET
    buyer: Annotated[
        str | UnsetType,
        text("Whom invoices are made out to, line by line.", "Acme Ltd", minimum=0, maximum=billing.LONGEST_BUYER),
    ] = UNSET
    tax_number: Annotated[
        str | UnsetType, text("Its tax number.", "DE123456789", minimum=0, maximum=billing.LONGEST_TAX_NUMBER)
    ] = UNSET


# --- OAuth: forms, read one by one in `oauth.py`; unknown parameters are ignored (RFC 6749, section 3.2) ----

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
