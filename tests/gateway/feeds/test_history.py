"""The history of a chain: what is kept of blocks that were reported."""

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
