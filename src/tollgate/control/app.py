"""The control plane as one ASGI application: `/api/v1`, `/console`, and `/.well-known` for OAuth.

It assembles routers and contains nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, cast

import msgspec
from litestar import Litestar, Router
from litestar.connection import ASGIConnection
from litestar.datastructures import State
from litestar.di import Provide
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler
from litestar.types import Message, Scope

from tollgate.control.api import (
    access,
    audit,
    creation,
    docs,
    domains,
    factors,
    invoices,
    logs,
    me,
    members,
    oauth,
    openapi,
    operator,
    reading,
    service,
    teams,
    tokens,
    usage,
)
from tollgate.control.api.errors import HANDLERS
from tollgate.control.api.operations import handlers_of
from tollgate.control.api.rates import Rates
from tollgate.control.console import pages
from tollgate.control.plane import ControlPlane

BASE = "/api/v1"
MAX_BODY_BYTES = 262_144


def control_app(plane: ControlPlane) -> Litestar:
    return assembled(plane, [api_router(), pages.router(), pages.root, oauth.metadata])


def operator_app(plane: ControlPlane) -> Litestar:
    """Create an application with only the operator's endpoints."""
    return assembled(plane, [_router(handlers_of(operator))])


def api_router() -> Router:
    """All of the API, under `/api/v1`."""
    resources = (
        *(service, me, factors, teams, members, tokens, domains),
        *(logs, audit, usage, invoices, operator),
    )
    return _router([oauth.router(), *chain.from_iterable(map(handlers_of, resources))])


def _router(handlers: Sequence[Router | HTTPRouteHandler]) -> Router:
    return Router(
        path=BASE,
        route_handlers=handlers,
        dependencies={
            "client": Provide(access.client, sync_to_thread=False),
            "actor": Provide(access.actor),
            "page": Provide(reading.page, sync_to_thread=False),
            "wanted": Provide(reading.wanted, sync_to_thread=False),
            "if_match": Provide(reading.if_match, sync_to_thread=False),
            "once": Provide(creation.Once, sync_to_thread=False),
        },
    )


def assembled(plane: ControlPlane, parts: Sequence[Router | HTTPRouteHandler]) -> Litestar:
    app = Litestar(
        route_handlers=parts,
        # A guard, because guards run before the credential is checked.
        guards=[_check_rate],
        dependencies={"plane": Provide(_plane, sync_to_thread=False)},
        exception_handlers=HANDLERS,
        before_send=[_name_request],
        # Ours is in `api/openapi.py`; Litestar's pages would load scripts from elsewhere.
        openapi_config=None,
        request_max_body_size=MAX_BODY_BYTES,
        logging_config=None,
        debug=False,
    )
    app.state.plane = plane
    app.state.rates = Rates()
    document = openapi.document(app.routes, plane.base_url)
    app.state.openapi_json = msgspec.json.encode(document)
    app.state.docs_html = docs.page(document)
    return app


def _check_rate(connection: ASGIConnection[Any, Any, Any, Any], _handler: BaseRouteHandler) -> None:
    rates: Rates = connection.app.state.rates
    rates.check(cast("access.HttpRequest", connection), connection.app.state.plane)


def _plane(state: State) -> ControlPlane:
    plane: ControlPlane = state.plane
    return plane


async def _name_request(message: Message, scope: Scope) -> None:
    """Add the request's id to every answer, and for the worker whether its credential is valid."""
    if message["type"] != "http.response.start":
        return
    if name := access.request_id(scope):
        message["headers"] = [*message["headers"], (b"x-request-id", name.encode("latin-1"))]
    if access.KNOWN in scope.get("state", ()):
        message["headers"] = [*message["headers"], (b"x-tollgate-known", b"1")]
