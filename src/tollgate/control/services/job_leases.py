"""Jobs that one node does for all: each is done by whoever holds its lease, which a dead holder loses.

A holder renews its lease whenever the job is due. Jobs may be done twice all the same: a clock may be wrong.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tollgate.control.service_context import ServiceContext
from tollgate.core.nodes import taken
from tollgate.store.base import StoreUnavailable

# A lease outlives so many turns of its job, and never less than a minute.
TURNS, LEAST_SECONDS = 3, 60.0


class JobLeases:
    """The leases of one node."""

    def __init__(self, context: ServiceContext, holder: str) -> None:
        self._context = context
        self._holder = holder

    def once(self, name: str, every: float, job: Callable[[], Awaitable[object]]) -> Callable[[], Awaitable[None]]:
        """A job that is done where its lease is held."""

        async def turn() -> None:
            if await self.hold(name, max(TURNS * every, LEAST_SECONDS)):
                await job()

        turn.__qualname__ = name
        return turn

    async def hold(self, name: str, seconds: float) -> bool:
        """Whether the lease of a job is ours, from now on for so long."""
        try:
            async with self._context.store.changing() as records:
                known = await records.leases.get(name)
                lease = taken(known, name, self._holder, self._context.now(), seconds)
                if lease is not None:
                    await (records.leases.add(lease) if known is None else records.leases.replace(lease))
        except StoreUnavailable:
            return False
        return lease is not None
