"""Chains and teams against subscribers: blocks whose events never end, and the past."""

from __future__ import annotations

import json
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine, text
from websockets.sync.client import ClientConnection, connect

from parts.memory import within_budget
from parts.processes import eventually
from parts.starknet import starknet_chain
from parts.tollgate import Gateway, bearer, serving
from parts.upstream import Received, Reply, upstream

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.e2e

STARKNET = "starknet/sepolia"


@contextmanager
def socket(gateway: Gateway, token: str, network: str = STARKNET) -> Iterator[ClientConnection]:
    url = f"ws://127.0.0.1:{gateway.port}/x/{network}"
    with connect(url, additional_headers=bearer(token), compression=None, close_timeout=2) as client:
        yield client


def call(client: ClientConnection, method: str, **params: object) -> Any:
    client.send(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}))
    while "id" not in (answer := json.loads(client.recv(timeout=30))):
        continue
    return answer


# ---- the past


def test_blocks_of_the_past_count_against_the_limit_with_their_events(tmp_path: Path) -> None:
    with starknet_chain() as nodes, serving(tmp_path, {STARKNET: [nodes.nodes[0].url]}) as gateway:
        token, _ = gateway.books.token(gateway.books.team(), requests_per_second=100)
        past = {"block_number": nodes.height - 60}
        with socket(gateway, token) as client:
            assert "result" in call(client, "starknet_subscribeNewHeads", block_id=past)
        with socket(gateway, token) as client:
            refused = call(client, "starknet_subscribeEvents", block_id=past)
            assert refused["error"]["data"]["reason"] == "rate_limited"


def test_upstream_calls_of_subscriptions_are_on_the_bill(tmp_path: Path) -> None:
    """Blocks of the past with their events, and polls of a transaction that never comes: 1,548 calls were 21."""
    with starknet_chain() as nodes, serving(tmp_path, {STARKNET: [nodes.nodes[0].url]}) as gateway:
        token, _ = gateway.books.token(gateway.books.team())
        engine = create_engine(f"sqlite:///{tmp_path / 'data' / 'ledger.db'}")

        def billed() -> int:
            with engine.connect() as connection:
                return int(connection.execute(text("SELECT coalesce(sum(requests), 0) FROM months")).scalar_one())

        with socket(gateway, token) as client:
            past = {"block_number": nodes.height - 50}
            assert "result" in call(client, "starknet_subscribeEvents", block_id=past)
            eventually(lambda: billed() >= 100, what="blocks of the past and their events")
            before = billed()
            for number in range(1, 4):
                unknown = call(client, "starknet_subscribeTransactionStatus", transaction_hash=hex(number))
                assert "result" in unknown
            eventually(lambda: billed() >= before + 3 + 6, what="two polls of each")
        engine.dispose()


# ---- nodes


EVENT = {"from_address": "0x1", "keys": ["0x2"], "data": ["0x" + "7" * 60] * 60, "block_hash": "0x10"}
# Four megabytes, and never the last.
PAGE = json.dumps({"events": [EVENT] * 1_000, "continuation_token": "1"})


def endless(received: Received) -> Reply:
    return Reply(f'{{"jsonrpc":"2.0","id":{received.json()["id"]},"result":{PAGE}}}'.encode())


def test_events_of_a_block_without_an_end_take_no_memory(tmp_path: Path) -> None:
    with upstream() as node, ExitStack() as opened:
        gateway = opened.enter_context(serving(tmp_path, {STARKNET: [node.url]}))
        block = {"block_number": 16, "block_hash": "0x10", "parent_hash": "0xf", "status": "ACCEPTED_ON_L1"}
        node.on("starknet_getEvents", endless)
        node.on("*", lambda received: answered(received, block))
        token, _ = gateway.books.token(gateway.books.team())
        opened.enter_context(within_budget(gateway, 16 << 20))
        client = opened.enter_context(socket(gateway, token))
        assert "result" in call(client, "starknet_subscribeEvents")
        eventually(lambda: len(node.bodies("starknet_getEvents")) > 40, within=60, what="pages")


def answered(received: Received, value: object) -> Reply:
    return Reply(json.dumps({"jsonrpc": "2.0", "id": received.json()["id"], "result": value}).encode())


FAR = {"number": hex(1 << 61), "hash": "0x" + "ab" * 32, "parentHash": "0x" + "cd" * 32}
LIES = {
    "a head beyond all numbers": json.dumps(FAR).encode(),
    "depths without an end": b'{"a":' * 50_000,
    "a hash of a megabyte": json.dumps({**FAR, "number": "0x11", "hash": "0x" + "a" * 900_000}).encode(),
}


@pytest.mark.parametrize("lie", LIES)
def test_prober_outlives_what_a_node_shows_it_and_goes_on_with_the_others(lie: str, tmp_path: Path) -> None:
    health: dict[str, object] = {"probe_seconds": 0.05, "idle_probe_seconds": 0.05}
    with upstream() as liar, upstream() as honest, upstream() as third, ExitStack() as opened:
        nodes = {"eth/mainnet": [liar.url, honest.url, third.url]}
        gateway = opened.enter_context(serving(tmp_path, nodes, {"health": health}))

        def probed() -> float:
            return sum(
                value
                for sample, value in gateway.metrics().items()
                if sample.startswith("tollgate_upstream_probes_total{") and 'upstream="n0"' in sample
            )

        before = probed()
        opened.enter_context(within_budget(gateway, processes="tg-prober"))
        liar.probed["eth_getBlockByNumber"] = LIES[lie]
        eventually(lambda: probed() > before + 10, what="probes")
        block = {"number": "0x11", "hash": "0x" + "11" * 32, "parentHash": "0x" + "10" * 32}
        for node in (honest, third):
            node.probed["eth_getBlockByNumber"] = json.dumps(block).encode()
        head = 'tollgate_network_head{family="eth",network="mainnet"}'
        eventually(lambda: gateway.metrics()[head] == 0x11, what="the head of the others")


@pytest.mark.parametrize("alone", [False, True])
def test_node_that_shows_callers_a_head_beyond_the_chain_delays_no_read_of_the_tip(
    alone: bool, tmp_path: Path
) -> None:
    health: dict[str, object] = {"probe_seconds": 0.1, "idle_probe_seconds": 0.1}
    block = {"number": "0x11", "hash": "0x" + "11" * 32, "parentHash": "0x" + "10" * 32}
    with upstream() as liar, upstream() as honest, ExitStack() as opened:
        for node, shown in ((liar, 0x11 + 5_000), (honest, 0x11)):
            node.probed["eth_getBlockByNumber"] = json.dumps(block).encode()
            node.on("eth_blockNumber", partial(answered, value=hex(shown)))
            node.on("eth_getBalance", lambda received: answered(received, "0x1"))
        urls: list[dict[str, object]] = [{"url": liar.url, "name": "liar"}]
        if not alone:
            urls.append({"url": honest.url, "name": "honest", "priority": 2})
        gateway = opened.enter_context(serving(tmp_path, {"eth/mainnet": urls}, {"health": health}))
        token, _ = gateway.books.token(gateway.books.team())
        head = 'tollgate_network_head{family="eth",network="mainnet"}'
        eventually(lambda: gateway.metrics().get(head) == 0x11, what="the head")

        def result(method: str, *params: object) -> Any:
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            answer = gateway.exchange(json.dumps(body).encode(), token=token)
            assert answer.status == 200
            return json.loads(answer.body).get("result")

        expected = hex(0x11 + 5_000) if alone else "0x11"
        assert [result("eth_blockNumber") for _ in range(5)] == [expected] * 5
        # It would be an error, or wait for seconds, if callers had to see a block that no node has.
        assert [result("eth_getBalance", "0xa", "latest") for _ in range(5)] == ["0x1"] * 5
        if not alone:

            def left_rotation() -> bool:
                result("eth_blockNumber")
                before = len(liar.received)
                for _ in range(5):
                    result("eth_getBalance", "0xa", "latest")
                return len(liar.received) == before

            eventually(left_rotation, what="the liar out of rotation")
