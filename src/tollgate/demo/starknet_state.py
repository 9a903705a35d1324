"""What a Starknet contract holds and answers at a height of the simulated chain.

Owns nonces, balances, calls and state diffs. There are three kinds of contract: the accounts, the two
tokens, and the sequencer. Reads no block id: the height is an argument.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from tollgate.demo.chain import ACCOUNTS, GRANT, Chain, holding, sent_count, transactions_before, transfers
from tollgate.demo.chain_params import RpcError, Shape
from tollgate.demo.starknet_classes import ACCOUNT_CLASS, TOKEN_CLASS
from tollgate.demo.starknet_shapes import (
    ETH,
    FEE,
    LAST_BLOCK,
    STRK,
    account,
    accounts,
    felt,
    halves,
    selector,
    sequencer,
    storage_key,
    touched,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CONTRACT_NOT_FOUND = 20
ENTRY_POINT_NOT_FOUND = 21
CONTRACT_ERROR = 40


def class_hash(chain: Chain, address: int) -> int:
    """Return the class of the contract at an address."""
    if address in (STRK, ETH):
        return TOKEN_CLASS
    if address in accounts(chain) or address == sequencer(chain):
        return ACCOUNT_CLASS
    raise RpcError(CONTRACT_NOT_FOUND, "Contract not found")


def nonce(chain: Chain, address: int, height: int) -> int:
    """Return how many transactions a contract has sent."""
    class_hash(chain, address)
    number = accounts(chain).get(address)
    return 0 if number is None else sent_count(number, height)


def balance(chain: Chain, token: int, address: int, height: int) -> int:
    """Return how much of a token an address holds: STRK moves and pays fees, ETH lies still."""
    number = accounts(chain).get(address)
    if token == ETH:
        return 0 if number is None else GRANT
    if address == sequencer(chain):
        return FEE * transactions_before(height + 1)
    return 0 if number is None else max(0, holding(number, height) - FEE * sent_count(number, height))


def call(chain: Chain, address: int, function: int, arguments: Sequence[int], height: int) -> list[str]:
    """Return what a view function of a contract returns."""
    if class_hash(chain, address) == TOKEN_CLASS:
        if function in _BALANCE_OF:
            if len(arguments) != 1:
                raise RpcError(
                    CONTRACT_ERROR, "Contract error", {"revert_error": "Failed to deserialize param #1"}
                )
            return halves(balance(chain, address, arguments[0], height))
        if function in _FIXED:
            return _FIXED[function](address)
    raise RpcError(ENTRY_POINT_NOT_FOUND, "Requested entry point does not exist in the contract")


def _short_text(text: str) -> str:
    return hex(int.from_bytes(text.encode(), "big"))


_BALANCE_OF = {selector("balanceOf"), selector("balance_of")}
_SUPPLY = halves(ACCOUNTS * GRANT)
_FIXED: dict[int, Callable[[int], list[str]]] = {
    selector("name"): lambda token: [_short_text("Starknet Token" if token == STRK else "Ether")],
    selector("symbol"): lambda token: [_short_text("STRK" if token == STRK else "ETH")],
    selector("decimals"): lambda _: ["0x12"],
    selector("totalSupply"): lambda _: _SUPPLY,
    selector("total_supply"): lambda _: _SUPPLY,
}


def storage(chain: Chain, address: int, key: int, height: int) -> tuple[int, int]:
    """Return what is stored under a key and the block that wrote it last.

    The STRK token keeps its balances, and the hash of the newest block: state that every block changes, and
    every reorganisation. Nothing else is stored.
    """
    class_hash(chain, address)
    if address == STRK and key == LAST_BLOCK and height:
        return int.from_bytes(chain.block_hash(height), "big"), height
    holder = _storage_holders(chain.trunk).get(hex(key)) if address == STRK else None
    if holder is None:
        return 0, 0
    written = height
    # The accounts take turns, so this looks at a handful of blocks.
    while written and holder not in touched(chain, written):
        written -= 1
    return balance(chain, STRK, holder, height), written


@lru_cache(maxsize=8)
def _storage_holders(chain: Chain) -> dict[str, int]:
    return {storage_key(chain, holder): holder for holder in (*accounts(chain), sequencer(chain))}


def state_diff(chain: Chain, height: int) -> Shape:
    """Show what a block changed: balances and nonces."""
    changed = [
        {"key": storage_key(chain, address), "value": hex(balance(chain, STRK, address, height))}
        for address in touched(chain, height)
    ]
    if height:
        changed.append({"key": hex(LAST_BLOCK), "value": felt(chain.block_hash(height))})
    senders = dict.fromkeys(move.sender for move in transfers(height))
    return empty_diff() | {
        "storage_diffs": [{"address": hex(STRK), "storage_entries": changed}] if changed else [],
        "nonces": [
            {"contract_address": hex(account(chain, sender)), "nonce": hex(sent_count(sender, height))}
            for sender in senders
        ],
    }


def empty_diff() -> Shape:
    """Show that nothing changed."""
    return {
        "storage_diffs": [],
        "deprecated_declared_classes": [],
        "declared_classes": [],
        "migrated_compiled_classes": [],
        "deployed_contracts": [],
        "replaced_classes": [],
        "nonces": [],
    }


def state_update(chain: Chain, height: int) -> Shape:
    """Show a block's state update."""
    return {
        "block_hash": felt(chain.block_hash(height)),
        "old_root": felt(chain.block_digest("state", height - 1)) if height else "0x0",
        "new_root": felt(chain.block_digest("state", height)),
        "state_diff": state_diff(chain, height),
    }
