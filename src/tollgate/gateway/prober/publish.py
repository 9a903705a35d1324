"""What is known of upstreams, as it is shown: gauges for Prometheus, and a file for `tollgate upstreams`.

Reads what `network_monitor.py` knows and what workers wrote into the shared status; decides nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from tollgate import log
from tollgate.api.operator import ShownNetwork, ShownUpstream
from tollgate.core import upstream_history
from tollgate.core.health import NOTHING, State
from tollgate.core.upstream_history import HistoryKeeper, UpstreamHistory
from tollgate.core.upstreams import FILE, Shown, Tally
from tollgate.gateway.prober.network_monitor import NetworkMonitor
from tollgate.gateway.prober.upstream_monitor import UpstreamMonitor
from tollgate.shm import metrics
from tollgate.shm.upstream_status import WorkerStats

_STATES = tuple(each.name.lower() for each in State)
_log = log.get("prober")


class StatusPublisher:
    """Shows, once a second."""

    def __init__(
        self,
        writer: metrics.Writer,
        data_dir: Path,
        now: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._writer = writer
        self._file = data_dir / FILE
        self._now = now
        self._wall = wall
        self._tallies: dict[tuple[str, str, str], Tally] = {}
        self._networks: set[tuple[str, str]] = set()
        self._failed = False
        self._history_file = data_dir / upstream_history.FILE
        self._history = HistoryKeeper(_read_history(self._history_file))

    def keep(self, monitors: Iterable[NetworkMonitor]) -> None:
        """Forget what is not watched any more."""
        monitors = list(monitors)
        known = {(monitor.family, monitor.name, each.name) for monitor in monitors for each in monitor.upstreams}
        for labels in self._tallies.keys() - known:
            cells = [self._writer.cell(metrics.UPSTREAM_STATE, *labels, name) for name in _STATES]
            for cell in (self._writer.cell(metrics.UPSTREAM_HEAD, *labels), *cells):
                self._writer.set(cell, metrics.GONE)
        self._tallies = {labels: self._tallies.get(labels) or Tally() for labels in known}
        networks = {(monitor.family, monitor.name) for monitor in monitors}
        for network in self._networks - networks:
            for spec in (metrics.NETWORK_HEAD, metrics.NETWORK_FINALIZED):
                self._writer.set(self._writer.cell(spec, *network), metrics.GONE)
        self._networks = networks

    def show(self, monitors: Iterable[NetworkMonitor]) -> None:
        networks = [self._network(monitor) for monitor in monitors]
        self._write(self._file, msgspec.json.encode(Shown(at=self._wall(), networks=tuple(networks))))
        history = self._history.note(networks, self._wall())
        if history is not None:
            self._write(self._history_file, msgspec.json.encode(history))

    def close(self) -> None:
        """Remove the file: it is no longer updated."""
        self._file.unlink(missing_ok=True)

    def _network(self, monitor: NetworkMonitor) -> ShownNetwork:
        status = monitor.status
        for spec, value in ((metrics.NETWORK_HEAD, status.head), (metrics.NETWORK_FINALIZED, status.finalized)):
            self._set(spec, value, monitor.family, monitor.name)
        return ShownNetwork(
            network=f"{monitor.family}/{monitor.name}",
            head=_known(status.head),
            finalized=_known(status.finalized),
            chain_id=monitor.chain_id or None,
            upstreams=tuple(self._upstream(monitor, each) for each in monitor.upstreams),
        )

    def _upstream(self, monitor: NetworkMonitor, each: UpstreamMonitor) -> ShownUpstream:
        labels, head = (monitor.family, monitor.name, each.name), each.status.head
        self._set(metrics.UPSTREAM_HEAD, head, *labels)
        for name in _STATES:
            self._set(metrics.UPSTREAM_STATE, name == each.verdict.state.name.lower(), *labels, name)
        now = self._now()
        stats = each.status.worker_stats()
        tally = self._tallies[labels]
        tally.note([(one.calls, one.failures) for one in stats], now)
        used = [one for one in stats if one.calls]
        return ShownUpstream(
            name=each.name,
            state=each.verdict.state.name.lower(),
            reason=each.verdict.reason,
            since=self._wall() - (now - each.since),
            head=_known(head),
            behind=each.verdict.behind if head == NOTHING else max(0, monitor.status.head - head),
            finalized=_known(each.sight.finalized),
            chain_id=each.sight.chain_id or None,
            probe_ms=_milliseconds(each.seconds * 1e6),
            probe_calls=monitor.calls_a_minute(each),
            listening=each.listener is not None and each.listener.listening,
            calls=tally.calls,
            failures=tally.failures,
            error_rate=tally.error_rate,
            latency_ms=_milliseconds(max(one.ewma_micros for one in used)) if used else None,
            p95_ms=_milliseconds(max(one.p95_micros for one in used)) if used else None,
            breaker=_breaker(stats, now),
            open_workers=sum(one.open_until > now for one in stats),
            in_flight=sum(one.in_flight for one in stats),
        )

    def _set(self, spec: metrics.Spec, value: int, *labels: str) -> None:
        self._writer.set(self._writer.cell(spec, *labels), max(0, value))

    def _write(self, target: Path, content: bytes) -> None:
        """Replace a file atomically."""
        fresh = target.with_suffix(".new")
        try:
            with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(content)
            fresh.replace(target)
            self._failed = False
        except OSError as error:
            # The shared status is what counts; the file is for people.
            if not self._failed:
                _log.error("the state of upstreams cannot be written", error=error.strerror)
            self._failed = True


def _read_history(file: Path) -> list[UpstreamHistory]:
    """What an earlier prober wrote; nothing where that cannot be read."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=list[UpstreamHistory])
    except (OSError, msgspec.DecodeError):
        return []


def _known(number: int) -> int | None:
    return None if number == NOTHING else number


def _milliseconds(micros: float) -> float:
    return round(micros / 1000, 2)


def _breaker(stats: Iterable[WorkerStats], now: float) -> str:
    """The worst of all workers: open until its time, then half open until a call has gone well."""
    worst = max((one.open_until for one in stats), default=0.0)
    if not worst:
        return "closed"
    return "open" if worst > now else "half_open"
