"""The start page: the account's team, or all of its teams, or how to get one; and creating a team."""

from __future__ import annotations

from litestar import Response, post

from tollgate.api.teams import NewTeam
from tollgate.control.console import render
from tollgate.control.console.forms import command, read_form
from tollgate.control.console.frame import TEAMS, Frame, open_frame, page
from tollgate.control.console.paths import HttpRequest, Part, Plane, shown
from tollgate.control.plane import ControlPlane
from tollgate.control.problems import Problem
from tollgate.core.roles import Action, Role, allows

_TOASTS = {
    "joined": "You have accepted the invitation.",
    "deleted": "The team was deleted.",
    "left": "You have left the team.",
}


@shown("/")
async def home(request: HttpRequest, plane: Plane) -> Response[str]:
    """Redirect to the only team; otherwise show all of them."""
    frame = await open_frame(request, plane)
    if len(frame.teams) == 1 and "done" not in request.query_params:
        return render.to(f"{TEAMS}/{frame.teams[0][0]}")
    return _teams(frame, plane, toast=_TOASTS.get(request.query_params.get("done", ""), ""))


@shown("/teams")
async def teams_page(request: HttpRequest, plane: Plane) -> Response[str]:
    """All teams of the account."""
    return _teams(await open_frame(request, plane), plane)


@post("/teams")
async def create_team(request: HttpRequest, plane: Plane) -> Response[str]:
    frame = await open_frame(request, plane)
    wanted = command(await read_form(request), NewTeam)
    try:
        made = await plane.teams.create(frame.actor, wanted)
    except Problem as problem:
        return _teams(frame, plane, name=wanted.name, problem=problem)
    return render.to(f"{TEAMS}/{made.team.name}/endpoints?done=team")


@shown("/teams/{team:str}/more")
async def more_page(request: HttpRequest, plane: Plane, team: Part) -> Response[str]:
    """All pages of a team, for phones, whose bottom bar has no room for them."""
    frame = await open_frame(request, plane, team, here="more", title="All pages")
    return page(frame, "more.html")


def _teams(
    frame: Frame, plane: ControlPlane, *, toast: str = "", name: str = "", problem: Problem | None = None
) -> Response[str]:
    frame.title, frame.toast = "Teams", toast
    builds = next((each for each, role in frame.teams if allows(Role(role), Action.CHANGE_TOKENS)), "")
    login = f"tollgate auth login --url {plane.base_url}"
    if not frame.teams:
        frame.commands = (
            login,
            "tollgate teams create my-team",
            "tollgate rpc tokens create my-app --team my-team",
        )
    elif builds:
        frame.commands = (login, f"tollgate rpc tokens create my-app --team {builds}")
    else:
        frame.commands = (login, f"tollgate rpc tokens list --team {frame.teams[0][0]}")
    return page(frame, "teams.html", problem=problem, name=name)
