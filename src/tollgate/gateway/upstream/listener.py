"""Listens to an upstream's new heads on a WebSocket, so that a block is known before the next probe.

An extra, never a need: whatever goes wrong here ends in another attempt a while later, and polling goes on
meanwhile. Beside `transport.py` the only opener of sockets to upstreams.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from random import random
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec import Raw, Struct
from websockets.exceptions import WebSocketException

from tollgate import __version__
from tollgate.chains import heads
from tollgate.chains.heads import Block
from tollgate.core.shapes import ABSENT
from tollgate.lazy_module import LazyModule
from tollgate.settings.model import UpstreamSettings

if TYPE_CHECKING:
    from websockets.asyncio import client as websocket_client
else:  # 1 MB that only processes with feeds need
    websocket_client = LazyModule("websockets.asyncio.client")

OPEN_SECONDS = 10.0
# Without a head for so long the subscription is made anew: some servers forget one and keep the connection.
SILENCE_SECONDS = 120.0
FIRST_WAIT_SECONDS, MAX_WAIT_SECONDS = 0.5, 60.0
MAX_BYTES = 4_194_304

_SUBSCRIBE = {"eth": ("eth_subscribe", ["newHeads"]), "starknet": ("starknet_subscribeNewHeads", {})}
# The library's log lines go nowhere: they hold addresses, and those hold keys.
_silent = logging.getLogger("tollgate.listener")
_silent.disabled = True


class FeedSocket(Protocol):
    """What is used of a WebSocket."""

    async def send(self, message: str) -> None:
        """Send a text."""

    async def recv(self) -> str | bytes:
        """Wait for a message."""


Connect = Callable[[UpstreamSettings], AbstractAsyncContextManager[FeedSocket]]


class HandshakeRefused(Exception):
    """The upstream does not offer new heads, or sends something else."""


class _Notification(Struct):
    result: Raw = ABSENT


class _Message(Struct):
    method: str = ""
    params: _Notification | None = None
    result: Raw = ABSENT
    error: Raw = ABSENT


_message = msgspec.json.Decoder(_Message).decode


def open_socket(upstream: UpstreamSettings) -> AbstractAsyncContextManager[FeedSocket]:
    """Connect to an upstream's WebSocket."""
    return websocket_client.connect(
        upstream.ws_url,
        additional_headers=upstream.headers,
        user_agent_header=f"tollgate/{__version__}",
        proxy=None,
        compression=None,
        open_timeout=OPEN_SECONDS,
        close_timeout=1.0,
        max_size=MAX_BYTES,
        logger=_silent,
    )


class UpstreamListener:
    """Receives new heads of one upstream until it is stopped."""

    def __init__(
        self,
        family: str,
        upstream: UpstreamSettings,
        on_head: Callable[[Block], None],
        *,
        open_socket: Connect = open_socket,
        rest: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._family = family
        self._upstream = upstream
        self._on_head = on_head
        self._open_socket = open_socket
        self._rest = rest
        self.listening = False
        """Whether there is a subscription."""
        self._received = False
        self._task = asyncio.get_running_loop().create_task(self._run()) if family in _SUBSCRIBE else None

    def stop(self) -> None:
        """Hang up."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        wait = FIRST_WAIT_SECONDS
        while True:
            # All that a connection can end with; the last two: a message that cannot be read.
            with suppress(OSError, WebSocketException, HandshakeRefused, ValueError, RecursionError):
                await self._listen()
            if self._received:
                wait = FIRST_WAIT_SECONDS
            self.listening = self._received = False
            await self._rest(wait * (0.5 + random()))
            wait = min(2 * wait, MAX_WAIT_SECONDS)

    async def _listen(self) -> None:
        method, params = _SUBSCRIBE[self._family]
        async with self._open_socket(self._upstream) as socket:
            call = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            await socket.send(msgspec.json.encode(call).decode())
            while True:
                async with asyncio.timeout(SILENCE_SECONDS):
                    message = _message(await socket.recv())
                if message.error is not ABSENT:
                    raise HandshakeRefused
                if message.params is not None:
                    self._received = True
                    self._on_head(heads.read_block(self._family, message.params.result))
                elif message.result is not ABSENT:
                    self.listening = True
