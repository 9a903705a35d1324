"""A gateway worker put together from real parts on scripted ports, and helpers to call it."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.gateway.fakes import Clock, FakeTransport, Meters, ScriptedStore, Sink, scripted_loop
from uvicorn.config import Config
from uvicorn.server import ServerState

from tollgate.core import addresses, secrets
from tollgate.core.limits import Limit
from tollgate.core.methods import Policy
from tollgate.core.models import Domain, Grant, Team, Token
from tollgate.errors import Refusal
from tollgate.gateway.access.caller import Caller
from tollgate.gateway.access.credentials import Credentials
from tollgate.gateway.access.directory import CallerDirectory
from tollgate.gateway.access.limits import Limiter
from tollgate.gateway.call.networks import Networks
from tollgate.gateway.call.pipeline import Pipeline
from tollgate.gateway.call.straight_calls import StraightCalls
from tollgate.gateway.http.connection import CallerConnection
from tollgate.gateway.http.request import RequestReader
from tollgate.gateway.http.worker_context import WorkerContext
from tollgate.gateway.memory_budget import Budget
from tollgate.gateway.messages import Request
from tollgate.gateway.recording.counters import Counters
from tollgate.gateway.recording.journal import Journal
from tollgate.gateway.recording.latencies import CallerLatencies
from tollgate.gateway.tracing import Tracer
from tollgate.gateway.upstream.sticky import TeamSeal
from tollgate.settings import model
from tollgate.shm import metrics
from tollgate.shm.upstream_status import SharedStatus, State, StatusSlots, assign_slots

PEPPER = b"p" * 32
TOKEN = secrets.new_token()
TEAM = Team("team_1", "acme")
OTHER_TEAM = Team("team_2", "globex")


def token_grant(team: Team = TEAM, **fields: Any) -> Grant:
    """A token of a team."""
    return Grant(team, Token("tok_1", team.id, "ci", "tg_", 0.0, **fields))


def domain_grant(team: Team = TEAM, **fields: Any) -> Grant:
    """A whitelist entry of a team."""
    return Grant(team, domain=Domain("dom_1", team.id, "example.com", 0.0, **fields))


def digest(token: str) -> bytes:
    """What the store knows of a token."""
    return secrets.digest(token.encode(), PEPPER)


def request(body: bytes = b"", *, peer: str = "192.0.2.1", **headers: str) -> Request:
    """A request as the edge hands it on; `_` in a header's name stands for `-`."""
    named = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    made = Request(b"POST", named, peer, b"rid-1")
    made.body = body
    return made


def with_token(body: bytes = b"", token: str = TOKEN) -> Request:
    """A request of the usual caller."""
    return request(body, authorization=f"Bearer {token}")


def http(response: bytes, *headers: bytes, status: bytes = b"200 OK") -> bytes:
    """An HTTP response with a length."""
    lines = b"".join(b"%b\r\n" % line for line in (b"content-length: %d" % len(response), *headers))
    return b"HTTP/1.1 %b\r\n%b\r\n%b" % (status, lines, response)


def echo(body: bytes) -> bytes:
    """A node that answers every call with its method and params."""
    called = json.loads(body)
    replies = [
        {"jsonrpc": "2.0", "id": call["id"], "result": [call["method"], call["params"]]}
        for call in (called if isinstance(called, list) else [called])
    ]
    return http(json.dumps(replies if isinstance(called, list) else replies[0]).encode())


class Tasks(set[Any]):
    """Requests under way on the general way, and how many there ever were."""

    started = 0

    def add(self, task: Any) -> None:
        self.started += 1
        super().add(task)


class Worker:
    """Everything of one worker, on a scripted loop."""

    def __init__(
        self,
        *,
        node: Callable[[bytes], bytes | None] | None = echo,
        upstreams: int = 1,
        limits: model.LimitSettings | None = None,
        server: model.ServerSettings | None = None,
        policy: Policy | None = None,
        trusted: tuple[str, ...] = (),
        misses: Limit | None = None,
        misses_per_address: Limit | None = None,
        budget: int = 10_000_000,
        family: str = "eth",
        more: list[dict[str, Any]] | None = None,
        network: dict[str, Any] | None = None,
        cache_bytes: int = 0,
        straight: bool = True,
        tracer: Tracer | None = None,
    ) -> None:
        """`more` are settings of each upstream, `network` of the network. Nothing is cached unless requested."""
        self.loop = scripted_loop()
        self.loop.node = node
        self.clock = Clock()
        self.wall = Clock(1_700_000_000.0)
        self.regions = metrics.Regions(1)
        writer = self.regions.writer(0)
        self.store = ScriptedStore()
        self.store.tokens[digest(TOKEN)] = token_grant()
        self.store.grants["example.com"] = domain_grant()
        self.meters = Meters()
        more = more or [{} for _ in range(upstreams)]
        named = tuple(
            model.UpstreamSettings(**{"name": f"up{i}", "url": f"http://up{i}:8545", **each})
            for i, each in enumerate(more)
        )
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
        self.row = self.shared_status.network(0)
        """The network's row, as the prober writes it."""
        self.rows = [self.shared_status.upstream(index) for index in range(len(named))]
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
            self.pipeline,
            RequestReader([self.network], settings.limits.body_bytes),
            self.counters,
            writer,
            self.budget,
            self.journal,
            self.sink.write,
            max_bytes=settings.limits.body_bytes,
            max_connections=settings.server.connections,
            max_in_flight=settings.limits.in_flight,
            keep_alive_seconds=settings.server.keep_alive_seconds,
            read_seconds=settings.server.read_seconds,
            now=self.clock,
            time=self.wall,
            tracer=tracer,
        )
        self.straight = StraightCalls(
            self.context, self.pipeline, self.credentials, self.limiter, self.networks.all, writer, self.sink
        )
        if straight:
            self.context.begin = self.straight.begin
        self.directory.changed = self.context.renew
        self.state = ServerState()

    def connect(self, app: Any = None, **options: Any) -> FakeTransport:
        """A caller connects; what is not under /x/ goes to `app`."""
        options = {"log_config": None, "lifespan": "off", "ws": "none", "access_log": False, **options}
        edge = CallerConnection(self.context, Config(app, **options), self.state, {}, self.loop)
        transport = FakeTransport(edge)
        edge.connection_made(transport)
        return transport

    def probe(self, head: int = 100) -> None:
        """The prober has seen this head on all upstreams: calls go straight from now on."""
        for row in self.rows:
            row.publish(State.UP, head)
        self.row.publish(head, head - 10, changed=True)

    def counted(self, spec: metrics.Spec, *labels: str) -> int:
        """What a metric stands at."""
        return self.regions.totals().get((spec.name, *labels), 0)


async def open_worker(**options: Any) -> Worker:
    """A worker that knows its store's revision."""
    worker = Worker(**options)
    await worker.directory.refresh()
    return worker


async def identify(worker: Worker, incoming: Request) -> Caller:
    """Find the caller as the pipeline does: from memory, or else from the store."""
    return worker.credentials.recall(incoming) or await worker.credentials.look_up(incoming)


async def refusal(worker: Worker, incoming: Request) -> Refusal:
    """Why a caller is refused."""
    with pytest.raises(Refusal) as caught:
        await identify(worker, incoming)
    return caught.value
