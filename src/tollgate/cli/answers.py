"""Decodes answers into values or failures. Pure.

Owns the mapping of statuses to exit codes, and the message for a server that is not a Tollgate.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from tollgate.cli.failures import Failure, LoginNeeded, NotAllowed, NotFoundFailure, NotTollgate, OAuthRefusal
from tollgate.cli.shapes import ApiProblem, TokenError

if TYPE_CHECKING:
    from tollgate.cli.transport import HttpReply

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_BY_STATUS: dict[int, type[Failure]] = {401: LoginNeeded, 403: NotAllowed, 404: NotFoundFailure}

UNAVAILABLE = "unavailable"
"""The reason of a failure of a proxy in front of a Tollgate that does not answer."""
_PASSING = frozenset({502, 503, 504})


class ApiAnswer(Struct, Generic[T_co], frozen=True):
    """A value, and the server's own object that `--json` prints."""

    value: T_co
    raw: Any

    def __repr__(self) -> str:
        return f"Answer({self.value!r})"  # the raw object may hold a secret


def read(reply: HttpReply, shape: type[T], url: str) -> ApiAnswer[T]:
    """Read a successful answer; raise the failure of any other."""
    if not 200 <= reply.status < 300:
        raise failure(reply, url)
    try:
        raw = msgspec.json.decode(reply.body or b"null")
        value = msgspec.convert(raw, shape)
    except (msgspec.DecodeError, msgspec.ValidationError):
        raise _not_tollgate(reply, url) from None
    return ApiAnswer(value, raw)


def text(reply: HttpReply, media_type: str, url: str) -> str:
    """Read a successful answer of this media type; raise the failure of any other."""
    if not 200 <= reply.status < 300:
        raise failure(reply, url)
    if reply.headers.get("content-type", "").partition(";")[0].strip().lower() != media_type:
        raise _not_tollgate(reply, url)
    return reply.body.decode("utf-8", "replace")


def expect_done(reply: HttpReply, url: str) -> None:
    """Raise the failure of an unsuccessful answer; the body of a successful one is ignored."""
    if not 200 <= reply.status < 300:
        raise failure(reply, url)


def problem_of(reply: HttpReply) -> ApiProblem | None:
    try:
        return msgspec.convert(msgspec.json.decode(reply.body), ApiProblem)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None


def failure(reply: HttpReply, url: str) -> Failure:
    problem = problem_of(reply)
    if problem is None:
        return _oauth_refusal(reply) or _not_tollgate(reply, url)
    # A wrong password is not an expired login: the password must be entered again.
    kind = Failure if problem.reason == "wrong_password" else _BY_STATUS.get(reply.status, Failure)
    # A worker whose control plane is being replaced gives no reason.
    reason = problem.reason or (UNAVAILABLE if reply.status in _PASSING else "")
    return kind(_message(problem, reply), reason=reason)


def _message(problem: ApiProblem, reply: HttpReply) -> str:
    several = [error.detail for error in problem.errors] if len(problem.errors) > 1 else []
    lines = several or [problem.detail or _phrase(reply.status)]
    if reply.status in {429, 503} and (wait := reply.headers.get("retry-after")) and wait.isdecimal():
        lines[0] += f" Try again in {wait} s."
    if reply.status >= 500 and problem.request_id:
        lines[0] += f" (request id {problem.request_id})"
    lines += [f"  - {text}" for text in problem.problems if text not in problem.detail]
    if problem.dns_name and problem.dns_value and problem.dns_value not in problem.detail:
        lines.append(f"  DNS: {problem.dns_name} TXT {problem.dns_value}")
        if problem.well_known_url:
            lines.append(f"  or the same text at {problem.well_known_url}")
    return "\n".join(lines)


def _oauth_refusal(reply: HttpReply) -> Failure | None:
    try:
        error = msgspec.json.decode(reply.body, type=TokenError)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None
    return OAuthRefusal(error.error_description or error.error, reason=error.error)


def _not_tollgate(reply: HttpReply, url: str) -> Failure:
    """The failure of an answer that is not the API's."""
    if 300 <= reply.status < 400:
        where = reply.headers.get("location", "another place")
        return NotTollgate(f"{url} redirects to {where}. Set TOLLGATE_URL to the address of the Tollgate itself.")
    status = f"HTTP {reply.status} {_phrase(reply.status)}".rstrip()
    if reply.status in _PASSING:
        return Failure(
            f"A proxy in front of Tollgate answers at {url} ({status}): is Tollgate running behind it?",
            reason=UNAVAILABLE,
        )
    kind = reply.headers.get("content-type", "no content type").partition(";")[0]
    return NotTollgate(
        f"The server at {url} is not the management API of a Tollgate ({status}, {kind}). "
        "Check the address: TOLLGATE_URL, or --url of `tollgate auth login`."
    )


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""
