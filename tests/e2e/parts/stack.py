"""One gateway, one scripted node behind it, one team with one token."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .raw_http import JSON, Answer, call, request
from .tollgate import Gateway, bearer, serving
from .upstream import Upstream, upstream

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from tollgate.core.models import Team

PATH = "/x/eth/mainnet"


@dataclass(frozen=True)
class Stack:
    """What a test needs to send a call and to see it arrive."""

    gateway: Gateway
    node: Upstream
    team: Team
    token: str

    @property
    def headers(self) -> dict[str, str]:
        """The headers of a good call."""
        return {**JSON, **bearer(self.token)}

    def request(self, id: object = 1, method: str = "eth_chainId") -> bytes:  # noqa: A002
        """Write a good call as HTTP."""
        return request(PATH, call(method, id=id), self.headers)

    def exchange(self, body: bytes, **more: Any) -> Answer:
        """Send a body with the token."""
        return self.gateway.exchange(body, token=self.token, **more)


@contextmanager
def open_stack(
    folder: Path,
    settings: Mapping[str, Mapping[str, object]] | None = None,
    *,
    networks: Sequence[str] = ("eth/mainnet",),
    tls: ssl.SSLContext | None = None,
) -> Iterator[Stack]:
    """Run the gateway with one node behind all of the networks."""
    with upstream() as node:
        behind = {name: [node.url + "/rpc?key=1"] for name in networks}
        with serving(folder, behind, settings, tls=tls) as gateway:
            team = gateway.books.team()
            token, _ = gateway.books.token(team)
            yield Stack(gateway, node, team, token)


def reason(answer: Answer) -> str:
    """Give the reason of a refusal."""
    return str(answer.json()["error"]["data"]["reason"])
