"""The methods of the `eth` family: ethereum/execution-apis, and what is in use beside it.

A table, no rule. Positions of block arguments are those of geth, which the other nodes follow; `trace_` is as in
OpenEthereum, Erigon and Nethermind.
"""

from __future__ import annotations

from tollgate.chains.methods import Holds, Kind, Look, Method


def _fixed(holds: Holds, *names: str, tip: bool = False) -> tuple[Method, ...]:
    return tuple(Method(name, Kind.READ, holds, tip=tip) for name in names)


def _other(kind: Kind, *names: str) -> tuple[Method, ...]:
    return tuple(Method(name, kind) for name in names)


def _at(block: int, *names: str, state: bool = False, hashes: bool = False) -> tuple[Method, ...]:
    return tuple(Method(name, Kind.READ, Holds.BLOCK, block, state=state, hashes=hashes) for name in names)


def _by_hash(*names: str, state: bool = False, look: Look = Look.NOWHERE) -> tuple[Method, ...]:
    return tuple(Method(name, Kind.READ, Holds.HASH, state=state, tip=True, look=look) for name in names)


ETH_METHODS: tuple[Method, ...] = (
    # About the node itself: another one would answer otherwise.
    *_fixed(
        Holds.NEVER,
        "eth_accounts",
        "eth_capabilities",
        "eth_coinbase",
        "eth_hashrate",
        "eth_mining",
        "eth_protocolVersion",
        "net_listening",
        "net_peerCount",
        "web3_clientVersion",
        "debug_getBadBlocks",
    ),
    # Of transactions that wait.
    *_fixed(
        Holds.NEVER,
        "eth_fillTransaction",
        "eth_pendingTransactions",
        "txpool_content",
        "txpool_contentFrom",
        "txpool_inspect",
        "txpool_status",
        tip=True,
    ),
    *_fixed(Holds.FOREVER, "eth_chainId", "net_version", "web3_sha3"),
    *_fixed(
        Holds.TIP,
        "eth_baseFee",
        "eth_blobBaseFee",
        "eth_config",
        "eth_gasPrice",
        "eth_maxPriorityFeePerGas",
        "eth_syncing",
        "trace_rawTransaction",
        tip=True,
    ),
    Method("eth_blockNumber", Kind.READ, Holds.TIP, tip=True, look=Look.VALUE),
    # State at a block.
    *_at(
        1,
        "eth_call",
        "eth_createAccessList",
        "eth_estimateGas",
        "eth_getBalance",
        "eth_getCode",
        "eth_getStorageValues",
        "eth_getTransactionCount",
        "eth_simulateV1",
        "debug_traceCall",
        "trace_callMany",
        state=True,
        hashes=True,
    ),
    *_at(2, "eth_getProof", "eth_getStorageAt", "trace_call", state=True, hashes=True),
    *_at(
        0,
        "debug_accountRange",
        "debug_executionWitness",
        "debug_storageRangeAt",
        "debug_traceBlockByNumber",
        "trace_block",
        "trace_replayBlockTransactions",
        state=True,
        hashes=True,
    ),
    *_by_hash("debug_traceBlockByHash", state=True),
    # Blocks and what is in them.
    Method("eth_getBlockByNumber", Kind.READ, Holds.BLOCK, 0, look=Look.HEADER),
    Method("eth_getHeaderByNumber", Kind.READ, Holds.BLOCK, 0, look=Look.HEADER),
    *_by_hash("eth_getBlockByHash", "eth_getHeaderByHash", look=Look.HEADER),
    *_at(
        0,
        "eth_getBlockTransactionCountByNumber",
        "eth_getRawTransactionByBlockNumberAndIndex",
        "eth_getTransactionByBlockNumberAndIndex",
        "eth_getUncleByBlockNumberAndIndex",
        "eth_getUncleCountByBlockNumber",
    ),
    *_at(
        0,
        "eth_getBlockAccessList",
        "eth_getBlockReceipts",
        "debug_getRawBlock",
        "debug_getRawBlockAccessList",
        "debug_getRawHeader",
        "debug_getRawReceipts",
        hashes=True,
    ),
    *_by_hash(
        "eth_getBlockTransactionCountByHash",
        "eth_getRawTransactionByBlockHashAndIndex",
        "eth_getTransactionByBlockHashAndIndex",
        "eth_getUncleByBlockHashAndIndex",
        "eth_getUncleCountByBlockHash",
    ),
    *_at(1, "eth_feeHistory"),
    Method("eth_getLogs", Kind.READ, Holds.RANGE, 0),
    Method("trace_filter", Kind.READ, Holds.RANGE, 0, state=True),
    # Transactions by hash.
    *(
        Method(name, Kind.READ, Holds.MINED, tip=True, look=Look.MINED)
        for name in ("eth_getTransactionByHash", "eth_getTransactionReceipt", "trace_get", "trace_transaction")
    ),
    # Their answers do not name the transaction's block, so a reorganisation could not find them again.
    *(
        Method(name, Kind.READ, Holds.TIP, state=True, tip=True)
        for name in ("debug_traceTransaction", "trace_replayTransaction")
    ),
    # What these do not find is `0x`, and may come into the pool at any moment.
    *_fixed(Holds.NEVER, "debug_getRawTransaction", "eth_getRawTransactionByHash", tip=True),
    # Their block is deep inside an argument, differently in each node.
    *(Method(name, Kind.READ, tip=True, state=True) for name in ("debug_traceCallMany", "eth_callMany")),
    *_other(Kind.WRITE, "eth_sendRawTransaction", "eth_sendTransaction", "eth_sign", "eth_signTransaction"),
    *_other(
        Kind.FILTER,
        "eth_getFilterChanges",
        "eth_getFilterLogs",
        "eth_newBlockFilter",
        "eth_newFilter",
        "eth_newPendingTransactionFilter",
        "eth_uninstallFilter",
    ),
    *_other(Kind.SUBSCRIBE, "eth_subscribe", "eth_unsubscribe"),
)
