"""The apps beside /x/: what they answer, to the letter."""

import asyncio
import json
from typing import Any

import pytest

from tollgate.processes.status import App, Receive, Scope, Send, metrics_app, public_app


def get(app: App, path: str, *given: tuple[bytes, bytes]) -> tuple[int, dict[bytes, bytes], bytes]:
    """Call an app as uvicorn does."""
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run(_call(app, {"type": "http", "path": path, "headers": given}, _nothing_comes, send))
    start, body = sent
    assert (start["type"], body["type"]) == ("http.response.start", "http.response.body")
    headers = dict(start["headers"])
    assert headers[b"content-length"] == b"%d" % len(body["body"])
    return start["status"], headers, body["body"]


def knock(app: App, path: str) -> list[dict[str, Any]]:
    """Open a WebSocket; return what is sent."""
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run(_call(app, {"type": "websocket", "path": path, "headers": ()}, _nothing_comes, send))
    return sent


async def refusing(_scope: Scope, _receive: Receive, _send: Send) -> None:
    raise AssertionError("nothing belongs to it")


async def _nothing_comes() -> dict[str, Any]:
    raise AssertionError("no body is read")


async def _call(app: App, *arguments: Any) -> None:
    await app(*arguments)


def test_healthz_shows_that_the_process_answers_ready_or_not() -> None:
    for why in (None, "the store cannot be reached"):
        status, headers, body = get(public_app(lambda why=why: why), "/healthz")  # type: ignore[misc]
        assert (status, json.loads(body)) == (200, {"status": "ok"})
        assert headers[b"content-type"] == b"application/json"


def test_readyz_shows_that_work_can_be_done() -> None:
    status, headers, body = get(public_app(lambda: None), "/readyz")
    assert (status, json.loads(body)) == (200, {"status": "ready"})
    assert headers[b"content-type"] == b"application/json"


def test_readyz_shows_why_it_cannot() -> None:
    status, _, body = get(public_app(lambda: "the store cannot be reached"), "/readyz")
    assert status == 503
    assert json.loads(body) == {"status": "not ready", "reason": "the store cannot be reached"}


def test_what_is_no_question_about_health_belongs_to_the_rest() -> None:
    async def rest(scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 207, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"no"})

    app = public_app(lambda: None, rest)
    assert [get(app, path)[0] for path in ("/healthz", "/readyz", "/", "/metrics")] == [200, 200, 207, 207]


@pytest.mark.parametrize(
    ("path", "served"), [("/x/eth/mainnet", True), ("/x", False), ("/", False), ("/healthz", False)]
)
def test_websockets_are_served_below_x_and_closed_elsewhere(path: str, served: bool) -> None:
    async def sockets(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "websocket.accept"})

    accepted = [{"type": "websocket.accept" if served else "websocket.close"}]
    assert knock(public_app(lambda: None, sockets=sockets), path) == accepted
    # A node that is no gateway has none.
    assert knock(public_app(lambda: None, refusing), path) == [{"type": "websocket.close"}]


@pytest.mark.parametrize("path", ["/", "/metrics", "/healthz/", "/x", "/api/v1/teams"])
def test_other_paths_are_a_problem(path: str) -> None:
    status, headers, body = get(public_app(lambda: None), path)
    assert status == 404
    assert headers[b"content-type"] == b"application/problem+json"
    problem = json.loads(body)
    assert (problem["type"], problem["title"], problem["status"]) == ("about:blank", "Not Found", 404)
    assert "/x/<family>/<network>" in problem["detail"]


def test_metrics_are_rendered_when_requested() -> None:
    app = metrics_app(lambda: b"tollgate_connections 1\n", "text/plain; version=1.0.0")
    status, headers, body = get(app, "/metrics")
    assert (status, body) == (200, b"tollgate_connections 1\n")
    assert headers[b"content-type"] == b"text/plain; version=1.0.0"
    assert get(app, "/")[0] == 404


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/nowhere"])
def test_every_answer_has_a_request_id(path: str) -> None:
    app = public_app(lambda: None)
    assert get(app, path, (b"x-request-id", b"mine-1"))[1][b"x-request-id"] == b"mine-1"
    made = {get(app, path, (b"x-request-id", bad))[1][b"x-request-id"] for bad in (b"", b"a b", b"x" * 129)}
    assert len(made) == 3
    assert all(len(each) == 24 and each.isalnum() for each in made)
