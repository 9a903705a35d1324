"""The frame of every signed-in page: the account, the team, its permissions, and the navigation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from litestar import Response
from msgspec import Struct

from tollgate.control.console import render, session
from tollgate.control.console.paths import HttpRequest
from tollgate.control.console.safety import local_path
from tollgate.control.plane import ControlPlane
from tollgate.control.service_context import MAX_ROWS, Actor, PageRequest
from tollgate.core.models import Team
from tollgate.core.people import Account
from tollgate.core.roles import Action, Role, allows

TEAMS = "/console/teams"


class NavEntry(Struct, frozen=True):
    """An entry of the navigation."""

    key: str
    text: str
    icon: str
    href: str
    bar: bool = False
    """Whether it is also in the bottom bar on phones."""


# Group; key, text, whether it is in the bottom bar on phones, and the action it requires.
_NAV: tuple[tuple[str, tuple[tuple[str, str, bool, Action], ...]], ...] = (
    ("", (("overview", "Overview", True, Action.SEE_USAGE), ("endpoints", "Endpoints", True, Action.SEE_TEAM))),
    ("Access", (("tokens", "Tokens", True, Action.SEE_TOKENS), ("domains", "Domains", False, Action.SEE_DOMAINS))),
    (
        "Activity",
        (
            ("logs", "Logs", True, Action.SEE_LOGS),
            ("usage", "Usage", False, Action.SEE_USAGE),
            ("invoices", "Invoices", False, Action.SEE_INVOICES),
        ),
    ),
    (
        "Team",
        (
            ("members", "Members", False, Action.SEE_MEMBERS),
            ("audit", "Audit log", False, Action.SEE_AUDIT),
            ("settings", "Settings", False, Action.SEE_TEAM),
        ),
    ),
)
_TITLES = {key: text for _, entries in _NAV for key, text, *_ in entries}
_TITLES |= {"account": "Account", "operator": "Operator"}


class Frame(Struct):
    """What the frame of a page shows. A page sets its title, breadcrumbs and commands."""

    actor: Actor
    account: Account
    teams: list[tuple[str, str]]
    """Names of the account's teams, with its roles."""
    now: float
    team: Team | None = None
    role: Role | None = None
    here: str = ""
    title: str = ""
    crumbs: tuple[tuple[str, str], ...] = ()
    commands: tuple[str, ...] = ()
    toast: str = ""

    @property
    def team_name(self) -> str:
        """The name of the team; empty on pages without one."""
        return self.team.name if self.team else ""

    @property
    def base(self) -> str:
        """The address of the team's pages."""
        return f"{TEAMS}/{self.team.name}" if self.team else "/console"

    def may(self, action: str) -> bool:
        """Whether the account may do something in this team, by the action's name."""
        return self.role is not None and allows(self.role, Action[action])

    @property
    def nav(self) -> list[tuple[str, list[NavEntry]]]:
        groups = []
        if self.team is None:
            own = [
                NavEntry("teams", "Teams", "members", TEAMS, bar=True),
                NavEntry("account", "Account", "settings", "/console/account", bar=True),
            ]
            groups.append(("", own))
        if self.team is not None and self.role is not None:
            for group, listed in _NAV:
                entries = [
                    NavEntry(key, text, key, self.base if key == "overview" else f"{self.base}/{key}", bar)
                    for key, text, bar, action in listed
                    if allows(self.role, action)
                ]
                if entries:
                    groups.append((group, entries))
        if self.account.operator:
            entry = NavEntry("operator", "Operator", "operator", "/console/operator", bar=self.team is None)
            groups.append(("Service", [entry]))
        groups.append(("Help", [NavEntry("docs", "API reference", "docs", "/api/v1/docs")]))
        return groups


async def open_frame(
    request: HttpRequest,
    plane: ControlPlane,
    team: str | None = None,
    *,
    here: str = "",
    toasts: Mapping[str, str] | None = None,
    **members: Any,
) -> Frame:
    """The frame of a page; without a login, redirect to sign in and back.

    `here` is its entry in the navigation, which gives its title; `toasts` are messages by the `done` of the query.
    """
    actor, account = await session.signed_in(request, plane, back=_back(request))
    listed = (await plane.teams.list(actor, PageRequest(MAX_ROWS))).items
    teams = sorted((each.team.name, each.member.role) for each in listed)
    toast = (toasts or {}).get(request.query_params.get("done", ""), "")
    members = {"title": _TITLES.get(here, ""), **members}
    frame = Frame(actor, account, teams, plane.context.now(), here=here, toast=toast, **members)
    if team is not None:
        membership = await plane.teams.show(actor, team)
        frame.team, frame.role = membership.team, membership.role
    return frame


def page(frame: Frame, template: str, **values: Any) -> Response[str]:
    return render.page(template, frame=frame, now=frame.now, **values)


def _back(request: HttpRequest) -> str:
    """The page to return to after signing in: this one, or the page of a form, if the browser sends it."""
    path = request.scope["path"]
    query = request.scope["query_string"].decode("latin-1")
    if request.method not in ("GET", "HEAD"):
        came = urlsplit(request.headers.get("referer", ""))
        back = f"{came.path}?{came.query}" if came.query else came.path
        return back if local_path(back) == back else path.rpartition("/")[0] or "/console"
    return f"{path}?{query}" if query else str(path)
