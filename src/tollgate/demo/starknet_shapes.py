"""Blocks, transactions, receipts and events as a Starknet node shows them, JSON-RPC specification 0.10.

Owns the JSON shapes and the fixed numbers in them; answers no method and reads no parameter. Clients refuse
members they do not know, so nothing beyond the specification may be added.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from tollgate.demo.chain import ACCOUNTS, VISITOR, Chain, Transfer, transfers
from tollgate.demo.chain_keccak import keccak256
from tollgate.demo.chain_view import View, transaction_hash

if TYPE_CHECKING:
    from tollgate.demo.chain_params import Shape

# starknet.py 0.30 warns about any other version; starknet.js 10 knows this one too.
SPEC_VERSION = "0.10.2"
STARKNET_VERSION = "0.14.1"
CHAIN_IDS = {"mainnet": "0x534e5f4d41494e", "sepolia": "0x534e5f5345504f4c4941"}

# The addresses these tokens have on the real networks, both of them.
STRK = 0x4718F5A0FC34CC1AF16A1CDEE98FFB20C31F5CD61D6AB07201858F4287C938D
ETH = 0x49D36570D4E46F48E99674BD3FCC84644DDD6B96F7C741B1562B82F9E004DC7

L1_GAS_PRICE = 30 * 10**12
L2_GAS_PRICE = 3 * 10**9
L1_DATA_GAS_PRICE = 20 * 10**9
# A wei buys this many fri.
_FRI_PER_WEI = 10_000

L1_GAS = 0
L2_GAS = 1_200_000
L1_DATA_GAS = 128
FEE = L1_GAS * L1_GAS_PRICE + L2_GAS * L2_GAS_PRICE + L1_DATA_GAS * L1_DATA_GAS_PRICE

# Aggregated proofs reach Ethereum long after a block.
L1_BEHIND = 100
EVENTS_PER_TRANSACTION = 2

INVOKE = "INVOKE"
DECLARE = "DECLARE"
DEPLOY_ACCOUNT = "DEPLOY_ACCOUNT"


@lru_cache(maxsize=64)
def selector(name: str) -> int:
    """Return the number by which a function or event of that name is known."""
    return int.from_bytes(keccak256(name.encode()), "big") & ((1 << 250) - 1)


TRANSFER = selector("Transfer")
TRANSFER_FUNCTION = selector("transfer")
# Where the STRK token of this chain keeps the hash of the newest block.
LAST_BLOCK = selector("last_block")


def felt(value: bytes) -> str:
    """Write derived bytes as a field element: hex without leading zeros."""
    return hex(int.from_bytes(value, "big"))


def account(chain: Chain, number: int) -> int:
    """Return the address of one of the accounts that send the transactions."""
    return _account(chain.trunk, number)


def accounts(chain: Chain) -> dict[int, int]:
    """Return the number of each sending account by its address."""
    return _accounts(chain.trunk)


def sequencer(chain: Chain) -> int:
    """Return the address that is paid the fees."""
    return _sequencer(chain.trunk)


@lru_cache(maxsize=8 * ACCOUNTS)
def _account(chain: Chain, number: int) -> int:
    return int.from_bytes(chain.lasting("account", number), "big")


@lru_cache(maxsize=8)
def _accounts(chain: Chain) -> dict[int, int]:
    return {account(chain, number): number for number in range(ACCOUNTS)}


@lru_cache(maxsize=8)
def _sequencer(chain: Chain) -> int:
    return int.from_bytes(chain.lasting("sequencer"), "big")


def halves(value: int) -> list[str]:
    """Write a 256-bit number as Cairo does: the lower half, then the upper."""
    return [hex(value & ((1 << 128) - 1)), hex(value >> 128)]


def finality(height: int, head: int) -> str:
    """Say how final a block is."""
    return "ACCEPTED_ON_L1" if height <= head - L1_BEHIND else "ACCEPTED_ON_L2"


def header(view: View, height: int) -> Shape:
    """Show a block's header."""
    chain = view.chain
    moves = view.moves(height)
    return {
        "block_hash": felt(chain.block_hash(height)),
        "parent_hash": felt(chain.block_hash(height - 1)),
        "new_root": felt(chain.block_digest("state", height)),
        "event_commitment": felt(chain.block_digest("events", height)),
        "transaction_commitment": felt(chain.block_digest("transactions", height)),
        "receipt_commitment": felt(chain.block_digest("receipts", height)),
        "state_diff_commitment": felt(chain.block_digest("diff", height)),
        "event_count": sum(1 if move.sent else EVENTS_PER_TRANSACTION for move in moves),
        "transaction_count": len(moves),
        "state_diff_length": _diff_length(chain, height),
    } | pre_confirmed_header(chain, height)


def pre_confirmed_header(chain: Chain, height: int) -> Shape:
    """Show what is known of a block while it is being made."""
    return {
        "block_number": height,
        "timestamp": chain.timestamp(height),
        "sequencer_address": hex(sequencer(chain)),
        "l1_gas_price": _price(L1_GAS_PRICE),
        "l2_gas_price": _price(L2_GAS_PRICE),
        "l1_data_gas_price": _price(L1_DATA_GAS_PRICE),
        "l1_da_mode": "BLOB",
        "starknet_version": STARKNET_VERSION,
    }


def _price(fri: int) -> Shape:
    return {"price_in_fri": hex(fri), "price_in_wei": hex(fri // _FRI_PER_WEI)}


def transaction(chain: Chain, move: Transfer, *, with_hash: bool = True) -> Shape:
    """Show a transaction: an account calling `transfer` of the STRK token, or what a caller submitted."""
    shape = _transfer(chain, move) if move.sent is None else msgspec.json.decode(move.sent.shown, type=dict)
    if with_hash:
        shape["transaction_hash"] = felt(transaction_hash(chain, move))
    return shape


def _transfer(chain: Chain, move: Transfer) -> Shape:
    inner = [hex(account(chain, move.recipient)), *halves(move.amount)]
    name = chain.transaction_hash(move.place)
    return {
        "type": INVOKE,
        "sender_address": hex(account(chain, move.sender)),
        # One call: contract, function, number of arguments, arguments.
        "calldata": ["0x1", hex(STRK), hex(TRANSFER_FUNCTION), hex(len(inner)), *inner],
        "signature": [felt(chain.digest(half, name)) for half in ("r", "s")],
        "nonce": hex(move.nonce),
        "account_deployment_data": [],
    } | paid()


def paid() -> Shape:
    """Show what the transactions of every kind say about their fees."""
    return {
        "version": "0x3",
        "resource_bounds": {
            "l1_gas": _bound(L1_GAS, L1_GAS_PRICE),
            "l1_data_gas": _bound(L1_DATA_GAS, L1_DATA_GAS_PRICE),
            "l2_gas": _bound(L2_GAS, L2_GAS_PRICE),
        },
        "tip": "0x0",
        "paymaster_data": [],
        "nonce_data_availability_mode": "L1",
        "fee_data_availability_mode": "L1",
    }


def sender_of(chain: Chain, move: Transfer) -> str:
    """Return the address that sent a transaction."""
    if move.sent is not None:
        shown = msgspec.json.decode(move.sent.shown, type=dict[str, object])
        return str(shown.get("sender_address", hex(account(chain, VISITOR))))
    return hex(account(chain, move.sender))


def _bound(amount: int, price: int) -> Shape:
    return {"max_amount": hex(amount * 3 // 2), "max_price_per_unit": hex(price * 3 // 2)}


def receipt(chain: Chain, move: Transfer, head: int) -> Shape:
    """Show the receipt of a transaction, as it appears inside a block."""
    kind = move.sent.kind if move.sent else INVOKE
    shape: Shape = {
        "type": kind,
        "transaction_hash": felt(transaction_hash(chain, move)),
        "actual_fee": {"amount": hex(0 if move.sent else FEE), "unit": "FRI"},
        "finality_status": finality(move.place.height, head),
        "execution_status": "SUCCEEDED",
        "messages_sent": [],
        "events": events(chain, move),
        "execution_resources": {"l1_gas": L1_GAS, "l1_data_gas": L1_DATA_GAS, "l2_gas": L2_GAS},
    }
    if kind == DEPLOY_ACCOUNT:
        shape["contract_address"] = deployed_address(chain, transaction_hash(chain, move))
    return shape


def deployed_address(chain: Chain, name: bytes) -> str:
    """Return the address of the account that a submitted transaction says to deploy."""
    return felt(chain.lasting("contract", name))


def receipt_with_block(chain: Chain, move: Transfer, head: int) -> Shape:
    """Show the receipt of a transaction, as it appears by itself."""
    return receipt(chain, move, head) | {
        "block_hash": felt(chain.block_hash(move.place.height)),
        "block_number": move.place.height,
    }


def transaction_status(view: View, name: bytes) -> Shape | None:
    """Show how far a transaction has come; `None` if it is not known."""
    if view.waiting(name) is not None:
        return {"finality_status": "RECEIVED"}
    move = view.find(name)
    if move is None:
        return None
    return {"finality_status": finality(move.place.height, view.head), "execution_status": "SUCCEEDED"}


def events(chain: Chain, move: Transfer) -> list[Shape]:
    """Show the events of a transaction: the transfer, then the fee, which a submitted one does not pay."""
    if move.sent is not None:
        sender = int(sender_of(chain, move), 16)
        return [_transfer_event(sender, sender, move.amount)]
    sender = account(chain, move.sender)
    return [
        _transfer_event(sender, account(chain, move.recipient), move.amount),
        _transfer_event(sender, sequencer(chain), FEE),
    ]


def _transfer_event(sender: int, recipient: int, amount: int) -> Shape:
    return {
        "from_address": hex(STRK),
        "keys": [hex(TRANSFER), hex(sender), hex(recipient)],
        "data": halves(amount),
    }


def touched(chain: Chain, height: int) -> list[int]:
    """Return the addresses whose balance a block changed, each once."""
    found: dict[int, None] = {}
    for move in transfers(height):
        found |= dict.fromkeys((account(chain, move.sender), account(chain, move.recipient)))
    return [*found, sequencer(chain)] if found else []


def storage_key(chain: Chain, address: int) -> str:
    """Return where the STRK token keeps the balance of an address."""
    return felt(chain.lasting("balance of", address))


def _diff_length(chain: Chain, height: int) -> int:
    senders = {move.sender for move in transfers(height)}
    return len(touched(chain, height)) + len(senders) + (1 if height else 0)
