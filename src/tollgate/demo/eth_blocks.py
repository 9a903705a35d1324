"""Which block an Ethereum caller means: a number, a tag, a hash, or an EIP-1898 object.

Owns only that. A block that does not exist is `None` here; whether the caller gets `null` or an error is the
method's business.
"""

from __future__ import annotations

from collections.abc import Mapping

from tollgate.demo.chain_params import RpcError, invalid, mapping, octets, quantity
from tollgate.demo.chain_view import View

INVALID_INPUT = -32000

# Two epochs make a block final, one makes it safe, in the best case.
SAFE_BEHIND = 32
FINAL_BEHIND = 64


def resolve(view: View, value: object, what: str = "block") -> int | None:
    """Return the height that a number or tag means; `pending` is one above the head."""
    match value:
        case "latest":
            return view.head
        case "pending":
            return view.head + 1
        case "safe":
            return max(0, view.head - SAFE_BEHIND)
        case "finalized":
            return max(0, view.head - FINAL_BEHIND)
        case "earliest":
            return 0
    height = quantity(value, what, bits=64)
    return height if height <= view.head else None


def block_height(view: View, block_hash: bytes) -> int | None:
    """Return the height of a block by its hash, if the chain has it."""
    height = view.chain.block_height(block_hash)
    return height if height is not None and height <= view.head else None


def state_height(view: View, value: object) -> int:
    """Return the height at which state is asked for; what is pending has changed nothing yet."""
    height = _by_object(view, value) if isinstance(value, Mapping) else resolve(view, value)
    if height is None:
        raise RpcError(INVALID_INPUT, "header not found")
    return min(height, view.head)


def _by_object(view: View, value: object) -> int | None:
    given = mapping(value, "block")
    if "blockHash" in given:
        return block_height(view, octets(given["blockHash"], "blockHash", 32))
    if "blockNumber" in given:
        return resolve(view, given["blockNumber"], "blockNumber")
    raise invalid("block has neither blockHash nor blockNumber")
