"""What operators see of upstreams: the shape of `upstreams.json`, and the results of calls over the last minute.

Values and arithmetic: the prober writes them down, `tollgate upstreams` reads them. No address of an upstream may
enter: it often holds a key.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from msgspec import Struct

from tollgate.api.operator import ShownNetwork

FILE = "upstreams.json"
# Written once a second: older than this, it is no longer written.
STALE_SECONDS = 10.0
MINUTE_SECONDS = 60.0


class Shown(Struct, frozen=True, kw_only=True):
    """Everything, at one moment."""

    at: float
    networks: tuple[ShownNetwork, ...]


class Tally:
    """Calls and failures of one upstream over the last minute, from the counters of all workers."""

    def __init__(self) -> None:
        self._counters: list[tuple[int, int]] = []
        self._steps: deque[tuple[float, int, int]] = deque()
        self.calls = 0
        self.failures = 0

    def note(self, counters: Sequence[tuple[int, int]], now: float) -> None:
        """Take in the counters of each worker. One that fell belongs to a new worker, which started at zero."""
        before = self._counters or counters
        calls = sum(_grown(old[0], new[0]) for old, new in zip(before, counters, strict=True))
        failures = sum(_grown(old[1], new[1]) for old, new in zip(before, counters, strict=True))
        self._counters = list(counters)
        self._steps.append((now, calls, failures))
        self.calls += calls
        self.failures += failures
        while self._steps and self._steps[0][0] <= now - MINUTE_SECONDS:
            _, calls, failures = self._steps.popleft()
            self.calls -= calls
            self.failures -= failures

    @property
    def error_rate(self) -> float | None:
        return min(1.0, self.failures / self.calls) if self.calls else None


def _grown(old: int, new: int) -> int:
    return new - old if new >= old else new
