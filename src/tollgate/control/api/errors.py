"""Every exception as an answer: problem details (RFC 9457), or the errors of OAuth (RFC 6749).

Exceptions of Litestar, the store and unexpected ones are mapped here alone. A caller never sees a traceback; it is
logged under the request id.
"""

from __future__ import annotations

import msgspec
from litestar import Response
from litestar.exceptions import HTTPException, InternalServerException, ValidationException
from litestar.types import ExceptionHandlersMap

from tollgate import log
from tollgate.control.api.access import HttpRequest, request_id
from tollgate.control.problems import InvalidInput, NotFound, Problem, StoreAway
from tollgate.control.services.devices import OAuthError
from tollgate.store.base import StoreUnavailable

PROBLEM = "application/problem+json"
NO_STORE = {"Cache-Control": "no-store"}
DOCUMENTATION = "/api/v1/docs"
_log = log.get("control")


class WrongMethod(Problem):
    """The path does not support the method; `Allow` lists those that it does."""

    status, reason = 405, "method_not_allowed"


class RequestTooLarge(Problem):
    """The body is larger than 256 KiB."""

    status, reason = 413, "body_too_large"


class WrongMediaType(Problem):
    """The body is not `application/json`, or is compressed."""

    status, reason = 415, "unsupported_media_type"


class InternalProblem(Problem):
    """A defect of the service; its log has the details under the request id."""

    status, reason = 500, "internal_error"


# Problems of the API alone; the others are in `tollgate.control.problems`.
API_PROBLEMS: tuple[type[Problem], ...] = (WrongMethod, RequestTooLarge, WrongMediaType, InternalProblem)


def problem_answer(request: HttpRequest, problem: Problem) -> Response[bytes]:
    body = {
        "type": "about:blank",
        "title": problem.title,
        "status": problem.status,
        "detail": problem.detail,
        "reason": problem.reason,
        "request_id": request_id(request.scope),
        **problem.extras,
        **({"errors": problem.errors} if problem.errors else {}),
    }
    return Response(
        msgspec.json.encode(body),
        status_code=problem.status,
        media_type=PROBLEM,
        headers={**NO_STORE, **problem.headers},
    )


def oauth_answer(_request: HttpRequest, error: OAuthError) -> Response[bytes]:
    body = {"error": error.code, "error_description": error.description}
    return Response(msgspec.json.encode(body), status_code=400, media_type="application/json", headers=NO_STORE)


def is_disconnect(error: HTTPException) -> bool:
    """Whether the client disconnected before its body was complete, which Litestar reports as a server error."""
    return isinstance(error, InternalServerException) and "disconnected" in error.detail


def _of_litestar(request: HttpRequest, error: HTTPException) -> Response[bytes]:
    if is_disconnect(error):
        return problem_answer(request, InvalidInput("The body is incomplete: send all of it."))
    if error.status_code >= 500:
        return _unforeseen(request, error)
    return problem_answer(request, _translated(request, error))


def _translated(request: HttpRequest, error: HTTPException) -> Problem:
    match error.status_code:
        case 404:
            return NotFound(f"There is no such path. {DOCUMENTATION} lists those that exist.")
        case 405:
            allowed = (error.headers or {}).get("allow", "")
            detail = f"{request.method} is not allowed at this path. Allowed: {allowed}. See {DOCUMENTATION}."
            return WrongMethod(detail, headers={"Allow": allowed})
        case 413:
            return RequestTooLarge("The body is too large: send at most 256 KiB.")
        case 400 if isinstance(error, ValidationException):
            # All other parameters of handlers are strings, or parsed by us.
            return InvalidInput("The body is missing: send a JSON object.")
        case _:
            return InvalidInput(f"{error.detail.rstrip('.')}: correct the request. See {DOCUMENTATION}.")


def _unforeseen(request: HttpRequest, error: Exception) -> Response[bytes]:
    _log.error("a request failed", request_id=request_id(request.scope), exc_info=error)
    return problem_answer(
        request, InternalProblem("The service failed at this request: report the request id to its operator.")
    )


HANDLERS: ExceptionHandlersMap = {
    Problem: problem_answer,
    OAuthError: oauth_answer,
    StoreUnavailable: lambda request, _: problem_answer(request, StoreAway()),
    HTTPException: _of_litestar,
    Exception: _unforeseen,
}
