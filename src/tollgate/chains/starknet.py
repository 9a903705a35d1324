"""The methods of the `starknet` family: starknet-specs 0.8 to 0.10, read, write, trace and WebSocket.

A table, no rule. Parameters may be given by position or by name, so a block argument has both.
"""

from __future__ import annotations

from tollgate.chains.methods import Contract, Cost, Effect, Holds, Kind, Look, Method

READ, WRITE, SUBSCRIBE = Kind.READ, Kind.WRITE, Kind.SUBSCRIBE
CHAIN, OWN, ANY, SENDS = Effect.CHAIN, Effect.OWN, Effect.ANY, Effect.SENDS
CHEAP, EXPENSIVE = Cost.CHEAP, Cost.EXPENSIVE
FOREVER, TIP, BLOCK, HASH, MINED, RANGE = (
    Holds.FOREVER, Holds.TIP, Holds.BLOCK, Holds.HASH, Holds.MINED, Holds.RANGE,
)  # fmt: skip
_CALL = Contract(0, "request", "contract_address")
_AT = Contract(1, "contract_address")

# Name, how it may be repeated, what it does, its cost; how long answers hold, and what that depends on.
STARKNET_METHODS: tuple[Method, ...] = (
    # About the chain.
    Method("starknet_chainId", READ, CHAIN, CHEAP, FOREVER),
    Method("starknet_specVersion", READ, CHAIN, CHEAP, TIP),
    Method("starknet_syncing", READ, CHAIN, CHEAP, TIP, tip=True),
    Method("starknet_blockNumber", READ, CHAIN, CHEAP, TIP, tip=True, look=Look.VALUE),
    Method("starknet_blockHashAndNumber", READ, CHAIN, CHEAP, TIP, tip=True, look=Look.FINALITY),
    # Blocks and what is in them.
    Method("starknet_getBlockWithReceipts", READ, ANY, CHEAP, BLOCK, 0, "block_id", look=Look.FINALITY),
    Method("starknet_getBlockWithTxHashes", READ, CHAIN, CHEAP, BLOCK, 0, "block_id", look=Look.FINALITY),
    Method("starknet_getBlockWithTxs", READ, ANY, CHEAP, BLOCK, 0, "block_id", look=Look.FINALITY),
    Method("starknet_getBlockTransactionCount", READ, CHAIN, CHEAP, BLOCK, 0, "block_id"),
    Method("starknet_getStateUpdate", READ, ANY, CHEAP, BLOCK, 0, "block_id"),
    Method("starknet_getTransactionByBlockIdAndIndex", READ, ANY, CHEAP, BLOCK, 0, "block_id"),
    Method("starknet_getEvents", READ, Contract(0, "filter", "address"), CHEAP, RANGE, 0, "filter"),
    # State at a block.
    Method("starknet_call", READ, _CALL, CHEAP, BLOCK, 1, "block_id", state=True),
    Method("starknet_estimateFee", READ, ANY, CHEAP, BLOCK, 2, "block_id", state=True),
    Method("starknet_estimateMessageFee", READ, ANY, CHEAP, BLOCK, 1, "block_id", state=True),
    Method("starknet_getClass", READ, ANY, CHEAP, BLOCK, 0, "block_id", state=True),
    Method("starknet_getClassAt", READ, _AT, CHEAP, BLOCK, 0, "block_id", state=True),
    Method("starknet_getClassHashAt", READ, _AT, CHEAP, BLOCK, 0, "block_id", state=True),
    Method("starknet_getNonce", READ, _AT, CHEAP, BLOCK, 0, "block_id", state=True),
    Method(
        "starknet_getStorageAt", READ, Contract(0, "contract_address"), CHEAP, BLOCK, 2, "block_id", state=True
    ),
    Method("starknet_getStorageProof", READ, ANY, CHEAP, BLOCK, 0, "block_id", state=True),
    Method("starknet_simulateTransactions", READ, ANY, EXPENSIVE, BLOCK, 0, "block_id", state=True),
    Method("starknet_traceBlockTransactions", READ, ANY, EXPENSIVE, BLOCK, 0, "block_id", state=True),
    Method("starknet_getCompiledCasm", READ, ANY, CHEAP, HASH, tip=True),
    # Transactions by hash.
    Method("starknet_getTransactionReceipt", READ, ANY, CHEAP, MINED, tip=True, look=Look.FINALITY),
    # The hash covers the transaction, but a reorganisation can take it away, and its answer names no block.
    Method("starknet_getTransactionByHash", READ, ANY, CHEAP, TIP, tip=True),
    # These change between two blocks: a status moves on, and a pre-confirmed transaction is traced again.
    Method("starknet_getMessagesStatus", READ, ANY, CHEAP, tip=True),
    Method("starknet_getTransactionStatus", READ, ANY, CHEAP, tip=True),
    Method("starknet_traceTransaction", READ, ANY, EXPENSIVE, tip=True),
    Method("starknet_addDeclareTransaction", WRITE, SENDS, CHEAP),
    Method("starknet_addDeployAccountTransaction", WRITE, SENDS, CHEAP),
    Method("starknet_addInvokeTransaction", WRITE, SENDS, CHEAP),
    Method("starknet_subscribeEvents", SUBSCRIBE, Contract(0, "from_address"), CHEAP),
    Method("starknet_subscribeNewHeads", SUBSCRIBE, CHAIN, CHEAP),
    Method("starknet_subscribeNewTransactionReceipts", SUBSCRIBE, ANY, CHEAP),
    Method("starknet_subscribeNewTransactions", SUBSCRIBE, ANY, CHEAP),
    # As 0.8 called it; 0.9 made two of it.
    Method("starknet_subscribePendingTransactions", SUBSCRIBE, ANY, CHEAP),
    Method("starknet_subscribeTransactionStatus", SUBSCRIBE, ANY, CHEAP),
    Method("starknet_unsubscribe", SUBSCRIBE, OWN, CHEAP),
)
