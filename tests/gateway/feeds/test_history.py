"""The history of a chain: what is kept of blocks that were reported."""

import pytest

from tollgate.chains.subscriptions import Head, Item
from tollgate.gateway.feeds import history
from tollgate.gateway.feeds.history import BlockHistory


def head(number: int) -> Head:
    return Head(number, f"0x{number}", f"0x{number - 1}", b"x" * 1_000)


def test_what_was_reported_of_a_head_is_not_kept() -> None:
    kept = BlockHistory(head(1))
    kept.push(head(2))
    assert (kept.last.number, kept.last.hash, kept.last.parent, kept.last.result) == (2, "0x2", "0x1", b"")


def test_blocks_are_forgotten_beyond_a_number_and_logs_beyond_a_size() -> None:
    kept = BlockHistory(head(0))
    log = Item("0xa", (), b"x" * (history.MAX_KEPT_BYTES // 10))
    for number in range(1, 2 * history.MAX_KEPT):
        kept.keep(kept.push(head(number)), [log])
    assert kept.last.number - kept.first.number == history.MAX_KEPT - 1
    blocks = kept.cut(kept.first.number)
    assert len(blocks) == history.MAX_KEPT - 1
    assert [block.forgotten for block in blocks].count(False) == 10
    assert [block.forgotten for block in blocks[-10:]] == [False] * 10


def test_history_is_full_when_the_next_block_pushes_one_out() -> None:
    kept = BlockHistory(head(0))
    for number in range(1, history.MAX_KEPT):
        assert not kept.is_full
        kept.push(head(number))
    assert kept.is_full
    kept.push(head(history.MAX_KEPT))
    assert (kept.is_full, kept.first.number) == (True, 1)


def test_logs_are_forgotten_beyond_the_bound_and_not_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MAX_KEPT_BYTES", 10)
    monkeypatch.setattr(history, "MAX_KEPT", 4)
    kept = BlockHistory(head(0))

    def push(size: int) -> history.Kept:
        block = kept.push(head(kept.last.number + 1))
        kept.keep(block, [Item("0xa", (), b"x" * size)])
        return block

    first, second = push(5), push(5)
    assert (first.forgotten, second.forgotten) == (False, False)
    third = push(5)
    assert (first.forgotten, second.forgotten, third.forgotten) == (True, False, False)
    kept.cut(2)
    third = push(5)
    assert not second.forgotten, "what was cut counts no more"
    for number in range(4, 7):
        kept.push(head(number))
    # The second was pushed out; it counts no more either.
    fourth = push(5)
    assert (third.forgotten, fourth.forgotten) == (False, False)


@pytest.mark.parametrize(
    ("first", "replaced", "parent", "looked_at", "ancestor"),
    [
        (5, 8, "0x4", [8], 8),
        (5, 7, "0x4", [8, 7], 7),
        (5, 4, "0x4", [8, 7, 6, 5], 4),
        (5, 4, "another", [8, 7, 6, 5], None),
        (0, 0, "0x-1", [8, 7, 6, 5, 4, 3, 2, 1, 0], 0),
        (0, -1, "0x-1", [8, 7, 6, 5, 4, 3, 2, 1, 0], -1),
        (0, -1, "another", [8, 7, 6, 5, 4, 3, 2, 1, 0], None),
        (-1, -1, "0x-1", [8, 7, 6, 5, 4, 3, 2, 1, 0], -1),
    ],
)
def test_newest_block_in_place_is_looked_for_down_to_the_parent_of_the_first(
    first: int, replaced: int, parent: str, looked_at: list[int], ancestor: int | None
) -> None:
    """All blocks above `replaced` are others now; the lowest that is looked at has this parent."""
    kept = BlockHistory(head(first))
    for number in range(first + 1, 9):
        kept.push(head(number))
    search, seen, found = kept.ancestor(20), [], -2
    try:
        number = next(search)
        while True:
            seen.append(number)
            above = parent if number == max(first, 0) else f"other{number - 1}"
            number = search.send(head(number) if number <= replaced else Head(number, f"other{number}", above))
    except StopIteration as stop:
        found = stop.value
    assert (seen, found) == (looked_at, ancestor)


def test_parent_of_the_first_block_stays_when_all_are_cut() -> None:
    kept = BlockHistory(head(5))
    kept.push(head(6))
    assert [block.head.number for block in kept.cut(4)] == [5, 6]
    assert kept.first is kept.last
    assert kept.last == Head(4, "0x4", "")
    assert kept.is_next(head(5))
