"""What a caller may subscribe to, and what of a block such a subscription gets.

Pure: parameters in, values out. The two families are tables of the same few words: topics, filters by address and
by key, and results that are passed on as the node wrote them. No connection, no clock, no block is fetched here;
how each family writes these is in `subscriptions_eth.py` and `subscriptions_starknet.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum

from msgspec import Raw, Struct

Params = list[Raw] | dict[str, Raw] | None

INVALID_PARAMS = -32602


class Topic(Enum):
    """What a subscription is about."""

    HEADS = "heads"
    LOGS = "logs"
    EVENTS = "events"
    RECEIPTS = "receipts"
    TRANSACTIONS = "transactions"
    STATUS = "status"
    """Of one transaction."""
    PENDING = "pending"


class Wrong(Exception):
    """A call that cannot be answered as it stands: a JSON-RPC error of the family."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Start(Struct, frozen=True, gc=False):
    """The block with which a subscription begins: by number or by hash."""

    number: int | None = None
    hash: str = ""


class Subscription(Struct, frozen=True, gc=False):
    """What a caller subscribes to."""

    topic: Topic
    addresses: frozenset[str] = frozenset()
    """Whose logs, events or transactions; empty: anybody's."""
    keys: tuple[frozenset[str], ...] = ()
    """What may stand at each place of a log's topics or an event's keys; empty: anything."""
    least_keys: int = 0
    """How many topics or keys there must be."""
    first: int = 0
    """Blocks below this one are not sent."""
    last: int | None = None
    start: Start | None = None
    """A block in the past with which to begin; None: with the next."""
    hash: str = ""
    """The transaction whose status is sent."""
    full: bool = False
    """Whole transactions, not only their hashes."""


class End(Struct, frozen=True, gc=False):
    """A subscription that a caller does not want any more."""

    id: str


class Item(Struct, frozen=True, gc=False):
    """A log, an event, a transaction or a receipt: what filters match, and what is sent of it."""

    address: str
    keys: tuple[str, ...]
    result: bytes


class Head(Struct, frozen=True, gc=False):
    """A block's place in the chain, and what is sent of it as a new head."""

    number: int
    hash: str
    parent: str
    result: bytes = b""
    has_logs: bool = False
    """Whether its header says that there are logs in it."""


def passes(subscription: Subscription, item: Item) -> bool:
    """Whether a subscription's filter lets a log, an event or a transaction through."""
    addresses, keys = subscription.addresses, item.keys
    if addresses and item.address not in addresses:
        return False
    if len(keys) < subscription.least_keys:
        return False
    return all(not wanted or key in wanted for wanted, key in zip(subscription.keys, keys, strict=False))


# A filter is looked up under its addresses and first keys; one with more pairs of them under its addresses alone.
_MAX_PLACES = 64
Place = tuple[str | None, str | None]


def slots(subscription: Subscription) -> Iterator[Place]:
    """Where a filter is to be found for what it may let through: by address and first key, None for any."""
    addresses: Iterable[str | None] = subscription.addresses or (None,)
    first = subscription.keys[0] if subscription.keys else frozenset()
    if not first or len(first) * len(subscription.addresses or (1,)) > _MAX_PLACES:
        yield from ((address, None) for address in addresses)
        return
    for address in addresses:
        yield from ((address, key) for key in first)


def places_of(item: Item) -> tuple[Place, ...]:
    """Where filters that may let this through are to be found. Each filter stands in at most one of these."""
    address = item.address
    if not item.keys:
        return (address, None), (None, None)
    key = item.keys[0]
    return (address, key), (address, None), (None, key), (None, None)
