"""The upstreams of one network, as the calls of a worker share them: their status, hedges, rates and statistics.

`attempts.py` makes the attempts at one call; here is what all calls of the network have in common.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import random as chance
from typing import TypeVar

from msgspec import Raw

from tollgate.chains.catalogue import Kind
from tollgate.chains.faults import Verdict, verdict
from tollgate.core import jsonrpc
from tollgate.core.shapes import ABSENT, Replies, Reply
from tollgate.gateway.messages import ServedNetwork
from tollgate.gateway.upstream.choice import View
from tollgate.gateway.upstream.health import Upstream
from tollgate.settings.mask import upstream_secrets
from tollgate.shm import metrics
from tollgate.shm.upstream_status import NetworkStatus, State
from tollgate.store.base import Meters

_WRONG_CHAIN = int(State.WRONG_CHAIN)

# Twenty calls pay for one hedge. Where calls are few, one is free every two seconds: a lone call must not wait for
# a silent upstream.
_HEDGES_PER_CALL = 0.05
_MAX_SAVED = 20.0
_SECONDS_PER_HEDGE = 2.0
# A hedge that could not be paid for, or for which no upstream was left, is tried again after this.
RETRY_SECONDS = 0.02
_Step = TypeVar("_Step")
_Answer = TypeVar("_Answer")


class HedgeBudget:
    """What calls have paid for and hedges have used: one budget for the network, so that hedges stay few."""

    __slots__ = ("_counted", "_looked_at", "_now", "_saved", "started")

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._saved = 0.0
        self._counted = 0
        self._looked_at = now()
        self.started = 0

    def take(self, calls: int) -> bool:
        """Pay for one hedge, if there is enough; `calls` were made so far."""
        now = self._now()
        if calls != self._counted:
            # Fewer than before: an upstream was taken away, with its count.
            paid = _HEDGES_PER_CALL * max(0, calls - self._counted)
            self._saved = min(self._saved + paid, _MAX_SAVED)
            self._counted = calls
        elif self._saved < 1:
            # No call since the last look.
            self._saved = min(1.0, self._saved + (now - self._looked_at) / _SECONDS_PER_HEDGE)
        self._looked_at = now
        if self._saved < 1:
            return False
        self._saved -= 1
        self.started += 1
        return True

    def give_back(self) -> None:
        """Take back the pay for a hedge that found no upstream."""
        self._saved += 1
        self.started -= 1


class Exchange:
    """Calls the upstreams of one network."""

    def __init__(
        self,
        network: ServedNetwork,
        upstreams: Sequence[Upstream],
        status: NetworkStatus,
        meters: Meters,
        writer: metrics.Writer,
        now: Callable[[], float],
        loop: asyncio.AbstractEventLoop,
        random: Callable[[], float] = chance,
    ) -> None:
        self.status = status
        self._epoch = status.epoch
        self._meters = meters
        self._writer = writer
        self._cells = writer.cells
        self.now = now
        self.loop = loop
        self._request_seconds = 0.0
        self.hedge_budget = HedgeBudget(now)
        self.random = random
        self.change(network, upstreams)

    def change(self, network: ServedNetwork, upstreams: Sequence[Upstream]) -> None:
        """Take over a network's settings and upstreams; calls under way choose among these from now on."""
        self.network = network
        self.upstreams: tuple[Upstream, ...] = tuple(sorted(upstreams, key=lambda upstream: upstream.priority))
        self.mask = upstream_secrets(network.upstreams) or None
        """Takes secrets out of errors; None: upstreams are sent none."""
        self._names = (network.family, network.name)
        self.hedging = network.hedge and len(upstreams) > 1
        self._hedged_cell = self._writer.cell(metrics.UPSTREAM_HEDGES, *self._names)
        for upstream in upstreams:
            upstream.count_in(self._writer, *self._names)
        self._attempt_cells: dict[tuple[str, str], int] = {}
        self._view: View | None = None
        self._calls_reported = 0

    def set_timeout(self, request_seconds: float) -> None:
        """Take over how long a request may take."""
        self._request_seconds = request_seconds
        self._view = None

    # --- One look at the shared status -----------------------------------------------------------------

    def view(self) -> View:
        """The status of network and upstreams, as they are now."""
        view = self._view
        if view is None or self._epoch[0] != view.epoch:
            view = self._view = self._look()
        return view

    def _look(self) -> View:
        epoch = self._epoch[0]
        for upstream in self.upstreams:
            # As `Failover` does it: an attempt leaves time for another, where there is another upstream.
            others = any(each is not upstream and each.status.state != _WRONG_CHAIN for each in self.upstreams)
            seconds = self._request_seconds / 2 if others else self._request_seconds
            upstream.attempt_seconds = min(upstream.settings.timeout_seconds, seconds)
        return View(epoch, self.status.snapshot(), self.upstreams)

    # --- Hedges and rates ------------------------------------------------------------------------------

    def pay_for_hedge(self, parallel: Callable[[float], _Step | None], now: float) -> _Step | None:
        """Where to make a second attempt beside a slow one, paid for by the calls before; None: not now."""
        calls = 0
        for upstream in self.upstreams:
            calls += upstream.calls
        if not self.hedge_budget.take(calls):
            return None
        step = parallel(now)
        if step is None:
            self.hedge_budget.give_back()
        else:
            self._cells[self._hedged_cell] += 1
        return step

    def use_rate(self, upstream: Upstream, now: float) -> None:
        """Count a call against an upstream's rate."""
        self._meters.take(upstream.limit, now)

    def within_rate(self, upstream: Upstream, now: float) -> bool:
        """Whether an upstream's rate allows another call; takes nothing."""
        return all(self._meters.peek(key, limit, now).allowed for key, limit in upstream.limit)

    def verdict_of(self, kind: Kind, reply: Reply) -> Verdict:
        """What a node's answer to a call means."""
        if reply.error is ABSENT:
            return Verdict.FINAL
        code, message = jsonrpc.error_details(reply)
        return verdict(self.network.family, kind, code, message)

    def masked(self, answer: _Answer) -> _Answer:
        """An answer whose errors repeat no secret that upstreams are sent."""
        if self.mask is None:
            return answer
        if isinstance(answer, Replies):
            if not answer.all_results:
                answer.items = [self.masked(each) for each in answer.items]
        elif isinstance(answer, Reply) and answer.error is not ABSENT:
            answer.error = Raw(self.mask.json(bytes(answer.error)))
        return answer

    def has(self, slot: int) -> bool:
        """Whether the upstream of this slot is one of ours."""
        return any(upstream.slot == slot for upstream in self.upstreams)

    def takers(self, method: str) -> list[bool]:
        """Which of the upstreams that do not take everything take this method."""
        return [upstream.takes(method) for upstream in self.upstreams if upstream.picky]

    def cool_down(self, upstream: Upstream) -> None:
        """Do not call an upstream for a while whose quota is used up."""
        upstream.cool_down(self.now())

    def sweep(self) -> None:
        """Ten times a second: fail what has passed its deadline."""
        for upstream in self.upstreams:
            upstream.pool.sweep()

    def report(self) -> None:
        """Once a second: publish the statistics of our calls."""
        now = self.now()
        for upstream in self.upstreams:
            upstream.report(now)
        calls = sum(upstream.calls for upstream in self.upstreams)
        if calls != self._calls_reported:
            self._calls_reported = calls
            self.status.mark_active()

    def may_call(self, upstream: Upstream) -> bool:
        """Whether an upstream's rate allows another call; takes it, if so."""
        return not upstream.limit or self._meters.take(upstream.limit, self.now())[-1].allowed

    def count(self, upstream: Upstream, outcome: str) -> None:
        """Count an attempt that was not answered."""
        key = (upstream.name, outcome)
        cell = self._attempt_cells.get(key)
        if cell is None:
            cell = self._attempt_cells[key] = self._writer.cell(metrics.UPSTREAM_ATTEMPTS, *self._names, *key)
        self._cells[cell] += 1
