"""Which chain a network follows: chains are strings, a letter for each block."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollgate.core import branches
from tollgate.core.branches import (
    DEEP,
    MAX_MISSING,
    REMEMBERED,
    Claim,
    HashOf,
    UpstreamChain,
    choose,
    claim,
    missing,
)


def digest(word: str, number: int) -> str:
    """A block's hash: all that leads to it."""
    return word[: number + 1]


def chain(word: str, known: int = 100) -> UpstreamChain:
    """A chain whose newest blocks are known."""
    made = UpstreamChain()
    tip = len(word) - 1
    made.add(tip, word, word[:-1])
    for number in range(tip - 1, max(0, tip - known), -1):
        assert made.fill(number, digest(word, number), digest(word, number - 1))
    return made


def trunk(word: str, lowest: int = 0) -> HashOf:
    """What is known of the network's chain."""
    return {number: digest(word, number) for number in range(lowest, len(word))}.get


def claimed(of: str, network: str, name: str = "a") -> Claim:
    return claim(name, trunk(network), len(network) - 1, chain(of))


# ---- hashes of one upstream


def test_a_chain_begins_with_a_block_that_has_no_parent() -> None:
    made = UpstreamChain()
    assert (made.tip, made.hashes) == (-1, {})
    made.add(0, "a", "")
    assert (made.tip, made.hashes) == (0, {0: "a"})


def test_a_chain_goes_on_block_by_block() -> None:
    made = chain("abc")
    made.add(3, "abcd", "abc")
    assert (made.tip, made.hashes) == (3, {0: "a", 1: "ab", 2: "abc", 3: "abcd"})


def test_the_same_block_again_changes_nothing() -> None:
    made = chain("abc")
    made.add(2, "abc", "ab")
    assert made.hashes == chain("abc").hashes


def test_another_block_at_the_tip_leaves_what_is_below() -> None:
    made = chain("abc")
    made.add(2, "abx", "ab")
    assert made.hashes == {0: "a", 1: "ab", 2: "abx"}


def test_another_parent_leaves_nothing() -> None:
    made = chain("abcd")
    made.add(3, "abxy", "abx")
    assert made.hashes == {2: "abx", 3: "abxy"}


def test_what_does_not_reach_the_tip_is_not_believed_any_more() -> None:
    made = chain("abc")
    made.add(5, "abcdef", "abcde")
    assert made.hashes == {4: "abcde", 5: "abcdef"}


def test_going_back_forgets_what_was_above() -> None:
    made = chain("abcdef")
    made.add(2, "abc", "ab")
    assert (made.tip, made.hashes) == (2, {0: "a", 1: "ab", 2: "abc"})


def test_an_older_block_of_another_chain_does_not_fit() -> None:
    made = UpstreamChain()
    made.add(5, "abcdef", "abcde")
    assert made.fill(4, "abcde", "abcd")
    assert not made.fill(3, "axxx", "axx")
    assert made.hashes == {3: "abcd", 4: "abcde", 5: "abcdef"}


def test_chains_are_bounded() -> None:
    made = UpstreamChain()
    for number in range(2_000):
        made.add(number, str(number), str(number - 1))
    assert len(made.hashes) == REMEMBERED


# ---- what is missing


@pytest.mark.parametrize(("whole", "numbers"), [(True, [6, 5]), (False, [6])])
def test_of_one_that_is_probed_seldom_one_block_is_missing_at_a_time(whole: bool, numbers: list[int]) -> None:
    made = UpstreamChain()
    made.add(7, "tip", "other")
    assert missing({number: f"network {number}" for number in range(8)}.get, 7, made, whole=whole) == numbers


@pytest.mark.parametrize(
    ("ahead", "numbers"), [(MAX_MISSING, list(range(6, 5 + MAX_MISSING))), (MAX_MISSING + 1, [6, 5])]
)
def test_tip_that_is_too_far_ahead_is_compared_from_the_head_of_the_network(
    ahead: int, numbers: list[int]
) -> None:
    far = UpstreamChain()
    far.add(5 + ahead, "tip", "parent")
    assert missing({5: "head"}.get, 5, far) == numbers


def test_tip_that_is_absurdly_far_ahead_takes_neither_time_nor_memory() -> None:
    far = UpstreamChain()
    far.add(1 << 61, "tip", "parent")
    assert missing({5: "head"}.get, 5, far) == [6, 5]
    assert missing({5: "head"}.get, 5, far, whole=False) == [6]


@pytest.mark.parametrize(
    ("network", "of", "known", "numbers"),
    [
        ("abc", "abc", 1, []),
        ("abc", "abcd", 1, []),
        ("abc", "abcde", 1, [3]),
        ("abc", "abcdef", 1, [3, 4]),
        ("abc", "abcdefgh", 1, [3, 4, 5, 6]),
        ("abc", "ab", 1, []),
        ("abcd", "abcx", 1, []),
        ("abcd", "abxx", 1, [2, 1]),
        ("abcdefgh", "abxxxxxx", 1, [6, 5]),
        ("abcdefgh", "abxxxxxx", 3, [4, 3]),
        ("abcdefgh", "abxxxxxx", 6, []),
        ("a", "a" * 200, 1, [1]),
    ],
)
def test_blocks_that_must_be_fetched(network: str, of: str, known: int, numbers: list[int]) -> None:
    assert missing(trunk(network), len(network) - 1, chain(of, known)) == numbers


def test_a_fork_below_all_that_is_known_needs_nothing_more() -> None:
    assert missing(trunk("abcdefgh", 6), 7, chain("axxxxxxx", 2)) == []
    assert claim("a", trunk("abcdefgh", 6), 7, chain("axxxxxxx", 2)) == Claim("a", 7, DEEP, "axxxxxx")


def test_upstream_far_behind_is_not_contradicted() -> None:
    assert missing(trunk("abcdefgh", 6), 7, chain("ab")) == []
    assert claim("a", trunk("abcdefgh", 6), 7, chain("ab")) == Claim("a", 1, 1)


@given(st.text("ab", min_size=1, max_size=150), st.text("ab", min_size=1, max_size=150))
def test_fetching_what_is_missing_comes_to_an_end_and_finds_the_ancestor(network: str, of: str) -> None:
    made, head, one = trunk(network), len(network) - 1, chain(of, 1)
    fetched: set[int] = set()
    while wanted := missing(made, head, one):
        assert not fetched & set(wanted), "nothing is fetched twice"
        fetched |= set(wanted)
        for number in sorted(wanted, reverse=True):
            assert one.fill(number, digest(of, number), digest(of, number - 1) if number else "")
    assert len(fetched) <= 2 * MAX_MISSING
    found = claim("a", made, head, one)
    top = min(len(network), len(of)) - 1
    common = next((number for number in range(top, -1, -1) if of[: number + 1] == network[: number + 1]), DEEP)
    assert found.ancestor in (common, DEEP)
    if found.ancestor == DEEP and common != DEEP:
        assert head - common >= MAX_MISSING - 2


# ---- where a chain leaves the network's


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        ("abcd", Claim("a", 3, 3)),
        ("abcdef", Claim("a", 5, 3)),
        ("ab", Claim("a", 1, 1)),
        ("abcx", Claim("a", 3, 2, "abcx")),
        ("abxy", Claim("a", 3, 1, "abx")),
        ("abxyz", Claim("a", 4, 1, "abx")),
        ("abx", Claim("a", 2, 1, "abx")),
        ("xxxx", Claim("a", 3, DEEP, "x")),
    ],
)
def test_claims(of: str, expected: Claim) -> None:
    assert claimed(of, "abcd") == expected


# ---- which upstreams the network follows


@pytest.mark.parametrize(
    ("network", "chains", "unclear", "follows"),
    [
        ("abc", ["abc"], 0, None),
        ("abc", ["abcd"], 0, "abcd"),
        ("abc", ["abcd", "abcde"], 0, "abcde"),
        ("abc", ["ab"], 0, None),
        # The only one, and all: a reorganisation at once, also to something shorter.
        ("abc", ["abx"], 0, "abx"),
        ("abcd", ["ax"], 0, "ax"),
        ("abc", ["abx", "abx"], 0, "abx"),
        # One of two: the old chain stays, unless the new one is clearly longer.
        ("abc", ["abc", "abx"], 0, None),
        ("abc", ["abc", "abxy"], 0, None),
        ("abc", ["abc", "abxyz"], 0, None),
        ("abc", ["abc", "abxyzz"], 0, "abxyzz"),
        # An upstream below the fork does not support the old chain.
        ("abc", ["ab", "abx"], 0, "abx"),
        ("abcd", ["abc", "abxx"], 0, None),
        # Most.
        ("abc", ["abc", "abx", "abxy"], 0, "abxy"),
        ("abc", ["abc", "abc", "abxyzzzzzz"], 0, None),
        ("abc", ["abx", "aby"], 0, "abx"),
        ("abc", ["abx", "axx", "axy"], 0, "axx"),
        # An upstream that extends the head goes before one that contradicts it.
        ("abc", ["abcd", "abxyz", "abxyz"], 0, "abcd"),
        # An upstream whose chain is not known yet may still have it.
        ("abc", ["abx"], 1, None),
        ("abc", ["abx", "abx"], 1, "abx"),
        ("abc", ["abcd"], 3, "abcd"),
        ("abc", [], 0, None),
    ],
)
def test_the_network_follows(network: str, chains: list[str], unclear: int, follows: str | None) -> None:
    claims = [claimed(of, network, of) for of in chains]
    chosen = choose(claims, len(network) - 1, unclear)
    assert (chosen.name if chosen else None) == follows


words = st.text("ab", min_size=1, max_size=8).map(lambda word: f"g{word}")


@given(words, st.lists(words, min_size=1, max_size=5))
def test_following_comes_to_rest_and_stays_there(network: str, chains: list[str]) -> None:
    for _ in range(2 * len(chains) + 2):
        claims = [claimed(of, network, of) for of in chains]
        chosen = choose(claims, len(network) - 1)
        if chosen is None:
            break
        network = chosen.name
    else:
        pytest.fail("it goes to and fro")
    agreed = [each for each in claims if not branches.is_contested(each, len(network) - 1)]
    assert agreed, "an upstream is on the network's chain"
