"""A worker whose upstreams are scripted one by one, with hands on its clock."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from msgspec import Raw, Struct
from tests.gateway.fakes import FakeTransport, fly, turns
from tests.gateway.worker import Worker, http

from tollgate.core.shapes import ABSENT, PlainCall, Reply, WrittenCall
from tollgate.gateway.call.batch import BatchItem, resolve_many
from tollgate.gateway.messages import Trace
from tollgate.shm import metrics
from tollgate.shm.upstream_status import NOTHING, State

SECONDS = 30.0


class Error(Struct, frozen=True):
    """A node's error."""

    code: int
    message: str = ""


class Http(Struct, frozen=True):
    """An HTTP status instead of an answer."""

    status: int


DROP = "drop"
"""Hang up instead of an answer."""
QUOTA = Error(-32005, "daily request count exceeded, request rate limited")
LAGGING = Error(-32000, "header not found")
PRUNED = Error(-32000, "missing trie node 0d3a (path ) state 0x0d3a is not available")
BROKEN = Error(-32603, "Internal error")
TOO_WIDE = Error(-32602, "query exceeds max block range 1000")
REVERTED = Error(3, "execution reverted")
KNOWN = Error(-32000, "already known")
NONCE = Error(-32000, "nonce too low: next nonce 5, tx nonce 4")
UNSUPPORTED = Error(-32601, "the method eth_x does not exist/is not available")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object, each of whose members is there once: nodes differ in which of two they take."""
    assert len(dict(pairs)) == len(pairs), pairs
    return dict(pairs)


class Node:
    """One upstream. It answers what `respond` returns for a method and its params, at once or when it is let."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.respond: Callable[[str, Any], Any] = lambda method, params: name
        self.calls: list[tuple[str, Any]] = []
        """Each call that it got, those of batches one by one."""
        self.requests: list[Any] = []
        """Each body that it was sent."""
        self.transform: Callable[[bytes], bytes] = lambda data: data
        """What becomes of an answer on its way."""
        self.holds = False
        self.held: list[tuple[FakeTransport, Any]] = []

    def receive(self, transport: FakeTransport, body: bytes) -> bytes | None:
        parsed = json.loads(body, object_pairs_hook=_once)
        self.requests.append(parsed)
        self.calls += [
            (each["method"], each["params"]) for each in (parsed if isinstance(parsed, list) else [parsed])
        ]
        if self.holds:
            self.held.append((transport, parsed))
            return None
        return self._answer(transport, parsed)

    def let(self, index: int = 0) -> None:
        """Answer one of those that wait."""
        transport, parsed = self.held.pop(index)
        answer = self._answer(transport, parsed)
        if answer is not None:
            transport.deliver(answer)

    def drop(self, index: int = 0) -> None:
        """Hang up on one of those that wait."""
        self.held.pop(index)[0].drop()

    def _answer(self, transport: FakeTransport, parsed: Any) -> bytes | None:
        many = isinstance(parsed, list)
        replies = []
        for each in parsed if many else [parsed]:
            given = self.respond(each["method"], each["params"])
            if given is DROP:
                asyncio.get_running_loop().call_soon(transport.drop)
                return None
            if isinstance(given, Http):
                return self.transform(http(b"", status=b"%d Status" % given.status))
            words = {"error": {"code": given.code, "message": given.message}} if isinstance(given, Error) else None
            replies.append({"jsonrpc": "2.0", "id": each["id"], **(words or {"result": given})})
        return self.transform(http(json.dumps(replies if many else replies[0]).encode()))

    def plays(self, part: Callable[..., Any], *first: Any) -> None:
        """Answer what a function returns, given these arguments before the method and its params."""
        self.respond = partial(part, *first)

    def always(self, given: Any) -> None:
        """Answer everything alike."""
        self.respond = lambda method, params: given

    def in_turn(self, *given: Any) -> None:
        """Give one answer after the other; the last one for good."""
        left = list(given)
        self.respond = lambda method, params: left.pop(0) if len(left) > 1 else left[0]


class Scene:
    """A worker and its upstreams, in the order of their priority unless that is set otherwise."""

    def __init__(self, *more: dict[str, Any], **options: Any) -> None:
        settings = [{"priority": index, **each} for index, each in enumerate(more)]
        self.worker = Worker(more=settings, **options)
        self.clock, self.loop, self.row = self.worker.clock, self.worker.loop, self.worker.row
        self.loop.clock = self.clock
        self.resolver, self.exchange = self.worker.resolver, self.worker.exchange
        self.nodes = [Node(f"up{index}") for index in range(len(more))]
        for node in self.nodes:
            self.loop.nodes[node.name] = node.receive
        self.traces: list[Trace] = []

    def save_hedges(self, saved: float) -> None:
        """Let the budget have saved so many hedges."""
        budget = self.exchange.hedge_budget
        budget._counted = sum(upstream.calls for upstream in self.exchange.upstreams)
        budget._saved, budget._looked_at = saved, self.clock()

    def upstream(self, index: int) -> Any:
        """What the worker knows of an upstream."""
        return next(upstream for upstream in self.exchange.upstreams if upstream.name == f"up{index}")

    def up(self, *heads: int, finalized: int = NOTHING, state: State = State.UP, changed: bool = True) -> None:
        """The prober has seen these heads."""
        for row, head in zip(self.worker.rows, heads, strict=True):
            row.publish(state, head)
        self.row.publish(max(heads), finalized, changed=changed)

    def state(self, index: int, state: State, head: int = NOTHING) -> None:
        """The prober has found an upstream in a state."""
        self.worker.rows[index].publish(state, head)

    async def later(self, seconds: float) -> None:
        """Let time pass for timers and for connections."""
        left = seconds
        while left > 0:
            await self.loop.later(min(0.1, left))
            self.worker.networks.sweep()
            await turns()
            left -= 0.1

    # --- Calling ---------------------------------------------------------------------------------------

    def send(self, method: str, *params: Any, seconds: float = SECONDS) -> asyncio.Future[Reply]:
        """Send one call; its trace is the last of `traces`."""
        self.traces.append(Trace())
        call = PlainCall("2.0", 1, method, raw(params))
        key = self.resolver.key(call)
        kept = self.resolver.recall(key)
        if kept is not None:
            self.traces[-1].cache = "hit"
            future: asyncio.Future[Reply] = self.loop.create_future()
            future.set_result(kept)
            return future
        return fly(self.resolver.resolve(call, key, self.clock() + seconds, self.traces[-1]))

    async def call(self, method: str, *params: Any, seconds: float = SECONDS) -> Any:
        """Send one call; what is answered at once."""
        pending = self.send(method, *params, seconds=seconds)
        await turns()
        return summary(await pending)

    def resolve_many(self, *calls: tuple[str, Any], seconds: float = SECONDS) -> asyncio.Future[list[BatchItem]]:
        """Send a batch."""
        batch = [PlainCall("2.0", 1, method, raw(params)) for method, params in calls]
        return fly(resolve_many(self.resolver, batch, self.clock() + seconds))

    def counts(self) -> list[int]:
        """How many calls each upstream got."""
        return [len(node.calls) for node in self.nodes]

    @property
    def trace(self) -> Trace:
        """The way of the last call."""
        return self.traces[-1]

    def attempts(self, index: int, outcome: str) -> int:
        """How many attempts at an upstream ended so."""
        family = self.worker.network.family
        return self.worker.counted(metrics.UPSTREAM_ATTEMPTS, family, "mainnet", f"up{index}", outcome)


def raw(params: Any) -> Any:
    """Params as they are read."""
    if isinstance(params, dict):
        return {name: Raw(json.dumps(each).encode()) for name, each in params.items()}
    return [Raw(json.dumps(each).encode()) for each in params]


def summary(reply: Any) -> Any:
    """An answer in short: its result, the code of its error, or the reason of a refusal."""
    if not isinstance(reply, Reply):
        return reply.reason
    if reply.error is not ABSENT:
        return Error(**{name: json.loads(bytes(reply.error))[name] for name in ("code", "message")})
    return json.loads(bytes(reply.result))


def written(method: str, *params: Any) -> WrittenCall:
    """A call with an id that is no integer."""
    return WrittenCall(method, raw(params), Raw(b'"a"'))


@asynccontextmanager
async def open_scene(*more: dict[str, Any], **options: Any) -> AsyncIterator[Scene]:
    """A worker with upstreams of these settings; two equal ones unless others are given."""
    scene = Scene(*(more or ({}, {})), **options)
    yield scene
    await turns()
    assert all(upstream.in_flight >= 0 for upstream in scene.exchange.upstreams)
