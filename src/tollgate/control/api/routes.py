"""All routes of the API, put together."""

from __future__ import annotations

from litestar import Router
from litestar.di import Provide
from litestar.handlers import HTTPRouteHandler

from tollgate.control.api import (
    access,
    billing,
    domains,
    factors,
    logs,
    members,
    networks,
    oauth,
    oneself,
    operator,
    service,
    teams,
    timelines,
    tokens,
)

BASE = "/api/v1"


def router() -> Router:
    """All under `/api/v1`."""
    handlers = (
        *(service, oneself, factors, teams, members, tokens, domains),
        *(networks, logs, timelines, billing, operator),
    )
    return Router(
        path=BASE,
        route_handlers=[oauth.router(), *(handler for each in handlers for handler in each.HANDLERS)],
        dependencies={
            "visit": Provide(access.visit, sync_to_thread=False),
            "actor": Provide(access.actor),
        },
    )


def outside() -> list[HTTPRouteHandler]:
    """What a standard wants at the root."""
    return [oauth.metadata]
