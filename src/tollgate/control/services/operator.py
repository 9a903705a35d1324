"""What an operator sees and does: upstreams, teams and their usage, suspending a team, its price, limit and cap.

For accounts marked by `tollgate admin operator`, and for `tollgate admin` itself. A team's tokens, logs and
members are not shown.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from msgspec import Struct, UnsetType
from msgspec.structs import replace

from tollgate.api.operator import (
    CheckResult,
    ServiceUsage,
    ServiceUsageQuery,
    ShownNetwork,
    TeamsQuery,
    TeamSum,
    TeamUsageQuery,
    TermsChange,
)
from tollgate.api.usage import By, Usage
from tollgate.control.commands import accepted, checked
from tollgate.control.problems import Busy, NotFound, RoleNeeded
from tollgate.control.service_context import (
    MAX_ROWS,
    OPERATOR,
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
from tollgate.control.services.networks import TeamNetworks, read_report
from tollgate.control.services.usage import Usages
from tollgate.core import secrets
from tollgate.core.models import PriceChange, Team
from tollgate.core.months import month_of
from tollgate.core.nodes import Node
from tollgate.core.pricing import MonthUse
from tollgate.core.upstream_history import FILE, UpstreamHistory
from tollgate.store.base import AccountBook, Given, Repositories, StoreUnavailable

# Columns of a team's row that hold terms, by their names in the API.
_TERMS = {
    "requests_per_second": "requests_per_second",
    "free_requests": "free_requests",
    "micros_per_million": "micros_per_million",
    "operator_cap_micros": "operator_cap",
}
_STATES: dict[str, dict[str, Any]] = {
    "active": {"suspended_at": None},
    "suspended": {"suspended_at": Given.GIVEN},
    "capped": {"capped_until": Given.GIVEN},
}
ALL, CURRENT, BY_DAY = TeamsQuery(), ServiceUsageQuery(), TeamUsageQuery()
MAX_REASON = 200


class TeamUse(Struct, frozen=True):
    """A team and its usage of this month."""

    team: Team
    billable: int | None = 0
    """None if the ledger cannot be read now; the cost likewise."""
    cost: int | None = 0

    @property
    def id(self) -> str:
        return self.team.id

    @property
    def created_at(self) -> float:
        return self.team.created_at


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
    """When a waiting segment was last written to; None if none waits."""


class Inspector(Protocol):
    """Inspects the machine; blocks. `processes/control.py`."""

    def processes(self) -> Sequence[ProcessState]: ...

    def spool(self) -> SpoolState: ...

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
        """Refuse everyone but operators."""
        if actor is not OPERATOR and not actor.is_operator:
            raise RoleNeeded("see the operator's pages", "member", ["operator"])

    async def upstreams(self, actor: Actor) -> Sequence[ShownNetwork]:
        """All upstreams as the prober last saw them; none if it has not written lately."""
        self.check(actor)
        shown = await self._networks.status()
        return shown.networks if shown else ()

    async def history(self, actor: Actor) -> Sequence[UpstreamHistory]:
        """Upstream health over the last day, as the prober stored it within the last minutes."""
        self.check(actor)
        return await read_report(self._context, FILE, list[UpstreamHistory]) or []

    async def processes(self, actor: Actor) -> Sequence[ProcessState]:
        """The processes of the service; none if the system does not report them."""
        self.check(actor)
        return [] if self._inspector is None else await asyncio.to_thread(self._inspector.processes)

    async def spool(self, actor: Actor) -> SpoolState:
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
        """The nodes that share the store; none if it is a file."""
        self.check(actor)
        async with self._context.store.reading() as records:
            return await records.nodes.page(MAX_ROWS)

    async def teams(self, actor: Actor, page: PageRequest, wanted: TeamsQuery = ALL) -> ResultPage[TeamUse]:
        """All teams, or those in one state, with their usage of this month."""
        self.check(actor)
        state = checked(wanted).state
        scope = f"operator:teams:{state or ''}"
        async with self._context.store.reading() as records:
            teams = await records.teams.page(page.limit + 1, page.place(scope), **_STATES[state] if state else {})
        spent = await required(self._book).spent(month_of(self._context.now()), teams)
        return page_of(scope, [_use(team, spent[team.id]) for team in teams], page.limit)

    async def team(self, actor: Actor, team: str) -> TeamUse:
        self.check(actor)
        async with self._context.store.reading() as records:
            found = await _team(records, team)
        spent = await required(self._book).spent(month_of(self._context.now()), [found])
        return _use(found, spent[found.id])

    async def usage(self, actor: Actor, wanted: ServiceUsageQuery = CURRENT) -> ServiceUsage:
        """Usage of all teams in a month, by default the current one; teams with the highest cost first."""
        self.check(actor)
        limit, month = checked(wanted).limit, self._month(wanted.month)
        total, spenders = await required(self._book).spenders(month, limit)
        async with self._context.store.reading() as records:
            known = {team.id: team for team in await records.teams.page(limit, id=tuple(spenders))}
        # Deleted teams still owe for the month.
        items = [TeamSum(key, known[key].name if key in known else key, *sums) for key, sums in spenders.items()]
        return ServiceUsage(month, total.teams, total.billable, total.cost, items)

    async def team_usage(self, actor: Actor, team: str, wanted: TeamUsageQuery = BY_DAY) -> Usage:
        """Usage of one team in a month, without its tokens and domains."""
        self.check(actor)
        wanted = checked(wanted)
        async with self._context.store.reading() as records:
            found = await _team(records, team)
        return await self._usage.of_any_team(found, self._month(wanted.month), By(wanted.by))

    def _month(self, month: str | UnsetType) -> str:
        return month_of(self._context.now()) if isinstance(month, UnsetType) else month

    async def set_terms(self, actor: Actor, team: str, wanted: TermsChange) -> TeamUse:
        """Suspend or resume a team; set its limit, its own price and the operator's cap."""
        self.check(actor)
        reason = partial(name_of, field="suspended_reason", min_length=0, max_length=MAX_REASON)
        given = accepted(wanted, {"suspended_reason": reason})
        async with self._context.store.reading() as records:
            found = await _team(records, team)
        now = self._context.now()
        # A team can be suspended while the ledger is unavailable. The collector then notices a cap that is
        # reached.
        spent: MonthUse | None = None
        with suppress(StoreUnavailable):
            spent = (await required(self._book).spent(month_of(now), [found]))[found.id]
        async with self._context.store.changing() as records:
            found = await _team(records, found.id)
            changed = _changed(found, given, now)
            if spent is not None and (changed.cap, changed.price) != (found.cap, found.price):
                changed = stopped(self._context, changed, spent)
            if changed.price != found.price:
                last = await records.price_changes.page(1, None, newest_first=True, team_id=found.id)
                # The later of two changes is in force, whatever the clocks of the nodes.
                at = max(now, math.nextafter(last[0].created_at, math.inf)) if last else now
                change = PriceChange(
                    secrets.new_id("prc"), found.id, at, changed.free_requests, changed.micros_per_million
                )
                await records.price_changes.add(change)
            if changed != found:
                await records.teams.replace(changed)
                await self._context.note(
                    records, actor, "team.terms", team_id=found.id, target=found.id, name=found.name,
                    before=_noted(found), after=_noted(changed),
                )  # fmt: skip
        return _use(changed, spent)


def _use(team: Team, use: MonthUse | None) -> TeamUse:
    return TeamUse(team, use.requests, use.cost) if use is not None else TeamUse(team, None, None)


async def _team(records: Repositories, team: str) -> Team:
    found = await team_named(records, team)
    if found is None:
        raise NotFound(f"There is no team {team[:60]}: list them with `tollgate admin teams`.")
    return found


def _changed(team: Team, given: Mapping[str, Any], now: float) -> Team:
    team = replace(team, **{_TERMS[name]: value for name, value in given.items() if name in _TERMS})
    if given.get("suspended") is True:
        team = replace(team, suspended_at=team.suspended_at or now)
    if given.get("suspended") is False:
        return replace(team, suspended_at=None, suspended_reason="")
    if "suspended_reason" in given and team.suspended_at is not None:
        team = replace(team, suspended_reason=given["suspended_reason"])
    return team


def _noted(team: Team) -> dict[str, object]:
    return {
        "suspended": team.suspended_at is not None,
        "suspended_reason": team.suspended_reason,
        **{name: getattr(team, column) for name, column in _TERMS.items()},
    }
