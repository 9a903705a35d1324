"""What an operator sees and does: for accounts that `tollgate admin operator` has marked."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from tollgate.control.api import reading, shapes
from tollgate.control.api.access import Asked, Part, Plane, Who
from tollgate.control.api.operations import OPERATOR, Operation, endpoint
from tollgate.control.api.render import Answer, listed, listed_items, shown
from tollgate.control.problems import Busy, NotFound, RoleNeeded
from tollgate.control.services.operations import CheckResult, TeamTerms, TeamUse
from tollgate.core.models import Team
from tollgate.core.upstream_history import HistoryStep
from tollgate.core.upstreams import ShownNetwork


class OperatorTeam(Struct, frozen=True):
    """A team, as its operator sees it."""

    id: str
    name: str
    created_at: datetime
    suspended_at: Annotated[datetime | None, Meta(description="Since when its calls are refused.")]
    requests_per_second: int | None
    billable_requests: Annotated[int | None, Meta(description="Of this month; null where only terms were set.")]
    cost_micros: int | None


class OperatorTeamPage(Struct, frozen=True):
    """A part of the list of teams."""

    items: list[OperatorTeam]
    next: shapes.Next


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
    """How one upstream fared over the last day."""

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

    processes: Annotated[list[ProcessView], Meta(description="Empty where the system does not tell.")]
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
    requests_per_second: Annotated[
        int | UnsetType | None,
        Meta(description="For all its calls together; null: no limit.", examples=[500]),
    ] = UNSET


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
async def upstreams(plane: Plane, actor: Who) -> Answer:
    """List all upstreams."""
    return listed_items(await plane.operations.upstreams(actor), None)


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
async def nodes(plane: Plane, actor: Who) -> Answer:
    """List all nodes."""
    now = plane.context.now()
    found = [
        shapes.of(
            OperatorNode, node, roles=node.roles.split(","), state=node.state(now), started_at=node.created_at
        )
        for node in await plane.operations.nodes(actor)
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
        gives=OperatorTeamPage,
        raises=(RoleNeeded,),
    ),
)
async def teams(request: Asked, plane: Plane, actor: Who) -> Answer:
    """List all teams."""
    return listed(await plane.operations.teams(actor, reading.page(request)), _used)


@endpoint(
    "PATCH",
    "/operator/teams/{name}",
    Operation(
        id="setTerms",
        tag=OPERATOR,
        summary="Suspend a team, or limit its requests a second",
        description="Takes effect within a second on every worker.",
        takes=TermsChange,
        gives=OperatorTeam,
        raises=(RoleNeeded, NotFound),
    ),
)
async def set_terms(request: Asked, plane: Plane, actor: Who, name: Part) -> Answer:
    """Suspend or limit a team."""
    change = await reading.body(request, TermsChange)
    terms = TeamTerms(change.suspended, change.requests_per_second)
    return shown(_team(await plane.operations.set_terms(actor, name, terms)))


def _used(use: TeamUse) -> OperatorTeam:
    return _team(use.team, use.billable, use.cost)


def _team(team: Team, billable: int | None = None, cost: int | None = None) -> OperatorTeam:
    return shapes.of(OperatorTeam, team, billable_requests=billable, cost_micros=cost)


@endpoint(
    "GET",
    "/operator/upstreams/history",
    Operation(
        id="listUpstreamHistory",
        tag=OPERATOR,
        summary="List how upstreams fared over the last day, by quarters of an hour",
        gives=UpstreamHistoryPage,
        raises=(RoleNeeded,),
    ),
)
async def history(plane: Plane, actor: Who) -> Answer:
    found = await plane.operations.history(actor)
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
async def processes(plane: Plane, actor: Who) -> Answer:
    running, spool = await plane.operations.processes(actor), await plane.operations.spool(actor)
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
async def checks(plane: Plane, actor: Who) -> Answer:
    found = list(await plane.operations.examine(actor))
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


HANDLERS = [upstreams, nodes, history, processes, checks, teams, set_terms]
