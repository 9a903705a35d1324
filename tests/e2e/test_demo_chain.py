"""Simulated nodes as processes of their own: one chain for several, lag, reorganisations, subscriptions."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from parts.need import ROOT
from parts.node import run_node
from parts.ports import LOOPBACK, free_port
from parts.processes import Program, eventually, running
from parts.pyclients import run_python
from parts.wire import JSON, Wire

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

pytestmark = pytest.mark.e2e

NODE = [sys.executable, "-m", "tollgate.demo.node"]
CLIENTS = ROOT / "tests" / "demo" / "clients"
PATIENCE = 20.0
# Blocks arise by demo_mine alone: what a test sees does not depend on how fast it is.
BY_HAND = ("--block-seconds", "0")


@dataclass(frozen=True)
class Node:
    """A running node and the line that it printed."""

    program: Program
    said: dict[str, Any]

    @property
    def port(self) -> int:
        return int(self.said["url"].rpartition(":")[2])

    def ask(self, network: str, method: str, *params: object, **named: object) -> Any:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": named or params}
        with Wire.open(self.port) as wire:
            return wire.ask(f"/{network}", json.dumps(body).encode(), JSON).json()

    def get(self, network: str, method: str, *params: object, **named: object) -> Any:
        answer = self.ask(network, method, *params, **named)
        assert "result" in answer, answer
        return answer["result"]

    def websocket(self, network: str, *, narrow: bool = False) -> Any:
        """Connect, without compression: what is sent is then as large as it is counted."""
        there = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if narrow:
            # Before it connects, or the system makes it wider again.
            there.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        there.connect((LOOPBACK, self.port))
        url = self.said["networks"][network].replace("http", "ws", 1)
        # Without a bound on what is unread, or the library does not see the answer to its good-bye behind it.
        return connect(url, sock=there, compression=None, max_queue=None)


@contextmanager
def node(folder: Path, *arguments: str) -> Iterator[Node]:
    with running([*NODE, *arguments], folder=folder, ready=lambda it: it.lines(), within=30) as program:
        yield Node(program, json.loads(program.lines()[0]))


def block(it: Node, network: str, height: int | str) -> tuple[int, str, str]:
    """Give a block's number, hash and parent hash."""
    if network.startswith("eth"):
        found = it.get(network, "eth_getBlockByNumber", hex(height) if isinstance(height, int) else height, False)
        return int(found["number"], 16), found["hash"], found["parentHash"]
    found = it.get(
        network,
        "starknet_getBlockWithTxHashes",
        {"block_number": height} if isinstance(height, int) else height,
    )
    return found["block_number"], found["block_hash"], found["parent_hash"]


NETWORKS = ("eth/mainnet", "eth/sepolia", "starknet/mainnet", "starknet/sepolia")


# ---- one chain, several nodes


def test_nodes_with_the_same_seed_and_start_have_the_same_chain(tmp_path: Path) -> None:
    genesis = str(int(time.time()) - 1_000)
    same = ("--genesis", genesis, "--block-seconds", "0.2", "--seed", "7")
    with (
        node(tmp_path, *same) as one,
        node(tmp_path, *same, "--lag", "20") as other,
        node(tmp_path, *same[:-1], "8", "--family", "eth") as stranger,
    ):
        for network in NETWORKS:
            newest = block(other, network, "latest")
            assert block(one, network, newest[0]) == newest
            assert block(one, network, newest[0] - 1)[1] == newest[2]
            before = one.get(network, "demo_state")["head"]
            state = other.get(network, "demo_state")
            assert before <= state["head"] == state["shown"] + 20
        assert set(stranger.said["networks"]) == {"eth/mainnet", "eth/sepolia"}
        assert block(stranger, "eth/mainnet", 10)[1] != block(one, "eth/mainnet", 10)[1]
        before = block(one, "eth/mainnet", "latest")[0]
        eventually(lambda: block(one, "eth/mainnet", "latest")[0] > before, what="the next block")


@pytest.mark.parametrize("network", ["eth/mainnet", "starknet/mainnet"])
def test_nodes_that_share_a_folder_share_what_is_done_to_the_chain(tmp_path: Path, network: str) -> None:
    same = (*BY_HAND, "--shared", str(tmp_path / "shared"))
    with node(tmp_path, *same) as one, node(tmp_path, *same) as other:
        start = block(one, network, "latest")
        assert other.get(network, "demo_mine", 5)["head"] == start[0] + 5
        assert block(one, network, "latest") == block(other, network, "latest")
        lost = block(one, network, "latest")
        assert one.get(network, "demo_reorg", 2, True)["head"] == start[0] + 6
        new = block(other, network, "latest")
        assert new == block(one, network, "latest")
        assert block(other, network, lost[0])[1] != lost[1]
        assert block(other, network, lost[0] - 2) == block(one, network, lost[0] - 2)

        other.get(network, "demo_lag", 3)
        assert block(other, network, "latest")[0] == new[0] - 3
        other.get(network, "demo_lag", 0)

        is_eth = network.startswith("eth")
        send: Any = ("eth_sendRawTransaction", "0x0102") if is_eth else ("starknet_addInvokeTransaction", {})
        sent = one.get(network, *send)
        assert other.ask(network, *send)["error"]["code"] == (-32000 if is_eth else 59)
        other.get(network, "demo_mine")
        name = sent if isinstance(sent, str) else sent["transaction_hash"]
        family = network.partition("/")[0]
        receipts = [it.get(network, f"{family}_getTransactionReceipt", name) for it in (one, other)]
        assert receipts[0] == receipts[1]

        one.program.send(signal.SIGKILL)
        one.program.popen.wait(10)
        other.get(network, "demo_reorg", 1)
        with node(tmp_path, *same, "--port", str(one.port)) as again:
            assert block(again, network, "latest") == block(other, network, "latest")


def test_faults_and_delays_are_of_one_node_and_network(tmp_path: Path) -> None:
    with node(tmp_path, *BY_HAND) as one:
        one.get("eth/mainnet", "demo_fail", calls=1, status=503)
        with Wire.open(one.port) as wire:
            body = b'{"jsonrpc":"2.0","id":1,"method":"eth_chainId"}'
            assert wire.ask("/eth/mainnet", body, JSON).status == 503
            assert wire.ask("/eth/mainnet", body, JSON).status == 200
        one.get("eth/mainnet", "demo_delay", 300)
        begun = time.monotonic()
        one.get("eth/sepolia", "eth_chainId")
        one.get("eth/mainnet", "demo_state")
        assert time.monotonic() - begun < 0.3
        one.get("eth/mainnet", "eth_chainId")
        assert time.monotonic() - begun >= 0.3


# ---- subscriptions


def listening(script: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await asyncio.wait_for(script(), 60)

    asyncio.run(run())


async def said(client: ClientConnection) -> Any:
    return json.loads(await asyncio.wait_for(client.recv(), PATIENCE))


async def call(client: ClientConnection, method: str, *params: object) -> Any:
    await client.send(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}))
    return await said(client)


@pytest.mark.parametrize("network", ["eth/mainnet", "starknet/mainnet"])
def test_heads_follow_each_other_on_every_node_and_tell_of_a_reorganisation(tmp_path: Path, network: str) -> None:
    family = network.partition("/")[0]
    subscribe = ("eth_subscribe", "newHeads") if family == "eth" else ("starknet_subscribeNewHeads",)
    same = ("--family", family, "--block-seconds", "0.1", "--shared", str(tmp_path / "shared"))

    def head(notification: Any) -> tuple[int, str, str] | None:
        if notification["method"] == "starknet_subscriptionReorg":
            return None
        result = notification["params"]["result"]
        if family == "eth":
            return int(result["number"], 16), result["hash"], result["parentHash"]
        return result["block_number"], result["block_hash"], result["parent_hash"]

    async def follow(it: Node, ready: asyncio.Event) -> list[tuple[int, str, str]]:
        """Follow the heads, as they replace each other, until the reorganisation is three blocks old."""
        found: list[tuple[int, str, str]] = []
        after = 0
        async with it.websocket(network) as client:
            assert "result" in await call(client, *subscribe)
            while after < 3:
                new = head(await said(client))
                if new is None:
                    continue
                if found and new[0] <= found[-1][0]:
                    after = 1
                    found = [one for one in found if one[0] < new[0]]
                elif after:
                    after += 1
                assert not found or (new[0], new[2]) == (found[-1][0] + 1, found[-1][1])
                found.append(new)
                if len(found) == 4:
                    ready.set()
        return found

    async def script() -> None:
        events = [asyncio.Event() for _ in range(2)]
        followers = [
            asyncio.ensure_future(follow(it, ready)) for it, ready in zip((one, other), events, strict=True)
        ]
        for ready in events:
            await asyncio.wait_for(ready.wait(), PATIENCE)
        await asyncio.to_thread(one.get, network, "demo_reorg", 2)
        first, second = await asyncio.gather(*followers)
        shared = {height for height, *_ in first} & {height for height, *_ in second}
        assert len(shared) >= 3
        assert [one for one in first if one[0] in shared] == [one for one in second if one[0] in shared]

    with node(tmp_path, *same) as one, node(tmp_path, *same) as other:
        listening(script)


def test_a_client_that_does_not_read_is_cut_and_one_that_reads_is_not(tmp_path: Path) -> None:
    network, subscribe = "starknet/mainnet", "starknet_subscribeNewTransactionReceipts"

    async def read_up_to(reader: ClientConnection, height: int) -> None:
        while (await said(reader))["params"]["result"]["block_number"] < height:
            pass

    async def script() -> None:
        async with it.websocket(network, narrow=True) as slow, it.websocket(network) as fast:
            for client in (slow, fast):
                assert "result" in await call(client, subscribe)
            slow.transport.pause_reading()
            # Almost as much each time as the queue holds; what the system keeps for both ends is full some day.
            for _ in range(40):
                height = (await asyncio.to_thread(it.get, network, "demo_mine", 200))["head"]
                await asyncio.wait_for(read_up_to(fast, height), PATIENCE)
                if (await asyncio.to_thread(it.get, network, "demo_state"))["subscriptions"] == 1:
                    break
            else:
                pytest.fail("it was not cut")
            slow.transport.resume_reading()
            with pytest.raises(ConnectionClosed):
                await read_up_to(slow, 2**60)

    with node(tmp_path, *BY_HAND, "--family", "starknet", "--queue-bytes", "1200000") as it:
        listening(script)
        assert it.program.err.read_text() == ""


def test_unknown_paths_are_refused_and_calls_are_answered(tmp_path: Path) -> None:
    async def script() -> None:
        with pytest.raises(InvalidStatus):
            await connect(it.said["url"].replace("http", "ws") + "/eth/holesky")
        async with it.websocket("eth/mainnet") as client:
            assert (await call(client, "eth_chainId"))["result"] == "0x1"
            assert (await call(client, "eth_subscribe", "nothing"))["error"]["code"] == -32602
            it.program.send(signal.SIGTERM)
            with pytest.raises(ConnectionClosed):
                await asyncio.wait_for(client.recv(), PATIENCE)
        assert it.program.popen.wait(10) == 0

    with node(tmp_path, *BY_HAND) as it:
        listening(script)


# ---- the libraries that people use


def follows(heads: list[list[Any]]) -> bool:
    return all(new[0] == old[0] + 1 and new[2] == old[1] for old, new in pairwise(heads))


def test_starknet_js_listens(tmp_path: Path) -> None:
    with node(tmp_path, *BY_HAND) as it:
        url = it.said["networks"]["starknet/mainnet"]
        told = run_node("starknetjs_listen.mjs", url, folder=tmp_path, clients=CLIENTS)
    first = told["first"]
    assert [head[0] for head in told["heads"]] == [first - 1, first, first + 1, first + 2]
    assert follows(told["heads"])
    assert told["reorg"]["starting_block_number"] == told["reorg"]["ending_block_number"] == first + 2
    assert told["reorg"]["ending_block_hash"] == told["heads"][-1][1]
    assert follows([told["heads"][-2], told["replaced"]])
    assert told["events"] > 0
    assert told["statuses"] == ["RECEIVED", "ACCEPTED_ON_L2"]
    assert (told["receipts"], told["transactions"]) == (1, ["RECEIVED", "ACCEPTED_ON_L2"])
    assert told["ended"] is True


def test_starknet_py_listens(tmp_path: Path) -> None:
    with node(tmp_path, *BY_HAND) as it:
        url = it.said["networks"]["starknet/mainnet"]
        told = run_python("starknet", "starknet_listen.py", url, folder=tmp_path, clients=CLIENTS)
    first = told["first"]
    assert [head[0] for head in told["heads"]] == [first - 1, first, first + 1, first + 2, first + 2]
    assert follows(told["heads"][:4])
    assert told["reorg"] == [first + 2, told["heads"][3][1]]
    assert told["events"] > 0
    assert told["statuses"] == ["RECEIVED", "ACCEPTED_ON_L2"]
    assert (told["receipts"], told["transactions"]) == (3, 6)
    assert told["ended"] is True


def test_viem_listens(tmp_path: Path) -> None:
    with node(tmp_path, *BY_HAND) as it:
        told = run_node("viem_listen.mjs", it.said["networks"]["eth/mainnet"], folder=tmp_path, clients=CLIENTS)
    assert told["failures"] == []
    assert told["is_keccak"]
    assert told["pending"] == [told["transaction"]]
    assert [found[0] for found in told["blocks"]] == [told["first"] + 1] * 2
    assert told["blocks"][0][1] != told["blocks"][1][1]
    assert (told["status"], told["mined"]) == ("success", told["first"] + 1)
    assert told["removed"] > 0


def test_ethers_listens(tmp_path: Path) -> None:
    with node(tmp_path, *BY_HAND) as it:
        told = run_node("ethers_listen.mjs", it.said["networks"]["eth/mainnet"], folder=tmp_path, clients=CLIENTS)
    assert told["pending"] == [told["transaction"]]
    assert told["blocks"] == [told["first"] + 1, told["first"] + 2]
    assert (told["status"], told["mined"]) == (1, told["first"] + 1)


# ---- the command


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_code_0(tmp_path: Path, number: signal.Signals) -> None:
    with node(tmp_path, "--family", "eth") as it:
        it.program.send(number)
        assert it.program.popen.wait(10) == 0
        assert it.program.err.read_text() == ""
        assert len(it.program.lines()) == 1


def refusal(*arguments: str) -> tuple[int, str]:
    ended = subprocess.run([*NODE, *arguments], capture_output=True, text=True, timeout=30, check=False)
    assert ended.stdout == ""
    assert "Traceback" not in ended.stderr
    return ended.returncode, ended.stderr


def test_what_cannot_be_started_is_told(tmp_path: Path) -> None:
    port = free_port()
    shared = ("--shared", str(tmp_path / "shared"))
    with node(tmp_path, "--port", str(port), *shared, "--seed", "1"):
        code, words = refusal("--port", str(port))
        assert (code, str(port) in words) == (1, True)
        code, words = refusal(*shared, "--seed", "2")
        assert (code, "another chain" in words) == (1, True)
    assert refusal("--family", "bitcoin")[0] == 2
    assert refusal("--block-seconds", "-1")[0] == 2


def test_memory_does_not_grow_with_blocks(tmp_path: Path) -> None:
    def resident() -> int:
        argv = ["ps", "-o", "rss=", "-p", str(it.program.pid)]
        return 1024 * int(subprocess.run(argv, capture_output=True, check=True, timeout=10).stdout)

    with node(tmp_path, *BY_HAND, "--family", "eth") as it:
        it.get("eth/mainnet", "demo_mine", 1_000)
        before = resident()
        for _ in range(20):
            it.get("eth/mainnet", "demo_mine", 1_000)
            it.get("eth/mainnet", "eth_getLogs", {"fromBlock": "latest"})
        assert resident() - before < 8 * 1024 * 1024
