"""The simulated chain: which blocks, transactions and accounts exist, as functions of height.

Two rules. Everything here is pure: no clock (`now` is an argument), no I/O and no state, so nothing can grow,
and the same question always has the same answer. And no JSON: that is each family's own.

The last eight bytes of a block's or transaction's hash hold its height and index, so a look-up by hash is
arithmetic followed by a recomputation, and no index of past blocks is kept.

Each transaction is one transfer of `AMOUNT` from an account to the next one in a ring. Senders take turns, so
nonces and balances at any height are closed formulas that agree with the transactions.
"""

from __future__ import annotations

from hashlib import blake2b

from Crypto.Hash import keccak
from msgspec import Struct

BLOCK_SECONDS = 2
# Enough to page through, few enough that a script reading from block 0 comes to an end.
HISTORY_BLOCKS = 5_000
DAY_SECONDS = 86_400

ACCOUNTS = 16
# Transactions a block, in a fixed cycle: the sum over any range stays a formula. Any three blocks have ten,
# the least from which starknet.js guesses a tip without a warning.
_COUNTS = (3, 4, 5, 6)
_BEFORE = (0, 3, 7, 12)
_PER_CYCLE = sum(_COUNTS)

AMOUNT = 10**18
GRANT = 10_000 * AMOUNT

# The sender of submitted transactions: an account outside the ring, so that the ring's formulas still hold.
VISITOR = -1

_HASH_BYTES = 32
_LOCATOR_BYTES = 8
_INDEX_BITS = 16


def genesis_before(now: float) -> int:
    """Return a genesis time `HISTORY_BLOCKS` before the start of the day (UTC) of `now`.

    A demo that is restarted on the same day continues the same chain.
    """
    return int(now // DAY_SECONDS) * DAY_SECONDS - HISTORY_BLOCKS * BLOCK_SECONDS


def keccak256(data: bytes) -> bytes:
    """Return the hash that both families use for names of functions and events."""
    return keccak.new(data=data, digest_bits=256).digest()


class Transfer(Struct, frozen=True):
    """One transaction, with accounts by number; a submitted one moves nothing."""

    hash: bytes
    height: int
    index: int
    sender: int = VISITOR
    recipient: int = VISITOR
    nonce: int = 0
    amount: int = 0
    submitted: dict[str, object] | None = None
    """What a caller submitted, as its family shows it."""


class SimulatedChain(Struct, frozen=True):
    """One network of one family, from `genesis` (Unix seconds) on."""

    family: str
    network: str
    genesis: int
    # 256 for families whose hashes are 32 plain bytes; 251 where a hash must be a field element.
    hash_bits: int = 256

    def head(self, now: float) -> int:
        return max(0, int((now - self.genesis) // BLOCK_SECONDS))

    def timestamp(self, height: int) -> int:
        """Return when a block was made, in Unix seconds."""
        return self.genesis + height * BLOCK_SECONDS

    def digest(self, *parts: object) -> bytes:
        """Derive 32 bytes that differ for each chain and each `parts`."""
        return self.lasting_digest(self.genesis, *parts)

    def lasting_digest(self, *parts: object) -> bytes:
        """Derive 32 bytes like `digest`, the same for every genesis: addresses outlive a restart."""
        source = repr((self.family, self.network, *parts)).encode()
        raw = blake2b(source, digest_size=_HASH_BYTES).digest()
        return bytes((raw[0] & (0xFF >> (8 * _HASH_BYTES - self.hash_bits)),)) + raw[1:]

    def block_digest(self, kind: str, height: int, *parts: object) -> bytes:
        """Derive 32 bytes of a block: a chain that forks derives others from its fork on."""
        return self.digest(kind, height, *parts)

    def block_hash(self, height: int) -> bytes:
        """Return the hash of the block at `height`; before the first one, zeros."""
        return self._hash("block", height, 0) if height >= 0 else bytes(_HASH_BYTES)

    def block_height(self, block_hash: bytes) -> int | None:
        """Return the height that a block hash belongs to, whether or not the head is there yet."""
        height, _ = _locator(block_hash)
        return height if self.block_hash(height) == block_hash else None

    def transfers(self, height: int) -> list[Transfer]:
        return [self.transfer(height, index) for index in range(transaction_count(height))]

    def transfer(self, height: int, index: int) -> Transfer:
        nonce, sender = divmod(transactions_before(height) + index, ACCOUNTS)
        name = self._hash("transaction", height, index)
        return Transfer(name, height, index, sender, (sender + 1) % ACCOUNTS, nonce, AMOUNT)

    def find_transfer(self, transaction_hash: bytes) -> Transfer | None:
        """Return a transaction by its hash, whether or not the head is there yet."""
        height, index = _locator(transaction_hash)
        if index >= transaction_count(height):
            return None
        found = self.transfer(height, index)
        return found if found.hash == transaction_hash else None

    def _hash(self, kind: str, height: int, index: int) -> bytes:
        front = self.block_digest(kind, height, index)[:-_LOCATOR_BYTES]
        return front + (height << _INDEX_BITS | index).to_bytes(_LOCATOR_BYTES, "big")


def _locator(value: bytes) -> tuple[int, int]:
    """Read height and index from the end of a hash."""
    return divmod(int.from_bytes(value[-_LOCATOR_BYTES:], "big"), 1 << _INDEX_BITS)


def transaction_count(height: int) -> int:
    """Return how many transactions a block has; the first block has none."""
    return _COUNTS[(height - 1) % len(_COUNTS)] if height > 0 else 0


def transactions_before(height: int) -> int:
    """Return how many transactions all blocks below `height` have."""
    cycles, rest = divmod(max(0, height - 1), len(_COUNTS))
    return cycles * _PER_CYCLE + _BEFORE[rest]


def sent_count(account: int, height: int) -> int:
    """Return how many transactions an account has sent up to and with block `height`: its nonce."""
    return (transactions_before(height + 1) - account + ACCOUNTS - 1) // ACCOUNTS


def holding(account: int, height: int) -> int:
    """Return what an account holds of the transferred token after block `height`, fees aside."""
    received = sent_count((account - 1) % ACCOUNTS, height)
    return GRANT + AMOUNT * (received - sent_count(account, height))
