"""The client of the management API, typed by its definitions in `tollgate.api`.

Owns targets, bodies, idempotency keys and the one renewal of a refused access token. Sockets are in
`transport.py`, credentials in `login.py`, the meaning of answers in `answers.py`; it prints nothing.
"""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import quote, urlencode

import msgspec

from tollgate.api.base import Page
from tollgate.cli import answers
from tollgate.cli.answers import ApiAnswer
from tollgate.cli.failures import Lost, NoServer, WrongUsage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from msgspec import Struct

    from tollgate.api.base import Route
    from tollgate.cli import login
    from tollgate.cli.transport import HttpReply, Transport

T = TypeVar("T")

BASE = "/api/v1"
DEFAULT_LIMIT = 100
LARGEST_LIMIT = 1000

# Far above the number of members of a team; an endless list must not keep the tool running for ever.
_MAX_PAGES = 100

_PART = re.compile(r"\{\w+\}")
_LOGIN_REFUSALS = frozenset({"not_logged_in", "login_expired"})


class Client:
    """The API of one server, as one login sees it."""

    def __init__(self, transport: Transport, login: login.LoginSource) -> None:
        self._transport = transport
        self._login = login

    def call(
        self, route: Route[T], *parts: str, body: Struct | None = None, **query: str | int | None
    ) -> ApiAnswer[T]:
        """Call a route of the API; `parts` are those of its path, in their order."""
        target = _target(route, parts, query)
        if route.creates:
            reply = self._send_once(route.method, target, body)
        else:
            reply = self._send(route.method, target, body)
        if route.answer is str:
            text = answers.text(reply, route.media_types[0], self._transport.url)
            return ApiAnswer(cast("T", text), text)
        answer: Any = route.answer | None if route.may_be_empty else route.answer
        return answers.read(reply, answer, self._transport.url)

    def text(self, route: Route[T], media_type: str, *parts: str, **query: str | int | None) -> str:
        """Call a route of the API for its answer as a text of this type."""
        reply = self._send(route.method, _target(route, parts, query), None)
        return answers.text(reply, media_type, self._transport.url)

    def every(self, route: Route[Page[T]], *parts: str) -> Iterator[T]:
        """Yield all items of a list, page by page."""
        after = None
        for _ in range(_MAX_PAGES):
            page = self.call(route, *parts, limit=LARGEST_LIMIT, after=after).value
            yield from page.items
            if (after := page.next) is None:
                return

    def raw(self, method: str, path: str, body: Any = None) -> HttpReply:
        """Send any request to the API, as the account that is logged in."""
        return self._send(method, path, body)

    def _send_once(self, method: str, target: str, body: Any) -> HttpReply:
        """Create a resource once, even if the connection breaks and the request is sent again."""
        key = str(uuid.uuid4())
        try:
            return self._send(method, target, body, key)
        except Lost as lost:
            try:
                return self._send(method, target, body, key)
            except NoServer:
                raise lost from None  # the first attempt reached a server

    def _send(self, method: str, target: str, body: Any, key: str | None = None) -> HttpReply:
        content = None if body is None else msgspec.json.encode(body)

        def send(secret: str) -> HttpReply:
            headers = {"Authorization": f"Bearer {secret}"}
            if content is not None:
                headers["Content-Type"] = "application/json"
            if key is not None:
                headers["Idempotency-Key"] = key
            return self._transport.send(method, target, headers=headers, body=content)

        secret = self._login.secret()
        reply = send(secret)
        if _login_refused(reply) and (fresh := self._login.renewed(secret)) is not None:
            reply = send(fresh)
        if _login_refused(reply):
            raise self._login.refusal()
        return reply


def _target(route: Route[T], parts: Sequence[str], query: Mapping[str, str | int | None]) -> str:
    names = iter(parts)
    path = _PART.sub(lambda _: _segment(next(names)), route.path)
    given = {name: str(value) for name, value in query.items() if value is not None}
    return BASE + path + ("?" + urlencode(given) if given else "")


def _login_refused(reply: HttpReply) -> bool:
    if reply.status != 401:
        return False
    problem = answers.problem_of(reply)
    return problem is not None and problem.reason in _LOGIN_REFUSALS


def _segment(part: str) -> str:
    """Encode a name or id as one segment of a path."""
    if not part:
        raise WrongUsage("A name or id is empty: give one.")
    # Dots alone would be resolved as a parent directory.
    return quote(part, safe="") if part.strip(".") else part.replace(".", "%2E")
