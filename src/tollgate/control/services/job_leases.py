"""Jobs that one node does for all: the holder of a job's lease runs it, and a lease expires with a dead holder.

A holder renews its lease whenever the job is due. Jobs must tolerate running twice: a clock may be wrong.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tollgate.control.service_context import ServiceContext
from tollgate.core.nodes import taken
from tollgate.store.base import StoreUnavailable

# A lease lasts for this many runs of its job, and at least a minute.
RUNS, MIN_SECONDS = 3, 60.0


class JobLeases:
    """The leases of one node."""

    def __init__(self, context: ServiceContext, holder: str) -> None:
        self._context = context
        self._holder = holder

    def once(self, name: str, every: float, job: Callable[[], Awaitable[object]]) -> Callable[[], Awaitable[None]]:
        """Wrap a job so that it runs only while this node holds its lease."""

        async def turn() -> None:
            if await self.hold(name, max(RUNS * every, MIN_SECONDS)):
                await job()

        turn.__qualname__ = name
        return turn

    async def hold(self, name: str, seconds: float) -> bool:
        """Take or renew the lease of a job for so many seconds; return whether it is held."""
        try:
            async with self._context.store.changing() as records:
                known = await records.leases.get(name)
                lease = taken(known, name, self._holder, self._context.now(), seconds)
                if lease is not None:
                    await (records.leases.add(lease) if known is None else records.leases.replace(lease))
        except StoreUnavailable:
            return False
        return lease is not None
