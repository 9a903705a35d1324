"""When a second attempt may run beside a slow one: a budget for the whole network, so that hedges stay few.

Twenty calls pay for one hedge. Where calls are few, one is free every two seconds: a single call must not wait
for a silent upstream because nobody else calls.
"""

from __future__ import annotations

from collections.abc import Callable

from tollgate.gateway.upstream.health import Upstream

_HEDGES_PER_CALL = 0.05
_MAX_SAVED = 20.0
_SECONDS_PER_HEDGE = 2.0
# A hedge that could not be paid for, or for which no upstream was left, is tried again after this.
RETRY_SECONDS = 0.02
# A hedge sooner than this gains nothing that anybody would notice.
_SOONEST_SECONDS = 0.002
# Before it is known how long an upstream takes.
_FIRST_SECONDS = 0.5


def hedge_after(upstream: Upstream) -> float:
    """Seconds after which an attempt at this upstream counts as slow."""
    return max(upstream.p95 or _FIRST_SECONDS, _SOONEST_SECONDS)


class HedgeBudget:
    """What calls have paid for, and hedges have used."""

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
            # Nobody has called since the last look.
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
