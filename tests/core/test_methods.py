"""Names of methods against patterns and lists."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollgate.core.methods import Policy, listed, matches


def test_allow_list_allows_what_it_names_and_nothing_else() -> None:
    policy = Policy(allow=("eth_call", "eth_get*"))
    assert listed("eth_call", policy) is None
    assert listed("eth_getBalance", policy) is None
    assert listed("eth_get", policy) is None
    for method in ("eth_callX", "Xeth_call", "eth_chainId", "eth_Call", "ETH_CALL"):
        refusal = listed(method, policy)
        assert refusal is not None
        assert "eth_get*" in refusal


@pytest.mark.parametrize(
    ("pattern", "fits", "misses"),
    [
        ("*", ["", "a", "a\nb"], []),
        ("eth_*", ["eth_", "eth_x", "eth_x\n"], ["eth", "xeth_", "net_"]),
        ("*_get*", ["a_get", "a_getB", "_get"], ["aget"]),
        ("a*b*c", ["abc", "axbxc", "abcbc"], ["acb", "abcd"]),
        ("a**b", ["ab", "axb"], ["a"]),
        ("a*a", ["aa"], ["a"]),
        ("a*b*b", ["abb"], ["ab"]),
        ("*ab*ab*", ["abab"], ["ab"]),
        ("eth.call", ["eth.call"], ["ethXcall"]),
        ("eth_?", ["eth_?"], ["eth_x"]),
        ("[a-z]+", ["[a-z]+"], ["abc"]),
        ("(a|b)$", ["(a|b)$"], ["a", "b"]),
        ("a\\d", ["a\\d"], ["a1"]),
        ("^a", ["^a"], ["a"]),
        ("", [""], ["a"]),
    ],
)
def test_star_matches_any_characters_and_everything_else_itself(
    pattern: str, fits: list[str], misses: list[str]
) -> None:
    assert [method for method in fits if not matches(method, [pattern])] == []
    assert [method for method in misses if matches(method, [pattern])] == []


@given(st.text())
def test_name_without_stars_fits_itself_and_nothing_longer(name: str) -> None:
    pattern = name.replace("*", "")
    assert matches(pattern, [pattern])
    assert not matches(pattern + "x", [pattern])


@given(st.lists(st.text("ab*._"), max_size=3), st.text("ab._", max_size=12))
def test_patterns_match_as_a_plain_search_would(patterns: list[str], method: str) -> None:
    assert matches(method, patterns) == any(_fits(method, pattern) for pattern in patterns)


def _fits(method: str, pattern: str) -> bool:
    if not pattern:
        return not method
    if pattern[0] == "*":
        return any(_fits(method[start:], pattern[1:]) for start in range(len(method) + 1))
    return method[:1] == pattern[0] and _fits(method[1:], pattern[1:])


def test_long_method_is_judged_in_time_that_grows_with_its_length_alone() -> None:
    # A body may be 1 MiB of method, and a deny list may hold a pattern such as this.
    start = time.process_time()
    assert not matches("get" * 30_000, ["*get*By*"])
    assert time.process_time() - start < 0.5
