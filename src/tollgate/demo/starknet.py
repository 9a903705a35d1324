"""The Starknet family of the simulated chain: its method table.

Owns which methods exist and how each reads its parameters. Shapes are in `starknet_shapes.py`, state in
`starknet_state.py`, classes in `starknet_classes.py`, block ids in `starknet_blocks.py`, events in
`starknet_events.py`. Nothing is kept between calls: a sent transaction is given a hash and then forgotten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tollgate.demo.chain import Chain, Place, Transfer, transaction_count, transfer, transfers
from tollgate.demo.chain_params import Args, Method, RpcError, Shape, View, answer, array, integer, mapping
from tollgate.demo.starknet_blocks import felt_value, hash_bytes, resolve, state_height
from tollgate.demo.starknet_classes import contract_class
from tollgate.demo.starknet_events import get_events
from tollgate.demo.starknet_shapes import (
    CHAIN_IDS,
    FEE,
    L1_DATA_GAS,
    L1_DATA_GAS_PRICE,
    L1_GAS,
    L1_GAS_PRICE,
    L2_GAS,
    L2_GAS_PRICE,
    SPEC_VERSION,
    felt,
    finality,
    header,
    pre_confirmed_header,
    receipt,
    receipt_with_block,
    transaction,
)
from tollgate.demo.starknet_state import call, class_hash, empty_diff, nonce, state_update, storage

if TYPE_CHECKING:
    from collections.abc import Callable

NETWORKS = tuple(CHAIN_IDS)

FIELD_BITS_OF_A_HASH = 251
INVALID_INDEX = 27
TRANSACTION_NOT_FOUND = 29
PROOF_UNSUPPORTED = 42

_MOST_TRANSACTIONS = 100
_MOST_ARGUMENTS = 10_000


class StarknetNode:
    """Answers the methods of one Starknet network."""

    def __init__(self, network: str, genesis: int) -> None:
        self.chain = Chain("starknet", network, genesis, hash_bits=FIELD_BITS_OF_A_HASH)

    def answer(self, method: str, params: object, now: float) -> object:
        """Return the result of a call, or raise `RpcError`."""
        view = View(self.chain, self.chain.head(now))
        return answer(METHODS, view, method, params)


def _block(view: View, args: Args, show: Callable[[Transfer], object]) -> Shape:
    height = resolve(view, args["block_id"])
    if height > view.head:
        return pre_confirmed_header(view.chain, height) | {"transactions": []}
    body = {
        "status": finality(height, view.head),
        "transactions": [show(move) for move in transfers(height)],
    }
    return header(view.chain, height) | body


def _block_with_hashes(view: View, args: Args) -> Shape:
    return _block(view, args, lambda move: felt(view.chain.transaction_hash(move.place)))


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
    return transaction_count(height) if height <= view.head else 0


def _hash_and_number(view: View, _args: Args) -> Shape:
    return {"block_hash": felt(view.chain.block_hash(view.head)), "block_number": view.head}


def _state_update(view: View, args: Args) -> Shape:
    height = resolve(view, args["block_id"])
    if height > view.head:
        return {"old_root": felt(view.chain.digest("state", view.head)), "state_diff": empty_diff()}
    return state_update(view.chain, height)


def _move(view: View, args: Args) -> Transfer:
    place = view.chain.transaction_place(hash_bytes(args["transaction_hash"], "transaction_hash"))
    if place is None or place.height > view.head:
        raise RpcError(TRANSACTION_NOT_FOUND, "Transaction hash not found")
    return transfer(place)


def _transaction(view: View, args: Args) -> Shape:
    return transaction(view.chain, _move(view, args))


def _transaction_at(view: View, args: Args) -> Shape:
    height = resolve(view, args["block_id"])
    index = integer(args["index"], "index")
    if height > view.head or index >= transaction_count(height):
        raise RpcError(INVALID_INDEX, "Invalid transaction index in a block")
    return transaction(view.chain, transfer(Place(height, index)))


def _receipt(view: View, args: Args) -> Shape:
    return receipt_with_block(view.chain, _move(view, args), view.head)


def _status(view: View, args: Args) -> Shape:
    move = _move(view, args)
    return {"finality_status": finality(move.place.height, view.head), "execution_status": "SUCCEEDED"}


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
    given = array(request.get("calldata", []), "calldata", _MOST_ARGUMENTS)
    return call(view.chain, address, function, [felt_value(one, "calldata") for one in given], height)


def _estimate_fee(view: View, args: Args) -> list[Shape]:
    state_height(view, args["block_id"])
    requests = array(args["request"], "request", _MOST_TRANSACTIONS)
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


def _accepted(view: View, sent: object) -> str:
    """Name a sent transaction; the true hash would need Starknet's own hash functions."""
    canonical = msgspec.json.encode(mapping(sent, "transaction"), order="deterministic")
    return felt(view.chain.digest("sent", canonical))


def _add_invoke(view: View, args: Args) -> Shape:
    return {"transaction_hash": _accepted(view, args["invoke_transaction"])}


def _add_declare(view: View, args: Args) -> Shape:
    name = _accepted(view, args["declare_transaction"])
    return {"transaction_hash": name, "class_hash": felt(view.chain.lasting("class", name))}


def _add_deploy_account(view: View, args: Args) -> Shape:
    name = _accepted(view, args["deploy_account_transaction"])
    return {"transaction_hash": name, "contract_address": felt(view.chain.lasting("contract", name))}


_BLOCK = ("block_id", "response_flags")
_HASH = ("transaction_hash", "response_flags")

METHODS: dict[str, Method] = {
    "starknet_specVersion": Method((), 0, lambda *_: SPEC_VERSION),
    "starknet_chainId": Method((), 0, lambda view, _: CHAIN_IDS[view.chain.network]),
    "starknet_syncing": Method((), 0, lambda *_: False),
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
