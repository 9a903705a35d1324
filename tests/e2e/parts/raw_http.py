"""An HTTP/1.1 client that hides nothing: bytes out, one answer in, on a connection that the test holds.

Libraries repair, retry and reorder; a test of framing must not.
"""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from .ports import LOOPBACK

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

PATIENCE = 30.0
"""How long an answer may take before it counts as a hang."""
JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Answer:
    """One HTTP answer. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    version: str = "1.1"

    def json(self) -> Any:
        """Read the body as JSON."""
        return json.loads(self.body)


def call(method: str, *params: object, id: object = 1) -> bytes:  # noqa: A002
    """Write a JSON-RPC request."""
    return json.dumps({"jsonrpc": "2.0", "method": method, "params": params, "id": id}).encode()


def request(
    path: str,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    *,
    method: str = "POST",
    version: str = "1.1",
) -> bytes:
    """Write an HTTP request; a length is added unless a header frames the body."""
    given = {"Host": "gateway", **(headers or {})}
    names = {name.lower() for name in given}
    if not names & {"content-length", "transfer-encoding"} and (body or method == "POST"):
        given["Content-Length"] = str(len(body))
    lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    return f"{method} {path} HTTP/{version}\r\n{lines}\r\n".encode() + body


@dataclass
class RawConnection:
    """One connection."""

    socket: socket.socket
    _buffer: bytearray = field(default_factory=bytearray)

    @classmethod
    def open(
        cls,
        port: int,
        *,
        source: str | None = None,
        tls: ssl.SSLContext | None = None,
        timeout: float = PATIENCE,
    ) -> Self:
        """Connect to a loopback port, from another loopback address if one is given."""
        bound = (source, 0) if source else None
        connection = socket.create_connection((LOOPBACK, port), timeout, source_address=bound)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            connection = tls.wrap_socket(connection, server_hostname="localhost")
        return cls(connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    @property
    def local_port(self) -> int:
        """The port of our end, which identifies the connection."""
        port: int = self.socket.getsockname()[1]
        return port

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.socket.sendall(data)

    def read(self, *, to: str = "POST") -> Answer:
        """Read one answer, interim ones (100) included; `to` is the method of the request: HEAD gets no body."""
        head = self._until(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        version, status = first.removeprefix("HTTP/").split(" ", 2)[:2]
        pairs = [line.split(":", 1) for line in lines if line]
        names = [name.lower() for name, _ in pairs]
        if len(set(names)) != len(names):
            raise AssertionError(f"a header was sent twice: {head!r}")
        headers = {name.lower(): value.strip() for name, value in pairs}
        bodiless = to == "HEAD" or int(status) < 200 or int(status) == 204
        body = b"" if bodiless else self._exactly(int(headers["content-length"]))
        return Answer(int(status), headers, body, version)

    def exchange(
        self,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        *,
        method: str = "POST",
        version: str = "1.1",
    ) -> Answer:
        """Send a request and read its answer."""
        self.send(request(path, body, headers, method=method, version=version))
        return self.read(to=method)

    def ended(self) -> bool:
        """Whether the other side has closed, and sent nothing more; waits for either."""
        if self._buffer:
            return False
        try:
            return not self.socket.recv(1, socket.MSG_PEEK)
        except ConnectionError:
            return True

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._buffer:
            self._more()
        end = self._buffer.index(mark) + len(mark)
        return self._take(end)

    def _exactly(self, count: int) -> bytes:
        while len(self._buffer) < count:
            self._more()
        return self._take(count)

    def _take(self, count: int) -> bytes:
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    def _more(self) -> None:
        data = self.socket.recv(65_536)
        if not data:
            raise EOFError(f"closed in the middle of an answer, after {bytes(self._buffer)!r}")
        self._buffer += data
