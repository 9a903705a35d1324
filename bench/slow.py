"""What calls cost that leave the straight way: frames, files, changes of file, instructions, CPU time.

As `bench.drive`, with a loop that also runs tasks and timers, by a clock whose hands the case moves. One caller,
so that every frame belongs to its call.

`python -m bench.slow frames [CASE...]`      frames, files, changes of file of one call
`python -m bench.slow time [CASE...]`        CPU microseconds of one call, the best of several runs
`python -m bench.slow count [CASE...]`       instructions of one call, under cachegrind
`python -m bench.slow trace CASE`            every frame of one call, in order
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import itertools
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any, cast

from uvicorn.config import Config
from uvicorn.server import ServerState

from bench.drive import HEAD, PEPPER, CallerTransport
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
from tollgate.gateway.upstream.sticky import TeamSeal
from tollgate.gateway.websocket.session import SocketSession
from tollgate.gateway.websocket.subscriptions import CallerUse, SocketPipeline
from tollgate.ledger.spool import Spool
from tollgate.settings import model
from tollgate.shm import metrics
from tollgate.shm.limits import SharedMeters
from tollgate.shm.upstream_status import SharedStatus, State, StatusSlots, assign_slots

ROOT = Path(__file__).resolve().parents[1]
SOURCE = f"{os.sep}tollgate{os.sep}"
ROUNDS = 60


class Loop:
    """Runs what is due, tasks too; timers when the clock is moved."""

    def __init__(self) -> None:
        self._ready: deque[tuple[Any, tuple[Any, ...]]] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._order = itertools.count()
        self.now = 1_000.0
        self.connects = 0
        self.tasks = 0

    def time(self) -> float:
        return self.now

    def get_debug(self) -> bool:
        return False

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:
        handle = asyncio.Handle(callback, args, cast("Any", self), context)
        self._ready.append((handle, ()))
        return handle

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, cast("Any", self), context)
        heapq.heappush(self._timers, (when, next(self._order), handle))
        return handle

    def _timer_handle_cancelled(self, _handle: Any) -> None:
        pass

    def create_future(self) -> Any:
        return asyncio.Future(loop=cast("Any", self))

    def create_task(self, coroutine: Any, **_: Any) -> Any:
        self.tasks += 1
        return asyncio.Task(coroutine, loop=cast("Any", self))

    def call_exception_handler(self, context: Any) -> None:
        print(context, file=sys.stderr)

    async def create_connection(self, _make: Any, _host: Any, _port: Any, **_: Any) -> Any:
        self.connects += 1
        await asyncio.sleep(0)
        raise ConnectionRefusedError("refused")

    def run(self) -> None:
        ready = self._ready
        while ready:
            handle, _ = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def later(self, seconds: float) -> None:
        self.run()
        until = self.now + seconds
        while self._timers and self._timers[0][0] <= until:
            when, _, handle = heapq.heappop(self._timers)
            self.now = max(self.now, when)
            if not handle._cancelled:
                handle._run()
            self.run()
        self.now = until


class UpstreamTransport:
    """An upstream's end."""

    def __init__(self, name: str, connection: Any, sent: list[Any]) -> None:
        self.name, self.connection, self._sent = name, connection, sent
        self.closing = False

    def write(self, data: bytes) -> None:
        self._sent.append((self, data))

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    abort = close


def _http(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
        status,
        len(body),
        body,
    )


def _call(number: int, method: str = "eth_getBalance", params: str = "") -> bytes:
    params = params or '["0x%040x","latest"]' % (0xABC000 + number)
    return b'{"jsonrpc":"2.0","id":%d,"method":"%b","params":%b}' % (number, method.encode(), params.encode())


RESULT = b'"0x8ac7230489e80000"'
REVERTED = b'{"code":3,"message":"execution reverted","data":"0x08c379a0"}'
LOGS = '[{"fromBlock":"0x1312c00","toBlock":"0x1312c05","address":"0x%040x"}]'
SIGNED = '["0x02f8720182%04x"]'


def _answer(data: bytes) -> bytes:
    """A good node."""
    body = data.partition(b"\r\n\r\n")[2]
    found = re.findall(rb'"id":(\d+),"method":"([^"]+)"', body)
    replies = [
        b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (number, b"[]" if method == b"eth_getLogs" else RESULT)
        for number, method in found
    ]
    return _http(b"[%b]" % b",".join(replies) if body[:1] == b"[" else replies[0])


class Slow:
    """A worker, a caller and two upstreams."""

    def __init__(self, case: str, folder: Path) -> None:
        self.case = case
        self.loop = loop = Loop()
        asyncio._set_running_loop(cast("Any", loop))
        self.token = secrets.new_token().encode()
        named = tuple(
            model.UpstreamSettings(name=f"up{index}", url=f"http://127.0.0.1:{9545 + index}", priority=index)
            for index in range(2)
        )
        settings = model.Settings(
            families={"eth": {"mainnet": model.NetworkSettings(upstreams=named, cache=True)}},
            cache=model.CacheSettings(bytes=1 << 30),
        )
        writer = metrics.Regions(1).writer(0)
        budget = Budget(settings.limits.buffer_bytes)
        meters = SharedMeters(16_384, 1, folder / "limits.lock")
        directory = CallerDirectory(None, settings, writer, loop.time)  # type: ignore[arg-type]
        self.spool = Spool(
            folder, segment_bytes=1 << 30, segment_seconds=1e9, max_held_bytes=1 << 30, now=loop.time
        )
        self.shared = shared = SharedStatus(1, loop.time)
        slots = assign_slots(StatusSlots(), {"eth/mainnet": [each.name for each in named]})
        self.networks = networks = Networks(shared, 0, meters, writer, budget, loop.time, cast("Any", loop))
        networks.apply(settings, slots)
        self.resolver = networks.all["eth/mainnet"]
        self.exchange = self.resolver.exchange
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
        team = Team("team_1", "acme", requests_per_second=1_000_000)
        token = Token("tok_1", team.id, "ci", "tg_", 0.0, requests_per_second=1_000_000)
        digest = secrets.digest(self.token, PEPPER)
        self.caller = Caller(Grant(team, token), settings.limits)
        directory.tokens.put(digest, self.caller)
        credentials._remember(b"Bearer " + self.token, digest)
        limiter = Limiter(meters, credentials.address, monotonic=loop.time, time=loop.time)

        def pipeline(kind: Any) -> Any:
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

        self.pipeline, self.socket_pipeline = pipeline(Pipeline), pipeline(SocketPipeline)
        reader = RequestReader(networks.served, settings.limits.body_bytes)
        journal = Journal(
            self.spool, credentials.address, CallerLatencies(writer), time=loop.time, monotonic=loop.time
        )
        self.context = WorkerContext(
            Answering(self.pipeline, reader),
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
        calls = Calls(self.context, self.pipeline, credentials, limiter, networks.all, writer, self.spool)
        self.context.begin, self.context.admit = calls.begin, calls.admit
        self.pipeline.serve = self.socket_pipeline.serve = calls.serve
        self.context.tick()
        config = Config(cast("Any", None), log_config=None, lifespan="off", ws="none", access_log=False)
        self.edge = CallerConnection(self.context, config, ServerState(), {}, cast("Any", loop))
        self.transport = CallerTransport()
        self.edge.connection_made(cast("Any", self.transport))
        self.sent: list[tuple[UpstreamTransport, bytes]] = []
        self.number = 0
        self.answers: list[bytes] = []
        self.publish()
        self.refill()
        if case == "websocket":
            self._open_socket(reader, settings)

    def _open_socket(self, reader: RequestReader, settings: model.Settings) -> None:
        headers = {b"authorization": b"Bearer " + self.token, b"content-type": b"application/json"}
        opened = reader.open(b"POST", b"/x/eth/mainnet", headers, "127.0.0.1")
        opened.caller = self.caller
        self.session = SocketSession(
            self.context,
            self.socket_pipeline,
            opened,
            b"/x/eth/mainnet",
            None,
            max_queued=1 << 30,
            max_subscriptions=10,
            use=CallerUse(None, settings.websocket),
            caller=self.caller,
            on_notified=lambda: None,
            on_cut=lambda _: None,
        )
        self.inbox: asyncio.Queue[Any] = asyncio.Queue()

        async def send(message: dict[str, Any]) -> None:
            self.answers.append(message.get("text", "").encode() or message["bytes"])

        self.serving = self.loop.create_task(self.session.run(self.inbox.get, send))
        self.loop.run()

    def publish(self) -> None:
        """The prober has just looked."""
        self._published = self.loop.now
        self.shared.network(0).publish(20_000_000, 19_999_900, changed=True)
        for index in range(2):
            self.shared.upstream(index).publish(State.UP, 20_000_000)

    def refill(self) -> None:
        """An idle connection to each upstream, and nothing held against any."""
        for upstream in self.exchange.upstreams:
            pool = upstream.pool
            while len(pool.idle) < 2:
                connection = pool.connection()
                connection.connection_made(cast("Any", UpstreamTransport(upstream.name, connection, self.sent)))
                connection._used = True
                pool._all.add(connection)
                pool.freed(connection)
            upstream.calls = max(upstream.calls, 1_000)
            upstream._in_a_row = 0
            upstream._open_until = 0.0
            upstream._openings = 0
            upstream.in_doubt = False
            upstream._begin_window(self.loop.now)
            upstream.ewma = 0.01
            upstream._p95 = 0.02
        budget = self.exchange.hedge_budget
        budget._saved, budget._counted = 5.0, sum(each.calls for each in self.exchange.upstreams)

    # --- One call --------------------------------------------------------------------------------------

    def body(self) -> bytes:
        number, case = self.number, self.case
        if case == "logs":
            return _call(number, "eth_getLogs", LOGS % number)
        if case == "transaction":
            return _call(number, "eth_sendRawTransaction", SIGNED % (number % 65_536))
        if case == "unknown":
            return _call(number, "foo_bar")
        if case == "notification":
            return b'{"jsonrpc":"2.0","method":"eth_getBalance","params":["0x%040x","latest"]}' % number
        if case == "batch":
            calls = [_call(number * 10 + each) for each in range(9)]
            return b"[%b]" % b",".join([*calls, _call(number * 10 + 9, "eth_getLogs", LOGS % number)])
        return _call(number)

    def prepare(self) -> None:
        """What is not counted."""
        self.number += 1
        self.loop.now += 0.001
        if self.loop.now - self._published > 5:
            self.publish()
        self.refill()
        if self.case == "general":
            # As where nothing may go straight: an upstream without an idle connection is not needed for that.
            self.context.begin = lambda *_: False
            for known in self.edge.framing.heads.values():
                known.admission = None
        body = self.body()
        self.request: Any = (
            {"type": "websocket.receive", "text": body.decode()}
            if self.case == "websocket"
            else HEAD % (self.token, len(body), body)
        )

    def call(self) -> None:
        """One call, from its bytes to its answer."""
        loop, sent, case = self.loop, self.sent, self.case
        if case == "websocket":
            self.inbox.put_nowait(self.request)
        else:
            self.edge.data_received(self.request)
        loop.run()
        first = True
        late: list[tuple[UpstreamTransport, bytes]] = []
        while sent or late:
            if not sent:
                loop.later(0.03)
                if not sent:
                    for transport, data in late:
                        transport.connection.data_received(_answer(data))
                    late.clear()
                    loop.run()
                continue
            transport, data = sent.pop(0)
            if first and transport.name == "up0" and case in ("status", "dead", "hedge", "reverted"):
                first = False
                if case == "status":
                    transport.connection.data_received(_http(b"", b"503 Service Unavailable"))
                elif case == "reverted":
                    number = re.search(rb'"id":(\d+)', data)[1]  # type: ignore[index]
                    transport.connection.data_received(
                        _http(b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (number, REVERTED))
                    )
                elif case == "dead":
                    # The process is gone: all its connections are reset, and none is accepted.
                    for connection in [transport.connection, *self.exchange.upstreams[0].pool.idle]:
                        connection.connection_lost(ConnectionResetError())
                else:
                    late.append((transport, data))
            else:
                transport.connection.data_received(_answer(data))
            loop.run()

    def check(self) -> None:
        """The call was answered."""
        answers = self.answers if self.case == "websocket" else self.transport.written
        (answer,) = answers
        if self.case == "notification":
            assert answer.startswith(b"HTTP/1.1 204"), answer
        else:
            assert b'"result"' in answer or self.case == "reverted", answer
        answers.clear()

    def close(self) -> None:
        if self.case == "websocket":
            self.inbox.put_nowait({"type": "websocket.disconnect"})
            self.loop.run()
        asyncio._set_running_loop(None)
        self.spool.close()


CASES = (
    "straight",
    "general",
    "unknown",
    "notification",
    "reverted",
    "status",
    "dead",
    "hedge",
    "transaction",
    "logs",
    "websocket",
    "batch",
)


class Profile:
    """The frames of Tollgate, in order; and which of them all calls of a loop turn share."""

    def __init__(self) -> None:
        self.frames: list[tuple[str, str]] = []
        self.own: list[tuple[str, str]] = []

    def __call__(self, frame: Any, event: str, _arg: Any) -> None:
        if event == "call" and SOURCE in frame.f_code.co_filename:
            found = (frame.f_code.co_filename.rpartition(SOURCE)[2], frame.f_code.co_qualname)
            self.frames.append(found)
            if not _is_shared(frame):
                self.own.append(found)


# What happens once at the end of a loop turn, for all of its calls; but for these parts of it.
_SHARED = frozenset({"flush_later", "_flush", "_answer_all", "fill_rates"})
_OWN = frozenset({"record", "_record", "leave"})


def _is_shared(frame: Any) -> bool:
    while frame is not None:
        name = frame.f_code.co_name
        if name in _SHARED:
            return True
        if name in _OWN:
            return False
        frame = frame.f_back
    return False


def driven(case: str, warm: int, rounds: int, within: Any = None) -> Slow:
    with tempfile.TemporaryDirectory() as folder:
        slow = Slow(case, Path(folder))
        try:
            for _ in range(warm):
                slow.prepare()
                slow.call()
                slow.check()
            for _ in range(rounds):
                slow.prepare()
                if within is None:
                    slow.call()
                else:
                    within(slow.call)
                slow.check()
        finally:
            slow.close()
    return slow


def profiled(case: str) -> tuple[Profile, int]:
    profile = Profile()
    tasks = 0

    def within(call: Any) -> None:
        nonlocal tasks
        before = call.__self__.loop.tasks
        sys.setprofile(profile)
        try:
            call()
        finally:
            sys.setprofile(None)
        tasks = call.__self__.loop.tasks - before

    driven(case, 10, 1, within)
    return profile, tasks


def frames(cases: list[str]) -> None:
    print("| case | frames | files | changes of file | with the end of the loop turn | tasks |")
    print("|---|---|---|---|---|---|")
    for case in cases:
        profile, tasks = profiled(case)
        cells = []
        for found in (profile.own, profile.frames):
            files = [file for file, _ in found]
            changes = sum(one != other for one, other in itertools.pairwise(files))
            cells.append((len(files), len(set(files)), changes))
        own, every = cells
        print(f"| {case} | {own[0]} | {own[1]} | {own[2]} | {every[0]} / {every[1]} / {every[2]} | {tasks} |")


def timed(cases: list[str]) -> None:
    print("| case | CPU µs |")
    print("|---|---|")
    for case in cases:
        best = []
        for _ in range(5):
            spent: list[float] = []

            def within(call: Any, spent: list[float] = spent) -> None:
                began = time.process_time_ns()
                call()
                spent.append((time.process_time_ns() - began) / 1_000)

            gc.disable()
            driven(case, 50, 400, within)
            gc.enable()
            gc.collect()
            spent.sort()
            best.append(spent[len(spent) // 4])
        print(f"| {case} | {min(best):.0f} |", flush=True)


def count(cases: list[str]) -> None:
    """Instructions by cachegrind: of N and of 2 N rounds; what prepares a round is taken off.

    One process, which forks each run: to start Python under a tool that counts takes much longer.
    """
    with tempfile.TemporaryDirectory() as folder:
        ran = subprocess.run(
            ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null",
             f"--log-file={folder}/%p", sys.executable, "-m", "bench.slow", "fork", *cases],
            cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": "0"}, check=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        totals = [_total(Path(folder, line.split()[1])) for line in ran.stdout.splitlines()]
    print("| case | instructions |")
    print("|---|---|")
    for place, case in enumerate(cases):
        few, many, prepared, more = totals[4 * place : 4 * place + 4]
        print(f"| {case} | {(many - few - more + prepared) // ROUNDS:,} |", flush=True)


def _total(log: Path) -> int:
    return int(re.search(r"I\s+refs:\s+([0-9,]+)", log.read_text())[1].replace(",", ""))  # type: ignore[index]


def fork(cases: list[str]) -> None:
    for case in cases:
        for mode in ("call", "prepare"):
            for rounds in (ROUNDS, 2 * ROUNDS):
                pid = os.fork()
                if not pid:
                    run(case, rounds, mode)
                    os._exit(0)
                if os.waitpid(pid, 0)[1]:
                    raise SystemExit(f"driving {case} failed")
                print(case, pid, flush=True)


def run(case: str, rounds: int, mode: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        slow = Slow(case, Path(folder))
        for _ in range(12):
            slow.prepare()
            slow.call()
            slow.check()
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 50)
        for _ in range(rounds):
            slow.prepare()
            if mode == "call":
                slow.call()
                slow.check()
        slow.close()


def trace(case: str) -> None:
    last = ""
    for file, name in profiled(case)[0].frames:
        print(f"{file if file != last else '':45} {name}")
        last = file


if __name__ == "__main__":
    what, *given = sys.argv[1:]
    if what == "fork":
        fork(given)
    elif what == "trace":
        trace(given[0])
    else:
        {"frames": frames, "time": timed, "count": count}[what](given or list(CASES))
