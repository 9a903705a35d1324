"""One uvicorn server inside a forked child: its loop, its signals, its end.

uvicorn's own worker parent is not used: it starts workers by spawn (slow, nothing shared), reacts to SIGHUP by
restarting all of them, and gives them no number of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import signal
import socket
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from typing import Any

import uvicorn
import uvloop

from tollgate import log
from tollgate.gateway.http.tls_connection import TlsConnection
from tollgate.processes.certificates import POLL_SECONDS, Certificates
from tollgate.processes.supervisor import Lifeline

GC_THRESHOLD = 20_000
# Interval of pings to a WebSocket's client, and how long it has for the pong.
PING_SECONDS, PONG_SECONDS = 20.0, 20.0
# Where the certificate is ours, browsers come by HTTPS alone from now on (RFC 6797).
HTTPS_ALONE = ("strict-transport-security", "max-age=31536000")
_log = log.get("serving")


class _Server(uvicorn.Server):
    """uvicorn's server, stopped by SIGTERM alone; it must not raise the signal again when it is done."""

    def __init__(self, config: uvicorn.Config, lifeline: Lifeline, siblings: Mapping[int, socket.socket]) -> None:
        super().__init__(config)
        self._lifeline = lifeline
        self._siblings = siblings
        """Sockets of processes that serve the same, by how many places after this one they are."""
        self._adopted: dict[int, asyncio.Server] = {}

    async def on_tick(self, counter: int) -> bool:
        """Beat, ten times a second; the first time right after the start."""
        self._lifeline.beat()
        for distance, listener in self._siblings.items():
            if self._lifeline.is_silent(distance) != (distance in self._adopted):
                await self._adopt(distance, listener)
        return await super().on_tick(counter)

    async def _adopt(self, distance: int, listener: socket.socket) -> None:
        """Accept the connections of a sibling that does not serve, or leave them to it again."""
        adopted = self._adopted.pop(distance, None)
        if adopted is not None:
            self.servers.remove(adopted)
            adopted.close()
            return
        config = self.config

        def connect() -> asyncio.Protocol:
            return config.http_protocol_class(  # type: ignore[call-arg]
                config=config, server_state=self.server_state, app_state=self.lifespan.state
            )

        # A copy: what the server closes must not be the sibling's own.
        server = await asyncio.get_running_loop().create_server(
            connect, sock=listener.dup(), backlog=config.backlog
        )
        self._adopted[distance] = server
        self.servers.append(server)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for each in self._siblings.values():
            each.close()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.stop)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGTERM)

    def stop(self) -> None:
        self.should_exit = True


class ServerProcess:
    """What a child serves, made inside its loop."""

    def __init__(
        self,
        app: Callable[..., Awaitable[None]],
        *,
        http: Any = "httptools",
        ws: Any = "none",
        ws_max_bytes: int = 1_048_576,
        background: Sequence[tuple[float, Callable[[], Any]]] = (),
        close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.app = app
        self.http = http
        self.ws = ws
        """The protocol of WebSockets. Until a client is authenticated, messages have at most `ws_max_bytes`."""
        self.ws_max_bytes = ws_max_bytes
        self.background = background
        """Functions, plain or async, with the seconds between their runs."""
        self.close = close


def serve(
    make: Callable[[], Awaitable[ServerProcess]],
    sockets: list[socket.socket],
    lifeline: Lifeline,
    *,
    grace_seconds: float,
    tls: tuple[str, str] | None = None,
    siblings: Mapping[int, socket.socket] | None = None,
) -> None:
    """Serve until SIGTERM, or until the parent is gone.

    `siblings` are the sockets of processes that serve the same, by how many places after this one they are: who
    ends or hangs leaves its connections to the others until it is replaced.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(make, sockets, lifeline, grace_seconds, tls, siblings or {}))


async def _serve(
    make: Callable[[], Awaitable[ServerProcess]],
    sockets: list[socket.socket],
    lifeline: Lifeline,
    grace_seconds: float,
    tls: tuple[str, str] | None,
    siblings: Mapping[int, socket.socket],
) -> None:
    service = await make()
    certificates = Certificates(*tls) if tls else None
    http: Any = (
        functools.partial(TlsConnection, service.http, certificates.context) if certificates else service.http
    )
    background = [*service.background, *([(POLL_SECONDS, certificates.tick)] if certificates else [])]
    # What is allocated now stays: the garbage collector need not traverse it again and again. Requests leave
    # hardly any cycles behind, so it may also look less often.
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 20, 50)
    server = _Server(
        uvicorn.Config(
            service.app,
            http=http,
            ws=service.ws,
            ws_max_size=service.ws_max_bytes,
            ws_ping_interval=PING_SECONDS,
            ws_ping_timeout=PONG_SECONDS,
            # Memory and time for each connection, and what is sent is short.
            ws_per_message_deflate=False,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=2048,
            timeout_graceful_shutdown=max(1, int(grace_seconds)),
            # Of every answer but those of `/x/`, which write their own.
            headers=[HTTPS_ALONE] if certificates else [],
        ),
        lifeline,
        siblings,
    )
    loop = asyncio.get_running_loop()
    loop.add_reader(lifeline.parent_pipe, _parent_gone, loop, server, lifeline)
    tasks = [loop.create_task(_repeat(seconds, run)) for seconds, run in background]
    try:
        await server.serve(sockets)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if service.close is not None:
            await service.close()


def _parent_gone(loop: asyncio.AbstractEventLoop, server: _Server, lifeline: Lifeline) -> None:
    loop.remove_reader(lifeline.parent_pipe)
    server.stop()


async def _repeat(seconds: float, run: Callable[[], Any]) -> None:
    """Run something for ever; a failure is logged and does not end it."""
    while True:
        try:
            result = run()
            if asyncio.iscoroutine(result):
                await result
        except Exception:  # noqa: BLE001 - the border of a background job
            _log.exception("a background job failed", job=getattr(run, "__qualname__", "?"))
        await asyncio.sleep(seconds)
