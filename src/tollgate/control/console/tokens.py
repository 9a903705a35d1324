"""A team's API tokens: list, show, create, change, rotate and delete."""

from __future__ import annotations

import shlex
from typing import TypeVar

from litestar import Response, post
from msgspec.structs import replace

from tollgate.api.tokens import NewToken, Rotation, TokenChange
from tollgate.api.usage import By, Split, TimelineQuery, TimeRange, UsageQuery
from tollgate.control.console import charts, render
from tollgate.control.console.endpoints import snippets_of
from tollgate.control.console.forms import Form, chosen, command, read_form, ticked, whole
from tollgate.control.console.frame import Frame, open_frame, page
from tollgate.control.console.paths import HttpRequest, Part, Plane, shown
from tollgate.control.plane import ControlPlane
from tollgate.control.problems import InvalidInput, NotFound, Problem
from tollgate.control.service_context import PageRequest
from tollgate.core.models import Token

Command = TypeVar("Command", NewToken, TokenChange)

NETWORK = "network:"
OVERLAPS = ((0, "immediately"), (3_600, "after an hour"), (86_400, "after a day"), (604_800, "after a week"))
SOON_SECONDS = 14 * 86_400
_TOASTS = {
    "changed": "The token was changed. The change takes effect within a second.",
    "disabled": "The token is disabled: it stops working within a second.",
    "enabled": "The token is enabled.",
    "deleted": "The token was deleted: it stops working within a second.",
}


@shown("/teams/{team:str}/tokens")
async def tokens_page(request: HttpRequest, plane: Plane, team: Part) -> Response[str]:
    frame = await open_frame(request, plane, team, here="tokens", toasts=_TOASTS)
    frame.commands = (f"tollgate rpc tokens list --team {team}",)
    listed = await plane.tokens.list(frame.actor, team, PageRequest(100, request.query_params.get("after")))
    usage = await plane.usage.of_team(frame.actor, team, UsageQuery(by=By.TOKEN))
    month = {item.key: item.requests for item in usage.items}
    lately = await plane.timelines.of_team(frame.actor, team, TimelineQuery(TimeRange.DAY, Split.SOURCE))
    tokens = [
        (
            token,
            *state_of(token, frame.now),
            charts.sparkline([step.requests.get(token.id, 0) for step in lately.steps]),
            month.get(token.id, 0),
        )
        for token in reversed(listed.items)
    ]
    return page(frame, "tokens.html", tokens=tokens, next=listed.next)


@shown("/teams/{team:str}/tokens/new")
async def new_page(request: HttpRequest, plane: Plane, team: Part) -> Response[str]:
    """The form for a new token."""
    return _form(await open_frame(request, plane, team, here="tokens"), plane, Token("", "", "", "", 0.0))


@post("/teams/{team:str}/tokens")
async def create(request: HttpRequest, plane: Plane, team: Part) -> Response[str]:
    """Create a token, and show its secret, once."""
    frame = await open_frame(request, plane, team, here="tokens")
    form = await read_form(request)
    try:
        token, secret = await plane.tokens.create(frame.actor, team, _settings(form, NewToken))
    except Problem as problem:
        return _form(frame, plane, _typed(form, Token("", "", "", "", 0.0)), problem, form)
    return await _ready(frame, plane, token, secret)


@shown("/teams/{team:str}/tokens/{token:str}")
async def token_page(request: HttpRequest, plane: Plane, team: Part, token: Part) -> Response[str]:
    """One token with its settings."""
    frame = await open_frame(request, plane, team, here="tokens", toasts=_TOASTS)
    return _form(frame, plane, await plane.tokens.show(frame.actor, team, token))


@post("/teams/{team:str}/tokens/{token:str}")
async def change(request: HttpRequest, plane: Plane, team: Part, token: Part) -> Response[str]:
    """Change, disable, enable, rotate or delete a token."""
    frame = await open_frame(request, plane, team, here="tokens")
    form = await read_form(request)
    current = await plane.tokens.show(frame.actor, team, token)
    here = f"{frame.base}/tokens"
    try:
        match form.get("act"):
            case "delete":
                if form.get("typed", "").strip() != current.name:
                    raise InvalidInput(f"Type the name {current.name!r} to delete it.", field="typed")
                await plane.tokens.delete(frame.actor, team, token)
                return render.to(f"{here}?done=deleted")
            case "disable" | "enable" as act:
                await plane.tokens.update(frame.actor, team, token, TokenChange(active=act == "enable"))
                return render.to(f"{here}/{token}?done={act}d")
            case "rotate":
                rotation = Rotation(whole(form, "overlap") or 0)
                made, secret = await plane.tokens.rotate(frame.actor, team, token, rotation)
                return await _ready(frame, plane, made, secret)
            case _:
                await plane.tokens.update(frame.actor, team, token, _settings(form, TokenChange))
                return render.to(f"{here}/{token}?done=changed")
    except NotFound:
        raise
    except Problem as problem:
        saves = form.get("act") == "save"
        return _form(frame, plane, _typed(form, current) if saves else current, problem, form)


def state_of(token: Token, now: float) -> tuple[str, str]:
    """A token's badge: its label and its tone."""
    if token.expires_at is not None and token.expires_at <= now:
        return "Expired", "bad"
    if not token.active:
        return "Disabled", ""
    if token.capped_until is not None and token.capped_until > now:
        return "Cap reached", "bad"
    if token.expires_at is not None and token.expires_at - now < SOON_SECONDS:
        return f"Expires {render.ago(token.expires_at, now)}", "warn"
    return "Active", "good"


def _form(
    frame: Frame, plane: ControlPlane, token: Token, problem: Problem | None = None, form: Form | None = None
) -> Response[str]:
    frame.crumbs = (("Tokens", f"{frame.base}/tokens"),)
    frame.title = token.name if token.id else "New token"
    act = f"show {token.id}" if token.id else "create NAME"
    frame.commands = (f"tollgate rpc tokens {act} --team {frame.team_name}",)
    return page(
        frame,
        "token.html",
        problem=problem,
        form=form,
        token=token,
        state=state_of(token, frame.now),
        served=list(plane.settings.networks),
        overlaps=OVERLAPS,
        prefix=NETWORK,
    )


async def _ready(frame: Frame, plane: ControlPlane, token: Token, secret: str) -> Response[str]:
    frame.crumbs = (("Tokens", f"{frame.base}/tokens"),)
    frame.title = f"{token.name} is ready"
    frame.commands = (f"tollgate rpc tokens create {shlex.quote(token.name)} --team {frame.team_name}",)
    networks = [
        each for each in await plane.networks.list() if not token.networks or each.network in token.networks
    ]
    return page(
        frame,
        "token_ready.html",
        status=201,
        token=token,
        secret=secret,
        snippets=snippets_of(networks[0], secret, in_url=token.allow_in_url) if networks else {},
    )


def _settings(form: Form, kind: type[Command]) -> Command:
    return command(form, kind, networks=tuple(chosen(form, NETWORK)), but=("active",))


def _typed(form: Form, token: Token) -> Token:
    """A token with the ticked boxes, to be shown again beside the errors."""
    return replace(token, networks=tuple(chosen(form, NETWORK)), **ticked(form, Token, but=("active",)))
