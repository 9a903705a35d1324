"""What the management API answers, as values (frozen). The server's own object is kept beside for `--json`.

Only what a thing cannot be without is required: a member that another version of the server lacks must not
stop the tool. Secrets stay out of every repr.
"""

from __future__ import annotations

import datetime
from typing import Annotated, Any, Generic, TypeVar

from msgspec import Meta, Struct, field

T = TypeVar("T")

Moment = Annotated[datetime.datetime, Meta(tz=True)]


class Page(Struct, Generic[T], frozen=True):
    """A part of a list, and the cursor of the next part."""

    items: list[T]
    next: str | None = None


class LoginOfSelf(Struct, frozen=True):
    """The login that asks."""

    id: str
    kind: str
    name: str = ""
    expires_at: Moment | None = None


class Account(Struct, frozen=True):
    """Oneself."""

    id: str
    email: str
    name: str = ""
    created_at: Moment | None = None
    has_password: bool = True
    login: LoginOfSelf | None = None


class Login(Struct, frozen=True):
    """A login or personal access token of oneself."""

    id: str
    kind: str
    name: str = ""
    created_at: Moment | None = None
    last_used_at: Moment | None = None
    expires_at: Moment | None = None
    address: str | None = None
    current: bool = False
    secret: str | None = None

    def __repr__(self) -> str:
        return f"Login({self.id!r}, {self.kind!r})"


class Team(Struct, frozen=True):
    """A team and one's own role in it."""

    id: str
    name: str
    role: str = ""
    created_at: Moment | None = None


class Member(Struct, frozen=True):
    """An account in a team."""

    id: str
    email: str
    account_id: str = ""
    name: str = ""
    role: str = ""
    created_at: Moment | None = None


class Invitation(Struct, frozen=True):
    """An open invitation; the link stands only in the answer to its creation."""

    id: str
    email: str
    role: str = ""
    created_at: Moment | None = None
    created_by: str | None = None
    expires_at: Moment | None = None
    link: str | None = None
    mailed: bool = False

    def __repr__(self) -> str:
        return f"Invitation({self.id!r})"


class Token(Struct, frozen=True):
    """An API token; the secret stands only in the answer to its creation or rotation."""

    id: str
    name: str
    prefix: str = ""
    created_at: Moment | None = None
    created_by: str | None = None
    last_used_at: Moment | None = None
    expires_at: Moment | None = None
    active: bool = True
    networks: list[str] | None = None
    methods: list[str] | None = None
    requests_per_second: int | None = None
    monthly_requests: int | None = None
    capped_until: Moment | None = None
    allow_in_url: bool = False
    show_upstream: bool = False
    addresses: list[str] | None = None
    contracts: list[str] | None = None
    replaces: str | None = None
    secret: str | None = None

    def __repr__(self) -> str:
        return f"Token({self.id!r})"


class Domain(Struct, frozen=True):
    """A whitelisted root domain."""

    id: str
    domain: str
    created_at: Moment | None = None
    created_by: str | None = None
    verified_at: Moment | None = None
    address_per_minute: int | None = None
    domain_per_minute: int | None = None
    active: bool = True


class Check(Struct, frozen=True):
    """Whether an origin would pass, and why."""

    origin: str
    allowed: bool
    why: str = ""
    domain_id: str | None = None
    domain: str | None = None


class AuditEntry(Struct, frozen=True):
    """One change, and who made it."""

    id: str
    at: Moment
    action: str
    actor: str = ""
    actor_id: str | None = None
    target: str | None = None
    name: str | None = None
    details: dict[str, Any] | None = None
    address: str | None = None
    via: str = ""


class Log(Struct, frozen=True):
    """One call of a team."""

    id: str
    time: Moment
    status: int
    family: str = ""
    network: str = ""
    method: str | None = None
    outcome: str = ""
    error_code: int | None = None
    duration_us: int = 0
    token_id: str | None = None
    token_name: str | None = None
    domain_id: str | None = None
    domain: str | None = None
    billable: bool = False
    cost_micros: int = 0
    count: int = 1


class LogPage(Page[Log], frozen=True):
    """A part of a team's logs, and the cursor of what comes after the newest."""

    newer: str | None = None


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


class Tokens(Struct, frozen=True):
    """What the token endpoint gives (RFC 6749)."""

    access_token: str
    refresh_token: str | None = None
    expires_in: Annotated[float, Meta(gt=0)] | None = None

    def __repr__(self) -> str:
        return "Tokens(…)"


class Problem(Struct, frozen=True):
    """An error of the API (RFC 9457)."""

    status: int
    detail: str
    reason: str = ""
    request_id: str | None = None
    dns_name: str | None = None
    dns_value: str | None = None
    well_known_url: str | None = None
    problems: list[str] = field(default_factory=list)


class OAuthError(Struct, frozen=True):
    """An error of the token endpoint."""

    error: str
    error_description: str = ""
