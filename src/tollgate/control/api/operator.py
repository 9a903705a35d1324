"""What an operator sees and does: for accounts that `tollgate admin operator` has marked."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import astuple

from tollgate.api.base import MONTH
from tollgate.api.usage import By, Usage
from tollgate.control.api import reading, shapes
from tollgate.control.api.access import CurrentActor, HttpRequest, Part, Plane
from tollgate.control.api.operations import OPERATOR, Operation, Query, endpoint
from tollgate.control.api.render import Answer, listed, listed_items, shown
from tollgate.control.problems import Busy, InvalidInput, NotFound, RoleNeeded
from tollgate.control.service_context import MAX_ROWS, USUAL_ROWS
from tollgate.control.services.operator import STATES, CheckResult, ServiceUsage, TeamTerms, TeamUse
from tollgate.core.upstream_history import HistoryStep
from tollgate.core.upstreams import ShownNetwork
from tollgate.settings.model import Settings


class OperatorTeam(Struct, frozen=True):
    """A team, as its operator sees it."""

    id: str
    name: str
    created_at: datetime
    suspended_at: Annotated[datetime | None, Meta(description="Since when its calls are refused.")]
    suspended_reason: str
    capped: Annotated[bool, Meta(description="Whether a cap stops its calls now (402).")]
    requests_per_second: Annotated[int | None, Meta(description="For all its calls together; null: no limit.")]
    free_requests: Annotated[int | None, Meta(description="Of a month, for this team; null: the usual number.")]
    micros_per_million: Annotated[
        int | None, Meta(description="Its own price of a million requests; null: the usual price.")
    ]
    operator_cap_micros: Annotated[int | None, Meta(description="What it can spend in a month; null: no cap.")]
    spending_cap_micros: Annotated[int | None, Meta(description="The cap that the team has chosen.")]
    usual_free_requests: Annotated[int, Meta(description="The value in the settings.")]
    usual_micros_per_million: Annotated[int, Meta(description="The value in the settings.")]
    billable_requests: Annotated[int | None, Meta(description="Of this month; null while the ledger is away.")]
    cost_micros: int | None


class OperatorTeamPage(Struct, frozen=True):
    """A part of the list of teams."""

    items: list[OperatorTeam]
    next: shapes.Next


class TeamSum(Struct, frozen=True):
    """What one team used in a month."""

    id: str
    name: Annotated[str, Meta(description="The id of a team that is gone.")]
    billable_requests: int
    cost_micros: int


class ServiceUsageView(Struct, frozen=True):
    """What all teams used in a month."""

    month: str
    teams: Annotated[int, Meta(description="That used something.")]
    billable_requests: int
    cost_micros: int
    items: Annotated[list[TeamSum], Meta(description="Teams to which it cost most, the first `limit`.")]


class UpstreamPage(Struct, frozen=True):
    """All networks with their upstreams; there is no second part."""

    items: list[ShownNetwork]
    next: shapes.Next


class HistoryStepView(Struct, frozen=True):
    """A quarter of an hour."""

    start: datetime
    state: Annotated[str, Meta(description="The worst of this time.")]
    calls: int
    failures: int
    behind: Annotated[int, Meta(description="Blocks that it lacked, at most.")]
    latency_ms: Annotated[float | None, Meta(description="At most; null where there was none.")]


class UpstreamHistoryView(Struct, frozen=True):
    """The health of one upstream over the last day."""

    network: str
    upstream: str
    steps: list[HistoryStepView]


class UpstreamHistoryPage(Struct, frozen=True):
    """All upstreams; there is no second part."""

    items: list[UpstreamHistoryView]
    next: shapes.Next


class ProcessView(Struct, frozen=True):
    """A process of the service."""

    name: str
    pid: int
    started_at: datetime
    cpu_seconds: float
    memory_bytes: int
    restarts: Annotated[int, Meta(description="How often it was replaced since the service was started.")]


class MachineState(Struct, frozen=True):
    """The processes of the service, and how far the collector is behind."""

    processes: Annotated[list[ProcessView], Meta(description="Empty where the system does not report them.")]
    spool_segments: int
    spool_waiting_bytes: int
    spool_waiting_since: Annotated[datetime | None, Meta(description="Null where nothing waits.")]


class Checks(Struct, frozen=True):
    """Whether spool, logs, usage and invoices agree."""

    ok: bool
    checks: list[CheckResult]


class OperatorNode(Struct, frozen=True):
    """A node."""

    id: str
    name: Annotated[str, Meta(description="Of its machine.")]
    roles: Annotated[list[str], Meta(description="`all`, or some of gateway, control, collector and prober.")]
    version: str
    state: Annotated[str, Meta(description="`up`, or `gone` after 30 seconds without a sign of life.")]
    started_at: datetime
    seen_at: datetime
    spool_bytes: Annotated[int, Meta(description="In its spool, and not in the ledger yet.")]


class NodePage(Struct, frozen=True):
    """All nodes; there is no second part."""

    items: list[OperatorNode]
    next: shapes.Next


class TermsChange(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What to set for a team."""

    suspended: Annotated[bool | UnsetType, Meta(description="Whether its calls are refused.", examples=[True])] = (
        UNSET
    )
    suspended_reason: Annotated[
        str | UnsetType, Meta(description="Why, for operators and the audit log.", examples=["unpaid"])
    ] = UNSET
    requests_per_second: Annotated[
        int | UnsetType | None,
        Meta(description="For all its calls together; null: no limit.", examples=[500]),
    ] = UNSET
    free_requests: Annotated[
        int | UnsetType | None,
        Meta(description="Free requests of a month; null: as in the settings.", examples=[5_000_000]),
    ] = UNSET
    micros_per_million: Annotated[
        int | UnsetType | None,
        Meta(description="Price of a further million; null: as in the settings.", examples=[3_000_000]),
    ] = UNSET
    operator_cap_micros: Annotated[
        int | UnsetType | None,
        Meta(
            description="What it can spend in a month, whatever cap it chooses itself; null: no cap.",
            examples=[500_000_000],
        ),
    ] = UNSET


_MONTH = Query(
    "month",
    "A calendar month in UTC. Left out: the current one.",
    {"type": "string", "pattern": MONTH, "examples": ["2026-11"]},
)


@endpoint(
    "GET",
    "/operator/upstreams",
    Operation(
        id="listUpstreams",
        tag=OPERATOR,
        summary="List all upstreams with state, head, lag, latency and errors",
        gives=UpstreamPage,
        raises=(RoleNeeded,),
    ),
)
async def upstreams(plane: Plane, actor: CurrentActor) -> Answer:
    return listed_items(await plane.operator.upstreams(actor), None)


@endpoint(
    "GET",
    "/operator/nodes",
    Operation(
        id="listNodes",
        tag=OPERATOR,
        summary="List the nodes that share the store, with roles, version, last sign of life and spool lag",
        gives=NodePage,
        raises=(RoleNeeded,),
    ),
)
async def nodes(plane: Plane, actor: CurrentActor) -> Answer:
    now = plane.context.now()
    found = [
        shapes.of(
            OperatorNode, node, roles=node.roles.split(","), state=node.state(now), started_at=node.created_at
        )
        for node in await plane.operator.nodes(actor)
    ]
    return listed_items(found, None)


@endpoint(
    "GET",
    "/operator/teams",
    Operation(
        id="listAllTeams",
        tag=OPERATOR,
        summary="List all teams with what they used this month",
        lists=True,
        query=(Query("state", "Those alone that are in this state.", {"type": "string", "enum": [*STATES]}),),
        gives=OperatorTeamPage,
        raises=(RoleNeeded,),
    ),
)
async def teams(request: HttpRequest, plane: Plane, actor: CurrentActor) -> Answer:
    found = await plane.operator.teams(actor, reading.page(request), reading.query(request, "state"))
    return listed(found, partial(team_view, plane.settings, plane.context.now()))


@endpoint(
    "GET",
    "/operator/teams/{name}",
    Operation(
        id="getAnyTeam",
        tag=OPERATOR,
        summary="Show a team with its terms and what it used this month",
        gives=OperatorTeam,
        raises=(RoleNeeded, NotFound),
    ),
)
async def team(plane: Plane, actor: CurrentActor, name: Part) -> Answer:
    found = await plane.operator.team(actor, name)
    return shown(team_view(plane.settings, plane.context.now(), found))


@endpoint(
    "GET",
    "/operator/teams/{name}/usage",
    Operation(
        id="getUsageOfAnyTeam",
        tag=OPERATOR,
        summary="Show what a team used in a month, by network, method or day",
        query=(
            _MONTH,
            Query(
                "by",
                "What the items are.",
                {"type": "string", "enum": [By.NETWORK, By.METHOD, By.DAY], "default": By.DAY},
            ),
        ),
        gives=Usage,
        raises=(InvalidInput, RoleNeeded, NotFound),
    ),
)
async def team_usage(request: HttpRequest, plane: Plane, actor: CurrentActor, name: Part) -> Answer:
    month, by = (reading.query(request, each) for each in ("month", "by"))
    return shown(await plane.operator.team_usage(actor, name, month, by or By.DAY))


@endpoint(
    "GET",
    "/operator/usage",
    Operation(
        id="getServiceUsage",
        tag=OPERATOR,
        summary="Show what all teams used in a month, those to which it cost most first",
        query=(
            _MONTH,
            Query(
                "limit",
                "Teams at most.",
                {"type": "integer", "minimum": 1, "maximum": MAX_ROWS, "default": USUAL_ROWS},
            ),
        ),
        gives=ServiceUsageView,
        raises=(InvalidInput, RoleNeeded),
    ),
)
async def usage(request: HttpRequest, plane: Plane, actor: CurrentActor) -> Answer:
    limit = reading.number(request, "limit", 1, MAX_ROWS, usual=USUAL_ROWS)
    return shown(usage_view(await plane.operator.usage(actor, reading.query(request, "month"), limit)))


@endpoint(
    "PATCH",
    "/operator/teams/{name}",
    Operation(
        id="setTerms",
        tag=OPERATOR,
        summary="Suspend a team, or set its limit, its own price or the operator's cap",
        description=(
            "Takes effect within a second on every worker. A price applies to calls that are let in from then on: "
            "what was charged before stays."
        ),
        takes=TermsChange,
        gives=OperatorTeam,
        raises=(RoleNeeded, NotFound),
    ),
)
async def set_terms(request: HttpRequest, plane: Plane, actor: CurrentActor, name: Part) -> Answer:
    change = await reading.body(request, TermsChange)
    found = await plane.operator.set_terms(actor, name, TeamTerms(*astuple(change)))
    return shown(team_view(plane.settings, plane.context.now(), found))


def team_view(settings: Settings, now: float, use: TeamUse) -> OperatorTeam:
    """A team, as its operator sees it."""
    team = use.team
    return shapes.of(
        OperatorTeam,
        team,
        capped=team.capped_until is not None and team.capped_until > now,
        operator_cap_micros=team.operator_cap,
        spending_cap_micros=team.spending_cap,
        usual_free_requests=settings.billing.free_requests,
        usual_micros_per_million=settings.billing.micros_per_million,
        billable_requests=use.billable,
        cost_micros=use.cost,
    )


def usage_view(found: ServiceUsage) -> ServiceUsageView:
    """What all teams used in a month."""
    items = [TeamSum(each.id, each.team.name, each.billable or 0, each.cost or 0) for each in found.teams]
    return ServiceUsageView(found.month, found.total.teams, found.total.billable, found.total.cost, items)


@endpoint(
    "GET",
    "/operator/upstreams/history",
    Operation(
        id="listUpstreamHistory",
        tag=OPERATOR,
        summary="List upstream health over the last day, by quarters of an hour",
        gives=UpstreamHistoryPage,
        raises=(RoleNeeded,),
    ),
)
async def history(plane: Plane, actor: CurrentActor) -> Answer:
    found = await plane.operator.history(actor)
    return listed_items(
        (UpstreamHistoryView(each.network, each.upstream, [_step(step) for step in each.steps]) for each in found),
        None,
    )


@endpoint(
    "GET",
    "/operator/processes",
    Operation(
        id="getProcesses",
        tag=OPERATOR,
        summary="Show the processes of the service, and how far the collector is behind",
        gives=MachineState,
        raises=(RoleNeeded,),
    ),
)
async def processes(plane: Plane, actor: CurrentActor) -> Answer:
    running, spool = await plane.operator.processes(actor), await plane.operator.spool(actor)
    return shown(
        MachineState(
            [shapes.of(ProcessView, each) for each in running],
            spool.segments,
            spool.waiting_bytes,
            shapes.moment(spool.waiting_since),
        )
    )


@endpoint(
    "POST",
    "/operator/checks",
    Operation(
        id="runChecks",
        tag=OPERATOR,
        summary="Check that spool, logs, usage and invoices agree",
        description="As `tollgate doctor` does. Takes seconds where the ledger is large.",
        gives=Checks,
        raises=(RoleNeeded, Busy),
        cost=20,
    ),
)
async def checks(plane: Plane, actor: CurrentActor) -> Answer:
    found = list(await plane.operator.examine(actor))
    return shown(Checks(all(each.ok for each in found), found))


def _step(step: HistoryStep) -> HistoryStepView:
    return HistoryStepView(
        datetime.fromtimestamp(step.start, UTC),
        step.state,
        step.calls,
        step.failures,
        step.behind,
        step.latency_ms or None,
    )


HANDLERS = [upstreams, nodes, history, processes, checks, teams, team, team_usage, usage, set_terms]
