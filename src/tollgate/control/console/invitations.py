"""Accepting an invitation: signed in, by signing in, or by signing up."""

from __future__ import annotations

from litestar import Response, post
from msgspec import Struct

from tollgate.api.members import InvitationLink
from tollgate.control.console import render, session
from tollgate.control.console.forms import Form, new_password, read_form
from tollgate.control.console.paths import HttpRequest, Part, Plane, shown
from tollgate.control.console.sign_in import provider_of
from tollgate.control.plane import ControlPlane
from tollgate.control.problems import NotFound, Problem
from tollgate.control.service_context import Actor
from tollgate.control.services.invitations import PATH
from tollgate.core.models import Team
from tollgate.core.people import CONSOLE, Account, Invitation


class _OpenedInvitation(Struct, frozen=True):
    """An invitation, and the person who opened it."""

    secret: str
    invitation: Invitation
    team: Team | None
    actor: Actor | None

    def __repr__(self) -> str:
        return f"_OpenedInvitation({self.invitation.id})"


@shown("/invitations/{secret:str}")
async def invitation_page(request: HttpRequest, plane: Plane, secret: Part) -> Response[str]:
    """The invitation of a link, and how to accept it."""
    return _page(plane, await _open(request, plane, secret), {})


@post("/invitations/{secret:str}")
async def follow(request: HttpRequest, plane: Plane, secret: Part) -> Response[str]:
    """Accept an invitation, after signing up if there is no account."""
    form = await read_form(request)
    opened = await _open(request, plane, secret)
    try:
        if opened.actor is None and form.get("act") == "sign-up":
            return await _sign_up(request, plane, opened, form)
        if opened.actor is None:
            raise session.SignInFirst(PATH + secret)
        await plane.invitations.accept(opened.actor, InvitationLink(secret))
    except NotFound:
        raise
    except Problem as problem:
        return _page(plane, opened, form, problem)
    return render.to("/console?done=joined")


async def _sign_up(
    request: HttpRequest, plane: ControlPlane, opened: _OpenedInvitation, form: Form
) -> Response[str]:
    client = session.client_of(request)
    account: Account = await plane.accounts.sign_up_invited(
        client, opened.invitation, new_password(form), name=form.get("name", "")
    )
    secret, cookie = await session.begin(request, plane, account)
    actor = await plane.logins.actor(client, secret, CONSOLE)
    await plane.invitations.accept(actor, InvitationLink(opened.secret))
    return render.to("/console?done=joined", [cookie])


async def _open(request: HttpRequest, plane: ControlPlane, secret: str) -> _OpenedInvitation:
    invitation, team = await plane.invitations.look(secret)
    return _OpenedInvitation(secret, invitation, team, await session.actor_of(request, plane))


def _page(
    plane: ControlPlane, opened: _OpenedInvitation, form: Form, problem: Problem | None = None
) -> Response[str]:
    invitation = opened.invitation
    email = opened.actor.label if opened.actor else None
    return render.page(
        "invitation.html",
        problem=problem,
        who=email,
        secret=opened.secret,
        invitation=invitation,
        team=opened.team,
        mine=email == invitation.email,
        may_sign_up=invitation.by_operator or plane.settings.accounts.sign_up != "closed",
        provider=provider_of(plane),
        name=form.get("name", ""),
    )
