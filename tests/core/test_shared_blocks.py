"""Parts of a team that become one block: until there are enough rows, and as long as they follow each other."""

from __future__ import annotations

from typing import Any

import pytest

from tollgate.core.blocks import ENOUGH_ROWS, Run
from tollgate.core.shared_blocks import Part, _groups


def parts(*rows: tuple[int, int]) -> list[Any]:
    """Parts by the number of their first row, and how many there are."""
    return [(Part(first, Run(count, "2026-11", 0), 0, count), None) for first, count in rows]


def grouped(*rows: tuple[int, int]) -> list[list[int]]:
    return [[part.first_no for part, _ in group] for group in _groups(parts(*rows))]


def test_nothing_is_no_group() -> None:
    assert grouped() == []


def test_parts_that_do_not_follow_each_other_are_apart() -> None:
    assert grouped((0, 5), (5, 5), (11, 5), (16, 5)) == [[0, 5], [11, 16]]


@pytest.mark.parametrize(("first", "groups"), [(ENOUGH_ROWS - 1, 1), (ENOUGH_ROWS, 2)])
def test_every_group_goes_on_until_it_has_enough_rows(first: int, groups: int) -> None:
    for before in ((), ((0, ENOUGH_ROWS),)):
        start = sum(count for _, count in before)
        found = grouped(*before, (start, first), (start + first, 3))
        assert len(found) == groups + len(before)
