"""The two declared classes of the simulated Starknet chain: token and account.

Owns their hashes and their shape. The interface is true, so that a client can build a contract object from
it; the program is a stub that nothing runs.
"""

from __future__ import annotations

import msgspec

from tollgate.demo.chain_params import RpcError, Shape
from tollgate.demo.starknet_shapes import selector

CLASS_NOT_FOUND = 28

ACCOUNT_CLASS = selector("Tollgate simulated account")
TOKEN_CLASS = selector("Tollgate simulated token")

_ADDRESS = "core::starknet::contract_address::ContractAddress"
_U256 = "core::integer::u256"
_FELT = "core::felt252"
_INTERFACE = "tollgate::simulated::IToken"

# Function, its parameter if it has one, and what it returns.
_TOKEN_VIEWS = (
    ("name", None, _FELT),
    ("symbol", None, _FELT),
    ("decimals", None, "core::integer::u8"),
    ("totalSupply", None, _U256),
    ("total_supply", None, _U256),
    ("balanceOf", "account", _U256),
    ("balance_of", "account", _U256),
)


def contract_class(class_hash: int) -> Shape:
    """Show a declared class."""
    if class_hash not in (TOKEN_CLASS, ACCOUNT_CLASS):
        raise RpcError(CLASS_NOT_FOUND, "Class hash not found")
    views = _TOKEN_VIEWS if class_hash == TOKEN_CLASS else ()
    points = sorted(selector(name) for name, _, _ in views)
    return {
        "sierra_program": ["0x1", "0x7", "0x0", "0x2", "0xb", "0x0"],
        "contract_class_version": "0.1.0",
        "entry_points_by_type": {
            "CONSTRUCTOR": [],
            "EXTERNAL": [{"selector": hex(point), "function_idx": at} for at, point in enumerate(points)],
            "L1_HANDLER": [],
        },
        "abi": msgspec.json.encode(_abi() if views else []).decode(),
    }


def _abi() -> list[Shape]:
    """Write it as current compilers do; functions outside an interface mean an old ABI to starknet.py."""
    halves = [{"name": half, "type": "core::integer::u128"} for half in ("low", "high")]
    return [
        {"type": "impl", "name": "TokenImpl", "interface_name": _INTERFACE},
        {"type": "struct", "name": _U256, "members": halves},
        {"type": "interface", "name": _INTERFACE, "items": [_function(*view) for view in _TOKEN_VIEWS]},
    ]


def _function(name: str, parameter: str | None, returned: str) -> Shape:
    return {
        "type": "function",
        "name": name,
        "inputs": [{"name": parameter, "type": _ADDRESS}] if parameter else [],
        "outputs": [{"type": returned}],
        "state_mutability": "view",
    }
