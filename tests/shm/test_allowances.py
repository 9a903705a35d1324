"""What teams may still call: taken by several workers, granted and settled by the collector."""

from pathlib import Path

import pytest

from tollgate.shm.allowances import FIRST_CALLS, Allowance, Allowances
from tollgate.shm.limits import WAYS


@pytest.fixture
def table(tmp_path: Path) -> Allowances:
    return Allowances(1_024, 1, tmp_path / "allowances.lock")


def of(table: Allowances, team: str) -> Allowance:
    found = table.of(team)
    assert found is not None
    return found


def taken(allowance: Allowance, calls: int = 10_000) -> int:
    """How many calls it takes before it refuses."""
    return next((count for count in range(calls) if not allowance.take()), calls)


def test_new_team_has_a_few_calls_until_the_collector_grants_more(table: Allowances) -> None:
    acme = of(table, "team_1")
    assert taken(acme) == FIRST_CALLS
    assert acme.is_short
    table.grant("team_1", 150)
    assert taken(acme) == 50
    assert not acme.is_short


def test_calls_under_way_are_part_of_the_grant_however_late_they_are_recorded(table: Allowances) -> None:
    acme = of(table, "team_1")
    table.grant("team_1", 10)
    assert taken(acme) == 10
    table.grant("team_1", 10)
    assert taken(acme) == 0, "the ledger has not seen them yet"
    table.record("team_1", 4)
    table.grant("team_1", 6)
    assert taken(acme) == 0, "four were charged, and six are under way"
    table.record("team_1", 6)
    table.grant("team_1", 3)
    assert taken(acme) == 3, "the cap was raised"


def test_call_that_is_not_charged_is_given_back(table: Allowances) -> None:
    acme = of(table, "team_1")
    table.grant("team_1", 5)
    assert acme.take(5)
    assert not acme.take()
    acme.give_back(2)
    assert taken(acme) == 2


def test_batch_is_taken_whole_or_not_at_all(table: Allowances) -> None:
    acme = of(table, "team_1")
    table.grant("team_1", 5)
    assert not acme.take(6)
    assert acme.take(5)


def test_more_records_than_were_taken_grant_nothing(table: Allowances) -> None:
    """Those of an earlier service are in the spool when a new one starts."""
    acme = of(table, "team_1")
    assert acme.take(3)
    table.record("team_1", 1_000)
    assert table.unrecorded("team_1") == (3, 0)
    table.grant("team_1", 7)
    assert taken(acme) == 7


def test_calls_that_were_lost_with_their_worker_are_settled(table: Allowances) -> None:
    acme = of(table, "team_1")
    table.grant("team_1", 5)
    assert acme.take(5)
    table.settle("team_1")
    table.grant("team_1", 5)
    assert taken(acme) == 5


def test_workers_take_from_one_allowance(tmp_path: Path) -> None:
    table = Allowances(1_024, 3, tmp_path / "allowances.lock")
    table.grant("team_1", 9)
    for worker in range(3):
        table.attach(worker)
        assert of(table, "team_1").take(3)
    for worker in range(3):
        table.attach(worker)
        assert not of(table, "team_1").take()
    assert table.unrecorded("team_1") == (9, 9)


def test_teams_do_not_share_an_allowance(table: Allowances) -> None:
    table.grant("team_1", 1)
    table.grant("team_2", 2)
    assert (taken(of(table, "team_1")), taken(of(table, "team_2"))) == (1, 2)


def test_slot_of_a_team_without_a_cap_is_freed_and_its_holders_notice(table: Allowances) -> None:
    acme = of(table, "team_1")
    table.grant("team_1", 3)
    table.keep({"team_2"})
    assert taken(acme) == FIRST_CALLS, "a slot of its own again"
    acme.give_back(1)
    assert taken(acme) == 1


def test_team_without_a_slot_is_stopped_by_its_flag_alone(tmp_path: Path) -> None:
    table = Allowances(WAYS, 1, tmp_path / "allowances.lock")
    for number in range(WAYS):
        table.grant(f"team_{number}", 1)
    assert table.of("team_more") is None
    assert table.unrecorded("team_more") == (0, 0)
    table.grant("team_more", 1)
    table.record("team_more", 1)
    table.settle("team_more")
    acme = of(table, "team_0")
    table.keep(set())
    for number in range(WAYS):
        assert table.of(f"other_{number}") is not None
    assert acme.take(1_000), "its slot is another team's by now, and there is none left"
