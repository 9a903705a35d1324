"""The networks that are served."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from tollgate.control.api import shapes
from tollgate.control.api.access import CurrentActor, Plane
from tollgate.control.api.operations import NETWORKS, Operation, endpoint
from tollgate.control.api.render import Answer, listed_items


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
    """List the networks."""
    views = await plane.networks.list()
    return listed_items((shapes.of(Network, view) for view in views), None)


HANDLERS = [list_networks]
