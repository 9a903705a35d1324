"""The methods of the `eth` family: ethereum/execution-apis, and what is in use beside it.

A table, no rule. Positions of block arguments are those of geth, which the other nodes follow; `trace_` is as in
OpenEthereum, Erigon and Nethermind.
"""

from __future__ import annotations

from tollgate.chains.methods import Block, Contract, Cost, Effect, Follows, Holds, Kind, Look, Method

READ, WRITE, FILTER, SUBSCRIBE = Kind.READ, Kind.WRITE, Kind.FILTER, Kind.SUBSCRIBE
CHAIN, OWN, ANY, SENDS, STEERS = Effect.CHAIN, Effect.OWN, Effect.ANY, Effect.SENDS, Effect.STEERS
CHEAP, EXPENSIVE = Cost.CHEAP, Cost.EXPENSIVE
FOREVER, TIP, BLOCK, HASH, MINED, RANGE = (
    Holds.FOREVER, Holds.TIP, Holds.BLOCK, Holds.HASH, Holds.MINED, Holds.RANGE,
)  # fmt: skip
_CALL = Contract(0, member="to", overrides=2)
_EVENTS = Contract(0, member="address")
_SUBSCRIPTION = Follows(("newHeads", "syncing"), "logs", Contract(1, member="address"))
# Of geth, Erigon, Nitro, Otterscan and OpenEthereum: answered, never kept.
_OF_SINGLE_NODES = (
    "debug_accountAt", "debug_codeByHash", "debug_dumpBlock", "debug_executionWitnessByHash",
    "debug_getAccessibleState", "debug_getBlockRlp", "debug_getHeaderRlp", "debug_getModifiedAccountsByHash",
    "debug_getModifiedAccountsByNumber", "debug_intermediateRoots", "debug_preimage", "debug_printBlock",
    "debug_traceBadBlock", "debug_traceBlock",
    "arbtrace_block", "arbtrace_call", "arbtrace_callMany", "arbtrace_filter", "arbtrace_get",
    "arbtrace_replayBlockTransactions", "arbtrace_replayTransaction", "arbtrace_transaction",
    "ots_getApiLevel", "ots_getBlockDetails", "ots_getBlockDetailsByHash", "ots_getBlockTransactions",
    "ots_getContractCreator", "ots_getInternalOperations", "ots_getTransactionBySenderAndNonce",
    "ots_getTransactionError", "ots_hasCode", "ots_searchTransactionsAfter", "ots_searchTransactionsBefore",
    "ots_traceTransaction",
    "parity_getBlockReceipts", "parity_nextNonce", "parity_pendingTransactions",
    "parity_pendingTransactionsStats",
)  # fmt: skip
# Who may make blocks, by geth, Besu and Quorum.
_OF_VALIDATORS = (
    "clique_getSigner", "clique_getSigners", "clique_getSignersAtHash", "clique_getSnapshot",
    "clique_getSnapshotAtHash", "clique_status",
    "ibft_getPendingVotes", "ibft_getSignerMetrics", "ibft_getValidatorsByBlockHash",
    "ibft_getValidatorsByBlockNumber",
    "istanbul_getSignersFromBlock", "istanbul_getSignersFromBlockByHash", "istanbul_getSnapshot",
    "istanbul_getSnapshotAtHash", "istanbul_getValidators", "istanbul_getValidatorsAtHash",
    "istanbul_nodeAddress",
    "qbft_getPendingVotes", "qbft_getRequestTimeoutSeconds", "qbft_getSignerMetrics",
    "qbft_getValidatorsByBlockHash", "qbft_getValidatorsByBlockNumber",
)  # fmt: skip

# Name, how it may be repeated, what it does, its cost; how long answers hold, and what that depends on.
ETH_METHODS: tuple[Method, ...] = (
    # About the node itself: another one would answer otherwise.
    Method("eth_accounts", READ, CHAIN, CHEAP),
    Method("eth_capabilities", READ, CHAIN, CHEAP),
    Method("eth_coinbase", READ, CHAIN, CHEAP),
    Method("eth_hashrate", READ, CHAIN, CHEAP),
    Method("eth_mining", READ, CHAIN, CHEAP),
    Method("eth_protocolVersion", READ, CHAIN, CHEAP),
    Method("net_listening", READ, CHAIN, CHEAP),
    Method("net_peerCount", READ, CHAIN, CHEAP),
    Method("web3_clientVersion", READ, CHAIN, CHEAP),
    # About the chain.
    Method("eth_chainId", READ, CHAIN, CHEAP, FOREVER),
    Method("net_version", READ, CHAIN, CHEAP, FOREVER),
    Method("web3_sha3", READ, CHAIN, CHEAP, FOREVER),
    Method("eth_baseFee", READ, CHAIN, CHEAP, TIP, tip=True),
    Method("eth_blobBaseFee", READ, CHAIN, CHEAP, TIP, tip=True),
    Method("eth_blockNumber", READ, CHAIN, CHEAP, TIP, tip=True, look=Look.VALUE),
    Method("eth_config", READ, CHAIN, CHEAP, TIP, tip=True),
    Method("eth_feeHistory", READ, CHAIN, CHEAP, BLOCK, 1),
    Method("eth_gasPrice", READ, CHAIN, CHEAP, TIP, tip=True),
    Method("eth_maxPriorityFeePerGas", READ, CHAIN, CHEAP, TIP, tip=True),
    Method("eth_syncing", READ, CHAIN, CHEAP, TIP, tip=True),
    # State at a block.
    Method("eth_call", READ, _CALL, CHEAP, BLOCK, 1, state=True, hashes=True),
    Method("eth_createAccessList", READ, _CALL, CHEAP, BLOCK, 1, state=True, hashes=True),
    Method("eth_estimateGas", READ, _CALL, CHEAP, BLOCK, 1, state=True, hashes=True),
    Method("eth_getBalance", READ, Contract(0), CHEAP, BLOCK, 1, state=True, hashes=True),
    Method("eth_getCode", READ, Contract(0), CHEAP, BLOCK, 1, state=True, hashes=True),
    Method("eth_getProof", READ, Contract(0), CHEAP, BLOCK, 2, state=True, hashes=True),
    Method("eth_getStorageAt", READ, Contract(0), CHEAP, BLOCK, 2, state=True, hashes=True),
    Method("eth_getStorageValues", READ, ANY, CHEAP, BLOCK, 1, state=True, hashes=True),
    Method("eth_getTransactionCount", READ, Contract(0), CHEAP, BLOCK, 1, state=True, hashes=True),
    Method("eth_simulateV1", READ, ANY, EXPENSIVE, BLOCK, 1, state=True, hashes=True),
    # Its block is deep inside an argument, differently in each node.
    Method("eth_callMany", READ, ANY, EXPENSIVE, state=True, tip=True),
    # Blocks and what is in them.
    Method("eth_getBlockByHash", READ, Block(full=1), CHEAP, HASH, tip=True, look=Look.HEADER),
    Method("eth_getBlockByNumber", READ, Block(full=1), CHEAP, BLOCK, 0, look=Look.HEADER),
    Method("eth_getHeaderByHash", READ, CHAIN, CHEAP, HASH, tip=True, look=Look.HEADER),
    Method("eth_getHeaderByNumber", READ, CHAIN, CHEAP, BLOCK, 0, look=Look.HEADER),
    Method("eth_getBlockAccessList", READ, ANY, CHEAP, BLOCK, 0, hashes=True),
    Method("eth_getBlockReceipts", READ, ANY, CHEAP, BLOCK, 0, hashes=True),
    Method("eth_getBlockTransactionCountByHash", READ, CHAIN, CHEAP, HASH, tip=True),
    Method("eth_getBlockTransactionCountByNumber", READ, CHAIN, CHEAP, BLOCK, 0),
    Method("eth_getRawTransactionByBlockHashAndIndex", READ, ANY, CHEAP, HASH, tip=True),
    Method("eth_getRawTransactionByBlockNumberAndIndex", READ, ANY, CHEAP, BLOCK, 0),
    Method("eth_getTransactionByBlockHashAndIndex", READ, ANY, CHEAP, HASH, tip=True),
    Method("eth_getTransactionByBlockNumberAndIndex", READ, ANY, CHEAP, BLOCK, 0),
    Method("eth_getUncleByBlockHashAndIndex", READ, CHAIN, CHEAP, HASH, tip=True),
    Method("eth_getUncleByBlockNumberAndIndex", READ, CHAIN, CHEAP, BLOCK, 0),
    Method("eth_getUncleCountByBlockHash", READ, CHAIN, CHEAP, HASH, tip=True),
    Method("eth_getUncleCountByBlockNumber", READ, CHAIN, CHEAP, BLOCK, 0),
    Method("eth_getLogs", READ, _EVENTS, CHEAP, RANGE, 0),
    # Transactions by hash.
    Method("eth_getTransactionByHash", READ, ANY, CHEAP, MINED, tip=True, look=Look.MINED),
    Method("eth_getTransactionReceipt", READ, ANY, CHEAP, MINED, tip=True, look=Look.MINED),
    # What it does not find is `0x`, and may come into the pool at any moment.
    Method("eth_getRawTransactionByHash", READ, ANY, CHEAP, tip=True),
    # Transactions that wait.
    Method("eth_fillTransaction", READ, _CALL, CHEAP, tip=True),
    Method("eth_pendingTransactions", READ, ANY, EXPENSIVE, tip=True),
    Method("txpool_content", READ, ANY, EXPENSIVE, tip=True),
    Method("txpool_contentFrom", READ, ANY, CHEAP, tip=True),
    Method("txpool_inspect", READ, ANY, EXPENSIVE, tip=True),
    Method("txpool_status", READ, CHAIN, CHEAP, tip=True),
    # Transactions to send. These, but for the first, use the keys of the node.
    Method("eth_sendRawTransaction", WRITE, SENDS, CHEAP),
    Method("eth_sendTransaction", WRITE, STEERS, CHEAP),
    Method("eth_sign", WRITE, STEERS, CHEAP),
    Method("eth_signTransaction", WRITE, STEERS, CHEAP),
    # Filters and subscriptions. Nodes take a flag for whole transactions where only their hashes are usual.
    Method("eth_newBlockFilter", FILTER, CHAIN, CHEAP),
    Method("eth_newFilter", FILTER, _EVENTS, CHEAP),
    Method("eth_newPendingTransactionFilter", FILTER, ANY, CHEAP),
    Method("eth_getFilterChanges", FILTER, OWN, CHEAP),
    Method("eth_getFilterLogs", FILTER, OWN, CHEAP),
    Method("eth_uninstallFilter", FILTER, OWN, CHEAP),
    Method("eth_subscribe", SUBSCRIBE, _SUBSCRIPTION, CHEAP),
    Method("eth_unsubscribe", SUBSCRIBE, OWN, CHEAP),
    # Blocks and transactions as bytes.
    Method("debug_getBadBlocks", READ, ANY, EXPENSIVE),
    Method("debug_getRawBlock", READ, ANY, EXPENSIVE, BLOCK, 0, hashes=True),
    Method("debug_getRawBlockAccessList", READ, ANY, EXPENSIVE, BLOCK, 0, hashes=True),
    Method("debug_getRawHeader", READ, CHAIN, EXPENSIVE, BLOCK, 0, hashes=True),
    Method("debug_getRawReceipts", READ, ANY, EXPENSIVE, BLOCK, 0, hashes=True),
    Method("debug_getRawTransaction", READ, ANY, EXPENSIVE, tip=True),
    # Traces and state.
    Method("debug_accountRange", READ, ANY, EXPENSIVE, BLOCK, 0, state=True, hashes=True),
    Method("debug_executionWitness", READ, ANY, EXPENSIVE, BLOCK, 0, state=True, hashes=True),
    Method("debug_storageRangeAt", READ, ANY, EXPENSIVE, BLOCK, 0, state=True, hashes=True),
    Method("debug_traceBlockByHash", READ, ANY, EXPENSIVE, HASH, state=True, tip=True),
    Method("debug_traceBlockByNumber", READ, ANY, EXPENSIVE, BLOCK, 0, state=True, hashes=True),
    Method("debug_traceCall", READ, ANY, EXPENSIVE, BLOCK, 1, state=True, hashes=True),
    Method("debug_traceCallMany", READ, ANY, EXPENSIVE, state=True, tip=True),
    Method("trace_block", READ, ANY, EXPENSIVE, BLOCK, 0, state=True, hashes=True),
    Method("trace_call", READ, ANY, EXPENSIVE, BLOCK, 2, state=True, hashes=True),
    Method("trace_callMany", READ, ANY, EXPENSIVE, BLOCK, 1, state=True, hashes=True),
    Method("trace_filter", READ, ANY, EXPENSIVE, RANGE, 0, state=True),
    Method("trace_get", READ, ANY, EXPENSIVE, MINED, tip=True, look=Look.MINED),
    Method("trace_rawTransaction", READ, ANY, EXPENSIVE, TIP, tip=True),
    Method("trace_replayBlockTransactions", READ, ANY, EXPENSIVE, BLOCK, 0, state=True, hashes=True),
    Method("trace_transaction", READ, ANY, EXPENSIVE, MINED, tip=True, look=Look.MINED),
    # Their answers do not name the transaction's block, so a reorganisation could not find them again.
    Method("debug_traceTransaction", READ, ANY, EXPENSIVE, TIP, state=True, tip=True),
    Method("trace_replayTransaction", READ, ANY, EXPENSIVE, TIP, state=True, tip=True),
    *(Method(name, READ, ANY, EXPENSIVE, tip=True) for name in _OF_SINGLE_NODES),
    *(Method(name, READ, CHAIN, CHEAP, tip=True) for name in _OF_VALIDATORS),
)
