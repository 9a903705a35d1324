"""A forgotten password: asking for a link, and choosing another by it."""

from __future__ import annotations

from litestar import Response, post

from tollgate.control.console import render, session
from tollgate.control.console.forms import fault_of, new_password, read_form
from tollgate.control.console.paths import Asked, Part, Plane, shown
from tollgate.control.plane import ControlPlane
from tollgate.control.problems import NotFound, Problem


@shown("/forgot")
async def forgot_page(plane: Plane) -> Response[str]:
    """The form to ask for a link; without mail, whom to ask instead."""
    return _forgot(plane)


@post("/forgot")
async def forgot(request: Asked, plane: Plane) -> Response[str]:
    """Ask for a link. The answer is the same whether the address has an account or not."""
    email = (await read_form(request)).get("email", "")
    try:
        await plane.accounts.forgot(session.visit_of(request), email)
    except Problem as problem:
        return _forgot(plane, email=email, problem=problem)
    return _forgot(plane, email=email, asked=True)


@shown("/reset/{secret:str}")
async def reset_page(plane: Plane, secret: Part) -> Response[str]:
    """The form to choose another password."""
    account = await plane.accounts.account_of_reset(secret)
    return render.page("reset.html", email=account.email, secret=secret, fault=None)


@post("/reset/{secret:str}")
async def reset(request: Asked, plane: Plane, secret: Part) -> Response[str]:
    """Choose another password. Nobody is signed in by it: the link may have been read by others."""
    form = await read_form(request)
    account = await plane.accounts.account_of_reset(secret)
    try:
        await plane.accounts.reset(session.visit_of(request), secret, new_password(form))
    except NotFound:
        raise
    except Problem as problem:
        return render.page(
            "reset.html",
            status=problem.status,
            headers=problem.headers,
            email=account.email,
            secret=secret,
            fault=fault_of(problem),
        )
    return render.to("/console/sign-in?done=reset")


def _forgot(
    plane: ControlPlane, *, email: str = "", asked: bool = False, problem: Problem | None = None
) -> Response[str]:
    return render.page(
        "forgot.html",
        status=problem.status if problem else 200,
        headers=problem.headers if problem else None,
        email=email,
        asked=asked,
        fault=fault_of(problem) if problem else None,
        mail=plane.mailer.enabled,
        minutes=plane.settings.accounts.reset_minutes,
    )
