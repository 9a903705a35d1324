"""A team that tries the filters and continuation tokens of another, on a node that counts its filters up."""

from __future__ import annotations

import itertools
import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from parts.memory import within_budget
from parts.raw_http import call
from parts.stack import Stack, open_stack
from parts.tollgate import bearer
from parts.upstream import Received, Reply

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.e2e

STARKNET = "/x/starknet/mainnet"


class CountingNode:
    """Knows its filters by their number, as small nodes do."""

    def __init__(self) -> None:
        self.filters: dict[str, None] = {}
        self._numbers = itertools.count(1)

    def __call__(self, received: Received) -> Reply:
        parsed = received.json()
        calls = parsed if isinstance(parsed, list) else [parsed]
        replies = [
            {"jsonrpc": "2.0", "id": each["id"], **self._tell(each["method"], each["params"])} for each in calls
        ]
        return Reply(json.dumps(replies if isinstance(parsed, list) else replies[0]).encode())

    def _tell(self, method: str, params: Any) -> dict[str, Any]:
        if method == "eth_newFilter":
            made = hex(next(self._numbers))
            self.filters[made] = None
            return {"result": made}
        if method == "starknet_getEvents":
            token = params[0].get("continuation_token", "0")
            return (
                {"result": {"events": [token], "continuation_token": str(int(token) + 1)}}
                if token.isdecimal()
                else {"error": {"code": 33, "message": "The supplied continuation token is invalid or unknown"}}
            )
        if params and params[0] in self.filters:
            if method == "eth_uninstallFilter":
                del self.filters[params[0]]
            return {"result": [params[0]]}
        return {"error": {"code": -32000, "message": "filter not found"}}


@pytest.fixture(scope="module")
def whole_road(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    networks = ("eth/mainnet", "starknet/mainnet")
    with (
        open_stack(tmp_path_factory.mktemp("filters"), {"server": {"workers": 2}}, networks=networks) as it,
        within_budget(it.gateway),
    ):
        yield it


@pytest.fixture
def node(whole_road: Stack) -> CountingNode:
    whole_road.node.clear()
    made = CountingNode()
    whole_road.node.on("*", made)
    return made


@pytest.fixture(scope="module")
def other_team(whole_road: Stack) -> str:
    return whole_road.gateway.books.token(whole_road.gateway.books.team("globex"))[0]


@pytest.mark.parametrize("method", ["eth_getFilterChanges", "eth_getFilterLogs", "eth_uninstallFilter"])
def test_filter_of_another_team_is_out_of_reach(
    whole_road: Stack, node: CountingNode, other_team: str, method: str
) -> None:
    stack = whole_road
    mine = stack.exchange(call("eth_newFilter", {})).json()["result"]
    assert list(node.filters) == ["0x1"]
    guesses = [mine, "0x1", "0x100", "0x101", 1, mine[:-1] + ("0" if mine[-1] != "0" else "1")]
    for guess in guesses:
        replies = stack.gateway.exchange(call(method, guess), token=other_team).json()
        assert replies["error"]["message"] == "filter not found", guess
        together = stack.gateway.exchange(
            b"[%b,%b]" % (call(method, guess), call("eth_call")), token=other_team
        ).json()
        assert together[0]["error"]["message"] == "filter not found", guess
    assert list(node.filters) == ["0x1"]
    assert stack.exchange(call("eth_getFilterChanges", mine)).json()["result"] == ["0x1"]
    batch = stack.exchange(b"[%b,%b]" % (call("eth_getFilterChanges", mine), call("eth_newFilter", {}))).json()
    assert batch[0]["result"] == ["0x1"]
    assert stack.exchange(call("eth_getFilterChanges", batch[1]["result"])).json()["result"] == ["0x2"]


def test_continuation_token_of_another_team_is_of_no_use(
    whole_road: Stack, node: CountingNode, other_team: str
) -> None:
    stack = whole_road
    page = stack.exchange(call("starknet_getEvents", {"chunk_size": 1}), path=STARKNET).json()["result"]
    events_call = call("starknet_getEvents", {"chunk_size": 1, "continuation_token": page["continuation_token"]})
    assert stack.exchange(events_call, path=STARKNET).json()["result"]["events"] == ["1"]
    refused = stack.gateway.exchange(events_call, token=other_team, path=STARKNET).json()
    assert refused["error"]["code"] == 33
    forged = call("starknet_getEvents", {"chunk_size": 1, "continuation_token": "1"})
    assert stack.gateway.exchange(forged, token=other_team, path=STARKNET).json()["error"]["code"] == 33
    assert not node.filters


# ---- many tokens of one team


def test_many_tokens_of_one_team_leave_room_for_others(tmp_path: Path) -> None:
    bounds = {"connections": 24, "connections_per_caller": 4, "subscriptions_per_caller": 3}
    with open_stack(tmp_path, {"websocket": bounds}) as stack, ExitStack() as held:
        books = stack.gateway.books
        tokens = [books.token(stack.team, name=f"t{number}")[0] for number in range(8)]
        opened = [held.enter_context(socket(stack, token)) for token in tokens[:6] for _ in range(2)]
        with pytest.raises(InvalidStatus, match="429"):
            socket(stack, tokens[7])
        made = [subscribed(client) for client in opened for _ in range(2)]
        assert made.count(True) == 15
        other_team, _ = books.token(books.team("globex"))
        assert subscribed(held.enter_context(socket(stack, other_team)))


def socket(stack: Stack, token: str) -> ClientConnection:
    url = f"ws://127.0.0.1:{stack.gateway.port}/x/eth/mainnet"
    return connect(url, additional_headers=bearer(token), compression=None, close_timeout=2)


def subscribed(client: ClientConnection) -> bool:
    client.send(call("eth_subscribe", "newHeads"))
    return "result" in json.loads(client.recv(timeout=30))
