"""Bodies, forms and queries as values. Each refusal names the member and what is accepted.

Litestar's own parsing is not used: it accepts `"1"` for 1, and caches the last thousand forms, secrets included.
`ApiRequest` replaces it for `data`.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from litestar.di import NamedDependency
from msgspec import Struct

from tollgate.control import commands
from tollgate.control.api.access import HttpRequest
from tollgate.control.api.errors import WrongMediaType
from tollgate.control.problems import InvalidInput
from tollgate.control.service_context import MAX_ROWS, USUAL_ROWS, PageRequest

JSON, FORM = "application/json", "application/x-www-form-urlencoded"
MAX_FIELDS = 50
_NUMBER = re.compile(r"[0-9]{1,10}")

Shape = TypeVar("Shape", bound=Struct)

# What handlers take, by name: `page`, `wanted` (of a type with the parameters of the query) and `if_match`.
WantedPage = NamedDependency[PageRequest]
Wanted = NamedDependency[Shape]
IfMatch = NamedDependency[str | None]


class ApiRequest(HttpRequest):
    """A request whose `data` is decoded strictly, by the type that its handler declares."""

    async def json(self) -> Any:
        if _media_type(self) != JSON:
            raise WrongMediaType(f"Send the header Content-Type: {JSON}.")
        if self.headers.get("content-encoding", "identity").strip().lower() != "identity":
            raise WrongMediaType("Send the body uncompressed, without Content-Encoding.")
        kind = self.route_handler.parsed_fn_signature.parameters["data"].annotation
        return commands.decoded(await self.body(), kind)


def _media_type(request: HttpRequest) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def form(request: HttpRequest) -> dict[str, str]:
    """The parameters of a form, as OAuth requires: each once, empty ones as if omitted (RFC 6749, 3.2)."""
    sent = await request.body()
    if _media_type(request) != FORM:
        raise InvalidInput(f"Send the parameters as {FORM}.")
    try:
        pairs = parse_qsl(sent.decode("utf-8", "replace"), max_num_fields=MAX_FIELDS)
    except ValueError:
        raise InvalidInput(f"Send at most {MAX_FIELDS} parameters.") from None
    given = dict(pairs)
    if len(given) < len(pairs):
        raise InvalidInput("A parameter is sent twice: send each once.")
    return given


def _query(request: HttpRequest) -> dict[str, str]:
    """The parameters of the query; the last of those that are given twice."""
    return dict(parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True))


def page(request: HttpRequest) -> PageRequest:
    query = _query(request)
    limit = query.get("limit", str(USUAL_ROWS))
    if not _NUMBER.fullmatch(limit) or not 1 <= int(limit) <= MAX_ROWS:
        raise InvalidInput(f"`limit` is a whole number from 1 to {MAX_ROWS}.", field="limit")
    return PageRequest(int(limit), query.get("after"))


def wanted(request: HttpRequest) -> Any:
    """The parameters of the query, by the type that the handler's `wanted` declares."""
    kind = request.route_handler.parsed_fn_signature.parameters["wanted"].annotation
    return commands.from_query(_query(request), kind)


def if_match(request: HttpRequest) -> str | None:
    return ", ".join(request.headers.getall("if-match", [])) or None
