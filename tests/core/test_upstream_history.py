"""The last day of upstreams: what a step keeps, and how much of it there is."""

from __future__ import annotations

from typing import Any

from tollgate.api.operator import ShownNetwork, ShownUpstream
from tollgate.core.upstream_history import STEP_SECONDS, STEPS, HistoryKeeper

NOON = 1_794_744_000.0


def network(**changes: Any) -> list[ShownNetwork]:
    upstream: dict[str, Any] = {
        "name": "node-1", "state": "up", "reason": "", "since": 0.0, "head": 9, "behind": 0, "finalized": None,
        "chain_id": None, "probe_ms": 1.0, "listening": False, "calls": 0, "failures": 0, "error_rate": None,
        "latency_ms": None, "p95_ms": None, "breaker": "closed", "open_workers": 0, "in_flight": 0,
    }  # fmt: skip
    each = ShownUpstream(**{**upstream, **changes})
    return [ShownNetwork(network="eth/mainnet", head=9, finalized=None, chain_id=None, upstreams=(each,))]


def test_step_is_as_bad_as_its_worst_moment_and_counts_each_minute_once() -> None:
    keeper = HistoryKeeper()
    keeper.note(network(calls=10, failures=1), NOON)
    keeper.note(network(calls=99, failures=9, state="lagging", behind=7, latency_ms=30.0), NOON + 1)
    keeper.note(network(state="down"), NOON + 2)
    [found] = keeper.note(network(calls=5), NOON + 60) or []
    [step] = found.steps
    assert (step.state, step.calls, step.failures, step.behind, step.latency_ms) == ("down", 15, 1, 7, 30.0)


def test_history_is_written_once_a_minute() -> None:
    keeper = HistoryKeeper()
    written = [second for second in range(180) if keeper.note(network(), NOON + second) is not None]
    assert written == [0, 60, 120]


def test_a_day_is_kept_and_no_more() -> None:
    keeper = HistoryKeeper()
    for count in range(STEPS + 30):
        written = keeper.note(network(), NOON + count * STEP_SECONDS)
    [found] = written or []
    assert len(found.steps) == STEPS
    assert found.steps[-1].start - found.steps[0].start == (STEPS - 1) * STEP_SECONDS
    [found] = keeper.note(network(), found.steps[-1].start + (STEPS - 1) * STEP_SECONDS) or []
    assert len(found.steps) == 2
    [found] = keeper.note(network(), found.steps[-1].start + STEPS * STEP_SECONDS) or []
    assert len(found.steps) == 1, "also where the prober was stopped"


def test_what_was_written_is_gone_on_with_and_what_is_not_served_any_more_is_forgotten() -> None:
    known = HistoryKeeper().note(network(calls=4), NOON) or []
    keeper = HistoryKeeper(known)
    [found] = keeper.note(network(calls=3), NOON + 90) or []
    assert found.steps[0].calls == 7
    assert keeper.note([], NOON + 200) == []


def test_it_is_written_at_once_when_the_clock_is_set_back_and_not_twice_at_one_moment() -> None:
    keeper = HistoryKeeper()
    written = [keeper.note(network(), NOON + second) is not None for second in (0, 0, 1, -1, 0, 58, 59)]
    assert written == [True, False, False, True, False, False, True]
