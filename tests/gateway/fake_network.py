"""A network's upstreams and their status, and how attempts at them fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

from tests.gateway.fakes import Clock

from tollgate.errors import Overloaded, Refusal, UpstreamError, UpstreamTimeout, UpstreamUnavailable
from tollgate.gateway.upstream.attempts import BadStatus, Nonsense
from tollgate.gateway.upstream.choice import Requirements, View
from tollgate.gateway.upstream.connection import (
    AttemptFailed,
    ConnectFailed,
    NoRoom,
    PoolFull,
    ResponseTooLarge,
    TimedOut,
)
from tollgate.gateway.upstream.exchange import Exchange
from tollgate.gateway.upstream.failover import Failover, OutOfStep
from tollgate.gateway.upstream.health import Upstream
from tollgate.gateway.upstream.pool import Pool
from tollgate.settings import model
from tollgate.shm.upstream_status import NOTHING, SharedStatus, State

NO_POOL = cast("Pool", None)
HEAD = 100
"""The head of all upstreams, unless another is published."""
METHOD = "eth_call"
DOUBT = "may have been carried out"
"""What a refusal says if the outcome is unknown."""
Failure = tuple[type[AttemptFailed], bool, type[Refusal]]
"""How an attempt fails, whether the call had been sent by then, and the refusal if it was the last."""
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


class FakeNetwork:
    """Upstreams of one network without connections; the test publishes their status, as the prober does."""

    def __init__(self, *settings: dict[str, Any], head: int = HEAD) -> None:
        self.clock = Clock()
        self.shared_status = SharedStatus(1, self.clock)
        self.status = self.shared_status.network(0)
        self.statuses = [self.shared_status.upstream(slot) for slot in range(len(settings))]
        self.ordered = [
            Upstream(
                model.UpstreamSettings(**{"name": "abcdefghij"[slot], "url": "http://node", **each}),
                NO_POOL,
                self.statuses[slot],
                slot,
                "eth/mainnet",
            )
            for slot, each in enumerate(settings)
        ]
        self.ordered.sort(key=lambda upstream: upstream.priority)
        self.publish_heads(*[head] * len(settings))

    @property
    def upstreams(self) -> list[Upstream]:
        """All upstreams, by their priority."""
        return self.ordered

    def __getitem__(self, name: str) -> Upstream:
        return next(upstream for upstream in self.upstreams if upstream.name == name)

    def view(self) -> View:
        """Network and upstreams as they are now."""
        return View(0.0, self.status.snapshot(), self.upstreams)

    def failover(
        self,
        requirements: Requirements,
        deadline: float,
        random: Callable[[], float] = float,
        may_call: Callable[[Upstream], bool] = lambda _: True,
        tried: Sequence[Upstream] = (),
    ) -> Failover:
        """The policy of one call, by these chances and rates."""
        exchange = SimpleNamespace(view=self.view, random=random, may_call=may_call)
        return Failover(cast("Exchange", exchange), requirements, deadline, [*tried])

    def publish_heads(
        self, *heads: int, finalized: int = NOTHING, state: State = State.UP, changed: bool = True
    ) -> None:
        """Publish the heads of all upstreams."""
        for status, head in zip(self.statuses, heads, strict=True):
            status.publish(state, head)
        self.status.publish(max(heads, default=NOTHING), finalized, changed=changed)

    def publish_state(self, name: str, state: State = State.UP, head: int | None = None) -> None:
        """Publish the state of one upstream; its head stays unless given."""
        status = self[name].status
        status.publish(state, status.head if head is None else head)

    def fail(self, name: str, times: int = 1) -> None:
        """Let calls to an upstream fail."""
        for _ in range(times):
            self[name].started()
            self[name].failed(self.clock())

    def answer(self, name: str, seconds: float = 0.01, times: int = 1) -> None:
        """Let calls to an upstream be answered."""
        for _ in range(times):
            self[name].started()
            self[name].answered(self.clock() - seconds)
            self[name].count(self.clock())


def chances(*numbers: float) -> Callable[[], float]:
    """Scripted random numbers, the last one from then on."""
    left = list(numbers)
    return lambda: left.pop(0) if len(left) > 1 else left[0]
