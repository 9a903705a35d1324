"""What an endpoint is: a route of Litestar, and its part of the OpenAPI document.

Each handler is declared once, here, by `serves`; `openapi.py` reads the declaration back from the routes of the
running application, so no route can be missing in the document. (`endpoint` is how resources are declared whose
definitions are not in `tollgate.api` yet.)
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable
from types import ModuleType, NoneType
from typing import Any, TypeVar, cast, get_origin, get_type_hints

from litestar import Response
from litestar.handlers import HTTPRouteHandler
from litestar.types import Method
from msgspec import Struct
from msgspec.structs import fields

from tollgate.api.base import Json, Route, members, without_null
from tollgate.control.api.access import authenticate
from tollgate.control.api.reading import ApiRequest
from tollgate.control.api.render import Versioned
from tollgate.control.problems import Problem

T = TypeVar("T")

# The member of a handler's `opt` that holds its Operation.
OPERATION = "operation"

SERVICE, LOGIN, SELF, TEAMS, MEMBERS = "Service", "Login", "Account", "Teams", "Members"
INVITATIONS, TOKENS, DOMAINS, AUDIT = "Invitations", "Tokens", "Domains", "Audit"
LOGS, NETWORKS, OPERATOR = "Logs", "Networks", "Operator"
USAGE, INVOICES = "Usage", "Invoices"
TAGS: dict[str, str] = {
    SERVICE: "Public information about the service.",
    LOGIN: "OAuth 2.0 for the command-line tool: device login (RFC 8628), refresh, revocation (RFC 7009).",
    SELF: "Your account, logins and personal access tokens.",
    TEAMS: "Teams that you belong to.",
    MEMBERS: "Who belongs to a team, in which role.",
    INVITATIONS: "Links with which people join a team.",
    TOKENS: "API tokens, which call `/x/`.",
    DOMAINS: "Root domains whose pages may call `/x/` without a token.",
    NETWORKS: "Networks that are served: addresses, chains, heads.",
    LOGS: "Request logs: calls, their callers and outcomes.",
    USAGE: "Usage, its cost, the spending cap and its alerts.",
    INVOICES: "What is owed for a month.",
    OPERATOR: "For operators: accounts marked by `tollgate admin operator`.",
    AUDIT: "Who changed what, when, from where.",
}

_PARAMETER = re.compile(r"\{([a-z]+)\}")


# Parameters that scan many rows of the log.
SEARCH_COST = 10
# Files of up to a hundred pages, each of which may be a search.
EXPORT_COST, EXPORT_SEARCH_COST = 20, 100


class Operation(Struct, frozen=True, kw_only=True):
    """What the document describes of an endpoint besides its route and signature."""

    id: str
    tag: str
    summary: str
    description: str = ""
    takes: type[Struct] | None = None
    """The shape of the body."""
    form: bool = False
    """Whether the body is a form, and refusals are those of OAuth."""
    body_required: bool = True
    gives: Any = None
    """The type of the answer's body; without one there is no body."""
    media_type: str = "application/json"
    also_text: tuple[str, ...] = ()
    """Media types of the same answer as text."""
    status: int = 200
    also_empty: bool = False
    """Whether it may also answer 204."""
    creates: bool = False
    """Whether it honours `Idempotency-Key`."""
    tagged: bool = False
    """Whether the answer has an `ETag`."""
    conditional: bool = False
    """Whether it honours `If-Match`."""
    lists: bool = False
    """Whether it takes `limit` and `after`."""
    query: tuple[Json, ...] = ()
    """The parameters of the query, as the document describes them."""
    raises: tuple[type[Problem], ...] = ()
    """Problems besides those of all endpoints of its kind."""
    cost: int = 1
    """How many requests it counts for against rate limits."""
    searched_by: tuple[str, ...] = ()
    """Parameters of the query that make it search, and count for more requests."""
    search_cost: int = SEARCH_COST
    """How many it counts for then."""


# The option of a console handler: how many requests the page counts for.
COST = "cost"


def endpoint(method: Method, path: str, operation: Operation) -> Callable[[Callable[..., Any]], HTTPRouteHandler]:
    """Turn a function into the handler of a path such as `/teams/{team}`."""
    return HTTPRouteHandler(
        _PARAMETER.sub(r"{\1:str}", path),
        http_method=method,
        # The real status is in the Response; some statuses forbid a body at declaration.
        status_code=200,
        opt={OPERATION: operation},
        name=operation.id,
    )


def serves(
    route: Route[T],
    *raises: type[Problem],
    tag: str,
    cost: int = 1,
    searched_by: tuple[str, ...] = (),
    search_cost: int = SEARCH_COST,
) -> Callable[[Callable[..., Awaitable[Response[T]]]], HTTPRouteHandler]:
    """Turn a function into the handler of a route.

    Its parameters are its inputs: `actor` requires a login, `data` is the body, `page` the page of a list,
    `wanted` the parameters of the query, `if_match` and `once` are headers; `raises` are problems besides those
    that follow from the parameters. Its name is the operation's id, its docstring the summary and the description.
    """

    def declare(function: Callable[..., Awaitable[Response[T]]]) -> HTTPRouteHandler:
        parameters, hints = inspect.signature(function).parameters, get_type_hints(function)
        summary, _, description = inspect.cleandoc(function.__doc__ or "").partition("\n\n")
        empty = route.answer is NoneType
        if route.creates != ("once" in parameters):
            raise TypeError(f"{function.__name__} must take `once` if its route creates, and only then.")
        operation = Operation(
            id=_camel_case(function.__name__),
            tag=tag,
            summary=summary.removesuffix("."),
            description=" ".join(description.split()),
            takes=hints.get("data"),
            body_required="data" in parameters and parameters["data"].default is inspect.Parameter.empty,
            gives=None if empty else route.answer,
            status=204 if empty else 201 if route.creates else 200,
            also_empty=route.may_be_empty,
            creates=route.creates,
            tagged=get_origin(hints["return"]) is Versioned,
            conditional="if_match" in parameters,
            lists="page" in parameters,
            query=_query(hints["wanted"]) if "wanted" in hints else (),
            raises=raises,
            media_type=route.media_types[0],
            also_text=route.media_types[1:],
            cost=cost,
            searched_by=searched_by,
            search_cost=search_cost,
        )
        return HTTPRouteHandler(
            _PARAMETER.sub(r"{\1:str}", route.path),
            http_method=cast("Method", route.method),
            status_code=200,
            opt={OPERATION: operation},
            name=operation.id,
            guards=[authenticate] if "actor" in parameters else None,
            request_class=ApiRequest,
        )(function)

    return declare


def handlers_of(module: ModuleType) -> list[HTTPRouteHandler]:
    """All handlers that a module declares."""
    return [each for each in vars(module).values() if isinstance(each, HTTPRouteHandler)]


def _query(kind: type[Struct]) -> tuple[Json, ...]:
    required = {field.name for field in fields(kind) if field.required}
    return tuple(
        {
            "name": name,
            "in": "query",
            "required": name in required,
            "description": schema["description"],
            "schema": without_null({key: schema[key] for key in schema if key != "description"}),
        }
        for name, schema in members(kind).items()
    )


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.title, others))
