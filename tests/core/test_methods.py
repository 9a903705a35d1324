"""Which methods may be called."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollgate.core.methods import NEVER_FORWARDED, Policy, matches, refusal_of

OPEN = Policy()


def test_spec_names_the_prefixes_that_are_never_forwarded() -> None:
    assert set(NEVER_FORWARDED) == {"admin_", "engine_", "personal_", "testing_", "miner_"}


@pytest.mark.parametrize("prefix", NEVER_FORWARDED)
@given(rest=st.text(max_size=8), cases=st.lists(st.booleans(), min_size=9, max_size=9))
def test_never_forwarded_prefix_is_refused_in_any_case_and_by_no_list_allowed(
    prefix: str, rest: str, cases: list[bool]
) -> None:
    name = "".join(c.upper() if up else c for c, up in zip(prefix, cases, strict=False)) + rest
    for policy in (OPEN, Policy(allow=("*",)), Policy(allow=(name,))):
        refusal = refusal_of(name, policy)
        assert refusal is not None
        assert prefix in refusal


@pytest.mark.parametrize("method", ["eth_call", "starknet_chainId", "administer", "engine", "eth_admin_", "x"])
def test_other_methods_pass_an_empty_policy(method: str) -> None:
    assert refusal_of(method, OPEN) is None


def test_allow_list_allows_what_it_names_and_nothing_else() -> None:
    policy = Policy(allow=("eth_call", "eth_get*"))
    assert refusal_of("eth_call", policy) is None
    assert refusal_of("eth_getBalance", policy) is None
    assert refusal_of("eth_get", policy) is None
    for method in ("eth_callX", "Xeth_call", "eth_chainId", "eth_Call", "ETH_CALL", "eth_call\n"):
        refusal = refusal_of(method, policy)
        assert refusal is not None
        assert "eth_get*" in refusal


def test_deny_list_refuses_in_any_case_and_wins_over_the_allow_list() -> None:
    policy = Policy(allow=("*",), deny=("debug_*", "eth_sign"))
    for method in ("debug_traceCall", "DEBUG_traceCall", "eth_sign", "Eth_Sign"):
        assert refusal_of(method, policy) is not None
    assert refusal_of("eth_signTransaction", policy) is None
    assert refusal_of("eth_sign", Policy(deny=("ETH_SIGN",))) is not None


@pytest.mark.parametrize(
    ("pattern", "fits", "misses"),
    [
        ("*", ["", "a", "a\nb"], []),
        ("eth_*", ["eth_", "eth_x", "eth_x\n"], ["eth", "xeth_", "net_"]),
        ("*_get*", ["a_get", "a_getB", "_get"], ["aget"]),
        ("a*b*c", ["abc", "axbxc", "abcbc"], ["acb", "abcd"]),
        ("a**b", ["ab", "axb"], ["a"]),
        ("eth.call", ["eth.call"], ["ethXcall"]),
        ("eth_?", ["eth_?"], ["eth_x"]),
        ("[a-z]+", ["[a-z]+"], ["abc"]),
        ("(a|b)$", ["(a|b)$"], ["a", "b"]),
        ("a\\d", ["a\\d"], ["a1"]),
        ("^a", ["^a"], ["a"]),
        ("", [""], ["a"]),
    ],
)
def test_star_stands_for_any_characters_and_everything_else_for_itself(
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
