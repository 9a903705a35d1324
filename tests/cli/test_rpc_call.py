"""`tollgate rpc call` and `tollgate api`: what is sent, what is printed, and how they end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Api, Tool

TOKEN: dict[str, Any] = {
    "id": "tok_1",
    "name": "call",
    "prefix": "tg_01234",
    "secret": "tg_secret",
    "created_at": "2026-11-15T06:44:44Z",
    "created_by": "ann@example.com",
}


def test_api_prints_what_the_server_answers(api: Api, acme: Tool) -> None:
    api.on("GET", "teams/acme", {"id": "team_1", "name": "acme"})
    ran = acme.run("api", "get", "teams/acme")
    assert (ran.code, ran.json) == (0, {"id": "team_1", "name": "acme"})
    api.on("PATCH", "teams/acme", {"id": "team_1", "name": "new"})
    assert acme.run("api", "PATCH", "/api/v1/teams/acme", "--data", '{"name": "new"}').json["name"] == "new"
    assert api.requests[1].json == {"name": "new"}


@pytest.mark.parametrize(("status", "code"), [(404, 3), (403, 5), (422, 1)])
def test_api_ends_as_the_other_commands_do(api: Api, acme: Tool, status: int, code: int) -> None:
    api.problem("DELETE", "teams/acme", status, "no", "Words.")
    ran = acme.run("api", "DELETE", "teams/acme")
    assert (ran.code, ran.json["detail"], ran.err) == (code, "Words.", f"HTTP {status}\n")


@pytest.mark.parametrize("arguments", [("GET", "a b"), ("POST", "teams", "--data", "{bad"), ("FETCH", "teams")])
def test_api_refuses_an_invalid_request(acme: Tool, arguments: tuple[str, ...]) -> None:
    assert acme.run("api", *arguments).code == 2


def test_an_api_token_in_the_variable_is_distinguished(acme: Tool) -> None:
    ran = acme.run("teams", "list", env={"TOLLGATE_TOKEN": "tg_0123456789"})
    assert ran.code == 4
    assert "is an API token (tg_…), which is for calls to /x/" in ran.err


def test_a_call_prints_its_result_and_who_answered_and_makes_no_token(api: Api, acme: Tool) -> None:
    headers = {"X-Tollgate-Upstream": "alpha", "X-Tollgate-Cache": "miss", "X-Request-Id": "r1"}
    api.on("POST", "teams/acme/playground", {"secret": "tg_secret", "expires_at": "2026-11-15T06:59:44Z"})
    api.on("POST", "/x/eth/mainnet", {"jsonrpc": "2.0", "id": 1, "result": "0x2a"}, headers=headers)
    ran = acme.run("rpc", "call", "eth/mainnet", "eth_getBalance", "0xab", "latest", '{"a": [1]}')
    assert (ran.code, ran.json) == (0, "0x2a")
    assert ran.err.endswith(" ms, HTTP 200, cache miss, upstream alpha, request r1\n")
    sent = api.requests[1]
    assert (sent.json["params"], sent.bearer) == (["0xab", "latest", {"a": [1]}], "tg_secret")


def test_a_call_that_ends_in_an_error_exits_with_1(api: Api, acme: Tool) -> None:
    error = {"code": -32601, "message": "no such method"}
    api.on("POST", "/x/eth/mainnet", {"jsonrpc": "2.0", "id": 1, "error": error})
    ran = acme.run("rpc", "call", "eth/mainnet", "eth_nope", "--token", "tg_mine")
    assert (ran.code, ran.json) == (1, error)
    assert api.requests[0].bearer == "tg_mine"


def test_an_invalid_answer_is_reported_as_such(api: Api, acme: Tool) -> None:
    api.on("POST", "/x/eth/mainnet", ["not", "an", "answer"])
    ran = acme.run("rpc", "call", "eth/mainnet", "eth_chainId", "--token", "tg_mine")
    assert ran.code == 1
    assert "without a JSON-RPC response" in ran.err
