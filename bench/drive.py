"""A worker's parts in one process, on transports that only keep what is written: what a call costs by itself.

`python -m bench.drive ROUNDS CASE...` drives each case of `cases.py` for ROUNDS and for 2 ROUNDS rounds, each time
in a process of its own; `bench.instructions` counts what they take. Everything but the loop, its clock and the
transports is real: connections, limits, cache, pools, journal, spool.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import heapq
import itertools
import math
import os
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, cast

from uvicorn.config import Config
from uvicorn.server import ServerState

from bench.cases import CASES, LATE, LOST, Case
from tollgate.core import secrets
from tollgate.core.limits import Limit
from tollgate.core.models import Grant, Team, Token
from tollgate.gateway.access.caller import Caller
from tollgate.gateway.access.credentials import Credentials
from tollgate.gateway.access.directory import CallerDirectory
from tollgate.gateway.access.limits import Limiter
from tollgate.gateway.call.call import Calls
from tollgate.gateway.call.networks import Networks
from tollgate.gateway.call.pipeline import Pipeline
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
from tollgate.gateway.recording.counters import Counters
from tollgate.gateway.recording.journal import Journal
from tollgate.gateway.recording.latencies import CallerLatencies
from tollgate.gateway.upstream.connection import Connection
from tollgate.gateway.upstream.health import Upstream
from tollgate.gateway.upstream.sticky import TeamSeal
from tollgate.gateway.websocket.session import SocketSession
from tollgate.gateway.websocket.subscriptions import CallerUse, SocketPipeline
from tollgate.ledger.spool import Spool
from tollgate.settings import model
from tollgate.shm import metrics
from tollgate.shm.leases import LeasedMeters
from tollgate.shm.limits import SharedMeters
from tollgate.shm.upstream_status import SharedStatus, State, StatusSlots, assign_slots

PEPPER = b"p" * 32
HEAD = (
    b"POST /x/eth/mainnet HTTP/1.1\r\nHost: 127.0.0.1:28402\r\nAuthorization: Bearer %b\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
)
SHARED = "-shared"
"""Behind a case: with limits that nodes share. Answers are shared in the background, by no call."""
WARM = 12
"""Rounds before those that are counted: of callers that have called before."""
FIRST = 1_000
"""The number of the first call: all numbers have as many digits, so that all requests are of one length."""
HEDGED_SECONDS = 0.03
PUBLISH_SECONDS = 5.0


class DrivenLoop:
    """Runs what is due, tasks too, by a clock that the driver moves."""

    def __init__(self) -> None:
        self._ready: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._order = itertools.count()
        self._clock = [1_000_000.0]
        # Not a Python function: the real clock is none either.
        self.time: Callable[[], float] = functools.partial(self._clock.__getitem__, 0)
        self.tasks = 0

    def get_debug(self) -> bool:
        return False

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Any = None) -> None:  # noqa: ARG002
        self._ready.append((callback, args))

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, cast("Any", self), context)
        heapq.heappush(self._timers, (when, next(self._order), handle))
        return handle

    def _timer_handle_cancelled(self, _handle: asyncio.TimerHandle) -> None:
        """It is dropped when it is due."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=cast("Any", self))

    def create_task(self, coroutine: Any, **_: Any) -> asyncio.Task[Any]:
        self.tasks += 1
        return asyncio.Task(coroutine, loop=cast("Any", self))

    def call_exception_handler(self, context: dict[str, Any]) -> NoReturn:
        raise AssertionError(context)

    async def create_connection(self, *_: Any, **__: Any) -> NoReturn:
        await asyncio.sleep(0)
        raise ConnectionRefusedError("refused")

    def run(self) -> None:
        while self._ready:
            callback, args = self._ready.popleft()
            callback(*args)

    def advance(self, seconds: float) -> None:
        """Move the clock, and run the timers that are due."""
        until = self.time() + seconds
        while self._timers and self._timers[0][0] <= until:
            when, _, handle = heapq.heappop(self._timers)
            self._clock[0] = max(self._clock[0], when)
            if not handle.cancelled():
                handle._run()
            self.run()
        self._clock[0] = until


class CallerTransport:
    """A caller's end."""

    def __init__(self, written: list[bytes]) -> None:
        self._written = written

    def write(self, data: bytes) -> None:
        self._written.append(data)

    def get_extra_info(self, name: str, default: object = None) -> object:
        return {"peername": ("127.0.0.1", 40_000), "sockname": ("127.0.0.1", 28_402)}.get(name, default)

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        raise AssertionError("the connection of a caller was closed")


class UpstreamTransport:
    """An upstream's end."""

    def __init__(self, connection: Connection, sent: list[Connection]) -> None:
        self._connection = connection
        self._sent = sent
        self._closing = False

    def write(self, _data: bytes) -> None:
        self._sent.append(self._connection)

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self._closing = True

    abort = close


class Drive:
    """A worker, its callers and its upstreams."""

    def __init__(self, name: str, folder: Path, rounds: int) -> None:
        name, _, limits = name.partition("-")
        assert f"-{limits}" in ("-", SHARED), limits
        self.case: Case = CASES[name]
        self.loop = loop = DrivenLoop()
        asyncio._set_running_loop(cast("Any", loop))
        self.token = secrets.new_token().encode()
        self.settings = settings = _settings(self.case)
        writer = metrics.Regions(1).writer(0)
        budget = Budget(settings.limits.buffer_bytes)
        lock = folder / "limits.lock"
        meters = LeasedMeters(16_384, 1, lock, PEPPER) if limits else SharedMeters(16_384, 1, lock)
        if isinstance(meters, LeasedMeters):
            # A hundred times a second would be at every call of a process that is counted.
            meters._settle_at = math.inf
        directory = CallerDirectory(None, settings, writer, loop.time)  # type: ignore[arg-type]
        self.spool = Spool(
            folder, segment_bytes=1 << 30, segment_seconds=1e9, max_held_bytes=1 << 30, now=loop.time
        )
        self._status = SharedStatus(1, loop.time)
        networks = Networks(self._status, 0, meters, writer, budget, loop.time, cast("Any", loop))
        names = [each.name for each in settings.families["eth"]["mainnet"].upstreams]
        networks.apply(settings, assign_slots(StatusSlots(), {"eth/mainnet": names}))
        self.exchange = networks.all["eth/mainnet"].exchange
        credentials = Credentials(
            directory,
            meters,
            PEPPER,
            trusted=(),
            allow_localhost=False,
            misses=Limit(500, 1.0),
            misses_per_address=Limit(10, 1.0),
            monotonic=loop.time,
            time=loop.time,
        )
        self.caller = self._let_in(directory, credentials)
        limiter = Limiter(meters, credentials.address, monotonic=loop.time, time=loop.time)

        def pipeline(kind: type[Pipeline]) -> Pipeline:
            return kind(
                credentials,
                limiter,
                networks.all,
                Counters(writer),
                max_calls=settings.limits.batch_calls,
                request_seconds=settings.limits.request_seconds,
                now=loop.time,
                sink=self.spool,
                seal=TeamSeal(PEPPER),
            )

        over_http, over_socket = pipeline(Pipeline), cast("SocketPipeline", pipeline(SocketPipeline))
        journal = Journal(
            self.spool, credentials.address, CallerLatencies(writer), time=loop.time, monotonic=loop.time
        )
        self.context = WorkerContext(
            Answering(over_http, RequestReader(networks.served, settings.limits.body_bytes)),
            Recording(Counters(writer), writer, journal, self.spool.write),
            Bounds(
                budget,
                max_bytes=settings.limits.body_bytes,
                max_in_flight=settings.limits.in_flight,
                max_connections=10_000,
                keep_alive_seconds=60.0,
                read_seconds=30.0,
            ),
            Clocks(loop.time, loop.time),
            ResponseHeads(),
        )
        calls = Calls(self.context, over_http, credentials, limiter, networks.all, writer, self.spool)
        self.context.begin, self.context.admit = calls.begin, calls.admit
        over_http.serve = over_socket.serve = calls.serve
        if self.case.fast:
            setattr(over_http, "answer", _left_fast_path)  # noqa: B010 - a method is not to be assigned to
        self.context.tick()
        self._sessions: list[asyncio.Task[None]] = []
        self.written: list[list[bytes]] = [[] for _ in range(self.case.width)]
        self.callers = [
            self._open_socket(over_socket, each) if self.case.socket else self._open_connection(each)
            for each in self.written
        ]
        self._opening_tasks = loop.tasks
        self.sent: list[Connection] = []
        self._published = -math.inf
        self._idle = max(2, self.case.width)
        """Connections to each upstream when a round starts."""
        # Made ahead: a round that loses connections is not charged for new ones.
        self._spare = [
            [self._new_connection(upstream) for _ in range(self._idle * (1 if self.case.fast else rounds))]
            for upstream in self.exchange.upstreams
        ]

    def _let_in(self, directory: CallerDirectory, credentials: Credentials) -> Caller:
        team = Team("team_1", "acme", requests_per_second=1_000_000)
        token = Token("tok_1", team.id, "ci", "tg_", 0.0, requests_per_second=1_000_000)
        digest = secrets.digest(self.token, PEPPER)
        caller = Caller(Grant(team, token), self.settings.limits)
        directory.tokens.put(digest, caller)
        credentials._remember(b"Bearer " + self.token, digest)
        return caller

    def _open_connection(self, written: list[bytes]) -> Callable[[Any], object]:
        """Connect a caller over HTTP; return where its bytes go."""
        config = Config(cast("Any", None), log_config=None, lifespan="off", ws="none", access_log=False)
        connection = CallerConnection(self.context, config, ServerState(), {}, cast("Any", self.loop))
        connection.connection_made(cast("Any", CallerTransport(written)))
        return connection.data_received

    def _open_socket(self, pipeline: SocketPipeline, written: list[bytes]) -> Callable[[Any], object]:
        """Connect a caller over WebSocket; return where its messages go."""
        headers = {b"authorization": b"Bearer " + self.token, b"content-type": b"application/json"}
        opened = self.context.reader.open(b"POST", b"/x/eth/mainnet", headers, "127.0.0.1")
        opened.caller = self.caller
        session = SocketSession(
            self.context,
            pipeline,
            opened,
            b"/x/eth/mainnet",
            None,
            max_queued=1 << 30,
            max_subscriptions=10,
            use=CallerUse(None, self.settings.websocket, 1),
            caller=self.caller,
            on_notified=lambda: None,
            on_cut=lambda _: None,
        )
        inbox: asyncio.Queue[Any] = asyncio.Queue()

        async def send(message: dict[str, Any]) -> None:
            written.append(message.get("text", "").encode() or message["bytes"])

        self._sessions.append(self.loop.create_task(session.run(inbox.get, send)))
        self.loop.run()
        return inbox.put_nowait

    def _new_connection(self, upstream: Upstream) -> Connection:
        connection = upstream.pool.connection()
        connection.connection_made(cast("Any", UpstreamTransport(connection, self.sent)))
        connection._used = True
        return connection

    # --- Rounds ----------------------------------------------------------------------------------------

    def request(self, number: int) -> Any:
        """What a caller sends: bytes, or a message of its WebSocket."""
        body = self.case.body(number)
        if self.case.socket:
            return {"type": "websocket.receive", "text": body.decode()}
        return HEAD % (self.token, len(body), body)

    def prepare(self) -> None:
        """Let time pass until the next round: the prober publishes, upstreams recover and are connected."""
        self.loop.advance(0.001)
        now = self.loop.time()
        upstreams = self.exchange.upstreams
        if now - self._published > PUBLISH_SECONDS:
            self._published = now
            self._status.network(0).publish(20_000_000, 19_999_900, changed=True)
            for index in range(len(upstreams)):
                self._status.upstream(index).publish(State.UP, 20_000_000)
        for upstream, spare in zip(upstreams, self._spare, strict=True):
            pool = upstream.pool
            while len(pool.idle) < self._idle:
                connection = spare.pop()
                pool._all.add(connection)
                pool.freed(connection)
            if not self.case.fast:
                _recover(upstream, now)
        budget = self.exchange.hedge_budget
        budget._saved, budget._counted = 5.0, sum(each.calls for each in upstreams)

    def play(self, requests: Sequence[Any], replies: Sequence[bytes]) -> None:
        """Let each caller send a request, and the upstreams reply until all are answered."""
        loop, sent = self.loop, self.sent
        for caller, request in zip(self.callers, requests, strict=True):
            caller(request)
        loop.run()
        following = iter(replies)
        late: list[Connection] = []
        while sent:
            called = sent.copy()
            sent.clear()
            for connection in called:
                reply = next(following)
                if reply is LOST:
                    for each in [connection, *self.exchange.upstreams[0].pool.idle]:
                        each.connection_lost(ConnectionResetError())
                elif reply is LATE:
                    late.append(connection)
                else:
                    connection.data_received(reply)
            loop.run()
            if late and not sent:
                loop.advance(HEDGED_SECONDS)
        for connection in late:
            connection.data_received(next(following))
            loop.run()

    def check(self, rounds: int) -> None:
        """All calls were answered, as the case expects."""
        for written in self.written:
            assert len(written) == rounds, "a call was not answered"
            # The same number of answers in every run, because this is counted too.
            wrong = [data for data in (*written[:WARM], written[-1]) if self.case.answer not in data]
            assert not wrong, wrong[0]
        assert not self.case.fast or self.loop.tasks == self._opening_tasks, "a call left the fast path"

    def close(self) -> None:
        for session in self._sessions:
            session.cancel()
        self.loop.run()
        asyncio._set_running_loop(None)
        self.spool.close()


def _settings(case: Case) -> model.Settings:
    named = tuple(
        model.UpstreamSettings(
            name=f"up{index}", url=f"http://127.0.0.1:{9545 + index}", priority=0 if case.fast else index
        )
        for index in range(2 if case.cached else 1)
    )
    return model.Settings(families={"eth": {"mainnet": model.NetworkSettings(upstreams=named, cache=case.cached)}})


def _left_fast_path(_request: object) -> NoReturn:
    raise AssertionError("a call left the fast path")


def _recover(upstream: Upstream, now: float) -> None:
    """Hold nothing against an upstream, and let it be a quick one."""
    upstream.calls = max(upstream.calls, 1_000)
    upstream._in_a_row = 0
    upstream._open_until = 0.0
    upstream._openings = 0
    upstream.in_doubt = False
    upstream._begin_window(now)
    upstream.ewma = 0.01
    upstream._p95 = 0.02


def drive(name: str, rounds: int, played: int, follow: Callable[[Drive, Callable[[], None]], None]) -> None:
    """Prepare as many rounds and play some, so that two runs differ only in how many they play.

    Rounds to warm up come before; `follow` calls what plays one round.
    """
    with tempfile.TemporaryDirectory() as folder:
        driven = Drive(name, Path(folder), WARM + rounds)
        width, replies = driven.case.width, driven.case.replies
        try:
            scripts = []
            for first in range(0, (WARM + rounds) * width, width):
                numbers = range(FIRST + first, FIRST + first + width)
                requests = [driven.request(number) for number in numbers]
                scripts.append((requests, [reply for number in numbers for reply in replies(number)]))
            for script in scripts[:WARM]:
                driven.prepare()
                driven.play(*script)
            # So that none is due in one of two runs only.
            gc.collect()
            for number, script in enumerate(scripts[WARM:]):
                driven.prepare()
                if number < played:
                    follow(driven, functools.partial(driven.play, *script))
            driven.check(WARM + played)
        finally:
            driven.close()


def main(rounds: int, names: list[str]) -> None:
    """Drive each case twice; print the id of each process.

    They are forked, because a tool that counts takes much longer to start Python than to follow the calls; what it
    counted until the fork is the same for both.
    """
    for name in names:
        for played in (rounds, 2 * rounds):
            pid = os.fork()
            if not pid:
                # As in a worker.
                gc.freeze()
                gc.set_threshold(20_000, 20, 50)
                drive(name, 2 * rounds, played, lambda _, play: play())
                os._exit(0)
            if os.waitpid(pid, 0)[1]:
                raise SystemExit(f"driving {name} failed")
            print(pid, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
