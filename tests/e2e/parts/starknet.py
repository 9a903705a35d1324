"""Starknet nodes in the test's own process, with one chain that grows and reorganises when the test decides.

They answer as the simulated chain of `tollgate demo` does, for want of a Starknet node that installs everywhere:
by the newest version of the specification at their address, and by those that they serve at `/rpc/v0_…`.
"""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from tollgate.chains.starknet_versions import VERSIONS, path
from tollgate.demo.chain import HISTORY_BLOCKS, SimulatedChain
from tollgate.demo.node import respond
from tollgate.demo.starknet_methods import in_version, starknet_network

from .ports import LOOPBACK

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_GENESIS = 1_700_000_000


class ForkingChain(SimulatedChain, frozen=True):
    """A chain without a clock, whose blocks can be replaced."""

    tip: int = HISTORY_BLOCKS
    forks: tuple[tuple[int, int], ...] = ()
    """Where each branch begins, and which reorganisation it came with."""

    def head(self, now: float) -> int:
        return self.tip

    def block_digest(self, kind: str, height: int, *parts: object) -> bytes:
        return super().block_digest(kind, height, *parts, *(fork for fork in self.forks if fork[0] <= height))


class StarknetNode(ThreadingHTTPServer):
    """A running node."""

    daemon_threads = True

    def __init__(self, chain: ForkingChain, served: Iterable[str] = VERSIONS) -> None:
        newest = starknet_network(chain.network, _GENESIS)
        self.networks = {"": newest} | {path(version): in_version(newest, version) for version in served}
        """What answers, by the path behind the node's address."""
        self.follow(chain)
        self._connections: set[socket.socket] = set()
        super().__init__((LOOPBACK, 0), _Handler)
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://{LOOPBACK}:{self.server_address[1]}"

    def call(self, method: str, *params: object) -> Any:
        """Call the node itself, and return the result."""
        return self.networks[""].answer(method, list(params), 0.0)

    def follow(self, chain: ForkingChain) -> None:
        """Answer from this state of the chain from now on."""
        for network in self.networks.values():
            network.chain = chain

    def kill(self) -> None:
        """End it without a word to anybody."""
        self.shutdown()
        self.server_close()
        for connection in list(self._connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """Keep quiet: the gateway may leave whenever it likes."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: StarknetNode

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        network = self.server.networks.get(self.path.rstrip("/"))
        answer = b"" if network is None else respond(network, body, 0.0) or b""
        self.send_response(404 if network is None else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


class StarknetChain:
    """The nodes, and which of them follow the chain."""

    def __init__(self, served: Iterable[Iterable[str]]) -> None:
        self._chain = ForkingChain("starknet", "sepolia", _GENESIS, 251)
        self.nodes = [StarknetNode(self._chain, each) for each in served]
        self.following = list(self.nodes)
        self._reorganisations = 0

    @property
    def height(self) -> int:
        """The newest block."""
        return self._chain.tip

    def mine(self, blocks: int = 1) -> None:
        """Make blocks, one after the other, on all nodes that follow."""
        for _ in range(blocks):
            self._become(replace(self._chain, tip=self._chain.tip + 1))

    def reorganise(self, depth: int) -> None:
        """Replace the newest blocks by as many others, on all nodes that follow."""
        first = self._chain.tip - depth + 1
        self._reorganisations += 1
        kept = (fork for fork in self._chain.forks if fork[0] < first)
        self._become(replace(self._chain, forks=(*kept, (first, self._reorganisations))))

    def leave(self, node: StarknetNode) -> None:
        """Let a node stay where it is from now on."""
        self.following.remove(node)

    def join(self, node: StarknetNode) -> None:
        """Let a node come along to the head and follow again."""
        self.following.append(node)
        self._become(self._chain)

    def _become(self, chain: ForkingChain) -> None:
        self._chain = chain
        for node in self.following:
            node.follow(chain)


@contextmanager
def starknet_chain(count: int = 1, served: Iterable[Iterable[str]] | None = None) -> Iterator[StarknetChain]:
    """Run so many nodes, or one for each set of versions to serve, with one chain of the network `sepolia`."""
    chain = StarknetChain([VERSIONS] * count if served is None else served)
    try:
        yield chain
    finally:
        for node in chain.nodes:
            node.kill()
