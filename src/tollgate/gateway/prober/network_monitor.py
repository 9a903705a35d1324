"""The monitor of one network: probes its upstreams on schedule, assesses each, and has its chain followed.

The steps of `_settle`, after each answer: follow the chain of those who count (`head_follower.py`), assess each
upstream by `core/health.py`, publish. Every upstream is probed on its own, so that one that hangs delays no other.

Upstreams that are new, at the start and after a reload, count when all of them have been probed or had their
time. Until then their state is that of the shared status, unless they are known to be on the wrong chain;
the others continue without them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence

from tollgate import log
from tollgate.chains import heads
from tollgate.chains.heads import Block
from tollgate.core import health
from tollgate.core.health import NOTHING, State, UpstreamVerdict
from tollgate.gateway.prober.head_follower import HeadFollower
from tollgate.gateway.prober.prober import ProbeClient, ProbeFailed, Wanted
from tollgate.gateway.prober.upstream_monitor import UpstreamMonitor
from tollgate.gateway.upstream.listener import UpstreamListener
from tollgate.settings.model import HealthSettings, NetworkSettings, UpstreamSettings
from tollgate.shm import metrics
from tollgate.shm.upstream_status import NetworkStatus, UpstreamStatus

# Those who are new wait for each other for so long.
WARM_SECONDS = 1.0
# Between two rounds that workers request, and before an upstream that went back is probed again.
HASTE_SECONDS = 0.05
# Blocks fetched from one upstream at once.
AT_ONCE = 8
# Without calls for so long, an upstream is probed seldom.
IDLE_SECONDS = 30.0
# Between two looks at what workers do.
USE_SECONDS = 1.0
_log = log.get("prober")

MakeProbeClient = Callable[[str, UpstreamSettings], ProbeClient]
MakeListener = Callable[[str, UpstreamSettings, Callable[[Block], None]], UpstreamListener]


class NetworkMonitor:
    """One network."""

    def __init__(
        self,
        family: str,
        name: str,
        status: NetworkStatus,
        make_client: MakeProbeClient,
        make_listener: MakeListener,
        writer: metrics.Writer,
        now: Callable[[], float],
    ) -> None:
        self.family, self.name = family, name
        self.status = status
        self.upstreams: list[UpstreamMonitor] = []
        """In order of priority."""
        self.chain_id = ""
        self._make_client = make_client
        self._make_listener = make_listener
        self._writer = writer
        self._now = now
        self._blind = family not in heads.FAMILIES
        self._rules = health.HealthRules()
        self._health = HealthSettings()
        self._active_at = -IDLE_SECONDS
        """When the network was last in use."""
        self._was_idle = True
        self._use_at = 0.0
        self._following = HeadFollower(f"{family}/{name}", status, self._fetch, self._count)
        self._defect: BaseException | None = None
        self._probe_requests = status.probe_requests
        self._hasty_at = 0.0

    @property
    def warm(self) -> bool:
        """Whether all upstreams have been probed, or had their time, and the result is published."""
        return all(each.joined for each in self.upstreams)

    def apply(
        self,
        network: NetworkSettings,
        settings: HealthSettings,
        statuses: Mapping[str, UpstreamStatus],
        *,
        at_start: bool,
    ) -> None:
        """Take over settings. What is known of an upstream that stays the same node is kept.

        The shared status of an upstream that is new here belongs to another one of its name, except at the start.
        """
        now = self._now()
        self._rules = health.HealthRules(heads.chain_id(network.chain_id), network.lag_blocks)
        self._health = settings
        before = {each.name: each for each in self.upstreams}
        self.upstreams = []
        for upstream in sorted(network.upstreams, key=lambda each: each.priority):
            each = before.get(upstream.name)
            if each is not None and each.is_same(upstream):
                del before[upstream.name]
            else:
                if not at_start:
                    statuses[upstream.name].publish(State.UNKNOWN, NOTHING)
                each = UpstreamMonitor(
                    upstream, self._make_client(self.family, upstream), statuses[upstream.name], now
                )
            self._listen(each, upstream)
            each.change(upstream)
            each.client.timeout_seconds = settings.timeout_seconds
            each.next_at = min(each.next_at, now + self._interval(each))
            self.upstreams.append(each)
        for gone in before.values():
            gone.close()
        self._settle()

    def _listen(self, each: UpstreamMonitor, upstream: UpstreamSettings) -> None:
        """Listen where there is something to listen to, on the connection that is there where it is the same."""
        if each.listener is not None and each.upstream.ws_url != upstream.ws_url:
            each.listener.stop()
            each.listener = None
        if each.listener is None and upstream.ws_url:
            each.listener = self._make_listener(self.family, upstream, lambda block: self._announced(each, block))

    def close(self) -> None:
        for each in self.upstreams:
            each.close()

    # --- Probing ---------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Probe those that are due. Called some fifty times a second."""
        if self._defect is not None:
            raise self._defect
        if self._blind:
            return
        now = self._now()
        self._look_at_workers(now)
        if now >= self._use_at:
            self._use_at = now + USE_SECONDS
            self._look_at_use(now)
        for each in self.upstreams:
            if now >= each.next_at and (each.probing is None or each.probing.done()):
                wanted = each.wanted(now)
                # A provider counts calls: those beside the head, and blocks, make the pause longer. Not without a
                # bound: the first probe queries everything.
                each.next_at = now + self._interval(each) * (min(2, wanted.calls) if each.is_resting else 1)
                each.probing = self._start(self._probe(each, wanted, each.status.head))
        if self._join(now) or self._following.is_overdue(now):
            self._settle()

    def sweep(self) -> None:
        """End probes that have taken too long."""
        for each in self.upstreams:
            each.client.sweep()

    def _announced(self, each: UpstreamMonitor, block: Block) -> None:
        try:
            if each.announced(block, self._now()):
                self._settle()
        except Exception as defect:  # noqa: BLE001 - a listener keeps running whatever happens; `tick` raises it
            self._defect = defect

    def _look_at_workers(self, now: float) -> None:
        """Probe all at once where a worker has sent a transaction, or has seen a block that we have not."""
        probe_requests = self.status.probe_requests
        if probe_requests != self._probe_requests and now >= self._hasty_at:
            self._hasty_at = now + HASTE_SECONDS
            self._probe_requests = probe_requests
            self._active_at = now
            for each in self.upstreams:
                if not each.is_resting:
                    each.next_at = now

    def _look_at_use(self, now: float) -> None:
        """Find out which are called, and so must be probed often, unless they announce their heads."""
        self._active_at = max(self._active_at, self.status.active_at)
        is_idle = now - self._active_at >= IDLE_SECONDS
        if is_idle and not self._was_idle:
            # From here on a new head is noticed late: the next call gets it from an upstream.
            self.status.forget_tip()
        self._was_idle = is_idle
        all_well = all(each.verdict.state == State.UP for each in self.upstreams)
        for each in self.upstreams:
            calls = sum(stats.calls for stats in each.status.worker_stats())
            if calls != each.calls:
                each.calls, each.used_at = calls, now
            # Where one is not well, the others may be needed at any moment.
            unused = all_well and len(self.upstreams) > 1 and now - each.used_at >= IDLE_SECONDS
            # One that shows other blocks is probed until that is settled.
            is_doubtful = 0 < each.sight.disagreements <= health.DISAGREEMENTS
            rests = (is_idle or unused or each.has_feed) and not is_doubtful
            if each.is_resting and not rests:
                each.next_at = now
            each.is_resting = rests
        if any(each.is_resting and each.verdict.state == State.UP for each in self.upstreams):
            # Heads are probed more seldom than the shared status expires; the last ones are still valid.
            self.status.pulse()

    def calls_a_minute(self, each: UpstreamMonitor) -> float:
        """What probing an upstream takes as it is now."""
        if self._blind:
            return 0.0
        # Of four probes two query one thing more, and once a minute the chain id.
        factor = 1.0 if each.is_resting else 1.5
        return round(60 / self._interval(each) * factor + 1, 1)

    def _interval(self, each: UpstreamMonitor) -> float:
        active = each.upstream.probe_seconds or self._health.probe_seconds
        return max(active, self._health.idle_probe_seconds) if each.is_resting else active

    async def _probe(self, each: UpstreamMonitor, wanted: Wanted, shown: int) -> None:
        try:
            report = await each.client.probe(wanted)
        except ProbeFailed as failure:
            each.failed(failure)
            if not each.sight.down:
                # Whether it is must be known before the next call.
                each.next_at = min(each.next_at, self._now() + self._health.probe_seconds)
            self._count(metrics.UPSTREAM_PROBES, each.name, "failed")
        else:
            now = self._now()
            each.reported(report, wanted, shown, now)
            self._count(metrics.UPSTREAM_PROBES, each.name, "ok")
            if 0 < each.retreats < health.RETREATS:
                each.next_at = min(each.next_at, now + HASTE_SECONDS)
        self._settle(each)

    def _fetch(self, each: UpstreamMonitor, numbers: Sequence[int]) -> None:
        """Fetch blocks of an upstream, unless that is in progress."""
        if each.fetching is None or each.fetching.done():
            if each.is_resting:
                each.next_at += self._interval(each) * len(numbers)
            each.fetching = self._start(self._fetched(each, numbers))

    async def _fetched(self, each: UpstreamMonitor, numbers: Sequence[int]) -> None:
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(number: int) -> Block | None:
            async with gate:
                try:
                    return await each.client.block(number)
                except ProbeFailed:
                    return None

        blocks = [block for block in await asyncio.gather(*map(one, numbers)) if block is not None]
        fits = each.fetched(blocks, whole=len(blocks) == len(numbers))
        each.fetching = None
        # Otherwise it is tried again with the next answer of any upstream.
        if fits:
            self._following.know(each)
            self._settle()

    def _start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self._defect = task.exception() or self._defect

    # --- What follows ----------------------------------------------------------------------------------

    def _settle(self, probed: UpstreamMonitor | None = None) -> None:
        """Draw the conclusions from what is known now. `probed`: who has just answered."""
        now = self._now()
        self._join(now)
        joined = [each for each in self.upstreams if each.joined]
        self.chain_id = health.expected_chain([each.sight for each in joined], self._rules)
        counting = [each for each in joined if health.counts(each.sight, self.chain_id)]
        claims = self._following.follow(self.upstreams, counting, probed)
        self._assess(joined, now)
        self._following.publish(claims, now)

    def _join(self, now: float) -> bool:
        """Let new upstreams count, all at once; whether there were any.

        The first to answer may be the one that is behind, or on the wrong chain.
        """
        new = [each for each in self.upstreams if not each.joined]
        ready = self._blind or all(each.sight.tried or now >= each.came_at + WARM_SECONDS for each in new)
        for each in new:
            each.joined = ready
        return bool(new) and ready

    def _assess(self, joined: Sequence[UpstreamMonitor], now: float) -> None:
        verdicts = health.assess([each.sight for each in joined], self._rules)
        if self._blind:
            verdicts = [UpstreamVerdict(State.UNKNOWN, "its family cannot be probed") for _ in verdicts]
        for each, verdict in [*zip(joined, verdicts, strict=True), *self._on_wrong_chain()]:
            if (each.sight.tried or self._blind) and each.update_verdict(verdict, now):
                write = _log.info if verdict.state == State.UP else _log.warning
                write(
                    "an upstream changed its state",
                    network=f"{self.family}/{self.name}",
                    upstream=each.name,
                    state=verdict.state.name.lower(),
                    reason=verdict.reason,
                )

    def _on_wrong_chain(self) -> Iterator[tuple[UpstreamMonitor, UpstreamVerdict]]:
        """New upstreams that are on another chain: their verdict cannot wait until they count."""
        rules = health.HealthRules(self.chain_id)
        for each in self.upstreams:
            if not each.joined:
                (verdict,) = health.assess([each.sight], rules)
                if verdict.state == State.WRONG_CHAIN:
                    yield each, verdict

    def _count(self, spec: metrics.Spec, *labels: str) -> None:
        self._writer.add(self._writer.cell(spec, self.family, self.name, *labels))
