"""The simulated node: HTTP and WebSocket in front of the simulated chains, on `/<family>/<network>`.

Owns the ASGI application. What a body holds is `framing.py`'s business, a WebSocket connection `session.py`'s.
The clock comes in as an argument. `python -m tollgate.demo.node` runs a node by itself: see `alone.py`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

from tollgate.demo import eth, starknet
from tollgate.demo.chain import BLOCK_SECONDS, genesis_before
from tollgate.demo.control import Faults, HttpFault, Visit
from tollgate.demo.framing import INVALID_REQUEST, LARGEST_BODY, refusal, respond
from tollgate.demo.network import SimulatedNetwork
from tollgate.demo.session import QUEUE_BYTES, Receive, Scope, Send, Session

FAMILIES = ("eth", "starknet")
MAX_SESSIONS = 256
SERVER_ERROR = -32000

_HEADERS = [(b"content-type", b"application/json"), (b"x-simulated-chain", b"1")]


def networks(
    genesis: int,
    *,
    families: tuple[str, ...] = FAMILIES,
    block_seconds: float = BLOCK_SECONDS,
    seed: int = 0,
    shared: Path | None = None,
) -> dict[str, SimulatedNetwork]:
    """Return the simulated networks of some families by their path."""
    found: dict[str, SimulatedNetwork] = {}
    if "eth" in families:
        for name in eth.NETWORKS:
            found[f"/eth/{name}"] = eth.EthNode(
                name, genesis, block_seconds=block_seconds, seed=seed, shared=shared
            )
    if "starknet" in families:
        for name in starknet.NETWORKS:
            found[f"/starknet/{name}"] = starknet.StarknetNode(
                name, genesis, block_seconds=block_seconds, seed=seed, shared=shared
            )
    return found


class SimulatedNode:
    """An ASGI application that answers for all simulated networks."""

    def __init__(
        self,
        now: Callable[[], float],
        genesis: int | None = None,
        *,
        served: dict[str, SimulatedNetwork] | None = None,
        control: bool = False,
        queue_bytes: int = QUEUE_BYTES,
    ) -> None:
        """Serve all networks from `genesis` on, or those in `served`; with `control`, `demo_…` methods too."""
        self._now = now
        self.networks = (
            networks(genesis_before(now()) if genesis is None else genesis) if served is None else served
        )
        for network in self.networks.values():
            network.clock = now
        self._faults = {path: Faults() if control else None for path in self.networks}
        self._queue_bytes = queue_bytes
        self._sessions = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif scope["type"] == "websocket":
            await self._talk(scope, receive, send)
        elif scope["type"] == "http":
            status, headers, body = await self._serve(scope, receive)
            length = [] if status == 204 else [(b"content-length", str(len(body)).encode())]
            start = {"type": "http.response.start", "status": status, "headers": _HEADERS + headers + length}
            await send(start)
            await send({"type": "http.response.body", "body": body})

    async def _serve(self, scope: Scope, receive: Receive) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        path = scope["path"].rstrip("/")
        network = self.networks.get(path)
        if network is None:
            return 404, [], refusal(INVALID_REQUEST, f"The simulated networks are {', '.join(self.networks)}")
        if scope["method"] != "POST":
            return 405, [], refusal(INVALID_REQUEST, "Only POST is answered")
        body = await _body(receive)
        if body is None:
            return 413, [], refusal(INVALID_REQUEST, f"The body is larger than {LARGEST_BODY} bytes")
        visit = Visit(network, self._faults[path])
        status, headers = 200, []
        try:
            answer = respond(visit, body, self._now())
        except HttpFault as fault:
            status, answer = fault.status, refusal(SERVER_ERROR, str(fault))
            headers = [] if fault.retry_after is None else [(b"retry-after", str(fault.retry_after).encode())]
        if visit.wait:
            await asyncio.sleep(visit.wait)
        return (204, headers, b"") if answer is None else (status, headers, answer)

    async def _talk(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"].rstrip("/")
        network = self.networks.get(path)
        if network is None or self._sessions >= MAX_SESSIONS:
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        self._sessions += 1
        try:
            session = Session(network, self._faults[path], self._now, queue_bytes=self._queue_bytes)
            await session.run(receive, send)
        finally:
            self._sessions -= 1


async def _body(receive: Receive) -> bytes | None:
    """Read a request's body; `None` if it is too large."""
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > LARGEST_BODY:
            return None
        if not message.get("more_body", False):
            return bytes(body)


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


if __name__ == "__main__":
    # A command is only needed where this module is one.
    from tollgate.demo.alone import main

    sys.exit(main())
