"""Simulated nodes of the demo, each a process of its own, with one chain that the test makes grow.

They stand in for Starknet nodes, for want of one that installs everywhere.
"""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .processes import running
from .wire import JSON, Wire

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .processes import Program


@dataclass(frozen=True)
class Simulated:
    """A running node, seen as one of its networks."""

    program: Program
    url: str

    @property
    def ws_url(self) -> str:
        """Where it takes subscriptions."""
        return self.url.replace("http", "ws", 1)

    def call(self, method: str, *params: object) -> Any:
        """Ask the node itself, and give the result. Its `demo_…` methods say what its chain does."""
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
        host, _, path = self.url.removeprefix("http://").partition("/")
        with Wire.open(int(host.rpartition(":")[2])) as wire:
            return wire.ask(f"/{path}", body, JSON).json()["result"]


@contextmanager
def simulated(folder: Path, network: str) -> Iterator[Simulated]:
    """Run a node; all that are run in one folder have one chain, which grows by `demo_mine` alone."""
    argv = [sys.executable, "-m", "tollgate.demo.node", "--block-seconds", "0"]
    argv += ["--family", network.partition("/")[0], "--shared", str(folder / "shared")]
    with running(argv, folder=folder / "said", ready=lambda it: it.lines(), within=30) as program:
        yield Simulated(program, json.loads(program.lines()[0])["networks"][network])
