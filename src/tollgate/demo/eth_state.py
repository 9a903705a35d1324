"""Balances, code, storage and calls at a height of the simulated Ethereum chain.

There is one contract, an ERC-20 token. Reads no block parameter: the height is an argument.
"""

from __future__ import annotations

from tollgate.demo.chain import ACCOUNTS, GRANT, SimulatedChain, holding, sent_count
from tollgate.demo.eth_shapes import FEE, TOKEN, TRANSFER_SELECTOR, accounts
from tollgate.demo.params import RpcError

REVERTED = 3

# The balance of any other address: visitors who query their own see more than a zero.
_VISITOR_GRANT = 10**18
# Begins as compiled contracts do; nothing runs it.
_TOKEN_CODE = bytes.fromhex("6080604052600080fdfe") + b"Tollgate simulated token"


def nonce(chain: SimulatedChain, address: bytes, height: int) -> int:
    number = accounts(chain).get(address)
    return 0 if number is None else sent_count(number, height)


def balance(chain: SimulatedChain, address: bytes, height: int) -> int:
    """Return an address's ether, in wei."""
    if address == TOKEN:
        return 0
    if address not in accounts(chain):
        return _VISITOR_GRANT
    return max(0, GRANT - FEE * nonce(chain, address, height))


def code(address: bytes) -> bytes:
    return _TOKEN_CODE if address == TOKEN else b""


def storage(chain: SimulatedChain, address: bytes, slot: int, height: int) -> bytes:
    """Return the 32 bytes in a storage slot.

    The token's first slot holds the block's hash, so that every block changes some state.
    """
    if address != TOKEN or slot >= ACCOUNTS:
        return bytes(32)
    return chain.lasting_digest("storage", slot) if slot else chain.block_hash(height)


def call(chain: SimulatedChain, to: bytes | None, data: bytes, height: int) -> bytes:
    """Return what a call to an address returns; only the token has code to run."""
    if to != TOKEN:
        return b""
    selector, arguments = data[:4], data[4:]
    if selector == _BALANCE_OF and len(arguments) >= 32:
        number = accounts(chain).get(arguments[12:32])
        return _word(0 if number is None else holding(number, height))
    if selector in _FIXED:
        return _FIXED[selector]
    raise RpcError(REVERTED, "execution reverted", "0x")


def _string(value: bytes) -> bytes:
    return _word(32) + _word(len(value)) + value.ljust(-(-len(value) // 32) * 32, b"\0")


def _word(value: int) -> bytes:
    return value.to_bytes(32, "big")


_BALANCE_OF = bytes.fromhex("70a08231")
# By the first four bytes of the Keccak-256 of the signature beside each.
_FIXED = {
    bytes.fromhex("06fdde03"): _string(b"Tollgate Demo Token"),  # name()
    bytes.fromhex("95d89b41"): _string(b"TOLL"),  # symbol()
    bytes.fromhex("313ce567"): _word(18),  # decimals()
    bytes.fromhex("18160ddd"): _word(ACCOUNTS * GRANT),  # totalSupply()
    bytes.fromhex("dd62ed3e"): _word(0),  # allowance(address,address)
    TRANSFER_SELECTOR: _word(1),  # transfer(address,uint256)
}
