"""Puts the demo together: a data folder, a filled team, the service, and a simulated node as its upstream.

A real node can take the place of any simulated network.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct

from tollgate.demo import fill
from tollgate.demo.node import SimulatedNode
from tollgate.processes import listeners, service
from tollgate.processes.bootstrap import prepare
from tollgate.processes.run_in_child import run_in_child
from tollgate.processes.serving import ServerProcess, serve
from tollgate.processes.supervisor import Child, Lifeline
from tollgate.settings.model import (
    NetworkSettings,
    PricingSettings,
    ServerSettings,
    Settings,
    UpstreamSettings,
    WhitelistSettings,
)

NETWORKS = (("eth", "mainnet"), ("eth", "sepolia"), ("starknet", "mainnet"), ("starknet", "sepolia"))


class Demo(Struct, frozen=True):
    """A running demo: what is printed of it."""

    base_url: str
    metrics_url: str
    console_url: str
    team: str
    token: str
    email: str
    """The demo account, with its password and a personal access token for `TOLLGATE_TOKEN`."""
    password: str
    management_token: str
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
    past: bool,
    on_ready: Callable[[Demo], None],
) -> None:
    """Run until SIGTERM or SIGINT. `upstreams` maps `family/network` to the URL of a real node."""
    folder = Path(data_dir) if data_dir else Path(tempfile.mkdtemp(prefix="tollgate-demo-"))
    node = listeners.bind("127.0.0.1", 0, 1, "the simulated node")[0]
    try:
        bootstrap = prepare(
            _settings(host, port, metrics_port, workers, folder, upstreams, listeners.url("http", node))
        )
        filled = run_in_child(lambda: fill.fill(bootstrap, past=past), fill.Filled, "Filling the demo")

        def ready(where: service.ServiceAddresses) -> None:
            on_ready(_describe(where, filled, folder, upstreams))

        service.run(
            bootstrap,
            on_ready=ready,
            extra_children=[Child("chain", lambda lifeline: _serve_chain(lifeline, node))],
        )
    finally:
        node.close()
        if data_dir is None:
            shutil.rmtree(folder, ignore_errors=True)


def _describe(
    where: service.ServiceAddresses, filled: fill.Filled, folder: Path, upstreams: Mapping[str, str]
) -> Demo:
    names = [*dict.fromkeys([*(f"{family}/{name}" for family, name in NETWORKS), *upstreams])]
    return Demo(
        base_url=where.base_url,
        metrics_url=where.metrics_url,
        console_url=f"{where.base_url}/console",
        team=fill.TEAM,
        token=filled.token,
        email=fill.EMAIL,
        password=filled.password,
        management_token=filled.management_token,
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
    families: dict[str, dict[str, NetworkSettings]] = {}
    for family, name in NETWORKS:
        simulated = UpstreamSettings(name="simulated", url=f"{node_url}/{family}/{name}")
        families.setdefault(family, {})[name] = NetworkSettings(upstreams=(simulated,))
    for path, url in upstreams.items():
        family, _, name = path.partition("/")
        families.setdefault(family, {})[name] = NetworkSettings(
            upstreams=(UpstreamSettings(name="node", url=url),)
        )
    return Settings(
        data_dir=str(folder),
        server=ServerSettings(
            host=host, port=port, metrics_port=metrics_port, workers=workers, grace_seconds=10.0
        ),
        whitelist=WhitelistSettings(allow_localhost=True),
        billing=PricingSettings(
            seller="Tollgate Demo Ltd\n2 Quay Lane\nCork, Ireland", seller_tax_number="IE7654321W"
        ),
        families=families,
    )


def _serve_chain(lifeline: Lifeline, node: socket.socket) -> None:
    async def make() -> ServerProcess:
        return ServerProcess(SimulatedNode(time.time), ws="websockets-sansio")

    serve(make, [node], lifeline, grace_seconds=1.0)
