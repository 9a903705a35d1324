"""Upstreams as a worker sees them, without connections: peers on a board of their own; and how attempts fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from tests.gateway.fakes import Clock

from tollgate.errors import Overloaded, Refusal, UpstreamError, UpstreamTimeout, UpstreamUnavailable
from tollgate.gateway.upstream.attempts import BadStatus, Nonsense
from tollgate.gateway.upstream.choice import View
from tollgate.gateway.upstream.connection import (
    AttemptFailed,
    ConnectFailed,
    NoRoom,
    PoolFull,
    ResponseTooLarge,
    TimedOut,
)
from tollgate.gateway.upstream.failover import OutOfStep
from tollgate.gateway.upstream.health import Upstream
from tollgate.gateway.upstream.pool import Pool
from tollgate.settings import model
from tollgate.shm.upstream_status import NOTHING, SharedStatus, State

NO_POOL = cast("Pool", None)
HEAD = 100
"""The block at which everybody begins."""
METHOD = "eth_call"
DOUBT = "may have been carried out"
"""What a refusal says where nobody knows."""
Failure = tuple[type[AttemptFailed], bool, type[Refusal]]
"""How an attempt fails, whether the call had gone out by then, and the refusal where it was the last."""
FAILURES: list[Failure] = [
    (ConnectFailed, False, UpstreamUnavailable),
    (PoolFull, False, Overloaded),
    (TimedOut, False, UpstreamTimeout),
    (TimedOut, True, UpstreamTimeout),
    (AttemptFailed, True, UpstreamError),
    (ResponseTooLarge, True, UpstreamError),
    (NoRoom, True, Overloaded),
    (BadStatus, True, UpstreamError),
    (Nonsense, True, UpstreamError),
    (OutOfStep, True, UpstreamUnavailable),
]


class Company:
    """Some upstreams of one network."""

    def __init__(self, *settings: dict[str, Any], fresh: bool = True) -> None:
        self.clock = Clock()
        self.shared_status = SharedStatus(1, self.clock)
        self.row = self.shared_status.network(0)
        self.upstreams = [
            Upstream(
                model.UpstreamSettings(**{"name": "abcdefghij"[slot], "url": "http://node", **each}),
                NO_POOL,
                self.shared_status.upstream(slot),
                slot,
                "eth/mainnet",
            )
            for slot, each in enumerate(settings)
        ]
        self.upstreams.sort(key=lambda upstream: upstream.priority)
        if fresh:
            self.row.publish(HEAD, NOTHING, changed=True)
            for upstream in self.upstreams:
                self.put(upstream.name)

    def view(self) -> View:
        """Network and upstreams as they are now."""
        return View(0.0, self.row.snapshot(), self.upstreams)

    def __getitem__(self, name: str) -> Upstream:
        return next(upstream for upstream in self.upstreams if upstream.name == name)

    def put(self, name: str, state: State = State.UP, head: int = HEAD) -> None:
        """The prober has found an upstream so."""
        self[name].status.publish(state, head)

    def fail(self, name: str, times: int = 1) -> None:
        """Calls to an upstream fail."""
        for _ in range(times):
            self[name].began()
            self[name].failed(self.clock())

    def answer(self, name: str, seconds: float = 0.01, times: int = 1) -> None:
        """Calls to an upstream are answered."""
        for _ in range(times):
            self[name].began()
            self[name].answered(self.clock() - seconds)
            self[name].count(self.clock())


def chances(*numbers: float) -> Callable[[], float]:
    """Chance, as a script; the last one for good."""
    left = list(numbers)
    return lambda: left.pop(0) if len(left) > 1 else left[0]
