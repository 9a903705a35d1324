"""A worker's parts in one process, on transports that only keep what is written: what a call costs by itself.

`python -m bench.drive ROUNDS CASE...` drives each case for ROUNDS and for 2 ROUNDS rounds of eight calls, each
time in a process of its own; `bench.instructions` counts what they take. Everything but the loop and the
transports is real: connections, limits, cache, pools, journal, spool. A call that leaves the straight way is an
error.
"""

from __future__ import annotations

import asyncio
import gc
import gzip
import math
import os
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NoReturn

from uvicorn.config import Config
from uvicorn.server import ServerState

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
from tollgate.gateway.upstream.sticky import TeamSeal
from tollgate.ledger.spool import Spool
from tollgate.settings import model
from tollgate.shm import metrics
from tollgate.shm.leases import LeasedMeters
from tollgate.shm.limits import SharedMeters
from tollgate.shm.upstream_status import SharedStatus, State, StatusSlots, assign_slots

WIDTH = 8
"""Callers, and connections to each upstream."""
PEPPER = b"p" * 32
RESULT = b'"0x8ac7230489e80000"'
HEAD = (
    b"POST /x/eth/mainnet HTTP/1.1\r\nHost: 127.0.0.1:28402\r\nAuthorization: Bearer %b\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
)
CASES = ("call", "miss", "hit", "batch", "gzip", "unique")
SHARED = "-shared"
"""Behind a case: with limits that nodes share. Answers are shared in the background, by no call."""


class DrivenLoop:
    """Calls what is due soon, when it is run; nothing is ever due later."""

    def __init__(self) -> None:
        self._ready: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Any = None) -> None:  # noqa: ARG002
        self._ready.append((callback, args))

    def call_later(self, _delay: float, _callback: Callable[..., object], *_args: Any) -> None:
        """Nothing is late here."""

    def create_task(self, answering: Coroutine[Any, Any, Any]) -> NoReturn:
        answering.close()
        raise AssertionError("a call left the straight way")

    def run(self) -> None:
        while self._ready:
            callback, args = self._ready.popleft()
            callback(*args)


class CallerTransport:
    """A caller's end."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def get_extra_info(self, name: str, default: object = None) -> object:
        return {"peername": ("127.0.0.1", 40_000), "sockname": ("127.0.0.1", 28_402)}.get(name, default)

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        raise AssertionError("a caller was hung up on")


class UpstreamTransport:
    """An upstream's end."""

    def __init__(self, connection: Connection, sent: list[tuple[Connection, bytes]]) -> None:
        self._connection = connection
        self._sent = sent

    def write(self, data: bytes) -> None:
        self._sent.append((self._connection, data))

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        raise AssertionError("an upstream was hung up on")


class Drive:
    """A worker, its callers and its upstreams."""

    def __init__(self, case: str, folder: Path) -> None:
        case, _, limits = case.partition("-")
        assert case in CASES, case
        assert f"-{limits}" in ("-", SHARED), limits
        self.case = case
        self.loop = DrivenLoop()
        asyncio._set_running_loop(self.loop)  # type: ignore[arg-type]
        cached = case in ("miss", "hit")
        self.token = secrets.new_token().encode()
        named = tuple(
            model.UpstreamSettings(name=f"up{index}", url=f"http://127.0.0.1:{9545 + index}")
            for index in range(2 if cached else 1)
        )
        served = model.NetworkSettings(upstreams=named, cache=cached)
        settings = model.Settings(families={"eth": {"mainnet": served}})
        writer = metrics.Regions(1).writer(0)
        budget = Budget(settings.limits.buffer_bytes)
        lock = folder / "limits.lock"
        meters = LeasedMeters(16_384, 1, lock, PEPPER) if limits else SharedMeters(16_384, 1, lock)
        if isinstance(meters, LeasedMeters):
            # A hundred times a second would be at every call of a process that is counted.
            meters._settle_at = math.inf
        directory = CallerDirectory(None, settings, writer, time.monotonic)  # type: ignore[arg-type]
        self.spool = Spool(
            folder, segment_bytes=1 << 30, segment_seconds=1e9, max_held_bytes=1 << 30, now=time.time
        )
        # Published ahead of time: nobody probes, and what is counted takes longer than such news holds.
        shared = SharedStatus(1, lambda: time.monotonic() + 3_600)
        slots = assign_slots(StatusSlots(), {"eth/mainnet": [each.name for each in named]})
        networks = Networks(shared, 0, meters, writer, budget, time.monotonic, self.loop)  # type: ignore[arg-type]
        networks.apply(settings, slots)
        shared.network(0).publish(20_000_000, 19_999_900, changed=True)
        for index in range(len(named)):
            shared.upstream(index).publish(State.UP, 20_000_000)
        credentials = Credentials(
            directory,
            meters,
            PEPPER,
            trusted=(),
            allow_localhost=False,
            misses=Limit(500, 1.0),
            misses_per_address=Limit(10, 1.0),
            monotonic=time.monotonic,
            time=time.time,
        )
        self._let_in(directory, credentials, settings)
        limiter = Limiter(meters, credentials.address, monotonic=time.monotonic, time=time.time)
        pipeline = Pipeline(
            credentials,
            limiter,
            networks.all,
            Counters(writer),
            max_calls=settings.limits.batch_calls,
            request_seconds=settings.limits.request_seconds,
            now=time.monotonic,
            sink=self.spool,
            seal=TeamSeal(PEPPER),
        )
        journal = Journal(
            self.spool, credentials.address, CallerLatencies(writer), time=time.time, monotonic=time.monotonic
        )
        self.context = WorkerContext(
            Answering(pipeline, RequestReader(networks.served, settings.limits.body_bytes)),
            Recording(Counters(writer), writer, journal, self.spool.write),
            Bounds(
                budget,
                max_bytes=settings.limits.body_bytes,
                max_in_flight=settings.limits.in_flight,
                max_connections=10_000,
                keep_alive_seconds=60.0,
                read_seconds=30.0,
            ),
            Clocks(time.monotonic, time.time),
            ResponseHeads(),
        )
        calls = Calls(self.context, pipeline, credentials, limiter, networks.all, writer, self.spool)
        self.context.begin = calls.begin
        setattr(pipeline, "answer", _not_straight)  # noqa: B010 - a method is not to be assigned to
        self.context.tick()
        self.sent: list[tuple[Connection, bytes]] = []
        self._connect(networks)

    def _let_in(self, directory: CallerDirectory, credentials: Credentials, settings: model.Settings) -> None:
        team = Team("team_1", "acme", requests_per_second=1_000_000)
        token = Token("tok_1", team.id, "ci", "tg_", 0.0, requests_per_second=1_000_000)
        digest = secrets.digest(self.token, PEPPER)
        directory.tokens.put(digest, Caller(Grant(team, token), settings.limits))
        credentials._remember(b"Bearer " + self.token, digest)

    def _connect(self, networks: Networks) -> None:
        config = Config(None, log_config=None, lifespan="off", ws="none", access_log=False)  # type: ignore[arg-type]
        self.callers: list[tuple[CallerConnection, CallerTransport]] = []
        for _ in range(WIDTH):
            caller = CallerConnection(self.context, config, ServerState(), {}, self.loop)  # type: ignore[arg-type]
            transport = CallerTransport()
            caller.connection_made(transport)  # type: ignore[arg-type]
            self.callers.append((caller, transport))
        for resolver in networks.all.values():
            for upstream in resolver.exchange.upstreams:
                pool = upstream.pool
                for _ in range(WIDTH):
                    connection = pool.connection()
                    connection.connection_made(UpstreamTransport(connection, self.sent))  # type: ignore[arg-type]
                    pool._all.add(connection)
                    pool.freed(connection)

    # --- Requests --------------------------------------------------------------------------------------

    def request(self, number: int) -> bytes:
        """The bytes of a caller."""
        body = _call(1 if self.case == "hit" else number)
        if self.case == "batch":
            body = b"[" + b",".join(_call(number * 10 + index) for index in range(10)) + b"]"
        return HEAD % (self.token, len(body), body)

    def response(self, number: int) -> bytes:
        """The bytes of an upstream."""
        body = _reply(1 if self.case == "hit" else number)
        if self.case == "batch":
            body = b"[" + b",".join(_reply(number * 10 + index) for index in range(10)) + b"]"
        lines = b""
        if self.case == "gzip":
            body, lines = gzip.compress(body, 1), b"Content-Encoding: gzip\r\n"
        elif self.case == "unique":
            lines = b"x-request-id: %032x\r\n" % number
        return (
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nDate: Sun, 15 Nov 2026 16:46:00 GMT\r\n"
            b"%bContent-Length: %d\r\n\r\n%b" % (lines, len(body), body)
        )

    def run(self, requests: list[bytes], responses: list[bytes]) -> None:
        """Let all callers send a request, all upstreams answer, and so on."""
        callers = [caller.data_received for caller, _ in self.callers]
        incoming, answers, sent = iter(requests), iter(responses), self.sent
        for _ in range(len(requests) // WIDTH):
            for caller in callers:
                caller(next(incoming))
            self.loop.run()
            for connection, _ in sent:
                connection.data_received(next(answers))
            sent.clear()
            self.loop.run()
        for _, transport in self.callers:
            assert len(transport.written) == len(requests) // WIDTH, "a call was not answered"
            wrong = [data for data in transport.written if not data.startswith(b"HTTP/1.1 200 OK\r\n")]
            assert not wrong, wrong[0]
            transport.written.clear()


def _not_straight(_request: object) -> NoReturn:
    """Stand where the general way begins."""
    raise AssertionError("a call left the straight way")


def _call(number: int) -> bytes:
    return b'{"jsonrpc":"2.0","id":%d,"method":"eth_getBalance","params":["0x%040x","latest"]}' % (
        number,
        0xABC000 + number,
    )


def _reply(number: int) -> bytes:
    return b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (number, RESULT)


def drive(case: str, rounds: int, build: int, measured: Callable[[Drive, list[bytes], list[bytes]], None]) -> None:
    """Prepare `build` rounds, so that two runs differ only in how many they make, and run some."""
    with tempfile.TemporaryDirectory() as folder:
        driven = Drive(case, Path(folder))
        try:
            requests = [driven.request(number) for number in range(build * WIDTH)]
            responses = [driven.response(number) for number in range(build * WIDTH)]
            measured(driven, requests[: rounds * WIDTH], responses[: rounds * WIDTH])
        finally:
            asyncio._set_running_loop(None)
            driven.spool.close()


def _run_counted(driven: Drive, requests: list[bytes], responses: list[bytes]) -> None:
    """Run with the garbage collector set as in a worker."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    driven.run(requests, responses)


def main(rounds: int, cases: list[str]) -> None:
    """Drive each case twice; print the id of each process.

    They are forked, because a tool that counts takes much longer to start Python than to follow the calls; what it
    counted until the fork is the same for both.
    """
    for case in cases:
        for each in (rounds, 2 * rounds):
            pid = os.fork()
            if not pid:
                drive(case, each, 2 * rounds, _run_counted)
                os._exit(0)
            if os.waitpid(pid, 0)[1]:
                raise SystemExit(f"driving {case} failed")
            print(case, pid, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
