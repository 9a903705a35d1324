"""Blocks, transactions, receipts and logs as an Ethereum node shows them, after the Prague upgrade.

Owns the JSON shapes and the fixed numbers in them; answers no method and reads no parameter.
"""

from __future__ import annotations

from functools import lru_cache

from tollgate.demo.chain import ACCOUNTS, SimulatedChain, Transfer, keccak256
from tollgate.demo.network import ChainView
from tollgate.demo.params import Shape

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
_EMPTY_TRIE = "0x56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421"
# What is the same in every header.
_CONSTANT: Shape = {
    "nonce": "0x0000000000000000",
    "sha3Uncles": "0x1dcc4de8dec75d7aab85b567b6ccd41ad312451b948a7413f0a142fd40d49347",
    "difficulty": "0x0",
    "extraData": "0x" + b"Tollgate simulated chain".hex(),
    "gasLimit": hex(GAS_LIMIT),
    "baseFeePerGas": hex(BASE_FEE),
    "withdrawalsRoot": _EMPTY_TRIE,
    "blobGasUsed": "0x0",
    "excessBlobGas": "0x0",
    "requestsHash": "0xe3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "withdrawals": [],
    "uncles": [],
}


def text(value: bytes) -> str:
    """Write bytes as `0x…`."""
    return "0x" + value.hex()


@lru_cache(maxsize=8 * ACCOUNTS)
def account(chain: SimulatedChain, number: int) -> bytes:
    """Return the address of one of the accounts that send the transactions."""
    return chain.lasting_digest("account", number)[-_ADDRESS_BYTES:]


@lru_cache(maxsize=8)
def accounts(chain: SimulatedChain) -> dict[bytes, int]:
    """Return the number of each sending account by its address."""
    return {account(chain, number): number for number in range(ACCOUNTS)}


def topics(chain: SimulatedChain, tx: Transfer) -> list[bytes]:
    parties = (account(chain, number) for number in (tx.sender, tx.recipient))
    return [TRANSFER_TOPIC, *(party.rjust(32, b"\0") for party in parties)]


@lru_cache(maxsize=256)
def _bloom_bits(value: bytes) -> int:
    digest = keccak256(value)
    bits = 0
    for at in (0, 2, 4):
        bits |= 1 << (int.from_bytes(digest[at : at + 2], "big") & 2047)
    return bits


def _bloom(chain: SimulatedChain, transfers: list[Transfer]) -> str:
    bits = 0
    for tx in transfers:
        for value in (TOKEN, *topics(chain, tx)):
            bits |= _bloom_bits(value)
    return f"0x{bits:0512x}"


def block(view: ChainView, height: int, *, full: bool) -> Shape:
    """Show a block, its transactions whole or by hash."""
    transfers = view.transfers(height)
    shown = [transaction(view.chain, tx) if full else text(tx.hash) for tx in transfers]
    return _block(view.chain, height, transfers) | {"transactions": shown}


def pending_block(chain: SimulatedChain, height: int) -> Shape:
    """Show the block being made: it has neither a hash nor, yet, transactions."""
    return _block(chain, height, []) | {"hash": None, "nonce": None, "transactions": []}


def _block(chain: SimulatedChain, height: int, transfers: list[Transfer]) -> Shape:
    def root(kind: str) -> str:
        return text(chain.block_digest(kind, height)) if transfers else _EMPTY_TRIE

    return _CONSTANT | {
        "number": hex(height),
        "hash": text(chain.block_hash(height)),
        "parentHash": text(chain.block_hash(height - 1)),
        "logsBloom": _bloom(chain, transfers),
        "transactionsRoot": root("transactions"),
        "stateRoot": text(chain.block_digest("state", height)),
        "receiptsRoot": root("receipts"),
        "miner": text(chain.lasting_digest("proposer")[-_ADDRESS_BYTES:]),
        "gasUsed": hex(GAS_USED * len(transfers)),
        "timestamp": hex(chain.timestamp(height)),
        "mixHash": text(chain.block_digest("randao", height)),
        "parentBeaconBlockRoot": text(chain.block_digest("beacon", height - 1)),
        "size": hex(640 + 180 * len(transfers)),
    }


def transaction(chain: SimulatedChain, tx: Transfer) -> Shape:
    """Show a transaction: a token transfer that pays its fee by EIP-1559."""
    signature = chain.digest("signature", tx.hash)
    parity = hex(signature[0] & 1)
    calldata = TRANSFER_SELECTOR + topics(chain, tx)[2] + tx.amount.to_bytes(32, "big")
    return {
        "type": "0x2",
        "chainId": hex(CHAIN_IDS[chain.network]),
        "nonce": hex(tx.nonce),
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
        "s": hex(int.from_bytes(chain.digest("s", tx.hash), "big") >> 1),
        "v": parity,
        "yParity": parity,
        "from": text(account(chain, tx.sender)),
        "hash": text(tx.hash),
    } | _position(chain, tx)


def pending_transaction(chain: SimulatedChain, tx: Transfer) -> Shape:
    """Show a submitted transaction that is in no block yet."""
    return transaction(chain, tx) | dict.fromkeys(("blockHash", "blockNumber", "transactionIndex"))


def _position(chain: SimulatedChain, tx: Transfer) -> Shape:
    return {
        "blockHash": text(chain.block_hash(tx.height)),
        "blockNumber": hex(tx.height),
        "transactionIndex": hex(tx.index),
    }


def log(chain: SimulatedChain, tx: Transfer) -> Shape:
    """Show the one log of a transaction; its index in the block is therefore the transaction's."""
    return {
        "address": text(TOKEN),
        "topics": [text(topic) for topic in topics(chain, tx)],
        "data": text(tx.amount.to_bytes(32, "big")),
        "transactionHash": text(tx.hash),
        "blockTimestamp": hex(chain.timestamp(tx.height)),
        "logIndex": hex(tx.index),
        "removed": False,
    } | _position(chain, tx)


def receipt(chain: SimulatedChain, tx: Transfer) -> Shape:
    return {
        "type": "0x2",
        "status": "0x1",
        "cumulativeGasUsed": hex(GAS_USED * (tx.index + 1)),
        "logs": [log(chain, tx)],
        "logsBloom": _bloom(chain, [tx]),
        "transactionHash": text(tx.hash),
        "contractAddress": None,
        "gasUsed": hex(GAS_USED),
        "effectiveGasPrice": hex(GAS_PRICE),
        "from": text(account(chain, tx.sender)),
        "to": text(TOKEN),
    } | _position(chain, tx)
