"""A chain at one moment, as one node sees it: what every answer is made from.

Owns the look-ups that need the head or the submitted transactions. A value: whoever holds one keeps seeing
what was then, which is how notifications can still show the blocks that a reorganisation took away.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from tollgate.demo.chain import VISITOR, Chain, Place, Sent, Transfer, transaction_count, transfer, transfers

NONE_SENT: Mapping[int, tuple[Sent, ...]] = MappingProxyType({})
NO_PLACES: Mapping[bytes, int] = MappingProxyType({})


class View(NamedTuple):
    """A chain at one moment: `head` is the newest block that the node shows."""

    chain: Chain
    head: int
    sent: Mapping[int, tuple[Sent, ...]] = NONE_SENT
    """Submitted transactions by the height of their block, which may be above the head."""
    slots: Mapping[bytes, int] = NO_PLACES
    """That height by the transaction's hash, in the order of arrival."""
    tip: int | None = None
    """The chain's own newest block, where the node says that it is still catching up."""

    def moves(self, height: int) -> list[Transfer]:
        """Return the transactions of a block: its own, then those that were submitted."""
        found = transfers(height)
        for at, sent in enumerate(self.sent.get(height, ())):
            found.append(_submitted(height, at, sent))
        return found

    def count(self, height: int) -> int:
        """Return how many transactions a block has."""
        return transaction_count(height) + len(self.sent.get(height, ()))

    def move_at(self, height: int, index: int) -> Transfer | None:
        """Return a transaction of a block by its index, if there is one."""
        if index < transaction_count(height):
            return transfer(Place(height, index))
        moves = self.moves(height)
        return moves[index] if index < len(moves) else None

    def find(self, transaction_hash: bytes) -> Transfer | None:
        """Return a transaction by its hash, if it is in a block."""
        height = self.slots.get(transaction_hash)
        if height is None:
            place = self.chain.transaction_place(transaction_hash)
            return transfer(place) if place is not None and place.height <= self.head else None
        return self._submitted_one(transaction_hash, height) if height <= self.head else None

    def waiting(self, transaction_hash: bytes) -> Transfer | None:
        """Return a submitted transaction by its hash, if it is in no block yet."""
        height = self.slots.get(transaction_hash)
        return None if height is None or height <= self.head else self._submitted_one(transaction_hash, height)

    def _submitted_one(self, transaction_hash: bytes, height: int) -> Transfer | None:
        for at, sent in enumerate(self.sent.get(height, ())):
            if sent.hash == transaction_hash:
                return _submitted(height, at, sent)
        return None


def _submitted(height: int, at: int, sent: Sent) -> Transfer:
    return Transfer(Place(height, transaction_count(height) + at), VISITOR, VISITOR, 0, sent)


def transaction_hash(chain: Chain, move: Transfer) -> bytes:
    """Return the hash of a transaction, derived or submitted."""
    return chain.transaction_hash(move.place) if move.sent is None else move.sent.hash
