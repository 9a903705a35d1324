"""A small node on loopback that answers as its test sets it."""

from __future__ import annotations

import http.server
import json
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCK = {"number": "0x3e8", "hash": "0x" + "ab" * 32, "parentHash": "0x" + "cd" * 32}
ANSWERS: dict[str, Any] = {
    "eth_chainId": {"result": "0x1"},
    "eth_syncing": {"result": False},
    "eth_getBlockByNumber": {"result": BLOCK},
    "eth_getBalance": {"result": "0x0"},
}
NO_SUCH_METHOD = {"error": {"code": -32601, "message": "the method does not exist/is not available"}}
BAD_PARAMS = {"error": {"code": -32602, "message": "invalid params"}}


@contextmanager
def node(*, status: int = 200, **answers: Any) -> Iterator[str]:
    """Serve; methods that no answer is given for complain of their params."""
    known = {**ANSWERS, **answers}

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            answer = known.get(request["method"], BAD_PARAMS)
            body = json.dumps({"jsonrpc": "2.0", "id": request["id"], **answer}).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
