"""One gateway process: what answers `/x/` put together, and everything else forwarded to the control plane."""

from __future__ import annotations

import asyncio
import functools
import socket
import time
from collections.abc import Callable, Iterator
from random import random
from typing import Any, TypeVar

from msgspec import Struct

from tollgate.core import addresses
from tollgate.core.limits import Limit
from tollgate.gateway.access.credentials import Credentials
from tollgate.gateway.access.directory import CallerDirectory
from tollgate.gateway.access.limits import Limiter
from tollgate.gateway.call.call import Calls
from tollgate.gateway.call.networks import Networks
from tollgate.gateway.call.pipeline import Pipeline
from tollgate.gateway.call.shared_answers import TURN_SECONDS as SHARE_SECONDS
from tollgate.gateway.call.shared_answers import SharedAnswers
from tollgate.gateway.feeds.feed import Feed, Feeds
from tollgate.gateway.feeds.fetcher import BlockFetcher
from tollgate.gateway.feeds.pending import PendingTransactions
from tollgate.gateway.feeds.source import EthSource, StarknetSource
from tollgate.gateway.http.connection import CallerConnection
from tollgate.gateway.http.connection_counts import ConnectionCounts
from tollgate.gateway.http.request import RequestReader
from tollgate.gateway.http.worker_context import (
    Answering,
    Bounds,
    Clocks,
    Recording,
    ResponseHeads,
    WorkerContext,
)
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
from tollgate.processes.control_proxy import ControlAddress
from tollgate.processes.serving import HTTPS_ALONE, ServerProcess, serve
from tollgate.processes.shared_settings import HEAD_START_SECONDS, POLL_SECONDS, SettingsFollower, SharedSettings
from tollgate.processes.supervisor import Lifeline
from tollgate.processes.trace_export import EXPORT_SECONDS, TraceExporter
from tollgate.settings.model import LimitSettings, Settings, TelemetrySettings, UpstreamSettings
from tollgate.shm import metrics
from tollgate.shm.allowances import Allowances
from tollgate.shm.leases import LAST_SECONDS, LeasedMeters
from tollgate.shm.limits import SharedMeters
from tollgate.shm.upstream_status import SharedStatus, StatusSlots
from tollgate.store import engines
from tollgate.store.sql import SqlStore
from tollgate.store.valkey import ValkeyAnswerLog, prefix

P = TypeVar("P", bound=Pipeline)

SWEEP_SECONDS = 0.1
# For the last answers to leave.
FLUSH_SECONDS = 0.05


class Worker(Struct, frozen=True):
    """One gateway process: what it gets from its parent."""

    bootstrap: Bootstrap
    slot: int
    public: list[socket.socket]
    private: list[socket.socket]
    regions: metrics.Regions
    meters: SharedMeters
    caller_meters: SharedMeters
    allowances: Allowances | None
    tls: tuple[str, str] | None
    control: ControlAddress | None
    shared_status: SharedStatus
    shared: SharedSettings

    def run(self, lifeline: Lifeline) -> None:
        mine = self.public[self.slot]
        for each in self.private:
            each.close()
        if self.control is not None:
            self.control.listener.close()
        self.meters.attach(self.slot)
        self.caller_meters.attach(self.slot)
        if self.allowances is not None:
            self.allowances.attach(self.slot)
        serve(
            self._make,
            [mine],
            lifeline,
            grace_seconds=self.bootstrap.settings.server.grace_seconds,
            tls=self.tls,
            siblings={slot - self.slot: each for slot, each in enumerate(self.public) if each is not mine},
        )

    async def _make(self) -> ServerProcess:
        store = engines.open_store(self.bootstrap.store_url)
        writer = self.regions.writer(self.slot)
        directory = CallerDirectory(store, self.shared.current.settings, writer, time.monotonic)
        await directory.refresh()
        return _Gateway(self, store, directory, writer).process()


class _Gateway:
    """The parts of a worker, put together inside its loop."""

    def __init__(
        self, worker: Worker, store: SqlStore, directory: CallerDirectory, writer: metrics.Writer
    ) -> None:
        self._worker = worker
        self._settings = settings = worker.shared.current.settings
        self._store = store
        self._directory = directory
        self._writer = writer
        self._spool = self._make_spool()
        self._counters = Counters(writer)
        self._budget = Budget(settings.limits.buffer_bytes, settings.limits.body_bytes)
        loop = asyncio.get_running_loop()
        self._networks = Networks(
            worker.shared_status, worker.slot, worker.meters, writer, self._budget, time.monotonic, loop
        )
        self._networks.apply(settings, worker.shared.current.slots)
        self._credentials = self._make_credentials()
        latencies = CallerLatencies(writer)
        self._journal = Journal(
            self._spool, self._credentials.address, latencies, time=time.time, monotonic=time.monotonic
        )
        self._pipeline = self._make_pipeline(Pipeline)
        self._socket_pipeline = self._make_pipeline(SocketPipeline)
        self._tracer = _tracer(settings.telemetry)
        self._context = self._make_context()
        calls = Calls(
            self._context,
            self._pipeline,
            self._credentials,
            self._limiter(),
            self._networks.all,
            writer,
            self._spool,
        )
        self._context.begin, self._context.admit = calls.begin, calls.admit
        self._pipeline.serve = self._socket_pipeline.serve = calls.serve
        directory.changed = self._context.renew
        self._context.tick()
        self._feeds = Feeds(self._feed)
        self._endpoint = Endpoint(
            self._context,
            self._socket_pipeline,
            self._credentials,
            self._feeds,
            writer,
            settings.websocket,
            grace_seconds=settings.server.grace_seconds,
        )
        name = f"worker-{worker.slot}"
        self._follower = SettingsFollower(worker.shared, name, self._change, delay=HEAD_START_SECONDS)
        self._follower.ready()
        self._shared_answers = self._make_shared_answers()
        self._exporter = (
            TraceExporter(self._tracer, settings.telemetry, writer, name, time.monotonic) if self._tracer else None
        )

    def process(self) -> ServerProcess:
        settings, control = self._settings, self._worker.control
        trusted = addresses.parse_networks(settings.server.trusted_proxies)
        rest = None if control is None else control.app(trusted)
        return ServerProcess(
            status.public_app(self._why_not_ready, rest, self._endpoint),
            http=functools.partial(CallerConnection, self._context),
            ws=functools.partial(Socket, self._endpoint.stop, self._context),
            ws_max_bytes=settings.limits.body_bytes,
            background=tuple(self._background()),
            close=self._close,
        )

    def _background(self) -> Iterator[tuple[float, Callable[[], Any]]]:
        settings = self._settings
        yield settings.directory.refresh_seconds, self._directory.refresh
        yield SWEEP_SECONDS, self._networks.sweep
        yield POLL_SECONDS, self._follower.tick
        yield CHECK_SECONDS, self._endpoint.check
        yield settings.ledger.sync_seconds, self._spool.sync
        yield 1.0, self._context.tick
        yield 1.0, self._spool.tick
        yield 1.0, self._gauges
        if self._exporter is not None:
            yield EXPORT_SECONDS, self._exporter.tick
            yield EXPORT_SECONDS, self._exporter.sweep
        if self._shared_answers is not None:
            yield SHARE_SECONDS, self._shared_answers.tick
        if isinstance(self._worker.caller_meters, LeasedMeters):
            yield LAST_SECONDS, self._worker.caller_meters.settle

    def _change(self, settings: Settings, slots: StatusSlots) -> None:
        """Apply new settings; calls in progress keep the old ones."""
        self._networks.apply(settings, slots)
        self._directory.change(settings.limits)
        self._credentials.change(*_misses(settings.limits))
        for each in (self._pipeline, self._socket_pipeline):
            each.change(
                settings.limits.batch_calls,
                settings.limits.request_seconds,
                bills_upstream_calls=settings.billing.upstream_calls,
                shows_upstreams=settings.ledger.show_upstreams,
            )
        self._context.change(self._networks.served, settings.limits)
        self._endpoint.change(settings.websocket)

    def _gauges(self) -> None:
        self._writer.set(self._writer.cell(metrics.SPOOL_HELD), self._spool.held_bytes)
        self._networks.report()
        self._feeds.tick()

    def _why_not_ready(self) -> str | None:
        if self._directory.stale:
            return "the store cannot be reached"
        return None if self._networks.is_usable else "no network has a usable upstream: see `tollgate upstreams`"

    async def _close(self) -> None:
        self._feeds.close()
        self._context.under_way.stop()
        await asyncio.sleep(FLUSH_SECONDS)
        # What is billed first: sending the last spans may take seconds.
        self._journal.tick()
        self._spool.close()
        self._networks.report()
        if self._exporter is not None:
            await self._exporter.close()
        self._networks.close()
        await self._store.close()
        if self._shared_answers is not None:
            await self._shared_answers.close()

    # --- Its parts, made of settings -------------------------------------------------------------------

    def _make_spool(self) -> Spool:
        bootstrap = self._worker.bootstrap
        ledger = bootstrap.settings.ledger
        return Spool(
            bootstrap.spool_dir,
            segment_bytes=ledger.segment_bytes,
            segment_seconds=ledger.segment_seconds,
            max_held_bytes=ledger.held_bytes,
            now=time.time,
        )

    def _make_credentials(self) -> Credentials:
        settings, bootstrap = self._settings, self._worker.bootstrap
        misses, misses_per_address = _misses(settings.limits)
        return Credentials(
            self._directory,
            self._worker.meters,
            bootstrap.pepper,
            trusted=addresses.parse_networks(settings.server.trusted_proxies),
            allow_localhost=settings.whitelist.allow_localhost,
            misses=misses,
            misses_per_address=misses_per_address,
            monotonic=time.monotonic,
            time=time.time,
            previous_pepper=bootstrap.previous_pepper,
        )

    def _limiter(self) -> Limiter:
        meters, address = self._worker.caller_meters, self._credentials.address
        return Limiter(
            meters, address, monotonic=time.monotonic, time=time.time, allowances=self._worker.allowances
        )

    def _make_pipeline(self, kind: type[P]) -> P:
        settings = self._settings
        return kind(
            self._credentials,
            self._limiter(),
            self._networks.all,
            self._counters,
            max_calls=settings.limits.batch_calls,
            request_seconds=settings.limits.request_seconds,
            now=time.monotonic,
            sink=self._spool,
            seal=TeamSeal(self._worker.bootstrap.pepper),
            bills_upstream_calls=settings.billing.upstream_calls,
            shows_upstreams=settings.ledger.show_upstreams,
        )

    def _make_context(self) -> WorkerContext:
        settings = self._settings
        constant = "{}: {}\r\n".format(*HTTPS_ALONE).encode() if settings.server.tls_certificate else b""
        bounds = Bounds(
            self._budget,
            max_bytes=settings.limits.body_bytes,
            max_in_flight=settings.limits.in_flight,
            max_connections=listeners.fitting_connections(settings),
            keep_alive_seconds=settings.server.keep_alive_seconds,
            read_seconds=settings.server.read_seconds,
            addresses=ConnectionCounts(
                addresses.parse_networks(settings.server.trusted_proxies),
                listeners.fitting_connections_per_address(settings),
                listeners.fitting_connections(settings),
            ),
        )
        reader = RequestReader(self._networks.served, settings.limits.body_bytes)
        return WorkerContext(
            Answering(self._pipeline, reader, self._tracer),
            Recording(self._counters, self._writer, self._journal, self._spool.write),
            bounds,
            Clocks(time.monotonic, time.time),
            ResponseHeads(constant),
        )

    def _make_shared_answers(self) -> SharedAnswers | None:
        """What exchanges answers with other nodes, where there is something to exchange them through."""
        url, pepper = self._worker.bootstrap.settings.shared.url, self._worker.bootstrap.pepper
        if not url:
            return None
        answers = ValkeyAnswerLog(url, prefix(pepper), pepper)
        return SharedAnswers(answers, self._networks.all, self._writer, time.monotonic)

    def _feed(self, path: str) -> Feed:
        """The feed of one network's subscribers."""
        worker, networks = self._worker, self._networks.all
        status = worker.shared_status.network(worker.shared.current.slots.networks[path], worker.slot)
        fetch = BlockFetcher(lambda: networks.get(path), time.monotonic)
        make = StarknetSource if path.startswith("starknet/") else EthSource
        source, past = make(fetch), make(fetch.from_cache)

        def upstreams() -> list[UpstreamSettings]:
            known = networks.get(path)
            return [upstream.settings for upstream in known.exchange.upstreams] if known is not None else []

        return Feed(path, status, source, PendingTransactions(path, upstreams), time.monotonic, past=past)


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
