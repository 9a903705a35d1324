"""The process that keeps this node's leases of limits: reports what is used, and writes what may be used.

One process a machine, a child of `serve`, only where `shared.url` is set. No request waits for it: workers read
what it writes into shared memory. Leases outlast a server that is silent for a moment. Where Valkey cannot be
reached for longer, or has forgotten this node, limits count for this node alone; the next successful exchange
takes part again.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from math import inf

import uvloop

from tollgate import log
from tollgate.core import leases
from tollgate.core.leases import Lease, LeaseReply, LeaseReport
from tollgate.processes.bootstrap import Bootstrap
from tollgate.processes.supervisor import Lifeline
from tollgate.shm import metrics
from tollgate.shm.leases import LeasedMeters, LeasedSlot
from tollgate.store import valkey
from tollgate.store.base import LeaseBook, SharedUnreachable

# Between two exchanges: while no limit is leased, and while some are.
TURN_SECONDS, BUSY_TURN_SECONDS = 0.05, 0.025
# Exchanges of all nodes together, about: beyond ten nodes, the busy interval grows.
_MAX_TURNS_A_SECOND = 400
# While Valkey cannot be reached.
RETRY_SECONDS = 0.5
# How long leases are used after the last exchange that succeeded. Valkey keeps them from others for longer
# (`ALIVE_MILLISECONDS`), so a pause of the server lets nothing pass that is over a limit.
HOLD_SECONDS = 1.0
# Before the service is ready: others must have made room for this node.
_FIRST_TURNS = 3
_START_SECONDS = 2.0
# Fractions below this are none.
_NEAR = 1e-3
# What a node requests at once; more than Valkey leases at all.
_MAX_TRACKED = 1_024
_log = log.get("shared")


class _Tracked:
    """A limit that is leased, or that this node wants more of."""

    def __init__(self, slot: LeasedSlot, now: float, rate: float = 0.0) -> None:
        self.slot = slot.slot
        self.used = slot.used
        self.at = now
        self.rate = rate
        self.busy = now
        """When it was last used."""
        self.lowered: float | None = None
        self.freed = 0.0
        self.leased_at = now
        """When it was last leased."""


class LeaseKeeper:
    """The leases of one node."""

    def __init__(
        self,
        meters: LeasedMeters,
        book: LeaseBook,
        writer: metrics.Writer,
        node: str,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._meters = meters
        self._book = book
        self._writer = writer
        self._node = node
        self._now = now
        self._tracked: dict[int, _Tracked] = {}
        """By mark. Bounded: what is not leased is dropped after an exchange."""
        self._nodes = 0
        """How many share the limits; 0: not known, this one is alone."""
        self._has_lost = False
        self._joined_at = -inf
        """When the last exchange that succeeded started."""
        self._up = writer.cell(metrics.SHARED_UP)
        self._node_count = writer.cell(metrics.SHARED_NODES)
        self._lost = writer.cell(metrics.SHARED_LOST)
        self._leased = writer.cell(metrics.SHARED_LEASES)
        # A predecessor may have left leases behind.
        meters.alone()

    async def tick(self) -> bool:
        """Report and take; False where limits count for this node alone. Called again after `pause`."""
        now = self._now()
        for slot in self._meters.backlogged(now):
            found = self._meters.read(slot, now)
            if (
                found.mark not in self._tracked
                and found.fraction < 1 - _NEAR
                and len(self._tracked) < _MAX_TRACKED
            ):
                # What it used up until now is taken for the whole of its part.
                self._tracked[found.mark] = _Tracked(found, now, found.fraction)
        reports = [self._report(mark, each, now) for mark, each in self._tracked.items()]
        try:
            reply = await self._book.exchange(self._node, reports)
        except SharedUnreachable as error:
            if self._now() < self._joined_at + HOLD_SECONDS:
                return True
            self._lose(str(error))
            return False
        if self._nodes and not reply.known:
            self._lose("it has forgotten this node")
            return True
        self._join(reply)
        self._joined_at = now
        return True

    @property
    def pause(self) -> float:
        """Seconds until the next exchange: shares move sooner where limits are leased."""
        if not self._tracked:
            return TURN_SECONDS
        return min(TURN_SECONDS, max(BUSY_TURN_SECONDS, self._nodes / _MAX_TURNS_A_SECOND))

    async def leave(self) -> None:
        """Let others use this node's share."""
        with suppress(SharedUnreachable):
            await self._book.leave(self._node)
        await self._book.close()

    def _report(self, mark: int, each: _Tracked, now: float) -> LeaseReport:
        slot = self._meters.read(each.slot, now)
        if slot.mark != mark:
            # Evicted; it is claimed again when it is leased.
            return LeaseReport(f"{mark:016x}", 1.0, 1.0, 0.0, each.lowered, each.freed)
        if slot.used != each.used:
            each.busy = now
        each.rate = leases.used_rate(
            each.rate, slot.used - each.used, now - each.at, now - each.busy, slot.window / slot.count
        )
        each.used, each.at = slot.used, now
        # A backlog that is left over from before is no demand.
        used_up = slot.backlog / slot.window if each.rate >= slot.fraction / 4 else 0.0
        want = leases.want(each.rate, used_up, self._nodes or 1, slot.count)
        return LeaseReport(
            f"{mark:016x}", slot.window, slot.count, want if want > 10 * _NEAR else 0.0, each.lowered, each.freed
        )

    def _join(self, reply: LeaseReply) -> None:
        now = self._now()
        if not self._nodes:
            _log.info("limits are shared with other nodes", nodes=reply.nodes)
        self._nodes = reply.nodes
        self._meters.divide(leases.unleased(reply.nodes))
        for lease in reply.leases:
            self._apply(lease, reply.nodes, now)
        for mark in [mark for mark, each in self._tracked.items() if each.leased_at < now]:
            each = self._tracked.pop(mark)
            if self._meters.read(each.slot, now).mark == mark:
                self._meters.unlease(each.slot)
        self._writer.set(self._up, 1)
        self._writer.set(self._node_count, reply.nodes)
        self._writer.set(self._leased, len(self._tracked))

    def _apply(self, lease: Lease, nodes: int, now: float) -> None:
        mark = int(lease.mark, 16)
        each = self._tracked.get(mark)
        slot = self._meters.read(
            self._meters.find(mark, lease.window, lease.count, now) if each is None else each.slot, now
        )
        if slot.mark != mark:
            slot = self._meters.read(self._meters.find(mark, lease.window, lease.count, now), now)
        if each is None:
            each = self._tracked[mark] = _Tracked(slot, now)
        each.slot, each.leased_at, each.lowered, each.freed = slot.slot, now, None, 0.0
        fraction = leases.fraction(lease.share, nodes, slot.count)
        if fraction <= slot.fraction:
            self._meters.lease(slot.slot, fraction, None, now)
            each.lowered = lease.share
            each.freed = (slot.window - slot.backlog) * (slot.fraction - fraction)
        else:
            backlog = leases.backlog_after(slot.backlog, slot.window, slot.fraction, fraction, lease.tokens)
            self._meters.lease(slot.slot, fraction, backlog, now)

    def _lose(self, why: str) -> None:
        self._meters.alone()
        self._tracked.clear()
        if self._nodes or not self._has_lost:
            self._writer.add(self._lost)
            _log.warning("limits count for this node alone: Valkey cannot be used", reason=why)
        self._nodes, self._has_lost, self._joined_at = 0, True, -inf
        self._writer.set(self._up, 0)
        self._writer.set(self._node_count, 0)
        self._writer.set(self._leased, 0)


def run(lifeline: Lifeline, bootstrap: Bootstrap, meters: LeasedMeters, writer: metrics.Writer, node: str) -> None:
    """Keep leases, in the child, until SIGTERM or until the parent is gone."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        book = valkey.ValkeyLeaseBook(bootstrap.settings.shared.url, valkey.prefix(bootstrap.pepper))
        runner.run(_run(lifeline, LeaseKeeper(meters, book, writer, node)))


async def _run(lifeline: Lifeline, keeper: LeaseKeeper) -> None:
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    # Readable when the parent is gone.
    loop.add_reader(lifeline.parent_pipe, stopped.set)
    done, latest = 0, time.monotonic() + _START_SECONDS
    try:
        while not stopped.is_set():
            succeeded = await keeper.tick()
            done += succeeded
            # Ready when others have made room for this node; but not kept from serving by a server that is away.
            if done >= _FIRST_TURNS or time.monotonic() >= latest:
                lifeline.beat()
            else:
                lifeline.live()
            with suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), keeper.pause if succeeded else RETRY_SECONDS)
    finally:
        loop.remove_reader(lifeline.parent_pipe)
        await keeper.leave()
