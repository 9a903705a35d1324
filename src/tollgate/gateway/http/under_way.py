"""Calls and requests under way in a worker: hedging of late calls, tasks of the slow path, the end of the grace.

Also the protocols between a call and its caller's connection: neither imports the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from tollgate.gateway.http.known_heads import Admitted
from tollgate.gateway.http.outbox import Leaving, Outgoing
from tollgate.gateway.messages import Answer, Request

# How often calls under way are compared with the usual latency of their upstreams.
HEDGE_SWEEP_SECONDS = 0.005


class CallUnderWay(Outgoing, Protocol):
    """A call or a batch that waits for its answer."""

    def hedge_if_late(self, now: float) -> None:
        """Send a second attempt where the first takes too long."""

    def stop(self) -> None:
        """Answer with a refusal: the service stops."""


class ConnectionCall(CallUnderWay, Protocol):
    """The call object of a connection. It gets back the admissions that it was given by `FastPath`."""

    def start(self, admission: Admitted, body: bytes) -> bool:
        """Send a call on the fast path; False: nothing was done."""

    def go(self, admission: Admitted, body: bytes) -> bool:
        """Start a call or batch of any kind; False: nothing was done, it is to be refused."""


class CallerSide(Leaving, Protocol):
    """What a call needs of its caller's connection."""

    answering: CallUnderWay | Request | None
    """What is being answered."""

    @property
    def speaks_http(self) -> bool:
        """Whether answers have heads; those of a WebSocket have none."""

    @property
    def eof(self) -> bool:
        """Whether the caller has sent its last byte, or there is no HTTP to be written."""

    @property
    def closing(self) -> bool:
        """Whether the connection closes after this answer."""

    def answered(self, request: Request, answer: Answer) -> None:
        """Send an answer that the call does not write itself."""


class HttpCaller(CallerSide, Protocol):
    """A connection that uses one call object for one request after the other."""

    call: ConnectionCall | None
    admission: Admitted | None


class UnderWay:
    """What is under way in a worker."""

    __slots__ = ("_loop", "_now", "calls", "sweeping", "tasks")

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._loop = asyncio.get_running_loop()
        self.calls: set[CallUnderWay] = set()
        """Calls that wait for their answers."""
        self.tasks: set[asyncio.Task[Answer | None]] = set()
        """Requests whose callers are looked up, or that subscribe."""
        self.sweeping = False
        """Whether a sweep for late calls is scheduled."""

    def __len__(self) -> int:
        return len(self.calls) + len(self.tasks)

    def start(
        self, answering: Coroutine[Any, Any, Answer | None], done: Callable[[asyncio.Task[Answer | None]], None]
    ) -> asyncio.Task[Answer | None]:
        """Run the coroutine of a request as a task; `done` is called with it at the end."""
        task = self._loop.create_task(answering)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        task.add_done_callback(done)
        return task

    def sweep_later(self) -> None:
        """Compare the calls under way with the usual latency of their upstreams, in a moment."""
        self.sweeping = True
        self._loop.call_later(HEDGE_SWEEP_SECONDS, self._sweep)

    def _sweep(self) -> None:
        self.sweeping = False
        if self.calls:
            now = self._now()
            for call in list(self.calls):
                call.hedge_if_late(now)
            self.sweep_later()

    def stop(self) -> None:
        """At the end of the grace: answer what is still under way with a refusal."""
        while self.calls:
            # Calls that wait for the same answer are refused with it, and leave the set.
            self.calls.pop().stop()
        for task in list(self.tasks):
            task.cancel()
