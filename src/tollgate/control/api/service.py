"""The service's public description, its documentation, and the networks that it serves."""

from __future__ import annotations

from typing import Any

from litestar import Response

from tollgate import __version__
from tollgate.api import service
from tollgate.api.base import HTML, JSON
from tollgate.api.service import NetworkPage, Service
from tollgate.control.api import docs
from tollgate.control.api.access import CurrentActor, HttpRequest, Plane
from tollgate.control.api.operations import NETWORKS, SERVICE, serves
from tollgate.control.api.render import unstored

# It changes only with the version of the service.
FOR_A_WHILE = "public, max-age=300"


@serves(service.SHOW, tag=SERVICE)
async def get_service(plane: Plane) -> Response[Service]:
    """Show what this service is."""
    settings = plane.settings
    return unstored(
        Service(
            name="tollgate",
            version=__version__,
            sign_up=settings.accounts.sign_up,
            oidc=settings.oidc.name if plane.oidc is not None else None,
            console_url=f"{plane.base_url}/console",
        )
    )


@serves(service.OPENAPI, tag=SERVICE)
async def get_open_api(request: HttpRequest) -> Response[Any]:
    """Get this document."""
    return Response(request.app.state.openapi_json, media_type=JSON, headers={"Cache-Control": FOR_A_WHILE})


@serves(service.DOCS, tag=SERVICE)
async def get_docs(request: HttpRequest) -> Response[Any]:
    """Get this document as a page for people."""
    headers = {"Cache-Control": FOR_A_WHILE, **docs.PAGE.headers}
    return Response(request.app.state.docs_html, media_type=HTML, headers=headers)


@serves(service.NETWORKS, tag=NETWORKS)
async def list_networks(plane: Plane, actor: CurrentActor) -> Response[NetworkPage]:  # noqa: ARG001 - requires a login
    """List the networks that are served."""
    return unstored(NetworkPage(list(await plane.networks.list())))
