"""The service itself: its public description, its documentation, and the networks that it serves."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from tollgate.api.base import HTML, Page, Route


class Service(Struct, frozen=True):
    """A server's public description."""

    name: Annotated[str, Meta(description="Always `tollgate`.")]
    version: Annotated[str, Meta(description="The version of Tollgate.")]
    sign_up: Annotated[
        str,
        Meta(
            description="Who may create an account: `closed`, people the operator invites; `invited`, also those "
            "a team invites; `open`, anyone.",
            extra_json_schema={"enum": ["closed", "invited", "open"]},
        ),
    ]
    oidc: Annotated[str | None, Meta(description="The name of the sign-in provider, if there is one.")] = None
    console_url: Annotated[str, Meta(description="The address of the console.")] = ""
    device_login: Annotated[bool, Meta(description="Whether tools can log in by a code (RFC 8628).")] = True


class Network(Struct, frozen=True):
    """A network that is served."""

    network: Annotated[str, Meta(description="`family/network`.", examples=["eth/mainnet"])]
    url: Annotated[str, Meta(description="The address for calls over HTTP.")]
    websocket_url: Annotated[str, Meta(description="The address for WebSocket connections.")] = ""
    state: Annotated[
        str,
        Meta(
            description="Whether calls are answered now; `unknown` if upstreams were not probed recently.",
            extra_json_schema={"enum": ["up", "degraded", "down", "unknown"]},
        ),
    ] = ""
    chain_id: Annotated[str | None, Meta(description="The chain id, once an upstream reported it.")] = None
    head: Annotated[int | None, Meta(description="The newest block.")] = None
    finalized: Annotated[int | None, Meta(description="The newest finalized block.")] = None

    @property
    def family(self) -> str:
        """The chain family, which is the prefix of its methods."""
        return self.network.partition("/")[0]


class NetworkPage(Page[Network], frozen=True):
    """All networks, in one page."""


SHOW = Route("GET", "/service", Service)
OPENAPI = Route("GET", "/openapi.json", dict[str, Any])
DOCS = Route("GET", "/docs", str, media_types=(HTML,))
NETWORKS = Route("GET", "/networks", NetworkPage)
