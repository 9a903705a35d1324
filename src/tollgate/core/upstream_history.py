"""Upstream health over the last day, in steps of a quarter of an hour. Pure; bounded by upstreams and steps.

The prober keeps it, writes it down now and then, and reads it again at its start.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from tollgate.api.operator import ShownNetwork, ShownUpstream

FILE = "upstream-history.json"
STEP_SECONDS, STEPS = 900, 96
# Calls are those of the last minute, so they are added once a minute.
SAMPLE_SECONDS = 60.0
# From good to bad: a step is as bad as its worst moment. At its start a prober knows nothing yet.
_ORDER = ("unknown", "up", "syncing", "lagging")


class HistoryStep(Struct, array_like=True):
    """One step: the worst state, and what was called."""

    start: int
    state: str
    calls: int = 0
    failures: int = 0
    behind: int = 0
    """Blocks, at most."""
    latency_ms: float = 0.0
    """At most; 0 where there was none."""


class UpstreamHistory(Struct):
    """One upstream."""

    network: str
    upstream: str
    steps: list[HistoryStep]


class HistoryKeeper:
    """Takes in what the prober shows, every second."""

    def __init__(self, known: Iterable[UpstreamHistory] = ()) -> None:
        self._known = {(each.network, each.upstream): each for each in known}
        self._sampled_at = 0.0

    def note(self, networks: Iterable[ShownNetwork], now: float) -> list[UpstreamHistory] | None:
        """Take in a moment. Once a minute: all of it, to be stored."""
        is_sample = not 0 <= now - self._sampled_at < SAMPLE_SECONDS
        start = int(now) // STEP_SECONDS * STEP_SECONDS
        kept: dict[tuple[str, str], UpstreamHistory] = {}
        for network in networks:
            for each in network.upstreams:
                key = (network.network, each.name)
                history = kept[key] = self._known.get(key) or UpstreamHistory(*key, [])
                _add(history.steps, each, start, is_sample=is_sample)
        self._known = kept
        if not is_sample:
            return None
        self._sampled_at = now
        return list(kept.values())


def _add(steps: list[HistoryStep], each: ShownUpstream, start: int, *, is_sample: bool) -> None:
    if not steps or steps[-1].start != start:
        steps.append(HistoryStep(start, each.state))
        oldest = start - STEP_SECONDS * (STEPS - 1)
        steps[:] = [step for step in steps if oldest <= step.start <= start][-STEPS:]
    last = steps[-1]
    last.state = max(last.state, each.state, key=_badness)
    last.behind = max(last.behind, each.behind)
    last.latency_ms = max(last.latency_ms, each.latency_ms or 0.0)
    if is_sample:
        last.calls += each.calls
        last.failures += each.failures


def _badness(state: str) -> int:
    return _ORDER.index(state) if state in _ORDER else len(_ORDER)
