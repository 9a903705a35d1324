"""Signing in with email and password, signing up if open or invited, signing out, resetting a password."""

from __future__ import annotations

from litestar import Response, post
from litestar.datastructures import Cookie

from tollgate.api.members import InvitationLink
from tollgate.control.api.access import client
from tollgate.control.console import render, session
from tollgate.control.console.forms import Form, FormFault, new_password, read_form
from tollgate.control.console.paths import HttpRequest, Part, Plane, shown
from tollgate.control.console.safety import HOME, local_path
from tollgate.control.plane import ControlPlane
from tollgate.control.problems import NotFound, Problem
from tollgate.control.service_context import Actor
from tollgate.control.services.invitations import PATH
from tollgate.core.models import Team
from tollgate.core.people import CONSOLE, Invitation

# Why signing in is required, by the page that was requested.
_PURPOSES = {
    "/console/device": "Sign in to see which terminal requests a login.",
    "/console/invitations/": "Sign in to accept your invitation.",
}
_NOTICES = {
    "signed-out": "You are signed out.",
    "deleted": "Your account was deleted.",
    "reset": "The password was changed, and every older login has ended. Sign in with the new one.",
}


@shown("/sign-in")
async def sign_in_page(request: HttpRequest, plane: Plane) -> Response[str]:
    back = local_path(request.query_params.get("next"))
    if await session.actor_of(request, plane):
        return render.to(back)
    return form_page(plane, back, notice=_NOTICES.get(request.query_params.get("done", ""), ""))


@post("/sign-in")
async def sign_in(request: HttpRequest, plane: Plane) -> Response[str]:
    form = await read_form(request)
    back, email = local_path(form.get("next")), form.get("email", "")
    try:
        account = await plane.accounts.check_password(client(request), email, form.get("password", ""))
    except Problem as problem:
        return form_page(plane, back, email=email, problem=problem)
    if await plane.factors.needs_code(account):
        return code_page(back, plane.factors.pending(account))
    return await session.enter(request, plane, account, back)


@post("/sign-out")
async def sign_out(request: HttpRequest, plane: Plane) -> Response[str]:
    back = local_path((await read_form(request)).get("next"))
    return await session.leave(request, plane, "/console/sign-in?done=signed-out" if back == HOME else back)


def form_page(
    plane: ControlPlane,
    back: str,
    *,
    email: str = "",
    notice: str = "",
    fault: FormFault | None = None,
    problem: Problem | None = None,
    status: int = 200,
) -> Response[str]:
    return render.page(
        "sign_in.html",
        problem=problem,
        status=status,
        next=back,
        email=email,
        notice=notice,
        purpose=next((words for start, words in _PURPOSES.items() if back.startswith(start)), ""),
        fault=fault,
        provider=provider_of(plane),
        open=plane.settings.accounts.sign_up == "open",
    )


def code_page(back: str, ticket: str, problem: Problem | None = None) -> Response[str]:
    """The form for a code, after the password."""
    return render.page("sign_in_code.html", problem=problem, next=back, ticket=ticket)


def provider_of(plane: ControlPlane) -> str:
    """The label of the sign-in provider's button; empty if there is none."""
    return plane.settings.oidc.name if plane.oidc else ""


@shown("/sign-up")
async def sign_up_page(request: HttpRequest, plane: Plane) -> Response[str]:
    back = local_path(request.query_params.get("next"))
    if await session.actor_of(request, plane):
        return render.to(back)
    return _sign_up_form(plane, back, {})


@post("/sign-up")
async def sign_up(request: HttpRequest, plane: Plane) -> Response[str]:
    """Create an account and sign in; if mail can be sent, mail a link that does so."""
    form = await read_form(request)
    back = local_path(form.get("next"))
    if plane.mailer.enabled:
        return await _request_link(request, plane, form)
    try:
        account = await plane.accounts.sign_up(
            client(request), form.get("email", ""), new_password(form), name=form.get("name", "")
        )
    except Problem as problem:
        return _sign_up_form(plane, back, form, problem)
    return await session.enter(request, plane, account, back)


async def _request_link(request: HttpRequest, plane: ControlPlane, form: Form) -> Response[str]:
    """The answer is the same whether the address has an account or not."""
    try:
        await plane.invitations.request_link(client(request), form.get("email", ""))
    except Problem as problem:
        return _sign_up_form(plane, HOME, form, problem)
    return _sign_up_form(plane, HOME, form, sent=True)


def _sign_up_form(
    plane: ControlPlane, back: str, form: Form, problem: Problem | None = None, *, sent: bool = False
) -> Response[str]:
    setting = plane.settings.accounts.sign_up
    template = "sign_up_by_mail.html" if plane.mailer.enabled else "sign_up.html"
    return render.page(
        template if setting == "open" else "no_sign_up.html",
        problem=problem,
        next=back,
        email=form.get("email", ""),
        name=form.get("name", ""),
        provider=provider_of(plane),
        invited=setting == "invited",
        sent=sent,
        days=plane.settings.accounts.invitation_days,
    )


@shown("/forgot")
async def forgot_page(plane: Plane) -> Response[str]:
    """The form that requests a link; without mail, who can create one instead."""
    return _forgot(plane)


@post("/forgot")
async def forgot(request: HttpRequest, plane: Plane) -> Response[str]:
    """Request a link. The response is the same whether the address has an account or not."""
    email = (await read_form(request)).get("email", "")
    try:
        await plane.accounts.forgot(client(request), email)
    except Problem as problem:
        return _forgot(plane, email=email, problem=problem)
    return _forgot(plane, email=email, sent=True)


@shown("/reset/{secret:str}")
async def reset_page(plane: Plane, secret: Part) -> Response[str]:
    """The form for a new password."""
    account = await plane.accounts.account_of_reset(secret)
    return render.page("reset.html", email=account.email, secret=secret)


@post("/reset/{secret:str}")
async def reset(request: HttpRequest, plane: Plane, secret: Part) -> Response[str]:
    """Set a new password. It does not sign in: others may have read the link."""
    form = await read_form(request)
    account = await plane.accounts.account_of_reset(secret)
    try:
        await plane.accounts.reset(client(request), secret, new_password(form))
    except NotFound:
        raise
    except Problem as problem:
        return render.page("reset.html", problem=problem, email=account.email, secret=secret)
    return render.to("/console/sign-in?done=reset")


def _forgot(
    plane: ControlPlane, *, email: str = "", sent: bool = False, problem: Problem | None = None
) -> Response[str]:
    return render.page(
        "forgot.html",
        problem=problem,
        email=email,
        sent=sent,
        mail=plane.mailer.enabled,
        minutes=plane.settings.accounts.reset_minutes,
    )


# --- Invitations -------------------------------------------------------------------------------------------


@shown("/invitations/{secret:str}")
async def invitation_page(request: HttpRequest, plane: Plane, secret: Part) -> Response[str]:
    """The invitation of a link, and how to accept it."""
    found = await plane.invitations.look(secret)
    return _invitation(plane, secret, found, await session.actor_of(request, plane), {})


@post("/invitations/{secret:str}")
async def follow(request: HttpRequest, plane: Plane, secret: Part) -> Response[str]:
    """Accept an invitation, after signing up if there is no account."""
    form = await read_form(request)
    found = await plane.invitations.look(secret)
    actor = await session.actor_of(request, plane)
    cookies: list[Cookie] = []
    try:
        if actor is None and form.get("act") == "sign-up":
            account = await plane.accounts.sign_up_invited(
                client(request), found[0], new_password(form), name=form.get("name", "")
            )
            login, cookie = await session.begin(request, plane, account)
            actor, cookies = await plane.logins.actor(client(request), login, CONSOLE), [cookie]
        if actor is None:
            raise session.SignInFirst(PATH + secret)
        await plane.invitations.accept(actor, InvitationLink(secret))
    except NotFound:
        raise
    except Problem as problem:
        return _invitation(plane, secret, found, actor, form, problem)
    return render.to("/console?done=joined", cookies)


def _invitation(
    plane: ControlPlane,
    secret: str,
    found: tuple[Invitation, Team | None],
    actor: Actor | None,
    form: Form,
    problem: Problem | None = None,
) -> Response[str]:
    invitation, team = found
    email = actor.label if actor else None
    return render.page(
        "invitation.html",
        problem=problem,
        who=email,
        secret=secret,
        invitation=invitation,
        team=team,
        mine=email == invitation.email,
        may_sign_up=invitation.by_operator or plane.settings.accounts.sign_up != "closed",
        provider=provider_of(plane),
        name=form.get("name", ""),
    )
