"""Errors as pages in the same layout, each with what to do next.

What a person can correct in a form is shown beside it, by the page that handled it; the rest ends here.
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
# What HTTP itself refuses, before any service is called: title and what to do.
_REFUSED = {
    403: (
        "This form came from elsewhere",
        "Another site seems to have sent it, so nothing was done: open the page here and fill in its form.",
    ),
    404: ("Not found", "There is no page at this address: check the link, or go to the start."),
    405: ("Not possible here", "This address does not take such a request: go to the start, and use the pages."),
    413: ("Too much", "The form is larger than any that stands here: go back and shorten what you typed."),
    415: ("Not a form", "This address takes forms alone (application/x-www-form-urlencoded): use the page."),
}
_NOT_UNDERSTOOD = ("Not understood", "The browser sent something that cannot be read: go back and try again.")


def problem_page(request: HttpRequest, problem: Problem) -> Response[str]:
    """What a service refuses."""
    headers = {name: value for name, value in problem.headers.items() if name == "Retry-After"}
    title = _TITLES.get(problem.status, HTTPStatus(problem.status).phrase)
    return _page(request, problem.status, title, problem.detail, headers)


def refusal_page(request: HttpRequest, error: HTTPException) -> Response[str]:
    """What HTTP itself refuses."""
    if is_disconnect(error):
        return _page(request, 400, *_NOT_UNDERSTOOD)
    if error.status_code >= 500:
        return failure_page(request, error)
    title, words = _REFUSED.get(error.status_code, _NOT_UNDERSTOOD)
    return _page(request, error.status_code, title, words, error.headers)


def outage_page(request: HttpRequest, _error: StoreUnavailable) -> Response[str]:
    """The store is away."""
    return problem_page(request, StoreAway())


def failure_page(request: HttpRequest, error: Exception) -> Response[str]:
    """A defect of ours."""
    # Neither the path nor the error's message: these may hold a link's secret or what somebody typed.
    _log.error(
        "a page failed",
        page=request.scope.get("path_template", ""),
        error=type(error).__name__,
        trace="".join(traceback.format_tb(error.__traceback__)),
        id=_request_id(request),
    )
    words = "An internal error occurred and was logged. Try again; if it persists, contact the operator."
    return _page(request, 500, "This did not work", words)


def sign_in_first(_request: HttpRequest, error: SignInFirst) -> Response[str]:
    """A page for people who are signed in."""
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
