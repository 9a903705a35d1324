"""The table of verdicts: one case for each rule, and messages that must not be mistaken."""

import re

import pytest

from tollgate.chains.faults import FAULTS, Fault, Verdict, fault, verdict
from tollgate.chains.methods import Kind

ANY_CODE = -32_000


def kind_of(rule: Fault) -> Kind:
    return Kind.WRITE if rule.verdict is Verdict.KNOWN else Kind.READ


def families_of(rule: Fault) -> list[str]:
    return [rule.family] if rule.family else ["eth", "starknet", "solana"]


@pytest.mark.parametrize(
    "rule", FAULTS, ids=lambda rule: f"{rule.family or 'all'}:{rule.code}:{rule.example[:40]}"
)
def test_example_of_a_rule_matches_that_rule_first(rule: Fault) -> None:
    for family in families_of(rule):
        code = ANY_CODE if rule.code is None else rule.code
        assert fault(family, kind_of(rule), code, rule.example) is rule
        assert fault(family, kind_of(rule), code, rule.example.upper()) is rule
        assert verdict(family, kind_of(rule), code, rule.example) is rule.verdict


def test_table_is_large_and_covers_many_nodes() -> None:
    assert len(FAULTS) >= 100
    sources = " ".join(rule.by for rule in FAULTS).lower()
    nodes = ("geth", "erigon", "nethermind", "reth", "besu", "anvil", "pathfinder", "juno", "madara")
    providers = ("alchemy", "infura", "quicknode", "ankr", "cloudflare")
    for name in nodes + providers:
        assert name in sources


def test_rules_are_distinct() -> None:
    assert len({(rule.family, rule.code, rule.pattern) for rule in FAULTS}) == len(FAULTS)
    assert len({(rule.family, rule.code, rule.example) for rule in FAULTS}) == len(FAULTS)


@pytest.mark.parametrize("rule", FAULTS, ids=lambda rule: rule.pattern or f"code {rule.code}")
def test_patterns_are_lower_case_like_normalised_messages(rule: Fault) -> None:
    assert not re.search(r"(?<!\\)[A-Z]", rule.pattern)


@pytest.mark.parametrize("rule", FAULTS, ids=lambda rule: rule.pattern or f"code {rule.code}")
def test_rule_that_fits_every_message_names_a_code(rule: Fault) -> None:
    assert rule.code is not None or not re.search(rule.pattern, "")


@pytest.mark.parametrize("rule", FAULTS, ids=lambda rule: rule.pattern or f"code {rule.code}")
def test_pattern_is_quick_on_a_long_message(rule: Fault) -> None:
    # Repetitions that could make a pattern backtrack.
    for text in ("range " * 80, "a " * 250, "exceeded " * 60, "nonce " * 80, "history " * 60):
        re.search(rule.pattern, text[:500])


@pytest.mark.parametrize(
    ("code", "message", "expected"),
    [
        # Final answers.
        (3, "execution reverted: daily request limit reached", Verdict.FINAL),
        (-32000, "execution reverted: header not found", Verdict.FINAL),
        (-32603, "VM Exception while processing transaction: revert missing trie node", Verdict.FINAL),
        (-32602, "invalid argument 0: hex string without 0x prefix", Verdict.FINAL),
        (-32602, "missing value for required argument 0", Verdict.FINAL),
        (-32602, "Invalid params", Verdict.FINAL),
        (-32600, "Invalid Request", Verdict.FINAL),
        (-32700, "Parse error", Verdict.FINAL),
        (-32000, "invalid block range params", Verdict.FINAL),
        (-32000, "gas limit reached", Verdict.FINAL),
        (-32000, "tx gas limit exceeded", Verdict.FINAL),
        (-32000, "gas required exceeds allowance (30000000)", Verdict.FINAL),
        (-32000, "max fee per gas less than block base fee", Verdict.FINAL),
        (-32000, "invalid sender", Verdict.FINAL),
        (-32000, "transaction type not supported", Verdict.FINAL),
        (-32004, "Upfront cost exceeds account balance", Verdict.FINAL),
        (-32007, "Sender account not authorized to send transactions", Verdict.FINAL),
        (-32001, "transaction not found", Verdict.FINAL),
        (-32000, "filter not found", Verdict.FINAL),
        (-32000, "tracer not found", Verdict.FINAL),
        (-32000, "stack underflow (0 <=> 1)", Verdict.FINAL),
        (-32000, "invalid opcode: INVALID", Verdict.FINAL),
        (-32000, "please specify less number of address in the getLogs query", Verdict.FINAL),
        (None, "", Verdict.FINAL),
        (-32000, "", Verdict.FINAL),
        # A block that is not there yet.
        (-32000, "header for hash not found", Verdict.LAGGING),
        (-32000, "block 0x45d3a1f not found", Verdict.LAGGING),
        (-32000, "block #17034870 not found", Verdict.LAGGING),
        (-32014, "block not yet imported", Verdict.LAGGING),
        (26, "Unknown block", Verdict.LAGGING),
        (-39001, "Unknown block", Verdict.LAGGING),
        (-32000, "Parent block not found", Verdict.LAGGING),
        # State that was pruned.
        (-32000, "historical state 6b2d96b0 is not available", Verdict.PRUNED),
        (-32000, "state 0x71d5d5f7 is not available, not found", Verdict.PRUNED),
        (
            -32602,
            "Archive requests require a personal token. Get one at: https://www.allnodes.com",
            Verdict.PRUNED,
        ),
        (-32000, "distance to target block (100000) exceeds max-recreate-state-depth (1024)", Verdict.PRUNED),
        # Too wide.
        (-32602, "range 1000000 exceeds limit of 10000", Verdict.TOO_WIDE),
        (-32000, "block range too large, max range: 10000", Verdict.TOO_WIDE),
        (-32012, "requested range too large", Verdict.TOO_WIDE),
        (-32020, "backend response too large", Verdict.TOO_WIDE),
        (-32000, "exceed maximum block range: 50000", Verdict.TOO_WIDE),
        (-32000, "exceeded maximum block range: 5000", Verdict.TOO_WIDE),
        (-32602, "block range greater than 10000 max", Verdict.TOO_WIDE),
        (-32602, "eth_getLogs and eth_newFilter are limited to a 10,000 blocks range", Verdict.TOO_WIDE),
        (-32602, "logs are limited to a 10000 block range", Verdict.TOO_WIDE),
        (-32602, "query exceeds range, retry smaller (max block range 5000, got 16777216)", Verdict.TOO_WIDE),
        (-32602, "query exceeds max results 20000, retry with the range 22382105-22382515", Verdict.TOO_WIDE),
        (
            -32047,
            "Invalid eth_getLogs request. 'fromBlock'-'toBlock' range too large. Max range: 800",
            Verdict.TOO_WIDE,
        ),
        (-32000, "block range is larger than max block range, block range = 5120", Verdict.TOO_WIDE),
        (-32000, "maximum [from, to] blocks distance: 2000", Verdict.TOO_WIDE),
        (-32000, "too wide blocks range, the limit is 100", Verdict.TOO_WIDE),
        (-32005, "please limit the query to at most 1000 blocks", Verdict.TOO_WIDE),
        (
            -32600,
            "Under the Free tier plan, you can make eth_getLogs requests with up to a 10 block range.",
            Verdict.TOO_WIDE,
        ),
        # Rate limits.
        (429, "Too Many Requests", Verdict.QUOTA),
        (-32007, "25/second request limit reached", Verdict.QUOTA),
        (-32003, "daily request limit reached - upgrade your account", Verdict.QUOTA),
        (-32000, "account limited to 15/sec", Verdict.QUOTA),
        (-32005, "rate limit exceeded", Verdict.QUOTA),
        (-32005, "limit exceeded", Verdict.ELSEWHERE),
        # Methods.
        (-32004, "Method eth_foo is not supported", Verdict.UNSUPPORTED),
        (-32604, "Method not enabled", Verdict.UNSUPPORTED),
        (-32000, "rpc method is not whitelisted", Verdict.UNSUPPORTED),
        # Failures of the node.
        (-32000, "context deadline exceeded", Verdict.ELSEWHERE),
        (-32002, "request timed out", Verdict.ELSEWHERE),
        (-32603, "Timeout expired", Verdict.ELSEWHERE),
        (-32603, "anything at all", Verdict.ELSEWHERE),
        (-32052, "API key is not allowed to access blockchain", Verdict.ELSEWHERE),
        (-32000, "safe block not found", Verdict.ELSEWHERE),
    ],
)
def test_message_of_an_eth_node(code: int | None, message: str, expected: Verdict) -> None:
    assert verdict("eth", Kind.READ, code, message) is expected


@pytest.mark.parametrize("code", [20, 21, 27, 28, 29, 31, 33, 34, 40, 41, *range(51, 59), *range(60, 66)])
def test_errors_of_the_starknet_specification_are_known_by_code_whatever_the_message(code: int) -> None:
    for message in ("", "Internal error", "Too many requests", "Method not found"):
        assert verdict("starknet", Kind.READ, code, message) is Verdict.FINAL
        assert verdict("starknet", Kind.WRITE, code, message) is Verdict.FINAL


def test_code_of_one_family_means_nothing_in_another() -> None:
    assert verdict("starknet", Kind.READ, 24, "Block not found") is Verdict.LAGGING
    assert verdict("solana", Kind.READ, 24, "Block not found") is Verdict.FINAL
    assert verdict("eth", Kind.READ, 27, "Unknown state. First available state is 1") is Verdict.PRUNED
    assert verdict("starknet", Kind.READ, 27, "Unknown state. First available state is 1") is Verdict.FINAL


def test_family_without_a_catalogue_uses_the_messages_of_providers() -> None:
    assert verdict("solana", Kind.UNKNOWN, -32005, "Rate limit exceeded") is Verdict.QUOTA
    assert verdict("solana", Kind.UNKNOWN, -32601, "Method not found") is Verdict.UNSUPPORTED
    assert verdict("solana", Kind.UNKNOWN, -32603, "Internal error") is Verdict.ELSEWHERE


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.WRITE])
def test_transaction_is_known_only_where_one_was_sent(kind: Kind) -> None:
    assert verdict("eth", Kind.WRITE, -32000, "already known") is Verdict.KNOWN
    assert verdict("eth", kind, -32000, "already known") is Verdict.FINAL
    assert verdict("starknet", Kind.WRITE, 59, "") is Verdict.KNOWN
    assert verdict("starknet", kind, 59, "") is Verdict.FINAL


@pytest.mark.parametrize(
    "message",
    [
        "already known",
        "AlreadyKnown",
        "known transaction: 3e4f",
        "transaction already imported",
        "Known transaction",
    ],
)
def test_known_transaction_is_recognised_in_messages_of_several_nodes(message: str) -> None:
    assert verdict("eth", Kind.WRITE, -32000, message) is Verdict.KNOWN


@pytest.mark.parametrize(
    "message", ["nonce too low", "replacement transaction underpriced", "insufficient funds for transfer"]
)
def test_refused_transaction_is_not_a_known_one(message: str) -> None:
    assert verdict("eth", Kind.WRITE, -32000, message) is Verdict.FINAL


def test_end_of_a_long_message_is_ignored() -> None:
    assert verdict("eth", Kind.READ, -32000, "x" * 1_000 + " header not found") is Verdict.FINAL
    assert verdict("eth", Kind.READ, -32000, "header not found" + "x" * 100_000) is Verdict.FINAL
    assert verdict("eth", Kind.READ, -32000, "header not found " + "x" * 100_000) is Verdict.LAGGING
