"""Scripted nodes for the prober: a chain is a word, a letter for each block; a block's hash is all up to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tests.gateway.fakes import Clock, run_pending

from tollgate.chains.heads import Block
from tollgate.gateway.prober.network_monitor import NetworkMonitor
from tollgate.gateway.prober.prober import ProbeFailed, ProbeReport, Wanted
from tollgate.gateway.prober.upstream_monitor import UpstreamMonitor
from tollgate.gateway.upstream.listener import UpstreamListener
from tollgate.settings import model
from tollgate.shm import metrics
from tollgate.shm.upstream_status import (
    NetworkStatus,
    SharedStatus,
    State,
    StatusSlots,
    UpstreamStatus,
    assign_slots,
)

BASE = "g" * 100
"""Blocks 0 to 99."""
PROBE = 0.5
REFUSED = ProbeFailed("refuses connections", refused=True)
BROKEN = ProbeFailed("breaks off")


def block(word: str, number: int | None = None) -> Block:
    """A block of a chain; its newest."""
    end = len(word) if number is None else number + 1
    return Block(end - 1, word[:end], word[: end - 1])


class Node:
    """An upstream that follows the test."""

    def __init__(self, word: str, clock: Clock, **options: Any) -> None:
        self.word = word
        self.clock = clock
        self.chain_id: str | None = options.get("chain_id", "0x1")
        self.syncing: bool | None = False
        self.finalized: int | None = options.get("finalized")
        self.fault: ProbeFailed | None = None
        self.hides: range | None = None
        """Blocks that it does not give out."""
        self.shows: str | None = None
        """The chain that blocks below its head are of, where that is another one."""
        self.gate: asyncio.Event | None = None
        """Where set, it answers only when it is."""
        self.probes: list[Wanted] = []
        self.fetched: list[int] = []
        self.timeout_seconds = 0.0
        self.swept = 0
        self.closed = False

    async def probe(self, wanted: Wanted) -> ProbeReport:
        self.probes.append(wanted)
        queried_at, newest = self.clock(), block(self.word)
        if self.gate is not None:
            await self.gate.wait()
        if self.fault is not None:
            raise self.fault
        return ProbeReport(
            newest,
            queried_at,
            0.01,
            self.chain_id if wanted.chain_id else None,
            self.syncing if wanted.syncing else None,
            self.finalized if wanted.finalized else None,
        )

    async def block(self, number: int) -> Block:
        self.fetched.append(number)
        word = self.word if self.shows is None else self.shows
        if self.fault is not None or number >= len(word) or (self.hides is not None and number in self.hides):
            raise self.fault or ProbeFailed("answers with something other than requested")
        await asyncio.sleep(0)
        return block(word, number)

    def sweep(self) -> None:
        self.swept += 1

    def close(self) -> None:
        self.closed = True


class FakeListener(UpstreamListener):
    """A listener that receives what the test sends."""

    def __init__(self, family: str, upstream: model.UpstreamSettings, on_head: Callable[[Block], None]) -> None:
        self.upstream = upstream
        self.receive = on_head
        self.listening = True
        self.stopped = False

    def stop(self) -> None:
        self.stopped = True


class ProbedNetwork:
    """One network whose upstreams are scripted, watched with a manual clock."""

    def __init__(
        self, *words: str, family: str = "eth", predecessor: ProbedNetwork | None = None, **network: Any
    ) -> None:
        self.clock: Clock = predecessor.clock if predecessor else Clock()
        self.shared_status: SharedStatus = (
            predecessor.shared_status if predecessor else SharedStatus(2, now=self.clock)
        )
        self.probe_seconds = PROBE
        self.in_use = True
        """Whether workers send calls to all upstreams."""
        self.nodes = {name: Node(word, self.clock) for name, word in zip("abcdef", words, strict=False)}
        self.network = network
        self.made: list[str] = []
        self.listeners: list[FakeListener] = []
        self.regions = metrics.Regions(1)
        self.slots = assign_slots(StatusSlots(), {f"{family}/main": list("abcdef")})
        self.row: NetworkStatus = self.shared_status.network(self.slots.networks[f"{family}/main"], 0)
        self.family = family
        self.monitor = NetworkMonitor(
            family, "main", self.row, self._asker, self._listener, self.regions.writer(0), self.clock
        )

    def _asker(self, family: str, upstream: model.UpstreamSettings) -> Node:
        self.made.append(upstream.name)
        return self.nodes[upstream.name]

    def _listener(
        self, family: str, upstream: model.UpstreamSettings, on_head: Callable[[Block], None]
    ) -> FakeListener:
        self.listeners.append(FakeListener(family, upstream, on_head))
        return self.listeners[-1]

    def upstream(self, name: str, **more: Any) -> model.UpstreamSettings:
        fields = {"url": f"http://{name}", "priority": ord(name) - ord("a"), **more}
        return model.UpstreamSettings(name=name, **fields)

    def apply(self, *upstreams: model.UpstreamSettings, at_start: bool = False, **network: Any) -> None:
        self.monitor.apply(
            model.NetworkSettings(upstreams=upstreams, **{**self.network, **network}),
            model.HealthSettings(probe_seconds=self.probe_seconds, timeout_seconds=3.0),
            {each.name: self.upstream_row(each.name) for each in upstreams},
            at_start=at_start,
        )

    async def start(self) -> ProbedNetwork:
        """All nodes are upstreams, and were probed once."""
        self.apply(*(self.upstream(name) for name in self.nodes), at_start=True)
        await self.tick()
        return self

    async def tick(self, seconds: float = 0.0) -> None:
        """Let time pass, and everything happen that follows."""
        self.clock.advance(seconds)
        if self.in_use:
            self.row.mark_active()
            for each in self.monitor.upstreams:
                each.used_at = self.clock()
        self.monitor.tick()
        await run_pending(60)
        self.monitor.tick()

    async def rounds(self, count: int = 1) -> None:
        """Probe all of them again, so often."""
        for _ in range(count):
            await self.tick(PROBE)

    def successor(self, *words: str, **network: Any) -> ProbedNetwork:
        """Stop, and hand the shared status to another prober, whose upstreams have these chains."""
        self.monitor.close()
        return ProbedNetwork(*words, family=self.family, predecessor=self, **network)

    # --- What can be seen ------------------------------------------------------------------------------

    def upstream_row(self, name: str) -> UpstreamStatus:
        return self.shared_status.upstream(self.slots.upstreams[f"{self.family}/main/{name}"], 0)

    def __getitem__(self, name: str) -> UpstreamMonitor:
        return next(each for each in self.monitor.upstreams if each.name == name)

    @property
    def states(self) -> str:
        """The published states."""
        return " ".join(State(self.upstream_row(each.name).state).name.lower() for each in self.monitor.upstreams)

    @property
    def reorgs(self) -> tuple[int, int | None]:
        """How many reorganisations there were, and the ancestor of the last."""
        count = self.row.reorgs
        return count, self.row.ancestor(count - 1) if count else None

    def counted(self, spec: metrics.Spec, *labels: str) -> int:
        return self.regions.totals().get((spec.name, self.family, "main", *labels), 0)
