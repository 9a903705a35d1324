"""Contracts of the simulated Starknet chain: their classes, nonces, balances, calls and state diffs.

There are three kinds of contract: the accounts, the two tokens, and the sequencer. A class has a true interface,
so that a client can build a contract object from it, and a stub of a program that nothing runs. Reads no block
id: the height is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from tollgate.chains import starknet_versions as versions
from tollgate.chains.starknet_versions import in_form
from tollgate.demo.chain import ACCOUNTS, GRANT, SimulatedChain, holding, sent_count, transactions_before
from tollgate.demo.network import ChainView
from tollgate.demo.params import RpcError, Shape
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
)

CONTRACT_NOT_FOUND = 20
ENTRY_POINT_NOT_FOUND = 21
CLASS_NOT_FOUND = 28
CONTRACT_ERROR = 40

ACCOUNT_CLASS = selector("Tollgate simulated account")
TOKEN_CLASS = selector("Tollgate simulated token")

_NO_DIFF: Shape = {
    "storage_diffs": [],
    "deprecated_declared_classes": [],
    "declared_classes": [],
    "migrated_compiled_classes": [],
    "deployed_contracts": [],
    "replaced_classes": [],
    "nonces": [],
}

_U256 = "core::integer::u256"
_FELT = "core::felt252"
_INTERFACE = "tollgate::simulated::IToken"
# Functions of the token and what they return; those in the second table take an address.
_CONSTANTS = {
    "name": _FELT,
    "symbol": _FELT,
    "decimals": "core::integer::u8",
    "totalSupply": _U256,
    "total_supply": _U256,
}
_BALANCES = {"balanceOf": _U256, "balance_of": _U256}


def class_hash(chain: SimulatedChain, address: int) -> int:
    if address in (STRK, ETH):
        return TOKEN_CLASS
    if address in accounts(chain) or address == sequencer(chain):
        return ACCOUNT_CLASS
    raise RpcError(CONTRACT_NOT_FOUND, "Contract not found")


def contract_class(class_hash: int) -> Shape:
    if class_hash not in (TOKEN_CLASS, ACCOUNT_CLASS):
        raise RpcError(CLASS_NOT_FOUND, "Class hash not found")
    functions = _CONSTANTS | _BALANCES if class_hash == TOKEN_CLASS else {}
    selectors = sorted(selector(name) for name in functions)
    return {
        "sierra_program": ["0x1", "0x7", "0x0", "0x2", "0xb", "0x0"],
        "contract_class_version": "0.1.0",
        "entry_points_by_type": {
            "CONSTRUCTOR": [],
            "EXTERNAL": [{"selector": hex(each), "function_idx": at} for at, each in enumerate(selectors)],
            "L1_HANDLER": [],
        },
        "abi": msgspec.json.encode(_abi(functions) if functions else []).decode(),
    }


def _abi(functions: dict[str, str]) -> list[Shape]:
    """Write it as current compilers do; functions outside an interface mean an old ABI to starknet.py."""
    address = {"name": "account", "type": "core::starknet::contract_address::ContractAddress"}
    items = [
        {
            "type": "function",
            "name": name,
            "inputs": [address] if name in _BALANCES else [],
            "outputs": [{"type": returned}],
            "state_mutability": "view",
        }
        for name, returned in functions.items()
    ]
    members = [{"name": half, "type": "core::integer::u128"} for half in ("low", "high")]
    return [
        {"type": "impl", "name": "TokenImpl", "interface_name": _INTERFACE},
        {"type": "struct", "name": _U256, "members": members},
        {"type": "interface", "name": _INTERFACE, "items": items},
    ]


def nonce(chain: SimulatedChain, address: int, height: int) -> int:
    """Return how many transactions a contract has sent."""
    class_hash(chain, address)
    number = accounts(chain).get(address)
    return 0 if number is None else sent_count(number, height)


def balance(chain: SimulatedChain, token: int, address: int, height: int) -> int:
    """Return how much of a token an address holds: STRK moves and pays fees, ETH lies still."""
    number = accounts(chain).get(address)
    if token == ETH:
        return 0 if number is None else GRANT
    if address == sequencer(chain):
        return FEE * transactions_before(height + 1)
    return 0 if number is None else max(0, holding(number, height) - FEE * sent_count(number, height))


def call(view: ChainView, address: int, function: int, arguments: Sequence[int], height: int) -> list[str]:
    chain = view.chain
    if class_hash(chain, address) == TOKEN_CLASS:
        if function in _BALANCE_SELECTORS:
            if len(arguments) != 1:
                reason = {"revert_error": "Failed to deserialize param #1"}
                raise RpcError(CONTRACT_ERROR, "Contract error", reason)
            return halves(balance(chain, address, arguments[0], height))
        if function in _CONSTANT_RESULTS:
            return _CONSTANT_RESULTS[function](address)
    raise RpcError(ENTRY_POINT_NOT_FOUND, versions.error_message(view.version, ENTRY_POINT_NOT_FOUND))


_BALANCE_SELECTORS = {selector(name) for name in _BALANCES}
_SUPPLY = halves(ACCOUNTS * GRANT)
_CONSTANT_RESULTS: dict[int, Callable[[int], list[str]]] = {
    selector("name"): lambda token: [felt(b"Starknet Token" if token == STRK else b"Ether")],
    selector("symbol"): lambda token: [felt(b"STRK" if token == STRK else b"ETH")],
    selector("decimals"): lambda _: ["0x12"],
    selector("totalSupply"): lambda _: _SUPPLY,
    selector("total_supply"): lambda _: _SUPPLY,
}


def storage(chain: SimulatedChain, address: int, key: int, height: int) -> tuple[int, int]:
    """Return what is stored under a key and the block that wrote it last.

    The STRK token keeps the hash of the newest block, so that every block changes some state. Nothing else is
    stored: balances are formulas.
    """
    class_hash(chain, address)
    if address == STRK and key == LAST_BLOCK and height:
        return int.from_bytes(chain.block_hash(height), "big"), height
    return 0, 0


def no_diff(view: ChainView) -> Shape:
    return in_form(view.version, versions.STATE_DIFF, _NO_DIFF)


def state_diff(view: ChainView, height: int) -> Shape:
    """Show what a block changed: the token's storage, once the block has a hash, and the nonces of its senders."""
    chain = view.chain
    entry = {"key": hex(LAST_BLOCK), "value": felt(chain.block_hash(height))}
    has_entry = 0 < height <= view.head
    senders = dict.fromkeys(tx.sender for tx in chain.transfers(height))
    return no_diff(view) | {
        "storage_diffs": [{"address": hex(STRK), "storage_entries": [entry]}] if has_entry else [],
        "nonces": [
            {"contract_address": hex(account(chain, sender)), "nonce": hex(sent_count(sender, height))}
            for sender in senders
        ],
    }


def state_diff_length(chain: SimulatedChain, height: int) -> int:
    return len({tx.sender for tx in chain.transfers(height)}) + (1 if height else 0)
