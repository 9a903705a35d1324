"""A model of the exchange: scripted nodes, prober and callers, and what they may be sent."""

import asyncio
import json
from functools import partial
from typing import Any

from msgspec import Struct
from tests.gateway.callers import raw, summary
from tests.gateway.fake_gateway import FakeGateway
from tests.gateway.fake_node import BROKEN, DROP, LAGGING, PRUNED, QUOTA, REVERTED, UNSUPPORTED, Error, Http, http
from tests.gateway.fakes import FakeTransport, run_pending, spawn

from tollgate.core.shapes import ABSENT, PlainCall, Reply
from tollgate.errors import Refusal
from tollgate.gateway.call.resolver import resolve
from tollgate.gateway.messages import Route
from tollgate.gateway.upstream.failover import MAX_ATTEMPTS
from tollgate.shm import metrics
from tollgate.shm.upstream_status import NOTHING, SILENCE_SECONDS, State

START = 1_000
SECONDS, SWEEP = 10.0, 0.2
"""The deadline of a call, long enough for three silent upstreams and one that answers; the interval of sweeps."""
FINAL = 5
"""Blocks from the head to the newest final one."""
NUMBER, BLOCK, BALANCE, RECEIPT = (
    "eth_blockNumber",
    "eth_getBlockByNumber",
    "eth_getBalance",
    "eth_getTransactionReceipt",
)
CHAIN, UNKNOWN = "eth_chainId", "foo_bar"

# --- How a node answers ------------------------------------------------------------------------------------


class Slow(Struct, frozen=True):
    """Answers after a delay."""

    seconds: float


IMMEDIATE, QUICK, USUAL, SILENT = Slow(0.0), Slow(0.2), Slow(0.7), "silent"
NULL, OLD = "null", "old"
"""Answers null; answers two blocks behind its own head, as a service of several nodes does."""
BEHAVIOURS = [
    *[IMMEDIATE] * 6,
    *[QUICK, QUICK, USUAL, USUAL, USUAL, Slow(2.5)],
    *[SILENT] * 5,
    *[DROP, DROP, Http(503), Http(429), LAGGING, PRUNED, BROKEN, QUOTA, UNSUPPORTED, REVERTED, NULL, OLD],
]
CHAIN_VIEWS = [IMMEDIATE, IMMEDIATE, QUICK, QUICK, USUAL, Slow(2.5), SILENT, OLD, OLD, NULL, REVERTED, DROP]
"""Behaviours for tests of failures, and for tests of what callers see of the chain."""
REJECTIONS = [Http(429), QUOTA, UNSUPPORTED]
"""After these, calls that must not be repeated may be retried elsewhere too."""


# --- The model ---------------------------------------------------------------------------------------------


class Moment(Struct, frozen=True):
    """What was known when a call was sent."""

    epoch: int
    """Increased by each block, reorganisation and transaction."""
    reorgs: int
    finalized: int


class TrackedCall(Struct):
    """A call, and what the model knows of it."""

    method: str
    number: int | None
    """The block that it names."""
    deadline: float
    trace: Route
    moment: Moment
    good: set[int]
    """The upstreams that would have answered it at any moment since."""
    given: Any = None
    attempts: int = 0
    """Up to its answer."""

    @property
    def tip(self) -> bool:
        return self.method in (NUMBER, BLOCK, BALANCE, RECEIPT) and self.number is None


class ExchangeModel:
    """Nodes, a prober and callers, and checks of what each of them sees."""

    def __init__(self, gateway: FakeGateway, behaviours: list[Any], saved: float) -> None:
        self.gateway, self.loop, self.status = gateway, gateway.loop, gateway.status
        self.behaviours = behaviours
        self.heads = [START] * len(behaviours)
        self.silent = self.dropped = False
        self.saved = saved
        gateway.save_hedges(saved)
        self.started_at = gateway.clock()
        self.serial = self.epoch = self.received = 0
        self.ancestors: list[int] = []
        self.shown = NOTHING
        """The highest block returned since the last reorganisation."""
        self.floor = NOTHING
        """The floor of the network after the last event."""
        self.sent_calls: list[tuple[str, tuple[Any, ...]]] = []
        self.calls: list[TrackedCall] = []
        self.open: list[TrackedCall] = []
        """The calls without an answer yet."""
        self.tasks: list[asyncio.Future[None]] = []
        self.sent: dict[int, list[Any]] = {}
        """How each call that must not be repeated was answered, by its number."""
        self.moments: dict[int, Moment] = {}
        """When the call was sent that an answer with this serial belongs to."""
        self.joined: list[tuple[TrackedCall, int]] = []
        for index, node in enumerate(gateway.nodes):
            self.loop.nodes[node.name] = partial(self.receive, index)
        gateway.publish_heads(*self.heads, finalized=START - FINAL)

    # --- Nodes -----------------------------------------------------------------------------------------

    def receive(self, index: int, transport: FakeTransport, body: bytes) -> bytes | None:
        call = json.loads(body)
        behaviour = self.behaviours[index]
        self.received += 1
        if call["method"] == UNKNOWN:
            before = self.sent.setdefault(call["params"][0], [])
            assert all(each in REJECTIONS for each in before), "sent again though it may have been carried out"
            before.append(behaviour)
        elif _asks_for_the_tip(call):
            self.check_called(index)
        if behaviour == SILENT:
            return None
        if behaviour == DROP:
            self.dropped = True
            self.loop.call_soon(transport.drop)
            return None
        if isinstance(behaviour, Http):
            return http(b"", status=b"%d Status" % behaviour.status)
        if isinstance(behaviour, Slow) and behaviour.seconds:
            self.loop.call_later(behaviour.seconds, lambda: transport.deliver(self.reply(index, call, behaviour)))
            return None
        return self.reply(index, call, behaviour)

    def reply(self, index: int, call: Any, behaviour: Any) -> bytes:
        given = (
            behaviour
            if isinstance(behaviour, Error)
            else self.result(index, call["method"], call["params"], behaviour)
        )
        if isinstance(given, Error):
            part = {"error": {"code": given.code, "message": given.message}}
        else:
            part = {"result": given}
        return http(json.dumps({"jsonrpc": "2.0", "id": call["id"], **part}).encode())

    def result(self, index: int, method: str, params: Any, behaviour: Any) -> Any:
        if behaviour == NULL:
            return None
        self.serial += 1
        head = self.heads[index] - (2 if behaviour == OLD else 0)
        if method == NUMBER:
            return hex(head)
        if method == RECEIPT:
            return {"blockNumber": hex(head - 1), "serial": self.serial}
        if method == BLOCK:
            number = head if params[0] == "latest" else int(params[0], 16)
            return {"number": hex(number), "serial": self.serial} if number <= head else None
        if method == BALANCE and params[1] != "latest" and int(params[1], 16) > head:
            return LAGGING
        return {"serial": self.serial}

    # --- Events ----------------------------------------------------------------------------------------

    def set_behaviour(self, index: int, behaviour: Any) -> None:
        self.behaviours[index % len(self.behaviours)] = behaviour

    def grow(self, index: int, blocks: int) -> None:
        self.heads[index % len(self.heads)] += blocks

    def disconnect(self, index: int, _: None) -> None:
        """An upstream closes all its connections, idle or busy."""
        index %= len(self.behaviours)
        self.dropped = True
        for call in self.open:
            call.good.discard(index)
        for connection in list(self.gateway.upstreams[index].pool._all):
            assert isinstance(connection._transport, FakeTransport)
            connection._transport.drop()

    def refuse(self, refusing: bool, _: None) -> None:
        self.loop.refusing = refusing

    async def silence_prober(self, silent: bool, _: None) -> None:
        """The prober is silent, or publishes again."""
        self.silent = silent
        await self.advance(SILENCE_SECONDS + 0.1 if silent else SWEEP)

    def transact(self, *_: None) -> None:
        self.status.request_probe()
        self.epoch += 1

    def probe(self, index: int, blocks: int) -> None:
        index %= len(self.heads)
        self.heads[index] += blocks
        self.publish_state(index, State.UP)
        if self.heads[index] > self.status.head:
            self.status.publish(self.heads[index], self.heads[index] - FINAL, changed=True)
            self.epoch += 1

    def publish_state(self, index: int, state: State) -> None:
        index %= len(self.heads)
        head = NOTHING if state is State.UNKNOWN else self.heads[index]
        self.gateway.statuses[index].publish(state, head)

    def reorganise(self, depth: int, _: None) -> None:
        ancestor = self.status.head - depth
        self.status.publish_reorg(ancestor)
        self.ancestors.append(ancestor)
        self.heads = [ancestor + 1] * len(self.heads)
        for row in self.gateway.statuses:
            row.publish(State(row.state), ancestor + 1)
        self.status.publish(ancestor + 1, min(self.status.finalized, ancestor), changed=True)
        self.epoch += 1
        self.shown = self.floor = NOTHING

    async def advance(self, seconds: float, _: None = None) -> None:
        """Let time pass in steps, with a sweep and a pulse of the prober after each."""
        await run_pending()
        while seconds > 1e-9:
            in_flight = any(upstream.in_flight for upstream in self.gateway.exchange.upstreams)
            # A caller takes its answer a moment after it came: the clock must not leap in between.
            busy = self.loop.timers or in_flight or any(call.given is None for call in self.calls)
            step = min(SWEEP if busy else 5.0, seconds)
            await self.tick(self.gateway.clock() + step)
            if not self.silent:
                self.status.pulse()
            self.gateway.networks.sweep()
            await run_pending(6)
            self.check()
            seconds -= step

    async def tick(self, until: float) -> None:
        """As the loop's `advance`, with fewer turns: a hedge beyond the budget is retried very often."""
        loop, clock = self.loop, self.gateway.clock
        while due := [each for each in loop.timers if each.when() <= until and not each.cancelled()]:
            first = min(due, key=lambda each: each.when())
            loop.timers.remove(first)
            clock.now = max(clock.now, first.when())
            first._run()
            await run_pending(3)
        loop.timers = [each for each in loop.timers if not each.cancelled()]
        clock.now = until

    # --- Callers ---------------------------------------------------------------------------------------

    def call_all(self, call: tuple[str, tuple[Any, ...]], times: int) -> None:
        self.sent_calls.append(call)
        for _ in range(times):
            self.call_one(*call)

    def repeat(self, back: int, _: None) -> None:
        """A caller repeats a recent call."""
        if len(self.sent_calls) >= back:
            self.call_one(*self.sent_calls[-back])

    def call_one(self, method: str, params: tuple[Any, ...]) -> None:
        number = next((self.status.head + each for each in params if type(each) is int), None)
        written = [hex(number) if type(each) is int and number is not None else each for each in params]
        if method == UNKNOWN:
            written = [len(self.calls)]
        deadline = self.gateway.clock() + SECONDS
        moment = Moment(self.epoch, len(self.ancestors), self.status.finalized)
        call = TrackedCall(method, number, deadline, Route(), moment, set())
        call.good = self.serving(call, self.ready())
        self.calls.append(call)
        self.open.append(call)
        self.tasks.append(spawn(self.get(call, PlainCall("2.0", 1, method, raw(written)))))

    async def get(self, tracked: TrackedCall, call: PlainCall) -> None:
        resolver = self.gateway.resolver
        key = resolver.key(call)
        given: Any = resolver.recall(key)
        if given is not None:
            tracked.trace.cache = "hit"
        else:
            try:
                given = await resolve(resolver, call, key, tracked.deadline, tracked.trace)
            except Refusal as refusal:
                given = refusal
        self.end(tracked, given)

    # --- What must hold --------------------------------------------------------------------------------

    def ready(self) -> dict[int, int]:
        """The upstreams that answer now, as far as the gateway can know, and their heads."""
        now, found = self.gateway.clock(), {}
        for index, behaviour in enumerate(self.behaviours):
            upstream = self.gateway.upstreams[index]
            if (
                behaviour in (IMMEDIATE, QUICK, USUAL)
                and not self.loop.refusing
                and upstream.status.state in (State.UP, State.UNKNOWN)
                and not upstream._open_until
                and now >= upstream._cooling_until
                and not upstream.limit
                and upstream.settings.connections > 2
            ):
                head = upstream.status.head
                found[index] = self.heads[index] if head == NOTHING else min(head, self.heads[index])
        return found

    def serving(self, call: TrackedCall, ready: dict[int, int]) -> set[int]:
        """Those of them that can answer a call."""
        floor = self.status.floor if call.tip else call.number if call.number is not None else NOTHING
        return {index for index, head in ready.items() if head >= floor}

    def check_called(self, index: int) -> None:
        """No upstream that is known to be behind the tip is called about it."""
        upstream = self.gateway.upstreams[index]
        # A call that waits for a connection, or for another one after a disconnect, chose its upstream earlier.
        if self.status.is_fresh and upstream.settings.connections > 2 and not self.dropped:
            assert upstream.status.head == NOTHING or upstream.status.head >= self.floor

    def end(self, call: TrackedCall, given: Any) -> None:
        """Check what a caller is sent."""
        assert call.given is None, "answered twice"
        call.given, call.attempts = given, call.trace.attempts
        call.good &= self.serving(call, self.ready())
        assert self.gateway.clock() <= call.deadline + 2 * SWEEP
        assert call.trace.attempts <= MAX_ATTEMPTS
        answer = summary(given)
        if call.good and call.method != UNKNOWN and call.trace.cache != "coalesced":
            assert isinstance(given, Reply), f"{given!r}, though {call.good} would have answered"
            assert given.error is ABSENT or answer == REVERTED, f"{answer}, though {call.good} knew better"
        if isinstance(given, Reply) and given.error is ABSENT:
            self.check_tip(call, answer)
            self.check_kept(call, answer)
        else:
            assert call.trace.cache != "hit", "an error from memory"

    def check_tip(self, call: TrackedCall, answer: Any) -> None:
        """`latest` does not go backwards."""
        if not call.tip or call.method not in (NUMBER, BLOCK) or answer is None:
            return
        number = int(answer if call.method == NUMBER else answer["number"], 16)
        if call.moment.reorgs == len(self.ancestors):
            assert number >= self.shown, f"{number} after {self.shown}"
            if number > max(self.shown, self.status.head):
                self.epoch += 1
            self.shown = max(self.shown, number)

    def check_kept(self, call: TrackedCall, answer: Any) -> None:
        """A cached answer is no older than the state it describes."""
        kept = call.trace.cache == "hit"
        assert not (kept and answer is None)
        if not isinstance(answer, dict):
            return
        serial = answer["serial"]
        if call.trace.cache == "coalesced":
            self.joined.append((call, serial))
        elif not kept:
            self.moments[serial] = call.moment
        else:
            queried_at = self.moments[serial]
            number = int(answer["blockNumber"], 16) if call.method == RECEIPT else call.number
            if number is None:
                assert call.method == CHAIN or (queried_at.epoch == self.epoch and self.status.is_fresh)
            else:
                assert number <= min([START * 2, *self.ancestors[queried_at.reorgs :]])
                assert number <= queried_at.finalized or (
                    self.status.is_fresh and self.status.floor <= self.status.head
                )

    def check(self) -> None:
        """After each event."""
        for task in self.tasks:
            if task.done():
                task.result()
        self.tasks = [task for task in self.tasks if not task.done()]
        now, ready = self.gateway.clock(), self.ready()
        self.floor = self.status.floor
        self.open = [call for call in self.open if call.given is None]
        for call in self.open:
            call.good &= self.serving(call, ready)
            assert now <= call.deadline + 2 * SWEEP, "no end"
        assert all(upstream.in_flight >= 0 for upstream in self.gateway.exchange.upstreams)

    def check_books(self) -> None:
        """Now and then."""
        attempts = sum(call.trace.attempts for call in self.calls)
        hedges = self.gateway.exchange.hedge_budget.started
        assert hedges == self.gateway.counted(metrics.UPSTREAM_HEDGES, "eth", "mainnet")
        # Where calls are few, one in two seconds more.
        waited = (self.gateway.clock() - self.started_at) / 2
        assert hedges <= self.saved + (attempts - hedges) / 20 + waited + 1e-6
        assert self.received <= attempts * (2 if self.dropped else 1)

    async def close(self) -> None:
        """Let everything end, and check what is left."""
        await self.advance(SECONDS + 2 * SWEEP)
        assert all(call.given is not None for call in self.calls)
        # A cancelled hedge stays in its queue until it would have been due, after the p95 at most.
        await self.advance(SECONDS * 1.2)
        assert all(call.trace.attempts == call.attempts for call in self.calls), "called after its answer"
        for call, serial in self.joined:
            if call.tip:
                assert self.moments[serial].epoch == call.moment.epoch
        assert not self.gateway.resolver.flights
        assert [upstream.in_flight for upstream in self.gateway.exchange.upstreams] == [0] * len(self.behaviours)
        assert all(timer.cancelled() for timer in self.loop.timers)


def _asks_for_the_tip(call: Any) -> bool:
    return call["method"] in (NUMBER, RECEIPT) or "latest" in call["params"]
