"""One gateway process: what answers `/x/` put together, and everything else forwarded to the control plane."""

from __future__ import annotations

import asyncio
import functools
import socket
import time
from collections.abc import Callable
from random import random
from typing import TypeVar

from tollgate.core import addresses
from tollgate.core.limits import Limit
from tollgate.gateway.access.credentials import Credentials
from tollgate.gateway.access.directory import CallerDirectory
from tollgate.gateway.access.limits import Limiter
from tollgate.gateway.call.networks import Networks
from tollgate.gateway.call.pipeline import Pipeline
from tollgate.gateway.call.shared_answers import TURN_SECONDS as SHARE_SECONDS
from tollgate.gateway.call.shared_answers import SharedAnswers
from tollgate.gateway.call.straight_calls import StraightCalls
from tollgate.gateway.feeds.feed import Feed, Feeds
from tollgate.gateway.feeds.fetcher import BlockFetcher
from tollgate.gateway.feeds.pending import PendingTransactions
from tollgate.gateway.feeds.source import EthSource, StarknetSource
from tollgate.gateway.http.connection import CallerConnection
from tollgate.gateway.http.request import RequestReader
from tollgate.gateway.http.worker_context import Addresses, WorkerContext
from tollgate.gateway.memory_budget import Budget
from tollgate.gateway.recording.counters import Counters
from tollgate.gateway.recording.journal import Journal
from tollgate.gateway.recording.latencies import CallerLatencies
from tollgate.gateway.tracing import Tracer
from tollgate.gateway.upstream.sticky import TeamSeal
from tollgate.gateway.websocket.connection import Socket
from tollgate.gateway.websocket.endpoint import CHECK_SECONDS, Endpoint
from tollgate.gateway.websocket.subscriptions import SocketPipeline
from tollgate.ledger.spool import Spool
from tollgate.processes import listeners, status
from tollgate.processes.bootstrap import Bootstrap
from tollgate.processes.control import ControlAddress
from tollgate.processes.reload import HEAD_START_SECONDS, POLL_SECONDS, SettingsFollower, SharedSettings
from tollgate.processes.serving import HTTPS_ALONE, ServerProcess, serve
from tollgate.processes.supervisor import Lifeline
from tollgate.processes.trace_export import EXPORT_SECONDS, TraceExporter
from tollgate.settings.model import LimitSettings, Settings, TelemetrySettings, UpstreamSettings
from tollgate.shm import metrics
from tollgate.shm.leases import LAST_SECONDS, LeasedMeters
from tollgate.shm.limits import SharedMeters
from tollgate.shm.upstream_status import SharedStatus, StatusSlots
from tollgate.store import engines
from tollgate.store.valkey import ValkeyAnswerLog, prefix

P = TypeVar("P", bound=Pipeline)

SWEEP_SECONDS = 0.1
# For the last answers to leave.
FLUSH_SECONDS = 0.05


class Worker:
    """One gateway process."""

    def __init__(
        self,
        bootstrap: Bootstrap,
        slot: int,
        public: list[socket.socket],
        private: list[socket.socket],
        regions: metrics.Regions,
        meters: SharedMeters,
        caller_meters: SharedMeters,
        tls: tuple[str, str] | None,
        control: ControlAddress | None,
        shared_status: SharedStatus,
        shared: SharedSettings,
    ) -> None:
        self._control = control
        self._shared_status = shared_status
        self._shared = shared
        self._bootstrap = bootstrap
        self._slot = slot
        self._public = public
        self._private = private
        self._regions = regions
        self._meters = meters
        self._caller_meters = caller_meters
        self._tls = tls

    def run(self, lifeline: Lifeline) -> None:
        """Serve, in the child."""
        mine = self._public[self._slot]
        for each in self._private:
            each.close()
        if self._control is not None:
            self._control.listener.close()
        self._meters.attach(self._slot)
        self._caller_meters.attach(self._slot)
        serve(
            self._make,
            [mine],
            lifeline,
            grace_seconds=self._bootstrap.settings.server.grace_seconds,
            tls=self._tls,
            siblings={slot - self._slot: each for slot, each in enumerate(self._public) if each is not mine},
        )

    async def _make(self) -> ServerProcess:
        settings = self._shared.current.settings
        writer = self._regions.writer(self._slot)
        store = engines.open_store(self._bootstrap.store_url)
        directory = CallerDirectory(store, settings, writer, time.monotonic)
        await directory.refresh()
        spool = self._spool()
        counters = Counters(writer)
        budget = Budget(settings.limits.buffer_bytes)
        loop = asyncio.get_running_loop()
        networks = Networks(self._shared_status, self._slot, self._meters, writer, budget, time.monotonic, loop)
        networks.apply(settings, self._shared.current.slots)
        credentials = self._credentials(directory)
        journal = Journal(
            spool, credentials.address, CallerLatencies(writer), time=time.time, monotonic=time.monotonic
        )
        pipeline = self._pipeline(Pipeline, credentials, counters, networks, spool)
        socket_pipeline = self._pipeline(SocketPipeline, credentials, counters, networks, spool)
        tracer = _tracer(settings.telemetry)
        context = self._context(pipeline, networks, counters, writer, budget, journal, spool.write, tracer)
        straight = StraightCalls(
            context, pipeline, credentials, self._limiter(credentials), networks.all, writer, spool
        )
        context.begin = straight.begin
        directory.changed = context.renew
        context.tick()
        feeds = Feeds(lambda path: self._feed(path, networks))
        endpoint = Endpoint(
            context,
            socket_pipeline,
            credentials,
            feeds,
            writer,
            settings.websocket,
            grace_seconds=settings.server.grace_seconds,
        )

        def change(settings: Settings, slots: StatusSlots) -> None:
            """Apply new settings; calls under way go on with the old ones."""
            networks.apply(settings, slots)
            directory.change(settings.limits)
            credentials.change(*_misses(settings.limits))
            for each in (pipeline, socket_pipeline):
                each.change(
                    settings.limits.batch_calls,
                    settings.limits.request_seconds,
                    bills_upstream_calls=settings.billing.upstream_calls,
                )
            context.change(networks.served, settings.limits)
            endpoint.change(settings.websocket)

        follower = SettingsFollower(self._shared, f"worker-{self._slot}", change, delay=HEAD_START_SECONDS)
        follower.ready()

        shared_answers = self._shared_answers(networks, writer)

        def gauges() -> None:
            writer.set(writer.cell(metrics.SPOOL_HELD), spool.held_bytes)
            networks.report()
            feeds.tick()

        exporter = None
        if tracer is not None:
            exporter = TraceExporter(tracer, settings.telemetry, writer, f"worker-{self._slot}", time.monotonic)

        async def close() -> None:
            feeds.close()
            context.stop()
            await asyncio.sleep(FLUSH_SECONDS)
            # What is billed first: sending the last spans may take seconds.
            journal.tick()
            spool.close()
            if exporter is not None:
                await exporter.close()
            networks.close()
            await store.close()
            if shared_answers is not None:
                await shared_answers.close()

        return ServerProcess(
            status.public_app(
                lambda: _why_not_ready(directory, networks),
                None
                if self._control is None
                else self._control.app(addresses.parse_networks(settings.server.trusted_proxies)),
                endpoint,
            ),
            http=functools.partial(CallerConnection, context),
            ws=functools.partial(Socket, endpoint.stop, context),
            ws_max_bytes=settings.limits.body_bytes,
            background=(
                (settings.directory.refresh_seconds, directory.refresh),
                (SWEEP_SECONDS, networks.sweep),
                (POLL_SECONDS, follower.turn),
                (CHECK_SECONDS, endpoint.check),
                (settings.ledger.sync_seconds, spool.sync),
                (1.0, context.tick),
                (1.0, spool.tick),
                (1.0, gauges),
                *(((EXPORT_SECONDS, exporter.turn), (EXPORT_SECONDS, exporter.sweep)) if exporter else ()),
                *([(SHARE_SECONDS, shared_answers.turn)] if shared_answers is not None else []),
                *(
                    [(LAST_SECONDS, limits.settle)]
                    if isinstance(limits := self._caller_meters, LeasedMeters)
                    else []
                ),
            ),
            close=close,
        )

    def _shared_answers(self, networks: Networks, writer: metrics.Writer) -> SharedAnswers | None:
        """What exchanges answers with other nodes, where there is something to exchange them through."""
        url, pepper = self._bootstrap.settings.shared.url, self._bootstrap.pepper
        if not url:
            return None
        answers = ValkeyAnswerLog(url, prefix(pepper), pepper)
        return SharedAnswers(answers, networks.all, writer, time.monotonic)

    def _context(
        self,
        pipeline: Pipeline,
        networks: Networks,
        counters: Counters,
        writer: metrics.Writer,
        budget: Budget,
        journal: Journal,
        write: Callable[[], None],
        tracer: Tracer | None,
    ) -> WorkerContext:
        settings = self._shared.current.settings
        return WorkerContext(
            pipeline,
            RequestReader(networks.served, settings.limits.body_bytes),
            counters,
            writer,
            budget,
            journal,
            write,
            max_bytes=settings.limits.body_bytes,
            max_connections=listeners.fitting_connections(settings),
            max_in_flight=settings.limits.in_flight,
            keep_alive_seconds=settings.server.keep_alive_seconds,
            read_seconds=settings.server.read_seconds,
            now=time.monotonic,
            time=time.time,
            by_address=Addresses(
                addresses.parse_networks(settings.server.trusted_proxies),
                listeners.fitting_connections_per_address(settings),
            ),
            constant_headers="{}: {}\r\n".format(*HTTPS_ALONE).encode()
            if settings.server.tls_certificate
            else b"",
            tracer=tracer,
        )

    def _feed(self, path: str, networks: Networks) -> Feed:
        """The feed of one network's subscribers."""
        row = self._shared_status.network(self._shared.current.slots.networks[path], self._slot)
        fetch = BlockFetcher(lambda: networks.all.get(path), time.monotonic)
        make = StarknetSource if path.startswith("starknet/") else EthSource
        source, past = make(fetch), make(fetch.from_cache)

        def upstreams() -> list[UpstreamSettings]:
            known = networks.all.get(path)
            return [upstream.settings for upstream in known.exchange.upstreams] if known is not None else []

        return Feed(path, row, source, PendingTransactions(path, upstreams), time.monotonic, past=past)

    def _spool(self) -> Spool:
        ledger = self._bootstrap.settings.ledger
        return Spool(
            self._bootstrap.spool_dir,
            segment_bytes=ledger.segment_bytes,
            segment_seconds=ledger.segment_seconds,
            max_held_bytes=ledger.held_bytes,
            now=time.time,
        )

    def _credentials(self, directory: CallerDirectory) -> Credentials:
        settings = self._shared.current.settings
        misses, misses_per_address = _misses(settings.limits)
        return Credentials(
            directory,
            self._meters,
            self._bootstrap.pepper,
            trusted=addresses.parse_networks(settings.server.trusted_proxies),
            allow_localhost=settings.whitelist.allow_localhost,
            misses=misses,
            misses_per_address=misses_per_address,
            monotonic=time.monotonic,
            time=time.time,
            previous_pepper=self._bootstrap.previous_pepper,
        )

    def _limiter(self, credentials: Credentials) -> Limiter:
        return Limiter(self._caller_meters, credentials.address, monotonic=time.monotonic, time=time.time)

    def _pipeline(
        self,
        kind: type[P],
        credentials: Credentials,
        counters: Counters,
        networks: Networks,
        spool: Spool,
    ) -> P:
        settings = self._shared.current.settings
        return kind(
            credentials,
            self._limiter(credentials),
            networks.all,
            counters,
            max_calls=settings.limits.batch_calls,
            request_seconds=settings.limits.request_seconds,
            now=time.monotonic,
            sink=spool,
            seal=TeamSeal(self._bootstrap.pepper),
            bills_upstream_calls=settings.billing.upstream_calls,
        )


def _why_not_ready(directory: CallerDirectory, networks: Networks) -> str | None:
    if directory.stale:
        return "the store cannot be reached"
    return None if networks.is_usable else "no network has a usable upstream: see `tollgate upstreams`"


def _tracer(telemetry: TelemetrySettings) -> Tracer | None:
    """What makes spans; None where traces are off."""
    if not telemetry.traces_url:
        return None
    return Tracer(
        ratio=telemetry.sample_ratio,
        follow_callers=telemetry.follow_callers,
        propagate=telemetry.propagate,
        now=time.monotonic,
        time=time.time,
        random=random,
    )


def _misses(limits: LimitSettings) -> tuple[Limit, Limit]:
    """Look-ups of unknown callers: in all, and for one address."""
    return Limit(limits.misses_per_second, 1.0), Limit(limits.misses_per_second_per_address, 1.0)
