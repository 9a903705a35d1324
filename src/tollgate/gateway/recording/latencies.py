"""How long callers wait, as a histogram by network and outcome.

Durations are kept as they come and put into buckets once a second, sorted: on the way of a call there is no more
than an append.
"""

from __future__ import annotations

from tollgate.shm import metrics

# Durations that are kept before they are put into buckets without waiting for the second to end.
_MAX_WAITING = 8_192


class CallerLatencies:
    """The durations of one worker's requests."""

    def __init__(self, writer: metrics.Writer) -> None:
        self._writer = writer
        self._waiting: dict[tuple[str, str], tuple[list[int], list[int]]] = {}
        """Durations in microseconds, and the cells of their histogram, by network and outcome."""
        self._count = 0

    def durations(self, network: str, outcome: str) -> list[int]:
        """Where durations are appended to; the same list for good."""
        known = self._waiting.get((network, outcome))
        if known is None:
            cells = self._writer.histogram(metrics.REQUEST_SECONDS, *network.split("/"), outcome)
            known = self._waiting[network, outcome] = ([], cells)
        return known[0]

    def appended(self, count: int) -> None:
        """Note that so many were appended at most: not too many may wait."""
        self._count += count
        if self._count > _MAX_WAITING:
            self.fold()

    def fold(self) -> None:
        """Put what waits into buckets."""
        self._count = 0
        for durations, histogram in self._waiting.values():
            if durations:
                self._writer.observe(histogram, durations)
                durations.clear()
