"""The operator's pages: upstreams and their last day, processes, spool, checks; teams and their plans."""

from __future__ import annotations

from collections.abc import Sequence

from litestar import Response, post

from tollgate.api.operator import CheckResult, TeamUsageQuery, TermsChange
from tollgate.api.usage import By
from tollgate.control.console import charts, render
from tollgate.control.console.forms import Form, amount, read_form, whole
from tollgate.control.console.frame import Frame, open_frame, page
from tollgate.control.console.paths import HttpRequest, Part, Plane, shown
from tollgate.control.plane import ControlPlane
from tollgate.control.problems import Busy, FieldError, InvalidInput, NotFound, Problem
from tollgate.control.service_context import PageRequest
from tollgate.core.pricing import dollars

_TOASTS = {"changed": "The team's terms were changed. They take effect within a second."}
_PLAN = ("price", "free_requests", "requests_per_second", "cap")
# Members of the API by fields of the plan's form.
_NAMES = {"micros_per_million": "price", "operator_cap_micros": "cap"}


@shown("/operator")
async def operator_page(request: HttpRequest, plane: Plane) -> Response[str]:
    frame = await open_frame(request, plane, here="operator", toasts=_TOASTS)
    return await _page(frame, plane, request.query_params.get("after"))


@post("/operator/checks")
async def run_checks(request: HttpRequest, plane: Plane) -> Response[str]:
    """Check that spool, logs, usage and invoices agree."""
    frame = await open_frame(request, plane, here="operator")
    try:
        return await _page(frame, plane, checks=await plane.operator.examine(frame.actor))
    except Busy as problem:
        return await _page(frame, plane, problem=problem)


@post("/operator/teams/{team:str}")
async def set_terms(request: HttpRequest, plane: Plane, team: Part) -> Response[str]:
    """Suspend a team, limit its requests, or set its plan."""
    frame = await open_frame(request, plane, here="operator")
    form = await read_form(request)
    own_page = form.get("on") == "team"
    try:
        await plane.operator.set_terms(frame.actor, team, _terms(form))
    except NotFound:
        raise
    except Problem as problem:
        plane.operator.check(frame.actor)
        if own_page:
            return await _team_page(frame, plane, team, problem, form)
        return await _page(frame, plane, problem=problem)
    place = f"/console/operator/teams/{team}" if own_page else "/console/operator"
    return render.to(f"{place}?done=changed")


def _terms(form: Form) -> TermsChange:
    match form.get("act"):
        case "limit":
            return TermsChange(requests_per_second=whole(form, "requests_per_second"))
        case "plan":
            return TermsChange(
                requests_per_second=whole(form, "requests_per_second"),
                free_requests=whole(form, "free_requests"),
                micros_per_million=amount(form, "price"),
                operator_cap_micros=amount(form, "cap"),
            )
        case "suspend":
            return TermsChange(suspended=True, suspended_reason=form.get("suspended_reason", ""))
        case "lift":
            return TermsChange(suspended=False)
    raise InvalidInput("No action was chosen: use the buttons of the page.")


@shown("/operator/teams/{team:str}")
async def team_page(request: HttpRequest, plane: Plane, team: Part) -> Response[str]:
    """One team: its month, its plan, suspending it."""
    frame = await open_frame(request, plane, here="operator", toasts=_TOASTS)
    return await _team_page(frame, plane, team)


async def _team_page(
    frame: Frame, plane: ControlPlane, team: str, problem: Problem | None = None, typed: Form | None = None
) -> Response[str]:
    use = await plane.operator.team(frame.actor, team)
    found, billing = use.team, plane.settings.billing
    frame.title = found.name
    frame.crumbs = (("Operator", "/console/operator"),)
    frame.commands = (f"tollgate operator plan {found.name}", f"tollgate operator usage --team {found.name}")
    if problem is not None:
        errors = [FieldError(_NAMES.get(each.field, each.field), each.detail) for each in problem.errors]
        problem = InvalidInput(problem.detail, field=errors[0].field, errors=errors) if errors else problem
    current = {
        "price": _dollars(found.micros_per_million),
        "free_requests": "" if found.free_requests is None else str(found.free_requests),
        "requests_per_second": str(found.requests_per_second or ""),
        "cap": _dollars(found.operator_cap),
    }
    return page(
        frame,
        "operator_team.html",
        problem=problem,
        use=use,
        usage=await plane.operator.team_usage(frame.actor, found.id, TeamUsageQuery(by=By.NETWORK)),
        plan={name: typed.get(name, "") if typed and "price" in typed else current[name] for name in _PLAN},
        usual={"price": _dollars(billing.micros_per_million), "free_requests": f"{billing.free_requests:,}"},
    )


def _dollars(micros: int | None) -> str:
    return "" if micros is None else dollars(micros).removeprefix("$")


async def _page(
    frame: Frame,
    plane: ControlPlane,
    after: str | None = None,
    problem: Problem | None = None,
    checks: Sequence[CheckResult] | None = None,
) -> Response[str]:
    frame.commands = ("tollgate upstreams", "tollgate operator processes", "tollgate operator teams")
    operator, actor = plane.operator, frame.actor
    upstreams = await operator.upstreams(actor)
    history = {(each.network, each.upstream): each.steps for each in await operator.history(actor)}
    teams = await operator.teams(actor, PageRequest(100, after))
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
        processes=await operator.processes(actor),
        spool=await operator.spool(actor),
        checks=checks,
        teams=teams.items,
        next=teams.next,
    )
