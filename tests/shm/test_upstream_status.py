"""What processes share about upstreams: rows, heads, what callers have seen, reorganisations."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gateway.fakes import Clock

from tollgate.shm import upstream_status
from tollgate.shm.upstream_status import (
    MAX_NETWORKS,
    MAX_UPSTREAMS,
    NOTHING,
    SILENCE_SECONDS,
    NetworkStatus,
    SharedStatus,
    State,
    StatusSlots,
    WorkerStats,
    assign_slots,
)

STATS = WorkerStats(10, 2, 1_500, 4_000, 12.5, 3)


def rows(workers: int = 2) -> tuple[NetworkStatus, ...]:
    """A network's row as the prober and each worker see it."""
    shared_status = SharedStatus(workers, Clock())
    return (shared_status.network(0), *(shared_status.network(0, worker) for worker in range(workers)))


# --- Places ------------------------------------------------------------------------------------------------


def test_every_upstream_gets_its_own_row() -> None:
    slots = assign_slots(StatusSlots(), {"eth/mainnet": ["a", "b"], "starknet/mainnet": ["a"]})
    assert slots.networks == {"eth/mainnet": 0, "starknet/mainnet": 1}
    assert slots.upstreams == {"eth/mainnet/a": 0, "eth/mainnet/b": 1, "starknet/mainnet/a": 2}


def test_upstream_keeps_its_row_and_the_row_is_not_reused() -> None:
    before = assign_slots(StatusSlots(), {"eth/a": ["x", "y"], "eth/b": ["z"]})
    after = assign_slots(before, {"eth/b": ["new", "z"], "eth/c": ["x"]})
    assert after.networks == {"eth/a": 0, "eth/b": 1, "eth/c": 2}
    assert after.upstreams == {"eth/a/x": 0, "eth/a/y": 1, "eth/b/z": 2, "eth/b/new": 3, "eth/c/x": 4}
    assert before.upstreams.keys() == {"eth/a/x", "eth/a/y", "eth/b/z"}, "what was handed out is not touched"


@pytest.mark.parametrize(
    "names",
    [
        {f"eth/{number}": ["a"] for number in range(MAX_NETWORKS + 1)},
        {"eth/a": [str(number) for number in range(MAX_UPSTREAMS + 1)]},
    ],
)
def test_more_than_there_are_rows_is_reported_with_what_to_do(names: dict[str, list[str]]) -> None:
    with pytest.raises(ValueError, match="restart the service"):
        assign_slots(StatusSlots(), names)


def test_all_rows_can_be_used() -> None:
    names = {f"eth/{number}": ["a", "b", "c", "d"] for number in range(MAX_NETWORKS)}
    slots = assign_slots(StatusSlots(), names)
    shared_status = SharedStatus(3)
    for row in slots.networks.values():
        shared_status.network(row, 2).observe_head(row)
    for row in slots.upstreams.values():
        shared_status.upstream(row, 2).report(STATS)
        shared_status.upstream(row).publish(State.UP, row)
    assert [shared_status.network(row).shown for row in slots.networks.values()] == list(range(MAX_NETWORKS))
    assert [shared_status.upstream(row).head for row in slots.upstreams.values()] == list(range(MAX_UPSTREAMS))


def test_every_change_of_a_network_or_its_upstreams_begins_another_epoch_of_it_alone() -> None:
    shared_status = SharedStatus(2)
    rows = [shared_status.network(number) for number in range(3)]
    row, upstream = shared_status.network(1, 1), shared_status.upstream(7, 1, network=1)
    changes: list[Callable[[], None]] = [
        lambda: row.publish(7, 5, changed=True),
        lambda: row.publish(7, 5, changed=False),
        row.pulse,
        row.request_probe,
        row.forget_tip,
        lambda: row.publish_reorg(6),
        lambda: row.observe_head(9),
        lambda: upstream.publish(State.UP, NOTHING),
        lambda: upstream.publish(State.DOWN, NOTHING),
        lambda: upstream.observe_head(3),
    ]
    for change in changes:
        before = [each.epoch[0] for each in rows]
        change()
        assert [each.epoch[0] == epoch for each, epoch in zip(rows, before, strict=True)] == [True, False, True]


def test_what_no_choice_depends_on_begins_no_epoch() -> None:
    shared_status = SharedStatus(2)
    row, upstream = shared_status.network(1, 1), shared_status.upstream(7, 1, network=1)
    row.observe_head(9)
    upstream.observe_head(3)
    before = row.epoch[0]
    row.mark_active()
    row.observe_head(9)
    upstream.observe_head(3)
    upstream.report(STATS)
    assert row.epoch[0] == before


@pytest.mark.parametrize(
    "change",
    [lambda row: row.observe_head(9), lambda row: row.publish(9, 5, changed=True)],
    ids=["seen by a worker", "published"],
)
def test_epoch_begins_when_all_is_written(
    change: Callable[[NetworkStatus], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = SharedStatus(1).network(0)
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(upstream_status, "_change", lambda _: seen.append((row.floor, row.version)))
    change(row)
    assert seen[-1] == (row.floor, row.version) == (9, 1)


# --- Networks ----------------------------------------------------------------------------------------------


def test_nothing_is_known_at_first() -> None:
    row, _, _ = rows()
    assert (row.head, row.finalized, row.floor, row.shown, row.seen) == (NOTHING,) * 5
    assert (row.version, row.reorgs, row.probe_requests, row.is_fresh) == (0, 0, 0, False)


def test_what_the_prober_publishes_is_seen_by_all() -> None:
    prober, one, other = rows()
    prober.publish(100, 90, changed=True)
    for row in (one, other):
        assert (row.head, row.finalized, row.floor, row.version) == (100, 90, 100, 1)
    prober.publish(100, 95, changed=False)
    assert (one.finalized, one.version) == (95, 1)
    prober.publish(0, NOTHING, changed=True)
    assert (one.head, one.finalized, one.version) == (0, NOTHING, 2)


def test_memory_is_shared_with_processes_that_are_forked_later() -> None:
    shared_status = SharedStatus(1)
    child = multiprocessing.get_context("fork").Process(
        target=lambda: shared_status.network(3).publish(7, 5, changed=True)
    )
    child.start()
    child.join(30)
    assert child.exitcode == 0
    assert (shared_status.network(3).head, shared_status.network(2).head) == (7, NOTHING)


def test_floor_is_the_highest_that_any_worker_has_shown() -> None:
    prober, one, other = rows()
    prober.publish(100, NOTHING, changed=True)
    one.observe_head(100)
    assert prober.seen == NOTHING, "not above the head"
    one.observe_head(103)
    other.observe_head(101)
    one.observe_head(102)
    for row in (prober, one, other):
        assert (row.floor, row.shown, row.seen, row.head) == (103, 103, 103, 100)
    prober.publish(110, NOTHING, changed=True)
    assert (other.floor, other.shown, prober.seen) == (110, 103, NOTHING)


def test_block_new_to_all_workers_changes_the_version_once() -> None:
    prober, one, other = rows()
    prober.publish(100, NOTHING, changed=True)
    for saw, version in [(one, 2), (one, 2), (other, 2)]:
        saw.observe_head(101)
        assert (one.version, prober.probe_requests) == (version, version - 1)
    other.observe_head(100)
    one.observe_head(99)
    assert one.version == 2
    other.observe_head(102)
    assert one.version == 3


def test_what_was_seen_before_a_reorganisation_does_not_count_after_it() -> None:
    prober, one, other = rows()
    prober.publish(100, NOTHING, changed=True)
    one.observe_head(105)
    prober.publish_reorg(98)
    prober.publish(99, NOTHING, changed=True)
    assert (one.floor, other.floor, prober.seen, prober.shown) == (99, 99, NOTHING, NOTHING)
    other.observe_head(100)
    assert (one.floor, one.shown) == (100, 100)
    one.observe_head(99)
    assert one.shown == 100, "its 105 is gone"
    one.observe_head(107)
    one.observe_head(102)
    assert one.shown == 107
    prober.publish_reorg(NOTHING)
    one.observe_head(0)
    assert one.shown == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50)), max_size=40))
def test_floor_never_goes_down_between_reorganisations(steps: list[tuple[int, int]]) -> None:
    prober, *workers = rows(3)
    floor, version = NOTHING, 0
    for who, number in steps:
        if who == 3:
            prober.publish(max(number, prober.head), NOTHING, changed=number > prober.head)
        else:
            workers[who].observe_head(number)
        assert prober.floor == max(floor, number)
        assert (prober.version > version) is (number > floor) or who == 3
        floor, version = prober.floor, prober.version


def test_probe_request_of_any_worker_changes_the_version() -> None:
    prober, one, other = rows()
    versions = [one.version]
    for row in (one, other, one):
        row.request_probe()
        versions.append(other.version)
    assert versions == [0, 1, 2, 3]
    assert prober.probe_requests == 3
    assert list(prober._probe_requests) == [2, 1], "each in its own column"


def test_network_is_fresh_until_the_prober_stops() -> None:
    clock = Clock(5.0)
    shared_status = SharedStatus(1, clock)
    row = shared_status.network(0)
    row.publish(1, NOTHING, changed=True)
    freshness = []
    for pause in (SILENCE_SECONDS - 0.01, 0.02):
        clock.advance(pause)
        freshness.append(row.is_fresh)
    row.pulse()
    assert [*freshness, row.is_fresh] == [True, False, True]


def test_network_is_fresh_even_at_the_first_moment_of_the_clock() -> None:
    row = SharedStatus(1, Clock(0.0)).network(0)
    freshness = [row.is_fresh]
    row.publish(7, 5, changed=True)
    assert [*freshness, row.is_fresh] == [False, True]
    assert (row.stamp, row.snapshot().believed_until) == ((1, 0, 7, 5), 0.001 + SILENCE_SECONDS)


@pytest.mark.parametrize("workers", [1, 2])
def test_stamp_and_snapshot_are_what_is_known_at_one_look(workers: int) -> None:
    clock = Clock(5.0)
    shared_status = SharedStatus(workers, clock)
    prober, worker = shared_status.network(0), shared_status.network(0, workers - 1)
    assert worker.stamp == (0, 0, NOTHING, NOTHING)
    assert worker.snapshot().believed_until == 0.0
    prober.publish(100, 90, changed=True)
    # The prober sees the row as the first worker does.
    prober.request_probe()
    prober.publish_reorg(95)
    worker.observe_head(102)
    assert worker.stamp == worker.snapshot().stamp == (4, 1, 100, 90)
    found = worker.snapshot()
    assert (found.version, found.reorgs, found.head, found.floor) == (4, 1, 100, 102)
    assert found.believed_until == 5.0 + SILENCE_SECONDS
    clock.advance(SILENCE_SECONDS - 0.001)
    assert worker.stamp == (4, 1, 100, 90)
    clock.advance(0.001)
    assert (worker.is_fresh, worker.stamp) == (False, (4, 1, NOTHING, NOTHING))
    assert worker.snapshot() == found, "as if the prober had written just now"


def test_network_is_wanted_when_a_worker_last_had_callers() -> None:
    clock = Clock(0.0)
    shared_status = SharedStatus(2, clock)
    one, other = shared_status.network(0), shared_status.network(0, 1)
    assert one.active_at == 0.0
    one.mark_active()
    assert one.active_at == 0.001, "0 is never"
    for seconds, row in ((5.0, other), (2.5, one)):
        clock.advance(seconds)
        row.mark_active()
        assert other.active_at == clock()


def test_forgotten_tip_changes_the_version() -> None:
    prober, worker, _ = rows()
    prober.publish(100, 90, changed=True)
    prober.forget_tip()
    assert (worker.version, worker.head) == (2, 100)


# --- Reorganisations ---------------------------------------------------------------------------------------


def test_ancestor_is_the_lowest_of_the_reorganisations_since() -> None:
    prober, worker, _ = rows()
    for ancestor in (90, 95, 80, 99):
        prober.publish_reorg(ancestor)
    assert [worker.ancestor(since) for since in range(4)] == [80, 80, 80, 99]
    assert worker.ancestor(4) > 1 << 60, "none since: everything holds"
    assert worker.version == 4


@pytest.mark.parametrize("missed", [1, 15, 16, 17, 40])
def test_ancestor_is_not_known_where_too_many_were_missed(missed: int) -> None:
    prober, worker, _ = rows()
    for number in range(missed):
        prober.publish_reorg(500 + number)
    assert worker.ancestor(0) == (500 if missed < 16 else NOTHING)


@given(st.lists(st.integers(0, 1_000), max_size=60), st.integers(0, 60))
def test_ancestor_is_right_or_not_known(ancestors: list[int], since: int) -> None:
    prober, worker, _ = rows()
    for ancestor in ancestors:
        prober.publish_reorg(ancestor)
    since = min(since, len(ancestors))
    missed = ancestors[since:]
    found = worker.ancestor(since)
    if not missed:
        assert found > 1_000
    elif len(missed) < 16:
        assert found == min(missed)
    else:
        assert found == NOTHING


# --- Upstreams ---------------------------------------------------------------------------------------------


def test_upstream_is_unknown_at_first_and_then_what_the_prober_reports() -> None:
    shared_status = SharedStatus(2)
    prober, worker = shared_status.upstream(5), shared_status.upstream(5, 1)
    assert (worker.state, worker.head) == (State.UNKNOWN, NOTHING)
    prober.publish(State.LAGGING, 90)
    assert (worker.state, worker.head) == (State.LAGGING, 90)
    assert shared_status.upstream(4).state == shared_status.upstream(6).state == State.UNKNOWN


def test_worker_may_have_seen_a_higher_head_until_the_next_probe() -> None:
    shared_status = SharedStatus(2)
    prober, worker = shared_status.upstream(0), shared_status.upstream(0, 1)
    prober.publish(State.UP, 90)
    worker.observe_head(92)
    worker.observe_head(91)
    assert prober.head == 92
    prober.publish(State.UP, 91)
    assert worker.head == 91


def test_how_calls_fared_is_reported_by_each_worker_in_its_own_column() -> None:
    shared_status = SharedStatus(2)
    shared_status.upstream(1, 1).report(STATS)
    nothing = WorkerStats(0, 0, 0, 0, 0.0, 0)
    assert shared_status.upstream(1).worker_stats() == [nothing, STATS]
    assert shared_status.upstream(0).worker_stats() == shared_status.upstream(2).worker_stats() == [nothing] * 2


def test_ancestor_of_the_last_reorganisation_is_known_after_many() -> None:
    row = rows()[0]
    for number in range(40):
        row.publish_reorg(100 - number)
    assert (row.reorgs, row.ancestor(39), row.ancestor(38)) == (40, 61, 61)


def test_block_next_to_the_head_of_an_upstream_is_seen_and_the_head_itself_is_not_news() -> None:
    shared_status = SharedStatus(1, Clock())
    row, epochs = shared_status.upstream(0), shared_status.network(0).epoch
    row.publish(State.UP, 10)
    before = epochs[0]
    row.observe_head(10)
    assert (row.head, epochs[0]) == (10, before)
    row.observe_head(11)
    assert row.head == 11
    assert epochs[0] != before


def test_upstream_is_seen_by_the_first_worker_where_none_is_named() -> None:
    shared_status = SharedStatus(2, Clock())
    shared_status.upstream(0).report(STATS)
    assert shared_status.upstream(0).worker_stats()[0] == STATS
