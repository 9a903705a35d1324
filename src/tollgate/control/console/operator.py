"""The operator's pages: upstreams, and teams with their usage, suspension and limit."""

from __future__ import annotations

from litestar import Response, post

from tollgate.control.console import render
from tollgate.control.console.forms import read_form, whole
from tollgate.control.console.frame import Frame, open_frame, page
from tollgate.control.console.paths import Asked, Part, Plane, shown
from tollgate.control.plane import ControlPlane
from tollgate.control.problems import NotFound, Problem
from tollgate.control.service_context import PageRequest
from tollgate.control.services.operations import TeamTerms

_TOASTS = {"changed": "The team's terms are changed. They take effect within a second."}


@shown("/operator")
async def operator_page(request: Asked, plane: Plane) -> Response[str]:
    """All upstreams and all teams."""
    frame = await open_frame(request, plane, here="operator", title="Operator")
    frame.toast = _TOASTS.get(request.query_params.get("done", ""), "")
    return await _page(frame, plane, request.query_params.get("after"))


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
    frame: Frame, plane: ControlPlane, after: str | None = None, problem: Problem | None = None
) -> Response[str]:
    frame.commands = ("tollgate upstreams", "tollgate doctor")
    upstreams = await plane.operations.upstreams(frame.actor)
    teams = await plane.operations.teams(frame.actor, PageRequest(100, after))
    return page(frame, "operator.html", problem=problem, networks=upstreams, teams=teams.items, next=teams.next)
