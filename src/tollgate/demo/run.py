"""Puts the demo together: a data folder, a filled team, the service, and a simulated node as its upstream.

The chain is simulated and says so; a real node can take the place of any network's.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct

from tollgate import listeners, server
from tollgate.config import Network, Server, Settings, Upstream, Whitelist
from tollgate.core import secrets
from tollgate.core.models import Domain, Team, Token
from tollgate.core.origins import LOCALHOST
from tollgate.demo.node import SimulatedNode
from tollgate.serving import Service, serve
from tollgate.store import sqlite
from tollgate.store.base import Registry
from tollgate.supervisor import Child, Lifeline

TEAM = "demo"
NETWORKS = (("eth", "mainnet"), ("eth", "sepolia"), ("starknet", "mainnet"), ("starknet", "sepolia"))
# Started again on the same folder, the demo makes a new token, because the old secret is not kept anywhere.
KEPT_TOKENS = 5


class Demo(Struct, frozen=True):
    """A running demo, as it is told to people and programs."""

    base_url: str
    metrics_url: str
    team: str
    token: str
    data_dir: str
    pid: int
    networks: dict[str, str]
    """Address of each network."""
    simulated: tuple[str, ...]
    """Networks whose chain is simulated."""


def run(
    *,
    host: str,
    port: int,
    metrics_port: int,
    workers: int,
    data_dir: str | None,
    upstreams: Mapping[str, str],
    on_ready: Callable[[Demo], None],
) -> None:
    """Run until told to stop. `upstreams` maps `family/network` to the URL of a real node."""
    folder = Path(data_dir) if data_dir else Path(tempfile.mkdtemp(prefix="tollgate-demo-"))
    node = listeners.bind("127.0.0.1", 0, 1, "the simulated node")[0]
    try:
        prepared = server.prepare(
            _settings(host, port, metrics_port, workers, folder, upstreams, listeners.url("http", node))
        )
        token = asyncio.run(_fill(prepared))

        def ready(where: server.Addresses) -> None:
            on_ready(_told(where, token, folder, upstreams))

        server.run(
            prepared,
            on_ready=ready,
            extra_children=[Child("chain", lambda lifeline: _serve_chain(lifeline, node))],
        )
    finally:
        node.close()
        if data_dir is None:
            shutil.rmtree(folder, ignore_errors=True)


def _told(where: server.Addresses, token: str, folder: Path, upstreams: Mapping[str, str]) -> Demo:
    names = [*dict.fromkeys([*(f"{family}/{name}" for family, name in NETWORKS), *upstreams])]
    return Demo(
        base_url=where.base_url,
        metrics_url=where.metrics_url,
        team=TEAM,
        token=token,
        data_dir=str(folder),
        pid=os.getpid(),
        networks={name: f"{where.base_url}/x/{name}" for name in names},
        simulated=tuple(name for name in names if name not in upstreams),
    )


def _settings(
    host: str,
    port: int,
    metrics_port: int,
    workers: int,
    folder: Path,
    upstreams: Mapping[str, str],
    node_url: str,
) -> Settings:
    families: dict[str, dict[str, Network]] = {}
    for family, name in NETWORKS:
        simulated = Upstream(name="simulated", url=f"{node_url}/{family}/{name}")
        families.setdefault(family, {})[name] = Network(upstreams=(simulated,))
    for path, url in upstreams.items():
        family, _, name = path.partition("/")
        families.setdefault(family, {})[name] = Network(upstreams=(Upstream(name="node", url=url),))
    return Settings(
        data_dir=str(folder),
        server=Server(host=host, port=port, metrics_port=metrics_port, workers=workers, grace_seconds=10.0),
        whitelist=Whitelist(allow_localhost=True),
        families=families,
    )


async def _fill(prepared: server.Prepared) -> str:
    """Make the demo team, its token and its whitelist entry; return the token."""
    store = sqlite.open_store(prepared.store_url)
    try:
        team = await store.team(TEAM)
        if team is None:
            team = Team(secrets.new_id("team"), TEAM)
            await store.add_team(team)
        if not any(entry.domain == LOCALHOST for entry in await store.domains(team.id)):
            await store.add_domain(Domain(secrets.new_id("dom"), team.id, LOCALHOST, time.time(), "demo"))
        return await _new_token(store, team, prepared.pepper)
    finally:
        await store.close()


async def _new_token(store: Registry, team: Team, pepper: bytes) -> str:
    earlier = [token for token in await store.tokens(team.id) if token.created_by == "demo"]
    for token in earlier[: max(0, len(earlier) - KEPT_TOKENS + 1)]:
        await store.delete_token(token.id)
    secret = secrets.new_token()
    row = Token(
        id=secrets.new_id("tok"),
        team_id=team.id,
        name=f"demo-{time.time_ns():x}" if earlier else "demo",
        prefix=secrets.shown_prefix(secret),
        created_at=time.time(),
        created_by="demo",
    )
    await store.add_token(row, secrets.digest(secret.encode(), pepper))
    return secret


def _serve_chain(lifeline: Lifeline, node: socket.socket) -> None:
    async def make() -> Service:
        return Service(SimulatedNode(time.time))

    serve(make, [node], lifeline, grace_seconds=1.0)
