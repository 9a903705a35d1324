"""Transactions that callers submit to a simulated Starknet network, or only simulate.

They are neither checked nor run. A hash is derived, because the true one would need Starknet's own hash functions;
members that the specification wants and the caller left out are filled in, because clients refuse a transaction
that lacks them.
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping

import msgspec

from tollgate.chains import starknet_versions as versions
from tollgate.chains.starknet_versions import Kind
from tollgate.demo import starknet_shapes as shapes
from tollgate.demo.chain import VISITOR
from tollgate.demo.network import ChainView
from tollgate.demo.params import RpcError, Shape, mapping
from tollgate.demo.starknet_params import read_felt
from tollgate.demo.starknet_shapes import DECLARE, DEPLOY_ACCOUNT, INVOKE, felt

DUPLICATE = 59
INVALID_PROOF = 69

# What is kept of each list in a submitted transaction: a bound on memory.
_MAX_LIST = 32

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


def submit(view: ChainView, kind: str, value: object) -> Shape:
    """Put a transaction into the next block, and return what its sender is answered."""
    given = mapping(value, "transaction")
    if kind == INVOKE:
        _check_proof(view, given)
    name = hash_of(view, kind, given)
    shown = filled_in(view, kind, given)
    result: Shape = {"transaction_hash": felt(name)}
    if kind == DECLARE:
        result["class_hash"] = shown["class_hash"]
    if kind == DEPLOY_ACCOUNT:
        result["contract_address"] = shapes.deployed_address(view.chain, name)
    known = RpcError(DUPLICATE, "A transaction with the same hash already exists in the mempool")
    view.submit(name, known, shown)
    return result


def hash_of(view: ChainView, kind: str, given: Mapping[str, object]) -> bytes:
    return view.chain.digest("sent", kind, msgspec.json.encode(given, order="deterministic"))


def filled_in(view: ChainView, kind: str, given: Mapping[str, object]) -> Shape:
    """Return a transaction as it is shown, without its hash."""
    shown: Shape = shapes.PAID | {"type": kind}
    for member in _FELTS[kind]:
        default = hex(shapes.account(view.chain, VISITOR)) if member == "sender_address" else "0x0"
        shown[member] = _felt_or(given.get(member), default)
    for member in _LISTS[kind]:
        listed = given.get(member)
        shown[member] = [_felt_or(each) for each in listed[:_MAX_LIST]] if isinstance(listed, list) else []
    facts = given.get("proof_facts")
    missing = versions.missing_members(view.version, versions.INVOKE)
    if kind == INVOKE and isinstance(facts, list) and "proof_facts" not in missing:
        shown["proof_facts"] = [_felt_or(each) for each in facts[:_MAX_LIST]]
    if kind == DECLARE:
        shown["class_hash"] = felt(view.chain.lasting_digest("class", hash_of(view, kind, given)))
    return shown


def _check_proof(view: ChainView, given: Mapping[str, object]) -> None:
    """Refuse a proof that is not base64; versions without proofs take no notice of it."""
    if "proof" not in given or not versions.has(view.version, Kind.INPUT, versions.SENT_INVOKE, "proof"):
        return
    try:
        binascii.a2b_base64(str(given["proof"]).encode(), strict_mode=True)
    except ValueError as error:
        raise RpcError(INVALID_PROOF, versions.error_message(view.version, INVALID_PROOF)) from error


def _felt_or(value: object, default: str = "0x0") -> str:
    try:
        return hex(read_felt(value, ""))
    except RpcError:
        return default
