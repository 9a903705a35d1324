"""The first page, and all pages of the console as one router, with what every one of them goes through."""

from __future__ import annotations

from litestar import MediaType, Response, Router, post
from litestar.exceptions import HTTPException

from tollgate.control.console import (
    device,
    errors,
    invitations,
    paths,
    provider,
    render,
    session,
    sign_in,
)
from tollgate.control.console.forms import MAX_BYTES
from tollgate.control.console.paths import Asked, Part, Plane, shown
from tollgate.control.console.safety import HOME, refuse_other_sites, with_headers
from tollgate.control.console.session import SignInFirst
from tollgate.control.problems import Problem
from tollgate.control.service_context import MAX_ROWS, PageRequest
from tollgate.core.roles import Action, Role, allows
from tollgate.store.base import StoreUnavailable

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


@shown("/style.css")
async def style() -> Response[str]:
    """The style sheet of all pages."""
    return Response(
        render.STYLE,
        media_type=MediaType.CSS,
        headers={"Cache-Control": "public, max-age=31536000, immutable"},
    )


def router() -> Router:
    """All pages, for an application that has the dependency `plane`."""
    handlers = [
        home,
        end_login,
        sign_in.sign_in_page,
        sign_in.sign_in,
        sign_in.sign_out,
        sign_in.sign_up_page,
        sign_in.sign_up,
        invitations.invitation_page,
        invitations.follow,
        sign_in.forgot_page,
        sign_in.forgot,
        sign_in.reset_page,
        sign_in.reset,
        device.device_page,
        device.decide,
        device.approved_page,
        device.denied_page,
        provider.start,
        provider.callback,
        style,
    ]
    return Router(
        path=HOME,
        route_handlers=[*handlers, *paths.nowhere(handlers)],
        guards=[refuse_other_sites],
        middleware=[with_headers],
        exception_handlers={
            SignInFirst: errors.sign_in_first,
            Problem: errors.problem_page,
            StoreUnavailable: errors.outage_page,
            HTTPException: errors.refusal_page,
            Exception: errors.failure_page,
        },
        request_max_body_size=MAX_BYTES,
        include_in_schema=False,
    )
