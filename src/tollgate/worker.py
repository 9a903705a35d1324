"""One gateway process: what answers `/x/` put together, and everything else forwarded to the control plane."""

from __future__ import annotations

import asyncio
import functools
import socket
import time
from collections.abc import Sequence

from tollgate import metrics, status
from tollgate.chains.catalogue import Catalogue
from tollgate.config import Settings
from tollgate.control_process import ControlAddress
from tollgate.core import addresses
from tollgate.core.limits import Limit
from tollgate.core.methods import Policy
from tollgate.gateway.admission import Admission
from tollgate.gateway.budget import Budget
from tollgate.gateway.credentials import Credentials
from tollgate.gateway.directory import CallerDirectory
from tollgate.gateway.edge import Edge
from tollgate.gateway.exchange import Exchange
from tollgate.gateway.intake import Intake
from tollgate.gateway.journal import Journal
from tollgate.gateway.lane import Lane
from tollgate.gateway.messages import Network
from tollgate.gateway.pipeline import Pipeline
from tollgate.gateway.record import Recorder
from tollgate.gateway.routing import in_order
from tollgate.gateway.transport import Pool
from tollgate.ledger.spool import Spool
from tollgate.prepared import Prepared
from tollgate.serving import Service, serve
from tollgate.store import sqlite
from tollgate.store.shared import SharedMeters
from tollgate.supervisor import Lifeline

SWEEP_SECONDS = 0.1
# For the last answers to leave.
FLUSH_SECONDS = 0.05


class Worker:
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
        control: ControlAddress,
    ) -> None:
        self._control = control
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
        for each in (*self._public, *self._private, self._control.listener):
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
        spool = self._spool()
        recorder = Recorder(writer)
        budget = Budget(settings.limits.buffer_bytes)
        networks = build_networks(settings)
        pools = {network.path: _pools(network, settings, budget) for network in networks}
        credentials = self._credentials(directory)
        journal = Journal(spool, credentials.address, time=time.time, monotonic=time.monotonic)
        pipeline = self._pipeline(credentials, recorder, networks, pools, writer, journal)
        lane = Lane(
            pipeline,
            Intake(networks, settings.limits.body_bytes),
            recorder,
            writer,
            budget,
            journal,
            spool.write,
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
            writer.set(writer.cell(metrics.SPOOL_HELD), spool.held_bytes)
            for network in networks:
                for name, pool in pools[network.path].items():
                    cell = writer.cell(metrics.UPSTREAM_CONNECTIONS, network.family, network.name, name)
                    writer.set(cell, pool.size)

        async def close() -> None:
            lane.stop()
            await asyncio.sleep(FLUSH_SECONDS)
            journal.tick()
            spool.close()
            for pool in (pool for each in pools.values() for pool in each.values()):
                pool.close()
            await store.close()

        return Service(
            status.public_app(
                lambda: "the store cannot be reached" if directory.stale else None,
                self._control.app(addresses.parse_networks(settings.server.trusted_proxies)),
            ),
            http=functools.partial(Edge, lane),
            background=(
                (settings.directory.refresh_seconds, directory.refresh),
                (SWEEP_SECONDS, sweep),
                (settings.ledger.sync_seconds, spool.sync),
                (1.0, lane.tick),
                (1.0, spool.tick),
                (1.0, gauges),
            ),
            close=close,
        )

    def _spool(self) -> Spool:
        ledger = self._prepared.settings.ledger
        return Spool(
            self._prepared.spool_dir,
            segment_bytes=ledger.segment_bytes,
            segment_seconds=ledger.segment_seconds,
            most_held_bytes=ledger.held_bytes,
            now=time.time,
        )

    def _credentials(self, directory: CallerDirectory) -> Credentials:
        settings = self._prepared.settings
        return Credentials(
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

    def _pipeline(
        self,
        credentials: Credentials,
        recorder: Recorder,
        networks: Sequence[Network],
        pools: dict[str, dict[str, Pool]],
        writer: metrics.Writer,
        journal: Journal,
    ) -> Pipeline:
        settings = self._prepared.settings
        return Pipeline(
            credentials,
            Admission(self._meters, credentials.address, monotonic=time.monotonic, time=time.time),
            {network.path: Exchange(network, pools[network.path], writer, time.monotonic) for network in networks},
            recorder,
            most_calls=settings.limits.batch_calls,
            request_seconds=settings.limits.request_seconds,
            now=time.monotonic,
            is_full=journal.is_full,
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
