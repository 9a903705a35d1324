"""What anybody may know: the service itself, and what its API can do."""

from __future__ import annotations

from typing import Any

from litestar import MediaType, Response

from tollgate import __version__
from tollgate.control.api import docs, shapes
from tollgate.control.api.access import HttpRequest, Plane
from tollgate.control.api.operations import SERVICE, Operation, endpoint
from tollgate.control.api.reading import JSON
from tollgate.control.api.render import Answer, shown

# It changes with the version of the service alone.
FOR_A_WHILE = "public, max-age=300"


@endpoint(
    "GET",
    "/service",
    Operation(id="getService", tag=SERVICE, summary="Show what this service is", gives=shapes.Service),
)
async def service(plane: Plane) -> Answer:
    settings = plane.settings
    return shown(
        shapes.Service(
            name="tollgate",
            version=__version__,
            sign_up=settings.accounts.sign_up,
            oidc=settings.oidc.name if plane.oidc is not None else None,
            console_url=f"{plane.base_url}/console",
            device_login=True,
        )
    )


@endpoint(
    "GET",
    "/openapi.json",
    Operation(id="getOpenApi", tag=SERVICE, summary="Get this document", gives=dict[str, Any]),
)
async def document(request: HttpRequest) -> Answer:
    return Response(request.app.state.openapi_json, media_type=JSON, headers={"Cache-Control": FOR_A_WHILE})


@endpoint(
    "GET",
    "/docs",
    Operation(
        id="getDocs",
        tag=SERVICE,
        summary="Get this document as a page for people",
        gives=str,
        media_type=MediaType.HTML,
    ),
)
async def page(request: HttpRequest) -> Answer:
    headers = {"Cache-Control": FOR_A_WHILE, **docs.HEADERS}
    return Response(request.app.state.docs_html, media_type=MediaType.HTML, headers=headers)


HANDLERS = [service, document, page]
