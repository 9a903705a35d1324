"""What keeps pages safe from other sites: their headers, where a form may come from, where a redirect may lead.

Constants and plain functions, and the two hooks that apply them to every page. No service and no template.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from litestar.connection import ASGIConnection
from litestar.exceptions import PermissionDeniedException
from litestar.handlers import BaseRouteHandler
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from tollgate.control.plane import ControlPlane

HOME = "/console"
LONGEST_PATH = 512

HEADERS = {
    # No script at all, and nothing from elsewhere. Forms stay here: the way to a sign-in provider is a link.
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; img-src 'self' data:; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Secrets stand in paths, so no other site may get them. Not `no-referrer`: with that, browsers post forms
    # with `Origin: null` (Fetch, section 3.2), and on plain http nothing else shows where a form came from.
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
}

# Dots, percent signs and backslashes are in none of our paths; without them no path leads elsewhere.
_LOCAL = re.compile(r"/console(/[A-Za-z0-9_-]+)*(\?[A-Za-z0-9_.~%=&+-]*)?", re.ASCII)
_READ_ONLY = frozenset({"GET", "HEAD", "OPTIONS"})


def local_path(given: str | None) -> str:
    """Where to go on: the page that was asked for if it is one of ours, else the home page."""
    if given and len(given) <= LONGEST_PATH and _LOCAL.fullmatch(given):
        return given
    return HOME


def from_our_pages(headers: Mapping[str, str], base_url: str) -> bool:
    """Whether a form comes from a page of this service, as far as the browser reports it."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site in {"same-origin", "none"}
    # Browsers send no Sec-Fetch-Site over plain http, nor did all before 2023.
    source = _host(headers.get("origin") or headers.get("referer") or "")
    return source != "" and source in {headers.get("host", "").lower(), _host(base_url)}


def _host(url: str) -> str:
    try:
        return urlsplit(url).netloc.lower()
    except ValueError:
        return ""


async def refuse_other_sites(connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
    """Guard of every page: refuse what another site makes the browser send."""
    if connection.scope.get("method") in _READ_ONLY:
        return
    # Nothing is injected into guards.
    plane: ControlPlane = connection.app.state.plane
    if not from_our_pages(connection.headers, plane.base_url):
        raise PermissionDeniedException


def with_headers(app: ASGIApp) -> ASGIApp:
    """Put the headers on every answer, errors included; what an answer says itself stands."""

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message["headers"])
                said = {name.lower() for name, _ in headers}
                more = ((name.encode(), value.encode()) for name, value in HEADERS.items())
                message["headers"] = [*headers, *(header for header in more if header[0] not in said)]
            await send(message)

        await app(scope, receive, sending)

    return wrapped
