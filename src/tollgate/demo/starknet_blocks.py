"""Which block and which field element a Starknet caller means.

Owns the reading of block ids and felts, and the errors for blocks that do not exist.
"""

from __future__ import annotations

from tollgate.demo.chain_params import RpcError, integer, invalid, mapping, quantity
from tollgate.demo.chain_view import View
from tollgate.demo.starknet_shapes import L1_BEHIND

BLOCK_NOT_FOUND = 24

FIELD_BITS = 252


def felt_value(value: object, what: str) -> int:
    """Read a field element."""
    return quantity(value, what, bits=FIELD_BITS)


def hash_bytes(value: object, what: str) -> bytes:
    """Read a field element that is a hash."""
    return felt_value(value, what).to_bytes(32, "big")


def resolve(view: View, value: object, what: str = "block_id") -> int:
    """Return the height that a block id means; `pre_confirmed` is one above the head."""
    match value:
        case "latest":
            return view.head
        case "pre_confirmed":
            return view.head + 1
        case "l1_accepted":
            return max(0, view.head - L1_BEHIND)
        case str():
            raise invalid(f"{what} is no block tag")
    return _selected(view, value, what)


def _selected(view: View, value: object, what: str) -> int:
    given = mapping(value, what)
    if len(given) != 1:
        raise invalid(f"{what} is not one of block_hash and block_number")
    if "block_number" in given:
        height: int | None = integer(given["block_number"], "block_number")
    elif "block_hash" in given:
        height = view.chain.block_height(hash_bytes(given["block_hash"], "block_hash"))
    else:
        raise invalid(f"{what} has neither block_hash nor block_number")
    if height is None or height > view.head:
        raise RpcError(BLOCK_NOT_FOUND, "Block not found")
    return height


def state_height(view: View, value: object) -> int:
    """Return the height at which state is asked for; what is pre-confirmed has changed nothing yet."""
    return min(resolve(view, value), view.head)
