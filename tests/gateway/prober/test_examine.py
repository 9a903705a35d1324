"""Looking at an upstream once: queries that take too long are ended while it is looked at."""

import asyncio
from typing import Any, cast

from tollgate.gateway.prober import examine


class Client:
    """Counts how often it is to end what takes too long."""

    def __init__(self) -> None:
        self.swept = asyncio.Event()

    def sweep(self) -> None:
        self.swept.set()


async def test_queries_that_take_too_long_are_ended_again_and_again() -> None:
    client = Client()
    sweeping = asyncio.ensure_future(examine._sweep(cast("Any", client)))
    for _ in range(2):
        client.swept.clear()
        await asyncio.wait_for(client.swept.wait(), 30.0)
    sweeping.cancel()
