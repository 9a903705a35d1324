"""The operator's page: upstreams and their last day, processes, spool, checks; teams with usage and limits."""

from __future__ import annotations

from collections.abc import Sequence

from litestar import Response, post

from tollgate.control.console import charts, render
from tollgate.control.console.forms import read_form, whole
from tollgate.control.console.frame import Frame, open_frame, page
from tollgate.control.console.paths import Asked, Part, Plane, shown
from tollgate.control.plane import ControlPlane
from tollgate.control.problems import Busy, NotFound, Problem
from tollgate.control.service_context import PageRequest
from tollgate.control.services.operations import CheckResult, TeamTerms

_TOASTS = {"changed": "The team's terms are changed. They take effect within a second."}


@shown("/operator")
async def operator_page(request: Asked, plane: Plane) -> Response[str]:
    """All upstreams and all teams."""
    frame = await open_frame(request, plane, here="operator", title="Operator")
    frame.toast = _TOASTS.get(request.query_params.get("done", ""), "")
    return await _page(frame, plane, request.query_params.get("after"))


@post("/operator/checks")
async def run_checks(request: Asked, plane: Plane) -> Response[str]:
    """Check that spool, logs, usage and invoices agree."""
    frame = await open_frame(request, plane, here="operator", title="Operator")
    try:
        return await _page(frame, plane, checks=await plane.operations.examine(frame.actor))
    except Busy as problem:
        return await _page(frame, plane, problem=problem)


@post("/operator/teams/{team:str}")
async def set_terms(request: Asked, plane: Plane, team: Part) -> Response[str]:
    """Suspend a team, or limit its requests."""
    frame = await open_frame(request, plane, here="operator", title="Operator")
    form = await read_form(request)
    try:
        if form.get("act") == "limit":
            terms = TeamTerms(requests_per_second=whole(form, "requests_per_second"))
        else:
            terms = TeamTerms(suspended=form.get("act") == "suspend")
        await plane.operations.set_terms(frame.actor, team, terms)
    except NotFound:
        raise
    except Problem as problem:
        plane.operations.check(frame.actor)
        return await _page(frame, plane, problem=problem)
    return render.to("/console/operator?done=changed")


async def _page(
    frame: Frame,
    plane: ControlPlane,
    after: str | None = None,
    problem: Problem | None = None,
    checks: Sequence[CheckResult] | None = None,
) -> Response[str]:
    frame.commands = ("tollgate upstreams", "tollgate operator processes", "tollgate operator teams")
    operations, actor = plane.operations, frame.actor
    upstreams = await operations.upstreams(actor)
    history = {(each.network, each.upstream): each.steps for each in await operations.history(actor)}
    teams = await operations.teams(actor, PageRequest(100, after))
    return page(
        frame,
        "operator.html",
        problem=problem,
        networks=upstreams,
        strips={
            (network.network, each.name): charts.strip(history.get((network.network, each.name), ()), frame.now)
            for network in upstreams
            for each in network.upstreams
        },
        processes=await operations.processes(actor),
        spool=await operations.spool(actor),
        checks=checks,
        teams=teams.items,
        next=teams.next,
    )
