"""An upstream as one worker sees it: how fast it is, how it fails, how often it may be called.

Plain bookkeeping with `now` as an argument; the choice among several is `choice.py`'s, calling is `exchange.py`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

from tollgate.core.entries import pack
from tollgate.core.jsonrpc import MAX_REMEMBERED_METHOD
from tollgate.core.limits import Limit
from tollgate.core.methods import Policy, listed
from tollgate.gateway.upstream.pool import Pool
from tollgate.settings.model import UpstreamSettings
from tollgate.shm import metrics
from tollgate.shm.upstream_status import NOTHING, State, UpstreamStatus, WorkerStats

# Peak EWMA: a slow answer counts at once, and is forgotten with this half-life or so, once a second at least.
FORGET_SECONDS = 10.0
# The p95 moves up by a slower answer and down by a quicker one, 19 times as far up: it rests where 5 of 100 are
# slower.
_P95_UP, _P95_DOWN = 1 + 0.1 * 0.95, 1 - 0.1 * 0.05
# Answers before an upstream's p95 is believed.
_P95_AFTER = 20
_FIRST_HEDGE_SECONDS = 0.5
# A hedge sooner than this gains nothing that a caller would notice.
_MIN_HEDGE_SECONDS = 0.002
# The breaker opens after so many failures in a row, or when half of the last twenty or more have failed.
_FAILURES_IN_A_ROW = 5
_WINDOW_CALLS = 20
_WINDOW_SECONDS = 10.0
_OPEN_SECONDS, _MAX_OPEN_SECONDS = 1.0, 30.0
# After so many in a row it is open for the longest time.
_MAX_OPENINGS = 5
# Spared for so long after its quota was used up.
QUOTA_SECONDS = 5.0
# After so many heads that nothing else showed it is not called for a while, twice as long after each further one;
# they are forgotten after a time without.
MAX_DOUBTS = 3
_DISTRUST_SECONDS, _MAX_DISTRUST_SECONDS, _TRUSTED_AGAIN_SECONDS = 30.0, 600.0, 900.0
# How long what it claimed can confirm what another upstream shows; the same claim within a second counts once.
_CLAIM_SECONDS, _SAME_CLAIM_SECONDS = 10.0, 1.0
_MAX_METHODS = 4_096
# Answers whose times are kept before they are put into the histogram without waiting for the second to end.
MAX_SAMPLES = 1_024


class Upstream:
    """One upstream of one network."""

    __slots__ = (
        "_claimed",
        "_claimed_at",
        "_cooling_until",
        "_doubts",
        "_ewma_at",
        "_histogram",
        "_in_a_row",
        "_ok_cell",
        "_open_until",
        "_openings",
        "_p95",
        "_refused",
        "_samples",
        "_trial",
        "_window_began",
        "_window_calls",
        "_window_failures",
        "_writer",
        "attempt_seconds",
        "calls",
        "connections",
        "counted",
        "ewma",
        "failures",
        "in_doubt",
        "in_flight",
        "limit",
        "name",
        "picky",
        "policy",
        "pool",
        "priority",
        "record",
        "settings",
        "slot",
        "starts",
        "status",
        "weight",
    )

    def __init__(
        self, settings: UpstreamSettings, pool: Pool, status: UpstreamStatus, slot: int, path: str
    ) -> None:
        self.pool = pool
        self.status = status
        self._writer: metrics.Writer | None = None
        """Where its answers are counted, and the time that they took."""
        self._ok_cell = 0
        self._histogram: Sequence[int] = ()
        self._samples: list[float] = []
        """Seconds of answers that are not in the histogram yet."""
        self.starts: list[float] = []
        """When each call was sent that was answered in this loop tick."""
        self.counted = False
        """Whether `count` is scheduled for the end of this loop tick."""
        self.attempt_seconds = 0.0
        """Seconds that a first attempt gets."""
        self.slot = slot
        """Its slot in the shared status: the same in every worker, for as long as the service runs."""
        self.calls = 0
        self.failures = 0
        self.in_flight = 0
        self.ewma = 0.0
        self._ewma_at = 0.0
        self._p95 = 0.0
        self._in_a_row = 0
        self._begin_window(0.0)
        self._open_until = 0.0
        self._openings = 0
        self._trial = False
        self._cooling_until = 0.0
        self._claimed, self._claimed_at = NOTHING, 0.0
        """The last head that it showed to callers, and nothing else did."""
        self._doubts = 0
        self.in_doubt = False
        """Whether there may be a reason not to call it: `available` decides."""
        self.change(settings, path)

    def change(self, settings: UpstreamSettings, path: str) -> None:
        """Take over settings, new or as they were."""
        self.settings = settings
        self.name = settings.name
        self.priority = settings.priority
        self.connections = settings.connections
        self.weight = settings.weight
        self.policy = Policy(settings.allow_methods, settings.deny_methods)
        self.picky = bool(settings.allow_methods or settings.deny_methods)
        rate = settings.requests_per_second
        self.limit = ((f"up:{path}/{settings.name}", Limit(rate, 1.0)),) if rate else ()
        self._refused: dict[str, bool] = {}
        self.record = pack(self.name) + pack(1)
        """The record's part about the upstream, of a call that it answered at the first attempt."""

    def count_in(self, writer: metrics.Writer, *names: str) -> None:
        """Count attempts that are answered, and the time that they take, under these names."""
        self._observe()
        self._writer = writer
        self._ok_cell = writer.cell(metrics.UPSTREAM_ATTEMPTS, *names, self.name, "ok")
        self._histogram = writer.histogram(metrics.UPSTREAM_SECONDS, *names, self.name)

    # --- Which calls it may get ------------------------------------------------------------------------

    def takes(self, method: str) -> bool:
        """Whether its lists allow this method."""
        if not self.picky:
            return True
        refused = self._refused.get(method)
        if refused is None:
            refused = listed(method, self.policy) is not None
            if len(method) <= MAX_REMEMBERED_METHOD:
                if len(self._refused) >= _MAX_METHODS:
                    self._refused.clear()
                self._refused[method] = refused
        return not refused

    def is_open(self, now: float) -> bool:
        """Whether the circuit breaker keeps calls away from it. When its time is over, one call is let through."""
        if not self._open_until:
            return False
        return now < self._open_until or self._trial

    def available(self, now: float) -> bool:
        """Whether nothing that this worker knows is a reason not to call it."""
        self.in_doubt = self._open_until > 0 or now < self._cooling_until
        return not self.in_doubt or (now >= self._cooling_until and not self.is_open(now))

    def in_rotation(self, now: float) -> bool:
        """Whether it should be called."""
        return self.status.state <= State.UP and self.available(now)

    def cool_down(self, now: float) -> None:
        """Do not call it for a while: a quota of ours is used up."""
        self._cooling_until = now + QUOTA_SECONDS
        self.in_doubt = True

    # --- Heads that only it shows ------------------------------------------------------------------------

    def claimed_head(self, now: float) -> int:
        """The head that it claimed a moment ago; NOTHING: none."""
        return self._claimed if now - self._claimed_at < _CLAIM_SECONDS else NOTHING

    def doubt(self, number: int, now: float) -> bool:
        """Note a head that nothing else shows; whether it is a new one. After some, it leaves the rotation."""
        if number == self._claimed and now - self._claimed_at < _SAME_CLAIM_SECONDS:
            return False
        if now - self._claimed_at > _TRUSTED_AGAIN_SECONDS:
            self._doubts = 0
        is_new = number != self._claimed
        self._claimed, self._claimed_at = number, now
        self._doubts += 1
        further = self._doubts - MAX_DOUBTS
        if further >= 0:
            seconds = min(_DISTRUST_SECONDS * 2 ** min(further, 10), _MAX_DISTRUST_SECONDS)
            self._cooling_until = now + seconds
            self.in_doubt = True
        return is_new

    def confirm(self, number: int) -> None:
        """Note that another upstream shows a head, too: if this one claimed it before, it was right."""
        if self._doubts and self._claimed != NOTHING and number >= self._claimed:
            self._doubts -= 1
            self._in_a_row = 0
            self._claimed = NOTHING

    # --- How its answers come --------------------------------------------------------------------------

    @property
    def cost(self) -> float:
        """What one more call would cost: its peak EWMA for each call under way, by its weight."""
        return (self.ewma + 1e-6) * (self.in_flight + 1) / self.weight

    @property
    def hedge_after(self) -> float:
        """Seconds after which an attempt counts as slow: within the p95, 95 of 100 answers come."""
        if self.calls - self.failures - self.in_flight < _P95_AFTER:
            return _FIRST_HEDGE_SECONDS
        return max(self._p95, _MIN_HEDGE_SECONDS)

    def started(self) -> None:
        """Note that a call goes out."""
        self.in_flight += 1
        self.calls += 1
        if self.in_doubt:
            self.try_again()

    def try_again(self) -> None:
        """Count a call that may close the breaker."""
        if self._open_until:
            self._trial = True

    def answered(self, started: float) -> None:
        """Note an answer to a call that was sent then; `count` follows, now or at the end of the loop tick."""
        self.in_flight -= 1
        self.starts.append(started)

    def count(self, now: float) -> None:
        """Learn from the answers of this loop tick, and add them to the metrics."""
        took = list(map(now.__sub__, self.starts))
        self.starts, self.counted = [], False
        if not took:
            return
        weight, slowest = self._forget(now), max(took)
        if slowest > self.ewma:
            self.ewma = slowest
        else:
            self.ewma += sum(took) / len(took) * (1 - weight)
        p95 = self._p95
        for seconds in took:
            p95 = (p95 * _P95_UP or seconds) if seconds > p95 else p95 * _P95_DOWN
        self._p95 = p95
        self._in_a_row = 0
        if self._writer is not None:
            self._writer.cells[self._ok_cell] += len(took)
            self._samples += took
            if len(self._samples) > MAX_SAMPLES:
                self._observe()
        if self._open_until:
            self._open_until = 0.0
            self._openings = 0
            # The window starts again: only what follows counts.
            self._begin_window(now)

    def _forget(self, now: float) -> float:
        """Let what it took before count for less; for how much."""
        weight = exp((self._ewma_at - now) / FORGET_SECONDS)
        self.ewma *= weight
        self._ewma_at = now
        return weight

    def _observe(self) -> None:
        """Add the times of answers to their histogram."""
        if self._writer is not None and self._samples:
            self._writer.observe(self._histogram, [int(seconds * 1_000_000) for seconds in self._samples])
            self._samples = []

    def failed(self, now: float) -> None:
        """Note a failure that speaks of the upstream."""
        if self.starts:
            # Answers that came before it must not close the breaker that it may open.
            self.count(now)
        self.in_flight -= 1
        self.failures += 1
        self._in_a_row += 1
        if now < self._open_until:
            # Sent before it opened, or for want of another: nothing new follows from this.
            self._trial = False
            return
        if now - self._window_began > _WINDOW_SECONDS:
            self._begin_window(now)
            self._window_failures -= 1
        calls, failures = self.calls - self._window_calls, self.failures - self._window_failures
        if (
            self._open_until
            or self._in_a_row >= _FAILURES_IN_A_ROW
            or (calls >= _WINDOW_CALLS and failures * 2 >= calls)
        ):
            self._open_until = now + min(_OPEN_SECONDS * 2**self._openings, _MAX_OPEN_SECONDS)
            self._openings = min(self._openings + 1, _MAX_OPENINGS)
            self._trial = False
            self.in_doubt = True

    def _begin_window(self, now: float) -> None:
        self._window_began, self._window_calls, self._window_failures = now, self.calls, self.failures

    def abandoned(self) -> None:
        """Note a call whose end means nothing for the upstream's health."""
        self.in_flight -= 1
        self._trial = False

    def report(self, now: float) -> None:
        """Once a second: publish the statistics of our calls; what was long ago counts for less."""
        self._observe()
        self._forget(now)
        self.status.report(
            WorkerStats(
                self.calls,
                self.failures,
                int(self.ewma * 1e6),
                int(self._p95 * 1e6),
                max(self._open_until, self._cooling_until if self._doubts >= MAX_DOUBTS else 0.0),
                self.in_flight,
            )
        )
