"""Which methods tokens and domains may call: what the tables prove harmless, and what the operator opens."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollgate.chains import access
from tollgate.chains.access import may_be_called
from tollgate.chains.catalogue import KNOWN, Catalogue, steers
from tollgate.chains.methods import Cost, Effect
from tollgate.core.methods import Policy, listed

OPEN, STRICT = Policy(), Policy(strict=True)
ETH, STARKNET = Catalogue("eth"), Catalogue("starknet")


def refusal_of(method: str, policy: Policy, catalogue: Catalogue = ETH) -> str | None:
    return access.refusal_of(method, catalogue, policy)


def domain_refusal_of(method: str, policy: Policy = OPEN, catalogue: Catalogue = ETH) -> str | None:
    """Why a whitelisted domain may not call a method, for whatever reason."""
    return refusal_of(method, policy, catalogue) or access.domain_refusal_of(method, catalogue, policy)


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
    "eth_sendUnsignedTransaction", "eth_sendTransactionSync", "eth_sendTransactionAsync", "eth_setEtherbase",
    "raft_addPeer", "raft_removePeer", "quorumExtension_extendContract", "quorumPermission_addOrg",
    "klay_sendTransaction", "klay_sendTransactionAsFeePayer", "klay_signTransaction", "klay_resend",
    "klay_submitWork", "vault_unlock", "hmy_signTransaction", "eth_sendPrivateTransaction", "eth_compileSolidity",
    "config_getShowCalls", "tenderly_addBalance", "katana_nextBlockTimestamp", "madara_stopNode",
    "wallet_watchAsset", "signer_list", "account_list", "shh_post", "secretstore_generateServerKey",
    "priv_distributeRawTransaction", "eea_sendRawTransaction",
    "ibft_proposeValidatorVote", "qbft_discardValidatorVote", "istanbul_propose",
    "plugins_reloadPluginConfig", "les_addBalance", "opp2p_blockPeer", "db_putString", "author_insertKey",
    "offchain_localStorageSet", "system_addReservedPeer", "system_removeReservedPeer", "auctioneer_submitBid",
    "taikoAuth_updateL1Origin",
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
    "debug_getRawReceipts",
    "eth_simulateV1",
    "ots_searchTransactionsBefore",
    "txpool_content",
    "trace_block",
    "trace_filter",
    "arbtrace_call",
]


@pytest.mark.parametrize("prefix", SPEC)
@given(rest=st.text(max_size=8), cases=st.lists(st.booleans(), min_size=20, max_size=20))
def test_guarded_method_is_refused_in_any_case_and_allowed_by_no_allow_list(
    prefix: str, rest: str, cases: list[bool]
) -> None:
    name = "".join(c.upper() if up else c.lower() for c, up in zip(prefix, cases, strict=False)) + rest
    for policy in (OPEN, STRICT, Policy(allow=("*",)), Policy(allow=(name,)), Policy(domains=("*",))):
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


# What pages need, and no more: a mistake in the tables is a mistake here too, or is found.
CLOSED_TO_DOMAINS = {
    "eth": """
        debug_accountAt debug_accountRange debug_codeByHash debug_dumpBlock debug_executionWitness
        debug_executionWitnessByHash debug_getAccessibleState debug_getBadBlocks debug_getBlockRlp
        debug_getHeaderRlp debug_getModifiedAccountsByHash debug_getModifiedAccountsByNumber debug_getRawBlock
        debug_getRawBlockAccessList debug_getRawHeader debug_getRawReceipts debug_getRawTransaction
        debug_intermediateRoots debug_preimage debug_printBlock debug_storageRangeAt debug_traceBadBlock
        debug_traceBlock debug_traceBlockByHash debug_traceBlockByNumber debug_traceCall debug_traceCallMany
        debug_traceTransaction
        arbtrace_block arbtrace_call arbtrace_callMany arbtrace_filter arbtrace_get
        arbtrace_replayBlockTransactions arbtrace_replayTransaction arbtrace_transaction
        trace_block trace_call trace_callMany trace_filter trace_get trace_rawTransaction
        trace_replayBlockTransactions trace_replayTransaction trace_transaction
        ots_getApiLevel ots_getBlockDetails ots_getBlockDetailsByHash ots_getBlockTransactions
        ots_getContractCreator ots_getInternalOperations ots_getTransactionBySenderAndNonce
        ots_getTransactionError ots_hasCode ots_searchTransactionsAfter ots_searchTransactionsBefore
        ots_traceTransaction
        eth_callMany eth_simulateV1 eth_pendingTransactions txpool_content txpool_inspect
        parity_getBlockReceipts parity_nextNonce parity_pendingTransactions parity_pendingTransactionsStats
        eth_sendTransaction eth_sign eth_signTransaction
    """,
    "starknet": "starknet_simulateTransactions starknet_traceBlockTransactions starknet_traceTransaction",
}


@pytest.mark.parametrize("catalogue", [ETH, STARKNET], ids=lambda each: each.family)
def test_domains_may_call_what_is_cheap_and_does_not_steer(catalogue: Catalogue) -> None:
    closed = {name for name in catalogue.methods if domain_refusal_of(name, catalogue=catalogue)}
    assert closed == set(CLOSED_TO_DOMAINS[catalogue.family].split())
    for name in catalogue.methods:
        method = KNOWN[name]
        assert (name in closed) == (method.cost is Cost.EXPENSIVE or method.does is Effect.STEERS)
        assert (domain_refusal_of(name, STRICT, catalogue) is None) == (name not in closed)
        # Tokens may call all of it but what steers.
        assert (refusal_of(name, STRICT, catalogue) is None) == (method.does is not Effect.STEERS)


letters = st.text(string.printable, max_size=24)
names = letters | st.builds("{}_{}".format, st.sampled_from(["eth", "starknet", "net", "web3", "trace"]), letters)


@given(
    names, st.sampled_from([ETH, STARKNET]), st.sampled_from([OPEN, STRICT, Policy(opened=("*",), allow=("*",))])
)
def test_unknown_method_is_refused_to_domains(name: str, catalogue: Catalogue, policy: Policy) -> None:
    if name not in catalogue.methods:
        assert domain_refusal_of(name, policy, catalogue) is not None
        assert refusal_of(name, STRICT, catalogue) is not None


@pytest.mark.parametrize(
    "method",
    ["Eth_call", "ETH_SENDRAWTRANSACTION", "eth_callBundle", "eth_sendRawTransactionSync", "erigon_forks"],
)
def test_unknown_method_that_steers_nothing_is_open_to_tokens_unless_the_network_is_strict(method: str) -> None:
    assert refusal_of(method, OPEN) is None
    refusal = refusal_of(method, STRICT)
    assert refusal is not None
    assert "open_methods" in refusal
    assert refusal_of(method, Policy(strict=True, opened=(method,))) is None
    assert domain_refusal_of(method, Policy(strict=True, opened=(method,))) is not None
    assert domain_refusal_of(method, Policy(strict=True, domains=(method,))) is None


def test_what_steers_is_opened_to_domains_by_two_lists() -> None:
    for method in ("anvil_mine", "eth_sendTransaction"):
        assert domain_refusal_of(method, Policy(opened=(method,))) is not None
        assert domain_refusal_of(method, Policy(domains=(method,))) is not None
        assert domain_refusal_of(method, Policy(opened=(method,), domains=(method,))) is None


@pytest.mark.parametrize("method", ["eth_call", "eth_chainId", "getSlot"])
def test_family_without_a_catalogue_is_for_tokens_unless_opened_by_name(method: str) -> None:
    solana = Catalogue("solana")
    assert refusal_of(method, OPEN, solana) is None
    refusal = domain_refusal_of(method, OPEN, solana)
    assert refusal is not None
    assert refusal.startswith("The family solana has no catalogue of methods, so it needs a token")
    assert domain_refusal_of(method, Policy(domains=(method,)), solana) is None


def test_family_without_a_catalogue_may_have_the_reads_of_the_others() -> None:
    for name in KNOWN:
        assert (refusal_of(name, OPEN, Catalogue("solana")) is not None) == steers(name)


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
        ("foo_bar", (), True),
        ("debug_*", (), True),
        ("debug_trace*", (), True),
        ("debug_set*", (), False),
        ("clique_get*", (), True),
        ("eth_sign*", (), False),
        ("eth_sendTransaction", (), False),
        ("eth_send*", (), True),
    ],
)
def test_pattern_of_a_token_that_can_let_nothing_through(pattern: str, opened: tuple[str, ...], may: bool) -> None:
    assert may_be_called(pattern, opened) is may


def test_lists_of_an_upstream_do_not_close_what_its_network_opens() -> None:
    assert listed("anvil_mine", OPEN) is None
    assert listed("anvil_mine", Policy(deny=("anvil_*",))) is not None


def test_deny_list_refuses_in_any_case_and_wins_over_the_allow_list() -> None:
    policy = Policy(allow=("*",), deny=("debug_*", "eth_sign"), opened=("eth_sign*",))
    for method in ("debug_traceCall", "DEBUG_traceCall", "eth_sign", "Eth_Sign"):
        assert refusal_of(method, policy) is not None
    assert refusal_of("eth_signTransaction", policy) is None
    assert refusal_of("eth_sign", Policy(deny=("ETH_SIGN",))) is not None


@pytest.mark.parametrize(
    "method",
    [
        " debug_setHead", "debug_setHead ", "debug _setHead", "\x00debug_setHead", "\ndebug_setHead",
        "eth_sendTransaction ",
        "\u00a0eth_sendTransaction", "\uff45th_sendTransaction", "eth_\u017fendTransaction", "eth_call\u2028", "",
        "debug_traceBlockFromFile", "debug_getConfigValue", "debug_getFromDb", "Debug_traceCall",
    ],
)  # fmt: skip
def test_method_that_could_be_read_in_two_ways_is_refused(method: str) -> None:
    assert refusal_of(method, Policy()) is not None


def test_deny_list_is_not_passed_by_space_or_width() -> None:
    policy = Policy(deny=("eth_getLogs",))
    for method in (" eth_getLogs", "eth_getLogs\n", "\uff25TH_GETLOGS"):
        assert refusal_of(method, policy) is not None
    assert refusal_of("eth_getLog", policy) is None
