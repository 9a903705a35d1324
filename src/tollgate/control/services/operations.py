"""What an operator sees and does in the console: upstreams, teams with their usage, suspending a team, its limit.

For accounts that `tollgate admin operator` has marked. Nothing of a team's own (tokens, logs, members) is shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from tollgate.control.problems import Busy, InvalidInput, NotFound, RoleNeeded
from tollgate.control.service_context import MAX_ROWS, Actor, PageRequest, ResultPage, ServiceContext, page_of
from tollgate.control.services.networks import Networks
from tollgate.control.services.usage import at_hand
from tollgate.core.models import Team
from tollgate.core.months import month_of
from tollgate.core.nodes import Node
from tollgate.core.upstream_history import FILE, UpstreamHistory
from tollgate.core.upstreams import ShownNetwork
from tollgate.store.base import AccountBook, StoreUnavailable

MAX_PER_SECOND = 1_000_000
# 256 upstreams with 96 steps each.
MAX_BYTES = 4_194_304


class TeamUse(Struct, frozen=True):
    """A team with what it used this month."""

    team: Team
    billable: int = 0
    cost: int = 0

    @property
    def id(self) -> str:
        """The team's id."""
        return self.team.id

    @property
    def created_at(self) -> float:
        """When it was made."""
        return self.team.created_at


class TeamTerms(Struct, frozen=True):
    """What an operator sets for a team; what is left out stays as it is."""

    suspended: bool | UnsetType = UNSET
    requests_per_second: int | UnsetType | None = UNSET


class ProcessState(Struct, frozen=True):
    """A process of the service."""

    name: str
    pid: int
    started_at: float
    cpu_seconds: float
    memory_bytes: int
    restarts: int = 0
    """How often it was replaced since the service was started."""


class SpoolState(Struct, frozen=True):
    """What the collector has not read yet."""

    segments: int
    waiting_bytes: int
    waiting_since: float | None = None
    """When something was last written to a segment that waits; None where nothing waits."""


class CheckResult(Struct, frozen=True):
    """One check of the ledger. No differences: all is well."""

    name: str
    ok: bool
    looked_at: str
    differences: list[str]


class Inspector(Protocol):
    """Looks at the machine; blocks. `processes/inspector.py`."""

    def processes(self) -> Sequence[ProcessState]:
        """The processes of the service."""
        ...

    def spool(self) -> SpoolState:
        """What the collector has not read yet."""
        ...

    def examine(self) -> Sequence[CheckResult]:
        """Whether spool, logs, usage and invoices agree."""
        ...


class Operations:
    """The operator's view."""

    def __init__(
        self,
        context: ServiceContext,
        networks: Networks,
        book: AccountBook | None,
        inspector: Inspector | None = None,
    ) -> None:
        self._context = context
        self._networks = networks
        self._book = book
        self._inspector = inspector
        self._examining = asyncio.Lock()

    def check(self, actor: Actor) -> None:
        """Refuse whoever is no operator."""
        of_team = actor.login is not None and actor.login.team_id is not None
        if actor.account is None or not actor.account.operator or of_team:
            raise RoleNeeded("see the operator's pages", "member", ["operator"])

    async def upstreams(self, actor: Actor) -> Sequence[ShownNetwork]:
        """All upstreams as the prober last saw them; none where it has not written lately."""
        self.check(actor)
        shown = await self._networks.status()
        return shown.networks if shown else ()

    async def history(self, actor: Actor) -> Sequence[UpstreamHistory]:
        """How upstreams fared over the last day, as the prober wrote it down within the last minutes."""
        self.check(actor)
        return await asyncio.to_thread(_read_history, Path(self._context.settings.data_dir) / FILE)

    async def processes(self, actor: Actor) -> Sequence[ProcessState]:
        """The processes of the service; none where the system does not tell."""
        self.check(actor)
        return [] if self._inspector is None else await asyncio.to_thread(self._inspector.processes)

    async def spool(self, actor: Actor) -> SpoolState:
        """How far the collector is behind."""
        self.check(actor)
        return SpoolState(0, 0) if self._inspector is None else await asyncio.to_thread(self._inspector.spool)

    async def examine(self, actor: Actor) -> Sequence[CheckResult]:
        """Check that spool, logs, usage and invoices agree; one at a time."""
        self.check(actor)
        if self._inspector is None:
            raise StoreUnavailable("no ledger is open here")
        if self._examining.locked():
            raise Busy
        async with self._examining:
            return await asyncio.to_thread(self._inspector.examine)

    async def nodes(self, actor: Actor) -> Sequence[Node]:
        """The nodes that share the store; none where it is a file."""
        self.check(actor)
        async with self._context.store.reading() as records:
            return await records.nodes.page(MAX_ROWS)

    async def teams(self, actor: Actor, ask: PageRequest) -> ResultPage[TeamUse]:
        """All teams, with what they used this month."""
        self.check(actor)
        scope = "operator:teams"
        async with self._context.store.reading() as records:
            rows = await records.teams.page(ask.limit + 1, ask.place(scope))
        spent = await at_hand(self._book).spent(month_of(self._context.now()), [row.id for row in rows])
        return page_of(scope, [TeamUse(row, *spent.get(row.id, (0, 0))) for row in rows], ask.limit)

    async def set_terms(self, actor: Actor, team: str, terms: TeamTerms) -> Team:
        """Suspend a team or let it call again; limit its requests a second."""
        self.check(actor)
        limit = terms.requests_per_second
        if isinstance(limit, int) and not 1 <= limit <= MAX_PER_SECOND:
            raise InvalidInput(
                f"`requests_per_second` is from 1 to {MAX_PER_SECOND}, or null for no limit.",
                field="requests_per_second",
            )
        async with self._context.store.changing() as records:
            found = await (records.teams.get(team) if "_" in team else records.teams.find(name=team))
            if found is None:
                raise NotFound(f"There is no team {team[:60]}.")
            changed = found
            if terms.suspended is not UNSET:
                since = found.suspended_at or self._context.now()
                changed = replace(changed, suspended_at=since if terms.suspended else None)
            if limit is not UNSET:
                changed = replace(changed, requests_per_second=limit)
            if changed != found:
                await records.teams.replace(changed)
                await self._context.note(
                    records,
                    actor,
                    "team.terms",
                    team_id=found.id,
                    target=found.id,
                    name=found.name,
                    suspended=changed.suspended_at is not None,
                    requests_per_second=changed.requests_per_second,
                )
        return changed


def _read_history(file: Path) -> list[UpstreamHistory]:
    try:
        with file.open("rb") as opened:
            return msgspec.json.decode(opened.read(MAX_BYTES), type=list[UpstreamHistory])
    except (OSError, msgspec.DecodeError):
        return []
