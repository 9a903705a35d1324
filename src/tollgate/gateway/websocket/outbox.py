"""What waits to be sent to one client: in order, within a bound, and counted where it is large or waits beyond it.

Knows no JSON-RPC and closes nothing. It reports where there is no room; what follows from that the caller decides.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from tollgate.gateway.memory_budget import SMALL, Budget

Send = Callable[[dict[str, Any]], Awaitable[None]]


class Outbox:
    """What waits for one client."""

    def __init__(self, budget: Budget, max_bytes: int, on_sent: Callable[[], None], address: str) -> None:
        self._budget = budget
        self._max_bytes = max_bytes
        self._on_sent = on_sent
        self._address = address
        self._waiting: deque[tuple[bytes, int]] = deque()
        """What is to be sent, and how much of it the budget counts."""
        self._bytes = 0
        self._sending = False
        """Set while something waits for the client to take what was sent before."""
        self._wake = asyncio.Event()
        self._finishing = False

    @property
    def is_full(self) -> bool:
        """Whether more waits than may."""
        return self._bytes > self._max_bytes

    @property
    def has_room(self) -> bool:
        """Whether there is room for much more."""
        return 2 * self._bytes <= self._max_bytes

    def put(self, data: bytes) -> None:
        self._put(data, 0)

    def put_beyond(self, data: bytes) -> bool:
        """Let something wait beyond the bound too, while the worker has room; False where it has none."""
        # What goes out at once is counted by the connection, where its client does not take it.
        at_once = not (self._waiting or self._sending)
        if at_once or (len(data) <= SMALL and not self.is_full):
            self._put(data, 0)
        elif self._budget.hold(len(data), self._address):
            self._put(data, len(data))
        else:
            return False
        return True

    def _put(self, data: bytes, held: int) -> None:
        self._waiting.append((data, held))
        self._bytes += len(data)
        self._wake.set()

    async def write(self, send: Send) -> None:
        """Send what waits, until it is finished or the client is gone."""
        with suppress(OSError):
            while True:
                while self._waiting:
                    data, held = self._waiting.popleft()
                    self._bytes -= len(data)
                    self._sending = True
                    try:
                        await send({"type": "websocket.send", "text": data.decode()})
                    finally:
                        self._sending = False
                        self._budget.free(held, self._address)
                    self._on_sent()
                if self._finishing:
                    return
                self._wake.clear()
                await self._wake.wait()

    def finish(self) -> None:
        """Let `write` end when nothing waits any more."""
        self._finishing = True
        self._wake.set()

    def drop(self) -> None:
        for _, held in self._waiting:
            self._budget.free(held, self._address)
        self._waiting.clear()
        self._bytes = 0
