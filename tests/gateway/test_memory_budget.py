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
    assert (budget.held, budget._of_address) == (part, {"b": part})
    assert budget.hold(100 - part, "a"), "who holds nothing may have one body of any size"


def test_nothing_given_back_leaves_what_an_address_holds() -> None:
    budget = Budget(100)
    budget.free(0, "a")
    assert budget.hold(5, "a")
    budget.free(2, "a")
    assert budget._of_address == {"a": 3}


def test_body_counts_until_nobody_holds_it() -> None:
    budget = Budget(100)
    assert budget.hold(7)
    body = CountedBody.of(b"content", budget, 7)
    same = body
    del body
    assert (same, budget.held) == (b"content", 7)
    del same
    assert budget.held == 0
