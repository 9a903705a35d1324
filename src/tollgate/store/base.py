"""The ports. A backend passes the contract tests in tests/contract, or it is not one.

Outages have one name: a backend that cannot be reached raises `StoreUnavailable`, whatever its library raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from enum import Enum
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from tollgate.api.usage import By, Split
from tollgate.core.alerts import Alert, BillingSettings
from tollgate.core.audit_chain import AuditChain
from tollgate.core.cursors import Position
from tollgate.core.invoices import Invoice, Report
from tollgate.core.leases import LeaseReply, LeaseReport
from tollgate.core.limits import Limit, Taken
from tollgate.core.logs import LogEntry, LogFilter, LogSlice
from tollgate.core.models import Domain, FormerTeam, Grant, Lineage, PriceChange, Team, Token
from tollgate.core.nodes import JobLease, Node
from tollgate.core.people import (
    Account,
    AuditEntry,
    DeviceLogin,
    Factor,
    Failures,
    Identity,
    Invitation,
    Login,
    Member,
    Replay,
    ResetLink,
)
from tollgate.core.posting import Opening, Posting
from tollgate.core.pricing import MonthUse
from tollgate.core.usage import MonthTotals, Point, TeamMonth, UsageItem
from tollgate.errors import TollgateError


class StoreUnavailable(TollgateError):
    """The store cannot be reached now, or is too slow."""

    one_line = True
    """In logs: it is no defect."""


class Conflict(TollgateError):
    """A name, address or domain is taken."""


class ClockDoubted(TollgateError):
    """The clock is far beyond what the ledger has seen: nothing is done that cannot be undone."""


class Changes(Struct, frozen=True):
    """Which grants changed since a revision. `everything` where there are too many, or it is not known."""

    revision: int
    tokens: tuple[bytes, ...] = ()
    domains: tuple[str, ...] = ()
    teams: tuple[str, ...] = ()
    everything: bool = False


class Directory(Protocol):
    """What the gateway reads: who may call."""

    async def token(self, digest: bytes) -> Grant | None:
        """Return the grant of an active token, expired or not, by one indexed read."""

    async def domain(self, names: Sequence[str]) -> Grant | None:
        """Return the grant of the active entry among these names, by one indexed read."""

    async def changes(self, since: int | None) -> Changes | None:
        """Return what changed after `since`, None where nothing did. `since=None` returns where to begin."""

    async def close(self) -> None:
        """Release all resources."""


Value = TypeVar("Value", bound=Struct)


class Given(Enum):
    """A condition that any value meets, but none does not."""

    GIVEN = 1


def cause_of(error: BaseException) -> str:
    """The database's own message, of an exception that SQLAlchemy may have wrapped; its first line."""
    return str(getattr(error, "orig", None) or error).splitlines()[0]


class Repository(Protocol[Value]):
    """The rows of one table, inside one transaction.

    Conditions name columns; a tuple means any of its values, `Given.GIVEN` any value at all.
    """

    async def add(self, row: Value, **hidden: bytes) -> None:
        """Add a row, with columns that its value does not show; `Conflict` when something unique is taken."""

    async def get(self, row_id: str) -> Value | None: ...

    async def find(self, **where: object) -> Value | None:
        """Return the one row that fits."""

    async def page(
        self,
        limit: int,
        after: Position | None = None,
        *,
        newest_first: bool = False,
        made_since: float | None = None,
        made_before: float | None = None,
        **where: object,
    ) -> list[Value]:
        """Return rows that fit, in the order of their making, from after a place on."""

    async def numbered(self, above: int, limit: int, **where: object) -> list[Value]:
        """Rows that fit whose number is above one, in the order of their numbers."""

    async def replace(self, row: Value) -> bool:
        """Write what differs from the row of the same id; False where there is none. May be a `Conflict`."""

    async def remove(self, **where: object) -> int:
        """Remove what fits; return how many that were."""

    async def remove_older(self, column: str, than: float, **where: object) -> int:
        """Remove rows whose time in this column has passed; return how many that were."""

    async def count(self, **where: object) -> int:
        """Count what fits."""


class Repositories:
    """All that the control plane keeps, inside one transaction."""

    teams: Repository[Team]
    former_teams: Repository[FormerTeam]
    price_changes: Repository[PriceChange]
    tokens: Repository[Token]
    lineages: Repository[Lineage]
    domains: Repository[Domain]
    accounts: Repository[Account]
    factors: Repository[Factor]
    identities: Repository[Identity]
    logins: Repository[Login]
    device_logins: Repository[DeviceLogin]
    members: Repository[Member]
    invitations: Repository[Invitation]
    reset_links: Repository[ResetLink]
    failures: Repository[Failures]
    replays: Repository[Replay]
    audit: Repository[AuditEntry]
    audit_chains: Repository[AuditChain]
    billing: Repository[BillingSettings]
    alerts: Repository[Alert]
    reports: Repository[Report]
    nodes: Repository[Node]
    leases: Repository[JobLease]


class ControlStore(Protocol):
    """What the control plane works with: transactions."""

    def reading(self) -> AbstractAsyncContextManager[Repositories]:
        """Read a consistent snapshot."""

    def changing(self) -> AbstractAsyncContextManager[Repositories]:
        """Read and write, alone; all of it happens, or nothing when an exception leaves the block."""

    async def close(self) -> None:
        """Release all resources."""


class Mark(Struct, frozen=True):
    """How far a segment of the spool was read."""

    offset: int
    done: bool = False


class LedgerBook(Protocol):
    """What the collector writes: synchronous, because its process does nothing else."""

    def marks(self, ids: Iterable[bytes] | None = None) -> dict[bytes, Mark]:
        """How far segments were read: these, as far as they are known, or all."""

    def commit(
        self,
        marks: Mapping[bytes, Mark],
        teams: Iterable[str],
        post: Callable[[Opening], Posting],
        now: float,
        *,
        payers: Iterable[str] = (),
        known: Mapping[bytes, Mark] | None = None,
    ) -> Posting:
        """Post a batch and note how far its segments were read from `known` on: both, or neither.

        `post` gets the ledger's balances of these teams and payers, and returns blocks and sums, which a backend
        stores as they are.
        """


class LogBook(Protocol):
    """What the control plane reads of the ledger. Entries of a team are numbered in the order of their commit."""

    async def newest(self, team_id: str) -> int:
        """The newest entry of a team that is committed; 0 before the first."""

    async def older(self, wanted: LogFilter, below: int, limit: int) -> LogSlice:
        """Entries that fit, newest first, from below one on; fewer than wanted where that would take too long."""

    async def newer(self, wanted: LogFilter, above: int, limit: int) -> tuple[list[LogEntry], int]:
        """Entries that fit, oldest first, from above one on, and the one above which to continue."""

    async def close(self) -> None:
        """Release all resources."""


class Bill(Struct, frozen=True):
    """What the ledger has of a team for a month, in one snapshot."""

    used: TeamMonth
    closed: bool
    invoice: Invoice | None = None
    """The final one; a closed month without usage has none."""


class AccountBook(Protocol):
    """What the control plane reads of usage, and the one thing that it writes to the ledger: final invoices."""

    async def usage(
        self,
        team_id: str,
        months: str | Sequence[str],
        by: By | Split,
        *,
        sources: Sequence[str] | None = None,
        hours: tuple[int, int] | None = None,
    ) -> list[UsageItem]:
        """What a team used in a billing month, or in several, by one of these; together exactly all of it, or all
        of some sources, or of some hours.
        """

    async def series(
        self, team_id: str, months: Sequence[str], hours: tuple[int, int], step: int, split: Split
    ) -> list[Point]:
        """Requests of a span of hours in these billing months, by steps of hours; a step of 0 is a month."""

    async def spent(self, month: str, teams: Iterable[Team]) -> dict[str, MonthUse]:
        """What teams have used in a month: each of them, by id."""

    async def spenders(self, month: str, limit: int) -> tuple[MonthTotals, dict[str, tuple[int, int]]]:
        """What all teams together used in a month, and those to whom it cost most, in that order."""

    async def bill(self, team_id: str, month: str) -> Bill:
        """What a team has for a month, and its invoice where the month is closed."""

    async def invoices(
        self, limit: int, *, team_id: str | None = None, before: str | None = None, month: str | None = None
    ) -> list[Invoice]:
        """Final invoices, newest month first."""

    async def open_months(self, before: str) -> list[str]:
        """Months before one that have usage and are not closed, oldest first."""

    async def is_closed(self, month: str) -> bool:
        """Whether a month takes nothing more."""

    async def close_month(
        self, month: str, now: float, draw: Callable[[TeamMonth], Invoice]
    ) -> list[Invoice] | None:
        """Close a month and write the invoice of every team that used something: all of it, or nothing.

        None where it is closed already. `ClockDoubted` where the clock is far beyond what the ledger has seen.
        """

    async def is_doubtful(self, now: float) -> bool:
        """Whether the clock is far beyond what the ledger has seen."""

    async def latencies(
        self, team_id: str, first_hour: int, last_hour: int
    ) -> dict[tuple[str, str], dict[int, int]]:
        """How many calls of some hours took how long, by network and outcome, then by bucket."""

    async def close(self) -> None:
        """Release all resources."""


class Meters(Protocol):
    """Rate limits that several workers keep together."""

    def take(self, limits: Sequence[tuple[str, Limit]], now: float, cost: int = 1) -> list[Taken]:
        """Take `cost` requests out of each limit, named by its key, until one refuses; that one comes last."""

    def slots(self, limits: Sequence[tuple[str, Limit]], now: float) -> Any:
        """The slots of limits, for `take_all`; worth keeping."""

    def moved(self, slots: Any) -> bool:
        """Whether one of these slots was given to another limit."""

    def take_all(self, slots: Any, now: float, cost: float = 1.0) -> bool:
        """Take `cost` requests out of all limits, or out of none: False where one refuses or has another slot."""

    def left(self, slots: Any, now: float) -> tuple[int, ...]:
        """What each limit has left, and for windows of more than a second when it is whole again.

        That is in seconds, plus one. `now`: when one was last taken.
        """

    def peek(self, key: str, limit: Limit, now: float, cost: int = 1) -> Taken:
        """Return what `take` would find, and take nothing."""


class SharedUnreachable(Exception):
    """What nodes share cannot be reached, or not in time."""


class SharedAnswer(Struct, frozen=True, gc=False):
    """An answer of an upstream about a final block."""

    key: bytes
    number: int
    """The block that it is about."""
    result: bytes


class AnswerLog(Protocol):
    """Answers that all nodes share, by network. Calls have a deadline, and may raise SharedUnreachable."""

    async def exchange(
        self, networks: Sequence[str], sent: Mapping[str, Sequence[SharedAnswer]]
    ) -> dict[str, list[SharedAnswer]]:
        """Send answers of some networks, and return some that others sent since the last turn."""

    async def forget(self, network: str) -> None:
        """Forget all answers of a network."""

    async def close(self) -> None:
        """Release all resources."""


class LeaseBook(Protocol):
    """Where nodes lease shares of limits from. Every call has a deadline, and may raise SharedUnreachable."""

    async def exchange(self, node: str, reports: Sequence[LeaseReport]) -> LeaseReply:
        """Report what a node uses, and take what it may use from now on. The node counts as alive for a while."""

    async def leave(self, node: str) -> None:
        """Forget a node that stops: others may use its share."""

    async def close(self) -> None:
        """Release all resources."""
