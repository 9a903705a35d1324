"""Limits of which a node has a part, as one worker takes out of them again and again."""

from pathlib import Path

import pytest

from tollgate.core.limits import Limit
from tollgate.shm.leases import LeasedMeters, LeasedRows

LIMIT = Limit(10, 1.0)


@pytest.fixture(params=[1, 3])
def meters(request: pytest.FixtureRequest, tmp_path: Path) -> LeasedMeters:
    return LeasedMeters(64, request.param, tmp_path / "lock", b"pepper")


def taken(meters: LeasedMeters, rows: LeasedRows, now: float) -> int:
    """Take until it is refused; how many were let in."""
    count = 0
    while meters.take_all(rows, now) is not None:
        count += 1
    return count


def test_same_rows_follow_a_lease_at_once(meters: LeasedMeters) -> None:
    rows = meters.rows([("a", LIMIT)], 100.0)
    assert taken(meters, rows, 100.0) == 10
    meters.lease(rows[0][0], 0.5, None, 200.0)
    assert taken(meters, rows, 200.0) == 5
    meters.unlease(rows[0][0])
    meters.divide(0.2)
    assert taken(meters, rows, 300.0) == 2
    meters.alone()
    assert taken(meters, rows, 400.0) == 10


def test_same_rows_follow_a_backlog_that_the_keeper_wrote(meters: LeasedMeters) -> None:
    rows = meters.rows([("a", LIMIT)], 100.0)
    assert meters.take_all(rows, 100.0) is not None
    meters.lease(rows[0][0], 1.0, 0.7, 100.0)
    assert taken(meters, rows, 100.0) == 3
    meters.lease(rows[0][0], 1.0, 0.0, 100.0)
    assert taken(meters, rows, 100.0) == 10


def test_refused_request_takes_from_none_of_its_limits(meters: LeasedMeters) -> None:
    wide, narrow = ("a", Limit(100, 1.0)), ("b", Limit(2, 1.0))
    assert taken(meters, meters.rows([wide, narrow], 100.0), 100.0) == 2
    assert taken(meters, meters.rows([wide], 100.0), 100.0) == 98


def test_keeper_reads_all_that_was_taken(meters: LeasedMeters) -> None:
    rows = meters.rows([("a", LIMIT)], 100.0)
    others = meters.rows([("a", LIMIT)], 100.0)
    for _ in range(3):
        assert meters.take_all(rows, 100.0) is not None
        assert meters.take_all(others, 100.0, 1) is not None
    assert meters.read(rows[0][0], 100.0).used == pytest.approx(0.6)
    assert list(meters.backlogged(100.0)) == [rows[0][0]]
    assert list(meters.backlogged(100.0)) == []


def test_rows_that_another_limit_was_given_are_refused(tmp_path: Path) -> None:
    meters = LeasedMeters(8, 1, tmp_path / "lock", b"pepper")
    rows = meters.rows([("a", LIMIT)], 100.0)
    assert meters.take_all(rows, 100.0) is not None
    for number in range(200):
        assert meters.take_all(meters.rows([(f"other {number}", LIMIT)], 300.0), 300.0) is not None
    assert meters.take_all(rows, 300.0) is None
