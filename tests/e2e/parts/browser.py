"""The system's Chromium, driven by Playwright, and pages for it on any host name.

Every name leads to this machine, so a page can live on https://app.example.com and no request leaves.
"""

from __future__ import annotations

import http.server
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from playwright.sync_api import sync_playwright

from .need import need
from .ports import LOOPBACK

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from playwright.sync_api import Browser

    from .certs import Certificate

# No sandbox: it needs privileges that containers lack. The rest keeps Chromium from talking to anyone
# on its own account, and from leaving TCP.
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@contextmanager
def chromium(hosts: Mapping[str, int] | None = None) -> Iterator[Browser]:
    """Run Chromium; `hosts` gives the ports behind https://name, other addresses keep theirs.

    Contexts should be opened with `ignore_https_errors=True`: it does not know the test's authority.
    """
    rules = [f"MAP {name}:443 {LOOPBACK}:{port}" for name, port in (hosts or {}).items()]
    rules.append(f"MAP * {LOOPBACK}")
    executable = need("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=executable,
            headless=True,
            args=[*ARGUMENTS, f"--host-resolver-rules={', '.join(rules)}"],
        )
        try:
            yield browser
        finally:
            browser.close()


class _PageServer(http.server.ThreadingHTTPServer):
    """Serves one page at every path; a browser's broken-off spare connection is no news."""

    daemon_threads = True

    def __init__(self, page: str) -> None:
        self.page = page.encode()
        super().__init__((LOOPBACK, 0), _PageHandler)

    def handle_error(self, request: object, client_address: object) -> None:
        pass


class _PageHandler(http.server.BaseHTTPRequestHandler):
    server: _PageServer

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(self.server.page)))
        self.end_headers()
        self.wfile.write(self.server.page)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@contextmanager
def served_page(page: str, certificate: Certificate | None = None) -> Iterator[int]:
    """Serve one HTML page on a loopback port, which it yields; with TLS if there is a certificate."""
    with _PageServer(page) as server:
        if certificate is not None:
            # The handshake waits for the connection's own thread: a browser opens spare connections
            # and sends nothing on them.
            server.socket = certificate.server_context().wrap_socket(
                server.socket, server_side=True, do_handshake_on_connect=False
            )
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()
