"""A web site of the test's own, by HTTPS: one server for all names, each with its proof or without one."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from .ports import LOOPBACK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .certs import Certificate

PROOF_PATH = "/.well-known/tollgate.txt"


class Site(ThreadingHTTPServer):
    """A running site. `proofs` is what each name answers at the path of proofs; others answer 404."""

    daemon_threads = False  # so that closing waits for them

    def __init__(self, certificate: Certificate) -> None:
        self.proofs: dict[str, str] = {}
        super().__init__((LOOPBACK, 0), _Page)
        # The handshake is left to the thread of each connection: a slow client delays no other.
        self.socket = certificate.server_context().wrap_socket(
            self.socket, server_side=True, do_handshake_on_connect=False
        )

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.server_address[1])

    def handle_error(self, request: object, client_address: object) -> None:
        """Keep quiet: the other side may leave whenever it likes."""


class _Page(BaseHTTPRequestHandler):
    server: Site
    timeout = 20.0

    def do_GET(self) -> None:
        name = self.headers.get("Host", "").partition(":")[0]
        body = self.server.proofs.get(name) if self.path == PROOF_PATH else None
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Length", str(len(body or "")))
        self.end_headers()
        self.wfile.write((body or "").encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Keep quiet."""


@contextmanager
def site(certificate: Certificate) -> Iterator[Site]:
    """Run a site on a free loopback port."""
    with Site(certificate) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
