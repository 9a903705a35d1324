"""The ports. A backend passes the contract tests in tests/contract, or it is not one.

Outages are said once, here: a backend that cannot be reached raises `StoreUnavailable`, whatever its library
calls it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from tollgate.core.limits import Limit, Taken
from tollgate.core.models import Domain, Grant, Team, Token
from tollgate.errors import TollgateError


class StoreUnavailable(TollgateError):
    """The store cannot be reached now."""


class Conflict(TollgateError):
    """The name or domain is taken."""


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


class Registry(Protocol):
    """What changes grants: teams, tokens and domains."""

    async def add_team(self, team: Team) -> None:
        """Add a team; `Conflict` when the name is taken."""
        ...

    async def add_token(self, token: Token, digest: bytes) -> None:
        """Add a token; `Conflict` when its name is taken in the team."""
        ...

    async def add_domain(self, domain: Domain) -> None:
        """Add a whitelist entry; `Conflict` when any team has the domain."""
        ...

    async def update_team(self, team: Team) -> bool:
        """Replace a team; False where there is none, `Conflict` when the new name is taken."""
        ...

    async def update_token(self, token: Token) -> bool:
        """Replace a token, its digest and its creation aside; False where there is none. May be a `Conflict`."""
        ...

    async def update_domain(self, domain: Domain) -> bool:
        """Replace an entry, its domain and its creation aside; False where there is none."""
        ...

    async def delete_token(self, token_id: str) -> bool:
        """Delete a token; False where there is none."""
        ...

    async def delete_domain(self, domain_id: str) -> bool:
        """Delete an entry; False where there is none."""
        ...

    async def team(self, name: str) -> Team | None:
        """Return the team of this name."""
        ...

    async def tokens(self, team_id: str) -> list[Token]:
        """Return a team's tokens, oldest first."""
        ...

    async def domains(self, team_id: str) -> list[Domain]:
        """Return a team's entries, oldest first."""
        ...


class Meters(Protocol):
    """Rate limits that several workers keep together."""

    def take(self, limits: Sequence[tuple[str, Limit]], now: float, cost: int = 1) -> list[Taken]:
        """Take `cost` requests out of each limit, named by its key, until one refuses; that one comes last."""
        ...

    def peek(self, key: str, limit: Limit, now: float) -> Taken:
        """Say what `take` of one request would find, and take nothing."""
        ...
