"""Malformed bodies, at every endpoint that takes one: a clear error, never a 500."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pytest
from tests.control.api.caller import Api, Json, reason

from tollgate.control.app import control_app

JSON = {"Content-Type": "application/json"}
NESTED = b"[" * 100_000

NO_JSON = {
    "nothing but a brace": b"{",
    "trailing": b'{"name": "ci"} x',
    "invalid UTF-8": b'{"name": "\xff"}',
    "UTF-16": '{"name": "ci"}'.encode("utf-16"),
    "byte order mark": b'\xef\xbb\xbf{"name": "ci"}',
    "lone surrogate": b'{"%s": "\\ud800"}',
    "NaN": b'{"%s": NaN}',
}
NO_OBJECT = {
    "array": b"[]",
    "null": b"null",
    "text": b'"name"',
    "number": b"1e999",
    "nested arrays": NESTED + b"]" * 100_000,
}


def taking(api: Api) -> Iterator[tuple[str, str, Json, Json]]:
    """Every endpoint that takes JSON: method, path, its body and the body's schema."""
    schemas = api.document["components"]["schemas"]
    for path, methods in api.document["paths"].items():
        for method, operation in methods.items():
            body = operation.get("requestBody", {})
            content = body.get("content", {}).get("application/json")
            if content is not None:
                filled = path.removeprefix("/api/v1").format(
                    team="acme",
                    token="tok_x",
                    domain="dom_x",
                    member="mem_owner",
                    invitation="inv_x",
                    login="log_x",
                    name="acme",
                )
                yield method.upper(), filled, body, schemas[content["schema"]["$ref"].rpartition("/")[2]]


def refused(api: Api, method: str, path: str, content: Any, headers: dict[str, str]) -> Json:
    answer = api.request(method, path, content=content, headers=headers)
    assert reason(answer) == (400, "invalid_request"), (method, path, content[:60])
    body: Json = answer.json()
    return body


@pytest.mark.parametrize("kind", NO_JSON)
def test_invalid_json_is_refused(api: Api, kind: str) -> None:
    for method, path, _, schema in taking(api):
        name = next(iter(schema["properties"]), "name")
        problem = refused(api, method, path, NO_JSON[kind].replace(b"%s", name.encode()), JSON)
        assert "JSON" in problem["detail"] or "field" in problem


@pytest.mark.parametrize("kind", NO_OBJECT)
def test_body_that_is_not_an_object_is_refused(api: Api, kind: str) -> None:
    for method, path, _, _ in taking(api):
        assert "JSON object" in refused(api, method, path, NO_OBJECT[kind], JSON)["detail"]


def test_unknown_member_is_refused_by_name_with_the_known_ones(api: Api) -> None:
    for method, path, _, schema in taking(api):
        problem = refused(api, method, path, b'{"nome\\u0000": 1}', JSON)
        assert problem["field"] == "nome\0"
        for known in schema["properties"]:
            assert f"`{known}`" in problem["detail"]
        assert len(refused(api, method, path, b'{"%s": 1}' % (b"x" * 5_000), JSON)["detail"]) < 500


def test_missing_member_is_named(api: Api) -> None:
    tried = 0
    for method, path, _, schema in taking(api):
        for name in schema.get("required", [])[:1]:
            assert refused(api, method, path, b"{}", JSON)["field"] == name
            tried += 1
    assert tried > 5


def test_member_of_a_wrong_type_is_named(api: Api) -> None:
    for method, path, _, schema in taking(api):
        example = {name: member["examples"][0] for name, member in schema["properties"].items()}
        wrong: Any
        for name in schema["properties"]:
            for wrong in ({"a": {}}, [[]]):
                problem = refused(api, method, path, msgspec.json.encode(example | {name: wrong}), JSON)
                assert [error["field"] for error in problem["errors"]] == [problem["field"]] == [name]
            body = b'{"%s": %s' % (name.encode(), NESTED)
            assert "JSON" in refused(api, method, path, body, JSON)["detail"]


def test_empty_body_is_refused_where_one_is_needed(api: Api) -> None:
    for method, path, body, _ in taking(api):
        answer = api.request(method, path, content=b"")
        if body["required"]:
            assert reason(answer) == (400, "invalid_request")
        else:
            # What the path names is missing, or the team's webhook: the body itself was accepted.
            assert answer.json().get("reason") == "not_found" or answer.json()["field"] == "alert_webhook"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Content-Type": ""},
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "multipart/form-data"},
        {"Content-Type": "application/json", "Content-Encoding": "gzip"},
    ],
)
def test_body_of_another_kind_is_refused(api: Api, headers: dict[str, str]) -> None:
    for method, path, _, _ in taking(api):
        answer = api.request(method, path, content=b'{"name": "ci"}', headers=headers)
        assert reason(answer) == (415, "unsupported_media_type"), (method, path)


def test_media_type_is_read_with_its_parameters_in_any_case(api: Api) -> None:
    headers = {"Content-Type": "Application/JSON; charset=utf-8"}
    assert api.request("PATCH", "/me", content=b'{"name": "Ada"}', headers=headers).status_code == 200


def test_body_that_is_too_large_is_refused(api: Api) -> None:
    large = b'{"name": "%s"}' % (b"x" * 300_000)

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(large), 65_536):
            yield large[start : start + 65_536]

    for method, path, _, _ in taking(api):
        for content in (large, pieces()):
            answer = api.request(method, path, content=content, headers=JSON)
            assert reason(answer) == (413, "body_too_large"), (method, path)


@pytest.mark.parametrize("path", ["/api/v1/oauth/token", "/console/sign-in"])
def test_client_that_disconnects_within_its_body_is_no_defect(api: Api, path: str) -> None:
    """Answered with 400, which no client reads: a 500 would be logged with a trace."""
    events = iter([{"type": "http.request", "body": b"grant_", "more_body": True}, {"type": "http.disconnect"}])
    statuses: list[int] = []

    async def receive() -> Any:
        return next(events)

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    headers = [(b"content-type", b"application/x-www-form-urlencoded"), (b"sec-fetch-site", b"same-origin")]
    scope: Any = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": headers,
        "client": ("203.0.113.1", 5_000), "server": ("gate", 80), "state": {}, "extensions": {},
    }  # fmt: skip
    api.harness.do(control_app(api.harness.plane)(scope, receive, send))
    assert statuses == [400]


def test_body_is_not_read_without_a_credential(api: Api) -> None:
    for method, path, _, _ in taking(api):
        assert reason(api.request(method, path, who=None, content=b"{")) == (401, "not_logged_in")
