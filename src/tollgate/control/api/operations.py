"""What an endpoint is: a route of Litestar, and its part of the OpenAPI document.

Each handler is declared once, here, by `endpoint`; `openapi.py` reads the declaration back from the routes of the
running application, so no route can be missing in the document.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from litestar.handlers import HTTPRouteHandler
from litestar.types import Method
from msgspec import Struct

from tollgate.control.problems import Problem

# The member of a handler's `opt` that holds its Operation.
OPERATION = "operation"

SERVICE, LOGIN, SELF, TEAMS, MEMBERS = "Service", "Login", "Oneself", "Teams", "Members"
INVITATIONS, TOKENS, DOMAINS, AUDIT = "Invitations", "Tokens", "Domains", "Audit"
LOGS, NETWORKS, OPERATOR = "Logs", "Networks", "Operator"
USAGE, INVOICES = "Usage", "Invoices"
TAGS: dict[str, str] = {
    SERVICE: "Public information about the service.",
    LOGIN: "OAuth 2.0 for the command-line tool: device login (RFC 8628), refresh, revocation (RFC 7009).",
    SELF: "One's own account, logins and personal access tokens.",
    TEAMS: "Teams that one belongs to.",
    MEMBERS: "Who belongs to a team, in which role.",
    INVITATIONS: "Links that let people into a team.",
    TOKENS: "API tokens, which call `/x/`.",
    DOMAINS: "Root domains whose pages may call `/x/` without a token.",
    NETWORKS: "What is served: addresses, chains, heads.",
    LOGS: "Request logs: calls, their callers and outcomes.",
    USAGE: "What was used, what it costs, the spending cap and its alerts.",
    INVOICES: "What is owed for a month.",
    OPERATOR: "For whoever runs the service: accounts that `tollgate admin operator` has marked.",
    AUDIT: "Who changed what, when, from where.",
}

_PARAMETER = re.compile(r"\{([a-z]+)\}")


class Query(Struct, frozen=True):
    """A parameter in the query."""

    name: str
    description: str
    schema: dict[str, Any]
    required: bool = False


class Operation(Struct, frozen=True, kw_only=True):
    """What the document has of an endpoint beside its route and signature."""

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
    """Media types in which the same may be had as text."""
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
    query: tuple[Query, ...] = ()
    raises: tuple[type[Problem], ...] = ()
    """Problems beside those that all endpoints of its kind have."""
    cost: int = 1
    """How many requests it counts for against rate limits."""
    searched_by: tuple[str, ...] = ()
    """Parameters of the query that make it search."""
    search_cost: int = 1
    """How many requests it counts for then."""


# The option of a console handler: how many requests the page counts for.
COST = "cost"
# What looks through many rows of the log.
SEARCH_COST = 10


def endpoint(method: Method, path: str, operation: Operation) -> Callable[[Callable[..., Any]], HTTPRouteHandler]:
    """Make a handler of a function, at a path such as `/teams/{team}`."""
    return HTTPRouteHandler(
        _PARAMETER.sub(r"{\1:str}", path),
        http_method=method,
        # What is really answered is in the Response; some statuses would forbid it a body at declaration.
        status_code=200,
        opt={OPERATION: operation},
        name=operation.id,
    )
