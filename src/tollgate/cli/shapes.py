"""What the management API answers, as values (frozen). The server's own object is kept beside for `--json`.

Only what a thing cannot be without is required: a member that another version of the server lacks must not
stop the tool. Secrets stay out of every repr.
"""

from __future__ import annotations

import datetime
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
    """What the token endpoint gives (RFC 6749)."""

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


class ApiOperatorTeam(Struct, frozen=True):
    """A team, as its operator sees it."""

    name: str
    suspended_at: datetime.datetime | None = None
    suspended_reason: str = ""
    capped: bool = False
    requests_per_second: int | None = None
    free_requests: int | None = None
    micros_per_million: int | None = None
    operator_cap_micros: int | None = None
    spending_cap_micros: int | None = None
    usual_free_requests: int = 0
    usual_micros_per_million: int = 0
    billable_requests: int | None = None
    cost_micros: int | None = None


class ApiTeamSum(Struct, frozen=True):
    """What one team used in a month."""

    name: str
    billable_requests: int
    cost_micros: int


class ApiServiceUsage(Struct, frozen=True):
    """What all teams used in a month."""

    month: str
    teams: int
    billable_requests: int
    cost_micros: int
    items: list[ApiTeamSum]


class ApiProcess(Struct, frozen=True):
    """A process of the service."""

    name: str
    pid: int
    started_at: datetime.datetime
    cpu_seconds: float
    memory_bytes: int
    restarts: int = 0


class ApiMachine(Struct, frozen=True):
    """The processes of the service, and how far the collector is behind."""

    processes: list[ApiProcess]
    spool_segments: int = 0
    spool_waiting_bytes: int = 0


class ApiHistoryStep(Struct, frozen=True):
    """A quarter of an hour of an upstream."""

    start: datetime.datetime
    state: str
    calls: int = 0
    failures: int = 0
    behind: int = 0


class ApiUpstreamHistory(Struct, frozen=True):
    """The last day of an upstream."""

    network: str
    upstream: str
    steps: list[ApiHistoryStep] = field(default_factory=list)


class ApiCheck(Struct, frozen=True):
    """One check of the ledger."""

    name: str
    ok: bool
    looked_at: str = ""
    differences: list[str] = field(default_factory=list)


class ApiChecks(Struct, frozen=True):
    """Whether all agrees."""

    ok: bool
    checks: list[ApiCheck] = field(default_factory=list)
