"""A node whose every word is scripted: what it answers to each method, and how badly.

It keeps what it received. A wait is a gate that the test opens, never a guessed time.
"""

from __future__ import annotations

import gzip
import itertools
import json
import socket
import socketserver
import struct
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .ports import LOOPBACK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_RESET = struct.pack("ii", 1, 0)
# What the prober is sent: a chain without new blocks. It is no part of any script.
_BLOCK = {"number": "0x10", "hash": "0x" + "10" * 32, "parentHash": "0x" + "0f" * 32}
_STARKNET_BLOCK = {"block_number": 16, "block_hash": "0x10", "parent_hash": "0xf", "status": "ACCEPTED_ON_L1"}
_PROBED = {
    "eth_getBlockByNumber": _BLOCK,
    "eth_chainId": "0x1",
    "eth_syncing": False,
    "starknet_getBlockWithTxHashes": _STARKNET_BLOCK,
    "starknet_chainId": "0x1",
    "starknet_syncing": False,
}
_running: set[str] = set()


def is_scripted(url: str) -> bool:
    """Whether a scripted node listens at this address."""
    return any(url.startswith(each) for each in _running)


@dataclass(frozen=True)
class Received:
    """A request, as it came."""

    path: str
    headers: Mapping[str, str]
    body: bytes
    connection: int
    """Counts the connections from 0."""

    def json(self) -> Any:
        """Read the body as JSON."""
        return json.loads(self.body)

    def methods(self) -> list[str]:
        """Name the methods that it calls."""
        parsed = self.json()
        return [each["method"] for each in (parsed if isinstance(parsed, list) else [parsed])]


@dataclass(frozen=True)
class Reply:
    """What is sent back; by default HTTP 200 with an honest JSON-RPC answer that repeats the call."""

    body: bytes | None = None
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    chunked: bool = False
    packed: bool = False
    """Sent with gzip."""
    length: int | None = None
    """A Content-Length that is not the body's."""
    until_close: bool = False
    """No length at all: the end of the connection is the end of the body."""
    close: bool = False
    """Close after the answer without a word about it."""
    raw: bytes | None = None
    """Sent instead of anything that is HTTP."""
    gate: threading.Event | None = None
    """Wait for it first."""
    hang: bool = False
    """Send nothing until the other side gives up."""
    reset: bool = False
    """Tear the connection down."""


def result(value: object) -> Reply:
    """Answer one call with a result."""
    return Reply(json.dumps({"jsonrpc": "2.0", "id": 1, "result": value}).encode())


def failure(error: object) -> Reply:
    """Answer one call with a JSON-RPC error."""
    return Reply(json.dumps({"jsonrpc": "2.0", "id": 1, "error": error}).encode())


def _honest(received: Received) -> bytes:
    parsed = received.json()

    def one(each: dict[str, Any]) -> dict[str, Any]:
        answer = {"method": each["method"], "params": each.get("params")}
        return {"jsonrpc": "2.0", "id": each.get("id"), "result": answer}

    return json.dumps([one(each) for each in parsed] if isinstance(parsed, list) else one(parsed)).encode()


class Upstream(socketserver.ThreadingTCPServer):
    """A running node."""

    daemon_threads = False  # so that closing waits for them
    allow_reuse_address = True
    request_queue_size = 256

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.open: set[socket.socket] = set()
        self.probing: set[socket.socket] = set()
        """Connections of the prober, which no script counts."""
        self.probed: dict[str, bytes] = {}
        """Results that the prober gets in place of the usual ones, by method."""
        self.over = threading.Event()
        self._count = itertools.count()
        self._scripts: dict[str, Reply | Callable[[Received], Reply]] = {}
        super().__init__((LOOPBACK, 0), _Conversation)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://{LOOPBACK}:{self.server_address[1]}"

    def on(self, method: str, reply: Reply | Callable[[Received], Reply]) -> None:
        """Set what is answered to a method (that of the first call of a batch); `*` is all others."""
        self._scripts[method] = reply

    def clear(self) -> None:
        """Forget the script and what was received."""
        self._scripts.clear()
        self.received.clear()

    def reply_to(self, received: Received) -> Reply:
        """Look up the script."""
        usual = self._scripts.get("*", Reply())
        script = self._scripts.get(received.methods()[0], usual) if self._scripts.keys() - {"*"} else usual
        return script if isinstance(script, Reply) else script(received)

    def bodies(self, method: str) -> list[Any]:
        """Give the requests that called a method, alone or in a batch."""
        return [each.json() for each in self.received if method in each.methods()]

    def hang_up(self) -> None:
        """Close every connection, as a node does with idle ones; one is over when the other side has closed."""
        for connection in list(self.open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_WR)

    def next_number(self) -> int:
        """Count a connection."""
        return next(self._count)

    def handle_error(self, request: object, client_address: object) -> None:
        """Keep quiet: the gateway may leave whenever it likes."""


class _Conversation(socketserver.BaseRequestHandler):
    server: Upstream

    def setup(self) -> None:
        self._buffer = b""
        self._number = -1
        self.server.open.add(self.request)

    def finish(self) -> None:
        self.server.open.discard(self.request)
        self.server.probing.discard(self.request)

    def handle(self) -> None:
        while (received := self._receive()) is not None:
            if received.headers.get("user-agent", "").startswith("tollgate-prober/"):
                self._tell_prober(received)
                continue
            self.server.received.append(received)
            if not self._reply(received, self.server.reply_to(received)):
                return

    def _tell_prober(self, received: Received) -> None:
        self.server.open.discard(self.request)
        self.server.probing.add(self.request)
        method = received.methods()[0]
        result = self.server.probed.get(method) or json.dumps(_PROBED.get(method)).encode()
        self.request.sendall(_rendered(Reply(), b'{"jsonrpc":"2.0","id":1,"result":%b}' % result))

    def _receive(self) -> Received | None:
        if not self._fill(lambda: b"\r\n\r\n" in self._buffer):
            return None
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, value in (line.split(":", 1) for line in lines)}
        length = int(headers.get("content-length", "0"))
        if not self._fill(lambda: len(self._buffer) >= length):
            return None
        body, self._buffer = self._buffer[:length], self._buffer[length:]
        if self._number < 0 and not headers.get("user-agent", "").startswith("tollgate-prober/"):
            self._number = self.server.next_number()
        return Received(first.split()[1], headers, body, self._number)

    def _fill(self, enough: Callable[[], bool]) -> bool:
        while not enough():
            data = self.request.recv(65_536)
            if not data:
                return False
            self._buffer += data
        return True

    def _reply(self, received: Received, reply: Reply) -> bool:
        """Answer; return whether the connection goes on."""
        while reply.gate is not None and not (reply.gate.wait(0.02) or self.server.over.is_set()):
            pass
        if reply.hang:
            self.request.recv(1)
            return False
        if reply.reset:
            self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.request.close()
            return False
        if reply.raw is not None:
            self.request.sendall(reply.raw)
            return False
        self.request.sendall(_rendered(reply, _honest(received) if reply.body is None else reply.body))
        return not (reply.close or reply.until_close or reply.length is not None)


def _rendered(reply: Reply, body: bytes) -> bytes:
    headers = [("Content-Type", "application/json"), *reply.headers]
    if reply.packed:
        body = gzip.compress(body)
        headers.append(("Content-Encoding", "gzip"))
    if reply.chunked:
        headers.append(("Transfer-Encoding", "chunked"))
        half = len(body) // 2 or 1
        parts = [body[:half], body[half:]] if len(body) > 1 else [body]
        body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts if part) + b"0\r\n\r\n"
    elif not reply.until_close:
        headers.append(("Content-Length", str(len(body) if reply.length is None else reply.length)))
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
    return f"HTTP/1.1 {reply.status} Scripted\r\n{lines}\r\n".encode() + body


@contextmanager
def upstream() -> Iterator[Upstream]:
    """Run a scripted node on a free loopback port."""
    with Upstream() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        _running.add(server.url)
        try:
            yield server
        finally:
            _running.discard(server.url)
            server.shutdown()
            thread.join()
            server.over.set()
            for connection in [*server.open, *server.probing]:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
