"""Errors as pages in the same layout, each with what to do next.

Errors that a person can correct in a form are shown beside it, by its page; all others end here.
"""

from __future__ import annotations

import traceback
from http import HTTPStatus
from urllib.parse import quote

from litestar import Response
from litestar.exceptions import HTTPException

from tollgate import log
from tollgate.control.api.errors import is_disconnect
from tollgate.control.console import render
from tollgate.control.console.paths import HttpRequest
from tollgate.control.console.session import SignInFirst
from tollgate.control.problems import Problem, StoreAway
from tollgate.store.base import StoreUnavailable

_log = log.get("console")

_TITLES = {
    403: "Not allowed",
    404: "Not found",
    429: "Too many attempts",
    503: "Not available now",
}
# Refusals of HTTP, before any service is called: title and what to do.
_REFUSED = {
    403: (
        "This form came from another site",
        "It was refused: open the page here and fill in its form.",
    ),
    404: ("Not found", "There is no page at this address: check the link, or go to the start page."),
    405: ("Method not allowed", "This address does not accept such a request: go to the start page."),
    413: ("Form too large", "The form is larger than allowed: go back and shorten what you typed."),
    415: ("Not a form", "This address accepts only forms (application/x-www-form-urlencoded): use the page."),
}
_NOT_UNDERSTOOD = ("Bad request", "The browser sent a request that cannot be read: go back and try again.")


def problem_page(request: HttpRequest, problem: Problem) -> Response[str]:
    """A refusal by a service."""
    headers = {name: value for name, value in problem.headers.items() if name == "Retry-After"}
    title = _TITLES.get(problem.status, HTTPStatus(problem.status).phrase)
    return _page(request, problem.status, title, problem.detail, headers)


def refusal_page(request: HttpRequest, error: HTTPException) -> Response[str]:
    """A refusal of HTTP itself."""
    if is_disconnect(error):
        return _page(request, 400, *_NOT_UNDERSTOOD)
    if error.status_code >= 500:
        return failure_page(request, error)
    title, words = _REFUSED.get(error.status_code, _NOT_UNDERSTOOD)
    return _page(request, error.status_code, title, words, error.headers)


def outage_page(request: HttpRequest, _error: StoreUnavailable) -> Response[str]:
    """The store is unavailable."""
    return problem_page(request, StoreAway())


def failure_page(request: HttpRequest, error: Exception) -> Response[str]:
    """A defect of ours."""
    # Neither the path nor the error's message: they may contain a link's secret or form input.
    _log.error(
        "a page failed",
        page=request.scope.get("path_template", ""),
        error=type(error).__name__,
        trace="".join(traceback.format_tb(error.__traceback__)),
        id=_request_id(request),
    )
    words = "An internal error occurred and was logged. Try again; if it persists, contact the operator."
    return _page(request, 500, "Internal error", words)


def sign_in_first(_request: HttpRequest, error: SignInFirst) -> Response[str]:
    """A page that requires signing in."""
    return render.to(f"/console/sign-in?next={quote(error.back, safe='')}")


def _page(
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
