"""A play for the exchange as a whole: scripted nodes, prober and callers, and a model of what may be returned."""

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
from tollgate.gateway.messages import Trace
from tollgate.gateway.upstream.failover import MAX_ATTEMPTS
from tollgate.shm import metrics
from tollgate.shm.upstream_status import NOTHING, SILENCE_SECONDS, State

START = 1_000
SECONDS, SWEEP = 10.0, 0.2
"""For each call; time for three silent upstreams and one that answers. And how often deadlines are looked at."""
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
    """After so many seconds."""

    seconds: float


AT_ONCE, QUICK, USUAL, SILENT = Slow(0.0), Slow(0.2), Slow(0.7), "silent"
NULL, OLD = "null", "old"
"""It knows nothing; it is two blocks behind itself, as one service of several nodes is."""
FARING = [
    *[AT_ONCE] * 6,
    *[QUICK, QUICK, USUAL, USUAL, USUAL, Slow(2.5)],
    *[SILENT] * 5,
    *[DROP, DROP, Http(503), Http(429), LAGGING, PRUNED, BROKEN, QUOTA, UNSUPPORTED, REVERTED, NULL, OLD],
]
TELLING = [AT_ONCE, AT_ONCE, QUICK, QUICK, USUAL, Slow(2.5), SILENT, OLD, OLD, NULL, REVERTED, DROP]
"""What nodes do where the question is how they fare, and where it is what they show of the chain."""
TURNED_AWAY = [Http(429), QUOTA, UNSUPPORTED]
"""After these also what must not be repeated may be retried elsewhere."""


# --- The model ---------------------------------------------------------------------------------------------


class Moment(Struct, frozen=True):
    """What was known when a call was sent."""

    epoch: int
    """Another one for each block, reorganisation and transaction."""
    reorgs: int
    finalized: int


class PlayedCall(Struct):
    """A call, and what is known of it."""

    method: str
    number: int | None
    """The block that it names."""
    deadline: float
    trace: Trace
    moment: Moment
    good: set[int]
    """The upstreams that would have answered it at any moment since."""
    given: Any = None
    attempts: int = 0
    """Made when it was answered."""

    @property
    def tip(self) -> bool:
        return self.method in (NUMBER, BLOCK, BALANCE, RECEIPT) and self.number is None


class Play:
    """Nodes, a prober and callers, and what they must and must not see."""

    def __init__(self, gateway: FakeGateway, hows: list[Any], saved: float) -> None:
        self.gateway, self.loop, self.row = gateway, gateway.loop, gateway.status
        self.hows = hows
        self.heads = [START] * len(hows)
        self.quiet = self.dropped = False
        self.saved = saved
        gateway.save_hedges(saved)
        self.began = gateway.clock()
        self.serial = self.epoch = self.received = 0
        self.ancestors: list[int] = []
        self.shown = NOTHING
        """The highest block returned since the last reorganisation."""
        self.floor = NOTHING
        """The floor of the network after the last event."""
        self.sent_calls: list[tuple[str, tuple[Any, ...]]] = []
        self.played: list[PlayedCall] = []
        self.open: list[PlayedCall] = []
        """Those of them that are not answered yet."""
        self.flights: list[asyncio.Future[None]] = []
        self.sent: dict[int, list[Any]] = {}
        """How each call that must not be repeated was answered, by its number."""
        self.moments: dict[int, Moment] = {}
        """When the call was sent that an answer with this serial belongs to."""
        self.joined: list[tuple[PlayedCall, int]] = []
        for index, node in enumerate(gateway.nodes):
            self.loop.nodes[node.name] = partial(self.receive, index)
        gateway.publish_heads(*self.heads, finalized=START - FINAL)

    # --- Nodes -----------------------------------------------------------------------------------------

    def receive(self, index: int, transport: FakeTransport, body: bytes) -> bytes | None:
        call = json.loads(body)
        how = self.hows[index]
        self.received += 1
        if call["method"] == UNKNOWN:
            before = self.sent.setdefault(call["params"][0], [])
            assert all(each in TURNED_AWAY for each in before), "sent again though it may have been carried out"
            before.append(how)
        elif _asks_for_the_tip(call):
            self.check_called(index)
        if how == SILENT:
            return None
        if how == DROP:
            self.dropped = True
            self.loop.call_soon(transport.drop)
            return None
        if isinstance(how, Http):
            return http(b"", status=b"%d Status" % how.status)
        if isinstance(how, Slow) and how.seconds:
            self.loop.call_later(how.seconds, lambda: transport.deliver(self.words(index, call, how)))
            return None
        return self.words(index, call, how)

    def words(self, index: int, call: Any, how: Any) -> bytes:
        given = how if isinstance(how, Error) else self.result(index, call["method"], call["params"], how)
        if isinstance(given, Error):
            part = {"error": {"code": given.code, "message": given.message}}
        else:
            part = {"result": given}
        return http(json.dumps({"jsonrpc": "2.0", "id": call["id"], **part}).encode())

    def result(self, index: int, method: str, params: Any, how: Any) -> Any:
        if how == NULL:
            return None
        self.serial += 1
        head = self.heads[index] - (2 if how == OLD else 0)
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

    def turn(self, index: int, how: Any) -> None:
        self.hows[index % len(self.hows)] = how

    def grow(self, index: int, blocks: int) -> None:
        self.heads[index % len(self.heads)] += blocks

    def hang_up(self, index: int, _: None) -> None:
        """An upstream closes all connections, idle or not."""
        index %= len(self.hows)
        self.dropped = True
        for played in self.open:
            played.good.discard(index)
        for connection in list(self.gateway.upstreams[index].pool._all):
            connection._transport.drop()

    def refuse(self, refusing: bool, _: None) -> None:
        self.loop.refusing = refusing

    async def hush(self, quiet: bool, _: None) -> None:
        """The prober is silent, or publishes again."""
        self.quiet = quiet
        await self.advance(SILENCE_SECONDS + 0.1 if quiet else SWEEP)

    def transact(self, *_: None) -> None:
        self.row.request_probe()
        self.epoch += 1

    def probe(self, index: int, blocks: int) -> None:
        index %= len(self.heads)
        self.heads[index] += blocks
        self.find(index, State.UP)
        if self.heads[index] > self.row.head:
            self.row.publish(self.heads[index], self.heads[index] - FINAL, changed=True)
            self.epoch += 1

    def find(self, index: int, state: State) -> None:
        index %= len(self.heads)
        head = NOTHING if state is State.UNKNOWN else self.heads[index]
        self.gateway.statuses[index].publish(state, head)

    def reorganise(self, depth: int, _: None) -> None:
        ancestor = self.row.head - depth
        self.row.publish_reorg(ancestor)
        self.ancestors.append(ancestor)
        self.heads = [ancestor + 1] * len(self.heads)
        for row in self.gateway.statuses:
            row.publish(State(row.state), ancestor + 1)
        self.row.publish(ancestor + 1, min(self.row.finalized, ancestor), changed=True)
        self.epoch += 1
        self.shown = self.floor = NOTHING

    async def advance(self, seconds: float, _: None = None) -> None:
        """Let time pass, as sweeps and the prober cut it."""
        await run_pending()
        while seconds > 1e-9:
            busy = self.loop.timers or any(upstream.in_flight for upstream in self.gateway.exchange.upstreams)
            step = min(SWEEP if busy else 5.0, seconds)
            await self.tick(self.gateway.clock() + step)
            if not self.quiet:
                self.row.pulse()
            self.gateway.networks.sweep()
            await run_pending(6)
            self.check()
            seconds -= step

    async def tick(self, until: float) -> None:
        """As the loop's `later`, with fewer turns: hedges that cannot be paid for look again every moment."""
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

    def again(self, back: int, _: None) -> None:
        """Somebody repeats a call of a moment ago."""
        if len(self.sent_calls) >= back:
            self.call_one(*self.sent_calls[-back])

    def call_one(self, method: str, params: tuple[Any, ...]) -> None:
        number = next((self.row.head + each for each in params if type(each) is int), None)
        written = [hex(number) if type(each) is int and number is not None else each for each in params]
        if method == UNKNOWN:
            written = [len(self.played)]
        deadline = self.gateway.clock() + SECONDS
        moment = Moment(self.epoch, len(self.ancestors), self.row.finalized)
        played = PlayedCall(method, number, deadline, Trace(), moment, set())
        played.good = self.serving(played, self.ready())
        self.played.append(played)
        self.open.append(played)
        self.flights.append(spawn(self.get(played, PlainCall("2.0", 1, method, raw(written)))))

    async def get(self, played: PlayedCall, call: PlainCall) -> None:
        resolver = self.gateway.resolver
        key = resolver.key(call)
        given: Any = resolver.recall(key)
        if given is not None:
            played.trace.cache = "hit"
        else:
            try:
                given = await resolver.resolve(call, key, played.deadline, played.trace)
            except Refusal as refusal:
                given = refusal
        self.end(played, given)

    # --- What must hold --------------------------------------------------------------------------------

    def ready(self) -> dict[int, int]:
        """The upstreams that answer now, as everybody can know, and how far they are."""
        now, found = self.gateway.clock(), {}
        for index, how in enumerate(self.hows):
            upstream = self.gateway.upstreams[index]
            if (
                how in (AT_ONCE, QUICK, USUAL)
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

    def serving(self, played: PlayedCall, ready: dict[int, int]) -> set[int]:
        """Those of them that can answer a call."""
        floor = self.row.floor if played.tip else played.number if played.number is not None else NOTHING
        return {index for index, head in ready.items() if head >= floor}

    def check_called(self, index: int) -> None:
        """Nobody is called about the tip who is known to be behind it."""
        upstream = self.gateway.upstreams[index]
        # Who waits for a connection, or for another one after a hang-up, was chosen a while ago.
        if self.row.is_fresh and upstream.settings.connections > 2 and not self.dropped:
            assert upstream.status.head == NOTHING or upstream.status.head >= self.floor

    def end(self, played: PlayedCall, given: Any) -> None:
        """Check what a caller is sent."""
        assert played.given is None, "answered twice"
        played.given, played.attempts = given, played.trace.attempts
        played.good &= self.serving(played, self.ready())
        assert self.gateway.clock() <= played.deadline + 2 * SWEEP
        assert played.trace.attempts <= MAX_ATTEMPTS
        answer = summary(given)
        if played.good and played.method != UNKNOWN and played.trace.cache != "coalesced":
            assert isinstance(given, Reply), f"{given!r}, though {played.good} would have answered"
            assert given.error is ABSENT or answer == REVERTED, f"{answer}, though {played.good} knew better"
        if isinstance(given, Reply) and given.error is ABSENT:
            self.check_tip(played, answer)
            self.check_kept(played, answer)
        else:
            assert played.trace.cache != "hit", "an error from memory"

    def check_tip(self, played: PlayedCall, answer: Any) -> None:
        """`latest` does not go backwards."""
        if not played.tip or played.method not in (NUMBER, BLOCK) or answer is None:
            return
        number = int(answer if played.method == NUMBER else answer["number"], 16)
        if played.moment.reorgs == len(self.ancestors):
            assert number >= self.shown, f"{number} after {self.shown}"
            if number > max(self.shown, self.row.head):
                self.epoch += 1
            self.shown = max(self.shown, number)

    def check_kept(self, played: PlayedCall, answer: Any) -> None:
        """What comes from memory is no older than what it is about."""
        kept = played.trace.cache == "hit"
        assert not (kept and answer is None)
        if not isinstance(answer, dict):
            return
        serial = answer["serial"]
        if played.trace.cache == "coalesced":
            self.joined.append((played, serial))
        elif not kept:
            self.moments[serial] = played.moment
        else:
            queried_at = self.moments[serial]
            number = int(answer["blockNumber"], 16) if played.method == RECEIPT else played.number
            if number is None:
                assert played.method == CHAIN or (queried_at.epoch == self.epoch and self.row.is_fresh)
            else:
                assert number <= min([START * 2, *self.ancestors[queried_at.reorgs :]])
                assert number <= queried_at.finalized or (self.row.is_fresh and self.row.floor <= self.row.head)

    def check(self) -> None:
        """After each event."""
        for flight in self.flights:
            if flight.done():
                flight.result()
        self.flights = [flight for flight in self.flights if not flight.done()]
        now, ready = self.gateway.clock(), self.ready()
        self.floor = self.row.floor
        self.open = [played for played in self.open if played.given is None]
        for played in self.open:
            played.good &= self.serving(played, ready)
            assert now <= played.deadline + 2 * SWEEP, "no end"
        assert all(upstream.in_flight >= 0 for upstream in self.gateway.exchange.upstreams)

    def check_books(self) -> None:
        """Now and then."""
        attempts = sum(played.trace.attempts for played in self.played)
        hedges = self.gateway.exchange.hedge_budget.started
        assert hedges == self.gateway.counted(metrics.UPSTREAM_HEDGES, "eth", "mainnet")
        # Where calls are few, one in two seconds more.
        waited = (self.gateway.clock() - self.began) / 2
        assert hedges <= self.saved + (attempts - hedges) / 20 + waited + 1e-6
        assert self.received <= attempts * (2 if self.dropped else 1)

    async def close(self) -> None:
        """Let everything end, and look at what is left."""
        await self.advance(SECONDS + 2 * SWEEP)
        assert all(played.given is not None for played in self.played)
        # A hedge that was called off lies in its line until it would have been due: after the p95, at most.
        await self.advance(SECONDS * 1.2)
        assert all(played.trace.attempts == played.attempts for played in self.played), "called after its answer"
        for played, serial in self.joined:
            if played.tip:
                assert self.moments[serial].epoch == played.moment.epoch
        assert not self.gateway.resolver.flights
        assert [upstream.in_flight for upstream in self.gateway.exchange.upstreams] == [0] * len(self.hows)
        assert all(timer.cancelled() for timer in self.loop.timers)


def _asks_for_the_tip(call: Any) -> bool:
    return call["method"] in (NUMBER, RECEIPT) or "latest" in call["params"]
