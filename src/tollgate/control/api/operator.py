"""What an operator sees and does: for accounts that `tollgate admin operator` has marked."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from tollgate.control.api import reading, shapes
from tollgate.control.api.access import Asked, Part, Plane, Who
from tollgate.control.api.operations import OPERATOR, Operation, endpoint
from tollgate.control.api.render import Answer, listed, listed_items, shown
from tollgate.control.problems import NotFound, RoleNeeded
from tollgate.control.services.operations import TeamTerms, TeamUse
from tollgate.core.models import Team
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


HANDLERS = [upstreams, teams, set_terms]
