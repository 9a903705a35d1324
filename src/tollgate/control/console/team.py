"""A team's members and invitations, its audit log, renaming and deleting it."""

from __future__ import annotations

import json

from litestar import Response, post

from tollgate.api.audit import AuditQuery
from tollgate.api.members import NewInvitation, RoleChange
from tollgate.api.teams import TeamChange
from tollgate.control.console import render
from tollgate.control.console.forms import Form, command, read_form
from tollgate.control.console.frame import TEAMS, Frame, open_frame, page
from tollgate.control.console.paths import HttpRequest, Part, Plane, shown
from tollgate.control.plane import ControlPlane
from tollgate.control.problems import InvalidInput, NotFound, Problem
from tollgate.control.service_context import PageRequest
from tollgate.control.services.invitations import Invited
from tollgate.core.people import AuditEntry, detail_texts
from tollgate.core.roles import ALLOWED, Role

_TOASTS = {
    "role": "The role was changed.",
    "removed": "The member was removed.",
    "revoked": "The invitation was revoked.",
    "renamed": "The team was renamed. Links with its old name no longer work.",
}
ACTIONS = (
    "token.create", "token.update", "token.rotate", "token.delete", "domain.add", "domain.update", "domain.verify",
    "domain.remove", "domain.lost", "member.add", "member.role", "member.email", "member.remove",
    "invitation.create", "invitation.revoke", "billing.change", "webhook.test", "webhook.roll", "alert.give_up",
    "playground.create", "team.create", "team.rename", "team.terms",
)  # fmt: skip


@shown("/teams/{team:str}/members")
async def members_page(request: HttpRequest, plane: Plane, team: Part) -> Response[str]:
    frame = await open_frame(request, plane, team, here="members", toasts=_TOASTS)
    return await _members(frame, plane)


@post("/teams/{team:str}/members")
async def invite(request: HttpRequest, plane: Plane, team: Part) -> Response[str]:
    frame = await open_frame(request, plane, team, here="members")
    form = await read_form(request)
    wanted = command(form, NewInvitation)
    try:
        made = await plane.invitations.create(frame.actor, team, wanted)
    except Problem as problem:
        return await _members(frame, plane, problem=problem, email=wanted.email, role=wanted.role)
    return await _members(frame, plane, made=made)


@post("/teams/{team:str}/members/{member:str}")
async def change_member(request: HttpRequest, plane: Plane, team: Part, member: Part) -> Response[str]:
    """Change a member's role, or remove the member; members who remove themselves leave the team."""
    frame = await open_frame(request, plane, team, here="members")
    form = await read_form(request)
    try:
        if form.get("act") == "remove":
            await plane.teams.remove(frame.actor, team, member)
            if form.get("self"):
                return render.to("/console?done=left")
            return render.to(f"{frame.base}/members?done=removed")
        await plane.teams.set_role(frame.actor, team, member, command(form, RoleChange))
    except NotFound:
        raise
    except Problem as problem:
        return await _members(frame, plane, problem=problem)
    return render.to(f"{frame.base}/members?done=role")


@post("/teams/{team:str}/invitations/{invitation:str}")
async def revoke(request: HttpRequest, plane: Plane, team: Part, invitation: Part) -> Response[str]:
    frame = await open_frame(request, plane, team, here="members")
    try:
        await plane.invitations.revoke(frame.actor, team, invitation)
    except NotFound:
        raise
    except Problem as problem:
        return await _members(frame, plane, problem=problem)
    return render.to(f"{frame.base}/members?done=revoked")


@shown("/teams/{team:str}/audit")
async def audit_page(request: HttpRequest, plane: Plane, team: Part) -> Response[str]:
    frame = await open_frame(request, plane, team, here="audit")
    frame.commands = (f"tollgate audit --team {team}",)
    action, who, thing, after = (
        request.query_params.get(name, "").strip()[:254] for name in ("action", "who", "object", "after")
    )
    wanted = AuditQuery(action=action[:40] or None, actor=who or None, object=thing or None)
    listed = await plane.audit.of_team(frame.actor, team, PageRequest(50, after or None), wanted)
    people = (await plane.teams.members(frame.actor, team, PageRequest(500))).items
    return page(
        frame,
        "audit.html",
        entries=[(entry, _details(entry)) for entry in listed.items],
        next=listed.next,
        action=action,
        who=who,
        thing=thing,
        actions=ACTIONS,
        people=sorted({"operator", "tollgate", *(person.account.email for person in people)}),
    )


@shown("/teams/{team:str}/settings")
async def settings_page(request: HttpRequest, plane: Plane, team: Part) -> Response[str]:
    """The form to rename or delete the team."""
    frame = await open_frame(request, plane, team, here="settings", toasts=_TOASTS)
    return _settings(frame, team)


@post("/teams/{team:str}/settings")
async def change_team(request: HttpRequest, plane: Plane, team: Part) -> Response[str]:
    """Rename or delete the team."""
    frame = await open_frame(request, plane, team, here="settings")
    form = await read_form(request)
    try:
        if form.get("act") == "delete":
            if form.get("typed", "").strip() != frame.team_name:
                raise InvalidInput(f"Type {frame.team_name} to delete the team.", field="typed")
            await plane.teams.delete(frame.actor, team)
            return render.to("/console?done=deleted")
        renamed = await plane.teams.update(frame.actor, team, command(form, TeamChange))
    except Problem as problem:
        return _settings(frame, team, problem, form)
    same = frame.team_name == renamed.team.name
    return render.to(f"{TEAMS}/{renamed.team.name}/settings" + ("" if same else "?done=renamed"))


def _settings(frame: Frame, team: str, problem: Problem | None = None, form: Form | None = None) -> Response[str]:
    frame.commands = (f"tollgate teams rename NEW-NAME --team {team}",)
    return page(frame, "settings.html", problem=problem, form=form)


async def _members(
    frame: Frame,
    plane: ControlPlane,
    *,
    problem: Problem | None = None,
    made: Invited | None = None,
    email: str = "",
    role: str = "developer",
) -> Response[str]:
    name = frame.team_name
    frame.commands = (f"tollgate teams members invite EMAIL --role developer --team {name}",)
    people = (await plane.teams.members(frame.actor, name, PageRequest(500))).items
    may = frame.may("CHANGE_MEMBERS")
    invitations = (await plane.invitations.list(frame.actor, name, PageRequest(500))).items if may else []
    roles = [each.value for each in Role if each is not Role.OWNER or frame.role is Role.OWNER]
    return page(
        frame,
        "members.html",
        problem=problem,
        people=people,
        invitations=invitations,
        made=made,
        email=email,
        role=role,
        roles=roles,
        role_names=[(each, each.capitalize()) for each in roles],
        abilities={each.value: [str(action) for action, held in ALLOWED.items() if each in held] for each in Role},
        mail=plane.mailer.enabled,
        closed=plane.settings.accounts.sign_up == "closed",
    )


def _details(entry: AuditEntry) -> list[tuple[str, str]]:
    try:
        return detail_texts(json.loads(entry.details))
    except ValueError:
        return []
