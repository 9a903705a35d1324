"""The caller's account, its logins and personal access tokens: commands, answers and routes."""

from __future__ import annotations

from types import NoneType
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from tollgate.api.base import Confidential, CreatedAt, Id, Moment, Page, Route, Secret, count, text

MIN_PASSWORD, MAX_PASSWORD = 10, 256
MAX_LINK = 1_000
DEFAULT_DAYS, MAX_DAYS = 90, 365
KINDS = ("console", "tool", "personal")

Name = Annotated[str, text("A display name; may be empty.", "Ada Lovelace", min_length=0)]
Current = Annotated[
    str, Meta(description="The current password; ignored if the account has none.", examples=["old-word-1"])
]
Kind = Annotated[
    str,
    Meta(
        description="`tool`: the command-line tool; `personal`: a personal access token; `console`: a browser.",
        examples=["tool"],
        extra_json_schema={"enum": list(KINDS)},
    ),
]
LoginName = Annotated[str, text("The machine, the browser, or what the token is for.", "ci")]
Expiry = Annotated[Moment | None, Meta(description="When it expires, unless it is renewed; null: never.")]
ReadOnly = Annotated[bool, Meta(description="Whether it can only read.", examples=[False])]


class SelfChange(Struct, frozen=True, forbid_unknown_fields=True):
    """What to change of the account."""

    name: Name | UnsetType = UNSET


class PasswordChange(Confidential, frozen=True, forbid_unknown_fields=True):
    """A new password."""

    current: Current
    new: Annotated[str, text("The new password.", "a-better-word-2", MIN_PASSWORD, MAX_PASSWORD)]
    end_sessions: Annotated[
        bool, Meta(description="Whether all other sessions of the console end.", examples=[True])
    ] = True
    end_devices: Annotated[
        bool, Meta(description="Whether all other logins of the tool end.", examples=[True])
    ] = True
    end_tokens: Annotated[
        bool, Meta(description="Whether personal access tokens are revoked.", examples=[True])
    ] = True
    end_passkeys: Annotated[bool, Meta(description="Whether all passkeys are removed.", examples=[False])] = False


class NewEmail(Confidential, frozen=True, forbid_unknown_fields=True):
    """A new address."""

    email: Annotated[str, text("The new address.", "ada@globex.example", max_length=254)]
    password: Current


class EmailLink(Confidential, frozen=True, forbid_unknown_fields=True):
    """A link that was mailed to a new address."""

    link: Annotated[
        str,
        text(
            "The whole link, or its last part.",
            "q83vEjRWeJASNFZ4kBI0VniQEjRWeJASMTc5NDc0NDAwMCBhZGFAZ2xvYmV4LmV4YW1wbGU",
            min_length=0,
            max_length=MAX_LINK,
        ),
    ]


class NewPersonalToken(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A personal access token to be created."""

    name: Annotated[str, text("What it is for.", "ci")]
    expires_in_days: Annotated[
        int | UnsetType | None, count(f"By default {DEFAULT_DAYS}; null: it never expires.", 30, 1, MAX_DAYS)
    ] = UNSET
    team: Annotated[
        str | None,
        Meta(
            description="The one team that it is for, by name or id; null: all of yours.", examples=["globex-labs"]
        ),
    ] = None
    read_only: ReadOnly = False


class CurrentLogin(Struct, frozen=True):
    """The login of this request."""

    id: Id
    kind: Kind
    name: LoginName
    expires_at: Expiry = None


class Account(Struct, frozen=True):
    """The caller's account."""

    id: Id
    email: Annotated[str, Meta(description="The account's address.")]
    name: Name
    created_at: CreatedAt
    has_password: Annotated[
        bool, Meta(description="Whether it has a password; otherwise only a provider signs it in.")
    ]
    login: Annotated[CurrentLogin, Meta(description="The login of this request.")]


class EmailChange(Struct, frozen=True):
    """The result of changing the address."""

    email: Annotated[str, Meta(description="The account's address now.")]
    mailed_to: Annotated[
        str | None,
        Meta(description="Where the link that confirms the new address was sent; null: it is already changed."),
    ] = None


class Login(Struct, frozen=True):
    """A login, or a personal access token."""

    id: Id
    kind: Kind
    name: LoginName
    created_at: CreatedAt
    last_used_at: Annotated[Moment | None, Meta(description="Accurate to a minute; null: never.")] = None
    expires_at: Expiry = None
    address: Annotated[str, Meta(description="The client address that it was created from.")] = ""
    current: Annotated[bool, Meta(description="Whether it is the login of this request.")] = False
    team_id: Annotated[str | None, Meta(description="The one team that it is for; null: all.")] = None
    read_only: ReadOnly = False


class PersonalToken(Login, Confidential, frozen=True):
    """A new personal access token."""

    secret: Secret = None


class LoginPage(Page[Login], frozen=True):
    """A page of the list of logins."""


SHOW = Route("GET", "/me", Account)
UPDATE = Route("PATCH", "/me", Account)
DELETE = Route("DELETE", "/me", NoneType)
CHANGE_PASSWORD = Route("POST", "/me/password", NoneType)
CHANGE_EMAIL = Route("POST", "/me/email", EmailChange)
CONFIRM_EMAIL = Route("POST", "/me/email/confirm", EmailChange)
LIST_LOGINS = Route("GET", "/me/logins", LoginPage)
END_LOGIN = Route("DELETE", "/me/logins/{login}", NoneType)
CREATE_TOKEN = Route("POST", "/me/tokens", PersonalToken, creates=True)
