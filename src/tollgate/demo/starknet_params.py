"""Reading the parameters of Starknet's methods: felts, block ids, flags, hashes of transactions.

Knows which tags each version of the specification has. Answers nothing.
"""

from __future__ import annotations

from tollgate.chains import starknet_versions as versions
from tollgate.demo.chain import Transfer
from tollgate.demo.network import ChainView
from tollgate.demo.params import RpcError, array, integer, invalid, mapping, quantity
from tollgate.demo.starknet_shapes import L1_BEHIND

BLOCK_NOT_FOUND = 24
TRANSACTION_NOT_FOUND = 29

_FIELD_BITS = 252
_MAX_FLAGS = 10


def read_felt(value: object, what: str) -> int:
    return quantity(value, what, bits=_FIELD_BITS)


def read_hash(value: object, what: str = "transaction_hash") -> bytes:
    return read_felt(value, what).to_bytes(32, "big")


def resolve(view: ChainView, value: object, what: str = "block_id") -> int:
    """Return the height that a block id means; that of the block which is being made is one above the head."""
    if isinstance(value, str):
        if value not in versions.tags(view.version):
            raise invalid(f"{what} is no block tag of version {view.version}")
        if value == "latest":
            return view.head
        return max(0, view.head - L1_BEHIND) if value == "l1_accepted" else view.head + 1
    given = mapping(value, what)
    if given.keys() == {"block_number"}:
        height: int | None = integer(given["block_number"], "block_number")
    elif given.keys() == {"block_hash"}:
        height = view.chain.block_height(read_hash(given["block_hash"], "block_hash"))
    else:
        raise invalid(f"{what} is not one of block_hash and block_number")
    if height is None or height > view.head:
        raise RpcError(BLOCK_NOT_FOUND, "Block not found")
    return height


def transfers_of(view: ChainView, height: int) -> list[Transfer]:
    return view.transfers(height) if height <= view.head else view.chain.transfers(height)


def read_flags(given: object, what: str = "response_flags") -> set[str]:
    return {each for each in array(given or [], what, _MAX_FLAGS) if isinstance(each, str)}


def find_transaction(view: ChainView, transaction_hash: object) -> Transfer:
    name = read_hash(transaction_hash)
    found = view.find(name) or view.chain.find_transfer(name)
    if found is None or found.height > view.head + 1:
        raise RpcError(TRANSACTION_NOT_FOUND, "Transaction hash not found")
    return found
