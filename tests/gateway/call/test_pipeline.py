"""One request, top to bottom: the order of checks, calls, batches and what each is answered."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.gateway.callers import TEAM, TOKEN, call, digest, reason, request, token_grant, with_token
from tests.gateway.calls import answer, send
from tests.gateway.fake_gateway import FakeGateway, open_gateway
from tests.gateway.fake_node import echo, http

from tollgate.core.methods import Policy
from tollgate.core.models import Team
from tollgate.errors import BodyTooLarge
from tollgate.gateway.messages import Answer
from tollgate.shm import metrics

CALL = b'{"jsonrpc":"2.0","id":1,"method":"eth_chainId","params":[]}'


# --- One call ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call_id", ["1", "-7", "0", '"a"', '""', "12345678901234567890123", '"\\u0031"', "-0"])
async def test_id_comes_back_byte_for_byte(call_id: str, gateway: FakeGateway) -> None:
    gateway.echo()
    for _ in range(2):
        body = b'{"jsonrpc":"2.0","method":"eth_chainId","id":%b}' % call_id.encode()
        got = await answer(gateway, with_token(body))
        assert got.status == 200
        assert got.body == b'{"jsonrpc":"2.0","id":%b,"result":["eth_chainId", []]}' % call_id.encode()


async def test_null_id_is_answered_under_null(gateway: FakeGateway) -> None:
    gateway.echo()
    status, reply = await send(gateway, call(None))
    assert status == 200
    assert reply == {"jsonrpc": "2.0", "id": None, "result": ["eth_chainId", []]}


@pytest.mark.parametrize("node", [echo, lambda _: http(b"<html>")], ids=["answered", "failed"])
async def test_notification_is_answered_204_and_is_still_sent_and_metered(node: Callable[[bytes], bytes]) -> None:
    gateway = await open_gateway(node=node)
    gateway.store.tokens[digest(TOKEN)] = token_grant(requests_per_second=5)
    got = await answer(gateway, with_token(b'{"jsonrpc":"2.0","method":"eth_chainId"}'))
    assert got == Answer(204, b"")
    assert len(gateway.loop.transports) == (1 if node is echo else 2)
    assert gateway.meters.taken == [("tok_1", 1)]
    assert gateway.counted(metrics.REFUSALS, "upstream_error") == (node is not echo)


@pytest.mark.parametrize(
    ("params", "sent"), [({}, []), ({"params": None}, []), ({"params": [1, {"a": 2}]}, [1, {"a": 2}])]
)
async def test_params_are_passed_on(params: dict[str, Any], sent: object, gateway: FakeGateway) -> None:
    gateway.echo()
    assert (await send(gateway, call(1, **params)))[1]["result"] == ["eth_chainId", sent]
    assert (await send(gateway, call(1, params={"a": 1})))[1]["result"] == ["eth_chainId", {"a": 1}]


async def test_what_goes_upstream_is_rebuilt(gateway: FakeGateway) -> None:
    body = b'{"extra":1, "method":"eth_call","Method":"admin_x", "id":1 ,"jsonrpc":"2.0","params":[ 1 ]}'
    await answer(gateway, with_token(body))
    sent = gateway.loop.transports[0].take().partition(b"\r\n\r\n")[2]
    assert json.loads(sent) == {"jsonrpc": "2.0", "id": 1, "method": "eth_call", "params": [1]}


async def test_nodes_own_error_passes_unchanged_with_200() -> None:
    error = b'{"code":3,"message":"execution reverted","data":"0x08c3"}'
    gateway = await open_gateway(node=lambda _: http(b'{"jsonrpc":"2.0","id":1,"error":%b}' % error))
    got = await answer(gateway, with_token(CALL))
    assert got == Answer(200, b'{"jsonrpc":"2.0","id":1,"error":%b}' % error)
    assert gateway.counted(metrics.CALLS, "eth", "mainnet", "eth_chainId", "node_error") == 1


@pytest.mark.parametrize("call_id", ["mine", 0, None])
async def test_upstream_failure_is_reported_under_the_callers_id(call_id: object) -> None:
    gateway = await open_gateway(node=lambda _: http(b"<html>"))
    status, reply = await send(gateway, call(call_id))
    assert status == 502
    assert reply["id"] == call_id
    assert reason(reply) == "upstream_error"
    assert gateway.counted(metrics.CALLS, "eth", "mainnet", "eth_chainId", "upstream_error") == 1
    assert gateway.counted(metrics.REFUSALS, "upstream_error") == 1


# --- The order of checks -----------------------------------------------------------------------------------


async def test_first_check_that_applies_answers(gateway: FakeGateway) -> None:
    async def reason_for(body: bytes) -> str:
        incoming = with_token(body)
        return reason(json.loads((await answer(gateway, incoming)).body))

    incoming = request(b"nonsense")
    incoming.refusal = BodyTooLarge()
    assert reason(json.loads((await answer(gateway, incoming)).body)) == "body_too_large"
    assert reason(json.loads((await answer(gateway, request(b"nonsense"))).body)) == "token_missing"
    key = digest(TOKEN)
    capped = Team("team_1", "acme", 1, gateway.wall() + 60)
    gateway.store.tokens[key] = token_grant(capped)
    assert await reason_for(b"nonsense") == "spending_cap"
    gateway.directory.tokens.clear()
    gateway.store.tokens[key] = token_grant(Team("team_1", "acme", 1))
    assert await reason_for(b"nonsense") == "parse_error"
    assert await reason_for(b"nonsense") == "rate_limited"
    gateway.directory.tokens.clear()
    gateway.store.tokens[key] = token_grant(Team("team_9", "acme", 2), networks=("eth/sepolia",))
    assert await reason_for(b"[" + b",".join([b"1"] * 101) + b"]") == "batch_too_large"
    assert await reason_for(b"[" + b",".join([CALL] * 3) + b"]") == "rate_limited"
    gateway.clock.advance(10)
    assert await reason_for(CALL) == "network_not_allowed"


@pytest.mark.parametrize(
    ("body", "status", "slug"),
    [
        (b"", 400, "parse_error"),
        (b"{", 400, "parse_error"),
        (b"\xff", 400, "parse_error"),
        (b"1", 400, "invalid_request"),
        (b"[]", 400, "invalid_request"),
        (b'{"id":7}', 400, "invalid_request"),
        (b'{"jsonrpc":"1.0","id":7,"method":"x"}', 400, "invalid_request"),
        (b'{"jsonrpc":"2.0","id":7,"method":"x","params":1}', 400, "invalid_request"),
        (b'{"jsonrpc":"2.0","id":{},"method":"x"}', 400, "invalid_request"),
    ],
)
async def test_malformed_request_is_one_error(body: bytes, status: int, slug: str, gateway: FakeGateway) -> None:
    got, reply = await send(gateway, body)
    assert got == status
    assert reason(reply) == slug
    assert reply["id"] == (7 if b'"id":7' in body else None)
    assert gateway.counted(metrics.REFUSALS, slug) == 1
    assert gateway.loop.transports == []


# --- Policy ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method", ["admin_peers", "Admin_peers", "engine_x", "personal_sign", "eth_denied", "net_version"]
)
async def test_method_that_may_not_be_called_is_refused_under_the_id(method: str) -> None:
    gateway = await open_gateway(policy=Policy(("eth_*",), ("eth_denied",)))
    for _ in range(2):
        status, reply = await send(gateway, call("a", method))
        assert status == 403
        assert reply["id"] == "a"
        assert reply["error"]["code"] == -32601
        assert reason(reply) == "method_not_allowed"
    assert gateway.loop.transports == []
    label = gateway.network.catalogue.label(method)
    assert gateway.counted(metrics.CALLS, "eth", "mainnet", label, "method_not_allowed") == 2
    assert (await send(gateway, call(1)))[0] == 200


async def test_lists_of_a_token_bind_that_token_alone(gateway: FakeGateway) -> None:
    assert (await send(gateway, call(1, "eth_call")))[0] == 200
    gateway.directory.tokens.clear()
    gateway.store.tokens[digest(TOKEN)] = token_grant(TEAM, methods=("eth_get*",))
    for _ in range(2):
        assert reason((await send(gateway, call(1, "eth_call")))[1]) == "method_not_allowed"
        assert (await send(gateway, call(1, "eth_getCode")))[0] == 200
    batch = (await send(gateway, [call(1, "eth_getCode"), call(2, "eth_call")]))[1]
    assert ["result" in each for each in batch] == [True, False]
