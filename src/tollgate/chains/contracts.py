"""Which contracts a call reads, for tokens that may read some only.

Pure: a method, its parameters and a list in; why it is refused out. A member that a node could take for another
(doubled, or in other letters: Go reads names in any case) is refused, because parameters are forwarded as is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from tollgate.chains.methods import Block, Contract, Effect, Follows, Method
from tollgate.core.shapes import Params

_ADDRESS = re.compile(r"0[xX][0-9a-fA-F]{1,64}")
_NAMES = ("to", "address", "contract_address")


class _Doubled(ValueError):
    """An object with a member twice."""


def is_address(text: str) -> bool:
    """Whether a list may hold this: an address in hex."""
    return _ADDRESS.fullmatch(text) is not None


def normal(address: str) -> str:
    """An address in the one way in which it is compared."""
    return "0x" + (address[2:].lstrip("0").lower() or "0")


_SOME = "This token may read some contracts only"
_REFUSALS = {
    Effect.CHAIN: None,
    Effect.OWN: None,
    Effect.ANY: f"{_SOME}, and this method reads any.",
    Effect.SENDS: f"{_SOME}, and this method sends transactions.",
    Effect.STEERS: f"{_SOME}, and this method steers a node or uses its keys.",
}


def refusal_of(method: Method | None, params: Params, contracts: frozenset[str]) -> str | None:
    """Why a token that may read these contracts may not make a call, or None where it may.

    None for a method: the catalogue does not know it. Nodes have methods of their own that read contracts.
    """
    if method is None:
        return f"{_SOME}, and what this method reads is not known."
    does = method.does
    if isinstance(does, Effect):
        return _REFUSALS[does]
    try:
        if isinstance(does, Follows):
            # Decoded: letters may be written as escapes.
            topic = json.loads(bytes(params[0])) if isinstance(params, list) and params else None
            if topic in does.chain:
                return None
            if topic != does.events:
                return _REFUSALS[Effect.ANY]
            does = does.contract
        if isinstance(does, Block):
            is_bare = isinstance(params, list) and all(bytes(each) == b"false" for each in params[does.full :])
            return None if is_bare else f"{_SOME}, so it reads blocks without their transactions: write `false`."
        return _of_addresses(_addresses(params, does), contracts) or _of_overrides(params, does)
    except (ValueError, RecursionError):
        return (
            "The contracts that it reads cannot be made out: write each member once, as the node's manual has it."
        )


def _of_overrides(params: Params, does: Contract) -> str | None:
    """With another state an allowed contract can read any other."""
    if does.overrides is not None and isinstance(params, list) and len(params) > does.overrides:
        return f"{_SOME}, so a call may not change the state that it sees."
    return None


def _of_addresses(read: Sequence[Any], contracts: frozenset[str]) -> str | None:
    if not read:
        return f"This token may read these contracts only, so name one: {_shown(contracts)}."
    for address in read:
        if not isinstance(address, str) or not is_address(address) or normal(address) not in contracts:
            return f"This token may read these contracts only: {_shown(contracts)}."
    return None


def _shown(contracts: frozenset[str]) -> str:
    return ", ".join(sorted(contracts)[:5]) + (", …" if len(contracts) > 5 else "")


def _addresses(params: Params, does: Contract) -> Sequence[Any]:
    if isinstance(params, dict):
        if len({each.casefold() for each in params}) < len(params):
            raise _Doubled
        written = params.get(does.name) if does.name else None
    else:
        written = params[does.position] if params and len(params) > does.position else None
    if written is None:
        return ()
    value = json.loads(bytes(written), object_pairs_hook=_members)
    if does.member:
        value = value.get(does.member) if isinstance(value, dict) else None
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
