"""The catalogues: what a method does decides whether it may be sent twice, and whether its answer is kept."""

import pytest

from tollgate.chains.catalogue import OTHER, Catalogue, Holds, Kind
from tollgate.chains.eth import ETH_METHODS
from tollgate.chains.methods import Contract, Cost, Effect
from tollgate.chains.starknet import STARKNET_METHODS

ETH = Catalogue("eth")
STARKNET = Catalogue("starknet")
TABLES = {"eth": ETH_METHODS, "starknet": STARKNET_METHODS}
READS = {family: {method.name for method in table if method.kind is Kind.READ} for family, table in TABLES.items()}
PREFIXES = {
    "eth": (
        "eth_", "net_", "web3_", "txpool_", "debug_", "trace_",
        # Of single nodes.
        "arbtrace_", "ots_", "parity_", "clique_", "ibft_", "istanbul_", "qbft_",
    ),
    "starknet": ("starknet_",),
}  # fmt: skip


@pytest.mark.parametrize(
    ("catalogue", "method", "kind"),
    [
        (ETH, "eth_chainId", Kind.READ),
        (ETH, "eth_getBalance", Kind.READ),
        (ETH, "net_version", Kind.READ),
        (ETH, "eth_newFilter", Kind.FILTER),
        (ETH, "eth_getFilterChanges", Kind.FILTER),
        (ETH, "eth_subscribe", Kind.SUBSCRIBE),
        (ETH, "eth_sendRawTransaction", Kind.WRITE),
        (STARKNET, "starknet_chainId", Kind.READ),
        (STARKNET, "starknet_specVersion", Kind.READ),
        (STARKNET, "starknet_subscribeNewHeads", Kind.SUBSCRIBE),
        (STARKNET, "starknet_addInvokeTransaction", Kind.WRITE),
        (STARKNET, "eth_chainId", Kind.UNKNOWN),
        (ETH, "starknet_chainId", Kind.UNKNOWN),
        (ETH, "eth_chainid", Kind.UNKNOWN),
        (ETH, "", Kind.UNKNOWN),
    ],
)
def test_method_has_its_kind(catalogue: Catalogue, method: str, kind: Kind) -> None:
    assert catalogue.kind(method) is kind


@pytest.mark.parametrize(
    ("catalogue", "method"),
    [
        (ETH, "eth_sendRawTransaction"),
        (ETH, "eth_sendTransaction"),
        (STARKNET, "starknet_addInvokeTransaction"),
        (STARKNET, "starknet_addDeclareTransaction"),
        (STARKNET, "starknet_addDeployAccountTransaction"),
    ],
)
def test_write_is_never_repeated(catalogue: Catalogue, method: str) -> None:
    assert catalogue.kind(method) is Kind.WRITE
    assert not catalogue.repeatable(method)


@pytest.mark.parametrize("method", ["eth_sendBundle", "eth_sendRawTransactionSync", "foo_bar", "ETH_CALL", ""])
def test_unknown_method_may_be_a_write_and_is_not_repeated(method: str) -> None:
    assert ETH.kind(method) is Kind.UNKNOWN
    assert not ETH.repeatable(method)


@pytest.mark.parametrize("family", TABLES)
def test_reads_and_nothing_else_are_repeatable(family: str) -> None:
    catalogue = Catalogue(family)
    assert {name for name in catalogue.methods if catalogue.repeatable(name)} == READS[family] == catalogue.reads


@pytest.mark.parametrize("family", TABLES)
def test_methods_have_the_prefixes_of_their_family(family: str) -> None:
    assert [name for name in Catalogue(family).methods if not name.startswith(PREFIXES[family])] == []


@pytest.mark.parametrize("family", TABLES)
def test_every_method_is_listed_once(family: str) -> None:
    names = [method.name for method in TABLES[family]]
    assert len(names) == len(set(names)) == len(Catalogue(family).methods)


@pytest.mark.parametrize("family", TABLES)
def test_names_that_change_a_chain_or_sign_are_no_reads(family: str) -> None:
    words = ("_send", "_add", "_sign", "Filter", "ubscribe", "_set")
    assert [name for name in READS[family] if any(word in name for word in words)] == []


@pytest.mark.parametrize("family", TABLES)
def test_every_method_declares_what_it_does_and_what_it_costs(family: str) -> None:
    for method in TABLES[family]:
        assert isinstance(method.cost, Cost)
        assert (method.kind is Kind.WRITE) == (method.does in (Effect.SENDS, Effect.STEERS)), method.name
        if isinstance(method.does, Contract) and family == "starknet":
            assert method.does.name, "parameters may be given by name"
    assert {method.name for method in TABLES[family] if method.does is Effect.STEERS} <= {
        "eth_sendTransaction",
        "eth_sign",
        "eth_signTransaction",
    }


def test_family_without_a_catalogue_has_only_unknown_methods() -> None:
    catalogue = Catalogue("solana")
    assert catalogue.methods == frozenset()
    assert catalogue.kind("getSlot") is Kind.UNKNOWN
    assert not catalogue.repeatable("getSlot")


def test_label_is_a_name_of_the_catalogue_or_other() -> None:
    assert ETH.label("eth_call") == "eth_call"
    assert ETH.label("made_up_by_a_caller") == OTHER == "other"
    assert Catalogue("solana").label("getSlot") == OTHER


SPECIFIED = {
    # ethereum/execution-apis, and eth_subscribe beside it
    "eth": """
        eth_getBlockByHash eth_getBlockByNumber eth_getBlockTransactionCountByHash
        eth_getBlockTransactionCountByNumber eth_getBlockReceipts eth_getBlockAccessList eth_capabilities
        eth_chainId eth_syncing eth_coinbase eth_accounts eth_blockNumber eth_config net_version eth_call
        eth_estimateGas
        eth_createAccessList eth_simulateV1 eth_gasPrice eth_baseFee eth_blobBaseFee eth_maxPriorityFeePerGas
        eth_feeHistory eth_fillTransaction eth_newFilter eth_newBlockFilter eth_newPendingTransactionFilter
        eth_uninstallFilter eth_getFilterChanges eth_getFilterLogs eth_getLogs eth_sign eth_signTransaction
        eth_getBalance eth_getStorageAt eth_getStorageValues eth_getTransactionCount eth_getCode eth_getProof
        eth_sendTransaction eth_sendRawTransaction eth_getTransactionByHash eth_getTransactionByBlockHashAndIndex
        eth_getTransactionByBlockNumberAndIndex eth_getTransactionReceipt txpool_status txpool_content
        txpool_contentFrom debug_getRawHeader debug_getRawBlock debug_getRawTransaction debug_getRawReceipts
        debug_getRawBlockAccessList debug_getBadBlocks debug_traceBlockByNumber debug_traceBlockByHash
        debug_traceTransaction eth_subscribe eth_unsubscribe web3_clientVersion web3_sha3 net_listening
        net_peerCount trace_block trace_call trace_callMany trace_filter trace_get trace_rawTransaction
        trace_replayBlockTransactions trace_replayTransaction trace_transaction
    """,
    # starkware-libs/starknet-specs 0.10, without what the server sends
    "starknet": """
        starknet_specVersion starknet_getBlockWithTxHashes starknet_getBlockWithTxs starknet_getBlockWithReceipts
        starknet_getStateUpdate starknet_getStorageAt starknet_getTransactionStatus starknet_getMessagesStatus
        starknet_getTransactionByHash starknet_getTransactionByBlockIdAndIndex starknet_getTransactionReceipt
        starknet_getClass starknet_getClassHashAt starknet_getClassAt starknet_getBlockTransactionCount
        starknet_call starknet_estimateFee starknet_estimateMessageFee starknet_blockNumber
        starknet_blockHashAndNumber starknet_chainId starknet_syncing starknet_getEvents starknet_getNonce
        starknet_getStorageProof starknet_traceTransaction starknet_simulateTransactions
        starknet_traceBlockTransactions starknet_addInvokeTransaction starknet_addDeclareTransaction
        starknet_addDeployAccountTransaction starknet_subscribeNewHeads starknet_subscribeEvents
        starknet_subscribeTransactionStatus starknet_subscribeNewTransactionReceipts
        starknet_subscribeNewTransactions starknet_unsubscribe starknet_getCompiledCasm
    """,
}


@pytest.mark.parametrize("family", TABLES)
def test_catalogue_has_every_method_of_the_specification(family: str) -> None:
    assert set(SPECIFIED[family].split()) - Catalogue(family).methods == set()


@pytest.mark.parametrize("family", TABLES)
def test_only_reads_are_cached(family: str) -> None:
    catalogue = Catalogue(family)
    assert catalogue.cached < catalogue.reads
    assert {name for name in catalogue.methods if _holds(catalogue, name) is not Holds.NEVER} == catalogue.cached


def _holds(catalogue: Catalogue, name: str) -> Holds:
    method = catalogue.method(name)
    assert method is not None
    return method.holds


@pytest.mark.parametrize("family", TABLES)
def test_methods_with_a_block_argument_name_its_position(family: str) -> None:
    slots = {
        method.name: method.block is not None and (family == "eth" or method.member != "")
        for method in TABLES[family]
        if method.holds in {Holds.BLOCK, Holds.RANGE}
    }
    assert slots
    assert [name for name, placed in slots.items() if not placed] == []


@pytest.mark.parametrize(
    ("catalogue", "name"),
    [
        (ETH, "eth_accounts"),
        (ETH, "eth_coinbase"),
        (ETH, "txpool_content"),
        (ETH, "txpool_status"),
        (ETH, "web3_clientVersion"),
        (ETH, "net_peerCount"),
        (ETH, "eth_fillTransaction"),
        (ETH, "eth_getFilterChanges"),
        (ETH, "eth_subscribe"),
        (ETH, "eth_sendRawTransaction"),
        (ETH, "debug_getRawTransaction"),
        (STARKNET, "starknet_getTransactionStatus"),
        (STARKNET, "starknet_getMessagesStatus"),
        (STARKNET, "starknet_traceTransaction"),
        (STARKNET, "starknet_addInvokeTransaction"),
    ],
)
def test_answers_specific_to_a_node_or_a_moment_are_never_cached(catalogue: Catalogue, name: str) -> None:
    assert name not in catalogue.cached
    assert catalogue.scope(name, []).holds is Holds.NEVER


def test_methods_outside_the_catalogue_are_absent() -> None:
    assert ETH.method("foo_bar") is None
    assert ETH.method("eth_call") is not None
    assert Catalogue("solana").cached == frozenset()


# The tables again, by what methods need: after a mistake there a caller gets the answer of another block.
STATE = """
    debug_accountRange debug_executionWitness debug_storageRangeAt debug_traceBlockByHash
    debug_traceBlockByNumber debug_traceCall debug_traceCallMany debug_traceTransaction eth_call
    eth_callMany eth_createAccessList eth_estimateGas eth_getBalance eth_getCode eth_getProof
    eth_getStorageAt eth_getStorageValues eth_getTransactionCount eth_simulateV1 starknet_call
    starknet_estimateFee starknet_estimateMessageFee starknet_getClass starknet_getClassAt
    starknet_getClassHashAt starknet_getNonce starknet_getStorageAt starknet_getStorageProof
    starknet_simulateTransactions starknet_traceBlockTransactions trace_block trace_call trace_callMany
    trace_filter trace_replayBlockTransactions trace_replayTransaction
"""
AT_THE_HEAD = """
    debug_getRawTransaction debug_traceBlockByHash debug_traceCallMany debug_traceTransaction eth_baseFee
    eth_blobBaseFee eth_blockNumber eth_callMany eth_config eth_fillTransaction eth_gasPrice
    eth_getBlockByHash eth_getBlockTransactionCountByHash eth_getHeaderByHash
    eth_getRawTransactionByBlockHashAndIndex eth_getRawTransactionByHash
    eth_getTransactionByBlockHashAndIndex eth_getTransactionByHash eth_getTransactionReceipt
    eth_getUncleByBlockHashAndIndex eth_getUncleCountByBlockHash eth_maxPriorityFeePerGas
    eth_pendingTransactions eth_syncing starknet_blockHashAndNumber starknet_blockNumber
    starknet_getCompiledCasm starknet_getMessagesStatus starknet_getTransactionByHash
    starknet_getTransactionReceipt starknet_getTransactionStatus starknet_syncing starknet_traceTransaction
    trace_get trace_rawTransaction trace_replayTransaction trace_transaction txpool_content
    txpool_contentFrom txpool_inspect txpool_status
"""
OF_SINGLE_NODES = (
    "arbtrace_", "ots_", "parity_", "clique_", "ibft_", "istanbul_", "qbft_",
    "debug_accountAt", "debug_codeByHash", "debug_dump", "debug_executionWitnessByHash", "debug_getAccessible",
    "debug_getBlockRlp", "debug_getHeaderRlp", "debug_getModified", "debug_intermediate", "debug_preimage",
    "debug_print", "debug_traceBadBlock",
)  # fmt: skip
"""Never kept, and answered at the head: where they have their block differs from node to node."""
BY_BARE_HASH = """
    debug_accountRange debug_executionWitness debug_getRawBlock debug_getRawBlockAccessList
    debug_getRawHeader debug_getRawReceipts debug_storageRangeAt debug_traceBlockByNumber debug_traceCall
    eth_call eth_createAccessList eth_estimateGas eth_getBalance eth_getBlockAccessList eth_getBlockReceipts
    eth_getCode eth_getProof eth_getStorageAt eth_getStorageValues eth_getTransactionCount eth_simulateV1
    trace_block trace_call trace_callMany trace_replayBlockTransactions
"""
PLACES = {
    0: """
        debug_accountRange debug_executionWitness debug_getRawBlock debug_getRawBlockAccessList
        debug_getRawHeader debug_getRawReceipts debug_storageRangeAt debug_traceBlockByNumber
        eth_getBlockAccessList eth_getBlockByNumber eth_getBlockReceipts
        eth_getBlockTransactionCountByNumber eth_getHeaderByNumber eth_getLogs
        eth_getRawTransactionByBlockNumberAndIndex eth_getTransactionByBlockNumberAndIndex
        eth_getUncleByBlockNumberAndIndex eth_getUncleCountByBlockNumber
        starknet_getBlockTransactionCount starknet_getBlockWithReceipts starknet_getBlockWithTxHashes
        starknet_getBlockWithTxs starknet_getClass starknet_getClassAt starknet_getClassHashAt
        starknet_getEvents starknet_getNonce starknet_getStateUpdate starknet_getStorageProof
        starknet_getTransactionByBlockIdAndIndex starknet_simulateTransactions
        starknet_traceBlockTransactions trace_block trace_filter trace_replayBlockTransactions
    """,
    1: """
        debug_traceCall eth_call eth_createAccessList eth_estimateGas eth_feeHistory eth_getBalance
        eth_getCode eth_getStorageValues eth_getTransactionCount eth_simulateV1 starknet_call
        starknet_estimateMessageFee trace_callMany
    """,
    2: """
        eth_getProof eth_getStorageAt starknet_estimateFee starknet_getStorageAt trace_call
    """,
}


def test_tables_name_what_each_method_needs() -> None:
    methods = [*ETH_METHODS, *STARKNET_METHODS]
    assert {method.name for method in methods if method.state} == set(STATE.split())
    single = {method.name for method in methods if method.name.startswith(OF_SINGLE_NODES)} | {"debug_traceBlock"}
    assert {method.name for method in methods if method.tip} == set(AT_THE_HEAD.split()) | single
    assert {method.holds for method in methods if method.name in single} == {Holds.NEVER}
    assert {method.name for method in methods if method.hashes} == set(BY_BARE_HASH.split())
    placed = {name: place for place, names in PLACES.items() for name in names.split()}
    assert {method.name: method.block for method in methods if method.block is not None} == placed


def test_readers_are_those_of_the_requested_methods() -> None:
    assert set(ETH.readers(frozenset({"eth_call", "eth_none"}))) == {"eth_call"}
