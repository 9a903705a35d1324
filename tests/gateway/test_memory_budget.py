"""The bound on bytes that are held at once, and the part of it that one address may have."""

from __future__ import annotations

import pytest

from tollgate.gateway.memory_budget import ADDRESS_PART, Budget, CountedBody


def test_as_much_is_held_as_there_is_room_for() -> None:
    budget = Budget(100)
    assert [budget.hold(60), budget.hold(41), budget.hold(40), budget.hold(1)] == [True, False, True, False]
    assert budget.held == 100
    budget.free(60)
    assert budget.held == 40


@pytest.mark.parametrize(("least_part", "part"), [(0, 100 // ADDRESS_PART), (40, 40)])
def test_address_has_its_part_and_at_least_one_whole_body(least_part: int, part: int) -> None:
    budget = Budget(100, least_part)
    assert budget.hold(1, "a")
    assert not budget.hold(part, "a")
    assert budget.hold(part - 1, "a")
    assert not budget.hold(1, "a")
    assert budget.hold(part, "b"), "others have theirs"
    budget.free(part, "a")
    assert (budget.held, budget._shares._held) == (part, {"b": part})
    assert budget.hold(100 - part, "a"), "who holds nothing may have one body of any size"


def test_network_has_its_part_whatever_addresses_it_has() -> None:
    budget = Budget(100)
    names = [f"2001:db8:0:{number}::/64" for number in range(3)]
    assert [budget.hold(20, name) for name in names] == [True, True, False]
    assert budget.hold(20, "192.0.2.1"), "others have theirs"
    for name in names[:2]:
        budget.free(20, name)
    assert budget._shares._held == {"192.0.2.1": 20, "192.0.2.0/24": 20}


def test_nothing_given_back_leaves_what_an_address_holds() -> None:
    budget = Budget(100)
    budget.free(0, "a")
    assert budget.hold(5, "a")
    budget.free(2, "a")
    assert budget._shares._held == {"a": 3}


def test_body_counts_until_it_is_released() -> None:
    budget = Budget(100)
    assert budget.hold(7)
    body = CountedBody.of(b"content", budget, 7)
    same = body
    del body
    assert (same, budget.held) == (b"content", 7)
    del same
    assert budget.held == 0
