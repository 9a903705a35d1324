"""Blocks, transactions, receipts and events as a Starknet node shows them, in each version of the specification.

Owns the JSON shapes and the fixed numbers in them; answers no method and reads no parameter. A shape is written
with the members of all versions, and `in_form` leaves those that its version has. Clients refuse members they do
not know, so nothing beyond the specification may be added.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from tollgate.chains import starknet_versions as versions
from tollgate.chains.starknet_versions import Kind, in_form
from tollgate.demo.chain import ACCOUNTS, VISITOR, SimulatedChain, Transfer, keccak256
from tollgate.demo.network import ChainView
from tollgate.demo.params import Shape

# Of 0.10 not the newest release, in which only schemas are named otherwise: starknet.py 0.30 warns about it.
SPEC_VERSIONS = versions.RELEASES | {versions.V0_10: "0.10.2"}
STARKNET_VERSION = "0.14.1"
CHAIN_IDS = {"mainnet": "0x534e5f4d41494e", "sepolia": "0x534e5f5345504f4c4941"}

# The addresses these tokens have on the real networks, both of them.
STRK = 0x4718F5A0FC34CC1AF16A1CDEE98FFB20C31F5CD61D6AB07201858F4287C938D
ETH = 0x49D36570D4E46F48E99674BD3FCC84644DDD6B96F7C741B1562B82F9E004DC7

# Gas of each kind that a transaction uses, and its price.
GAS = {"l1_gas": 0, "l1_data_gas": 128, "l2_gas": 1_200_000}
_PRICES = {"l1_gas": 30 * 10**12, "l1_data_gas": 20 * 10**9, "l2_gas": 3 * 10**9}
FEE = sum(amount * _PRICES[kind] for kind, amount in GAS.items())
# A wei buys this many fri.
_FRI_PER_WEI = 10_000

# Aggregated proofs reach Ethereum long after a block.
L1_BEHIND = 100

INVOKE = "INVOKE"
DECLARE = "DECLARE"
DEPLOY_ACCOUNT = "DEPLOY_ACCOUNT"

# The fee fields of transactions of every kind.
PAID: Shape = {
    "version": "0x3",
    "resource_bounds": {
        kind: {"max_amount": hex(amount * 3 // 2), "max_price_per_unit": hex(_PRICES[kind] * 3 // 2)}
        for kind, amount in GAS.items()
    },
    "tip": "0x0",
    "paymaster_data": [],
    "nonce_data_availability_mode": "L1",
    "fee_data_availability_mode": "L1",
}


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


@lru_cache(maxsize=8 * ACCOUNTS)
def account(chain: SimulatedChain, number: int) -> int:
    """Return the address of one of the accounts that send the transactions."""
    return int.from_bytes(chain.lasting_digest("account", number), "big")


@lru_cache(maxsize=8)
def accounts(chain: SimulatedChain) -> dict[int, int]:
    """Return the number of each sending account by its address."""
    return {account(chain, number): number for number in range(ACCOUNTS)}


@lru_cache(maxsize=8)
def sequencer(chain: SimulatedChain) -> int:
    """Return the address that is paid the fees."""
    return int.from_bytes(chain.lasting_digest("sequencer"), "big")


def halves(value: int) -> list[str]:
    """Write a 256-bit number as Cairo does: the lower half, then the upper."""
    return [hex(value & ((1 << 128) - 1)), hex(value >> 128)]


def finality(view: ChainView, height: int) -> str:
    """Show how far a block and its transactions have come; to 0.8 those of the next block are accepted too."""
    if height <= view.head - L1_BEHIND:
        return "ACCEPTED_ON_L1"
    next_is_other = versions.has(view.version, Kind.VALUE, versions.FINALITY_STATUS, "PRE_CONFIRMED")
    return "PRE_CONFIRMED" if height > view.head and next_is_other else "ACCEPTED_ON_L2"


def header(view: ChainView, height: int, state_diff_length: int) -> Shape:
    chain = view.chain
    transfers = view.transfers(height)
    shape: Shape = {
        "block_hash": felt(chain.block_hash(height)),
        "parent_hash": felt(chain.block_hash(height - 1)),
        "block_number": height,
        "new_root": felt(chain.block_digest("state", height)),
        "event_commitment": felt(chain.block_digest("events", height)),
        "transaction_commitment": felt(chain.block_digest("transactions", height)),
        "receipt_commitment": felt(chain.block_digest("receipts", height)),
        "state_diff_commitment": felt(chain.block_digest("diff", height)),
        "event_count": sum(len(events(chain, tx)) for tx in transfers),
        "transaction_count": len(transfers),
        "state_diff_length": state_diff_length,
    }
    return in_form(view.version, versions.BLOCK_HEADER, shape) | _header(chain, height)


def next_header(view: ChainView) -> Shape:
    """Show what is known of a block while it is being made."""
    height = view.head + 1
    shape: Shape = {"parent_hash": felt(view.chain.block_hash(view.head)), "block_number": height}
    return in_form(view.version, versions.NEXT_HEADER, shape) | _header(view.chain, height)


def _header(chain: SimulatedChain, height: int) -> Shape:
    prices = {
        f"{kind}_price": {"price_in_fri": hex(price), "price_in_wei": hex(price // _FRI_PER_WEI)}
        for kind, price in _PRICES.items()
    }
    return {
        "timestamp": chain.timestamp(height),
        "sequencer_address": hex(sequencer(chain)),
        "l1_da_mode": "BLOB",
        "starknet_version": STARKNET_VERSION,
    } | prices


def transaction(chain: SimulatedChain, tx: Transfer, *, proof_facts: bool = False) -> Shape:
    """Show a transaction, as it appears by itself."""
    return transaction_body(chain, tx, proof_facts=proof_facts) | {"transaction_hash": felt(tx.hash)}


def transaction_body(chain: SimulatedChain, tx: Transfer, *, proof_facts: bool = False) -> Shape:
    """Show an account calling `transfer` of the STRK token, or what a caller submitted; without its hash.

    Facts that a submitted proof has proven are shown where the caller wants them, and the version has them.
    """
    if tx.submitted is not None:
        return {name: value for name, value in tx.submitted.items() if proof_facts or name != "proof_facts"}
    call = [hex(account(chain, tx.recipient)), *halves(tx.amount)]
    return PAID | {
        "type": INVOKE,
        "sender_address": hex(account(chain, tx.sender)),
        # One call: contract, function, number of arguments, arguments.
        "calldata": ["0x1", hex(STRK), hex(TRANSFER_FUNCTION), hex(len(call)), *call],
        "signature": [felt(chain.digest(half, tx.hash)) for half in ("r", "s")],
        "nonce": hex(tx.nonce),
        "account_deployment_data": [],
    }


def receipt(view: ChainView, tx: Transfer) -> Shape:
    """Show the receipt of a transaction, as it appears inside a block."""
    chain = view.chain
    kind = tx.submitted["type"] if tx.submitted else INVOKE
    shape: Shape = {
        "type": kind,
        "transaction_hash": felt(tx.hash),
        "actual_fee": {"amount": hex(0 if tx.submitted else FEE), "unit": "FRI"},
        "finality_status": finality(view, tx.height),
        "execution_status": "SUCCEEDED",
        "messages_sent": [],
        "events": events(chain, tx),
        "execution_resources": GAS,
    }
    if kind == DEPLOY_ACCOUNT:
        shape["contract_address"] = deployed_address(chain, tx.hash)
    return shape


def receipt_with_block(view: ChainView, tx: Transfer) -> Shape:
    """Show the receipt of a transaction by itself, with its block; one that is being made has no hash yet."""
    if tx.height > view.head:
        block = in_form(view.version, versions.NEXT_RECEIPT, {"block_number": tx.height})
    else:
        block = {"block_hash": felt(view.chain.block_hash(tx.height)), "block_number": tx.height}
    return receipt(view, tx) | block


def deployed_address(chain: SimulatedChain, transaction_hash: bytes) -> str:
    return felt(chain.lasting_digest("contract", transaction_hash))


def events(chain: SimulatedChain, tx: Transfer) -> list[Shape]:
    """Show the events of a transaction: the transfer, then the fee, which a submitted one does not pay."""
    if tx.submitted is not None:
        sender = int(str(tx.submitted.get("sender_address", hex(account(chain, VISITOR)))), 16)
        return [_transfer_event(sender, sender, tx.amount)]
    sender = account(chain, tx.sender)
    return [
        _transfer_event(sender, account(chain, tx.recipient), tx.amount),
        _transfer_event(sender, sequencer(chain), FEE),
    ]


def _transfer_event(sender: int, recipient: int, amount: int) -> Shape:
    return {
        "from_address": hex(STRK),
        "keys": [hex(TRANSFER), hex(sender), hex(recipient)],
        "data": halves(amount),
    }


def block_events(view: ChainView, height: int) -> Iterator[Shape]:
    block_hash = felt(view.chain.block_hash(height))
    for tx in view.transfers(height):
        for index, event in enumerate(events(view.chain, tx)):
            place: Shape = {
                "block_hash": block_hash,
                "block_number": height,
                "transaction_hash": felt(tx.hash),
                "transaction_index": tx.index,
                "event_index": index,
            }
            yield event | in_form(view.version, versions.EMITTED_EVENT, place)


def fee_estimate(unit: str) -> Shape:
    estimate: Shape = {"overall_fee": hex(FEE), "unit": unit}
    for kind, amount in GAS.items():
        estimate |= {f"{kind}_consumed": hex(amount), f"{kind}_price": hex(_PRICES[kind])}
    return estimate
