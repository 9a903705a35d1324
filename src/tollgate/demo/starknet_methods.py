"""The methods of the simulated Starknet networks: how each reads its parameters and what it answers.

A submitted transaction is neither checked nor run. Its hash is derived, because the true one would need Starknet's
own hash functions; members that the specification wants and the caller left out are filled in, because clients
refuse a transaction that lacks them. A block's events are computed when they are queried, so a call looks at a
bounded number of blocks and returns a continuation token for the rest, as full nodes do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import msgspec

from tollgate.demo import starknet_shapes as shapes
from tollgate.demo import starknet_state as state
from tollgate.demo.chain import VISITOR, SimulatedChain, Transfer
from tollgate.demo.network import ChainView, MethodFunction, SimulatedNetwork
from tollgate.demo.params import RpcError, Shape, array, integer, invalid, mapping, quantity
from tollgate.demo.starknet_shapes import DECLARE, DEPLOY_ACCOUNT, INVOKE, felt

BLOCK_NOT_FOUND = 24
INVALID_INDEX = 27
TRANSACTION_NOT_FOUND = 29
PAGE_TOO_BIG = 31
BAD_TOKEN = 33
TOO_MANY_KEYS = 34
DUPLICATE = 59

_HASH_BITS = 251
_FIELD_BITS = 252
_MAX_TRANSACTIONS = 100
_MAX_ARGUMENTS = 10_000
# What is kept of each list in a submitted transaction: a bound on memory.
_MAX_LIST = 32

_MAX_EVENTS = 1024
_MAX_EVENT_BLOCKS = 500
_MAX_KEYS = 16
_MAX_CHOICES = 100
_TOKEN = re.compile(r"([0-9]{1,15})-([0-9]{1,6})")


def _felt(value: object, what: str) -> int:
    return quantity(value, what, bits=_FIELD_BITS)


def _hash(value: object, what: str = "transaction_hash") -> bytes:
    return _felt(value, what).to_bytes(32, "big")


def _resolve(view: ChainView, value: object, what: str = "block_id") -> int:
    """Return the height that a block id means; `pre_confirmed` is one above the head."""
    match value:
        case "latest":
            return view.head
        case "pre_confirmed":
            return view.head + 1
        case "l1_accepted":
            return max(0, view.head - shapes.L1_BEHIND)
        case str():
            raise invalid(f"{what} is no block tag")
    given = mapping(value, what)
    if given.keys() == {"block_number"}:
        height: int | None = integer(given["block_number"], "block_number")
    elif given.keys() == {"block_hash"}:
        height = view.chain.block_height(_hash(given["block_hash"], "block_hash"))
    else:
        raise invalid(f"{what} is not one of block_hash and block_number")
    if height is None or height > view.head:
        raise RpcError(BLOCK_NOT_FOUND, "Block not found")
    return height


def _state_height(view: ChainView, value: object) -> int:
    """Return the height at which state is read; what is pre-confirmed has changed nothing yet."""
    return min(_resolve(view, value), view.head)


# ---- blocks


def _block(view: ChainView, block_id: object, show: Callable[[Transfer], object]) -> Shape:
    height = _resolve(view, block_id)
    if height > view.head:
        return shapes.pre_confirmed_header(view.chain, height) | {"transactions": []}
    return shapes.header(view, height, state.state_diff_length(view.chain, height)) | {
        "status": shapes.finality(height, view.head),
        "transactions": [show(tx) for tx in view.transfers(height)],
    }


def _block_with_hashes(view: ChainView, block_id: object, _response_flags: object = None) -> Shape:
    return _block(view, block_id, lambda tx: felt(tx.hash))


def _block_with_transactions(view: ChainView, block_id: object, _response_flags: object = None) -> Shape:
    return _block(view, block_id, lambda tx: shapes.transaction(view.chain, tx))


def _block_with_receipts(view: ChainView, block_id: object, _response_flags: object = None) -> Shape:
    def show(tx: Transfer) -> Shape:
        return {
            "transaction": shapes.transaction_body(view.chain, tx),
            "receipt": shapes.receipt(view.chain, tx, view.head),
        }

    return _block(view, block_id, show)


def _block_transaction_count(view: ChainView, block_id: object) -> int:
    height = _resolve(view, block_id)
    return view.count(height) if height <= view.head else 0


def _hash_and_number(view: ChainView) -> Shape:
    return {"block_hash": felt(view.chain.block_hash(view.head)), "block_number": view.head}


def _state_update(view: ChainView, block_id: object, _contract_addresses: object = None) -> Shape:
    chain, height = view.chain, _resolve(view, block_id)
    old_root = felt(chain.block_digest("state", height - 1)) if height else "0x0"
    if height > view.head:
        return {"old_root": old_root, "state_diff": state.NO_DIFF}
    return {
        "block_hash": felt(chain.block_hash(height)),
        "old_root": old_root,
        "new_root": felt(chain.block_digest("state", height)),
        "state_diff": state.state_diff(chain, height),
    }


# ---- transactions


def _find(view: ChainView, transaction_hash: object) -> Transfer:
    found = view.find(_hash(transaction_hash))
    if found is None:
        raise RpcError(TRANSACTION_NOT_FOUND, "Transaction hash not found")
    return found


def _transaction(view: ChainView, transaction_hash: object, _response_flags: object = None) -> Shape:
    return shapes.transaction(view.chain, _find(view, transaction_hash))


def _transaction_at(view: ChainView, block_id: object, index: object, _response_flags: object = None) -> Shape:
    height = _resolve(view, block_id)
    at = integer(index, "index")
    found = view.transfers(height) if height <= view.head else []
    if at >= len(found):
        raise RpcError(INVALID_INDEX, "Invalid transaction index in a block")
    return shapes.transaction(view.chain, found[at])


def _receipt(view: ChainView, transaction_hash: object) -> Shape:
    found = _find(view, transaction_hash)
    block = {"block_hash": felt(view.chain.block_hash(found.height)), "block_number": found.height}
    return shapes.receipt(view.chain, found, view.head) | block


def _status(view: ChainView, transaction_hash: object) -> Shape:
    if view.pending(_hash(transaction_hash)):
        return {"finality_status": "RECEIVED"}
    found = _find(view, transaction_hash)
    return {"finality_status": shapes.finality(found.height, view.head), "execution_status": "SUCCEEDED"}


# Members of a submitted transaction that are felts, and that are lists of felts.
_FELTS = {
    INVOKE: ("nonce", "sender_address"),
    DECLARE: ("nonce", "sender_address", "compiled_class_hash"),
    DEPLOY_ACCOUNT: ("nonce", "class_hash", "contract_address_salt"),
}
_LISTS = {
    INVOKE: ("signature", "account_deployment_data", "calldata"),
    DECLARE: ("signature", "account_deployment_data"),
    DEPLOY_ACCOUNT: ("signature", "constructor_calldata"),
}


def _submit(view: ChainView, kind: str, value: object) -> Shape:
    given = mapping(value, "transaction")
    name = view.chain.digest("sent", kind, msgspec.json.encode(given, order="deterministic"))
    result: Shape = {"transaction_hash": felt(name)}
    shown: Shape = shapes.PAID | {"type": kind}
    for member in _FELTS[kind]:
        default = hex(shapes.account(view.chain, VISITOR)) if member == "sender_address" else "0x0"
        shown[member] = _felt_or(given.get(member), default)
    for member in _LISTS[kind]:
        listed = given.get(member)
        shown[member] = [_felt_or(each) for each in listed[:_MAX_LIST]] if isinstance(listed, list) else []
    if kind == DECLARE:
        shown["class_hash"] = result["class_hash"] = felt(view.chain.lasting_digest("class", name))
    if kind == DEPLOY_ACCOUNT:
        result["contract_address"] = shapes.deployed_address(view.chain, name)
    known = RpcError(DUPLICATE, "A transaction with the same hash already exists in the mempool")
    view.submit(name, known, shown)
    return result


def _felt_or(value: object, default: str = "0x0") -> str:
    try:
        return hex(_felt(value, ""))
    except RpcError:
        return default


# ---- state


def _nonce(view: ChainView, block_id: object, contract_address: object) -> str:
    height = _state_height(view, block_id)
    return hex(state.nonce(view.chain, _felt(contract_address, "contract_address"), height))


def _storage(
    view: ChainView, contract_address: object, key: object, block_id: object, response_flags: object = None
) -> object:
    height = _state_height(view, block_id)
    address = _felt(contract_address, "contract_address")
    value, written = state.storage(view.chain, address, _felt(key, "key"), height)
    if response_flags and "INCLUDE_LAST_UPDATE_BLOCK" in array(response_flags, "response_flags", 10):
        return {"value": hex(value), "last_update_block": written}
    return hex(value)


def _class_hash_at(view: ChainView, block_id: object, contract_address: object) -> str:
    _state_height(view, block_id)
    return hex(state.class_hash(view.chain, _felt(contract_address, "contract_address")))


def _class_at(view: ChainView, block_id: object, contract_address: object) -> Shape:
    _state_height(view, block_id)
    return state.contract_class(state.class_hash(view.chain, _felt(contract_address, "contract_address")))


def _class(view: ChainView, block_id: object, class_hash: object) -> Shape:
    _state_height(view, block_id)
    return state.contract_class(_felt(class_hash, "class_hash"))


def _call(view: ChainView, request: object, block_id: object) -> list[str]:
    height = _state_height(view, block_id)
    given = mapping(request, "request")
    address = _felt(given.get("contract_address"), "contract_address")
    function = _felt(given.get("entry_point_selector"), "entry_point_selector")
    calldata = array(given.get("calldata", []), "calldata", _MAX_ARGUMENTS)
    return state.call(view.chain, address, function, [_felt(each, "calldata") for each in calldata], height)


def _estimate_fee(view: ChainView, request: object, simulation_flags: object, block_id: object) -> list[Shape]:
    _state_height(view, block_id)
    array(simulation_flags, "simulation_flags", 10)
    transactions = array(request, "request", _MAX_TRANSACTIONS)
    return [shapes.fee_estimate("FRI") for each in transactions if mapping(each, "request") is not None]


def _estimate_message_fee(view: ChainView, message: object, block_id: object) -> Shape:
    _state_height(view, block_id)
    state.class_hash(view.chain, _felt(mapping(message, "message").get("to_address"), "to_address"))
    return shapes.fee_estimate("WEI")


# ---- events


def _get_events(view: ChainView, filter: object) -> Shape:  # noqa: A002 - its name in the specification
    given = mapping(filter, "filter")
    size = integer(given.get("chunk_size"), "chunk_size")
    if not size:
        raise invalid("chunk_size is 0")
    if size > _MAX_EVENTS:
        raise RpcError(PAGE_TOO_BIG, "Requested page size is too big")
    passes = _event_filter(given)
    first = _resolve(view, given.get("from_block", {"block_number": 0}), "from_block")
    last = min(_resolve(view, given.get("to_block", "latest"), "to_block"), view.head)
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


def _event_filter(given: Mapping[str, object]) -> Callable[[Shape], bool]:
    """Read a filter: one address or several, and the keys by position; none means any."""
    address, keys = given.get("address", []), given.get("keys", [])
    if isinstance(keys, list) and len(keys) > _MAX_KEYS:
        raise RpcError(TOO_MANY_KEYS, "Too many keys provided in a filter")
    addresses = _choices(address if isinstance(address, list) else [address], "address")
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
    return frozenset(hex(_felt(each, what)) for each in array(value, what, _MAX_CHOICES))


METHODS: dict[str, MethodFunction] = {
    "starknet_specVersion": lambda _: shapes.SPEC_VERSION,
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
    "starknet_addInvokeTransaction": lambda view, invoke_transaction: _submit(view, INVOKE, invoke_transaction),
    "starknet_addDeclareTransaction": lambda view, declare_transaction: _submit(
        view, DECLARE, declare_transaction
    ),
    "starknet_addDeployAccountTransaction": lambda view, deploy_account_transaction: _submit(
        view, DEPLOY_ACCOUNT, deploy_account_transaction
    ),
}


def starknet_network(network: str, genesis: int) -> SimulatedNetwork:
    chain = SimulatedChain("starknet", network, genesis, _HASH_BITS)
    return SimulatedNetwork(chain, METHODS, by_name=True)
