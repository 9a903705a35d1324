"""WebSockets of the real service: credentials, calls, subscriptions on anvil and on a simulated Starknet chain."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Close
from websockets.sync.client import ClientConnection, connect

from parts.anvils import EMITTER, TICK, Chain, chain
from parts.processes import eventually
from parts.starknet import StarknetChain, starknet_chain
from parts.tollgate import Gateway, bearer, serving
from parts.upstream import Reply, upstream

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tollgate.core.models import Team

pytestmark = pytest.mark.e2e

PATIENCE = 40.0
ETH, STARKNET = "/x/eth/sepolia", "/x/starknet/sepolia"


@dataclass(frozen=True)
class Place:
    """The service in front of an anvil and of a simulated Starknet node."""

    gateway: Gateway
    eth: Chain
    starknet: StarknetChain
    team: Team
    token: str

    @contextmanager
    def socket(self, path: str = ETH, *, token: str | None = "", **more: Any) -> Iterator[ClientConnection]:
        """Open a WebSocket with the usual token, another one, or none."""
        headers = bearer(self.token if token == "" else token) | more.pop("headers", {})
        url = f"ws://127.0.0.1:{self.gateway.port}{path}"
        with connect(url, additional_headers=headers, compression=None, close_timeout=2, **more) as client:
            yield client


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("websocket")
    with chain(folder, 1) as eth, starknet_chain() as starknet:
        networks: Any = {
            "eth/sepolia": [{"url": eth.nodes[0].url, "ws_url": eth.nodes[0].url.replace("http", "ws")}],
            "eth/quiet": [eth.nodes[0].url],
            "starknet/sepolia": [starknet.nodes[0].url],
        }
        settings: Any = {
            "websocket": {"subscriptions": 5, "connections_per_caller": 8, "queue_bytes": 200_000},
            "health": {"probe_seconds": 0.1, "idle_probe_seconds": 0.1},
            "whitelist": {"allow_localhost": True},
            "limits": {"body_bytes": 100_000},
        }
        with serving(folder / "gate", networks, settings) as gateway:
            team = gateway.books.team()
            token, _ = gateway.books.token(team)
            yield Place(gateway, eth, starknet, team, token)


def received(client: ClientConnection) -> Any:
    return json.loads(client.recv(timeout=PATIENCE))


def call(client: ClientConnection, method: str, *params: object, **named: object) -> Any:
    """Call; notifications that come in between are passed over."""
    client.send(json.dumps({"jsonrpc": "2.0", "id": 7, "method": method, "params": named or params}))
    while "id" not in (answer := received(client)):
        continue
    return answer


def result(client: ClientConnection, method: str, *params: object, **named: object) -> Any:
    answer = call(client, method, *params, **named)
    assert "result" in answer, answer
    return answer["result"]


def received_many(client: ClientConnection, count: int) -> list[Any]:
    """Wait for so many notifications."""
    return [received(client) for _ in range(count)]


def closed(client: ClientConnection) -> Close:
    """Read to the end; how the service closed."""
    try:
        while True:
            client.recv(timeout=PATIENCE)
    except ConnectionClosed as end:
        return end.rcvd or Close(1006, "")


# --- Credentials -------------------------------------------------------------------------------------------


def test_token_in_the_header(place: Place) -> None:
    with place.socket() as client:
        assert result(client, "eth_chainId") == hex(place.eth.nodes[0].chain_id)


def test_token_as_a_subprotocol(place: Place) -> None:
    offered = ["tollgate", f"tollgate.token.{place.token}"]
    with place.socket(token=None, subprotocols=offered) as client:
        assert client.subprotocol == "tollgate"
        assert result(client, "eth_chainId")


def test_token_in_the_path_only_where_it_may_stand_there(place: Place) -> None:
    secret, _ = place.gateway.books.token(place.team, allow_in_url=True)
    with place.socket(f"{ETH}/{secret}", token=None) as client:
        assert result(client, "eth_chainId")
    with pytest.raises(InvalidStatus) as caught, place.socket(f"{ETH}/{place.token}", token=None):
        pass
    assert caught.value.response.status_code == 401


def test_whitelisted_origin(place: Place) -> None:
    place.gateway.books.domain(place.team, "sockets.com")
    with place.socket(token=None, origin="https://app.sockets.com") as client:
        assert result(client, "eth_chainId")


@pytest.mark.parametrize(
    ("path", "token", "status", "reason"),
    [
        (ETH, None, 401, "token_missing"),
        (ETH, "tg_wrong", 401, "token_invalid"),
        ("/x/eth/nowhere", "", 404, "unknown_network"),
    ],
)
def test_refused_program_sees_the_status_and_the_reason(
    place: Place, path: str, token: str | None, status: int, reason: str
) -> None:
    with pytest.raises(InvalidStatus) as caught, place.socket(path, token=token):
        pass
    response = caught.value.response
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    error = json.loads(response.body)
    assert error["id"] is None
    assert error["error"]["data"]["reason"] == reason
    assert error["error"]["data"]["request_id"] == response.headers["x-request-id"]


@pytest.mark.parametrize(
    ("offered", "code", "reason"),
    [
        (None, 4403, "origin_not_allowed"),
        (["tollgate", "tollgate.token.tg_wrong"], 4401, "token_invalid"),
    ],
)
def test_refused_browser_is_let_in_and_answered(
    place: Place, offered: list[str] | None, code: int, reason: str
) -> None:
    more: Any = {"subprotocols": offered} if offered else {}
    with place.socket(token=None, origin="https://elsewhere.com", **more) as client:
        error = received(client)
        assert error["id"] is None
        assert error["error"]["data"]["reason"] == reason
        assert closed(client) == Close(code, reason)


def test_too_many_connections_of_one_token(place: Place) -> None:
    secret, _ = place.gateway.books.token(place.team)
    with ExitStack() as opened:
        for _ in range(8):
            opened.enter_context(place.socket(token=secret))
        with pytest.raises(InvalidStatus) as caught, place.socket(token=secret):
            pass
        assert caught.value.response.status_code == 429
        with place.socket(token=secret, origin="https://elsewhere.com") as client:
            assert received(client)["error"]["code"] == -32005
            assert closed(client).code == 4429


@pytest.mark.parametrize("change", ["deleted", "disabled", "expired", "other network"])
def test_lost_grant_closes_its_sockets_within_a_second(place: Place, change: str) -> None:
    # Other work on the machine may hold one of them up.
    assert min(seconds_until_closed(place, change) for _ in range(3)) < 1.0


def seconds_until_closed(place: Place, change: str) -> float:
    """Take a token away whose caller has a subscription; how long that goes on."""
    books = place.gateway.books
    secret, token = books.token(place.team)
    with place.socket(token=secret) as client, place.socket() as other:
        assert result(client, "eth_chainId")
        result(client, "eth_subscribe", "newHeads")
        fields: dict[str, Any] = {
            "disabled": {"active": False},
            "expired": {"expires_at": time.time() - 1},
            "other network": {"networks": ("eth/mainnet",)},
        }
        if change == "deleted":
            books.do(lambda records: records.tokens.remove(id=token.id))
        else:
            books.do(lambda records: records.tokens.replace(msgspec.structs.replace(token, **fields[change])))
        since = time.monotonic()
        assert "error" in received(client)
        assert closed(client).code == (4403 if change == "other network" else 4401)
        waited = time.monotonic() - since
        assert result(other, "eth_chainId")
    return waited


def test_removed_domain_closes_its_sockets_within_a_second(place: Place) -> None:
    waited = []
    for name in ("leaving.com", "going.com", "parting.com"):
        entry = place.gateway.books.domain(place.team, name)
        with place.socket(token=None, origin=f"https://{name}") as client:
            assert result(client, "eth_chainId")
            place.gateway.books.do(lambda records, made=entry: records.domains.remove(id=made.id))  # type: ignore[misc]
            since = time.monotonic()
            assert received(client)["error"]["data"]["reason"] == "origin_not_allowed"
            assert closed(client).code == 4403
            waited.append(time.monotonic() - since)
    # Other work on the machine may hold one of them up.
    assert min(waited) < 1.0


def test_capped_team_is_refused_in_messages(place: Place) -> None:
    # Without free requests: the collector would lift a cap of which nothing was used.
    team = place.gateway.books.team(
        "capped-socket", capped_until=time.time() + 3600, spending_cap=0, free_requests=0
    )
    secret, _ = place.gateway.books.token(team)
    with place.socket(token=secret) as client:
        for method in ("eth_chainId", "eth_subscribe"):
            answer = call(client, method)
            assert answer["id"] == 7
            assert answer["error"]["data"]["reason"] == "spending_cap"


# --- Calls -------------------------------------------------------------------------------------------------


def test_calls_batches_and_nonsense_are_answered_as_by_post(place: Place) -> None:
    with place.socket() as client:
        batch = [{"jsonrpc": "2.0", "id": number, "method": "eth_blockNumber"} for number in (1, "two")]
        client.send(json.dumps(batch))
        assert [each["id"] for each in received(client)] == [1, "two"]
        client.send("{bad")
        assert received(client)["error"]["code"] == -32700
        client.send("[]")
        assert received(client)["error"]["code"] == -32600
        client.send(json.dumps({"jsonrpc": "2.0", "id": 3, "method": "eth_chainId"}).encode())
        assert received(client)["id"] == 3
        assert call(client, "admin_peers")["error"]["data"]["reason"] == "method_not_allowed"


def test_message_that_is_too_large_ends_the_connection(place: Place) -> None:
    with place.socket() as client:
        client.send("[" + " " * 100_001 + "]")
        assert closed(client).code == 1009


def test_calls_and_subscriptions_are_written_down_and_billed(place: Place) -> None:
    secret, token = place.gateway.books.token(place.gateway.books.team("billed-socket"))
    with place.socket(token=secret) as client:
        result(client, "eth_chainId")
        subscription = result(client, "eth_subscribe", "newHeads")
        place.eth.mine(2)
        received_many(client, 2)
        result(client, "eth_unsubscribe", subscription)
    rows = logged(place, "billed-socket", 3)
    assert [row["method"] for row in rows] == ["eth_chainId", "eth_subscribe", "eth_unsubscribe"]
    assert {(row["status"], row["billable"], row["token_id"]) for row in rows} == {(200, True, token.id)}


def test_wrong_calls_about_subscriptions_are_written_down_and_cost_nothing(place: Place) -> None:
    secret, _ = place.gateway.books.token(place.gateway.books.team("wrong-socket"))
    with place.socket(token=secret) as client:
        assert call(client, "eth_subscribe", "newBlocks")["error"]["code"] == -32601
        assert call(client, "eth_subscribe", "logs", {"address": "0x1"})["error"]["code"] == -32602
        assert call(client, "eth_unsubscribe", "0x1")["error"]["code"] == -32000
        result(client, "eth_subscribe", "newHeads")
    rows = logged(place, "wrong-socket", 4)
    assert [(row["outcome"], row["error_code"], row["billable"]) for row in rows] == [
        ("invalid_request", -32601, False),
        ("invalid_request", -32602, False),
        ("invalid_request", -32000, False),
        ("ok", None, True),
    ]


def logged(place: Place, team: str, count: int) -> list[dict[str, Any]]:
    """Wait for so many rows in the log of a team, and read them as its owner does, the oldest first."""
    person = place.gateway.books.account(f"{team}@example.com", **{team: "owner"})
    headers = bearer(place.gateway.books.personal_token(person.email))

    def rows() -> list[dict[str, Any]]:
        with place.gateway.connect() as connection:
            found = connection.exchange(f"/api/v1/teams/{team}/logs", headers=headers, method="GET").json()[
                "items"
            ]
        return list(reversed(found)) if len(found) == count else []

    return eventually(rows, what=f"{count} rows in the log")


# --- Subscriptions: eth ------------------------------------------------------------------------------------


def test_heads_and_logs_on_anvil(place: Place) -> None:
    with place.socket() as heads, place.socket() as logs:
        result(heads, "eth_subscribe", "newHeads")
        result(logs, "eth_subscribe", "logs", {"address": EMITTER, "topics": [TICK]})
        before = place.eth.height
        place.eth.mine(3, ticks=2)
        got = [each["params"]["result"] for each in received_many(heads, 3)]
        assert [each["hash"] for each in got] == place.eth.hashes()[before + 1 :]
        assert "transactions" not in got[0]
        numbers = [int(each["params"]["result"]["data"], 16) for each in received_many(logs, 6)]
        assert numbers == list(range(place.eth.ticks - 5, place.eth.ticks + 1))


def test_reorganisation_on_anvil_is_reported(place: Place) -> None:
    with place.socket() as heads, place.socket() as logs:
        result(heads, "eth_subscribe", "newHeads")
        result(logs, "eth_subscribe", "logs", {"address": EMITTER})
        place.eth.mine(2, ticks=1)
        received_many(heads, 2)
        old = received_many(logs, 2)
        place.eth.reorganise(2)
        place.eth.mine()
        canonical: dict[int, str] = {}
        while len(canonical) < 3 or canonical[place.eth.height] != place.eth.block(place.eth.height)["hash"]:
            head = received(heads)["params"]["result"]
            canonical[int(head["number"], 16)] = head["hash"]
        newest = place.eth.height
        assert [canonical[number] for number in range(newest - 2, newest + 1)] == place.eth.hashes()[-3:]
        taken_back = [each["params"]["result"] for each in received_many(logs, 2)]
        assert [each | {"removed": False} for each in taken_back] == [each["params"]["result"] for each in old]
        assert all(each["removed"] for each in taken_back)


def test_pending_transactions_of_anvil(place: Place) -> None:
    node = place.eth.nodes[0]
    sender = node.call("eth_accounts")[1]
    with place.socket() as client:
        result(client, "eth_subscribe", "newPendingTransactions")
        sent = []

        def is_seen() -> bool:
            # The upstream may not be listened to yet when the first one is sent.
            sent.append(node.call("eth_sendTransaction", {"from": sender, "to": sender, "value": "0x1"}))
            try:
                return json.loads(client.recv(timeout=0.5))["params"]["result"] in sent
            except TimeoutError:
                return False

        eventually(is_seen, within=PATIENCE, what="a pending transaction")
        node.call("anvil_dropAllTransactions")


def test_pending_transactions_are_refused_if_no_upstream_shows_them(place: Place) -> None:
    with place.socket("/x/eth/quiet") as client:
        error = call(client, "eth_subscribe", "newPendingTransactions")["error"]
        assert error["code"] == -32601
        assert "ws_url" in error["message"]


def test_subscriptions_end_and_are_bounded(place: Place) -> None:
    with place.socket() as client:
        ids = [result(client, "eth_subscribe", "newHeads") for _ in range(5)]
        assert len(set(ids)) == 5
        assert call(client, "eth_subscribe", "newHeads")["error"]["code"] == -32005
        assert all(result(client, "eth_unsubscribe", each) is True for each in ids)
        assert call(client, "eth_unsubscribe", ids[0])["error"]["code"] == -32000
        place.eth.mine()
        assert result(client, "eth_chainId")
        with pytest.raises(TimeoutError):
            client.recv(timeout=0.5)


# --- Subscriptions: starknet -------------------------------------------------------------------------------


def test_starknet_heads_from_the_past_and_a_reorganisation(place: Place) -> None:
    node = place.starknet.nodes[0]
    place.starknet.mine(5)
    newest = place.starknet.height
    with place.socket(STARKNET) as client:
        result(client, "starknet_subscribeNewHeads", block_id={"block_number": newest - 3})
        heads = [each["params"]["result"] for each in received_many(client, 4)]
        assert [each["block_number"] for each in heads] == list(range(newest - 3, newest + 1))
        place.starknet.mine(2)
        heads += [each["params"]["result"] for each in received_many(client, 2)]
        assert all(one["block_hash"] == other["parent_hash"] for one, other in pairwise(heads))
        place.starknet.reorganise(2)
        place.starknet.mine(2)
        replaced = received(client)
        assert replaced["method"] == "starknet_subscriptionReorg"
        lost = replaced["params"]["result"]
        assert lost["ending_block_hash"] == heads[-1]["block_hash"]
        canonical = [each for each in heads if each["block_number"] < lost["starting_block_number"]]
        final = node.call("starknet_blockHashAndNumber")
        while canonical[-1]["block_hash"] != final["block_hash"]:
            canonical.append(received(client)["params"]["result"])
        assert all(one["block_hash"] == other["parent_hash"] for one, other in pairwise(canonical))


def test_starknet_events_receipts_and_transactions(place: Place) -> None:
    node = place.starknet.nodes[0]
    with place.socket(STARKNET) as client:
        kinds = {
            result(client, f"starknet_{method}"): method
            for method in ("subscribeEvents", "subscribeNewTransactionReceipts", "subscribeNewTransactions")
        }
        place.starknet.mine()
        number = node.call("starknet_blockNumber")
        block = node.call("starknet_getBlockWithReceipts", {"block_number": number})
        receipts = [each["receipt"] for each in block["transactions"]]
        events = [event for each in receipts for event in each["events"]]
        got: dict[str, list[Any]] = {method: [] for method in kinds.values()}
        while [len(each) for each in got.values()] != [len(events), len(receipts), len(receipts)]:
            params = received(client)["params"]
            # Events begin with the newest block that was there before.
            if params["result"].get("block_number", number) == number:
                got[kinds[params["subscription_id"]]].append(params["result"])
        assert [
            {name: each[name] for name in ("from_address", "keys", "data")} for each in got["subscribeEvents"]
        ] == ([{name: each[name] for name in ("from_address", "keys", "data")} for each in events])
        place_in_chain = {"block_hash": block["block_hash"], "block_number": number}
        assert got["subscribeNewTransactionReceipts"] == [each | place_in_chain for each in receipts]
        assert [each["transaction_hash"] for each in got["subscribeNewTransactions"]] == [
            each["transaction_hash"] for each in receipts
        ]


def test_starknet_status_of_a_transaction(place: Place) -> None:
    node = place.starknet.nodes[0]
    with place.socket(STARKNET) as client:
        sent = node.call("starknet_addInvokeTransaction", {})["transaction_hash"]
        result(client, "starknet_subscribeTransactionStatus", transaction_hash=sent)
        place.starknet.mine()
        seen = received(client)["params"]["result"]
        while seen["status"]["finality_status"] != "ACCEPTED_ON_L2":
            seen = received(client)["params"]["result"]
        assert int(seen["transaction_hash"], 16) == int(sent, 16)


def test_starknet_errors_of_its_own(place: Place) -> None:
    with place.socket(STARKNET) as client:
        assert call(client, "starknet_subscribeNewHeads", block_id={"block_number": 10**9})["error"]["code"] == 24
        assert call(client, "starknet_subscribeNewHeads", block_id={"block_number": 0})["error"]["code"] == 68
        assert call(client, "starknet_unsubscribe", subscription_id="12")["error"]["code"] == 66


# --- Bounds and the end ------------------------------------------------------------------------------------


def test_client_that_does_not_read_is_cut_with_a_reason(place: Place) -> None:
    there = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    # Before it connects, or the system makes it wider again.
    there.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    there.connect(("127.0.0.1", place.gateway.port))
    with place.socket(sock=there, max_queue=1) as client:
        for _ in range(4):
            client.send(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "eth_subscribe", "params": ["logs"]}))

        def cut() -> float:
            place.eth.mine(ticks=40)
            return place.gateway.metrics().get('tollgate_ws_cut_total{reason="slow"}', 0)

        eventually(cut, within=60, what="the cut")
    assert place.gateway.metrics()['tollgate_ws_notifications_total{family="eth",network="sepolia"}'] > 0


def test_flood_of_frames_is_read_to_its_end_and_others_are_answered_meanwhile(place: Place) -> None:
    ping = b"\x89\x80\0\0\0\0"
    with place.socket() as flooding, place.socket() as other:
        flooding.socket.sendall(ping * 100_000)
        flooding.send(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "eth_chainId"}))
        assert result(other, "eth_chainId")
        assert received(flooding)["id"] == 1


def test_connections_are_counted(place: Place) -> None:
    with place.socket(), place.socket():
        eventually(lambda: place.gateway.metrics()["tollgate_ws_connections"] >= 2, what="the gauge")
    eventually(lambda: place.gateway.metrics()["tollgate_ws_connections"] == 0, what="the gauge")


def test_stop_answers_what_is_under_way_and_closes(tmp_path: Path) -> None:
    gate = threading.Event()
    with upstream() as node, serving(tmp_path / "gate", {"eth/mainnet": [node.url]}) as gateway:
        node.on("eth_gasPrice", Reply(gate=gate))
        token, _ = gateway.books.token(gateway.books.team())
        url = f"ws://127.0.0.1:{gateway.port}/x/eth/mainnet"
        with (
            connect(url, additional_headers=bearer(token)) as idle,
            connect(url, additional_headers=bearer(token)) as busy,
        ):
            assert result(idle, "eth_subscribe", "newHeads")
            busy.send(json.dumps({"jsonrpc": "2.0", "id": 9, "method": "eth_gasPrice", "params": []}))
            eventually(lambda: node.bodies("eth_gasPrice"), what="the call under way")
            gateway.program.send(signal.SIGTERM)
            since = time.monotonic()
            assert closed(idle).code == 1001
            gate.set()
            assert "result" in received(busy)
            assert closed(busy).code == 1001
        gateway.program.popen.wait(20)
        assert time.monotonic() - since < 10.0, "the grace was not used up"
