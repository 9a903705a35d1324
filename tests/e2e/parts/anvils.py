"""Several anvil nodes with one chain: the same blocks, with the same hashes, mined when the test decides.

anvil has no peers. Nodes that begin alike, are sent the same transactions and mine at the same heights
make equal blocks, because a block's time follows from its parent's. So a node can also stay behind, and come along
later.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from .anvil import SEPOLIA, Anvil, anvil

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_ALIKE = ("--no-mining", "--timestamp", "1700000000", "--silent")
_BLOCK_SECONDS = 2
"""By the chain's own clock."""
EMITTER = "0x00000000000000000000000000000000000e1117"
"""A contract that emits `Tick(uint256)` with the number it is called with."""
TICK = "0xb8c95b3cea6303a753d912e243354ef08add1085ed07d34191514ef1001ef9d8"
LARGE = "0x0000000000000000000000000000000000001a46"
"""A contract whose code is large."""
LARGE_BYTES = 48_000
# Copies the first 32 bytes of its input to memory, and emits them under the topic.
_EMITS = f"0x602060006000377f{TICK[2:]}60206000a100"
_FEES = {"gas": hex(100_000), "maxFeePerGas": hex(10**12), "maxPriorityFeePerGas": "0x1"}


class Chain:
    """The nodes, and which of them follow the chain."""

    def __init__(self, nodes: list[Anvil]) -> None:
        self.nodes = nodes
        self.height = 0
        self.ticks = 0
        """How often the emitter was called; the number that it was called with last."""
        self._following = list(nodes)
        self._blocks: list[list[str]] = []
        """What was sent for each block, from block 1 on."""
        self._lock = threading.Lock()
        for node in nodes:
            node.call("anvil_setBlockTimestampInterval", _BLOCK_SECONDS)
            node.call("anvil_setCode", EMITTER, _EMITS)
            node.call("anvil_setCode", LARGE, "0x" + "00" * LARGE_BYTES)

    def mine(self, blocks: int = 1, *, ticks: int = 0) -> None:
        """Mine on all nodes that follow, with so many calls of the emitter in each block."""
        with self._lock:
            for _ in range(blocks):
                sent = self._signed(ticks)
                for node in self._following:
                    _mine(node, sent)
                self._blocks.append(sent)
                self.height += 1

    def leave(self, node: Anvil) -> None:
        """Let a node stay where it is from now on. A node that is killed or paused has to leave first."""
        with self._lock:
            self._following.remove(node)

    def join(self, node: Anvil) -> None:
        """Let a node come along to the head and follow again; not after a reorganisation that it missed."""
        with self._lock:
            for sent in self._blocks[int(node.call("eth_blockNumber"), 16) :]:
                _mine(node, sent)
            self._following.append(node)

    def reorganise(self, depth: int) -> None:
        """Replace the newest blocks, on all nodes that follow, by as many empty ones."""
        with self._lock:
            for node in self._following:
                node.call("anvil_reorg", depth, [])
            self._blocks[-depth:] = [[] for _ in range(depth)]

    @contextmanager
    def undone(self) -> Iterator[None]:
        """Mine, and have none of it have happened in the end (snapshot and revert)."""
        snapshots = [(node, node.call("evm_snapshot")) for node in self._following]
        height = self.height
        yield
        with self._lock:
            for node, snapshot in snapshots:
                node.call("evm_revert", snapshot)
            del self._blocks[height:]
            self.height = height

    def block(self, number: int) -> dict[str, Any]:
        """Read a block of a node that follows."""
        found: dict[str, Any] = self._following[0].call("eth_getBlockByNumber", hex(number), False)
        return found

    def hashes(self) -> list[str]:
        """Give the hash of each block, from block 0 on."""
        return [self.block(number)["hash"] for number in range(self.height + 1)]

    @contextmanager
    def growing(self, every: float, *, ticks: int = 0) -> Iterator[None]:
        """Mine in the background, a block every so many seconds."""
        over = threading.Event()
        failures: list[BaseException] = []

        def go_on() -> None:
            try:
                while not over.wait(every):
                    self.mine(ticks=ticks)
            except BaseException as error:  # noqa: BLE001 - it is raised where the test sees it
                failures.append(error)

        thread = threading.Thread(target=go_on, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(30)
            if failures:
                raise AssertionError("the chain does not grow any more") from failures[0]

    def _signed(self, count: int) -> list[str]:
        signed: list[str] = []
        if not count:
            return signed
        node = self._following[0]
        sender = node.call("eth_accounts")[0]
        nonce = int(node.call("eth_getTransactionCount", sender, "latest"), 16)
        for offset in range(count):
            self.ticks += 1
            call = {"from": sender, "to": EMITTER, "data": f"0x{self.ticks:064x}", "nonce": hex(nonce + offset)}
            signed.append(node.call("eth_signTransaction", {**call, **_FEES}))
        return signed


def _mine(node: Anvil, sent: list[str]) -> None:
    for raw in sent:
        node.call("eth_sendRawTransaction", raw)
    node.call("evm_mine")


@contextmanager
def chain(folder: Path, count: int, *, chain_id: int = SEPOLIA) -> Iterator[Chain]:
    """Run so many nodes with one chain at block 0."""
    with ExitStack() as opened:
        nodes = [
            opened.enter_context(anvil(folder / f"anvil-{number}", chain_id=chain_id, arguments=_ALIKE))
            for number in range(count)
        ]
        yield Chain(nodes)
