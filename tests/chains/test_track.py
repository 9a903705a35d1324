"""The newest blocks of a network: which of them form the chain, and what a new one changes."""

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tollgate.chains.heads import Block
from tollgate.chains.track import DEPTH, Change, Seen, Track


def chain(text: str, start: int = 1, parent: str = "") -> list[Block]:
    """Blocks one upon the other, each named by its number and a letter: `aab` is 1a, 2a, 3b."""
    blocks = []
    for number, letter in enumerate(text, start):
        parent = parent or f"{number - 1}a"
        blocks.append(Block(number, f"{number}{letter}", parent))
        parent = blocks[-1].hash
    return blocks


def tracked(blocks: list[Block]) -> Track:
    track = Track()
    for block in blocks:
        track.add(block)
    return track


def test_first_block_is_the_head() -> None:
    track = Track()
    assert track.head is None
    assert track.since(-1) == []
    assert track.add(Block(5, "5a", "4a")) == Seen(Change.HEAD, 4)
    assert track.head == Block(5, "5a", "4a")


def test_block_upon_the_head_is_the_new_head() -> None:
    track = tracked(chain("aaa"))
    assert track.add(Block(4, "4a", "3a")) == Seen(Change.HEAD, 3)
    assert [block.hash for block in track.since(2)] == ["3a", "4a"]
    assert track.block(2) == Block(2, "2a", "1a")


def test_block_that_is_known_changes_nothing() -> None:
    track = tracked(chain("aaa"))
    for block in chain("aaa"):
        assert track.add(block) == Seen(Change.KNOWN)
    assert track.head == Block(3, "3a", "2a")


def test_branch_of_the_same_height_changes_nothing_until_it_is_longer() -> None:
    track = tracked(chain("aaa"))
    assert track.add(Block(3, "3b", "2a")).change is Change.KNOWN
    assert track.head == Block(3, "3a", "2a")
    assert track.add(Block(4, "4b", "3b")) == Seen(Change.REORG, 2, (Block(3, "3a", "2a"),))
    assert [block.hash for block in track.since(0)] == ["1a", "2a", "3b", "4b"]


def test_chain_can_go_back_to_what_it_left() -> None:
    track = tracked(chain("aaa"))
    for block in [*chain("b", 3, "2a"), Block(4, "4b", "3b")]:
        track.add(block)
    assert track.add(Block(4, "4a", "3a")).change is Change.KNOWN
    seen = track.add(Block(5, "5a", "4a"))
    assert (seen.change, seen.ancestor, [block.hash for block in seen.gone]) == (Change.REORG, 2, ["4b", "3b"])
    assert [block.hash for block in track.since(2)] == ["3a", "4a", "5a"]


def test_gap_is_filled_from_above_by_hash() -> None:
    track = tracked(chain("aaa"))
    later = chain("aaaa", 4)
    assert track.add(later[3]) == Seen(Change.GAP, missing="6a", number=6)
    assert track.add(later[2]) == Seen(Change.GAP, missing="5a", number=5)
    assert track.add(later[1]) == Seen(Change.GAP, missing="4a", number=4)
    assert track.add(later[0]) == Seen(Change.HEAD, 3)
    assert track.head == later[3]
    assert len(track.since(3)) == 4


def test_gap_below_a_reorganisation_is_filled_down_to_the_ancestor() -> None:
    track = tracked(chain("aaaaa"))
    other = chain("bbbbb", 3, "2a")
    assert track.add(other[4]) == Seen(Change.GAP, missing="6b", number=6)
    for block in (other[3], other[2], other[1]):
        assert track.add(block).change is Change.GAP
    seen = track.add(other[0])
    assert (seen.change, seen.ancestor, [block.hash for block in seen.gone]) == (
        Change.REORG,
        2,
        ["5a", "4a", "3a"],
    )


def test_ancestor_may_be_the_block_below_the_oldest_known() -> None:
    track = tracked([Block(10, "10a", "9a")])
    track.add(Block(10, "10b", "9a"))
    assert track.add(Block(11, "11b", "10b")) == Seen(Change.REORG, 9, (Block(10, "10a", "9a"),))


def test_older_blocks_lengthen_the_chain_at_its_lower_end() -> None:
    track = tracked([Block(10, "10a", "9a")])
    assert track.add(Block(9, "9a", "8a")) == Seen(Change.KNOWN)
    assert track.block(9) == Block(9, "9a", "8a")
    # A branch from further below now fits.
    assert track.add(Block(11, "11b", "10b")).change is Change.GAP
    assert track.add(Block(10, "10b", "9b")).change is Change.GAP
    assert track.add(Block(9, "9b", "8a")).ancestor == 8


def test_branch_that_waited_fits_when_an_older_block_is_known() -> None:
    track = tracked([Block(10, "10a", "9a")])
    for block in (Block(11, "11b", "10b"), Block(10, "10b", "9b"), Block(9, "9b", "8a")):
        assert track.add(block).change is Change.GAP
    seen = track.add(Block(9, "9a", "8a"))
    assert (seen.change, seen.ancestor) == (Change.REORG, 8)


def test_block_that_lies_about_its_number_does_not_fit() -> None:
    track = tracked(chain("aaa"))
    assert track.add(Block(9, "9x", "3a")).change is Change.GAP
    assert track.head == Block(3, "3a", "2a")
    track.add(Block(4, "4a", "3a"))
    assert track.head == Block(4, "4a", "3a")


# --- When the caller knows better ---------------------------------------------------------------------------


def test_shorter_chain_is_adopted_when_the_caller_says_so() -> None:
    track = tracked(chain("aaaaa"))
    seen = track.adopt(Block(3, "3a", "2a"))
    assert (seen.change, seen.ancestor, [block.hash for block in seen.gone]) == (Change.REORG, 3, ["5a", "4a"])
    assert track.head == Block(3, "3a", "2a")
    # What was left behind is forgotten, and does not win by its height.
    assert track.add(Block(4, "4b", "3a")) == Seen(Change.HEAD, 3)


def test_branch_of_the_same_height_is_adopted() -> None:
    track = tracked(chain("aaaaa"))
    seen = track.adopt(Block(5, "5b", "4a"))
    assert (seen.change, seen.ancestor, [block.hash for block in seen.gone]) == (Change.REORG, 4, ["5a"])
    assert track.adopt(Block(5, "5b", "4a")) == Seen(Change.KNOWN)


def test_lower_branch_is_adopted_after_its_gap_is_filled() -> None:
    track = tracked(chain("aaaaa"))
    tip = Block(4, "4b", "3b")
    assert track.adopt(tip) == Seen(Change.GAP, missing="3b", number=3)
    track.add(Block(3, "3b", "2a"))
    assert track.adopt(tip).ancestor == 2
    assert track.head == tip


def test_first_block_can_be_adopted() -> None:
    track = Track()
    assert track.adopt(Block(5, "5a", "4a")).change is Change.HEAD


def test_restart_forgets_everything() -> None:
    track = tracked(chain("aaaaa"))
    track.restart(Block(90, "90z", "89z"))
    assert (track.head, len(track)) == (Block(90, "90z", "89z"), 1)
    assert track.block(3) is None


# --- Bounds -------------------------------------------------------------------------------------------------


def test_long_chain_is_forgotten_at_its_lower_end() -> None:
    track = tracked(chain("a" * (3 * DEPTH)))
    assert len(track) == DEPTH
    assert track.block(2 * DEPTH) is None
    assert track.block(2 * DEPTH + 1) is not None
    assert len(track.since(0)) == DEPTH
    assert track.add(Block(5, "5b", "4a")) == Seen(Change.KNOWN)
    assert len(track) == DEPTH


def test_blocks_that_never_fit_do_not_pile_up() -> None:
    track = tracked(chain("aaa"))
    for number in range(10, 2_000):
        assert track.add(Block(number, f"{number}x", f"{number}y")).change is Change.GAP
    assert len(track) <= 3 + DEPTH


@pytest.mark.parametrize("seed", range(5))
def test_forks_without_end_do_not_pile_up(seed: int) -> None:
    dice, track = random.Random(seed), Track(depth=16)
    blocks = [Block(0, "0", "")]
    for count in range(3_000):
        parent = dice.choice(blocks[-8:])
        blocks.append(Block(parent.number + 1, f"{count}#", parent.hash))
        track.add(blocks[-1])
        assert len(track) <= 2 * 16
        assert track.head is not None
        known = track.since(-1)
        assert known[-1] == track.head
        assert all(lower.hash == upper.parent for lower, upper in pairwise(known))


# --- Against a model that remembers everything --------------------------------------------------------------


class Model:
    """The same rule, said once more without bounds: the highest block that reaches the chain is the head."""

    def __init__(self, first: Block) -> None:
        self.blocks = {first.hash: first}
        self.order = [first]
        self.head = first

    def line(self, tip: Block) -> list[Block]:
        """A block and all that is known below it, the newest first."""
        line = [tip]
        while line[-1].parent in self.blocks:
            line.append(self.blocks[line[-1].parent])
        return line

    def meeting(self, tip: Block) -> int | None:
        """The newest block that this one's line and the chain have in common."""
        mine = {block.hash for block in self.line(self.head)} | {self.line(self.head)[-1].parent}
        for block in self.line(tip):
            if block.hash in mine:
                return block.number
            if block.parent in mine:
                return block.number - 1
        return None

    def add(self, block: Block) -> Seen:
        if block.hash in self.blocks:
            return Seen(Change.KNOWN)
        self.blocks[block.hash] = block
        self.order.append(block)
        longer = [other for other in self.order if other.number > self.head.number]
        for tip in sorted(longer, key=lambda other: -other.number):
            ancestor = self.meeting(tip)
            if ancestor is not None:
                gone = tuple(other for other in self.line(self.head) if other.number > ancestor)
                self.head = tip
                return Seen(Change.REORG if gone else Change.HEAD, ancestor, gone)
        for tip in sorted(longer, key=lambda other: -other.number):
            line = self.line(tip)
            if block in line:
                return Seen(Change.GAP, missing=line[-1].parent, number=line[-1].number - 1)
        return Seen(Change.KNOWN)


@st.composite
def histories(draw: st.DrawFn) -> list[Block]:
    """Blocks of a chain with branches, in any order, some of them more than once."""
    blocks = [Block(100, "genesis", "before")]
    for count in range(draw(st.integers(1, 25))):
        parent = blocks[draw(st.integers(max(0, len(blocks) - 6), len(blocks) - 1))]
        blocks.append(Block(parent.number + 1, f"{parent.number + 1}-{count}", parent.hash))
    order = draw(st.permutations(blocks))
    return order + draw(st.lists(st.sampled_from(blocks), max_size=5))


@settings(max_examples=300, deadline=None)
@given(histories())
def test_track_agrees_with_the_model_in_any_order(history: list[Block]) -> None:
    track, model = Track(), Model(history[0])
    track.add(history[0])
    for block in history[1:]:
        expected = model.add(block)
        assert track.add(block) == expected
        assert track.head == model.head
        known = track.since(-1)
        assert all(lower.hash == upper.parent for lower, upper in pairwise(known))
        assert [each.hash for each in known] == [each.hash for each in reversed(model.line(model.head))]


@settings(max_examples=200, deadline=None)
@given(histories(), st.integers(2, 6))
def test_small_track_stays_small_and_whole(history: list[Block], depth: int) -> None:
    track = Track(depth)
    for block in history:
        before = track.head
        seen = track.add(block)
        assert len(track) <= 2 * depth
        known = track.since(-1)
        assert known[-1] == track.head
        assert all(lower.hash == upper.parent for lower, upper in pairwise(known))
        if seen.change in {Change.KNOWN, Change.GAP}:
            assert track.head == before
        elif before is not None:
            assert track.head is not None
            assert track.head.number > before.number


@settings(max_examples=300, deadline=None)
@given(histories(), st.data())
def test_whoever_fills_gaps_arrives_at_the_highest_block(history: list[Block], data: st.DataObject) -> None:
    by_hash = {block.hash: block for block in history}
    track = Track()
    track.add(by_hash["genesis"])
    tip = max(history, key=lambda block: block.number)
    seen = track.add(tip)
    for _ in range(64):
        if seen.change is not Change.GAP:
            break
        seen = track.add(by_hash[seen.missing])
    assert track.head == tip
    adopted = data.draw(st.sampled_from(history))
    for _ in range(64):
        seen = track.adopt(adopted)
        if seen.change is not Change.GAP:
            break
        track.add(by_hash[seen.missing])
    assert track.head == adopted
