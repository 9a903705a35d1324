"""A scripted chain with forks, nodes that show it or fail, and subscribers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Raw
from tests.gateway.fakes import Clock, run_pending

from tollgate.chains import subscriptions_eth, subscriptions_starknet
from tollgate.chains.heads import NodeCall
from tollgate.chains.subscriptions import Subscription
from tollgate.core.shapes import Reply
from tollgate.errors import UpstreamUnavailable
from tollgate.gateway.feeds.feed import Feed
from tollgate.gateway.feeds.pending import PendingTransaction, PendingTransactions
from tollgate.gateway.feeds.source import EthSource, StarknetSource
from tollgate.gateway.feeds.subscribers import Subscriber
from tollgate.settings.model import UpstreamSettings
from tollgate.shm.upstream_status import NetworkStatus, SharedStatus

ADDRESSES = ("0x" + "aa" * 20, "0x" + "bb" * 20)
TOPICS = ("0x" + "11" * 32, "0x" + "22" * 32)


class Chain:
    """A chain of one family. Blocks are named by number and fork: `3-0`, and `3-1` where that was replaced."""

    def __init__(self, family: str, height: int = 10) -> None:
        self.family = family
        self.scripted_chain = [0] * (height + 1)
        """The canonical fork at each height."""
        self.fork = 0
        self.calls: list[NodeCall] = []
        self.at_once = self.max_at_once = 0
        """Calls that wait for their answer."""
        self.fail: Callable[[NodeCall], bool] = lambda _: False
        self.older: Callable[[NodeCall], list[int] | None] = lambda _: None
        """What a node that is behind, or on another fork, sees; None: the canonical chain."""

    @property
    def height(self) -> int:
        return len(self.scripted_chain) - 1

    def mine(self, count: int = 1) -> None:
        self.scripted_chain += [self.fork] * count

    def reorganise(self, depth: int, count: int) -> int:
        """Replace the newest `depth` blocks by `count` others; return the number of the newest that stays."""
        depth = min(depth, self.height)
        self.fork += 1
        ancestor = self.height - depth
        self.scripted_chain = self.scripted_chain[: ancestor + 1] + [self.fork] * count
        return ancestor

    def hash(self, number: int, scripted_chain: Sequence[int] | None = None) -> str:
        scripted_chain = self.scripted_chain if scripted_chain is None else scripted_chain
        return f"0x{number + 1:x}{scripted_chain[number]:04x}{'f' * 8}" if number >= 0 else "0x0"

    def hashes(self, first: int) -> list[str]:
        """The canonical blocks, from this one on."""
        return [self.hash(number) for number in range(first, self.height + 1)]

    async def fetch(self, call: NodeCall) -> Reply:
        """Answer as the upstreams would."""
        self.calls.append(call)
        self.at_once += 1
        self.max_at_once = max(self.max_at_once, self.at_once)
        try:
            await asyncio.sleep(0)
        finally:
            self.at_once -= 1
        if self.fail(call):
            raise UpstreamUnavailable
        scripted_chain = self.older(call) or list(self.scripted_chain)
        answer = self._eth(call, scripted_chain) if self.family == "eth" else self._starknet(call, scripted_chain)
        if isinstance(answer, _Error):
            return Reply(error=Raw(json.dumps({"code": answer.code, "message": "no"}).encode()))
        return Reply(Raw(json.dumps(answer).encode()))

    # --- eth ---------------------------------------------------------------------------------------------

    def _eth(self, call: NodeCall, scripted_chain: list[int]) -> object:
        params: Any = call.params
        if call.method == "eth_blockNumber":
            return hex(len(scripted_chain) - 1)
        if call.method == "eth_getBlockByNumber":
            number = int(params[0], 16)
            if number >= len(scripted_chain):
                return None
            return {
                "number": hex(number),
                "hash": self.hash(number, scripted_chain),
                "parentHash": self.hash(number - 1, scripted_chain),
                "logsBloom": "0x01",
                "transactions": ["0x1"],
                "uncles": [],
                "size": "0x1",
            }
        assert call.method == "eth_getLogs"
        found = self._find(params[0]["blockHash"], scripted_chain)
        return _Error(-32000) if found is None else self.logs(found, scripted_chain)

    def logs(self, number: int, scripted_chain: list[int] | None = None) -> list[dict[str, Any]]:
        """Two logs a block."""
        return [
            {
                "address": ADDRESSES[at],
                "topics": [TOPICS[at], TOPICS[number % 2]],
                "blockHash": self.hash(number, scripted_chain),
                "blockNumber": hex(number),
                "logIndex": hex(at),
                "removed": False,
            }
            for at in range(2)
        ]

    # --- starknet ----------------------------------------------------------------------------------------

    def _starknet(self, call: NodeCall, scripted_chain: list[int]) -> object:
        params: Any = call.params
        if call.method == "starknet_blockNumber":
            return len(scripted_chain) - 1
        if call.method == "starknet_getEvents":
            return self._events(params["filter"], scripted_chain)
        if call.method == "starknet_getTransactionStatus":
            return _Error(29)
        block_id = params["block_id"]
        number = (
            block_id["block_number"]
            if "block_number" in block_id
            else self._find(block_id["block_hash"], scripted_chain)
        )
        if number is None or number >= len(scripted_chain):
            return _Error(24)
        block = {
            "block_number": number,
            "block_hash": self.hash(number, scripted_chain),
            "parent_hash": self.hash(number - 1, scripted_chain),
            "status": "ACCEPTED_ON_L2",
        }
        if call.method == "starknet_getBlockWithTxHashes":
            return block | {"transactions": ["0x1"]}
        assert call.method == "starknet_getBlockWithReceipts"
        entry = {
            "transaction": {"type": "INVOKE", "sender_address": "0xa"},
            "receipt": {"transaction_hash": self.hash(number, scripted_chain)[:-1] + "e", "type": "INVOKE"},
        }
        return block | {"transactions": [entry]}

    def _events(self, wanted: dict[str, Any], scripted_chain: list[int]) -> object:
        number = self._find(wanted["from_block"]["block_hash"], scripted_chain)
        if number is None:
            return _Error(24)
        events = [
            {
                "from_address": f"0x0{at}",
                "keys": [f"0x{at}"],
                "data": [],
                "block_hash": self.hash(number, scripted_chain),
            }
            for at in (1, 2, 3)
        ]
        # A page has two events.
        if "continuation_token" in wanted:
            return {"events": events[2:]}
        return {"events": events[:2], "continuation_token": "2"}

    def _find(self, block_hash: str, scripted_chain: list[int]) -> int | None:
        return next(
            (number for number in range(len(scripted_chain)) if self.hash(number, scripted_chain) == block_hash),
            None,
        )


class _Error:
    def __init__(self, code: int) -> None:
        self.code = code


class RecordingSink:
    """A connection that keeps what it receives."""

    def __init__(self) -> None:
        self.received: list[dict[str, Any]] = []
        self.lost: list[str] = []
        self.room = 1_000_000
        """After so many notifications it falls behind."""

    @property
    def has_room(self) -> bool:
        return len(self.received) < self.room

    def notify(self, data: bytes) -> None:
        self.received.append(json.loads(data))

    def lose(self, why: str) -> None:
        self.lost.append(why)

    def results(self) -> list[Any]:
        return [each["params"]["result"] for each in self.received]


class Pace:
    """Sleeps that end when the test decides."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.pauses: list[float] = []
        self._waiting: list[asyncio.Future[None]] = []

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        waits: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waits)
        await waits

    async def turn(self, loops: int) -> None:
        """Wake all sleepers once, and run so many turns of the loop."""
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)
        await run_pending(loops)


def _nothing_set() -> list[UpstreamSettings]:
    return []


async def silence(upstream: UpstreamSettings, full: bool) -> Any:
    """An upstream that sends nothing."""
    await asyncio.get_running_loop().create_future()
    yield PendingTransaction(b"", False)


class FeedSetup:
    """A feed on a scripted chain, with a shared status that shows its head."""

    def __init__(self, family: str = "eth", height: int = 10, *, probed: bool = True) -> None:
        self.chain = Chain(family, height)
        self.clock = Clock()
        self.pace = Pace(self.clock)
        self.shared_status = SharedStatus(1, self.clock)
        self.row: NetworkStatus = self.shared_status.network(0)
        self.probed = probed
        source = EthSource if family == "eth" else StarknetSource
        path = f"{family}/mainnet"
        pending = PendingTransactions(path, _nothing_set, silence, self.pace.sleep)
        self.feed = Feed(path, self.row, source(self.chain.fetch), pending, self.clock, self.pace.sleep)
        self.publish()

    def publish(self) -> None:
        """Publish the chain's head, as the prober does."""
        if self.probed:
            self.row.publish(self.chain.height, 0, changed=True)

    def mine(self, count: int = 1) -> None:
        self.chain.mine(count)
        self.publish()

    def reorganise(self, depth: int, count: int) -> None:
        ancestor = self.chain.reorganise(depth, count)
        if self.probed:
            self.row.publish_reorg(ancestor)
        self.publish()

    async def turn(self, count: int = 1, loops: int = 150) -> None:
        for _ in range(count):
            self.clock.advance(1.0)
            if self.probed:
                self.row.pulse()
            await self.pace.turn(loops)

    async def listen(
        self,
        method: str,
        params: Any,
        *,
        opened: bool = True,
        charge: Callable[[int], None] | None = None,
        team: object = None,
    ) -> tuple[Subscriber, RecordingSink]:
        """Subscribe as a caller does."""
        given = [Raw(json.dumps(each).encode()) for each in params]
        family = self.chain.family
        spoken = subscriptions_eth if family == "eth" else subscriptions_starknet
        parsed = spoken.parse(method, given)
        assert isinstance(parsed, Subscription)
        sink = RecordingSink()
        subscriber = Subscriber(parsed, "1", family, sink)
        subscriber.charge = charge or subscriber.charge
        subscriber.team = team
        await self.feed.join(subscriber)
        if opened:
            subscriber.open()
        return subscriber, sink


def numbers(results: list[Any]) -> list[int]:
    """The numbers of blocks that were reported (eth)."""
    return [int(each["number"], 16) for each in results]


def hashes(results: list[Any], name: str = "hash") -> list[str]:
    """Their hashes."""
    return [each[name] for each in results]
