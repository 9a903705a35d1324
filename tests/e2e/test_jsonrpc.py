"""JSON-RPC exactness from outside: what comes back to the caller, and what the node gets to see."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from parts.raw_http import call
from parts.stack import Stack, open_stack
from parts.upstream import Reply, failure, result

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e


POLICY = {"cache": False, "allow_methods": ["eth_get*", "eth_call"], "deny_methods": ["eth_getLogs", "debug_*"]}
NETWORKS = ("eth/mainnet", "eth/strict", "doge/mainnet")


@pytest.fixture(scope="module")
def whole_road(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("jsonrpc")
    with open_stack(folder, {"families.eth.strict": POLICY}, networks=NETWORKS) as it:
        yield it


@pytest.fixture
def stack(whole_road: Stack) -> Stack:
    whole_road.node.clear()
    return whole_road


# ---- ids and members

IDS = [
    b"1",
    b"0",
    b"-5",
    b"123456789012345678901234567890",
    b'"a"',
    b'""',
    b'"\\u00e9\\/\\n"',
    '"é😀"'.encode(),
    b"null",
]


@pytest.mark.parametrize("id", IDS)
def test_id_comes_back_byte_for_byte(stack: Stack, id: bytes) -> None:  # noqa: A002
    answer = stack.exchange(b'{"jsonrpc":"2.0","method":"eth_chainId","id": %b }' % id)
    assert answer.status == 200
    assert b'"id":%b,' % id in answer.body
    assert set(answer.json()) == {"jsonrpc", "id", "result"}


def test_ids_of_a_batch_come_back_in_order(stack: Stack) -> None:
    calls = [b'{"id":%b,"jsonrpc":"2.0","method":"eth_m%d"}' % (each, n) for n, each in enumerate(IDS * 2)]
    answer = stack.exchange(b"[%b]" % b",".join(calls))
    assert answer.status == 200
    results = [each["result"]["method"] for each in answer.json()]
    assert results == [f"eth_m{n}" for n in range(len(calls))]
    for each in IDS:
        assert answer.body.count(b'"id":%b,' % each) == 2
    assert len(stack.node.received) == 1, "it went on as one batch"


def test_batch_that_the_node_answers_in_another_order(stack: Stack) -> None:
    def shuffled(received: Any) -> Reply:
        results = [{"jsonrpc": "2.0", "id": each["id"], "result": each["method"]} for each in received.json()]
        return Reply(json.dumps(results[::-1]).encode())

    stack.node.on("*", shuffled)
    answer = stack.exchange(b"[%b,%b,%b]" % (call("a", id=9), call("b", id=9), call("c", id="x")))
    assert [(each["id"], each["result"]) for each in answer.json()] == [(9, "a"), (9, "b"), ("x", "c")]


def test_batch_of_one_is_answered_as_a_batch(stack: Stack) -> None:
    answer = stack.exchange(b" [%b] " % call("eth_chainId"))
    assert [each["id"] for each in answer.json()] == [1]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (b"", []),
        (b',"params":null', []),
        (b',"params":[]', []),
        (b',"params":{}', {}),
        (b',"params":[1,"a",null,[]]', [1, "a", None, []]),
        (b',"params":{"block_id":"latest"}', {"block_id": "latest"}),
    ],
)
def test_params_reach_the_node(stack: Stack, given: bytes, expected: object) -> None:
    assert stack.exchange(b'{"jsonrpc":"2.0","id":1,"method":"eth_call"%b}' % given).status == 200
    assert stack.node.received[-1].json()["params"] == expected
    assert set(stack.node.received[-1].json()) == {"jsonrpc", "id", "method", "params"}


def test_values_in_params_reach_the_node_as_they_were_written(stack: Stack) -> None:
    params = b'[1.10,12345678901234567890123,"\\u00e9",{"a":1,"a":2}]'
    stack.exchange(b'{"jsonrpc":"2.0","id":1,"method":"eth_call","params":%b}' % params)
    assert params in stack.node.received[-1].body


def test_result_comes_back_byte_for_byte(stack: Stack) -> None:
    body = b'{ "id":1, "result": {"n": 1.10, "big":12345678901234567890123, "s":"\\u00e9"} ,"jsonrpc":"2.0"}'
    stack.node.on("*", Reply(body))
    assert b'"result":{"n": 1.10, "big":12345678901234567890123, "s":"\\u00e9"}' in stack.exchange(call("m")).body


@pytest.mark.parametrize(
    "doubled",
    [
        b'"method":"eth_chainId","method":"eth_getLogs"',
        b'"method":"eth_getLogs","method":"eth_chainId"',
        b'"method":"eth_getBalance","Method":"eth_getLogs","METHOD":"debug_x"',
        b'"method":"eth_getBalance","m\\u0065thod":"eth_getLogs"',
    ],
)
def test_doubled_member_cannot_slip_past_a_rule(stack: Stack, doubled: bytes) -> None:
    answer = stack.exchange(b'{"jsonrpc":"2.0","id":1,%b}' % doubled, path="/x/eth/strict")
    for received in stack.node.received:
        assert received.body.lower().count(b'"method"') == 1
        assert received.methods() == ["eth_getBalance"]
    assert answer.status in (200, 403)


# ---- notifications


def test_notification_is_answered_204_and_reaches_the_node(stack: Stack) -> None:
    before = called(stack, "eth_chainId")
    answer = stack.exchange(b'{"jsonrpc":"2.0","method":"eth_chainId"}')
    assert (answer.status, answer.body) == (204, b"")
    assert "content-length" not in answer.headers
    assert "content-type" not in answer.headers
    assert answer.headers["x-request-id"]
    assert len(stack.node.bodies("eth_chainId")) == 1
    assert called(stack, "eth_chainId") == before + 1, "it is still metered"


def called(stack: Stack, method: str) -> float:
    label = f'method="{method}"'
    return sum(
        value
        for sample, value in stack.gateway.metrics().items()
        if sample.startswith("tollgate_calls_total") and label in sample
    )


def test_batch_of_notifications_is_answered_204(stack: Stack) -> None:
    answer = stack.exchange(b'[{"jsonrpc":"2.0","method":"a"},{"jsonrpc":"2.0","method":"b"}]')
    assert (answer.status, answer.body) == (204, b"")
    assert [each.methods() for each in stack.node.received] == [["a", "b"]]


def test_notification_within_a_batch_gets_no_answer(stack: Stack) -> None:
    answer = stack.exchange(b'[%b,{"jsonrpc":"2.0","method":"b"},%b]' % (call("a", id=1), call("c", id=3)))
    assert [(each["id"], each["result"]["method"]) for each in answer.json()] == [(1, "a"), (3, "c")]


# ---- a node's own word


@pytest.mark.parametrize(
    "error",
    [
        {"code": 3, "message": "execution reverted", "data": "0x08c379a0"},
        {"code": -32601, "message": "the method does not exist"},
        {"code": -32005, "message": "limit exceeded", "data": {"see": "https://node.example"}},
        {"code": 20, "message": "Contract not found"},
    ],
)
def test_error_of_the_node_passes_unchanged(stack: Stack, error: dict[str, object]) -> None:
    stack.node.on("*", failure(error))
    answer = stack.exchange(call("eth_call", id="mine"))
    assert answer.status == 200
    assert answer.json() == {"jsonrpc": "2.0", "id": "mine", "error": error}


@pytest.mark.parametrize("status", [400, 404, 413, 422])
def test_error_of_the_node_with_a_status_passes_with_200(stack: Stack, status: int) -> None:
    error = {"code": -32602, "message": "bad params"}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "error": error}).encode()
    stack.node.on("*", Reply(body, status=status))
    answer = stack.exchange(call("eth_call"))
    assert (answer.status, answer.json()["error"]) == (200, error)


@pytest.mark.parametrize("value", [None, False, 0, "", [], {}])
def test_empty_result_is_a_result(stack: Stack, value: object) -> None:
    stack.node.on("*", result(value))
    assert stack.exchange(call("eth_getTransactionReceipt")).json()["result"] == value


# ---- what may be called


@pytest.mark.parametrize(
    "method",
    [
        "admin_peers",
        "engine_newPayloadV4",
        "personal_sign",
        "testing_x",
        "miner_start",
        "ADMIN_peers",
        "Admin_",
    ],
)
@pytest.mark.parametrize("network", ["eth/mainnet", "eth/strict", "doge/mainnet"])
def test_prefix_that_steers_a_node(stack: Stack, method: str, network: str) -> None:
    answer = stack.exchange(call(method), path=f"/x/{network}")
    assert (answer.status, answer.json()["error"]["data"]["reason"]) == (403, "method_not_allowed")
    assert not stack.node.received


@pytest.mark.parametrize(
    ("method", "passes"),
    [
        ("eth_getBalance", True),
        ("eth_call", True),
        ("eth_getLogs", False),  # denied, though the pattern allows it
        ("eth_getlogs", False),  # a node may not care for case
        ("eth_callMany", False),
        ("eth_chainId", False),
        ("debug_traceCall", False),
        ("xeth_call", False),
    ],
)
def test_lists_of_a_network(stack: Stack, method: str, passes: bool) -> None:
    answer = stack.exchange(call(method), path="/x/eth/strict")
    assert answer.status == (200 if passes else 403)
    assert bool(stack.node.received) is passes


def test_lists_bind_their_own_network_alone(stack: Stack) -> None:
    assert stack.exchange(call("eth_getLogs")).status == 200


def test_family_without_a_catalogue_proxies(stack: Stack) -> None:
    answer = stack.exchange(call("doge_muchWow", 1), path="/x/doge/mainnet")
    assert answer.json()["result"] == {"method": "doge_muchWow", "params": [1]}


def test_node_gets_nothing_of_the_caller_but_the_call(stack: Stack) -> None:
    headers = {"Cookie": "a=b", "X-Mine": "1", "User-Agent": "me/1", "X-Forwarded-For": "1.2.3.4"}
    stack.exchange(call("eth_call"), path="/x/eth/mainnet?x=y", headers=headers)
    received = stack.node.received[-1]
    assert received.path == "/rpc?key=1"
    assert not set(received.headers) & {"authorization", "cookie", "x-mine", "origin", "x-forwarded-for"}
    assert received.headers["content-type"] == "application/json"
    assert received.headers["user-agent"].startswith("tollgate/")
