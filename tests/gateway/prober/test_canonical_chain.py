"""The network's chain, fed with the hashes of upstreams."""

from __future__ import annotations

import pytest

from tollgate.core.branches import UpstreamChain
from tollgate.gateway.prober.head_follower import DEPTH, CanonicalChain


def chain(word: str, known: int = 1) -> UpstreamChain:
    """A chain of which so many blocks are known."""
    made = UpstreamChain()
    tip = len(word) - 1
    made.add(tip, word, word[:-1])
    for number in range(tip - 1, max(0, tip - known), -1):
        assert made.fill(number, word[: number + 1], word[:number])
    return made


def trunk(word: str, known: int = 100) -> CanonicalChain:
    made = CanonicalChain()
    made.begin(chain(word, known))
    return made


def known(made: CanonicalChain) -> list[str]:
    """All hashes that it knows, the newest first."""
    hashes = []
    number = made.head
    while (found := made.hash_of(number)) is not None:
        hashes.append(found)
        number -= 1
    return hashes


def test_nothing_is_known_at_first() -> None:
    made = CanonicalChain()
    assert (made.head, made.tip, made.lowest, made.hash_of(0), made.hash_of(-1)) == (-1, "", -1, None, None)


def test_the_first_block_shows_its_parent_too() -> None:
    assert known(trunk("abcd", 1)) == ["abcd", "abc"]


def test_it_begins_at_the_first_block_of_all() -> None:
    made = trunk("a")
    assert (made.head, made.lowest, known(made)) == (0, 0, ["a"])


@pytest.mark.parametrize(
    ("of", "ancestor", "hashes"),
    [
        ("abcd", 2, ["abcd", "abc", "ab", "a"]),
        ("abcde", 2, ["abcde", "abcd", "abc", "ab", "a"]),
        ("abx", 1, ["abx", "ab", "a"]),
        ("axyz", 0, ["axyz", "axy", "ax", "a"]),
        ("ax", 0, ["ax", "a"]),
    ],
)
def test_it_follows_from_the_ancestor(of: str, ancestor: int, hashes: list[str]) -> None:
    made = trunk("abc")
    made.follow(chain(of, 10), ancestor)
    assert known(made) == hashes


def test_over_a_hole_it_begins_anew() -> None:
    made = trunk("abc")
    made.follow(chain("abcdefghij", 2), 2)
    assert known(made) == ["abcdefghij", "abcdefghi", "abcdefgh"]
    assert made.hash_of(2) is None, "nothing below the hole is kept"


def test_a_branch_that_reaches_nothing_known_begins_anew() -> None:
    made = trunk("abcdefgh", 2)
    made.follow(chain("xxxxxxxx", 4), 3)
    assert (made.tip, len(known(made))) == ("xxxxxxxx", 5)


def test_cut_leaves_what_is_below() -> None:
    made = trunk("abcdef")
    assert made.cut(2)
    assert known(made) == ["abc", "ab", "a"]
    made = trunk("abcdef", 2)
    assert [made.cut(number) for number in (6, 5, 4, 3)] == [False, True, True, False]
    assert known(made) == ["abcde", "abcd"], "the parent of the oldest is known, but is none of them"


def test_a_block_that_was_cut_off_can_come_again() -> None:
    made = trunk("abcdef")
    made.cut(2)
    made.follow(chain("abcd"), 2)
    made.follow(chain("abcdef", 3), 3)
    assert known(made) == ["abcdef", "abcde", "abcd", "abc", "ab", "a"]


def test_older_blocks_are_taken_over_where_they_are_the_same() -> None:
    made = trunk("abcdefgh", 1)
    made.know(chain("axxxxxxx", 7))
    assert made.lowest == 7
    made.know(chain("abcdefgh", 4))
    assert made.lowest == 4
    made.know(chain("abcdefgh", 7))
    assert known(made)[-1] == "a"


def test_it_is_bounded() -> None:
    made, one = CanonicalChain(), UpstreamChain()
    one.add(0, "0", "")
    made.begin(one)
    for number in range(1, 1_000):
        one.add(number, str(number), str(number - 1))
        made.follow(one, number - 1)
    assert len(known(made)) == DEPTH + 1
