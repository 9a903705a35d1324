"""The simulated chain: which blocks, transactions and accounts exist, as functions of height.

Two rules. Everything here is pure: no clock (`now` is an argument), no I/O and no state, so nothing can grow,
and the same question always has the same answer. And no JSON: how a family shows a block is its own business.

A hash carries its place. The last eight bytes of a block's or transaction's hash hold height and position
under a mask made from the other twenty-four, so a look-up by hash is arithmetic followed by a recomputation,
and no index of past blocks is kept.

A reorganisation is a fork: from a height on, hashes are derived with another name of the branch. Parent hashes
then fit together by themselves, and nodes that know the same forks have the same blocks.

Each transaction is one transfer of `AMOUNT` from an account to the next one in a ring. Senders take turns, so
nonces and balances at any height are closed formulas, and they agree with the transactions that a caller can
add up.
"""

from __future__ import annotations

from bisect import bisect_right
from hashlib import blake2b
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

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

# Who sends what a caller has submitted: an account outside the ring, so that the ring's formulas still hold.
VISITOR = -1

_HASH_BYTES = 32
_LOCATOR_BYTES = 8
_POSITION_BITS = 16
_BRANCH_BYTES = 8


def genesis_before(now: float, block_seconds: float = BLOCK_SECONDS) -> int:
    """Choose a genesis time: `HISTORY_BLOCKS` before the start of the day (UTC) of `now`.

    A demo that is restarted on the same day goes on with the same chain.
    """
    history = HISTORY_BLOCKS * (block_seconds or BLOCK_SECONDS)
    return int(now // DAY_SECONDS) * DAY_SECONDS - int(history)


class Place(NamedTuple):
    """Where a transaction is; of a block, the position is 0."""

    height: int
    position: int


class Sent(Struct, frozen=True):
    """A transaction that a caller has submitted, as far as it is kept."""

    hash: bytes
    kind: str = ""
    shown: bytes = b""
    """JSON of what its family shows of it."""


class Transfer(NamedTuple):
    """What one transaction does, with accounts by number; a submitted one moves nothing."""

    place: Place
    sender: int
    recipient: int
    nonce: int
    sent: Sent | None = None

    @property
    def amount(self) -> int:
        """What is moved."""
        return AMOUNT if self.sent is None else 0


class Fork(NamedTuple):
    """Where a branch begins, and the name that its hashes are derived with."""

    height: int
    branch: bytes


class Chain(Struct, frozen=True):
    """One network of one family, from `genesis` (Unix seconds) on."""

    family: str
    network: str
    genesis: int
    # 256 for families whose hashes are 32 plain bytes; 251 where a hash must be a field element.
    hash_bits: int = 256
    # 0: no block arises by itself.
    block_seconds: float = BLOCK_SECONDS
    seed: int = 0
    forks: tuple[Fork, ...] = ()
    """By height, each above the one before."""

    def head(self, now: float) -> int:
        """Return the height of the newest block, if nothing but time makes blocks."""
        return max(0, int((now - self.genesis) // self.block_seconds)) if self.block_seconds else 0

    def timestamp(self, height: int) -> int:
        """Return when a block was made, in Unix seconds."""
        return self.genesis + int(height * (self.block_seconds or BLOCK_SECONDS))

    @property
    def trunk(self) -> Chain:
        """The chain without its forks, which addresses do not depend on."""
        return replace(self, forks=()) if self.forks else self

    def forked(self, height: int, name: str = "") -> Chain:
        """Return the chain with other blocks from `height` on.

        The same name gives the same blocks, whatever was there before; no name gives new ones.
        """
        kept = tuple(fork for fork in self.forks if fork.height < height)
        before = self.forks[-1].branch if self.forks and not name else b""
        branch = self.digest("fork", height, name, before)[-_BRANCH_BYTES:]
        return replace(self, forks=(*kept, Fork(height, branch)))

    def digest(self, *parts: object) -> bytes:
        """Derive 32 bytes that differ for each chain and each `parts`."""
        return self._cut((self.family, self.network, self.genesis, self.seed, *parts))

    def block_digest(self, kind: str, height: int, *parts: object) -> bytes:
        """Derive 32 bytes like `digest` that belong to a block, and differ for each branch."""
        at = bisect_right(self.forks, height, key=lambda fork: fork.height)
        return self.digest(kind, height, *parts, *((self.forks[at - 1].branch,) if at else ()))

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
        front = self.block_digest(kind, place.height, place.position)[:-_LOCATOR_BYTES]
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
