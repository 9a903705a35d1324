"""WebSocket connections to the simulated node, over ASGI: order, bounds and ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from tollgate.demo.chain import BLOCK_SECONDS
from tollgate.demo.control import Faults
from tollgate.demo.eth import EthNode
from tollgate.demo.node import MAX_SESSIONS, SimulatedNode
from tollgate.demo.session import MAX_SUBSCRIPTIONS, Session
from tollgate.demo.starknet import StarknetNode

GENESIS = 1_800_000_000
HEAD = 5_001
NOW = GENESIS + HEAD * BLOCK_SECONDS + 0.5
PATIENCE = 10.0


class Client:
    """The other end of one connection: what it sends, and what it was sent."""

    def __init__(self) -> None:
        self.incoming: asyncio.Queue[Any] = asyncio.Queue()
        self.outgoing: asyncio.Queue[Any] = asyncio.Queue()
        self.reads = asyncio.Event()
        self.reads.set()
        self.incoming.put_nowait({"type": "websocket.connect"})

    async def send(self, message: Any) -> None:
        """Take what the node sends, which waits while the client does not read."""
        if message["type"] == "websocket.send":
            await self.reads.wait()
        self.outgoing.put_nowait(message)

    def call(self, method: str, *params: object, id: object = 1) -> None:  # noqa: A002
        self.say({"jsonrpc": "2.0", "id": id, "method": method, "params": params})

    def say(self, value: object) -> None:
        self.incoming.put_nowait({"type": "websocket.receive", "text": msgspec.json.encode(value).decode()})

    def leave(self) -> None:
        self.incoming.put_nowait({"type": "websocket.disconnect", "code": 1000})

    async def told(self) -> Any:
        message = await asyncio.wait_for(self.outgoing.get(), PATIENCE)
        return msgspec.json.decode(message["text"]) if message["type"] == "websocket.send" else message


def talk(
    session: Callable[[], Session],
    script: Callable[[Client], Awaitable[None]],
) -> None:
    """Run a session and, beside it, what a client does; both must come to an end."""

    async def run() -> None:
        client = Client()
        serving = asyncio.ensure_future(session().run(client.incoming.get, client.send))
        assert await client.told() == {"type": "websocket.accept"}
        await script(client)
        client.leave()
        await asyncio.wait_for(serving, PATIENCE)

    asyncio.run(run())


def test_calls_are_answered_in_order_and_batches_whole() -> None:
    async def script(client: Client) -> None:
        client.call("eth_chainId", id="a")
        client.say([{"jsonrpc": "2.0", "id": 2, "method": "eth_blockNumber"}, {"jsonrpc": "2.0", "method": "x"}])
        client.incoming.put_nowait({"type": "websocket.receive", "bytes": b"{bad"})
        assert await client.told() == {"jsonrpc": "2.0", "id": "a", "result": "0x1"}
        assert await client.told() == [{"jsonrpc": "2.0", "id": 2, "result": hex(HEAD)}]
        assert (await client.told())["error"]["code"] == -32700

    talk(lambda: Session(EthNode("mainnet", GENESIS), None, lambda: NOW), script)


def test_a_subscription_is_answered_before_it_is_told_anything() -> None:
    async def script(client: Client) -> None:
        client.call("starknet_subscribeNewHeads", {"block_number": HEAD - 2})
        name = (await client.told())["result"]
        for height in (HEAD - 2, HEAD - 1, HEAD):
            notification = await client.told()
            assert notification["params"]["subscription_id"] == name
            assert notification["params"]["result"]["block_number"] == height
        client.call("starknet_unsubscribe", name)
        assert (await client.told())["result"] is True
        client.call("starknet_unsubscribe", name)
        assert (await client.told())["error"]["code"] == 66

    talk(lambda: Session(StarknetNode("mainnet", GENESIS), None, lambda: NOW), script)


def test_an_answer_that_is_kept_back_still_comes_before_the_notifications() -> None:
    async def script(client: Client) -> None:
        client.call("demo_delay", 100, ["eth_subscribe"])
        client.call("eth_subscribe", "newHeads")
        assert (await client.told())["result"]["delay"] == 100
        moment[0] += 3 * BLOCK_SECONDS
        name = (await client.told())["result"]
        for height in range(HEAD + 1, HEAD + 4):
            notification = await client.told()
            assert notification["params"]["subscription"] == name
            assert notification["params"]["result"]["number"] == hex(height)
        client.call("eth_unsubscribe", name)
        assert (await client.told())["result"] is True
        client.call("eth_unsubscribe", "0x1")
        assert (await client.told())["error"]["code"] == -32000

    moment = [NOW]
    node = EthNode("mainnet", GENESIS)
    talk(lambda: Session(node, Faults(), lambda: moment[0]), script)


def test_a_status_on_command_is_an_error_here() -> None:
    async def script(client: Client) -> None:
        client.call("demo_fail", 1, 503)
        client.call("eth_chainId")
        client.call("eth_chainId")
        assert (await client.told())["result"]["failing"] == 1
        assert (await client.told())["error"] == {"code": -32603, "message": "HTTP status 503"}
        assert (await client.told())["result"] == "0x1"

    talk(lambda: Session(EthNode("mainnet", GENESIS), Faults(), lambda: NOW), script)


def test_a_client_that_reads_too_slowly_is_cut_and_forgotten() -> None:
    async def script(client: Client) -> None:
        client.call("eth_subscribe", "logs")
        assert "result" in await client.told()
        client.reads.clear()
        # Far more logs than fit.
        moment[0] += 50 * BLOCK_SECONDS
        end = await client.told()
        assert (end["type"], end["code"]) == ("websocket.close", 1013)
        client.reads.set()

    moment = [NOW]
    node = EthNode("mainnet", GENESIS)
    talk(lambda: Session(node, None, lambda: moment[0], queue_bytes=10_000), script)
    assert node.feed.size == 0


def test_a_client_that_reads_is_not_cut_however_much_it_gets() -> None:
    async def script(client: Client) -> None:
        client.call("eth_subscribe", "newHeads")
        assert "result" in await client.told()
        for height in range(HEAD + 1, HEAD + 40):
            moment[0] += BLOCK_SECONDS
            assert (await client.told())["params"]["result"]["number"] == hex(height)

    moment = [NOW]
    node = EthNode("mainnet", GENESIS)
    talk(lambda: Session(node, None, lambda: moment[0], queue_bytes=10_000), script)


def test_the_subscriptions_of_a_connection_have_a_bound_and_end_with_it() -> None:
    async def script(client: Client) -> None:
        for _ in range(MAX_SUBSCRIPTIONS + 1):
            client.call("eth_subscribe", "newHeads")
        answers = [await client.told() for _ in range(MAX_SUBSCRIPTIONS + 1)]
        assert len({one["result"] for one in answers[:-1]}) == MAX_SUBSCRIPTIONS
        assert answers[-1]["error"]["code"] == -32005
        assert node.feed.size == MAX_SUBSCRIPTIONS

    node = EthNode("mainnet", GENESIS)
    talk(lambda: Session(node, None, lambda: NOW), script)
    assert node.feed.size == 0


def test_a_message_over_the_limit_ends_the_connection() -> None:
    async def script(client: Client) -> None:
        client.incoming.put_nowait({"type": "websocket.receive", "text": " " * (6 * 1024 * 1024)})
        assert (await client.told())["code"] == 1009

    talk(lambda: Session(EthNode("mainnet", GENESIS), None, lambda: NOW), script)


def test_one_connection_cannot_end_the_subscription_of_another() -> None:
    async def script(client: Client) -> None:
        client.call("eth_unsubscribe", name)
        assert (await client.told())["error"]["code"] == -32000

    node = EthNode("mainnet", GENESIS)
    heads: Any = node.subscribing.methods["eth_subscribe"].answer(node.view(NOW), {"kind": "newHeads"})
    name, _ = node.feed.open(heads, lambda _: None, NOW)
    talk(lambda: Session(node, None, lambda: NOW), script)
    assert node.feed.close(name)


def test_a_node_refuses_unknown_paths_and_too_many_connections() -> None:
    async def run() -> None:
        node = SimulatedNode(lambda: NOW, GENESIS)

        async def connect(path: str) -> Any:
            client = Client()
            scope = {"type": "websocket", "path": path}
            serving = asyncio.ensure_future(node(scope, client.incoming.get, client.send))
            return client, serving, (await client.told())["type"]

        assert (await connect("/eth/holesky"))[2] == "websocket.close"
        open_ones = [await connect("/eth/mainnet/") for _ in range(MAX_SESSIONS)]
        assert {kind for *_, kind in open_ones} == {"websocket.accept"}
        assert (await connect("/eth/mainnet"))[2] == "websocket.close"
        for client, serving, _ in open_ones:
            client.leave()
            await asyncio.wait_for(serving, PATIENCE)
        last, serving, kind = await connect("/starknet/sepolia")
        assert kind == "websocket.accept"
        last.leave()
        await asyncio.wait_for(serving, PATIENCE)

    asyncio.run(run())
