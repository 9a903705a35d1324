"""Listening to new heads: a scripted WebSocket, and pauses that take no time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from tests.conftest import NewLoop
from tests.gateway.fakes import run_pending
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosedOK, InvalidURI

from tollgate.chains.heads import Block
from tollgate.gateway.upstream import listener
from tollgate.gateway.upstream.listener import FeedSocket, UpstreamListener
from tollgate.settings import model

SUBSCRIBED = {"jsonrpc": "2.0", "id": 1, "result": "0x1"}
NO_METHOD = {"jsonrpc": "2.0", "id": 1, "error": {"code": -32601, "message": "no"}}


def eth_head(number: int) -> dict[str, Any]:
    head = {"number": hex(number), "hash": f"0x{number}b", "parentHash": f"0x{number - 1}b", "miner": "0x0"}
    return {"jsonrpc": "2.0", "method": "eth_subscription", "params": {"subscription": "0x1", "result": head}}


STARKNET_HEAD = {
    "jsonrpc": "2.0",
    "method": "starknet_subscriptionNewHeads",
    "params": {
        "subscription_id": "1",
        "result": {"block_number": 7, "block_hash": "0x07", "parent_hash": "0x6", "timestamp": 1},
    },
}


class FakeSocket:
    """What one connection sends, and how it ends. Without an end it stays silent."""

    def __init__(self, *messages: dict[str, Any] | str, end: BaseException | None = None) -> None:
        self.messages = list(messages)
        self.end = end
        self.sent: list[dict[str, Any]] = []

    async def send(self, message: str) -> None:
        self.sent.append(json.loads(message))

    async def recv(self) -> str | bytes:
        if self.messages:
            sent = self.messages.pop(0)
            return sent if isinstance(sent, str) else json.dumps(sent)
        if self.end is None:
            await asyncio.Event().wait()
        assert self.end is not None
        raise self.end


class ListenerSetup:
    """A listener whose connections are scripted, one after the other; the last one stays silent."""

    def __init__(self, *sockets: FakeSocket | BaseException, family: str = "eth") -> None:
        self.sockets = list(sockets)
        self.opened = 0
        self.heads: list[Block] = []
        self.rests: list[float] = []
        upstream = model.UpstreamSettings(name="a", url="http://a", ws_url="ws://a")
        self.listener = UpstreamListener(
            family, upstream, self.heads.append, open_socket=self.open, rest=self.rest
        )

    def open(self, upstream: model.UpstreamSettings) -> AbstractAsyncContextManager[FeedSocket]:
        return self._open()

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[FeedSocket]:
        self.opened += 1
        socket = self.sockets.pop(0) if self.sockets else FakeSocket()
        if isinstance(socket, BaseException):
            raise socket
        yield socket

    async def rest(self, seconds: float) -> None:
        self.rests.append(seconds)
        await asyncio.sleep(0)


@pytest.fixture
def new_loop() -> NewLoop:
    """A loop with sockets."""
    return asyncio.new_event_loop


async def play(*sockets: FakeSocket | BaseException, family: str = "eth") -> ListenerSetup:
    setup = ListenerSetup(*sockets, family=family)
    await run_pending(200)
    return setup


async def test_heads_are_received() -> None:
    socket = FakeSocket(SUBSCRIBED, eth_head(7), eth_head(8))
    setup = await play(socket)
    assert [call["method"] for call in socket.sent] == ["eth_subscribe"]
    assert setup.heads == [Block(7, "0x7b", "0x6b"), Block(8, "0x8b", "0x7b")]
    assert setup.listener.listening


async def test_listener_is_not_listening_before_the_subscription() -> None:
    assert not ListenerSetup(FakeSocket(SUBSCRIBED)).listener.listening


async def test_heads_of_starknet_are_received() -> None:
    socket = FakeSocket({"id": 1, "result": "1"}, STARKNET_HEAD)
    assert (await play(socket, family="starknet")).heads == [Block(7, "0x7", "0x6")]
    assert socket.sent[0]["method"] == "starknet_subscribeNewHeads"


async def test_a_head_may_come_before_the_answer_to_the_subscription() -> None:
    assert [head.number for head in (await play(FakeSocket(eth_head(7), SUBSCRIBED))).heads] == [7]


@pytest.mark.parametrize(
    "end",
    [
        OSError("no route"),
        ConnectionRefusedError(),
        TimeoutError(),
        InvalidURI("ws://a", "bad"),
        FakeSocket(end=ConnectionClosedOK(None, None)),
        FakeSocket(NO_METHOD),
        FakeSocket("{nonsense"),
        FakeSocket("[]"),
        FakeSocket(SUBSCRIBED, {"method": "eth_subscription", "params": {"result": {"number": "x"}}}),
        FakeSocket(SUBSCRIBED, {"method": "eth_subscription", "params": {}}),
    ],
)
async def test_whatever_ends_it_is_tried_again(end: FakeSocket | BaseException) -> None:
    setup = await play(end, FakeSocket(SUBSCRIBED, eth_head(9)))
    assert [head.number for head in setup.heads] == [9]
    assert len(setup.rests) == 1


async def test_rests_grow_while_nothing_is_received_and_are_short_again_after_a_head() -> None:
    failures = [OSError() for _ in range(9)]
    setup = await play(*failures, FakeSocket(SUBSCRIBED, eth_head(9), end=OSError()), OSError())
    most = [min(60.0, 0.5 * 2**step) for step in range(9)]
    assert all(limit / 2 <= rest <= limit * 1.5 for rest, limit in zip(setup.rests, most, strict=False))
    assert setup.rests[9] <= 0.75


async def test_a_subscription_that_is_made_and_lost_again_and_again_is_made_ever_more_slowly() -> None:
    setup = await play(*(FakeSocket(SUBSCRIBED, end=OSError()) for _ in range(5)))
    assert setup.rests[4] >= 4.0


async def test_stop_ends_it() -> None:
    setup = ListenerSetup(FakeSocket(SUBSCRIBED))
    await run_pending()
    setup.listener.stop()
    await run_pending()
    assert setup.opened == 1
    assert setup.rests == []


async def test_a_family_without_subscriptions_is_not_listened_to() -> None:
    assert (await play(family="other")).opened == 0


async def test_a_real_connection_carries_headers_and_heads() -> None:
    heads: asyncio.Queue[Block] = asyncio.Queue()
    seen: list[str | None] = []

    async def node(connection: ServerConnection) -> None:
        assert connection.request is not None
        seen.append(connection.request.headers.get("Authorization"))
        await connection.recv()
        await connection.send(json.dumps(SUBSCRIBED))
        await connection.send(json.dumps(eth_head(7)).encode())
        await connection.wait_closed()

    async with serve(node, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        upstream = model.UpstreamSettings(
            name="a", url="http://a", ws_url=f"ws://127.0.0.1:{port}", headers={"Authorization": "Bearer x"}
        )
        listener = UpstreamListener("eth", upstream, heads.put_nowait)
        async with asyncio.timeout(30):
            assert await heads.get() == Block(7, "0x7b", "0x6b")
        listener.stop()
    assert seen == ["Bearer x"]


def test_the_library_does_not_write_addresses_to_the_log() -> None:
    assert listener._silent.disabled
