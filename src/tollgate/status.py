"""The ASGI apps beside `/x/`: health and readiness on the public port, metrics on their own.

`/healthz` says that the process answers; `/readyz` that it can do its work. Metrics never stand on the public
port: they tell what an operator's customers do.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from tollgate.gateway.intake import REQUEST_ID

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_JSON = b"application/json"


def public_app(why_not_ready: Callable[[], str | None]) -> App:
    """The app of the public port. The control plane will be mounted here."""

    async def app(scope: Scope, _receive: Receive, send: Send) -> None:
        path = scope["path"]
        if path == "/healthz":
            await _answer(scope, send, 200, _JSON, msgspec.json.encode({"status": "ok"}))
        elif path == "/readyz":
            why = why_not_ready()
            body = {"status": "ready"} if why is None else {"status": "not ready", "reason": why}
            await _answer(scope, send, 200 if why is None else 503, _JSON, msgspec.json.encode(body))
        else:
            await _not_found(scope, send, "Endpoints stand under /x/<family>/<network>.")

    return app


def metrics_app(render: Callable[[], bytes], content_type: str) -> App:
    """The app of the metrics port."""

    async def app(scope: Scope, _receive: Receive, send: Send) -> None:
        if scope["path"] == "/metrics":
            await _answer(scope, send, 200, content_type.encode(), render())
        else:
            await _not_found(scope, send, "Only /metrics is here.")

    return app


async def _not_found(scope: Scope, send: Send, detail: str) -> None:
    problem = {"type": "about:blank", "title": "Not Found", "status": 404, "detail": detail}
    await _answer(scope, send, 404, b"application/problem+json", msgspec.json.encode(problem))


async def _answer(scope: Scope, send: Send, status: int, content_type: bytes, body: bytes) -> None:
    headers = [
        (b"content-type", content_type),
        (b"content-length", b"%d" % len(body)),
        (b"x-request-id", _request_id(scope)),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _request_id(scope: Scope) -> bytes:
    given: bytes = dict(scope.get("headers", ())).get(b"x-request-id", b"")
    return given if REQUEST_ID.fullmatch(given) else secrets.token_hex(12).encode()
