"""The first page: who is signed in, their teams and logins, and how to go on."""

from __future__ import annotations

from litestar import Response, post

from tollgate.control.console import render, session
from tollgate.control.console.paths import Asked, Part, Plane, shown
from tollgate.control.console.safety import HOME
from tollgate.control.service_context import MAX_ROWS, PageRequest
from tollgate.core.roles import Action, Role, allows

_NOTICES = {
    "ended": "That login has ended.",
    "joined": "You have accepted the invitation.",
}


@shown("/")
async def home(request: Asked, plane: Plane) -> Response[str]:
    """Who is signed in, their teams and logins."""
    actor, account = await session.signed_in(request, plane, back=HOME)
    roles = await plane.teams.roles(actor)
    listed = (await plane.teams.list(actor, PageRequest(MAX_ROWS))).items
    teams = [
        (team.name, roles[team.id]) for team in sorted(listed, key=lambda team: team.name) if team.id in roles
    ]
    logins = await plane.logins.list(actor, PageRequest(MAX_ROWS))
    return render.page(
        "home.html",
        who=account.email,
        account=account,
        notice=_NOTICES.get(request.query_params.get("done", ""), ""),
        teams=teams,
        # The one to show commands with.
        builds=next((name for name, role in teams if allows(Role(role), Action.CHANGE_TOKENS)), ""),
        logins=list(reversed(logins.items)),
        current=actor.login.id if actor.login else "",
        base_url=plane.base_url,
        now=plane.context.now(),
    )


@post("/logins/{login_id:str}/end")
async def end_login(request: Asked, plane: Plane, login_id: Part) -> Response[str]:
    """End one of one's logins; ending the one that is being used signs out."""
    actor, _ = await session.signed_in(request, plane, back=HOME)
    if actor.login is not None and login_id == actor.login.id:
        return await session.leave(request, plane, "/console/sign-in?done=signed-out")
    await plane.logins.end(actor, login_id)
    return render.to("/console?done=ended")
