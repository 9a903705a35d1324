"""How calls fared over the last minute."""

from __future__ import annotations

from tollgate.core.upstreams import Tally


def test_the_first_look_is_where_counting_begins() -> None:
    tally = Tally()
    tally.note([(1_000, 500), (10, 0)], 0.0)
    assert (tally.calls, tally.error_rate) == (0, None)


def test_all_workers_are_added_up() -> None:
    tally = Tally()
    tally.note([(0, 0), (10, 0)], 0.0)
    tally.note([(3, 1), (15, 1)], 1.0)
    assert (tally.calls, tally.failures, tally.error_rate) == (8, 2, 0.25)


def test_what_is_older_than_a_minute_is_forgotten() -> None:
    tally = Tally()
    tally.note([(0, 0)], 0.0)
    tally.note([(10, 10)], 1.0)
    for second in range(2, 61):
        tally.note([(20, 10)], float(second))
    assert (tally.calls, tally.error_rate) == (20, 0.5)
    tally.note([(20, 10)], 61.0)
    assert (tally.calls, tally.error_rate) == (10, 0.0)
    tally.note([(20, 10)], 62.0)
    assert (tally.calls, tally.error_rate) == (0, None)


def test_a_worker_that_was_replaced_counts_from_nothing() -> None:
    tally = Tally()
    tally.note([(100, 50)], 0.0)
    tally.note([(4, 1)], 1.0)
    assert (tally.calls, tally.failures) == (4, 1)


def test_a_failure_counted_before_its_call_is_no_more_than_everything() -> None:
    tally = Tally()
    tally.note([(1, 0)], 0.0)
    tally.note([(2, 5)], 1.0)
    assert tally.error_rate == 1.0
