"""Protection against other sites: headers, allowed origins of forms, allowed targets of redirects.

Constants and plain functions, and the two hooks that apply them to every page. No service and no template.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from litestar.connection import ASGIConnection
from litestar.exceptions import PermissionDeniedException
from litestar.handlers import BaseRouteHandler
from litestar.types import ASGIApp, HTTPResponseStartEvent, Message, Receive, Scope, Send

from tollgate.control.plane import ControlPlane

HOME = "/console"
MAX_PATH = 512
# Level 9 would save little more at five times the CPU time.
GZIP_LEVEL = 5

HEADERS = {
    # Nothing from other hosts, and nothing inline. Forms post to this host: sign-in providers are reached by a
    # link.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Paths contain secrets, so no other site may see them. Not `no-referrer`: with that, browsers post forms with
    # `Origin: null` (Fetch, section 3.2), and on plain http nothing else shows where a form came from.
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
}

# None of our paths has dots, percent signs or backslashes; without them no path leads to another host.
_LOCAL = re.compile(r"/console(/[A-Za-z0-9_-]+)*(\?[A-Za-z0-9_.~%=&+-]*)?", re.ASCII)
_READ_ONLY = frozenset({"GET", "HEAD", "OPTIONS"})


def local_path(given: str | None) -> str:
    """The target of a redirect: the requested page if it is one of ours, else the home page."""
    if given and len(given) <= MAX_PATH and _LOCAL.fullmatch(given):
        return given
    return HOME


def from_our_pages(headers: Mapping[str, str], base_url: str) -> bool:
    """Whether a form comes from a page of this service, as far as the browser reports it."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site in {"same-origin", "none"}
    # Browsers send no Sec-Fetch-Site over plain http, and some before 2023 never did.
    source = _host(headers.get("origin") or headers.get("referer") or "")
    return source != "" and source in {headers.get("host", "").lower(), _host(base_url)}


def _host(url: str) -> str:
    try:
        return urlsplit(url).netloc.lower()
    except ValueError:
        return ""


async def refuse_other_sites(connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
    """Guard of every page: refuse cross-site requests."""
    if connection.scope.get("method") in _READ_ONLY:
        return
    # Dependencies are not injected into guards.
    plane: ControlPlane = connection.app.state.plane
    if not from_our_pages(connection.headers, plane.base_url):
        raise PermissionDeniedException


def with_headers(app: ASGIApp) -> ASGIApp:
    """Add the headers to every response, errors included, unless it sets them itself. Compress pages."""

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        start: HTTPResponseStartEvent | None = None
        packs = b"gzip" in dict(scope["headers"]).get(b"accept-encoding", b"")

        async def sending(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
                start["headers"] = _completed(start["headers"])
                return
            if start is not None and message["type"] == "http.response.body":
                if packs and not message.get("more_body") and _is_page(start):
                    message["body"] = gzip.compress(message["body"], GZIP_LEVEL, mtime=0)
                    start["headers"] = _packed(start["headers"], len(message["body"]))
                await send(start)
                start = None
            await send(message)

        await app(scope, receive, sending)

    return wrapped


def _completed(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    given = list(headers)
    names = {name.lower() for name, _ in given}
    more = ((name.encode(), value.encode()) for name, value in HEADERS.items())
    return [*given, *(header for header in more if header[0] not in names)]


def _is_page(start: HTTPResponseStartEvent) -> bool:
    """Whether an answer is HTML, which is safe to compress: BREACH needs a secret beside an attacker's text.

    No page has a CSRF token, and secrets are shown once.
    """
    headers = dict(start["headers"])
    return headers.get(b"content-type", b"").startswith(b"text/html") and b"content-encoding" not in headers


def _packed(headers: Iterable[tuple[bytes, bytes]], length: int) -> list[tuple[bytes, bytes]]:
    kept = [header for header in headers if header[0] != b"content-length"]
    return [
        *kept,
        (b"content-length", b"%d" % length),
        (b"content-encoding", b"gzip"),
        (b"vary", b"accept-encoding"),
    ]
