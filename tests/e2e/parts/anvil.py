"""anvil, a local Ethereum chain: a real node to put behind the gateway. It reaches for no network."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .need import need
from .ports import LOOPBACK, accepts, free_port
from .processes import running

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

SEPOLIA = 11155111


@dataclass(frozen=True)
class Anvil:
    """A running chain."""

    url: str
    chain_id: int
    pid: int

    @property
    def port(self) -> int:
        """Where it listens, for HTTP and for WebSocket."""
        return int(self.url.rpartition(":")[2])

    def call(self, method: str, *params: object) -> Any:
        """Call the node itself, not a proxy before it, and return the result."""
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
        request = urllib.request.Request(self.url, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.load(response)["result"]

    def kill(self) -> None:
        """End it as the kernel does when memory is short: without a word to anybody."""
        os.kill(self.pid, signal.SIGKILL)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let it hold its connections and send nothing for a while."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)


@contextmanager
def anvil(
    folder: Path,
    *,
    chain_id: int = SEPOLIA,
    block_time: int | None = None,
    arguments: Sequence[str] = (),
) -> Iterator[Anvil]:
    """Run a chain; a block comes with each transaction, or every `block_time` seconds."""
    port = free_port()
    argv = [str(need("anvil")), "--host", LOOPBACK, "--port", str(port), "--chain-id", str(chain_id)]
    if block_time is not None:
        argv += ["--block-time", str(block_time)]
    argv += arguments
    # The home is the test's folder: anvil keeps caches under it.
    with running(
        argv, folder=folder, env={"HOME": str(folder)}, ready=lambda _: accepts(port), within=60
    ) as program:
        yield Anvil(f"http://{LOOPBACK}:{port}", chain_id, program.pid)
