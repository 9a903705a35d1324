"""The methods of the `starknet` family: starknet-specs 0.8 to 0.10, read, write, trace and WebSocket.

A table, no rule. Parameters may be given by position or by name, so a block argument has both.
"""

from __future__ import annotations

from tollgate.chains.methods import Holds, Kind, Look, Method


def _at(block: int, *names: str, state: bool = False, look: Look = Look.NOWHERE) -> tuple[Method, ...]:
    return tuple(Method(name, Kind.READ, Holds.BLOCK, block, "block_id", state=state, look=look) for name in names)


def _other(kind: Kind, *names: str) -> tuple[Method, ...]:
    return tuple(Method(name, kind) for name in names)


STARKNET_METHODS: tuple[Method, ...] = (
    Method("starknet_chainId", Kind.READ, Holds.FOREVER),
    Method("starknet_specVersion", Kind.READ, Holds.TIP),
    Method("starknet_syncing", Kind.READ, Holds.TIP, tip=True),
    Method("starknet_blockNumber", Kind.READ, Holds.TIP, tip=True, look=Look.VALUE),
    Method("starknet_blockHashAndNumber", Kind.READ, Holds.TIP, tip=True, look=Look.FINALITY),
    # Blocks and what is in them.
    *_at(
        0,
        "starknet_getBlockWithReceipts",
        "starknet_getBlockWithTxHashes",
        "starknet_getBlockWithTxs",
        look=Look.FINALITY,
    ),
    *_at(
        0,
        "starknet_getBlockTransactionCount",
        "starknet_getStateUpdate",
        "starknet_getTransactionByBlockIdAndIndex",
    ),
    Method("starknet_getEvents", Kind.READ, Holds.RANGE, 0, "filter"),
    # State at a block.
    *_at(
        0,
        "starknet_getClass",
        "starknet_getClassAt",
        "starknet_getClassHashAt",
        "starknet_getNonce",
        "starknet_getStorageProof",
        "starknet_simulateTransactions",
        "starknet_traceBlockTransactions",
        state=True,
    ),
    *_at(1, "starknet_call", "starknet_estimateMessageFee", state=True),
    *_at(2, "starknet_estimateFee", "starknet_getStorageAt", state=True),
    Method("starknet_getCompiledCasm", Kind.READ, Holds.HASH, tip=True),
    # Transactions by hash.
    Method("starknet_getTransactionReceipt", Kind.READ, Holds.MINED, tip=True, look=Look.FINALITY),
    # The hash covers the transaction, but a reorganisation can take it away, and its answer names no block.
    Method("starknet_getTransactionByHash", Kind.READ, Holds.TIP, tip=True),
    # These change between two blocks: a status moves on, and a pre-confirmed transaction is traced again.
    *(
        Method(name, Kind.READ, tip=True)
        for name in ("starknet_getMessagesStatus", "starknet_getTransactionStatus", "starknet_traceTransaction")
    ),
    *_other(
        Kind.WRITE,
        "starknet_addDeclareTransaction",
        "starknet_addDeployAccountTransaction",
        "starknet_addInvokeTransaction",
    ),
    *_other(
        Kind.SUBSCRIBE,
        "starknet_subscribeEvents",
        "starknet_subscribeNewHeads",
        "starknet_subscribeNewTransactionReceipts",
        "starknet_subscribeNewTransactions",
        # As 0.8 called it; 0.9 made two of it.
        "starknet_subscribePendingTransactions",
        "starknet_subscribeTransactionStatus",
        "starknet_unsubscribe",
    ),
)
