"""The methods of the simulated Ethereum networks: how each reads its parameters and what it answers.

Of a submitted transaction only its true hash is kept: nothing of it is checked or run, and it appears in the
next block as a transfer of nothing. A block's logs are computed when they are queried, so the range of a query
is limited as node providers limit it.
"""

from __future__ import annotations

from collections.abc import Mapping

from tollgate import __version__
from tollgate.demo import eth_shapes as shapes
from tollgate.demo import eth_state as state
from tollgate.demo.chain import SimulatedChain, Transfer, keccak256
from tollgate.demo.network import ChainView, MethodFunction, SimulatedNetwork
from tollgate.demo.params import RpcError, Shape, array, integer, invalid, mapping, octets, quantity

INVALID_INPUT = -32000
MAX_LOG_BLOCKS = 500
_MAX_TOPICS = 4
_MAX_CHOICES = 100

# Two epochs make a block final, one makes it safe, in the best case.
_SAFE_BEHIND = 32
_FINAL_BEHIND = 64

# geth's limits.
_MAX_FEE_BLOCKS = 1024
_MAX_PERCENTILES = 100
_MAX_TRANSACTION_BYTES = 128 * 1024

_PLAIN_GAS = 21_000
_BYTE_GAS = 16


def _resolve(view: ChainView, value: object, what: str = "block") -> int | None:
    """Return the height that a number or tag means; `pending` is one above the head."""
    match value:
        case "latest":
            return view.head
        case "pending":
            return view.head + 1
        case "safe":
            return max(0, view.head - _SAFE_BEHIND)
        case "finalized":
            return max(0, view.head - _FINAL_BEHIND)
        case "earliest":
            return 0
    height = quantity(value, what, bits=64)
    return height if height <= view.head else None


def _resolve_hash(view: ChainView, value: object, what: str = "hash") -> int | None:
    """Return the height of a block by its hash, if the chain has it."""
    height = view.chain.block_height(octets(value, what, 32))
    return height if height is not None and height <= view.head else None


def _state_height(view: ChainView, value: object) -> int:
    """Return the height of a number, a tag or an EIP-1898 object; what is pending has changed nothing yet."""
    if not isinstance(value, Mapping):
        height = _resolve(view, value)
    elif "blockHash" in value:
        height = _resolve_hash(view, value["blockHash"], "blockHash")
    elif "blockNumber" in value:
        height = _resolve(view, value["blockNumber"], "blockNumber")
    else:
        raise invalid("block has neither blockHash nor blockNumber")
    if height is None:
        raise RpcError(INVALID_INPUT, "header not found")
    return min(height, view.head)


# ---- blocks


def _block(view: ChainView, height: int | None, full: object) -> Shape | None:
    if not isinstance(full, bool):
        raise invalid("the second is not true or false")
    if height is None:
        return None
    return (
        shapes.block(view, height, full=full) if height <= view.head else shapes.pending_block(view.chain, height)
    )


def _count(view: ChainView, height: int | None) -> str | None:
    return None if height is None else hex(view.count(height) if height <= view.head else 0)


def _block_receipts(view: ChainView, block: object) -> list[Shape] | None:
    if isinstance(block, str) and len(block) == 66:
        height = _resolve_hash(view, block)
    elif isinstance(block, dict):
        height = _state_height(view, block)
    else:
        height = _resolve(view, block)
    if height is None or height > view.head:
        return None
    return [shapes.receipt(view.chain, tx) for tx in view.transfers(height)]


# ---- transactions


def _transaction_by_hash(view: ChainView, tx_hash: object) -> Shape | None:
    name = octets(tx_hash, "hash", 32)
    if pending := view.pending(name):
        return shapes.pending_transaction(view.chain, pending)
    found = view.find(name)
    return None if found is None else shapes.transaction(view.chain, found)


def _transaction_at(view: ChainView, height: int | None, index: object) -> Shape | None:
    at = quantity(index, "index", bits=64)
    found = [] if height is None or height > view.head else view.transfers(height)
    return shapes.transaction(view.chain, found[at]) if at < len(found) else None


def _transaction_receipt(view: ChainView, tx_hash: object) -> Shape | None:
    found = view.find(octets(tx_hash, "hash", 32))
    return None if found is None else shapes.receipt(view.chain, found)


def _send_raw_transaction(view: ChainView, transaction: object) -> str:
    raw = octets(transaction, "transaction")
    if not raw:
        raise invalid("transaction is empty")
    if len(raw) > _MAX_TRANSACTION_BYTES:
        raise RpcError(INVALID_INPUT, f"oversized data: {len(raw)} bytes, limit {_MAX_TRANSACTION_BYTES}")
    name = keccak256(raw)
    view.submit(name, RpcError(INVALID_INPUT, "already known"))
    return shapes.text(name)


# ---- state


def _get_balance(view: ChainView, address: object, block: object = "latest") -> str:
    return hex(state.balance(view.chain, octets(address, "address", 20), _state_height(view, block)))


def _get_nonce(view: ChainView, address: object, block: object = "latest") -> str:
    return hex(state.nonce(view.chain, octets(address, "address", 20), _state_height(view, block)))


def _get_code(view: ChainView, address: object, block: object = "latest") -> str:
    _state_height(view, block)
    return shapes.text(state.code(octets(address, "address", 20)))


def _get_storage(view: ChainView, address: object, slot: object, block: object = "latest") -> str:
    height = _state_height(view, block)
    return shapes.text(state.storage(view.chain, octets(address, "address", 20), quantity(slot, "slot"), height))


def _target(transaction: object) -> tuple[bytes | None, bytes]:
    """Read who is called and with what; `input` is the newer name of `data`."""
    given = mapping(transaction, "transaction")
    to = octets(given["to"], "to", 20) if "to" in given else None
    return to, octets(given.get("input", given.get("data", "0x")), "input")


def _call(
    view: ChainView, transaction: object, block: object = "latest", _state: object = None, _blocks: object = None
) -> str:
    """Overrides of state and block are accepted and without effect here, and below."""
    to, data = _target(transaction)
    return shapes.text(state.call(view.chain, to, data, _state_height(view, block)))


def _estimate_gas(
    view: ChainView, transaction: object, block: object = "latest", _state: object = None, _blocks: object = None
) -> str:
    to, data = _target(transaction)
    height = _state_height(view, block)
    if to == shapes.TOKEN:
        # What would revert has no estimate.
        state.call(view.chain, to, data, height)
        return hex(shapes.GAS_USED)
    return hex(_PLAIN_GAS + _BYTE_GAS * len(data))


def _fee_history(view: ChainView, count: object, newest: object, percentiles: object = None) -> Shape:
    wanted = quantity(count, "count", bits=64) if isinstance(count, str) else integer(count, "count")
    rewards = 0 if percentiles is None else len(array(percentiles, "percentiles", _MAX_PERCENTILES))
    last = _state_height(view, newest)
    blocks = min(wanted, _MAX_FEE_BLOCKS, last + 1)
    heights = range(last - blocks + 1, last + 1)
    history: Shape = {
        "oldestBlock": hex(heights.start),
        "baseFeePerGas": [hex(shapes.BASE_FEE)] * (blocks + 1),
        "gasUsedRatio": [shapes.GAS_USED * view.count(height) / shapes.GAS_LIMIT for height in heights],
        "baseFeePerBlobGas": ["0x1"] * (blocks + 1),
        "blobGasUsedRatio": [0.0] * blocks,
    }
    if rewards:
        history["reward"] = [[hex(shapes.TIP)] * rewards] * blocks
    return history


# ---- logs


def _get_logs(view: ChainView, query: object) -> list[Shape]:
    given = mapping(query, "filter")
    addresses = _choices(given.get("address"), "address", 20)
    wanted = [_choices(topic, "topic", 32) for topic in array(given.get("topics", []), "topics", _MAX_TOPICS)]
    heights = _log_range(view, given)
    if addresses is not None and shapes.TOKEN not in addresses:
        return []
    return [
        shapes.log(view.chain, tx)
        for height in heights
        for tx in view.transfers(height)
        if _has_topics(view.chain, tx, wanted)
    ]


def _log_range(view: ChainView, given: Mapping[str, object]) -> range:
    if "blockHash" in given:
        if "fromBlock" in given or "toBlock" in given:
            raise invalid("blockHash excludes fromBlock and toBlock")
        height = _resolve_hash(view, given["blockHash"], "blockHash")
        if height is None:
            raise RpcError(INVALID_INPUT, "unknown block")
        return range(height, height + 1)
    ends = [_resolve(view, given.get(name, "latest"), name) for name in ("fromBlock", "toBlock")]
    # Beyond the head there is nothing to find, which is no error.
    first, last = (view.head + 1 if height is None else height for height in ends)
    if first > last:
        raise invalid("fromBlock is after toBlock")
    found = range(first, min(last, view.head) + 1)
    if len(found) > MAX_LOG_BLOCKS:
        # In words that real providers use, so that gateways know what to do.
        raise invalid(f"query exceeds max block range {MAX_LOG_BLOCKS}")
    return found


def _choices(value: object, what: str, size: int) -> frozenset[bytes] | None:
    """Read one value or several; `None` means any."""
    if value is None or value == []:
        return None
    choices = array(value, what, _MAX_CHOICES) if isinstance(value, list) else [value]
    return None if None in choices else frozenset(octets(choice, what, size) for choice in choices)


def _has_topics(chain: SimulatedChain, tx: Transfer, wanted: list[frozenset[bytes] | None]) -> bool:
    found = shapes.topics(chain, tx)
    return len(wanted) <= len(found) and all(
        choices is None or topic in choices for choices, topic in zip(wanted, found, strict=False)
    )


METHODS: dict[str, MethodFunction] = {
    "eth_chainId": lambda view: hex(shapes.CHAIN_IDS[view.chain.network]),
    "net_version": lambda view: str(shapes.CHAIN_IDS[view.chain.network]),
    "net_listening": lambda _: True,
    "web3_clientVersion": lambda _: f"Tollgate-SimulatedChain/v{__version__}",
    "eth_syncing": lambda _: False,
    "eth_accounts": lambda _: [],
    "eth_blockNumber": lambda view: hex(view.head),
    "eth_getBlockByNumber": lambda view, block, full=False: _block(view, _resolve(view, block), full),
    "eth_getBlockByHash": lambda view, block_hash, full=False: _block(view, _resolve_hash(view, block_hash), full),
    "eth_getBlockTransactionCountByNumber": lambda view, block: _count(view, _resolve(view, block)),
    "eth_getBlockTransactionCountByHash": lambda view, block_hash: _count(view, _resolve_hash(view, block_hash)),
    "eth_getBlockReceipts": _block_receipts,
    "eth_getTransactionByHash": _transaction_by_hash,
    "eth_getTransactionByBlockNumberAndIndex": lambda view, block, index: _transaction_at(
        view, _resolve(view, block), index
    ),
    "eth_getTransactionByBlockHashAndIndex": lambda view, block_hash, index: _transaction_at(
        view, _resolve_hash(view, block_hash), index
    ),
    "eth_getTransactionReceipt": _transaction_receipt,
    "eth_sendRawTransaction": _send_raw_transaction,
    "eth_getLogs": _get_logs,
    "eth_getBalance": _get_balance,
    "eth_getTransactionCount": _get_nonce,
    "eth_getCode": _get_code,
    "eth_getStorageAt": _get_storage,
    "eth_call": _call,
    "eth_estimateGas": _estimate_gas,
    "eth_gasPrice": lambda _: hex(shapes.GAS_PRICE),
    "eth_maxPriorityFeePerGas": lambda _: hex(shapes.TIP),
    "eth_blobBaseFee": lambda _: "0x1",
    "eth_feeHistory": _fee_history,
}


def eth_network(network: str, genesis: int) -> SimulatedNetwork:
    return SimulatedNetwork(SimulatedChain("eth", network, genesis), METHODS, by_name=False)
