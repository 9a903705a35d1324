"""Lists of every backend: pages in order of creation, from a position on, in both directions."""

from typing import Any

import pytest
from tests.contract.backends import Store

from tollgate.core.cursors import Position
from tollgate.core.people import AuditEntry

MADE = [(3.0, "d"), (1.0, "c"), (2.0, "x"), (2.0, "b"), (2.0, "a"), (2.0, "B"), (1.0, "e"), (2.5, "aa")]
IN_ORDER = sorted(MADE)


async def fill_audit(store: Store, made: list[tuple[float, str]], team_id: str = "team_1") -> None:
    async with store.changing() as records:
        for created_at, row_id in made:
            await records.audit.add(AuditEntry(row_id, created_at, "a", "operator", team_id=team_id, chain=row_id))


async def walk(store: Store, size: int, *, newest_first: bool, **where: Any) -> list[tuple[float, str]]:
    """Read a list page by page, each in a transaction of its own."""
    seen: list[tuple[float, str]] = []
    after = None
    while len(seen) <= 100:
        async with store.reading() as records:
            page = await records.audit.page(size, after, newest_first=newest_first, **where)
        assert len(page) <= size
        if not page:
            return seen
        seen += [(entry.created_at, entry.id) for entry in page]
        after = Position(page[-1].created_at, page[-1].id)
    raise AssertionError("the pages do not end")


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 9, 1_000])
async def test_pages_give_every_row_once_and_in_order_also_with_equal_times(
    size: int, newest_first: bool, store: Store
) -> None:
    await fill_audit(store, MADE)
    await fill_audit(store, [(1.5, "other 1"), (2.0, "other 2")], team_id="team_2")
    expected = IN_ORDER[::-1] if newest_first else IN_ORDER
    assert await walk(store, size, newest_first=newest_first, team_id="team_1") == expected
    assert len(await walk(store, size, newest_first=newest_first)) == len(MADE) + 2


async def test_page_goes_on_after_a_row_that_was_removed(store: Store) -> None:
    await fill_audit(store, MADE)
    place = IN_ORDER[3]
    async with store.changing() as records:
        assert await records.audit.remove(id=place[1]) == 1
        older = await records.audit.page(100, Position(*place), newest_first=True)
        younger = await records.audit.page(100, Position(*place))
    assert [(entry.created_at, entry.id) for entry in older] == IN_ORDER[:3][::-1]
    assert [(entry.created_at, entry.id) for entry in younger] == IN_ORDER[4:]


async def test_rows_that_are_added_between_pages_come_last_or_not_at_all(store: Store) -> None:
    await fill_audit(store, MADE)
    half = Position(*IN_ORDER[4])
    await fill_audit(store, [(9.0, "new")])
    async with store.reading() as records:
        younger = await records.audit.page(100, half)
        older = await records.audit.page(100, half, newest_first=True)
    assert [entry.id for entry in younger] == [row_id for _, row_id in IN_ORDER[5:]] + ["new"]
    assert [entry.id for entry in older] == [row_id for _, row_id in IN_ORDER[:4]][::-1]


@pytest.mark.parametrize(
    ("place", "older"), [(Position(-1e308, ""), 0), (Position(1e308, ""), 8), (Position(2.0, "\x00é'"), 2)]
)
async def test_page_after_any_cursor_is_answered(place: Position, older: int, store: Store) -> None:
    await fill_audit(store, MADE)
    async with store.reading() as records:
        assert len(await records.audit.page(100, place, newest_first=True)) == older
        assert len(await records.audit.page(100, place)) == len(MADE) - older


async def test_numbered_rows_come_in_the_order_of_their_numbers_whatever_the_clock_showed(store: Store) -> None:
    async with store.changing() as records:
        for chain, number, created_at in (("a", 2, 1.0), ("b", 1, 2.0), ("a", 1, 3.0), ("a", 3, 0.5)):
            await records.audit.add(
                AuditEntry(f"{chain}{number}", created_at, "a", "operator", chain=chain, number=number)
            )
    async with store.reading() as records:
        assert [row.number for row in await records.audit.numbered(0, 9, chain="a")] == [1, 2, 3]
        assert [row.number for row in await records.audit.numbered(1, 1, chain="a")] == [2]
        assert await records.audit.numbered(3, 9, chain="a") == []


async def test_rows_are_filtered_by_time_of_creation(store: Store) -> None:
    await fill_audit(store, MADE)
    made = [each for each in IN_ORDER if 2.0 <= each[0] < 3.0]
    assert await walk(store, 2, newest_first=False, made_since=2.0, made_before=3.0) == made
    assert await walk(store, 2, newest_first=True, made_since=2.0, made_before=3.0) == made[::-1]
