"""One simulated network: its chain at a moment, and the transactions that callers have submitted to it.

A submitted transaction gets its place at once: behind the block's own transactions, in the block after the head.
The number of those that are kept is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from msgspec import Struct, field

from tollgate.demo.chain import SimulatedChain, Transfer, transaction_count
from tollgate.demo.params import RpcError, Shape, bind

METHOD_NOT_FOUND = -32601
MAX_SUBMITTED = 4_096


class Submitted(Struct, frozen=True):
    """The submitted transactions of one network, by hash and by block."""

    by_hash: dict[bytes, Transfer] = field(default_factory=dict)
    by_height: dict[int, list[Transfer]] = field(default_factory=dict)

    def add(self, transaction: Transfer) -> None:
        """Keep a transaction, and drop the oldest where there are too many."""
        self.by_hash[transaction.hash] = transaction
        self.by_height.setdefault(transaction.height, []).append(transaction)
        if len(self.by_hash) > MAX_SUBMITTED:
            oldest = self.by_hash.pop(next(iter(self.by_hash)))
            block = self.by_height[oldest.height]
            block.remove(oldest)
            if not block:
                del self.by_height[oldest.height]


class ChainView(NamedTuple):
    """A network at one moment: what every method is answered from."""

    chain: SimulatedChain
    head: int
    """The newest block."""
    submitted: Submitted
    version: str = ""
    """Of the interface by which it is shown, where the family has several."""

    def transfers(self, height: int) -> list[Transfer]:
        """Return the transactions of a block: its own, then those that were submitted."""
        return [*self.chain.transfers(height), *self.submitted.by_height.get(height, ())]

    def count(self, height: int) -> int:
        return transaction_count(height) + len(self.submitted.by_height.get(height, ()))

    def find(self, transaction_hash: bytes) -> Transfer | None:
        """Return a transaction by its hash, if it is in a block."""
        found = self.submitted.by_hash.get(transaction_hash) or self.chain.find_transfer(transaction_hash)
        return found if found is not None and found.height <= self.head else None

    def pending(self, transaction_hash: bytes) -> Transfer | None:
        """Return a submitted transaction by its hash, if it is in no block yet."""
        found = self.submitted.by_hash.get(transaction_hash)
        return found if found is not None and found.height > self.head else None

    def submit(self, transaction_hash: bytes, known: RpcError, shown: Shape | None = None) -> None:
        """Put a transaction into the next block; raise `known` if it was submitted before."""
        if transaction_hash in self.submitted.by_hash:
            raise known
        height = self.head + 1
        self.submitted.add(Transfer(transaction_hash, height, self.count(height), submitted=shown or {}))


MethodFunction = Callable[..., object]
"""Answers from a `ChainView` and the parameters of the call, whose names are those of its own."""


class SimulatedNetwork:
    """Answers the methods of one network."""

    def __init__(
        self,
        chain: SimulatedChain,
        methods: Mapping[str, MethodFunction],
        *,
        by_name: bool,
        version: str = "",
        missing: Mapping[str, frozenset[str]] | None = None,
        submitted: Submitted | None = None,
    ) -> None:
        """Take the methods of a family, and whether it takes parameters by name.

        Where the family has several versions of its interface: which one this is, and which parameters of each
        method it lacks. The versions of one network share what was submitted.
        """
        self.chain = chain
        self.submitted = submitted or Submitted()
        self.version = version
        self._methods = methods
        self._by_name = by_name
        self._missing = missing or {}

    def view(self, now: float) -> ChainView:
        return ChainView(self.chain, self.chain.head(now), self.submitted, self.version)

    def answer(self, method: str, params: object, now: float) -> object:
        """Return the result of a call, or raise `RpcError`."""
        known = self._methods.get(method)
        if known is None:
            message = f"The method {method[:64]} does not exist on this simulated chain"
            raise RpcError(METHOD_NOT_FOUND, message)
        missing = self._missing.get(method, frozenset())
        return known(self.view(now), **bind(known, params, by_name=self._by_name, missing=missing))
