"""What the service is, what its API can do, and, for those who are logged in, the networks that it serves."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import MediaType, Response
from msgspec import Meta, Struct

from tollgate import __version__
from tollgate.control.api import docs, shapes
from tollgate.control.api.access import CurrentActor, HttpRequest, Plane
from tollgate.control.api.operations import NETWORKS, SERVICE, Operation, endpoint
from tollgate.control.api.reading import JSON
from tollgate.control.api.render import Answer, listed_items, shown

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
    headers = {"Cache-Control": FOR_A_WHILE, **docs.PAGE.headers}
    return Response(request.app.state.docs_html, media_type=MediaType.HTML, headers=headers)


class Network(Struct, frozen=True):
    """A network that is served."""

    network: Annotated[str, Meta(description="`family/network`.", examples=["eth/mainnet"])]
    url: Annotated[str, Meta(description="Where its calls are posted.")]
    websocket_url: str
    state: Annotated[
        str,
        Meta(
            description="Whether calls are answered now; `unknown` where nobody has looked lately.",
            extra_json_schema={"enum": ["up", "degraded", "down", "unknown"]},
        ),
    ]
    chain_id: str | None
    head: Annotated[int | None, Meta(description="Its newest block.")]
    finalized: Annotated[int | None, Meta(description="Its newest block that will not change any more.")]


class NetworkPage(Struct, frozen=True):
    """All networks; there is no second part."""

    items: list[Network]
    next: shapes.Next


@endpoint(
    "GET",
    "/networks",
    Operation(id="listNetworks", tag=NETWORKS, summary="List the networks that are served", gives=NetworkPage),
)
async def list_networks(plane: Plane, actor: CurrentActor) -> Answer:  # noqa: ARG001 - whoever is logged in may know
    views = await plane.networks.list()
    return listed_items((shapes.of(Network, view) for view in views), None)


HANDLERS = [service, document, page, list_networks]
