"""Tokens for some client addresses and some contracts, from outside."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from parts.memory import within_budget
from parts.raw_http import JSON, call
from parts.stack import PATH, Stack, open_stack, reason
from parts.tollgate import bearer, linux_only
from parts.upstream import result

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

MINE, OTHER = "0x" + "0a" * 20, "0x" + "0b" * 20


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    networks = ("eth/mainnet", "starknet/mainnet")
    with open_stack(tmp_path_factory.mktemp("tokens"), networks=networks) as it, within_budget(it.gateway):
        yield it


@linux_only
def test_token_works_from_its_addresses_alone(stack: Stack) -> None:
    token, row = stack.gateway.books.token(stack.team, addresses=("127.0.0.2/31",))
    headers = {**JSON, **bearer(token)}
    for _ in range(2):
        with stack.gateway.connect(source="127.0.0.2") as connection:
            assert connection.exchange(PATH, call("eth_chainId"), headers).status == 200
        answer = stack.gateway.exchange(call("eth_chainId"), token=token, headers={"X-Forwarded-For": "127.0.0.2"})
        assert (answer.status, reason(answer)) == (403, "address_not_allowed")
        assert "127.0.0.1" in answer.json()["error"]["message"]
    with pytest.raises(InvalidStatus) as refused:
        connect(f"ws://127.0.0.1:{stack.gateway.port}{PATH}", additional_headers=bearer(token)).close()
    assert refused.value.response.status_code == 403
    assert row.addresses


def test_token_reads_its_contracts_alone(stack: Stack) -> None:
    token, _ = stack.gateway.books.token(stack.team, contracts=(MINE,))
    stack.node.clear()
    assert stack.gateway.exchange(call("eth_call", {"to": MINE}, "latest"), token=token).status == 200
    assert stack.gateway.exchange(call("eth_blockNumber"), token=token).status == 200
    before = len(stack.node.received)
    tricks: list[list[object]] = [[{"to": OTHER}], [{}], [{"to": MINE}, "latest", {MINE: {"code": "0x00"}}]]
    for params in tricks:
        answer = stack.gateway.exchange(call("eth_call", *params), token=token)
        assert (answer.status, reason(answer)) == (403, "method_not_allowed")
    doubled = b'{"jsonrpc":"2.0","id":1,"method":"eth_call","params":[{"to":"%b","TO":"%b"}]}'
    assert stack.gateway.exchange(doubled % (MINE.encode(), OTHER.encode()), token=token).status == 403
    others: dict[str, list[object]] = {
        "eth_getStorageValues": [{OTHER: ["0x0"]}, "latest"],
        "eth_fillTransaction": [{"to": OTHER, "data": "0x00"}],
        # Of nodes and providers, in no catalogue.
        "erigon_getLogs": [{"address": OTHER}],
        "eth_callBundle": [{"txs": []}],
        "alchemy_getTokenMetadata": [OTHER],
    }
    for method, params in others.items():
        answer = stack.gateway.exchange(call(method, *params), token=token)
        assert (method, answer.status, reason(answer)) == (method, 403, "method_not_allowed")
        assert (
            stack.gateway.exchange(b"[%b]" % call(method, *params), token=token).json()[0]["error"]["code"]
            == -32601
        )
    batch = b"[%b,%b]" % (call("eth_getLogs", {"address": OTHER}), call("eth_getLogs", {"address": MINE}))
    answers = stack.gateway.exchange(batch, token=token).json()
    assert ["error" in each for each in answers] == [True, False]
    assert len(stack.node.received) == before + 1


OF_OTHERS: dict[str, dict[str, list[object]]] = {
    "eth": {
        "eth_getBlockReceipts": ["latest"],
        "eth_getTransactionReceipt": ["0x1"],
        "eth_getTransactionByHash": ["0x1"],
        "eth_getTransactionByBlockNumberAndIndex": ["latest", "0x0"],
        "eth_getRawTransactionByHash": ["0x1"],
        "debug_getRawReceipts": ["latest"],
        "debug_getRawBlock": ["latest"],
        "eth_getBlockAccessList": ["latest"],
        "eth_getBlockByNumber": ["latest", True],
        "eth_getBalance": [OTHER, "latest"],
        "debug_traceTransaction": ["0x1"],
        "debug_traceBlockByNumber": ["latest"],
        "trace_block": ["latest"],
        "trace_transaction": ["0x1"],
        "ots_getBlockTransactions": [1, 0, 1],
        "txpool_content": [],
        "eth_newPendingTransactionFilter": [True],
        "eth_sendRawTransaction": ["0x00"],
    },
    "starknet": {
        "starknet_getStateUpdate": ["latest"],
        "starknet_getBlockWithReceipts": ["latest"],
        "starknet_getBlockWithTxs": ["latest"],
        "starknet_getTransactionReceipt": ["0x1"],
        "starknet_traceTransaction": ["0x1"],
        "starknet_traceBlockTransactions": ["latest"],
        "starknet_simulateTransactions": ["latest", [], []],
        "starknet_getStorageProof": ["latest"],
        "starknet_addInvokeTransaction": [{}],
        "starknet_addDeclareTransaction": [{}],
        "starknet_addDeployAccountTransaction": [{}],
    },
}


@pytest.mark.parametrize("family", OF_OTHERS)
def test_token_for_contracts_reads_nothing_of_others_and_sends_nothing(stack: Stack, family: str) -> None:
    token, _ = stack.gateway.books.token(stack.team, contracts=(MINE,))
    path = f"/x/{family}/mainnet"
    stack.node.clear()
    for method, params in OF_OTHERS[family].items():
        body = call(method, *params)
        answer = stack.gateway.exchange(body, token=token, path=path)
        assert (method, answer.status, reason(answer)) == (method, 403, "method_not_allowed")
        batch = stack.gateway.exchange(b"[%b]" % body, token=token, path=path).json()
        assert batch[0]["error"]["data"]["reason"] == "method_not_allowed"
    assert stack.node.received == []
    url = f"ws://127.0.0.1:{stack.gateway.port}{path}"
    with connect(url, additional_headers=bearer(token)) as socket:
        for method, params in OF_OTHERS[family].items():
            socket.send(call(method, *params).decode())
            assert json.loads(socket.recv(timeout=30))["error"]["data"]["reason"] == "method_not_allowed"
    assert stack.node.received == []


def test_filter_of_another_token_is_out_of_reach_of_one_for_contracts(stack: Stack) -> None:
    books, node = stack.gateway.books, stack.node
    bound = [books.token(stack.team, contracts=(MINE,))[0] for _ in range(2)]
    node.clear()
    node.on("eth_newFilter", result("0xabc"))

    def known(token: str, made: str) -> bool:
        """Whether the node is called with the id that it gave out."""
        node.received.clear()
        for body in (call("eth_getFilterLogs", made), b"[%b]" % call("eth_getFilterChanges", made)):
            stack.gateway.exchange(body, token=token)
        bodies = node.bodies("eth_getFilterLogs") + node.bodies("eth_getFilterChanges")
        found = [each["params"][0] == "0xabc" for each in bodies]
        assert found in ([True] * 2, [False] * 2)
        return all(found)

    of_team = stack.exchange(call("eth_newFilter", {})).json()["result"]
    own = stack.gateway.exchange(call("eth_newFilter", {"address": MINE}), token=bound[0]).json()["result"]
    assert known(stack.token, of_team)
    assert known(bound[0], own)
    for token, made in ((bound[0], of_team), (bound[1], of_team), (bound[1], own), (stack.token, own)):
        assert not known(token, made)


def test_token_follows_its_contracts_alone_however_the_subscription_is_written(stack: Stack) -> None:
    token, _ = stack.gateway.books.token(stack.team, contracts=(MINE,))
    url = f"ws://127.0.0.1:{stack.gateway.port}{PATH}"
    with connect(url, additional_headers=bearer(token)) as socket:
        for kind in ('"logs"', '"\\u006cogs"', '"l\\u006fgs"'):
            for wanted in (json.dumps({"address": OTHER}), json.dumps({"address": [MINE, OTHER]}), "{}"):
                body = f'{{"jsonrpc":"2.0","id":1,"method":"eth_subscribe","params":[{kind},{wanted}]}}'
                socket.send(body)
                assert "error" in json.loads(socket.recv(timeout=30)), body
        socket.send(f'{{"jsonrpc":"2.0","id":1,"method":" eth_call","params":[{{"to":"{OTHER}"}}]}}')
        assert "error" in json.loads(socket.recv(timeout=30))
