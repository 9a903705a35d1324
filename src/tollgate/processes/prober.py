"""The process of the prober: monitors the upstreams of all networks, and publishes what it finds.

Workers read it in the shared upstream status, Prometheus in the prober's metrics region, `tollgate upstreams` in a
file of the data folder. One process a machine, a child of `serve`; when it ends, its successor continues from the
shared status.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from pathlib import Path

import uvloop

from tollgate.gateway.prober.network_monitor import MakeListener, MakeProbeClient, NetworkMonitor
from tollgate.gateway.prober.prober import HttpProbeClient
from tollgate.gateway.prober.publish import StatusPublisher
from tollgate.gateway.upstream.listener import UpstreamListener
from tollgate.processes.shared_settings import SettingsFollower, SharedSettings
from tollgate.processes.supervisor import Lifeline
from tollgate.settings.model import Settings
from tollgate.shm import metrics
from tollgate.shm.upstream_status import SharedStatus, StatusSlots

# Between two checks of what workers request.
TICK_SECONDS = 0.02
SWEEP_SECONDS = 0.1
SHOW_SECONDS = 1.0
# How long upstreams may take to answer for the first time before the service starts without them.
WARM_SECONDS = 15.0


class Prober:
    """Watches all networks."""

    def __init__(
        self,
        shared_status: SharedStatus,
        writer: metrics.Writer,
        data_dir: Path,
        *,
        make_client: MakeProbeClient | None = None,
        make_listener: MakeListener = UpstreamListener,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._shared_status = shared_status
        self._writer = writer
        self._make_client = make_client or (lambda family, upstream: HttpProbeClient(family, upstream, now))
        self._make_listener = make_listener
        self._now = now
        self._publisher = StatusPublisher(writer, data_dir, now, wall)
        self.monitors: dict[str, NetworkMonitor] = {}
        """By the network's path."""
        self._started = False
        self._sweep_at = self._show_at = 0.0

    @property
    def warm(self) -> bool:
        """Whether every upstream has been probed once, or its probe has timed out."""
        return all(monitor.warm for monitor in self.monitors.values())

    def apply(self, settings: Settings, slots: StatusSlots) -> None:
        """Apply settings, at the start and later. The state of upstreams that stay is kept."""
        at_start, self._started = not self._started, True
        before = dict(self.monitors)
        self.monitors = {}
        for path, network in settings.networks.items():
            family, name = path.split("/")
            slot = slots.networks[path]
            monitor = before.pop(path, None) or NetworkMonitor(
                family,
                name,
                self._shared_status.network(slot),
                self._make_client,
                self._make_listener,
                self._writer,
                self._now,
            )
            statuses = {
                each.name: self._shared_status.upstream(slots.upstreams[f"{path}/{each.name}"], network=slot)
                for each in network.upstreams
            }
            monitor.apply(network, settings.health, statuses, at_start=at_start)
            self.monitors[path] = monitor
        for gone in before.values():
            gone.close()
        self._publisher.keep(self.monitors.values())

    def tick(self) -> None:
        """Do what is due. Called about fifty times a second."""
        now = self._now()
        for monitor in self.monitors.values():
            monitor.tick()
        if now >= self._sweep_at:
            self._sweep_at = now + SWEEP_SECONDS
            for monitor in self.monitors.values():
                monitor.sweep()
        if now >= self._show_at:
            self._show_at = now + SHOW_SECONDS
            self._publisher.show(self.monitors.values())

    def close(self) -> None:
        """Stop probing, and remove the file: without it, `tollgate upstreams` reports that nothing is watched."""
        for monitor in self.monitors.values():
            monitor.close()
        self._publisher.close()


def run(
    lifeline: Lifeline, data_dir: Path, shared_status: SharedStatus, shared: SharedSettings, writer: metrics.Writer
) -> None:
    """Probe, in the child, until SIGTERM or until the parent is gone."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(lifeline, Prober(shared_status, writer, data_dir), shared))


async def _run(lifeline: Lifeline, prober: Prober, shared: SharedSettings) -> None:
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    # Readable when the parent is gone.
    loop.add_reader(lifeline.parent_pipe, stopped.set)
    follower = SettingsFollower(shared, "prober", prober.apply)
    try:
        prober.apply(shared.current.settings, shared.current.slots)
        follower.ready()
        latest = time.monotonic() + WARM_SECONDS
        while not stopped.is_set():
            follower.tick()
            prober.tick()
            # Ready when every upstream was probed, so that no call goes to one on the wrong chain; but one that is
            # silent for the whole of a long `health.timeout_seconds` must not keep the others waiting.
            if prober.warm or time.monotonic() >= latest:
                lifeline.beat()
            else:
                lifeline.live()
            await asyncio.sleep(TICK_SECONDS)
    finally:
        loop.remove_reader(lifeline.parent_pipe)
        prober.close()
