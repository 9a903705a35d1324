"""The ports. A backend passes the contract tests in tests/contract, or it is not one.

Outages are said once, here: a backend that cannot be reached raises `StoreUnavailable`, whatever its library
calls it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeVar

from msgspec import Struct

from tollgate.core.cursors import Position
from tollgate.core.limits import Limit, Taken
from tollgate.core.models import Domain, Grant, Team, Token
from tollgate.core.people import (
    Account,
    AuditEntry,
    DeviceLogin,
    Failures,
    Identity,
    Invitation,
    Login,
    Member,
    Replay,
    ResetLink,
)
from tollgate.errors import TollgateError


class StoreUnavailable(TollgateError):
    """The store cannot be reached now."""


class Conflict(TollgateError):
    """A name, address or domain is taken."""


class Changes(Struct, frozen=True):
    """Which grants changed since a revision. `everything` where too much did, or nobody knows."""

    revision: int
    tokens: tuple[bytes, ...] = ()
    domains: tuple[str, ...] = ()
    teams: tuple[str, ...] = ()
    everything: bool = False


class Directory(Protocol):
    """What the gateway reads: who may call."""

    async def token(self, digest: bytes) -> Grant | None:
        """Return the grant of an active token, expired or not, by one indexed read."""
        ...

    async def domain(self, names: Sequence[str]) -> Grant | None:
        """Return the grant of the active entry among these names, by one indexed read."""
        ...

    async def changes(self, since: int | None) -> Changes | None:
        """Return what changed after `since`, None where nothing did. `since=None` asks where to begin."""
        ...

    async def close(self) -> None:
        """Give everything back."""
        ...


class Use(Struct, frozen=True):
    """What one token did since it was last told of."""

    token_id: str
    calls: int
    """Calls that count for its monthly cap."""
    last_at: float


class UseBook(Protocol):
    """What the gateway writes: which tokens are in use."""

    async def note_uses(self, uses: Sequence[Use]) -> None:
        """Note when tokens were last used and count their calls of the month; cap those that reached their cap."""
        ...


Value = TypeVar("Value", bound=Struct)


class Rows(Protocol[Value]):
    """The rows of one table, inside one transaction. Conditions name columns; a tuple means any of its values."""

    async def add(self, row: Value, **hidden: bytes) -> None:
        """Add a row, with columns that its value does not show; `Conflict` when something unique is taken."""
        ...

    async def get(self, row_id: str) -> Value | None:
        """Return the row of this id."""
        ...

    async def find(self, **where: object) -> Value | None:
        """Return the one row that fits."""
        ...

    async def page(
        self, limit: int, after: Position | None = None, *, newest_first: bool = False, **where: object
    ) -> list[Value]:
        """Return rows that fit, in the order of their making, from after a place on."""
        ...

    async def replace(self, row: Value) -> bool:
        """Write what differs from the row of the same id; False where there is none. May be a `Conflict`."""
        ...

    async def remove(self, **where: object) -> int:
        """Remove what fits; return how many that were."""
        ...

    async def remove_older(self, column: str, than: float, **where: object) -> int:
        """Remove rows whose time in this column has passed; return how many that were."""
        ...

    async def count(self, **where: object) -> int:
        """Count what fits."""
        ...


class Records(Protocol):
    """All that the control plane keeps, inside one transaction."""

    teams: Rows[Team]
    tokens: Rows[Token]
    domains: Rows[Domain]
    accounts: Rows[Account]
    identities: Rows[Identity]
    logins: Rows[Login]
    device_logins: Rows[DeviceLogin]
    members: Rows[Member]
    invitations: Rows[Invitation]
    reset_links: Rows[ResetLink]
    failures: Rows[Failures]
    replays: Rows[Replay]
    audit: Rows[AuditEntry]

    async def month_of(self, token_id: str, month: str) -> int:
        """Return how many calls of a token were counted in this month."""
        ...

    async def carry_month(self, from_id: str, to_id: str, month: str) -> None:
        """Let a token begin the month with the calls of another."""
        ...


class Office(Protocol):
    """What the control plane works with: transactions."""

    def reading(self) -> AbstractAsyncContextManager[Records]:
        """Read, as everything stood at one moment."""
        ...

    def changing(self) -> AbstractAsyncContextManager[Records]:
        """Read and write, alone; all of it happens, or nothing when an exception leaves the block."""
        ...

    async def close(self) -> None:
        """Give everything back."""
        ...


class Meters(Protocol):
    """Rate limits that several workers keep together."""

    def take(self, limits: Sequence[tuple[str, Limit]], now: float, cost: int = 1) -> list[Taken]:
        """Take `cost` requests out of each limit, named by its key, until one refuses; that one comes last."""
        ...

    def peek(self, key: str, limit: Limit, now: float) -> Taken:
        """Say what `take` of one request would find, and take nothing."""
        ...
