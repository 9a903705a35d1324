"""The methods of the simulated Starknet networks: how each reads its parameters and what it answers.

The block that is being made has the chain's own transactions; those that callers submit wait for it to be done.
A block's events are computed when they are queried, so a call looks at a bounded number of blocks and returns a
continuation token for the rest, as full nodes do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from tollgate.chains import starknet_versions as versions
from tollgate.chains.starknet_versions import Kind
from tollgate.demo import starknet_shapes as shapes
from tollgate.demo import starknet_state as state
from tollgate.demo.chain import SimulatedChain, Transfer
from tollgate.demo.network import ChainView, MethodFunction, SimulatedNetwork
from tollgate.demo.params import RpcError, Shape, array, integer, invalid, mapping
from tollgate.demo.starknet_params import (
    find_transaction,
    read_felt,
    read_flags,
    read_hash,
    resolve,
    transfers_of,
)
from tollgate.demo.starknet_sent import submit
from tollgate.demo.starknet_shapes import DECLARE, DEPLOY_ACCOUNT, INVOKE, felt
from tollgate.demo.starknet_traces import TRACE_METHODS

INVALID_INDEX = 27
PAGE_TOO_BIG = 31
BAD_TOKEN = 33
TOO_MANY_KEYS = 34
CONTRACT_ERROR = 40

_HASH_BITS = 251
_MAX_TRANSACTIONS = 100
_MAX_ARGUMENTS = 10_000

_MAX_EVENTS = 1024
_MAX_EVENT_BLOCKS = 500
_MAX_KEYS = 16
_MAX_CHOICES = 100
_TOKEN = re.compile(r"([0-9]{1,15})-([0-9]{1,6})")


# ---- blocks


def _wants_facts(response_flags: object) -> bool:
    return "INCLUDE_PROOF_FACTS" in read_flags(response_flags)


def _block(view: ChainView, block_id: object, show: Callable[[Transfer], object]) -> Shape:
    height = resolve(view, block_id)
    transactions = {"transactions": [show(tx) for tx in transfers_of(view, height)]}
    if height > view.head:
        return shapes.next_header(view) | transactions
    header = shapes.header(view, height, state.state_diff_length(view.chain, height))
    return header | {"status": shapes.finality(view, height)} | transactions


def _block_with_hashes(view: ChainView, block_id: object) -> Shape:
    return _block(view, block_id, lambda tx: felt(tx.hash))


def _block_with_transactions(view: ChainView, block_id: object, response_flags: object = None) -> Shape:
    facts = _wants_facts(response_flags)
    return _block(view, block_id, lambda tx: shapes.transaction(view.chain, tx, proof_facts=facts))


def _block_with_receipts(view: ChainView, block_id: object, response_flags: object = None) -> Shape:
    facts = _wants_facts(response_flags)

    def show(tx: Transfer) -> Shape:
        return {
            "transaction": shapes.transaction_body(view.chain, tx, proof_facts=facts),
            "receipt": shapes.receipt(view, tx),
        }

    return _block(view, block_id, show)


def _block_transaction_count(view: ChainView, block_id: object) -> int:
    return len(transfers_of(view, resolve(view, block_id)))


def _hash_and_number(view: ChainView) -> Shape:
    return {"block_hash": felt(view.chain.block_hash(view.head)), "block_number": view.head}


def _state_update(view: ChainView, block_id: object, _contract_addresses: object = None) -> Shape:
    chain, height = view.chain, resolve(view, block_id)
    old_root = felt(chain.block_digest("state", height - 1)) if height else "0x0"
    if height > view.head:
        return {"old_root": old_root, "state_diff": state.state_diff(view, height)}
    return {
        "block_hash": felt(chain.block_hash(height)),
        "old_root": old_root,
        "new_root": felt(chain.block_digest("state", height)),
        "state_diff": state.state_diff(view, height),
    }


# ---- transactions


def _transaction(view: ChainView, transaction_hash: object, response_flags: object = None) -> Shape:
    found = find_transaction(view, transaction_hash)
    return shapes.transaction(view.chain, found, proof_facts=_wants_facts(response_flags))


def _transaction_at(view: ChainView, block_id: object, index: object, response_flags: object = None) -> Shape:
    found = transfers_of(view, resolve(view, block_id))
    at = integer(index, "index")
    if at >= len(found):
        raise RpcError(INVALID_INDEX, "Invalid transaction index in a block")
    return shapes.transaction(view.chain, found[at], proof_facts=_wants_facts(response_flags))


def _receipt(view: ChainView, transaction_hash: object) -> Shape:
    return shapes.receipt_with_block(view, find_transaction(view, transaction_hash))


def _status(view: ChainView, transaction_hash: object) -> Shape:
    if view.pending(read_hash(transaction_hash)):
        return {"finality_status": "RECEIVED"}
    found = find_transaction(view, transaction_hash)
    return {"finality_status": shapes.finality(view, found.height), "execution_status": "SUCCEEDED"}


def _messages_status(view: ChainView, transaction_hash: object) -> list[Shape]:
    """Show the one message of an L1 transaction: here it becomes the transaction of the same hash."""
    found = find_transaction(view, transaction_hash)
    message = {"transaction_hash": felt(found.hash)} | _status(view, transaction_hash)
    return [versions.in_form(view.version, versions.MESSAGE_STATUS, message)]


# ---- state


def _nonce(view: ChainView, block_id: object, contract_address: object) -> str:
    height = resolve(view, block_id)
    return hex(state.nonce(view.chain, read_felt(contract_address, "contract_address"), height))


def _storage(
    view: ChainView, contract_address: object, key: object, block_id: object, response_flags: object = None
) -> object:
    # The hash of the newest block is stored, and the one that is being made has none.
    height = min(resolve(view, block_id), view.head)
    address = read_felt(contract_address, "contract_address")
    value, written = state.storage(view.chain, address, read_felt(key, "key"), height)
    if "INCLUDE_LAST_UPDATE_BLOCK" in read_flags(response_flags):
        return {"value": hex(value), "last_update_block": written}
    return hex(value)


def _class_hash_at(view: ChainView, block_id: object, contract_address: object) -> str:
    resolve(view, block_id)
    return hex(state.class_hash(view.chain, read_felt(contract_address, "contract_address")))


def _class_at(view: ChainView, block_id: object, contract_address: object) -> Shape:
    resolve(view, block_id)
    return state.contract_class(state.class_hash(view.chain, read_felt(contract_address, "contract_address")))


def _class(view: ChainView, block_id: object, class_hash: object) -> Shape:
    resolve(view, block_id)
    return state.contract_class(read_felt(class_hash, "class_hash"))


def _call(view: ChainView, request: object, block_id: object) -> list[str]:
    height = resolve(view, block_id)
    given = mapping(request, "request")
    address = read_felt(given.get("contract_address"), "contract_address")
    function = read_felt(given.get("entry_point_selector"), "entry_point_selector")
    calldata = array(given.get("calldata", []), "calldata", _MAX_ARGUMENTS)
    return state.call(view, address, function, [read_felt(each, "calldata") for each in calldata], height)


def _estimate_fee(view: ChainView, request: object, simulation_flags: object, block_id: object) -> list[Shape]:
    resolve(view, block_id)
    array(simulation_flags, "simulation_flags", 10)
    transactions = array(request, "request", _MAX_TRANSACTIONS)
    return [shapes.fee_estimate("FRI") for each in transactions if mapping(each, "request") is not None]


def _estimate_message_fee(view: ChainView, message: object, block_id: object) -> Shape:
    resolve(view, block_id)
    recipient = read_felt(mapping(message, "message").get("to_address"), "to_address")
    try:
        state.class_hash(view.chain, recipient)
    except RpcError as error:
        if versions.has(view.version, Kind.ERROR, "starknet_estimateMessageFee", error.message):
            raise
        reason = {"revert_error": f"Requested contract address {hex(recipient)} is not deployed."}
        raise RpcError(CONTRACT_ERROR, "Contract error", reason) from error
    return shapes.fee_estimate("WEI")


# ---- events


def _get_events(view: ChainView, filter: object) -> Shape:  # noqa: A002 - its name in the specification
    given = mapping(filter, "filter")
    size = integer(given.get("chunk_size"), "chunk_size")
    if not size:
        raise invalid("chunk_size is 0")
    if size > _MAX_EVENTS:
        raise RpcError(PAGE_TOO_BIG, "Requested page size is too big")
    passes = _event_filter(view, given)
    first = resolve(view, given.get("from_block", {"block_number": 0}), "from_block")
    last = min(resolve(view, given.get("to_block", "latest"), "to_block"), view.head)
    start, skip = _page_start(given.get("continuation_token"), first, last)
    end = min(last, start + _MAX_EVENT_BLOCKS - 1)
    found: list[Shape] = []
    for height in range(start, end + 1):
        for at, event in enumerate(shapes.block_events(view, height)):
            if (height == start and at < skip) or not passes(event):
                continue
            if len(found) == size:
                return {"events": found, "continuation_token": f"{height}-{at}"}
            found.append(event)
    return {"events": found} if end >= last else {"events": found, "continuation_token": f"{end + 1}-0"}


def _page_start(token: object, first: int, last: int) -> tuple[int, int]:
    """Return the block where the page begins, and how many of its events to skip."""
    if token is None:
        return first, 0
    match = _TOKEN.fullmatch(token) if isinstance(token, str) else None
    if match is None or not first <= int(match[1]) <= last:
        raise RpcError(BAD_TOKEN, "The supplied continuation token is invalid or unknown")
    return int(match[1]), int(match[2])


def _event_filter(view: ChainView, given: Mapping[str, object]) -> Callable[[Shape], bool]:
    """Read a filter: one address, or several in some versions, and the keys by position; none means any."""
    several = versions.has(view.version, Kind.LIST, "starknet_getEvents", "address")
    address, keys = given.get("address"), given.get("keys", [])
    if isinstance(keys, list) and len(keys) > _MAX_KEYS:
        raise RpcError(TOO_MANY_KEYS, "Too many keys provided in a filter")
    one = [] if address is None else [address]
    addresses = _choices(address if isinstance(address, list) and several else one, "address")
    wanted = [_choices(key, "key") for key in array(keys, "keys", _MAX_KEYS)]

    def passes(event: Shape) -> bool:
        found = event["keys"]
        return (
            (not addresses or event["from_address"] in addresses)
            and isinstance(found, list)
            and len(wanted) <= len(found)
            and all(not choices or key in choices for choices, key in zip(wanted, found, strict=False))
        )

    return passes


def _choices(value: object, what: str) -> frozenset[str]:
    return frozenset(hex(read_felt(each, what)) for each in array(value, what, _MAX_CHOICES))


METHODS: dict[str, MethodFunction] = TRACE_METHODS | {
    "starknet_specVersion": lambda view: shapes.SPEC_VERSIONS[view.version],
    "starknet_chainId": lambda view: shapes.CHAIN_IDS[view.chain.network],
    "starknet_syncing": lambda _: False,
    "starknet_blockNumber": lambda view: view.head,
    "starknet_blockHashAndNumber": _hash_and_number,
    "starknet_getBlockWithTxHashes": _block_with_hashes,
    "starknet_getBlockWithTxs": _block_with_transactions,
    "starknet_getBlockWithReceipts": _block_with_receipts,
    "starknet_getBlockTransactionCount": _block_transaction_count,
    "starknet_getStateUpdate": _state_update,
    "starknet_getStorageAt": _storage,
    "starknet_getTransactionStatus": _status,
    "starknet_getMessagesStatus": _messages_status,
    "starknet_getTransactionByHash": _transaction,
    "starknet_getTransactionByBlockIdAndIndex": _transaction_at,
    "starknet_getTransactionReceipt": _receipt,
    "starknet_getClass": _class,
    "starknet_getClassHashAt": _class_hash_at,
    "starknet_getClassAt": _class_at,
    "starknet_getNonce": _nonce,
    "starknet_call": _call,
    "starknet_estimateFee": _estimate_fee,
    "starknet_estimateMessageFee": _estimate_message_fee,
    "starknet_getEvents": _get_events,
    "starknet_addInvokeTransaction": lambda view, invoke_transaction: submit(view, INVOKE, invoke_transaction),
    "starknet_addDeclareTransaction": lambda view, declare_transaction: submit(view, DECLARE, declare_transaction),
    "starknet_addDeployAccountTransaction": lambda view, deploy_account_transaction: submit(
        view, DEPLOY_ACCOUNT, deploy_account_transaction
    ),
}


def starknet_network(network: str, genesis: int, version: str = versions.V0_10) -> SimulatedNetwork:
    chain = SimulatedChain("starknet", network, genesis, _HASH_BITS)
    return in_version(SimulatedNetwork(chain, METHODS, by_name=True), version)


def in_version(network: SimulatedNetwork, version: str) -> SimulatedNetwork:
    """Return the same network, with all that was submitted to it, by a version of the specification."""
    missing = {method: versions.missing_parameters(version, method) for method in METHODS}
    return SimulatedNetwork(
        network.chain, METHODS, by_name=True, version=version, missing=missing, submitted=network.submitted
    )
