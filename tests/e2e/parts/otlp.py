"""A receiver of OTLP over HTTP, as JSON: keeps the spans that it is sent, and answers as it is set to.

It takes only what the specification allows, so that what a real collector would refuse fails here too.
"""

from __future__ import annotations

import json
import re
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from .ports import LOOPBACK

if TYPE_CHECKING:
    from collections.abc import Iterator

PATH = "/v1/traces"
_TRACE_ID, _SPAN_ID = re.compile(r"[0-9a-f]{32}"), re.compile(r"[0-9a-f]{16}")
_MEMBERS = {
    "traceId", "spanId", "parentSpanId", "name", "kind", "startTimeUnixNano", "endTimeUnixNano", "attributes",
    "status",
}  # fmt: skip


@dataclass(frozen=True)
class ReceivedSpan:
    """A span, as it came."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    started: int
    ended: int
    attributes: dict[str, str | int]
    failed: bool
    resource: dict[str, str | int]


class OtlpReceiver(ThreadingHTTPServer):
    """A running receiver."""

    daemon_threads = True

    def __init__(self) -> None:
        self.spans: list[ReceivedSpan] = []
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.wrong: list[str] = []
        """What the specification does not allow."""
        self.statuses: list[int] = []
        """Answered in turn, before everything is taken."""
        self.reply = b"{}"
        self.gate: threading.Event | None = None
        """Where set, nothing is answered before it is."""
        super().__init__((LOOPBACK, 0), _Handler)

    @property
    def url(self) -> str:
        """Where spans are sent."""
        return f"http://{LOOPBACK}:{self.server_address[1]}{PATH}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Keep quiet: a service that stops leaves in the middle of a word."""

    def take(self, path: str, headers: dict[str, str], body: bytes) -> int:
        """Take a request; the status of the answer."""
        if self.gate is not None:
            self.gate.wait(30)
        self.bodies.append(body)
        self.headers.append(headers)
        if self.statuses:
            return self.statuses.pop(0)
        try:
            assert path == PATH, path
            assert headers["content-type"] == "application/json", headers
            self.spans += list(_read(json.loads(body)))
        except (AssertionError, LookupError, TypeError, ValueError) as error:
            self.wrong.append(repr(error))
            return 400
        return 200


def _read(request: dict[str, Any]) -> Iterator[ReceivedSpan]:
    assert request.keys() == {"resourceSpans"}
    for each in request["resourceSpans"]:
        resource = _attributes(each["resource"]["attributes"])
        for scope in each["scopeSpans"]:
            assert scope["scope"]["name"]
            for span in scope["spans"]:
                assert span.keys() <= _MEMBERS, span
                assert _TRACE_ID.fullmatch(span["traceId"])
                assert _SPAN_ID.fullmatch(span["spanId"])
                parent = span.get("parentSpanId", "")
                assert parent == "" or _SPAN_ID.fullmatch(parent)
                assert span["name"]
                assert span["status"].get("code", 0) in (0, 2)
                times = span["startTimeUnixNano"], span["endTimeUnixNano"]
                assert all(isinstance(time, str) for time in times), "64-bit numbers are strings"
                yield ReceivedSpan(
                    span["name"],
                    span["traceId"],
                    span["spanId"],
                    parent,
                    span["kind"],
                    int(times[0]),
                    int(times[1]),
                    _attributes(span["attributes"]),
                    span["status"].get("code") == 2,
                    resource,
                )


def _attributes(pairs: list[dict[str, Any]]) -> dict[str, str | int]:
    values: dict[str, str | int] = {}
    for pair in pairs:
        ((kind, value),) = pair["value"].items()
        assert kind in ("stringValue", "intValue")
        assert isinstance(value, str), "64-bit numbers are strings"
        assert pair["key"] not in values
        values[pair["key"]] = int(value) if kind == "intValue" else value
    return values


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: OtlpReceiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        status = self.server.take(self.path, headers, body)
        body = self.server.reply if status == 200 else b""
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the library names it
        """Keep quiet."""


@contextmanager
def otlp_receiver() -> Iterator[OtlpReceiver]:
    """Run a receiver."""
    with OtlpReceiver() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
    assert not server.wrong, server.wrong
