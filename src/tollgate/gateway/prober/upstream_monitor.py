"""The monitor of one upstream: what is known of it, and how that changes with each answer.

No I/O but the cells of the shared status. `network_monitor.py` decides when it is probed, and
what follows for the network.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import cycle

from msgspec.structs import replace

from tollgate.chains.heads import Block
from tollgate.core import health
from tollgate.core.branches import UpstreamChain
from tollgate.core.health import NOTHING, Sight, State, UpstreamVerdict
from tollgate.gateway.prober.prober import ProbeClient, ProbeFailed, ProbeReport, Wanted
from tollgate.gateway.upstream.listener import UpstreamListener
from tollgate.settings.model import UpstreamSettings
from tollgate.shm.upstream_status import UpstreamStatus

# Finality and syncing are queried in one of so many probes.
SELDOM = 4
CHAIN_ID_SECONDS = 60.0
# After it did not report its chain id.
AGAIN_SECONDS = 5.0
# Blocks of it could not be had so often in a row: its verdict is made without them.
FETCH_FAILURES = 3
_SMOOTHING = 0.2


class UpstreamMonitor:
    """What is known of one upstream."""

    def __init__(
        self, upstream: UpstreamSettings, client: ProbeClient, status: UpstreamStatus, now: float
    ) -> None:
        self.upstream = upstream
        self.client = client
        self.status = status
        self.sight = Sight(upstream.name, upstream.priority)
        self.chain = UpstreamChain()
        # Its shared status holds until it is probed: a predecessor may have written it.
        self.verdict = UpstreamVerdict(State(status.state), "not probed yet")
        self.since = now
        """Since when it is in its state."""
        self.came_at = now
        self.joined = False
        """Whether it has a verdict and counts, or is too new for that."""
        self.next_at = now
        self.probing: asyncio.Task[None] | None = None
        self.fetching: asyncio.Task[None] | None = None
        self.listener: UpstreamListener | None = None
        self.fetch_failures = 0
        self.retreats = 0
        """Answers in a row that showed a lower head than it had before."""
        self.seconds = 0.0
        """How long a probe takes, smoothed."""
        self.is_resting = False
        """Whether it is probed seldom: it gets no calls, or it announces its heads."""
        self.used_at = now
        """When workers were last seen to call it."""
        self.calls = 0
        """What workers had sent to it by then."""
        self.doubts_feed = False
        """Whether a probe has shown a head that its feed did not announce."""
        self._peak = NOTHING
        self._turns = cycle(range(SELDOM))
        self._chain_id_at = now

    @property
    def name(self) -> str:
        return self.upstream.name

    @property
    def comparable(self) -> bool:
        """Whether blocks of it that are needed can be hoped for."""
        return self.fetch_failures < FETCH_FAILURES

    @property
    def has_feed(self) -> bool:
        """Whether it announces new heads, as far as we know."""
        return self.listener is not None and self.listener.listening and not self.doubts_feed

    def is_same(self, upstream: UpstreamSettings) -> bool:
        """Whether other settings mean the same node."""
        return (self.upstream.url, self.upstream.headers) == (upstream.url, upstream.headers)

    def change(self, upstream: UpstreamSettings) -> None:
        """Take over settings that leave it the same node."""
        self.upstream = upstream
        self.sight = replace(self.sight, priority=upstream.priority)

    def wanted(self, now: float) -> Wanted:
        """What to query beside the head, this time. One that comes back may be another node by now."""
        turn = next(self._turns)
        away = not self.sight.heads or self.sight.down
        return Wanted(
            chain_id=away or now >= self._chain_id_at,
            syncing=away or self.sight.syncing or turn == SELDOM // 2,
            finalized=turn == 0,
        )

    # --- Answers ---------------------------------------------------------------------------------------

    def failed(self, failure: ProbeFailed) -> None:
        self.sight = replace(
            self.sight,
            tried=True,
            failures=self.sight.failures + 1,
            refused=failure.refused,
            fault=failure.reason,
        )

    def reported(self, report: ProbeReport, wanted: Wanted, shown: int, now: float) -> None:
        """Take in an answer. `shown`: the head in the shared status when it was probed."""
        if self.sight.heads and report.block.number > self.sight.head:
            self.doubts_feed = True
        self._saw(report.block, now)
        sight = self.sight
        self.sight = replace(
            sight,
            tried=True,
            failures=0,
            queried_at=report.queried_at,
            chain_id=report.chain_id or sight.chain_id,
            syncing=sight.syncing if report.syncing is None else report.syncing,
            finalized=sight.finalized if report.finalized is None else report.finalized,
        )
        if wanted.chain_id:
            self._chain_id_at = now + (CHAIN_ID_SECONDS if report.chain_id else AGAIN_SECONDS)
        self.seconds += (report.seconds - self.seconds) * (_SMOOTHING if self.seconds else 1.0)
        # A worker may have seen a higher head since the probe started.
        self.publish(
            max(report.block.number, self.status.head) if self.status.head > shown else report.block.number
        )

    def announced(self, block: Block, now: float) -> bool:
        """Take in a head that it announced; whether that is new.

        It may have been delayed, so it lowers nothing; and before the first probe, or while
        probes fail, the node behind its feed is not known.
        """
        sight = self.sight
        if not sight.heads or sight.down or block.number < sight.head:
            return False
        self.doubts_feed = False
        if block.number == sight.head and self.chain.hashes.get(block.number) == block.hash:
            return False
        self._saw(block, now)
        self.sight = replace(self.sight, queried_at=now)
        self.publish(max(block.number, self.status.head))
        return True

    def fetched(self, blocks: Iterable[Block], *, whole: bool) -> bool:
        """Take in older blocks of it, `whole`: all that were requested; whether they are a part of its chain."""
        newest_first = sorted(blocks, key=lambda each: each.number, reverse=True)
        fits = all(self.chain.fill(each.number, each.hash, each.parent) for each in newest_first) and whole
        self.fetch_failures = 0 if fits else self.fetch_failures + 1
        return fits

    def _saw(self, block: Block, now: float) -> None:
        self.chain.add(block.number, block.hash, block.parent)
        self.sight = replace(self.sight, heads=health.with_head(self.sight.heads, now, block.number))
        if block.number < self._peak:
            self.retreats += 1
        else:
            self.retreats, self._peak = 0, block.number

    def network_went_back(self, ancestor: int) -> None:
        """Take in that the network did: nothing of its head is missing any more, and finality is queried again."""
        self.retreats, self._peak = 0, self.sight.head
        if self.sight.finalized > ancestor:
            self.sight = replace(self.sight, finalized=NOTHING)

    # --- The shared status--------------------------------------------------------------------------------

    def update_verdict(self, verdict: UpstreamVerdict, now: float) -> bool:
        """Whether that changes its state."""
        changed = verdict.state != self.verdict.state
        if changed:
            self.since = now
        self.verdict = verdict
        self.publish(self.status.head)
        return changed

    def disagrees(self, count: int) -> None:
        """Note how often in a row it has shown another block than the network's."""
        if count != self.sight.disagreements:
            self.sight = replace(self.sight, disagreements=count)

    def publish(self, head: int) -> None:
        self.status.publish(self.verdict.state, head)

    def close(self) -> None:
        """End. Its shared status stays: calls in progress use it."""
        if self.listener is not None:
            self.listener.stop()
        for task in (self.probing, self.fetching):
            if task is not None:
                task.cancel()
        self.client.close()
