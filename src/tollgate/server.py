"""Composition root: the only module that names concrete backends and puts the parts together.

`run` prepares everything in the parent (folder, store, pepper, sockets, shared memory), then hands over to the
supervisor. `_Worker` is one gateway process.
"""

from __future__ import annotations

import asyncio
import fcntl
import functools
import os
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from msgspec import Struct
from sqlalchemy.engine import URL

from tollgate import listeners, log, metrics, status
from tollgate.chains.catalogue import Catalogue
from tollgate.config import Settings
from tollgate.core import addresses
from tollgate.core.limits import Limit
from tollgate.core.methods import Policy
from tollgate.errors import StartError
from tollgate.gateway.admission import Admission
from tollgate.gateway.budget import Budget
from tollgate.gateway.credentials import Credentials
from tollgate.gateway.directory import CallerDirectory
from tollgate.gateway.edge import Edge
from tollgate.gateway.exchange import Exchange
from tollgate.gateway.intake import Intake
from tollgate.gateway.lane import Lane
from tollgate.gateway.messages import Network
from tollgate.gateway.pipeline import Pipeline
from tollgate.gateway.record import Recorder
from tollgate.gateway.routing import in_order
from tollgate.gateway.transport import Pool
from tollgate.serving import Service, serve
from tollgate.store import pepper, sqlite
from tollgate.store.shared import SharedMeters
from tollgate.store.upgrade import upgrade
from tollgate.supervisor import Child, Lifeline, StartFailed, Supervisor

SWEEP_SECONDS = 0.1
# For the last answers to leave.
FLUSH_SECONDS = 0.05
_log = log.get("server")


class Addresses(Struct, frozen=True):
    """Where the running service can be reached."""

    base_url: str
    metrics_url: str


class Prepared(Struct, frozen=True):
    """What the parent has made before it forks."""

    settings: Settings
    data_dir: Path
    store_url: URL
    pepper: bytes


def prepare(settings: Settings) -> Prepared:
    """Make the data folder, bring the store up to date, load the pepper."""
    data_dir = Path(settings.data_dir)
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StartError(f"data_dir: {data_dir} cannot be made: {error.strerror}.") from error
    url = sqlite.store_url(settings.store.url, data_dir)
    for step in upgrade(url):
        _log.info("database migrated", step=step)
    return Prepared(settings, data_dir, url, pepper.load(settings.secrets.pepper, data_dir, url))


def run(
    prepared: Prepared,
    *,
    on_ready: Callable[[Addresses], None],
    extra_children: Sequence[Child] = (),
) -> None:
    """Serve until told to stop."""
    settings = prepared.settings
    workers = settings.server.workers or os.cpu_count() or 1
    tls = _tls(settings)
    lock = _lock(prepared.data_dir)
    public = listeners.bind(settings.server.host, settings.server.port, workers, "server.port")
    private = listeners.bind(settings.server.metrics_host, settings.server.metrics_port, 1, "server.metrics_port")
    regions = metrics.Regions(workers + 1)
    meters = SharedMeters(settings.limits.limit_rows, workers, prepared.data_dir / "limits.lock")
    where = Addresses(
        settings.server.base_url.rstrip("/") or listeners.url("https" if tls else "http", public[0]),
        listeners.url("http", private[0]) + "/metrics",
    )
    children = [
        *extra_children,
        *(
            Child(f"worker-{slot}", _Worker(prepared, slot, public, private, regions, meters, tls).run)
            for slot in range(workers)
        ),
        Child("metrics", lambda lifeline: _serve_metrics(lifeline, regions, public, private)),
    ]
    counts = regions.writer(workers)

    def close_listeners() -> None:
        for each in (*public, *private):
            each.close()

    supervisor = Supervisor(
        children,
        grace_seconds=settings.server.grace_seconds,
        on_ready=lambda: on_ready(where),
        on_stop=close_listeners,
        on_start=lambda child: counts.add(counts.cell(metrics.WORKER_STARTS, child.name)),
    )
    try:
        supervisor.run()
    except StartFailed as error:
        raise StartError(str(error)) from error
    finally:
        lock.close()


def _serve_metrics(
    lifeline: Lifeline, regions: metrics.Regions, public: list[socket.socket], private: list[socket.socket]
) -> None:
    for each in public:
        each.close()

    async def make() -> Service:
        # Imported here: no other process needs it.
        from tollgate.metrics_page import CONTENT_TYPE_LATEST, render  # noqa: PLC0415

        return Service(status.metrics_app(lambda: render(regions), CONTENT_TYPE_LATEST))

    serve(make, private, lifeline, grace_seconds=1.0)


class _Worker:
    """One gateway process."""

    def __init__(
        self,
        prepared: Prepared,
        slot: int,
        public: list[socket.socket],
        private: list[socket.socket],
        regions: metrics.Regions,
        meters: SharedMeters,
        tls: tuple[str, str] | None,
    ) -> None:
        self._prepared = prepared
        self._slot = slot
        self._public = public
        self._private = private
        self._regions = regions
        self._meters = meters
        self._tls = tls

    def run(self, lifeline: Lifeline) -> None:
        """Serve, in the child."""
        mine = self._public[self._slot]
        for each in (*self._public, *self._private):
            if each is not mine:
                each.close()
        self._meters.attach(self._slot)
        serve(
            self._make,
            [mine],
            lifeline,
            grace_seconds=self._prepared.settings.server.grace_seconds,
            tls=self._tls,
        )

    async def _make(self) -> Service:
        settings = self._prepared.settings
        writer = self._regions.writer(self._slot)
        store = sqlite.open_store(self._prepared.store_url)
        directory = CallerDirectory(store, settings, writer, time.monotonic)
        await directory.refresh()
        recorder = Recorder(writer)
        budget = Budget(settings.limits.buffer_bytes)
        networks = build_networks(settings)
        pools = {network.path: _pools(network, settings, budget) for network in networks}
        pipeline = self._pipeline(directory, recorder, networks, pools, writer)
        lane = Lane(
            pipeline,
            Intake(networks, settings.limits.body_bytes),
            recorder,
            writer,
            budget,
            most_bytes=settings.limits.body_bytes,
            most_connections=settings.server.connections,
            most_in_flight=settings.limits.in_flight,
            keep_alive_seconds=settings.server.keep_alive_seconds,
            read_seconds=settings.server.read_seconds,
            now=time.monotonic,
            time=time.time,
        )
        lane.tick()

        def sweep() -> None:
            for pool in (pool for each in pools.values() for pool in each.values()):
                pool.sweep()

        def gauges() -> None:
            for network in networks:
                for name, pool in pools[network.path].items():
                    cell = writer.cell(metrics.UPSTREAM_CONNECTIONS, network.family, network.name, name)
                    writer.set(cell, pool.size)

        async def close() -> None:
            lane.stop()
            await asyncio.sleep(FLUSH_SECONDS)
            for pool in (pool for each in pools.values() for pool in each.values()):
                pool.close()
            await store.close()

        return Service(
            status.public_app(lambda: "the store cannot be reached" if directory.stale else None),
            http=functools.partial(Edge, lane),
            background=(
                (settings.directory.refresh_seconds, directory.refresh),
                (SWEEP_SECONDS, sweep),
                (1.0, lane.tick),
                (1.0, gauges),
            ),
            close=close,
        )

    def _pipeline(
        self,
        directory: CallerDirectory,
        recorder: Recorder,
        networks: Sequence[Network],
        pools: dict[str, dict[str, Pool]],
        writer: metrics.Writer,
    ) -> Pipeline:
        settings = self._prepared.settings
        credentials = Credentials(
            directory,
            self._meters,
            self._prepared.pepper,
            trusted=addresses.parse_networks(settings.server.trusted_proxies),
            allow_localhost=settings.whitelist.allow_localhost,
            misses=Limit(settings.limits.misses_per_second, 1.0),
            misses_per_address=Limit(settings.limits.misses_per_second_per_address, 1.0),
            monotonic=time.monotonic,
            time=time.time,
        )
        return Pipeline(
            credentials,
            Admission(self._meters, credentials.address, monotonic=time.monotonic, time=time.time),
            {network.path: Exchange(network, pools[network.path], writer, time.monotonic) for network in networks},
            recorder,
            most_calls=settings.limits.batch_calls,
            request_seconds=settings.limits.request_seconds,
            now=time.monotonic,
        )


def build_networks(settings: Settings) -> list[Network]:
    """The served networks, as the gateway sees them."""
    return [
        Network(
            family,
            name,
            Policy(network.allow_methods, network.deny_methods),
            Catalogue(family),
            in_order(network.upstreams),
        )
        for family, networks in settings.families.items()
        for name, network in networks.items()
    ]


def _pools(network: Network, settings: Settings, budget: Budget) -> dict[str, Pool]:
    return {
        upstream.name: Pool(upstream, most_bytes=settings.limits.response_bytes, budget=budget, now=time.monotonic)
        for upstream in network.upstreams
    }


def _tls(settings: Settings) -> tuple[str, str] | None:
    certificate, key = settings.server.tls_certificate, settings.server.tls_key
    if not certificate:
        return None
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise StartError(
            f"server.tls_certificate or server.tls_key cannot be used ({error}): "
            "give PEM files of a certificate chain and its key."
        ) from error
    return certificate, key


def _lock(data_dir: Path) -> TextIO:
    """One service for one data folder. The kernel frees the lock however the service ends."""
    file = (data_dir / "service.lock").open("w", encoding="ascii")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise StartError(f"Another Tollgate runs on {data_dir}: stop it, or set another data_dir.") from error
    return file
