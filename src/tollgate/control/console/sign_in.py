"""Signing in with email and password, and signing out."""

from __future__ import annotations

from litestar import Response, post

from tollgate.control.console import render, session
from tollgate.control.console.forms import Fault, fault_of, read_form
from tollgate.control.console.paths import Asked, Plane, shown
from tollgate.control.console.safety import HOME, local_path
from tollgate.control.plane import ControlPlane
from tollgate.control.problems import Problem

# Why one is asked to sign in, by where one wants to go.
_PURPOSES = {
    "/console/device": "Sign in to see which terminal asks to be logged in.",
    "/console/invitations/": "Sign in to accept your invitation.",
}
_NOTICES = {
    "signed-out": "You are signed out.",
    "reset": "The password is changed, and every older login has ended. Sign in with the new one.",
}


@shown("/sign-in")
async def sign_in_page(request: Asked, plane: Plane) -> Response[str]:
    """The form to sign in."""
    back = local_path(request.query_params.get("next"))
    if await session.actor_of(request, plane):
        return render.to(back)
    return form_page(plane, back, notice=_NOTICES.get(request.query_params.get("done", ""), ""))


@post("/sign-in")
async def sign_in(request: Asked, plane: Plane) -> Response[str]:
    """Sign in."""
    form = await read_form(request)
    back, email = local_path(form.get("next")), form.get("email", "")
    try:
        account = await plane.accounts.check_password(session.visit_of(request), email, form.get("password", ""))
    except Problem as problem:
        return form_page(plane, back, email=email, fault=fault_of(problem), problem=problem)
    return await session.enter(request, plane, account, back)


@post("/sign-out")
async def sign_out(request: Asked, plane: Plane) -> Response[str]:
    """Sign out."""
    back = local_path((await read_form(request)).get("next"))
    return await session.leave(request, plane, "/console/sign-in?done=signed-out" if back == HOME else back)


def form_page(
    plane: ControlPlane,
    back: str,
    *,
    email: str = "",
    notice: str = "",
    fault: Fault | None = None,
    problem: Problem | None = None,
    status: int = 200,
) -> Response[str]:
    """The form to sign in, with what is wrong."""
    return render.page(
        "sign_in.html",
        status=problem.status if problem else status,
        headers=problem.headers if problem else None,
        next=back,
        email=email,
        notice=notice,
        purpose=next((words for start, words in _PURPOSES.items() if back.startswith(start)), ""),
        fault=fault,
        provider=provider_of(plane),
        open=plane.settings.accounts.sign_up == "open",
    )


def provider_of(plane: ControlPlane) -> str:
    """What the button of the sign-in provider says; empty where there is none."""
    return plane.settings.oidc.name if plane.oidc else ""
