"""The simulated node over ASGI: paths, framing, batches, notifications, refusals."""

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollgate.demo.chain import BLOCK_SECONDS
from tollgate.demo.node import SimulatedNode, respond

GENESIS = 1_800_000_000
HEAD = 5_001
NOW = GENESIS + HEAD * BLOCK_SECONDS + 0.5
NODE = SimulatedNode(lambda: NOW, GENESIS)
ETH = NODE.networks["/eth/mainnet"]


def post(
    path: str, *parts: bytes, method: str = "POST", node: SimulatedNode = NODE
) -> tuple[int, dict[str, str], bytes]:
    """Send a body in one or more parts; return status, headers and body."""
    incoming = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    incoming.append({"type": "http.request", "body": b"", "more_body": False})
    sent: list[Any] = []

    async def receive() -> Any:
        return incoming.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(node({"type": "http", "method": method, "path": path}, receive, send))
    start, end = sent
    headers = {name.decode(): value.decode() for name, value in start["headers"]}
    return start["status"], headers, end["body"]


def answer(body: bytes) -> Any:
    found = respond(ETH, body, NOW)
    return None if found is None else msgspec.json.decode(found)


def code(body: bytes) -> Any:
    return answer(body)["error"]["code"]


@pytest.mark.parametrize(
    "path",
    [
        "/eth/mainnet",
        "/eth/sepolia",
        "/starknet/mainnet",
        "/starknet/sepolia",
        "/eth/mainnet/",
        "/starknet/mainnet/rpc/v0_8",
        "/starknet/mainnet/rpc/v0_9",
        "/starknet/sepolia/rpc/v0_10/",
    ],
)
def test_every_network_answers_and_notes_that_it_is_simulated(path: str) -> None:
    family = path.split("/")[1]
    status, headers, body = post(path, b'{"jsonrpc":"2.0","id":1,"method":"%s_blockNumber"}' % family.encode())
    assert status == 200
    assert headers["x-simulated-chain"] == "1"
    assert headers["content-type"] == "application/json"
    assert headers["content-length"] == str(len(body))
    assert msgspec.json.decode(body)["result"] == (hex(HEAD) if family == "eth" else HEAD)


def test_a_body_may_come_in_parts() -> None:
    status, _, body = post("/eth/mainnet", b'{"jsonrpc":"2.0",', b'"id":1,"method":"eth_chainId"}')
    assert (status, body) == (200, b'{"jsonrpc":"2.0","id":1,"result":"0x1"}')


def test_unknown_paths_and_methods_are_refused() -> None:
    assert post("/eth/holesky", b"{}")[0] == 404
    assert post("/", b"{}")[0] == 404
    assert post("/starknet/mainnet/rpc/v0_7", b"{}")[0] == 404
    assert post("/starknet/mainnet/rpc", b"{}")[0] == 404
    assert post("/eth/mainnet/rpc/v0_9", b"{}")[0] == 404
    assert post("/eth/mainnet", method="GET")[0] == 405


def test_a_body_over_the_limit_is_refused() -> None:
    assert post("/eth/mainnet", *[b" " * 1024 * 1024] * 6)[0] == 413


def test_the_clock_is_read_for_each_request() -> None:
    moment = [float(NOW)]
    node = SimulatedNode(lambda: moment[0])
    call = b'{"jsonrpc":"2.0","id":1,"method":"eth_blockNumber"}'
    before = msgspec.json.decode(post("/eth/mainnet", call, node=node)[2])["result"]
    moment[0] += BLOCK_SECONDS
    after = msgspec.json.decode(post("/eth/mainnet", call, node=node)[2])["result"]
    assert int(after, 16) == int(before, 16) + 1


@pytest.mark.parametrize(
    "call_id", [b"1", b'"a"', b"null", b"1.50", b"123456789012345678901234567890", b'"\\u00e9"']
)
def test_ids_come_back_byte_for_byte(call_id: bytes) -> None:
    found = respond(ETH, b'{"jsonrpc":"2.0","id":%s,"method":"eth_chainId"}' % call_id, NOW)
    assert found == b'{"jsonrpc":"2.0","id":%s,"result":"0x1"}' % call_id


def test_null_is_a_result_and_errors_have_none() -> None:
    nowhere = "0x" + "00" * 32
    found = answer(
        b'{"jsonrpc":"2.0","id":1,"method":"eth_getTransactionByHash","params":["%s"]}' % nowhere.encode()
    )
    assert found == {"jsonrpc": "2.0", "id": 1, "result": None}
    failed = answer(b'{"jsonrpc":"2.0","id":1,"method":"eth_mine"}')
    assert failed.keys() == {"jsonrpc", "id", "error"}
    assert failed["error"].keys() == {"code", "message"}


def test_a_batch_is_answered_in_order_without_its_notifications() -> None:
    found = answer(
        b'[{"jsonrpc":"2.0","id":2,"method":"eth_chainId"}, {"jsonrpc":"2.0","method":"eth_chainId"},'
        b' 7, {"jsonrpc":"2.0","id":1,"method":"eth_mine"}]'
    )
    assert [one["id"] for one in found] == [2, None, 1]
    assert [one.get("error", {}).get("code") for one in found] == [None, -32600, -32601]


def test_a_batch_of_one_is_answered_as_a_batch() -> None:
    assert isinstance(answer(b' [{"jsonrpc":"2.0","id":2,"method":"eth_chainId"}]'), list)


@pytest.mark.parametrize(
    "body",
    [
        b'{"jsonrpc":"2.0","method":"eth_chainId"}',
        b'{"jsonrpc":"2.0","method":"eth_mine"}',
        b'[{"jsonrpc":"2.0","method":"eth_chainId"}]',
    ],
)
def test_notifications_alone_are_answered_204(body: bytes) -> None:
    status, headers, answered = post("/eth/mainnet", body)
    assert (status, answered) == (204, b"")
    assert "content-length" not in headers


@pytest.mark.parametrize("body", [b"", b"{bad", b'{"a":1}}', b"\xff", b'"\\ud800"', b"[" * 100_000])
def test_what_is_not_json_is_a_parse_error(body: bytes) -> None:
    assert code(body) == -32700


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"7",
        b"{}",
        b'{"jsonrpc":"2.0","id":1}',
        b'{"jsonrpc":"1.0","id":1,"method":"eth_chainId"}',
        b'{"id":1,"method":"eth_chainId"}',
        b'{"jsonrpc":"2.0","id":1,"method":7}',
        b'{"jsonrpc":"2.0","id":{},"method":"eth_chainId"}',
        b'{"jsonrpc":"2.0","id":true,"method":"eth_chainId"}',
        b"[" + b"1," * 1000 + b"1]",
    ],
)
def test_what_is_no_request_is_an_invalid_request(body: bytes) -> None:
    found = answer(body)
    assert found["error"]["code"] == -32600
    assert found["id"] is None


@given(st.binary(max_size=60))
def test_any_bytes_are_answered(body: bytes) -> None:
    found = respond(ETH, body, NOW)
    assert found is None or msgspec.json.decode(found)


def test_nesting_of_any_depth_is_answered_or_refused() -> None:
    starknet = NODE.networks["/starknet/mainnet"]
    codes = set()
    for depth in range(700, 1100):
        deep = b'{"a":' * depth + b"1" + b"}" * depth
        call = b'{"jsonrpc":"2.0","id":1,"method":"starknet_addInvokeTransaction","params":[%s]}' % deep
        found = msgspec.json.decode(respond(starknet, call, NOW) or b"")
        codes.add(found.get("error", {}).get("code"))
    assert codes <= {None, -32600, -32700}
    assert {None, -32700} <= codes


def test_subscriptions_are_unknown_over_http() -> None:
    assert code(b'{"jsonrpc":"2.0","id":1,"method":"eth_subscribe","params":["newHeads"]}') == -32601
    assert code(b'{"jsonrpc":"2.0","id":1,"method":"eth_unsubscribe","params":["0x1"]}') == -32601


def converse(path: str, *texts: str | bytes, node: SimulatedNode = NODE) -> list[Any]:
    """Send messages over a WebSocket and leave; return what came back."""
    incoming: list[Any] = [{"type": "websocket.connect"}]
    for each in texts:
        kind = "text" if isinstance(each, str) else "bytes"
        incoming.append({"type": "websocket.receive", kind: each})
    incoming.append({"type": "websocket.disconnect"})
    sent: list[Any] = []

    async def receive() -> Any:
        return incoming.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(node({"type": "websocket", "path": path}, receive, send))
    return sent


@pytest.mark.parametrize(
    ("path", "release"),
    [
        ("/starknet/mainnet", "0.10.2"),
        ("/starknet/mainnet/rpc/v0_8", "0.8.1"),
        ("/starknet/sepolia/rpc/v0_9", "0.9.0"),
        ("/starknet/sepolia/rpc/v0_10", "0.10.2"),
    ],
)
def test_calls_over_a_websocket_are_answered_by_the_version_of_its_path(path: str, release: str) -> None:
    call = '{"jsonrpc":"2.0","id":1,"method":"starknet_specVersion"}'
    accepted, *answers = converse(path, call, call.encode(), '{"jsonrpc":"2.0","method":"starknet_chainId"}')
    assert accepted == {"type": "websocket.accept"}
    expected = {"jsonrpc": "2.0", "id": 1, "result": release}
    assert [msgspec.json.decode(each["text"]) for each in answers] == [expected] * 2


@pytest.mark.parametrize(
    ("version", "tag"), [("v0_8", "pre_confirmed"), ("v0_9", "pending"), ("v0_10", "pending")]
)
def test_a_tag_of_another_version_is_refused_over_http_and_websocket(version: str, tag: str) -> None:
    path = f"/starknet/mainnet/rpc/{version}"
    call = f'{{"jsonrpc":"2.0","id":1,"method":"starknet_getBlockWithTxs","params":["{tag}"]}}'
    _, answer = converse(path, call)
    status, _, body = post(path, call.encode())
    assert status == 200
    for each in (answer["text"].encode(), body):
        assert msgspec.json.decode(each)["error"]["code"] == -32602


def test_a_subscription_is_answered_before_its_first_notification() -> None:
    call = b"""{"jsonrpc":"2.0","id":1,"method":"starknet_subscribeNewHeads",
        "params":{"block_id":{"block_number":%d}}}""" % (HEAD - 1)
    _, *texts = converse("/starknet/mainnet/rpc/v0_9", call)
    answer, *heads = [msgspec.json.decode(each["text"]) for each in texts]
    assert answer["result"] == "1"
    assert [each["params"]["result"]["block_number"] for each in heads] == [HEAD - 1, HEAD]


def test_a_websocket_at_an_unknown_path_is_refused_with_404() -> None:
    start, body = converse("/starknet/mainnet/rpc/v0_7")
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 404)
    assert b"/starknet/mainnet/rpc/v0_8" in body["body"]


def test_a_websocket_of_eth_answers_calls_and_has_no_subscriptions() -> None:
    chain_id = '{"jsonrpc":"2.0","id":1,"method":"eth_chainId"}'
    subscribe = '{"jsonrpc":"2.0","id":2,"method":"eth_subscribe","params":["newHeads"]}'
    _, *texts = converse("/eth/mainnet", chain_id, subscribe)
    first, second = [msgspec.json.decode(each["text"]) for each in texts]
    assert first["result"] == "0x1"
    assert second["error"]["code"] == -32601


def test_a_websocket_whose_client_is_gone_ends() -> None:
    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(_: Any) -> None:
        raise OSError

    asyncio.run(NODE({"type": "websocket", "path": "/eth/mainnet"}, receive, send))
