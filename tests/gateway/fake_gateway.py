"""A gateway worker made of real parts on fake ports: a scripted loop, a manual clock, a node for each upstream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tests.gateway.callers import PEPPER, TOKEN, digest, domain_grant, raw, summary, token_grant
from tests.gateway.fake_network import FakeNetwork
from tests.gateway.fake_node import FakeNode
from tests.gateway.fakes import (
    Clock,
    FakeTransport,
    Meters,
    ScriptedStore,
    Sink,
    run_pending,
    scripted_loop,
    spawn,
)
from uvicorn.config import Config
from uvicorn.server import ServerState

from tollgate.core import addresses
from tollgate.core.limits import Limit
from tollgate.core.methods import Policy
from tollgate.core.shapes import PlainCall, Reply
from tollgate.gateway.access.credentials import Credentials
from tollgate.gateway.access.directory import CallerDirectory
from tollgate.gateway.access.limits import Limiter
from tollgate.gateway.call.batch_resolution import BatchItem, resolve_many
from tollgate.gateway.call.call import Calls
from tollgate.gateway.call.networks import Networks
from tollgate.gateway.call.pipeline import Pipeline
from tollgate.gateway.call.resolver import resolve
from tollgate.gateway.http.connection import CallerConnection
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
from tollgate.gateway.messages import Route
from tollgate.gateway.recording.counters import Counters
from tollgate.gateway.recording.journal import Journal
from tollgate.gateway.recording.latencies import CallerLatencies
from tollgate.gateway.tracing import Tracer
from tollgate.gateway.upstream.health import Upstream
from tollgate.gateway.upstream.sticky import TeamSeal
from tollgate.settings import model
from tollgate.shm import metrics
from tollgate.shm.upstream_status import SharedStatus, StatusSlots, assign_slots

SECONDS = 30.0
OPENED: list[FakeGateway] = []
"""Those of one test, to be checked at its end."""


class FakeGateway(FakeNetwork):
    """One worker, its callers, upstreams and their nodes. Upstreams are named up0, up1, ..."""

    def __init__(
        self,
        *upstreams: dict[str, Any],
        node: Callable[[bytes], bytes | None] | None = None,
        limits: model.LimitSettings | None = None,
        server: model.ServerSettings | None = None,
        policy: Policy | None = None,
        trusted: tuple[str, ...] = (),
        misses: Limit | None = None,
        misses_per_address: Limit | None = None,
        budget: int = 10_000_000,
        family: str = "eth",
        network: dict[str, Any] | None = None,
        cache_bytes: int = 0,
        fast_path: bool = True,
        tracer: Tracer | None = None,
    ) -> None:
        """Two upstreams unless their settings are given; no cache.

        `node` answers for all upstreams, instead of a `FakeNode` for each. The first upstream is preferred, unless
        `priority` is set.
        """
        self.loop = scripted_loop()
        self.clock = self.loop.clock = Clock()
        self.wall = Clock(1_700_000_000.0)
        self.regions = metrics.Regions(1)
        writer = self.regions.writer(0)
        self.store = ScriptedStore()
        self.store.tokens[digest(TOKEN)] = token_grant()
        self.store.grants["example.com"] = domain_grant()
        self.meters = Meters()
        named = tuple(
            model.UpstreamSettings(**{"name": f"up{i}", "url": f"http://up{i}:8545", "priority": i, **each})
            for i, each in enumerate(upstreams or ({}, {}))
        )
        self.nodes = [FakeNode(each.name) for each in named]
        self.loop.node = node
        self.loop.nodes = {} if node else {each.name: each.receive for each in self.nodes}
        lists = {"allow_methods": policy.allow, "deny_methods": policy.deny} if policy else {}
        served = model.NetworkSettings(upstreams=named, **{**lists, **(network or {})})
        settings = model.Settings(
            limits=limits or model.LimitSettings(),
            server=server or model.ServerSettings(),
            cache=model.CacheSettings(bytes=cache_bytes),
            families={family: {"mainnet": served}},
        )
        self.directory = CallerDirectory(self.store, settings, writer, self.clock)
        self.credentials = Credentials(
            self.directory,
            self.meters,
            PEPPER,
            trusted=addresses.parse_networks(trusted),
            allow_localhost=False,
            misses=misses or Limit(500, 1.0),
            misses_per_address=misses_per_address or Limit(10, 1.0),
            monotonic=self.clock,
            time=self.wall,
        )
        self.limiter = Limiter(self.meters, self.credentials.address, monotonic=self.clock, time=self.wall)
        self.budget = Budget(budget)
        self.shared_status = SharedStatus(1, self.clock)
        self.slots = assign_slots(StatusSlots(), {f"{family}/mainnet": [each.name for each in named]})
        self.networks = Networks(self.shared_status, 0, self.meters, writer, self.budget, self.clock, self.loop)
        self.networks.apply(settings, self.slots)
        self.settings = settings
        (self.network,) = self.networks.served
        self.resolver = self.networks.all[self.network.path]
        self.exchange = self.resolver.exchange
        self.pools = {upstream.name: upstream.pool for upstream in self.exchange.upstreams}
        self.status = self.shared_status.network(0)
        """The network's status, as the prober writes it."""
        self.statuses = [self.shared_status.upstream(index) for index in range(len(named))]
        self.counters = Counters(writer)
        self.sink = Sink()
        self.journal = Journal(
            self.sink, self.credentials.address, CallerLatencies(writer), time=self.wall, monotonic=self.clock
        )
        self.pipeline = Pipeline(
            self.credentials,
            self.limiter,
            self.networks.all,
            self.counters,
            max_calls=settings.limits.batch_calls,
            request_seconds=settings.limits.request_seconds,
            now=self.clock,
            sink=self.sink,
            seal=TeamSeal(PEPPER),
        )
        self.context = WorkerContext(
            Answering(self.pipeline, RequestReader([self.network], settings.limits.body_bytes), tracer),
            Recording(self.counters, writer, self.journal, self.sink.write),
            Bounds(
                self.budget,
                max_bytes=settings.limits.body_bytes,
                max_in_flight=settings.limits.in_flight,
                max_connections=settings.server.connections,
                keep_alive_seconds=settings.server.keep_alive_seconds,
                read_seconds=settings.server.read_seconds,
            ),
            Clocks(self.clock, self.wall),
            ResponseHeads(),
        )
        self.calls = Calls(
            self.context, self.pipeline, self.credentials, self.limiter, self.networks.all, writer, self.sink
        )
        self.context.admit, self.pipeline.serve = self.calls.admit, self.calls.serve
        if fast_path:
            self.context.begin = self.calls.begin
        self.directory.changed = self.context.renew
        self.server_state = ServerState()
        self.traces: list[Route] = []
        """Of each call sent by `send`."""
        OPENED.append(self)

    def connect(self, app: Any = None, **options: Any) -> FakeTransport:
        """A caller connects; requests outside /x/ go to `app`."""
        options = {"log_config": None, "lifespan": "off", "ws": "none", "access_log": False, **options}
        connection = CallerConnection(self.context, Config(app, **options), self.server_state, {}, self.loop)
        transport = FakeTransport(connection)
        connection.connection_made(transport)
        return transport

    def counted(self, spec: metrics.Spec, *labels: str) -> int:
        """The value of a metric."""
        return self.regions.totals().get((spec.name, *labels), 0)

    def save_hedges(self, saved: float) -> None:
        """Put so many hedges into the budget."""
        budget = self.exchange.hedge_budget
        budget._counted = sum(upstream.calls for upstream in self.exchange.upstreams)
        budget._saved, budget._looked_at = saved, self.clock()

    @property
    def upstreams(self) -> list[Upstream]:
        """All upstreams, by their slot."""
        return sorted(self.exchange.upstreams, key=lambda upstream: upstream.slot)

    async def advance(self, seconds: float) -> None:
        """Let time pass for timers and connections."""
        left = seconds
        while left > 0:
            await self.loop.advance(min(0.1, left))
            self.networks.sweep()
            await run_pending()
            left -= 0.1

    # --- Calling ---------------------------------------------------------------------------------------

    def send(self, method: str, *params: Any, seconds: float = SECONDS) -> asyncio.Future[Reply]:
        """Send one call; its trace is the last of `traces`."""
        self.traces.append(Route(self.clock()))
        call = PlainCall("2.0", 1, method, raw(params))
        key = self.resolver.key(call)
        kept = self.resolver.recall(key)
        if kept is not None:
            self.traces[-1].cache = "hit"
            future: asyncio.Future[Reply] = self.loop.create_future()
            future.set_result(kept)
            return future
        return spawn(resolve(self.resolver, call, key, self.clock() + seconds, self.traces[-1]))

    async def call(self, method: str, *params: Any, seconds: float = SECONDS) -> Any:
        """Send one call, which is answered without time passing."""
        pending = self.send(method, *params, seconds=seconds)
        await run_pending()
        return summary(await pending)

    def resolve_many(self, *calls: tuple[str, Any], seconds: float = SECONDS) -> asyncio.Future[list[BatchItem]]:
        """Send a batch."""
        batch = [PlainCall("2.0", 1, method, raw(params)) for method, params in calls]
        return spawn(resolve_many(self.resolver, batch, self.clock() + seconds))

    def echo(self) -> None:
        """Let every node answer each call with its method and params."""
        for node in self.nodes:
            node.respond = lambda method, params: [method, params]

    def counts(self) -> list[int]:
        """How many calls each upstream received."""
        return [len(node.calls) for node in self.nodes]

    @property
    def trace(self) -> Route:
        """The trace of the last call."""
        return self.traces[-1]

    def attempts(self, name: str, outcome: str) -> int:
        """How many attempts at an upstream had an outcome."""
        family = self.network.family
        return self.counted(metrics.UPSTREAM_ATTEMPTS, family, "mainnet", name, outcome)


async def open_gateway(*upstreams: dict[str, Any], **options: Any) -> FakeGateway:
    """A gateway that has read its store's revision."""
    gateway = FakeGateway(*upstreams, **options)
    await gateway.directory.refresh()
    return gateway
