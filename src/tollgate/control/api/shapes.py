"""What answers show. Every member is always there; times are RFC 3339 in UTC.

`of` takes from a row what its shape names and nothing else, so that a new column is never shown by accident.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from tollgate.control.services.devices import OAuthError
from tollgate.core import people
from tollgate.core.logs import LogRow

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


class Service(Struct, frozen=True):
    """A server's public description."""

    name: str
    version: str
    sign_up: Annotated[
        str,
        Meta(
            description="Who may create an account: those whom the operator invites, also those whom a team "
            "invites, or anyone.",
            extra_json_schema={"enum": ["closed", "invited", "open"]},
        ),
    ]
    oidc: Annotated[str | None, Meta(description="The provider that one may sign in with, if there is one.")]
    console_url: str
    device_login: bool


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


# --- Audit ---------------------------------------------------------------------------------------------


class AuditEntryView(Struct, frozen=True):
    """Who changed what."""

    id: str
    at: datetime
    actor: Annotated[str, Meta(description="An email, or `operator`.")]
    actor_id: str | None
    action: Annotated[str, Meta(description="What was done.", examples=["token.create"])]
    target: Annotated[str, Meta(description="The id of what it was done to.")]
    name: Annotated[str, Meta(description="Its name at that time.")]
    details: Annotated[
        dict[str, Any],
        Meta(description="Further details; of a change, `before` and `after` what differs."),
    ]
    address: str
    via: Annotated[str, Meta(description="`tool`, `personal:<name>`, `console` or `operator`.")]


class AuditPage(Struct, frozen=True):
    """A part of the audit log."""

    items: list[AuditEntryView]
    next: Next


def audit_entry(row: people.AuditEntry) -> AuditEntryView:
    details = msgspec.json.decode(row.details, type=dict[str, Any])
    return of(AuditEntryView, row, at=moment(row.created_at), details=details)


# --- Request logs --------------------------------------------------------------------------------------


class Log(Struct, frozen=True):
    """One call of the team; the calls of a batch share their request id."""

    id: str
    time: Annotated[datetime, Meta(description="When it was answered.")]
    request_id: str
    team: str
    token_id: str | None
    token_name: Annotated[str | None, Meta(description="The token's name at that time.")]
    domain_id: str | None
    domain: Annotated[str | None, Meta(description="The whitelisted root domain.")]
    address: Annotated[str, Meta(description="The client's address.")]
    user_agent: str | None
    origin: str | None
    family: str
    network: str
    method: Annotated[str | None, Meta(description="Null where it was refused before that was known.")]
    status: Annotated[int, Meta(description="Of HTTP.")]
    outcome: Annotated[str, Meta(description="`ok`, `node_error`, or the reason of a refusal.")]
    error_code: Annotated[int | None, Meta(description="Of the JSON-RPC error.")]
    request_bytes: int
    response_bytes: int
    duration_us: Annotated[int, Meta(description="Microseconds.")]
    upstream: Annotated[str | None, Meta(description="Which node answered.")]
    attempts: Annotated[int, Meta(description="Attempts at upstreams.")]
    cache: Annotated[str, Meta(extra_json_schema={"enum": ["hit", "miss", "coalesced", "bypass"]})]
    billable: bool
    cost_micros: Annotated[int, Meta(description="Millionths of a US dollar.")]
    count: Annotated[
        int, Meta(description="How many requests it stands for: more than one for refusals that came too fast.")
    ]


def log(row: LogRow, entry_id: str, team_name: str) -> Log:
    """Show an entry."""
    family, _, network = row.network.partition("/")
    by_token = row.source_id.startswith("tok_")
    # Member by member, without `of`: a page may have a thousand of them.
    return Log(
        id=entry_id,
        time=datetime.fromtimestamp(row.at, UTC),
        request_id=row.request_id,
        team=team_name,
        token_id=row.source_id if by_token else None,
        token_name=row.source_name if by_token else None,
        domain_id=None if by_token else row.source_id,
        domain=None if by_token else row.source_name,
        address=row.address,
        user_agent=row.agent or None,
        origin=row.origin or None,
        family=family,
        network=network,
        method=row.method or None,
        status=row.status,
        outcome=row.outcome,
        error_code=row.code,
        request_bytes=row.request_bytes,
        response_bytes=row.response_bytes,
        duration_us=row.duration_micros,
        upstream=row.upstream or None,
        attempts=row.attempts,
        cache=row.cache,
        billable=row.billable,
        cost_micros=row.cost,
        count=row.stands_for,
    )


class LogPage(Struct, frozen=True):
    """A part of the request logs."""

    items: list[Log]
    next: Next
    newer: Annotated[str, Meta(description="Give it as `newer` for what came since.")]


# --- What is wrong -------------------------------------------------------------------------------------


class OAuthProblem(Struct, frozen=True):
    """An error of OAuth (RFC 6749, section 5.2; RFC 8628, section 3.5)."""

    error: Annotated[str, Meta(extra_json_schema={"enum": list(OAuthError.codes)})]
    error_description: str
