"""One gateway process: what answers `/x/` put together, and everything else forwarded to the control plane."""

from __future__ import annotations

import asyncio
import functools
import socket
import time
from collections.abc import Callable
from typing import TypeVar

from tollgate.core import addresses
from tollgate.core.limits import Limit
from tollgate.gateway.access.credentials import Credentials
from tollgate.gateway.access.directory import CallerDirectory
from tollgate.gateway.access.limits import Admission
from tollgate.gateway.call.networks import Networks
from tollgate.gateway.call.pipeline import Pipeline
from tollgate.gateway.feeds.feed import Feed, Feeds
from tollgate.gateway.feeds.fetcher import Fetcher
from tollgate.gateway.feeds.pending import Pending
from tollgate.gateway.feeds.source import EthSource, StarknetSource
from tollgate.gateway.http.connection import Edge
from tollgate.gateway.http.request import Intake
from tollgate.gateway.http.worker_context import Lane
from tollgate.gateway.memory_budget import Budget
from tollgate.gateway.recording.counters import Recorder
from tollgate.gateway.recording.journal import Journal
from tollgate.gateway.websocket.connection import Socket
from tollgate.gateway.websocket.endpoint import CHECK_SECONDS, Endpoint
from tollgate.gateway.websocket.subscriptions import SocketPipeline
from tollgate.ledger.spool import Spool
from tollgate.processes import status
from tollgate.processes.bootstrap import Prepared
from tollgate.processes.control import ControlAddress
from tollgate.processes.reload import HEAD_START_SECONDS, POLL_SECONDS, Follower, Shared
from tollgate.processes.serving import Service, serve
from tollgate.processes.supervisor import Lifeline
from tollgate.settings.model import Limits, Settings, Upstream
from tollgate.shm import metrics
from tollgate.shm.limits import SharedMeters
from tollgate.shm.upstream_status import Board, Places
from tollgate.store import sqlite

P = TypeVar("P", bound=Pipeline)

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
        board: Board,
        shared: Shared,
    ) -> None:
        self._control = control
        self._board = board
        self._shared = shared
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
        settings = self._shared.current.settings
        writer = self._regions.writer(self._slot)
        store = sqlite.open_store(self._prepared.store_url)
        directory = CallerDirectory(store, settings, writer, time.monotonic)
        await directory.refresh()
        spool = self._spool()
        recorder = Recorder(writer)
        budget = Budget(settings.limits.buffer_bytes)
        loop = asyncio.get_running_loop()
        networks = Networks(self._board, self._slot, self._meters, writer, budget, time.monotonic, loop)
        networks.apply(settings, self._shared.current.places)
        credentials = self._credentials(directory)
        journal = Journal(spool, credentials.address, time=time.time, monotonic=time.monotonic)
        pipeline = self._pipeline(Pipeline, credentials, recorder, networks, spool)
        socket_pipeline = self._pipeline(SocketPipeline, credentials, recorder, networks, spool)
        lane = self._lane(pipeline, networks, recorder, writer, budget, journal, spool.write)
        lane.tick()
        feeds = Feeds(lambda path: self._feed(path, networks, loop))
        endpoint = Endpoint(
            lane,
            socket_pipeline,
            credentials,
            feeds,
            writer,
            settings.websocket,
            grace_seconds=settings.server.grace_seconds,
        )

        def change(settings: Settings, places: Places) -> None:
            """Put new settings into effect; calls under way go on."""
            networks.apply(settings, places)
            directory.change(settings.limits)
            credentials.change(*_misses(settings.limits))
            for each in (pipeline, socket_pipeline):
                each.change(settings.limits.batch_calls, settings.limits.request_seconds)
            lane.change(networks.served, settings.limits)
            endpoint.change(settings.websocket)

        follower = Follower(self._shared, f"worker-{self._slot}", change, delay=HEAD_START_SECONDS)
        follower.ready()

        def gauges() -> None:
            writer.set(writer.cell(metrics.SPOOL_HELD), spool.held_bytes)
            networks.tell()

        async def close() -> None:
            feeds.close()
            lane.stop()
            await asyncio.sleep(FLUSH_SECONDS)
            journal.tick()
            spool.close()
            networks.close()
            await store.close()

        return Service(
            status.public_app(
                lambda: "the store cannot be reached" if directory.stale else None,
                self._control.app(addresses.parse_networks(settings.server.trusted_proxies)),
                endpoint,
            ),
            http=functools.partial(Edge, lane),
            ws=functools.partial(Socket, endpoint.stop),
            ws_most_bytes=settings.limits.body_bytes,
            background=(
                (settings.directory.refresh_seconds, directory.refresh),
                (SWEEP_SECONDS, networks.sweep),
                (POLL_SECONDS, follower.turn),
                (CHECK_SECONDS, endpoint.check),
                (settings.ledger.sync_seconds, spool.sync),
                (1.0, lane.tick),
                (1.0, spool.tick),
                (1.0, gauges),
            ),
            close=close,
        )

    def _lane(
        self,
        pipeline: Pipeline,
        networks: Networks,
        recorder: Recorder,
        writer: metrics.Writer,
        budget: Budget,
        journal: Journal,
        write: Callable[[], None],
    ) -> Lane:
        settings = self._shared.current.settings
        return Lane(
            pipeline,
            Intake(networks.served, settings.limits.body_bytes),
            recorder,
            writer,
            budget,
            journal,
            write,
            most_bytes=settings.limits.body_bytes,
            most_connections=settings.server.connections,
            most_in_flight=settings.limits.in_flight,
            keep_alive_seconds=settings.server.keep_alive_seconds,
            read_seconds=settings.server.read_seconds,
            now=time.monotonic,
            time=time.time,
        )

    def _feed(self, path: str, networks: Networks, loop: asyncio.AbstractEventLoop) -> Feed:
        """What tells subscribers of one network."""
        row = self._board.network(self._shared.current.places.networks[path], self._slot)
        fetch = Fetcher(lambda: networks.all.get(path), time.monotonic, loop)
        source = StarknetSource(fetch) if path.startswith("starknet/") else EthSource(fetch)

        def upstreams() -> list[Upstream]:
            known = networks.all.get(path)
            return [peer.upstream for peer in known.exchange.peers] if known is not None else []

        return Feed(path, row, source, Pending(path, upstreams), time.monotonic)

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
        settings = self._shared.current.settings
        misses, misses_per_address = _misses(settings.limits)
        return Credentials(
            directory,
            self._meters,
            self._prepared.pepper,
            trusted=addresses.parse_networks(settings.server.trusted_proxies),
            allow_localhost=settings.whitelist.allow_localhost,
            misses=misses,
            misses_per_address=misses_per_address,
            monotonic=time.monotonic,
            time=time.time,
        )

    def _pipeline(
        self,
        kind: type[P],
        credentials: Credentials,
        recorder: Recorder,
        networks: Networks,
        spool: Spool,
    ) -> P:
        settings = self._shared.current.settings
        return kind(
            credentials,
            Admission(self._meters, credentials.address, monotonic=time.monotonic, time=time.time),
            networks.all,
            recorder,
            most_calls=settings.limits.batch_calls,
            request_seconds=settings.limits.request_seconds,
            now=time.monotonic,
            sink=spool,
        )


def _misses(limits: Limits) -> tuple[Limit, Limit]:
    """Look-ups of unknown callers: in all, and for one address."""
    return Limit(limits.misses_per_second, 1.0), Limit(limits.misses_per_second_per_address, 1.0)
