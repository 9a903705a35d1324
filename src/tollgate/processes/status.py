"""The ASGI apps beside `/x/`: health and readiness on the public port, metrics on their own.

`/healthz` reports that the process answers, `/readyz` that it can do its work. Metrics are never served on the
public port: they show what an operator's customers do.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

import msgspec

from tollgate.gateway.http.request import REQUEST_ID

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_JSON = b"application/json"
# As the management API calls them, which answers everything else beside `/x/`.
_REASONS = {
    404: "not_found",
    408: "request_timeout",
    413: "body_too_large",
    502: "bad_gateway",
    503: "unavailable",
    504: "gateway_timeout",
}


def public_app(
    why_not_ready: Callable[[], str | None], rest: App | None = None, sockets: App | None = None
) -> App:
    """The app of the public port. Other paths than health and readiness belong to `rest`, where it is given.

    WebSockets under `/x/` belong to `sockets`; there are no others.
    """

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if scope["type"] == "websocket":
            if sockets is not None and path.startswith("/x/"):
                await sockets(scope, receive, send)
            else:
                await send({"type": "websocket.close"})
        elif path == "/healthz":
            await _answer(send, request_id(scope), 200, _JSON, msgspec.json.encode({"status": "ok"}))
        elif path == "/readyz":
            why = why_not_ready()
            body = {"status": "ready"} if why is None else {"status": "not ready", "reason": why}
            await _answer(send, request_id(scope), 200 if why is None else 503, _JSON, msgspec.json.encode(body))
        elif rest is not None:
            await rest(scope, receive, send)
        else:
            await problem(send, request_id(scope), 404, "Endpoints are under /x/<family>/<network>.")

    return app


def metrics_app(render: Callable[[], bytes], content_type: str) -> App:
    async def app(scope: Scope, _receive: Receive, send: Send) -> None:
        if scope["path"] == "/metrics":
            await _answer(send, request_id(scope), 200, content_type.encode(), render())
        else:
            await problem(
                send, request_id(scope), 404, "Only /metrics is here: calls and the API are at server.port."
            )

    return app


async def problem(send: Send, identity: bytes, status: int, detail: str, *headers: tuple[bytes, bytes]) -> None:
    """Answer with problem details (RFC 9457); `identity` is the request's id."""
    body = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "reason": _REASONS.get(status, "internal_error"),
        "request_id": identity.decode("ascii"),
    }
    await _answer(send, identity, status, b"application/problem+json", msgspec.json.encode(body), *headers)


def request_id(scope: Scope) -> bytes:
    """The id that a caller gave its request, where it is well-formed, or a new one."""
    given: bytes = dict(scope.get("headers", ())).get(b"x-request-id", b"")
    return given if REQUEST_ID.fullmatch(given) else secrets.token_hex(12).encode()


async def _answer(
    send: Send, identity: bytes, status: int, content_type: bytes, body: bytes, *more: tuple[bytes, bytes]
) -> None:
    headers = [
        (b"content-type", content_type),
        (b"content-length", b"%d" % len(body)),
        (b"x-request-id", identity),
        *more,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
