"""The Starknet family of the simulated chain: its method table.

Owns which methods exist and how each reads its parameters. Shapes are in `starknet_shapes.py`, state in
`starknet_state.py`, classes in `starknet_classes.py`, block ids in `starknet_blocks.py`, events in
`starknet_events.py`, submitted transactions in `starknet_sent.py`, subscriptions in `starknet_feed.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tollgate.demo.chain import BLOCK_SECONDS, Chain, Transfer
from tollgate.demo.chain_params import Args, Method, RpcError, Sending, Shape, array, integer, mapping
from tollgate.demo.chain_view import View, transaction_hash
from tollgate.demo.network import SimulatedNetwork
from tollgate.demo.starknet_blocks import felt_value, hash_bytes, resolve, state_height
from tollgate.demo.starknet_classes import contract_class
from tollgate.demo.starknet_events import get_events
from tollgate.demo.starknet_feed import SUBSCRIBING
from tollgate.demo.starknet_sent import already_known, declared_class, submitted
from tollgate.demo.starknet_shapes import (
    CHAIN_IDS,
    DECLARE,
    DEPLOY_ACCOUNT,
    FEE,
    INVOKE,
    L1_DATA_GAS,
    L1_DATA_GAS_PRICE,
    L1_GAS,
    L1_GAS_PRICE,
    L2_GAS,
    L2_GAS_PRICE,
    SPEC_VERSION,
    deployed_address,
    felt,
    finality,
    header,
    pre_confirmed_header,
    receipt,
    receipt_with_block,
    transaction,
    transaction_status,
)
from tollgate.demo.starknet_state import call, class_hash, empty_diff, nonce, state_update, storage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NETWORKS = tuple(CHAIN_IDS)

FIELD_BITS_OF_A_HASH = 251
INVALID_INDEX = 27
TRANSACTION_NOT_FOUND = 29
PROOF_UNSUPPORTED = 42

_MAX_TRANSACTIONS = 100
_MAX_ARGUMENTS = 10_000


def _block(view: View, args: Args, show: Callable[[Transfer], object]) -> Shape:
    height = resolve(view, args["block_id"])
    if height > view.head:
        return pre_confirmed_header(view.chain, height) | {"transactions": []}
    body = {
        "status": finality(height, view.head),
        "transactions": [show(move) for move in view.moves(height)],
    }
    return header(view, height) | body


def _block_with_hashes(view: View, args: Args) -> Shape:
    return _block(view, args, lambda move: felt(transaction_hash(view.chain, move)))


def _block_with_transactions(view: View, args: Args) -> Shape:
    return _block(view, args, lambda move: transaction(view.chain, move))


def _block_with_receipts(view: View, args: Args) -> Shape:
    def show(move: Transfer) -> Shape:
        return {
            "transaction": transaction(view.chain, move, with_hash=False),
            "receipt": receipt(view.chain, move, view.head),
        }

    return _block(view, args, show)


def _block_transaction_count(view: View, args: Args) -> int:
    height = resolve(view, args["block_id"])
    return view.count(height) if height <= view.head else 0


def _hash_and_number(view: View, _args: Args) -> Shape:
    return {"block_hash": felt(view.chain.block_hash(view.head)), "block_number": view.head}


def _state_update(view: View, args: Args) -> Shape:
    height = resolve(view, args["block_id"])
    if height > view.head:
        return {"old_root": felt(view.chain.block_digest("state", view.head)), "state_diff": empty_diff()}
    return state_update(view.chain, height)


def _move(view: View, args: Args) -> Transfer:
    move = view.find(hash_bytes(args["transaction_hash"], "transaction_hash"))
    if move is None:
        raise RpcError(TRANSACTION_NOT_FOUND, "Transaction hash not found")
    return move


def _transaction(view: View, args: Args) -> Shape:
    return transaction(view.chain, _move(view, args))


def _transaction_at(view: View, args: Args) -> Shape:
    height = resolve(view, args["block_id"])
    index = integer(args["index"], "index")
    move = view.move_at(height, index) if height <= view.head else None
    if move is None:
        raise RpcError(INVALID_INDEX, "Invalid transaction index in a block")
    return transaction(view.chain, move)


def _receipt(view: View, args: Args) -> Shape:
    return receipt_with_block(view.chain, _move(view, args), view.head)


def _status(view: View, args: Args) -> Shape:
    found = transaction_status(view, hash_bytes(args["transaction_hash"], "transaction_hash"))
    if found is None:
        raise RpcError(TRANSACTION_NOT_FOUND, "Transaction hash not found")
    return found


def _address(args: Args) -> int:
    return felt_value(args["contract_address"], "contract_address")


def _nonce(view: View, args: Args) -> str:
    height = state_height(view, args["block_id"])
    return hex(nonce(view.chain, _address(args), height))


def _storage(view: View, args: Args) -> object:
    height = state_height(view, args["block_id"])
    key = felt_value(args["key"], "key")
    value, written = storage(view.chain, _address(args), key, height)
    flags = array(args.get("response_flags", []), "response_flags", 10)
    if "INCLUDE_LAST_UPDATE_BLOCK" in flags:
        return {"value": hex(value), "last_update_block": written}
    return hex(value)


def _class_hash_at(view: View, args: Args) -> str:
    state_height(view, args["block_id"])
    return hex(class_hash(view.chain, _address(args)))


def _class_at(view: View, args: Args) -> Shape:
    state_height(view, args["block_id"])
    return contract_class(class_hash(view.chain, _address(args)))


def _class(view: View, args: Args) -> Shape:
    state_height(view, args["block_id"])
    return contract_class(felt_value(args["class_hash"], "class_hash"))


def _call(view: View, args: Args) -> list[str]:
    height = state_height(view, args["block_id"])
    request = mapping(args["request"], "request")
    address = felt_value(request.get("contract_address"), "contract_address")
    function = felt_value(request.get("entry_point_selector"), "entry_point_selector")
    given = array(request.get("calldata", []), "calldata", _MAX_ARGUMENTS)
    return call(view.chain, address, function, [felt_value(one, "calldata") for one in given], height)


def _estimate_fee(view: View, args: Args) -> list[Shape]:
    state_height(view, args["block_id"])
    requests = array(args["request"], "request", _MAX_TRANSACTIONS)
    return [_estimate("FRI") for request in requests if mapping(request, "request") is not None]


def _estimate_message_fee(view: View, args: Args) -> Shape:
    state_height(view, args["block_id"])
    message = mapping(args["message"], "message")
    class_hash(view.chain, felt_value(message.get("to_address"), "to_address"))
    return _estimate("WEI")


def _estimate(unit: str) -> Shape:
    return {
        "l1_gas_consumed": hex(L1_GAS),
        "l1_gas_price": hex(L1_GAS_PRICE),
        "l2_gas_consumed": hex(L2_GAS),
        "l2_gas_price": hex(L2_GAS_PRICE),
        "l1_data_gas_consumed": hex(L1_DATA_GAS),
        "l1_data_gas_price": hex(L1_DATA_GAS_PRICE),
        "overall_fee": hex(FEE),
        "unit": unit,
    }


def _storage_proof(view: View, args: Args) -> Shape:
    state_height(view, args["block_id"])
    message = "the node doesn't support storage proofs for blocks that are too far in the past"
    raise RpcError(PROOF_UNSUPPORTED, message)


def _add_invoke(view: View, args: Args) -> Sending:
    sent = submitted(view.chain, INVOKE, args["invoke_transaction"])
    return Sending(sent, {"transaction_hash": felt(sent.hash)}, already_known())


def _add_declare(view: View, args: Args) -> Sending:
    sent = submitted(view.chain, DECLARE, args["declare_transaction"])
    result = {"transaction_hash": felt(sent.hash), "class_hash": declared_class(view.chain, sent.hash)}
    return Sending(sent, result, already_known())


def _add_deploy_account(view: View, args: Args) -> Sending:
    sent = submitted(view.chain, DEPLOY_ACCOUNT, args["deploy_account_transaction"])
    address = deployed_address(view.chain, sent.hash)
    return Sending(sent, {"transaction_hash": felt(sent.hash), "contract_address": address}, already_known())


def _syncing(view: View, _args: Args) -> object:
    if view.tip is None:
        return False
    found: Shape = {}
    for name, height in (("starting", 0), ("current", view.head), ("highest", view.tip)):
        found[f"{name}_block_hash"] = felt(view.chain.block_hash(height))
        found[f"{name}_block_num"] = height
    return found


_BLOCK = ("block_id", "response_flags")
_HASH = ("transaction_hash", "response_flags")

METHODS: dict[str, Method] = {
    "starknet_specVersion": Method((), 0, lambda *_: SPEC_VERSION),
    "starknet_chainId": Method((), 0, lambda view, _: CHAIN_IDS[view.chain.network]),
    "starknet_syncing": Method((), 0, _syncing),
    "starknet_blockNumber": Method((), 0, lambda view, _: view.head),
    "starknet_blockHashAndNumber": Method((), 0, _hash_and_number),
    "starknet_getBlockWithTxHashes": Method(_BLOCK, 1, _block_with_hashes),
    "starknet_getBlockWithTxs": Method(_BLOCK, 1, _block_with_transactions),
    "starknet_getBlockWithReceipts": Method(_BLOCK, 1, _block_with_receipts),
    "starknet_getBlockTransactionCount": Method(("block_id",), 1, _block_transaction_count),
    "starknet_getStateUpdate": Method(("block_id", "contract_addresses"), 1, _state_update),
    "starknet_getStorageAt": Method(("contract_address", "key", "block_id", "response_flags"), 3, _storage),
    "starknet_getStorageProof": Method(
        ("block_id", "class_hashes", "contract_addresses", "contracts_storage_keys"), 1, _storage_proof
    ),
    "starknet_getTransactionStatus": Method(("transaction_hash",), 1, _status),
    "starknet_getTransactionByHash": Method(_HASH, 1, _transaction),
    "starknet_getTransactionByBlockIdAndIndex": Method(
        ("block_id", "index", "response_flags"), 2, _transaction_at
    ),
    "starknet_getTransactionReceipt": Method(("transaction_hash",), 1, _receipt),
    "starknet_getClass": Method(("block_id", "class_hash"), 2, _class),
    "starknet_getClassHashAt": Method(("block_id", "contract_address"), 2, _class_hash_at),
    "starknet_getClassAt": Method(("block_id", "contract_address"), 2, _class_at),
    "starknet_getNonce": Method(("block_id", "contract_address"), 2, _nonce),
    "starknet_call": Method(("request", "block_id"), 2, _call),
    "starknet_estimateFee": Method(("request", "simulation_flags", "block_id"), 3, _estimate_fee),
    "starknet_estimateMessageFee": Method(("message", "block_id"), 2, _estimate_message_fee),
    "starknet_getEvents": Method(("filter",), 1, get_events),
    "starknet_addInvokeTransaction": Method(("invoke_transaction",), 1, _add_invoke),
    "starknet_addDeclareTransaction": Method(("declare_transaction",), 1, _add_declare),
    "starknet_addDeployAccountTransaction": Method(("deploy_account_transaction",), 1, _add_deploy_account),
}


class StarknetNode(SimulatedNetwork):
    """Answers the methods of one Starknet network."""

    methods = METHODS
    subscribing = SUBSCRIBING
    by_name = True

    def __init__(
        self,
        network: str,
        genesis: int,
        *,
        block_seconds: float = BLOCK_SECONDS,
        seed: int = 0,
        shared: Path | None = None,
    ) -> None:
        chain = Chain("starknet", network, genesis, FIELD_BITS_OF_A_HASH, block_seconds, seed)
        super().__init__(chain, shared)
