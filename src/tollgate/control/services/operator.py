"""What an operator sees and does: upstreams, teams and their usage, suspending a team, its price, limit and cap.

For accounts that `tollgate admin operator` has marked, and for `tollgate admin` itself. Nothing of a team's own
(tokens, logs, members) is shown.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from tollgate.api.billing import MAX_CAP
from tollgate.api.usage import By, Usage
from tollgate.control.problems import Busy, InvalidInput, NotFound, RoleNeeded
from tollgate.control.service_context import (
    MAX_ROWS,
    OPERATOR,
    USUAL_ROWS,
    Actor,
    PageRequest,
    ResultPage,
    ServiceContext,
    name_of,
    page_of,
    required,
    team_named,
)
from tollgate.control.services.billing import stopped
from tollgate.control.services.networks import TeamNetworks
from tollgate.control.services.usage import Usages, by_of, month_named
from tollgate.core import secrets
from tollgate.core.models import PriceChange, Team
from tollgate.core.months import month_of
from tollgate.core.nodes import Node
from tollgate.core.pricing import MAX_PRICE
from tollgate.core.upstream_history import FILE, UpstreamHistory
from tollgate.core.upstreams import ShownNetwork
from tollgate.core.usage import MonthTotals
from tollgate.store.base import AccountBook, Given, Repositories, StoreUnavailable

MAX_PER_SECOND = 1_000_000
LONGEST_REASON = 200
# What callers call what a team's terms are kept as, where it differs.
FIELDS = {"operator_cap": "operator_cap_micros"}
_BOUNDS = {
    "requests_per_second": (1, MAX_PER_SECOND),
    "free_requests": (0, MAX_PRICE),
    "micros_per_million": (0, MAX_PRICE),
    "operator_cap": (0, MAX_CAP),
}
STATES: dict[str, dict[str, Any]] = {
    "active": {"suspended_at": None},
    "suspended": {"suspended_at": Given.GIVEN},
    "capped": {"capped_until": Given.GIVEN},
}
# 256 upstreams with 96 steps each.
MAX_BYTES = 4_194_304


class TeamUse(Struct, frozen=True):
    """A team with what it used this month."""

    team: Team
    billable: int | None = 0
    """None where the ledger cannot be read now; so with the cost."""
    cost: int | None = 0

    @property
    def id(self) -> str:
        return self.team.id

    @property
    def created_at(self) -> float:
        return self.team.created_at


class TeamTerms(Struct, frozen=True):
    """What an operator sets for a team; what is left out stays as it is, and None is what most teams have."""

    suspended: bool | UnsetType = UNSET
    suspended_reason: str | UnsetType = UNSET
    requests_per_second: int | UnsetType | None = UNSET
    free_requests: int | UnsetType | None = UNSET
    micros_per_million: int | UnsetType | None = UNSET
    operator_cap: int | UnsetType | None = UNSET


class ServiceUsage(Struct, frozen=True):
    """What all teams together used in a month, and those to whom it cost most."""

    month: str
    total: MonthTotals
    teams: list[TeamUse]


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

    def spool(self) -> SpoolState:
        """What the collector has not read yet."""

    def examine(self) -> Sequence[CheckResult]:
        """Whether spool, logs, usage and invoices agree."""


class Operator:
    """The operator's view."""

    def __init__(
        self,
        context: ServiceContext,
        networks: TeamNetworks,
        book: AccountBook | None,
        inspector: Inspector | None = None,
    ) -> None:
        self._context = context
        self._networks = networks
        self._book = book
        self._usage = Usages(context, book)
        self._inspector = inspector
        self._examining = asyncio.Lock()

    def check(self, actor: Actor) -> None:
        """Refuse everybody but operators."""
        if actor is OPERATOR:
            return
        of_team = actor.login is not None and actor.login.team_id is not None
        if actor.account is None or not actor.account.operator or of_team:
            raise RoleNeeded("see the operator's pages", "member", ["operator"])

    async def upstreams(self, actor: Actor) -> Sequence[ShownNetwork]:
        """All upstreams as the prober last saw them; none where it has not written lately."""
        self.check(actor)
        shown = await self._networks.status()
        return shown.networks if shown else ()

    async def history(self, actor: Actor) -> Sequence[UpstreamHistory]:
        """Upstream health over the last day, as the prober stored it within the last minutes."""
        self.check(actor)
        return await asyncio.to_thread(_read_history, Path(self._context.settings.data_dir) / FILE)

    async def processes(self, actor: Actor) -> Sequence[ProcessState]:
        """The processes of the service; none where the system does not report them."""
        self.check(actor)
        return [] if self._inspector is None else await asyncio.to_thread(self._inspector.processes)

    async def spool(self, actor: Actor) -> SpoolState:
        """How far the collector is behind."""
        self.check(actor)
        return SpoolState(0, 0) if self._inspector is None else await asyncio.to_thread(self._inspector.spool)

    async def examine(self, actor: Actor) -> Sequence[CheckResult]:
        """Check that spool, logs, usage and invoices agree; one at a time."""
        self.check(actor)
        inspector = required(self._inspector)
        if self._examining.locked():
            raise Busy
        async with self._examining:
            return await asyncio.to_thread(inspector.examine)

    async def nodes(self, actor: Actor) -> Sequence[Node]:
        """The nodes that share the store; none where it is a file."""
        self.check(actor)
        async with self._context.store.reading() as records:
            return await records.nodes.page(MAX_ROWS)

    async def teams(self, actor: Actor, page: PageRequest, state: str | None = None) -> ResultPage[TeamUse]:
        """All teams, or those in one state, with what they used this month."""
        self.check(actor)
        if state is not None and state not in STATES:
            raise InvalidInput(f"`state` is one of {', '.join(STATES)}.", field="state")
        scope = f"operator:teams:{state or ''}"
        async with self._context.store.reading() as records:
            rows = await records.teams.page(page.limit + 1, page.place(scope), **STATES[state] if state else {})
        spent = await required(self._book).spent(month_of(self._context.now()), [row.id for row in rows])
        return page_of(scope, [TeamUse(row, *spent.get(row.id, (0, 0))) for row in rows], page.limit)

    async def team(self, actor: Actor, team: str) -> TeamUse:
        """One team, with what it used this month."""
        self.check(actor)
        async with self._context.store.reading() as records:
            found = await _team(records, team)
        spent = await required(self._book).spent(month_of(self._context.now()), [found.id])
        return TeamUse(found, *spent.get(found.id, (0, 0)))

    async def usage(self, actor: Actor, month: str | None = None, limit: int = USUAL_ROWS) -> ServiceUsage:
        """What all teams used in a month, by default the current one; those that owe most first."""
        self.check(actor)
        wanted = month_named(month, self._context.now())
        total, spenders = await required(self._book).spenders(wanted, limit)
        async with self._context.store.reading() as records:
            known = {row.id: row for row in await records.teams.page(limit, id=tuple(spenders))}
        # A team that was deleted is still owed for.
        uses = [TeamUse(known.get(key) or Team(key, key), *sums) for key, sums in spenders.items()]
        return ServiceUsage(wanted, total, uses)

    async def team_usage(self, actor: Actor, team: str, month: str | None = None, by: str = By.DAY) -> Usage:
        """What one team used in a month. Its tokens and domains are its own business."""
        self.check(actor)
        listed_by, wanted = by_of(by), month_named(month, self._context.now())
        if listed_by in (By.TOKEN, By.DOMAIN):
            raise InvalidInput("An operator sees usage by network, method or day.", field="by")
        async with self._context.store.reading() as records:
            found = await _team(records, team)
        return await self._usage.of_any_team(found, wanted, listed_by)

    async def set_terms(self, actor: Actor, team: str, terms: TeamTerms) -> TeamUse:
        """Suspend a team or let it call again; set its limit, its own price and the operator's cap."""
        self.check(actor)
        _check(terms)
        async with self._context.store.reading() as records:
            found = await _team(records, team)
        now = self._context.now()
        # A team must be suspended also while the ledger is away. A cap that is reached then, the collector sees.
        spent: tuple[int, int] | None = None
        with suppress(StoreUnavailable):
            spent = (await required(self._book).spent(month_of(now), [found.id])).get(found.id, (0, 0))
        async with self._context.store.changing() as records:
            found = await _team(records, found.id)
            changed = _changed(found, terms, now)
            if spent is not None and (changed.cap, changed.price) != (found.cap, found.price):
                changed = stopped(self._context, changed, *spent)
            if changed.price != found.price:
                last = await records.price_changes.page(1, None, newest_first=True, team_id=found.id)
                # The later of two is the one in force, whatever the clocks of the nodes.
                at = max(now, math.nextafter(last[0].created_at, math.inf)) if last else now
                change = PriceChange(
                    secrets.new_id("prc"), found.id, at, changed.free_requests, changed.micros_per_million
                )
                await records.price_changes.add(change)
            if changed != found:
                await records.teams.replace(changed)
                await self._context.note(
                    records,
                    actor,
                    "team.terms",
                    team_id=found.id,
                    target=found.id,
                    name=found.name,
                    before=_noted(found),
                    after=_noted(changed),
                )
        return TeamUse(changed, *(spent or (None, None)))


async def _team(records: Repositories, team: str) -> Team:
    found = await team_named(records, team)
    if found is None:
        raise NotFound(f"There is no team {team[:60]}: list them with `tollgate admin teams`.")
    return found


def _check(terms: TeamTerms) -> None:
    for name, (least, most) in _BOUNDS.items():
        value = getattr(terms, name)
        if isinstance(value, int) and not least <= value <= most:
            shown = FIELDS.get(name, name)
            raise InvalidInput(f"`{shown}` is from {least} to {most}, or null for the usual.", field=shown)
    if isinstance(terms.suspended_reason, str):
        name_of(terms.suspended_reason, field="suspended_reason", least=0, longest=LONGEST_REASON)


def _changed(team: Team, terms: TeamTerms, now: float) -> Team:
    given = {name: value for name in _BOUNDS if (value := getattr(terms, name)) is not UNSET}
    team = replace(team, **given)
    if terms.suspended is True:
        team = replace(team, suspended_at=team.suspended_at or now)
    if terms.suspended is False:
        return replace(team, suspended_at=None, suspended_reason="")
    if isinstance(terms.suspended_reason, str) and team.suspended_at is not None:
        team = replace(team, suspended_reason=terms.suspended_reason.strip())
    return team


def _noted(team: Team) -> dict[str, object]:
    """What the audit log has of a team's terms."""
    return {
        "suspended": team.suspended_at is not None,
        "suspended_reason": team.suspended_reason,
        **{FIELDS.get(name, name): getattr(team, name) for name in _BOUNDS},
    }


def _read_history(file: Path) -> list[UpstreamHistory]:
    try:
        with file.open("rb") as opened:
            return msgspec.json.decode(opened.read(MAX_BYTES), type=list[UpstreamHistory])
    except (OSError, msgspec.DecodeError):
        return []
