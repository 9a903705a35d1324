"""All pages of the console as one router with their common middleware; the root, the start page and error pages.

Errors that a person can correct in a form are shown beside it, by its page; all others end here.
"""

from __future__ import annotations

import traceback
from http import HTTPStatus
from itertools import chain
from urllib.parse import quote

from litestar import MediaType, Response, Router, post
from litestar.exceptions import HTTPException, NotFoundException
from litestar.handlers import HTTPRouteHandler

from tollgate import log
from tollgate.api.teams import NewTeam
from tollgate.control.api.errors import is_disconnect
from tollgate.control.api.operations import handlers_of
from tollgate.control.console import (
    account,
    charts,
    domains,
    endpoints,
    factors,
    logs,
    operator,
    overview,
    paths,
    provider,
    render,
    sign_in,
    tail,
    team,
    tokens,
    usage,
)
from tollgate.control.console.forms import MAX_BYTES, command, read_form
from tollgate.control.console.frame import TEAMS, Frame, open_frame, page
from tollgate.control.console.paths import HttpRequest, Part, Plane, shown
from tollgate.control.console.safety import HOME, refuse_other_sites, with_headers
from tollgate.control.console.session import SignInFirst
from tollgate.control.plane import ControlPlane
from tollgate.control.problems import Problem, StoreAway
from tollgate.core.roles import Action, Role, allows
from tollgate.store.base import StoreUnavailable

_FOR_EVER = "public, max-age=31536000, immutable"
_TOASTS = {
    "joined": "You have accepted the invitation.",
    "deleted": "The team was deleted.",
    "left": "You have left the team.",
}
_TITLES = {403: "Not allowed", 404: "Not found", 429: "Too many attempts", 503: "Not available now"}
# Refusals of HTTP, before any service is called: title and what to do.
_REFUSED = {
    403: ("This form came from another site", "It was refused: open the page here and fill in its form."),
    404: ("Not found", "There is no page at this address: check the link, or go to the start page."),
    405: ("Method not allowed", "This address does not accept such a request: go to the start page."),
    413: ("Form too large", "The form is larger than allowed: go back and shorten what you typed."),
    415: ("Not a form", "This address accepts only forms (application/x-www-form-urlencoded): use the page."),
}
_NOT_UNDERSTOOD = ("Bad request", "The browser sent a request that cannot be read: go back and try again.")
_log = log.get("console")


@shown("/")
async def root(request: HttpRequest, plane: Plane) -> Response[bytes]:
    """The service's root: redirects browsers to the console, answers programs with a short text."""
    if _is_browser(request):
        return Response(b"", status_code=303, media_type=MediaType.TEXT, headers={"Location": HOME})
    words = (
        "Tollgate: blockchain RPC access.\n"
        f"Call:     POST {plane.base_url}/x/<family>/<network>\n"
        f"Manage:   {plane.base_url}/api/v1 (documentation: {plane.base_url}/api/v1/docs)\n"
        f"Console:  {plane.base_url}{HOME}\n"
    )
    return Response(words.encode(), media_type=MediaType.TEXT, headers={"Cache-Control": "no-store"})


def _is_browser(request: HttpRequest) -> bool:
    """Whether a person opens the page: browsers inside of apps accept anything, others do not name HTML first."""
    accepted = ",".join(request.headers.getall("accept", [])).lower()
    return (
        "text/html" in accepted
        or request.headers.get("sec-fetch-mode") == "navigate"
        or request.headers.get("user-agent", "").startswith("Mozilla/")
    )


@shown("/")
async def home(request: HttpRequest, plane: Plane) -> Response[str]:
    """Redirect to the only team; otherwise show all of them."""
    frame = await open_frame(request, plane, toasts=_TOASTS)
    if len(frame.teams) == 1 and "done" not in request.query_params:
        return render.to(f"{TEAMS}/{frame.teams[0][0]}")
    return _teams(frame, plane)


@shown("/teams")
async def teams_page(request: HttpRequest, plane: Plane) -> Response[str]:
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
    return page(await open_frame(request, plane, team, here="more", title="All pages"), "more.html")


def _teams(frame: Frame, plane: ControlPlane, name: str = "", problem: Problem | None = None) -> Response[str]:
    frame.title = "Teams"
    builds = next((each for each, role in frame.teams if allows(Role(role), Action.CHANGE_TOKENS)), "")
    login = f"tollgate auth login --url {plane.base_url}"
    if not frame.teams:
        create = "tollgate rpc tokens create my-app --team my-team"
        frame.commands = (login, "tollgate teams create my-team", create)
    elif builds:
        frame.commands = (login, f"tollgate rpc tokens create my-app --team {builds}")
    else:
        frame.commands = (login, f"tollgate rpc tokens list --team {frame.teams[0][0]}")
    return page(frame, "teams.html", problem=problem, name=name)


@shown("/_styles")
async def styles_page(request: HttpRequest, plane: Plane) -> Response[str]:
    """The style guide: all components on one page. Only in the demo."""
    if not plane.settings.whitelist.allow_localhost:
        raise NotFoundException
    frame = await open_frame(request, plane, title="Parts", crumbs=(("Console", "/console"),))
    frame.toast, frame.commands = "This is a toast.", ("tollgate --help",)
    return page(frame, "styles.html", spark=charts.sparkline([3, 5, 2, 8, 9, 4, 6, 7, 1, 0, 4, 9]))


def _served(asset: render.Asset) -> HTTPRouteHandler:
    @shown(asset.path)
    async def serve(request: HttpRequest) -> Response[bytes]:
        headers = {"Cache-Control": _FOR_EVER, "Vary": "Accept-Encoding"}
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers["Content-Encoding"] = "gzip"
            return Response(asset.packed, media_type=asset.media_type, headers=headers)
        return Response(asset.content, media_type=asset.media_type, headers=headers)

    return serve


def _problem_page(request: HttpRequest, problem: Problem) -> Response[str]:
    headers = {name: value for name, value in problem.headers.items() if name == "Retry-After"}
    title = _TITLES.get(problem.status, HTTPStatus(problem.status).phrase)
    return _error_page(request, problem.status, title, problem.detail, headers)


def _refusal_page(request: HttpRequest, error: HTTPException) -> Response[str]:
    if is_disconnect(error):
        return _error_page(request, 400, *_NOT_UNDERSTOOD)
    if error.status_code >= 500:
        return _failure_page(request, error)
    title, words = _REFUSED.get(error.status_code, _NOT_UNDERSTOOD)
    return _error_page(request, error.status_code, title, words, error.headers)


def _failure_page(request: HttpRequest, error: Exception) -> Response[str]:
    # Neither the path nor the error's message: they may contain a link's secret or form input.
    _log.error(
        "a page failed",
        page=request.scope.get("path_template", ""),
        error=type(error).__name__,
        trace="".join(traceback.format_tb(error.__traceback__)),
        id=_request_id(request),
    )
    words = "An internal error occurred and was logged. Try again; if it persists, contact the operator."
    return _error_page(request, 500, "Internal error", words)


def _error_page(
    request: HttpRequest, status: int, title: str, words: str, headers: dict[str, str] | None = None
) -> Response[str]:
    return render.page(
        "error.html",
        status=status,
        headers=headers,
        title=title,
        words=words,
        request_id=_request_id(request) if status >= 500 else "",
    )


def _request_id(request: HttpRequest) -> str:
    return request.headers.get("x-request-id", "")[:100]


def router() -> Router:
    """All pages, for an application that has the dependency `plane`."""
    modules = (
        *(overview, endpoints, tokens, domains, logs, tail, usage, team, account, factors, operator),
        *(sign_in, provider),
    )
    handlers = [
        *(home, teams_page, create_team, more_page, styles_page),
        *map(_served, (render.STYLE, render.SCRIPT, render.FAVICON)),
        *chain.from_iterable(map(handlers_of, modules)),
    ]
    return Router(
        path=HOME,
        route_handlers=[*handlers, *paths.nowhere(handlers)],
        guards=[refuse_other_sites],
        middleware=[with_headers],
        exception_handlers={
            SignInFirst: lambda _, error: render.to(f"/console/sign-in?next={quote(error.back, safe='')}"),
            Problem: _problem_page,
            StoreUnavailable: lambda request, _: _problem_page(request, StoreAway()),
            HTTPException: _refusal_page,
            Exception: _failure_page,
        },
        request_max_body_size=MAX_BYTES,
        include_in_schema=False,
    )
