"""Making an account for oneself, where that is open; elsewhere, how to get one."""

from __future__ import annotations

from litestar import Response, post

from tollgate.control.console import render, session
from tollgate.control.console.forms import Form, fault_of, new_password, read_form
from tollgate.control.console.paths import Asked, Plane, shown
from tollgate.control.console.safety import local_path
from tollgate.control.console.sign_in import provider_of
from tollgate.control.plane import ControlPlane
from tollgate.control.problems import Problem


@shown("/sign-up")
async def sign_up_page(request: Asked, plane: Plane) -> Response[str]:
    """The form for a new account."""
    back = local_path(request.query_params.get("next"))
    if await session.actor_of(request, plane):
        return render.to(back)
    return _page(plane, back, {})


@post("/sign-up")
async def sign_up(request: Asked, plane: Plane) -> Response[str]:
    """Make an account and sign in."""
    form = await read_form(request)
    back = local_path(form.get("next"))
    try:
        account = await plane.accounts.sign_up(
            session.visit_of(request), form.get("email", ""), new_password(form), name=form.get("name", "")
        )
    except Problem as problem:
        return _page(plane, back, form, problem)
    return await session.enter(request, plane, account, back)


def _page(plane: ControlPlane, back: str, form: Form, problem: Problem | None = None) -> Response[str]:
    setting = plane.settings.accounts.sign_up
    return render.page(
        "sign_up.html" if setting == "open" else "no_sign_up.html",
        status=problem.status if problem else 200,
        headers=problem.headers if problem else None,
        next=back,
        email=form.get("email", ""),
        name=form.get("name", ""),
        fault=fault_of(problem) if problem else None,
        provider=provider_of(plane),
        invited=setting == "invited",
    )
