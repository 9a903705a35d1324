"""The Ethereum family of the simulated chain: its method table.

Owns which methods exist and how each reads its parameters. Shapes are in `eth_shapes.py`, state in
`eth_state.py`, block parameters in `eth_blocks.py`, logs in `eth_logs.py`, subscriptions in `eth_feed.py`. Of a
submitted transaction only its true hash is kept: nothing of it is checked or run, and it appears in the next
block as a transfer of nothing.
"""

from __future__ import annotations

from pathlib import Path

from tollgate import __version__
from tollgate.demo.chain import BLOCK_SECONDS, Chain, Sent
from tollgate.demo.chain_keccak import keccak256
from tollgate.demo.chain_params import (
    Args,
    Method,
    RpcError,
    Sending,
    Shape,
    array,
    integer,
    invalid,
    mapping,
    octets,
    quantity,
)
from tollgate.demo.chain_view import View
from tollgate.demo.eth_blocks import INVALID_INPUT, block_height, resolve, state_height
from tollgate.demo.eth_feed import SUBSCRIBING
from tollgate.demo.eth_logs import get_logs
from tollgate.demo.eth_shapes import (
    BASE_FEE,
    CHAIN_IDS,
    GAS_LIMIT,
    GAS_PRICE,
    GAS_USED,
    TIP,
    TOKEN,
    block,
    pending_block,
    pending_transaction,
    receipt,
    text,
    transaction,
)
from tollgate.demo.eth_state import balance, call, code, nonce, storage
from tollgate.demo.network import SimulatedNetwork

NETWORKS = tuple(CHAIN_IDS)

# geth's limits.
_MAX_FEE_BLOCKS = 1024
_MAX_PERCENTILES = 100
_LARGEST_TRANSACTION = 128 * 1024

_PLAIN_GAS = 21_000
_BYTE_GAS = 16


def _get_block(view: View, height: int | None, full: object) -> Shape | None:
    if not isinstance(full, bool):
        raise invalid("the second is not true or false")
    if height is None:
        return None
    if height > view.head:
        return pending_block(view.chain, height)
    return block(view, height, full=full)


def _block_by_number(view: View, args: Args) -> Shape | None:
    return _get_block(view, resolve(view, args["block"]), args.get("full", False))


def _block_by_hash(view: View, args: Args) -> Shape | None:
    return _get_block(view, _by_hash(view, args), args.get("full", False))


def _by_hash(view: View, args: Args) -> int | None:
    return block_height(view, octets(args["hash"], "hash", 32))


def _mined(view: View, height: int | None) -> int | None:
    """Return the height of a block that has transactions to show: the pending one has none."""
    return height if height is not None and height <= view.head else None


def _count(view: View, height: int | None) -> str | None:
    if height is None:
        return None
    return hex(0 if height > view.head else view.count(height))


def _block_receipts(view: View, args: Args) -> list[Shape] | None:
    value = args["block"]
    if isinstance(value, str) and len(value) == 66:
        height = block_height(view, octets(value, "block", 32))
    elif isinstance(value, dict):
        height = state_height(view, value)
    else:
        height = _mined(view, resolve(view, value))
    if height is None:
        return None
    return [receipt(view.chain, move) for move in view.moves(height)]


def _transaction_by_hash(view: View, args: Args) -> Shape | None:
    name = octets(args["hash"], "hash", 32)
    if waiting := view.waiting(name):
        return pending_transaction(view.chain, waiting)
    move = view.find(name)
    return None if move is None else transaction(view.chain, move)


def _receipt(view: View, args: Args) -> Shape | None:
    move = view.find(octets(args["hash"], "hash", 32))
    return None if move is None else receipt(view.chain, move)


def _transaction_at(view: View, args: Args, height: int | None) -> Shape | None:
    index = quantity(args["index"], "index", bits=64)
    move = None if height is None else view.move_at(height, index)
    return None if move is None else transaction(view.chain, move)


def _account(view: View, args: Args) -> tuple[bytes, int]:
    return octets(args["address"], "address", 20), state_height(view, args.get("block", "latest"))


def _balance(view: View, args: Args) -> str:
    return hex(balance(view.chain, *_account(view, args)))


def _nonce(view: View, args: Args) -> str:
    return hex(nonce(view.chain, *_account(view, args)))


def _code(view: View, args: Args) -> str:
    address, _ = _account(view, args)
    return text(code(address))


def _storage(view: View, args: Args) -> str:
    address, height = _account(view, args)
    return text(storage(view.chain, address, quantity(args["slot"], "slot"), height))


def _target(args: Args) -> tuple[bytes | None, bytes]:
    """Read who is called and with what; `input` is the newer name of `data`."""
    given = mapping(args["transaction"], "transaction")
    to = octets(given["to"], "to", 20) if "to" in given else None
    return to, octets(given.get("input", given.get("data", "0x")), "input")


def _call(view: View, args: Args) -> str:
    to, data = _target(args)
    return text(call(view.chain, to, data, state_height(view, args.get("block", "latest"))))


def _estimate_gas(view: View, args: Args) -> str:
    to, data = _target(args)
    height = state_height(view, args.get("block", "latest"))
    if to == TOKEN:
        # What would revert has no estimate.
        call(view.chain, to, data, height)
        return hex(GAS_USED)
    return hex(_PLAIN_GAS + _BYTE_GAS * len(data))


def _fee_history(view: View, args: Args) -> Shape:
    value = args["count"]
    count = quantity(value, "count", bits=64) if isinstance(value, str) else integer(value, "count")
    percentiles = array(args.get("percentiles", []), "percentiles", _MAX_PERCENTILES)
    newest = state_height(view, args["newest"])
    count = min(count, _MAX_FEE_BLOCKS, newest + 1)
    oldest = newest - count + 1
    used = [GAS_USED * view.count(height) / GAS_LIMIT for height in range(oldest, newest + 1)]
    history: Shape = {
        "oldestBlock": hex(oldest),
        "baseFeePerGas": [hex(BASE_FEE)] * (count + 1),
        "gasUsedRatio": used,
        "baseFeePerBlobGas": ["0x1"] * (count + 1),
        "blobGasUsedRatio": [0.0] * count,
    }
    if percentiles:
        history["reward"] = [[hex(TIP)] * len(percentiles)] * count
    return history


def _syncing(view: View, _args: Args) -> object:
    if view.tip is None:
        return False
    return {"startingBlock": "0x0", "currentBlock": hex(view.head), "highestBlock": hex(view.tip)}


def _send(_view: View, args: Args) -> Sending:
    raw = octets(args["transaction"], "transaction")
    if not raw:
        raise invalid("transaction is empty")
    if len(raw) > _LARGEST_TRANSACTION:
        raise RpcError(INVALID_INPUT, f"oversized data: {len(raw)} bytes, limit {_LARGEST_TRANSACTION}")
    name = keccak256(raw)
    return Sending(Sent(name), text(name), RpcError(INVALID_INPUT, "already known"))


METHODS: dict[str, Method] = {
    "eth_chainId": Method((), 0, lambda view, _: hex(CHAIN_IDS[view.chain.network])),
    "net_version": Method((), 0, lambda view, _: str(CHAIN_IDS[view.chain.network])),
    "net_listening": Method((), 0, lambda *_: True),
    "web3_clientVersion": Method((), 0, lambda *_: f"Tollgate-SimulatedChain/v{__version__}"),
    "eth_syncing": Method((), 0, _syncing),
    "eth_accounts": Method((), 0, lambda *_: []),
    "eth_blockNumber": Method((), 0, lambda view, _: hex(view.head)),
    "eth_getBlockByNumber": Method(("block", "full"), 1, _block_by_number),
    "eth_getBlockByHash": Method(("hash", "full"), 1, _block_by_hash),
    "eth_getBlockTransactionCountByNumber": Method(
        ("block",), 1, lambda view, args: _count(view, resolve(view, args["block"]))
    ),
    "eth_getBlockTransactionCountByHash": Method(
        ("hash",), 1, lambda view, args: _count(view, _by_hash(view, args))
    ),
    "eth_getBlockReceipts": Method(("block",), 1, _block_receipts),
    "eth_getTransactionByHash": Method(("hash",), 1, _transaction_by_hash),
    "eth_getTransactionByBlockNumberAndIndex": Method(
        ("block", "index"),
        2,
        lambda view, args: _transaction_at(view, args, _mined(view, resolve(view, args["block"]))),
    ),
    "eth_getTransactionByBlockHashAndIndex": Method(
        ("hash", "index"), 2, lambda view, args: _transaction_at(view, args, _by_hash(view, args))
    ),
    "eth_getTransactionReceipt": Method(("hash",), 1, _receipt),
    "eth_getLogs": Method(("filter",), 1, get_logs),
    "eth_getBalance": Method(("address", "block"), 1, _balance),
    "eth_getTransactionCount": Method(("address", "block"), 1, _nonce),
    "eth_getCode": Method(("address", "block"), 1, _code),
    "eth_getStorageAt": Method(("address", "slot", "block"), 2, _storage),
    # The two that follow are overrides of state and block, accepted and without effect here.
    "eth_call": Method(("transaction", "block", "state", "blocks"), 1, _call),
    "eth_estimateGas": Method(("transaction", "block", "state", "blocks"), 1, _estimate_gas),
    "eth_gasPrice": Method((), 0, lambda *_: hex(GAS_PRICE)),
    "eth_maxPriorityFeePerGas": Method((), 0, lambda *_: hex(TIP)),
    "eth_blobBaseFee": Method((), 0, lambda *_: "0x1"),
    "eth_feeHistory": Method(("count", "newest", "percentiles"), 2, _fee_history),
    "eth_sendRawTransaction": Method(("transaction",), 1, _send),
}


class EthNode(SimulatedNetwork):
    """Answers the methods of one Ethereum network."""

    methods = METHODS
    subscribing = SUBSCRIBING
    by_name = False

    def __init__(
        self,
        network: str,
        genesis: int,
        *,
        block_seconds: float = BLOCK_SECONDS,
        seed: int = 0,
        shared: Path | None = None,
    ) -> None:
        super().__init__(Chain("eth", network, genesis, block_seconds=block_seconds, seed=seed), shared)
