"""How pages are registered, and answers for unknown paths and methods.

Litestar answers an unknown path or method before it selects a router, so these are registered too, and refused by
handlers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from litestar import HttpMethod, Request, Response, route
from litestar.di import NamedDependency
from litestar.exceptions import MethodNotAllowedException, NotFoundException
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath

from tollgate.control.plane import ControlPlane

HttpRequest = Request[Any, Any, Any]
Plane = NamedDependency[ControlPlane]
Part = FromPath[str]

shown = partial(route, http_method=[HttpMethod.GET, HttpMethod.HEAD], status_code=200)

_METHODS = [method for method in HttpMethod if method is not HttpMethod.OPTIONS]


def nowhere(handlers: Sequence[HTTPRouteHandler]) -> Iterator[HTTPRouteHandler]:
    """Return handlers for all other paths and methods under the common root of these."""
    taken: dict[str, set[HttpMethod]] = {"/": set()}
    for handler in handlers:
        for path in handler.paths:
            for place in _slots(path):
                taken.setdefault(place, set())
            taken[path] |= {HttpMethod(method) for method in handler.http_methods}
    for path, methods in taken.items():
        if methods:
            yield _refuses_methods(path, methods)
        else:
            yield _is_missing(path)
        if not any(other.startswith(f"{path.rstrip('/')}/{{") for other in taken):
            yield _is_missing(f"{path.rstrip('/')}/{{rest:path}}")


def _slots(path: str) -> Iterator[str]:
    """The path and all its parents."""
    parts = path.strip("/").split("/")
    for count in range(1, len(parts) + 1):
        yield "/" + "/".join(parts[:count])


def _is_missing(path: str) -> HTTPRouteHandler:
    @route(path, http_method=_METHODS, status_code=404)
    async def missing(request: HttpRequest) -> Response[str]:  # noqa: ARG001 - takes none of the path's parts
        raise NotFoundException

    return missing


def _refuses_methods(path: str, allowed: set[HttpMethod]) -> HTTPRouteHandler:
    @route(path, http_method=[method for method in _METHODS if method not in allowed], status_code=405)
    async def refused(request: HttpRequest) -> Response[str]:  # noqa: ARG001 - takes none of the path's parts
        raise MethodNotAllowedException(headers={"Allow": ", ".join(sorted(method.value for method in allowed))})

    return refused
