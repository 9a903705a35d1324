"""Nodes of an installation, what each of them does, and leases: who does what must be done once."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

GATEWAY, CONTROL, COLLECTOR, PROBER = "gateway", "control", "collector", "prober"
ALL_ROLES = frozenset({GATEWAY, CONTROL, COLLECTOR, PROBER})
STATES = UP, GONE = "up", "gone"
BEAT_SECONDS = 5.0
# Without a sign of life for so long a node is shown as gone, and then forgotten.
GONE_SECONDS = 30.0
FORGOTTEN_SECONDS = 86_400.0


class Node(Struct, frozen=True):
    """A service on a machine, by its last sign of life."""

    id: str
    created_at: float
    """When it was started."""
    name: str
    version: str
    roles: str
    """Separated by commas; `all` for all of them."""
    seen_at: float
    spool_bytes: int
    """In its spool, and not in the ledger yet."""

    def state(self, now: float) -> str:
        """`up`, or `gone`."""
        return UP if now - self.seen_at < GONE_SECONDS else GONE


class JobLease(Struct, frozen=True):
    """Who has a job, until when."""

    id: str
    """The name of the job."""
    created_at: float
    holder: str
    until: float


def taken(lease: JobLease | None, job: str, holder: str, now: float, seconds: float) -> JobLease | None:
    """The lease as `holder` has it from now on; None where another one has it."""
    if lease is None:
        return JobLease(job, now, holder, now + seconds)
    if lease.holder != holder and now < lease.until:
        return None
    return replace(lease, holder=holder, until=now + seconds)


def named(roles: Iterable[str]) -> str:
    given = frozenset(roles)
    return "all" if given == ALL_ROLES else ",".join(sorted(given))
