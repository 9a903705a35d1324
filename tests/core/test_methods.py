"""Which methods may be called."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollgate.core.methods import Policy, domain_refusal_of, listed, matches, may_be_called, refusal_of

OPEN = Policy()


SPEC = ("admin_", "engine_", "personal_", "miner_", "testing_", "anvil_", "hardhat_", "evm_", "debug_set",
        "debug_write", "eth_sendTransaction", "eth_sign")  # fmt: skip
STEERING = [
    "admin_addPeer", "engine_newPayloadV4", "personal_unlockAccount", "miner_start", "testing_buildBlockV1",
    "anvil_setBalance", "hardhat_reset", "evm_mine", "evm_increaseTime", "ganache_setTime", "debug_setHead",
    "debug_setGCPercent", "debug_writeBlockProfile", "debug_writeMemProfile", "debug_startCPUProfile",
    "debug_stopGoTrace", "debug_cpuProfile", "debug_goTrace", "debug_mutexProfile", "debug_freeOSMemory",
    "debug_verbosity", "debug_vmodule", "debug_chaindbCompact", "debug_standardTraceBlockToFile",
    "debug_standardTraceBadBlockToFile", "debug_resetHead", "debug_insertReceipts", "debug_deleteChainSlice",
    "debug_batchSendRawTransaction", "debug_unheardOf", "eth_sendTransaction", "eth_sign", "eth_signTransaction",
    "eth_signTypedData_v4", "eth_submitWork", "eth_submitHashrate", "eth_getWork", "clique_propose",
    "parity_setMode", "perm_addNodesToAllowlist", "tenderly_setBalance", "devnet_mint", "dev_setTime",
]  # fmt: skip
READS = [
    "eth_call", "starknet_chainId", "administer", "engine", "eth_admin_", "x", "eth_sendRawTransaction",
    "debug_getRawBlock", "debug_getBadBlocks", "debug_traceTransaction", "debug_storageRangeAt",
    "debug_executionWitness", "trace_block", "txpool_content", "eth_accounts", "net_version", "erigon_forks",
    "clique_getSigners", "starknet_addInvokeTransaction",
]  # fmt: skip
COSTLY = [
    "debug_traceTransaction",
    "debug_traceCall",
    "DEBUG_TRACEBLOCK",
    "trace_block",
    "trace_filter",
    "arbtrace_call",
]


@pytest.mark.parametrize("prefix", SPEC)
@given(rest=st.text(max_size=8), cases=st.lists(st.booleans(), min_size=20, max_size=20))
def test_guarded_method_is_refused_in_any_case_and_allowed_by_no_allow_list(
    prefix: str, rest: str, cases: list[bool]
) -> None:
    rest = "" if prefix == "eth_sendTransaction" else rest
    name = "".join(c.upper() if up else c.lower() for c, up in zip(prefix, cases, strict=False)) + rest
    for policy in (OPEN, Policy(allow=("*",)), Policy(allow=(name,)), Policy(domains=("*",))):
        refusal = refusal_of(name, policy)
        assert refusal is not None
        assert "open_methods" in refusal


@pytest.mark.parametrize("method", STEERING)
def test_what_steers_a_node_writes_its_files_or_uses_its_keys_is_refused_unless_opened(method: str) -> None:
    assert refusal_of(method, OPEN) is not None
    assert refusal_of(method, Policy(opened=(method,))) is None
    assert refusal_of(method, Policy(opened=(method + "x",))) is not None
    assert refusal_of(method, Policy(opened=(method,), deny=(method,))) is not None, "a deny list still denies"
    assert refusal_of(method, Policy(opened=(method,), allow=("eth_call",))) is not None


@pytest.mark.parametrize("method", READS)
def test_other_methods_pass_an_empty_policy(method: str) -> None:
    assert refusal_of(method, OPEN) is None


@pytest.mark.parametrize("method", COSTLY)
def test_expensive_method_needs_a_token_unless_opened_to_domains(method: str) -> None:
    assert refusal_of(method, OPEN) is None
    refusal = domain_refusal_of(method, OPEN)
    assert refusal is not None
    assert "token" in refusal
    assert domain_refusal_of(method, Policy(domains=(method,))) is None
    assert domain_refusal_of(method, Policy(opened=("*",), allow=("*",))) is not None


@pytest.mark.parametrize("method", ["eth_call", "eth_getLogs", "debug_getRawBlock", "starknet_traceTransaction"])
def test_other_methods_need_no_token(method: str) -> None:
    assert domain_refusal_of(method, OPEN) is None


@pytest.mark.parametrize(
    ("pattern", "opened", "may"),
    [
        ("eth_call", (), True),
        ("eth_*", (), True),
        ("admin_peers", (), False),
        ("ADMIN_*", (), False),
        ("admin_*", ("admin_peers",), True),
        ("admin_peers", ("admin_*",), True),
        ("admin_peers", ("anvil_*",), False),
        ("debug_setHead", ("*",), True),
    ],
)
def test_pattern_of_a_token_that_can_let_nothing_through(pattern: str, opened: tuple[str, ...], may: bool) -> None:
    assert may_be_called(pattern, opened) is may


def test_lists_of_an_upstream_do_not_close_what_its_network_opens() -> None:
    assert listed("anvil_mine", OPEN) is None
    assert listed("anvil_mine", Policy(deny=("anvil_*",))) is not None


def test_allow_list_allows_what_it_names_and_nothing_else() -> None:
    policy = Policy(allow=("eth_call", "eth_get*"))
    assert refusal_of("eth_call", policy) is None
    assert refusal_of("eth_getBalance", policy) is None
    assert refusal_of("eth_get", policy) is None
    for method in ("eth_callX", "Xeth_call", "eth_chainId", "eth_Call", "ETH_CALL"):
        refusal = refusal_of(method, policy)
        assert refusal is not None
        assert "eth_get*" in refusal


def test_deny_list_refuses_in_any_case_and_wins_over_the_allow_list() -> None:
    policy = Policy(allow=("*",), deny=("debug_*", "eth_sign"), opened=("eth_sign*",))
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


@pytest.mark.parametrize(
    "method",
    [
        " debug_setHead", "debug_setHead ", "debug _setHead", "\x00debug_setHead", "\ndebug_setHead",
        "eth_sendTransaction ",
        "\u00a0eth_sendTransaction", "\uff45th_sendTransaction", "eth_\u017fendTransaction", "eth_call\u2028", "",
        "debug_traceBlockFromFile", "debug_getConfigValue",
    ],
)  # fmt: skip
def test_method_that_could_be_read_in_two_ways_is_refused(method: str) -> None:
    assert refusal_of(method, Policy()) is not None


def test_deny_list_is_not_passed_by_space_or_width() -> None:
    policy = Policy(deny=("eth_getLogs",))
    for method in (" eth_getLogs", "eth_getLogs\n", "\uff25TH_GETLOGS"):
        assert refusal_of(method, policy) is not None
    assert refusal_of("eth_getLog", policy) is None
