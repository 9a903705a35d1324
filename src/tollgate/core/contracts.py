"""Which contracts a call reads, for tokens that may read some only.

Pure: a method, its parameters and a list in; why it is refused out. A member that a node could take for another
(doubled, or in other letters: Go reads names in any case) is refused, because parameters are forwarded as is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from tollgate.core.methods import is_expensive
from tollgate.core.shapes import Params

_ADDRESS = re.compile(r"0[xX][0-9a-fA-F]{1,64}")
# Where a call names what it reads: the place of a parameter, its name, the member in it ("": it is the address).
_READS: dict[str, tuple[int, str, str]] = {
    "eth_call": (0, "", "to"),
    "eth_estimategas": (0, "", "to"),
    "eth_createaccesslist": (0, "", "to"),
    "eth_filltransaction": (0, "", "to"),
    "eth_getlogs": (0, "", "address"),
    "eth_newfilter": (0, "", "address"),
    "eth_getcode": (0, "", ""),
    "eth_getstorageat": (0, "", ""),
    "eth_getproof": (0, "", ""),
    "starknet_call": (0, "request", "contract_address"),
    "starknet_getevents": (0, "filter", "address"),
    "starknet_subscribeevents": (0, "from_address", ""),
    "starknet_getstorageat": (0, "contract_address", ""),
    "starknet_getclassat": (1, "contract_address", ""),
    "starknet_getclasshashat": (1, "contract_address", ""),
}
# These read whatever a caller writes into them.
_ANY = frozenset({
    "eth_callmany", "eth_simulatev1", "starknet_simulatetransactions", "starknet_estimatefee",
    "starknet_estimatemessagefee", "starknet_getstorageproof", "eth_multicall", "eth_getstoragevalues",
})  # fmt: skip
# Calls whose third parameter changes the state that they see: with it an allowed contract can read any other.
_OVERRIDABLE = frozenset({"eth_call", "eth_estimategas", "eth_createaccesslist", "eth_filltransaction"})


_NAMES = ("to", "address", "contract_address")


class _Doubled(ValueError):
    """An object with a member twice."""


def is_address(text: str) -> bool:
    """Whether a list may hold this: an address in hex."""
    return _ADDRESS.fullmatch(text) is not None


def normal(address: str) -> str:
    """An address in the one way in which it is compared."""
    return "0x" + (address[2:].lstrip("0").lower() or "0")


# Of `eth_subscribe`: these read no contract.
_PLAIN_SUBSCRIPTIONS = ("newHeads", "newPendingTransactions", "syncing")


def refusal_of(method: str, params: Params, contracts: frozenset[str], *, known: bool = True) -> str | None:
    """Why a token that may read these contracts may not make a call, or None where it may.

    `known`: whether the method is in its family's catalogue. Nodes have methods of their own that read contracts.
    """
    name = method.casefold()
    if name in _ANY or is_expensive(name):
        return "This token may read some contracts only, and this method reads any."
    if name == "eth_subscribe":
        return _of_subscription(params, contracts)
    place = _READS.get(name)
    if place is None:
        return (
            None if known else "This token may read some contracts only, and what this method reads is not known."
        )
    try:
        read = _addresses(params, *place)
    except (ValueError, RecursionError):
        return (
            "The contracts that it reads cannot be made out: write each member once, as the node's manual has it."
        )
    if name in _OVERRIDABLE and isinstance(params, list) and len(params) > 2:
        return "This token may read some contracts only, so a call may not change the state that it sees."
    return _of_addresses(read, contracts)


def _of_subscription(params: Params, contracts: frozenset[str]) -> str | None:
    try:
        # Decoded: letters may be written as escapes.
        if isinstance(params, list) and params and json.loads(bytes(params[0])) in _PLAIN_SUBSCRIPTIONS:
            return None
        return _of_addresses(_addresses(params, 1, "", "address"), contracts)
    except (ValueError, RecursionError):
        return "The contracts that it reads cannot be made out: write each member once."


def _of_addresses(read: Sequence[Any], contracts: frozenset[str]) -> str | None:
    if not read:
        return f"This token may read these contracts only, so name one: {_shown(contracts)}."
    for address in read:
        if not isinstance(address, str) or not is_address(address) or normal(address) not in contracts:
            return f"This token may read these contracts only: {_shown(contracts)}."
    return None


def _shown(contracts: frozenset[str]) -> str:
    return ", ".join(sorted(contracts)[:5]) + (", …" if len(contracts) > 5 else "")


def _addresses(params: Params, position: int, name: str, member: str) -> Sequence[Any]:
    if isinstance(params, dict):
        if len({each.casefold() for each in params}) < len(params):
            raise _Doubled
        written = params.get(name) if name else None
    else:
        written = params[position] if params and len(params) > position else None
    if written is None:
        return ()
    value = json.loads(bytes(written), object_pairs_hook=_members)
    if member:
        value = value.get(member) if isinstance(value, dict) else None
    if value is None:
        return ()
    return value if isinstance(value, list) else (value,)


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name.casefold() for name, _ in pairs}) < len(pairs):
        raise _Doubled
    # The only one of its kind, but not as we would look for it.
    if any(name not in _NAMES and name.casefold() in _NAMES for name, _ in pairs):
        raise _Doubled
    return dict(pairs)
