"""A pool of connections on a scripted loop, and calls through it."""

import asyncio

from tests.gateway.fake_node import http
from tests.gateway.fakes import Clock, FakeTransport, ScriptedLoop, run_pending, scripted_loop, spawn

from tollgate.gateway.memory_budget import Budget
from tollgate.gateway.upstream.connection import Response
from tollgate.gateway.upstream.pool import Pool
from tollgate.settings import model

OK = http(b"{}")
SOON = 15.0


class PooledUpstream:
    """An upstream and the pool of connections to it."""

    def __init__(self, connections: int = 4, url: str = "http://node:8545", **headers: str) -> None:
        self.clock = Clock()
        self.loop: ScriptedLoop = scripted_loop()
        upstream = model.UpstreamSettings(name="a", url=url, connections=connections, headers=headers)
        self.pool = Pool(upstream, max_bytes=1_000_000, budget=Budget(10_000_000), now=self.clock)

    @property
    def open(self) -> list[FakeTransport]:
        return [transport for transport in self.loop.transports if not transport.closed]

    def send(self, *, write: bool = False, seconds: float = SOON) -> asyncio.Future[Response]:
        """A call is made; give it the turns it needs with `settled`."""
        sending = self.pool.send(b"{}", self.clock.now + seconds, repeatable=not write)
        return spawn(sending)

    async def call(self, *, write: bool = False) -> FakeTransport:
        """A call that is answered; returns the connection it took."""
        before = {id(each): len(each.written) for each in self.loop.transports}
        sent = self.send(write=write)
        await run_pending()
        (taken,) = [each for each in self.loop.transports if len(each.written) > before.get(id(each), 0)]
        taken.deliver(OK)
        assert await sent == Response(200, b"{}")
        return taken

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.pool.sweep()
