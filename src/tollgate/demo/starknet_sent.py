"""Transactions that a caller submits to the simulated Starknet chain: their names, and what is shown of them.

Owns the reading of a submitted transaction. Anything that is an object is taken: what the specification wants
and the caller left out, or wrote otherwise, is filled in, because clients refuse a transaction that lacks it.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tollgate.demo.chain import VISITOR, Chain, Sent
from tollgate.demo.chain_params import RpcError, Shape, mapping
from tollgate.demo.starknet_blocks import felt_value
from tollgate.demo.starknet_shapes import DECLARE, DEPLOY_ACCOUNT, INVOKE, account, felt, paid

DUPLICATE = 59

# What is kept of each list: with the limit of `course.py` a bound on memory.
_LONGEST_LIST = 32


def already_known() -> RpcError:
    """Make the error for a transaction that was submitted before."""
    return RpcError(DUPLICATE, "A transaction with the same hash already exists in the mempool")


def submitted(chain: Chain, kind: str, value: object) -> Sent:
    """Name a submitted transaction; the true hash would need Starknet's own hash functions."""
    given = mapping(value, "transaction")
    name = chain.digest("sent", kind, msgspec.json.encode(given, order="deterministic"))
    return Sent(name, kind, msgspec.json.encode(_shown(chain, kind, given, name)))


def declared_class(chain: Chain, name: bytes) -> str:
    """Return the hash of the class that a submitted transaction says to declare."""
    return felt(chain.lasting("class", name))


def _shown(chain: Chain, kind: str, given: Mapping[str, object], name: bytes) -> Shape:
    shape: Shape = {"type": kind, "nonce": _felt(given, "nonce"), "signature": _felts(given, "signature")}
    if kind != DEPLOY_ACCOUNT:
        shape["sender_address"] = _felt(given, "sender_address", hex(account(chain, VISITOR)))
        shape["account_deployment_data"] = _felts(given, "account_deployment_data")
    if kind == INVOKE:
        shape["calldata"] = _felts(given, "calldata")
    if kind == DECLARE:
        shape["class_hash"] = declared_class(chain, name)
        shape["compiled_class_hash"] = _felt(given, "compiled_class_hash")
    if kind == DEPLOY_ACCOUNT:
        shape["class_hash"] = _felt(given, "class_hash")
        shape["contract_address_salt"] = _felt(given, "contract_address_salt")
        shape["constructor_calldata"] = _felts(given, "constructor_calldata")
    return shape | paid()


def _felt(given: Mapping[str, object], name: str, otherwise: str = "0x0") -> str:
    try:
        return hex(felt_value(given.get(name), name))
    except RpcError:
        return otherwise


def _felts(given: Mapping[str, object], name: str) -> list[str]:
    value = given.get(name)
    if not isinstance(value, list):
        return []
    return [_felt({name: one}, name) for one in value[:_LONGEST_LIST]]
