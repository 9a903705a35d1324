"""What an operator sees and does: for accounts marked by `tollgate admin operator`."""

from __future__ import annotations

from functools import partial

from litestar import Response
from litestar.params import JSONBody

from tollgate.api import operator
from tollgate.api.operator import (
    Checks,
    HistoryStep,
    MachineState,
    NodePage,
    OperatorNode,
    OperatorTeam,
    OperatorTeamPage,
    Process,
    ServiceUsage,
    ServiceUsageQuery,
    TeamsQuery,
    TeamUsageQuery,
    TermsChange,
    UpstreamHistory,
    UpstreamHistoryPage,
    UpstreamPage,
)
from tollgate.api.usage import Usage
from tollgate.control.api.access import CurrentActor, Part, Plane
from tollgate.control.api.operations import OPERATOR, serves
from tollgate.control.api.reading import Wanted, WantedPage
from tollgate.control.api.render import moment, of, page_of, unstored
from tollgate.control.problems import Busy, RoleNeeded
from tollgate.control.services.operator import TeamUse
from tollgate.core import upstream_history
from tollgate.settings.model import Settings


@serves(operator.UPSTREAMS, RoleNeeded, tag=OPERATOR)
async def list_upstreams(plane: Plane, actor: CurrentActor) -> Response[UpstreamPage]:
    """List all upstreams with state, head, lag, latency and errors."""
    return unstored(UpstreamPage(list(await plane.operator.upstreams(actor))))


@serves(operator.NODES, RoleNeeded, tag=OPERATOR)
async def list_nodes(plane: Plane, actor: CurrentActor) -> Response[NodePage]:
    """List the nodes that share the store, with roles, version, last heartbeat and spool lag."""
    now = plane.context.now()
    nodes = [
        of(
            OperatorNode,
            node,
            roles=node.roles.split(","),
            state=node.state(now),
            started_at=moment(node.created_at),
        )
        for node in await plane.operator.nodes(actor)
    ]
    return unstored(NodePage(nodes))


@serves(operator.TEAMS, RoleNeeded, tag=OPERATOR)
async def list_all_teams(
    plane: Plane, actor: CurrentActor, page: WantedPage, wanted: Wanted[TeamsQuery]
) -> Response[OperatorTeamPage]:
    """List all teams with their usage of this month."""
    found = await plane.operator.teams(actor, page, wanted)
    return page_of(OperatorTeamPage, found, partial(_team, plane.settings, plane.context.now()))


@serves(operator.TEAM, RoleNeeded, tag=OPERATOR)
async def get_any_team(plane: Plane, actor: CurrentActor, name: Part) -> Response[OperatorTeam]:
    """Show a team with its terms and its usage of this month."""
    found = await plane.operator.team(actor, name)
    return unstored(_team(plane.settings, plane.context.now(), found))


@serves(operator.TEAM_USAGE, RoleNeeded, tag=OPERATOR)
async def get_usage_of_any_team(
    plane: Plane, actor: CurrentActor, name: Part, wanted: Wanted[TeamUsageQuery]
) -> Response[Usage]:
    """Show a team's usage of a month, by network, method or day."""
    return unstored(await plane.operator.team_usage(actor, name, wanted))


@serves(operator.USAGE, RoleNeeded, tag=OPERATOR)
async def get_service_usage(
    plane: Plane, actor: CurrentActor, wanted: Wanted[ServiceUsageQuery]
) -> Response[ServiceUsage]:
    """Show the usage of all teams in a month, highest cost first."""
    return unstored(await plane.operator.usage(actor, wanted))


@serves(operator.SET_TERMS, RoleNeeded, tag=OPERATOR)
async def set_terms(
    plane: Plane, actor: CurrentActor, name: Part, data: JSONBody[TermsChange]
) -> Response[OperatorTeam]:
    """Suspend a team, or set its limit, its own price or the operator's cap.

    Takes effect within a second on every worker. A price applies to calls accepted from then on: earlier charges
    stay.
    """
    found = await plane.operator.set_terms(actor, name, data)
    return unstored(_team(plane.settings, plane.context.now(), found))


def _team(settings: Settings, now: float, use: TeamUse) -> OperatorTeam:
    team = use.team
    return of(
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


@serves(operator.HISTORY, RoleNeeded, tag=OPERATOR)
async def list_upstream_history(plane: Plane, actor: CurrentActor) -> Response[UpstreamHistoryPage]:
    """List upstream health over the last day, in steps of fifteen minutes."""
    histories = [
        UpstreamHistory(each.network, each.upstream, [_step(step) for step in each.steps])
        for each in await plane.operator.history(actor)
    ]
    return unstored(UpstreamHistoryPage(histories))


def _step(step: upstream_history.HistoryStep) -> HistoryStep:
    return of(HistoryStep, step, start=moment(step.start), latency_ms=step.latency_ms or None)


@serves(operator.PROCESSES, RoleNeeded, tag=OPERATOR)
async def get_processes(plane: Plane, actor: CurrentActor) -> Response[MachineState]:
    """Show the processes of the service, and how far the collector is behind."""
    running, spool = await plane.operator.processes(actor), await plane.operator.spool(actor)
    processes = [of(Process, each) for each in running]
    return unstored(MachineState(processes, spool.segments, spool.waiting_bytes, moment(spool.waiting_since)))


@serves(operator.CHECK, RoleNeeded, Busy, tag=OPERATOR, cost=20)
async def run_checks(plane: Plane, actor: CurrentActor) -> Response[Checks]:
    """Check that spool, logs, usage and invoices agree.

    As `tollgate doctor` does. Takes seconds if the ledger is large.
    """
    found = list(await plane.operator.examine(actor))
    return unstored(Checks(all(each.ok for each in found), found))
