"""Traces of the simulated Starknet networks, as far as a chain that runs nothing has them.

A transfer is traced as its account's call of the token. There are no Merkle trees, so there are no storage proofs.
"""

from __future__ import annotations

from tollgate.chains import starknet_versions as versions
from tollgate.chains.starknet_versions import Kind
from tollgate.demo import starknet_shapes as shapes
from tollgate.demo import starknet_state as state
from tollgate.demo.chain import VISITOR, Transfer
from tollgate.demo.network import ChainView, MethodFunction
from tollgate.demo.params import RpcError, Shape, array, invalid, mapping
from tollgate.demo.starknet_params import find_transaction, read_flags, resolve, transfers_of
from tollgate.demo.starknet_sent import filled_in, hash_of
from tollgate.demo.starknet_shapes import DECLARE, DEPLOY_ACCOUNT, INVOKE, STRK, TRANSFER_FUNCTION, felt, selector

PROOF_NOT_SUPPORTED = 42

_MAX_TRANSACTIONS = 100
_EXECUTE, _CONSTRUCTOR = selector("__execute__"), selector("constructor")
_KINDS = (INVOKE, DECLARE, DEPLOY_ACCOUNT)
_SIMULATION_FLAGS = ("SKIP_VALIDATE", "SKIP_FEE_CHARGE", "RETURN_INITIAL_READS")


def _settled_height(view: ChainView, method: str, block_id: object) -> int:
    """Return the height of a block, for a method that may not take the one that is being made."""
    if isinstance(block_id, str) and block_id in versions.refused_tags(view.version, method):
        raise invalid(f"{method} takes no block that is being made")
    return resolve(view, block_id)


def _trace(view: ChainView, tx: Transfer) -> Shape:
    body = shapes.transaction_body(view.chain, tx)
    kind = str(body["type"])
    trace: Shape = {
        "type": kind,
        "state_diff": state.no_diff(view),
        "execution_resources": shapes.GAS,
    }
    if kind == INVOKE:
        call = [] if tx.submitted else [_transfer_call(view, tx)]
        trace["execute_invocation"] = _invocation(
            str(body["sender_address"]), _EXECUTE, body["calldata"], state.ACCOUNT_CLASS, calls=call
        )
    elif kind == DEPLOY_ACCOUNT:
        address = shapes.deployed_address(view.chain, tx.hash)
        trace["constructor_invocation"] = _invocation(
            address, _CONSTRUCTOR, body["constructor_calldata"], state.ACCOUNT_CLASS, "CONSTRUCTOR"
        )
    return trace


def _transfer_call(view: ChainView, tx: Transfer) -> Shape:
    recipient = hex(shapes.account(view.chain, tx.recipient))
    arguments = [recipient, *shapes.halves(tx.amount)]
    event = shapes.events(view.chain, tx)[0]
    moved = {"order": 0, "keys": event["keys"], "data": event["data"]}
    caller = hex(shapes.account(view.chain, tx.sender))
    called = _invocation(hex(STRK), TRANSFER_FUNCTION, arguments, state.TOKEN_CLASS, caller=caller)
    return called | {"events": [moved], "result": ["0x1"]}


def _invocation(
    address: str,
    function: int,
    calldata: object,
    class_hash: int,
    entry_point_type: str = "EXTERNAL",
    *,
    caller: str = "0x0",
    calls: list[Shape] | None = None,
) -> Shape:
    return {
        "contract_address": address,
        "entry_point_selector": hex(function),
        "calldata": calldata,
        "caller_address": caller,
        "class_hash": hex(class_hash),
        "entry_point_type": entry_point_type,
        "call_type": "CALL",
        "result": [],
        "calls": calls or [],
        "events": [],
        "messages": [],
        "execution_resources": {"l1_gas": shapes.GAS["l1_gas"], "l2_gas": shapes.GAS["l2_gas"]},
        "is_reverted": False,
    }


def _initial_reads(view: ChainView, transfers: list[Transfer]) -> Shape:
    """Show the state that transactions have read: here the nonces of their senders."""
    senders = dict.fromkeys(tx.sender for tx in transfers if tx.sender != VISITOR)
    addresses = [shapes.account(view.chain, sender) for sender in senders]
    return {
        "storage": [],
        "nonces": [
            {
                "contract_address": hex(address),
                "nonce": hex(state.nonce(view.chain, address, transfers[0].height - 1)),
            }
            for address in addresses
        ],
        "class_hashes": [
            {"contract_address": hex(address), "class_hash": hex(state.ACCOUNT_CLASS)} for address in addresses
        ],
        "declared_contracts": [],
    }


def _trace_transaction(view: ChainView, transaction_hash: object) -> Shape:
    return _trace(view, find_transaction(view, transaction_hash))


def _trace_block(view: ChainView, block_id: object, trace_flags: object = None) -> object:
    transfers = transfers_of(view, _settled_height(view, "starknet_traceBlockTransactions", block_id))
    traces = [{"transaction_hash": felt(tx.hash), "trace_root": _trace(view, tx)} for tx in transfers]
    if "RETURN_INITIAL_READS" in read_flags(trace_flags, "trace_flags"):
        return {"traces": traces, "initial_reads": _initial_reads(view, transfers)}
    return traces


def _simulate(view: ChainView, block_id: object, transactions: object, simulation_flags: object) -> object:
    resolve(view, block_id)
    flags = read_flags(simulation_flags, "simulation_flags")
    for flag in flags:
        known = flag in _SIMULATION_FLAGS and versions.has(view.version, Kind.VALUE, "SIMULATION_FLAG", flag)
        if not known:
            raise invalid(f"simulation_flags has no {flag[:64]!r} in version {view.version}")
    given = array(transactions, "transactions", _MAX_TRANSACTIONS)
    transfers = [_simulated(view, each) for each in given]
    results = [
        {"transaction_trace": _trace(view, tx), "fee_estimation": shapes.fee_estimate("FRI")} for tx in transfers
    ]
    if "RETURN_INITIAL_READS" in flags:
        return {"simulated_transactions": results, "initial_reads": _initial_reads(view, transfers)}
    return results


def _simulated(view: ChainView, value: object) -> Transfer:
    given = mapping(value, "transaction")
    kind = given.get("type", INVOKE)
    if kind not in _KINDS:
        raise invalid(f"type is not one of {', '.join(_KINDS)}")
    shown = filled_in(view, str(kind), given)
    return Transfer(hash_of(view, str(kind), given), view.head + 1, 0, submitted=shown)


def _storage_proof(
    view: ChainView,
    block_id: object,
    _class_hashes: object = None,
    _contract_addresses: object = None,
    _contracts_storage_keys: object = None,
) -> Shape:
    _settled_height(view, "starknet_getStorageProof", block_id)
    message = "the node doesn't support storage proofs for blocks that are too far in the past"
    raise RpcError(PROOF_NOT_SUPPORTED, message)


TRACE_METHODS: dict[str, MethodFunction] = {
    "starknet_traceTransaction": _trace_transaction,
    "starknet_traceBlockTransactions": _trace_block,
    "starknet_simulateTransactions": _simulate,
    "starknet_getStorageProof": _storage_proof,
}
