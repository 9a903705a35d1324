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
        _check_type(self)
        kind = self.route_handler.parsed_fn_signature.parameters["data"].annotation
        return commands.decoded(await self.body(), kind)


def _check_type(request: HttpRequest) -> None:
    if _media_type(request) != JSON:
        raise WrongMediaType(f"Send the header Content-Type: {JSON}.")
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise WrongMediaType("Send the body uncompressed, without Content-Encoding.")


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


def query(request: HttpRequest, name: str) -> str | None:
    """A parameter of the query; the last one if it is given twice."""
    return _pairs(request).get(name)


def _pairs(request: HttpRequest) -> dict[str, str]:
    return dict(parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True))


def page(request: HttpRequest) -> PageRequest:
    """Which page of a list is requested."""
    return PageRequest(number(request, "limit", 1, MAX_ROWS, usual=USUAL_ROWS), query(request, "after"))


def wanted(request: HttpRequest) -> Any:
    """The parameters of the query, by the type that the handler's `wanted` declares."""
    kind = request.route_handler.parsed_fn_signature.parameters["wanted"].annotation
    return commands.from_query(_pairs(request), kind)


def number(request: HttpRequest, name: str, minimum: int, maximum: int, *, usual: int) -> int:
    """A whole number of the query."""
    given = query(request, name)
    if given is None:
        return usual
    if not _NUMBER.fullmatch(given) or not minimum <= int(given) <= maximum:
        raise InvalidInput(f"`{name}` is a whole number from {minimum} to {maximum}.", field=name)
    return int(given)


def if_match(request: HttpRequest) -> str | None:
    """The version that the change is based on."""
    return ", ".join(request.headers.getall("if-match", [])) or None
