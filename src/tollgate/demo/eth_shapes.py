"""Blocks, transactions, receipts and logs as an Ethereum node shows them, after the Prague upgrade.

Owns the JSON shapes and the fixed numbers in them; answers no method and reads no parameter.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from tollgate.demo.chain import ACCOUNTS, Chain, Place, Transfer
from tollgate.demo.chain_keccak import keccak256
from tollgate.demo.chain_view import View, transaction_hash

if TYPE_CHECKING:
    from tollgate.demo.chain_params import Shape

CHAIN_IDS = {"mainnet": 1, "sepolia": 11_155_111}

TOKEN = bytes.fromhex("7011647e00000000000000000000000000000020")
TRANSFER_SELECTOR = bytes.fromhex("a9059cbb")
TRANSFER_TOPIC = keccak256(b"Transfer(address,address,uint256)")

GAS_LIMIT = 36_000_000
GAS_USED = 51_000
# Constant, so that what an account has paid in fees is its nonce times the fee of one transaction.
BASE_FEE = 10**9
TIP = 10**8
GAS_PRICE = BASE_FEE + TIP
FEE = GAS_USED * GAS_PRICE

_ADDRESS_BYTES = 20
_NO_UNCLES = "0x1dcc4de8dec75d7aab85b567b6ccd41ad312451b948a7413f0a142fd40d49347"
_EMPTY_TRIE = "0x56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421"
_NO_REQUESTS = "0xe3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
_NO_NONCE = "0x0000000000000000"
_EXTRA = "0x" + b"Tollgate simulated chain".hex()
# What a block has beside its header and its transactions.
_BODY: Shape = {"withdrawals": [], "uncles": []}


def text(value: bytes) -> str:
    """Write bytes as `0x…`."""
    return "0x" + value.hex()


def account(chain: Chain, number: int) -> bytes:
    """Return the address of one of the accounts that send the transactions."""
    return _account(chain.trunk, number)


def accounts(chain: Chain) -> dict[bytes, int]:
    """Return the number of each sending account by its address."""
    return _accounts(chain.trunk)


@lru_cache(maxsize=8 * ACCOUNTS)
def _account(chain: Chain, number: int) -> bytes:
    return chain.lasting("account", number)[-_ADDRESS_BYTES:]


@lru_cache(maxsize=8)
def _accounts(chain: Chain) -> dict[bytes, int]:
    return {account(chain, number): number for number in range(ACCOUNTS)}


def padded(value: bytes) -> bytes:
    """Return a value as a word of 32 bytes."""
    return value.rjust(32, b"\0")


@lru_cache(maxsize=256)
def _bloom_bits(value: bytes) -> int:
    digest = keccak256(value)
    bits = 0
    for at in (0, 2, 4):
        bits |= 1 << (int.from_bytes(digest[at : at + 2], "big") & 2047)
    return bits


def _bloom(chain: Chain, moves: list[Transfer]) -> str:
    bits = 0
    for move in moves:
        parties = (padded(account(chain, move.sender)), padded(account(chain, move.recipient)))
        for value in (TOKEN, TRANSFER_TOPIC, *parties):
            bits |= _bloom_bits(value)
    return f"0x{bits:0512x}"


def block(view: View, height: int, *, full: bool) -> Shape:
    """Show a block, its transactions whole or by hash."""
    moves = view.moves(height)
    return (
        _header(view.chain, height, moves)
        | _BODY
        | {
            "size": hex(640 + 180 * len(moves)),
            "transactions": [
                transaction(view.chain, move) if full else text(transaction_hash(view.chain, move))
                for move in moves
            ],
        }
    )


def header(view: View, height: int) -> Shape:
    """Show a block's header, as subscribers get it."""
    return _header(view.chain, height, view.moves(height))


def pending_block(chain: Chain, height: int) -> Shape:
    """Show the block being made: it has neither a hash nor, yet, transactions."""
    unknown: Shape = {"hash": None, "nonce": None, "size": hex(640), "transactions": []}
    return _header(chain, height, []) | _BODY | unknown


def _header(chain: Chain, height: int, moves: list[Transfer]) -> Shape:
    return {
        "number": hex(height),
        "hash": text(chain.block_hash(height)),
        "nonce": _NO_NONCE,
        "parentHash": text(chain.block_hash(height - 1)),
        "sha3Uncles": _NO_UNCLES,
        "logsBloom": _bloom(chain, moves),
        "transactionsRoot": text(chain.block_digest("transactions", height)) if moves else _EMPTY_TRIE,
        "stateRoot": text(chain.block_digest("state", height)),
        "receiptsRoot": text(chain.block_digest("receipts", height)) if moves else _EMPTY_TRIE,
        "miner": text(chain.lasting("proposer")[-_ADDRESS_BYTES:]),
        "difficulty": "0x0",
        "extraData": _EXTRA,
        "gasLimit": hex(GAS_LIMIT),
        "gasUsed": hex(GAS_USED * len(moves)),
        "timestamp": hex(chain.timestamp(height)),
        "mixHash": text(chain.block_digest("randao", height)),
        "baseFeePerGas": hex(BASE_FEE),
        "withdrawalsRoot": _EMPTY_TRIE,
        "blobGasUsed": "0x0",
        "excessBlobGas": "0x0",
        "parentBeaconBlockRoot": text(chain.block_digest("beacon", height - 1)),
        "requestsHash": _NO_REQUESTS,
    }


def transaction(chain: Chain, move: Transfer) -> Shape:
    """Show a transaction: a token transfer that pays its fee by EIP-1559."""
    name = transaction_hash(chain, move)
    signature = chain.digest("signature", name)
    parity = hex(signature[0] & 1)
    calldata = TRANSFER_SELECTOR + padded(account(chain, move.recipient)) + move.amount.to_bytes(32, "big")
    return {
        "type": "0x2",
        "chainId": hex(CHAIN_IDS[chain.network]),
        "nonce": hex(move.nonce),
        "gas": hex(GAS_USED),
        "gasPrice": hex(GAS_PRICE),
        "maxFeePerGas": hex(2 * BASE_FEE + TIP),
        "maxPriorityFeePerGas": hex(TIP),
        "to": text(TOKEN),
        "value": "0x0",
        "input": text(calldata),
        "accessList": [],
        # The upper half of s is malleable, and clients refuse it (EIP-2).
        "r": hex(int.from_bytes(signature, "big")),
        "s": hex(int.from_bytes(chain.digest("s", name), "big") >> 1),
        "v": parity,
        "yParity": parity,
        "from": text(account(chain, move.sender)),
        "hash": text(name),
    } | _where(chain, move.place)


def pending_transaction(chain: Chain, move: Transfer) -> Shape:
    """Show a submitted transaction that is in no block yet."""
    return transaction(chain, move) | dict.fromkeys(("blockHash", "blockNumber", "transactionIndex"))


def _where(chain: Chain, place: Place) -> Shape:
    return {
        "blockHash": text(chain.block_hash(place.height)),
        "blockNumber": hex(place.height),
        "transactionIndex": hex(place.position),
    }


def log(chain: Chain, move: Transfer) -> Shape:
    """Show the one log of a transaction; its index in the block is therefore the transaction's."""
    parties = (padded(account(chain, move.sender)), padded(account(chain, move.recipient)))
    return {
        "address": text(TOKEN),
        "topics": [text(topic) for topic in (TRANSFER_TOPIC, *parties)],
        "data": text(move.amount.to_bytes(32, "big")),
        "transactionHash": text(transaction_hash(chain, move)),
        "blockTimestamp": hex(chain.timestamp(move.place.height)),
        "logIndex": hex(move.place.position),
        "removed": False,
    } | _where(chain, move.place)


def receipt(chain: Chain, move: Transfer) -> Shape:
    """Show the receipt of a transaction."""
    return {
        "type": "0x2",
        "status": "0x1",
        "cumulativeGasUsed": hex(GAS_USED * (move.place.position + 1)),
        "logs": [log(chain, move)],
        "logsBloom": _bloom(chain, [move]),
        "transactionHash": text(transaction_hash(chain, move)),
        "contractAddress": None,
        "gasUsed": hex(GAS_USED),
        "effectiveGasPrice": hex(GAS_PRICE),
        "from": text(account(chain, move.sender)),
        "to": text(TOKEN),
    } | _where(chain, move.place)
