"""The simulated chain: which blocks, transactions and accounts exist, as functions of height.

Two rules. Everything here is pure: no clock (`now` is an argument), no I/O and no state, so nothing can grow,
and the same question always has the same answer. And no JSON: how a family shows a block is its own business.

A hash carries its place. The last eight bytes of a block's or transaction's hash hold height and position
under a mask made from the other twenty-four, so a look-up by hash is arithmetic followed by a recomputation,
and no index of past blocks is kept.

Each transaction is one transfer of `AMOUNT` from an account to the next one in a ring. Senders take turns, so
nonces and balances at any height are closed formulas, and they agree with the transactions that a caller can
add up.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

from msgspec import Struct

BLOCK_SECONDS = 2
# Enough to page through, few enough that a script reading from block 0 comes to an end.
HISTORY_BLOCKS = 5_000
DAY_SECONDS = 86_400

ACCOUNTS = 16
# Transactions a block, in a fixed turn: the sum over any range stays a formula. Any three blocks have ten,
# the least from which starknet.js guesses a tip without a warning.
_COUNTS = (3, 4, 5, 6)
_BEFORE = (0, 3, 7, 12)
_PER_TURN = sum(_COUNTS)

_UNIT = 10**18
AMOUNT = _UNIT
GRANT = 10_000 * _UNIT

_HASH_BYTES = 32
_LOCATOR_BYTES = 8
_POSITION_BITS = 16


def genesis_before(now: float) -> int:
    """Choose a genesis time: `HISTORY_BLOCKS` before the start of the day (UTC) of `now`.

    A demo that is restarted on the same day goes on with the same chain.
    """
    return int(now // DAY_SECONDS) * DAY_SECONDS - HISTORY_BLOCKS * BLOCK_SECONDS


class Place(NamedTuple):
    """Where a transaction is; of a block, the position is 0."""

    height: int
    position: int


class Transfer(NamedTuple):
    """What one transaction does, with accounts by number."""

    place: Place
    sender: int
    recipient: int
    nonce: int


class Chain(Struct, frozen=True):
    """One network of one family, from `genesis` (Unix seconds) on."""

    family: str
    network: str
    genesis: int
    # 256 for families whose hashes are 32 plain bytes; 251 where a hash must be a field element.
    hash_bits: int = 256

    def head(self, now: float) -> int:
        """Return the height of the newest block."""
        return max(0, int((now - self.genesis) // BLOCK_SECONDS))

    def timestamp(self, height: int) -> int:
        """Return when a block was made, in Unix seconds."""
        return self.genesis + height * BLOCK_SECONDS

    def digest(self, *parts: object) -> bytes:
        """Derive 32 bytes that differ for each chain and each `parts`."""
        return self._cut((self.family, self.network, self.genesis, *parts))

    def lasting(self, *parts: object) -> bytes:
        """Derive 32 bytes like `digest`, the same for every genesis: addresses outlive a restart."""
        return self._cut((self.family, self.network, *parts))

    def _cut(self, parts: tuple[object, ...]) -> bytes:
        raw = blake2b(repr(parts).encode(), digest_size=_HASH_BYTES).digest()
        spare = 8 * _HASH_BYTES - self.hash_bits
        return bytes((raw[0] & (0xFF >> spare),)) + raw[1:] if spare else raw

    def block_hash(self, height: int) -> bytes:
        """Return the hash of the block at `height`; before the first one, zeros."""
        return self._hash("block", Place(height, 0)) if height >= 0 else bytes(_HASH_BYTES)

    def block_height(self, block_hash: bytes) -> int | None:
        """Return the height that a block hash belongs to, whether or not the head is there yet."""
        place = self._place("block", block_hash)
        return place.height if place else None

    def transaction_hash(self, place: Place) -> bytes:
        """Return the hash of the transaction at `place`."""
        return self._hash("transaction", place)

    def transaction_place(self, transaction_hash: bytes) -> Place | None:
        """Return where a transaction hash belongs, whether or not the head is there yet."""
        place = self._place("transaction", transaction_hash)
        return place if place and place.position < transaction_count(place.height) else None

    def _hash(self, kind: str, place: Place) -> bytes:
        front = self.digest(kind, *place)[:-_LOCATOR_BYTES]
        locator = place.height << _POSITION_BITS | place.position
        return front + (locator ^ _mask(front)).to_bytes(_LOCATOR_BYTES, "big")

    def _place(self, kind: str, value: bytes) -> Place | None:
        if len(value) != _HASH_BYTES:
            return None
        front, back = value[:-_LOCATOR_BYTES], value[-_LOCATOR_BYTES:]
        locator = int.from_bytes(back, "big") ^ _mask(front)
        place = Place(locator >> _POSITION_BITS, locator & ((1 << _POSITION_BITS) - 1))
        return place if self._hash(kind, place) == value else None


def _mask(front: bytes) -> int:
    return int.from_bytes(blake2b(front, digest_size=_LOCATOR_BYTES).digest(), "big")


def transaction_count(height: int) -> int:
    """Return how many transactions a block has; the first block has none."""
    return _COUNTS[(height - 1) % len(_COUNTS)] if height > 0 else 0


def transactions_before(height: int) -> int:
    """Return how many transactions all blocks below `height` have."""
    turns, rest = divmod(max(0, height - 1), len(_COUNTS))
    return turns * _PER_TURN + _BEFORE[rest]


def transfer(place: Place) -> Transfer:
    """Return what the transaction at `place` does."""
    nonce, sender = divmod(transactions_before(place.height) + place.position, ACCOUNTS)
    return Transfer(place, sender, (sender + 1) % ACCOUNTS, nonce)


def transfers(height: int) -> list[Transfer]:
    """Return what the transactions of a block do, in order."""
    return [transfer(Place(height, position)) for position in range(transaction_count(height))]


def sent_count(account: int, height: int) -> int:
    """Return how many transactions an account has sent up to and with block `height`: its nonce."""
    total = transactions_before(height + 1)
    return (total - account + ACCOUNTS - 1) // ACCOUNTS


def holding(account: int, height: int) -> int:
    """Return what an account holds of the transferred token after block `height`, fees aside."""
    received = sent_count((account - 1) % ACCOUNTS, height)
    return GRANT + AMOUNT * (received - sent_count(account, height))
