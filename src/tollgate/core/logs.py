"""Request logs as values: a row, what is wanted of them, a slice. Pure."""

from __future__ import annotations

from msgspec import Struct


class LogRow(Struct, frozen=True):
    """One call of a team, as the ledger keeps it."""

    seq: int
    at: float
    request_id: str
    team_id: str
    source_id: str
    source_name: str
    address: str
    agent: str
    origin: str
    network: str
    method: str
    status: int
    outcome: str
    code: int | None
    request_bytes: int
    response_bytes: int
    duration_micros: int
    upstream: str
    attempts: int
    cache: str
    billable: bool
    cost: int
    month: str
    stands_for: int


class LogFilter(Struct, frozen=True):
    """Which rows are wanted."""

    team_id: str
    source_id: str | None = None
    since: float | None = None
    """The least time of a row itself, however late it was committed."""
    network: str | None = None
    method: str | None = None
    status: int | None = None
    errors: bool = False


class LogSlice(Struct, frozen=True):
    """Some rows, and the row after which to go on; None at the end, where there is one."""

    rows: list[LogRow]
    position: int | None
