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
    """A call with wrong parameters: a JSON-RPC error of the family."""

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
    """Whose logs, events or transactions; empty: all."""
    keys: tuple[frozenset[str], ...] = ()
    """What is accepted at each position of a log's topics or an event's keys; empty: anything."""
    min_keys: int = 0
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
    """Whether there are logs in it, by its header."""


def passes(subscription: Subscription, item: Item) -> bool:
    """Whether a subscription's filter lets a log, an event or a transaction through."""
    addresses, keys = subscription.addresses, item.keys
    if addresses and item.address not in addresses:
        return False
    if len(keys) < subscription.min_keys:
        return False
    return all(not wanted or key in wanted for wanted, key in zip(subscription.keys, keys, strict=False))


# A filter is looked up under its addresses and the keys of one place; one with more pairs, under those keys alone.
_MAX_PAIRS = 64
Place = tuple[str | None, int, str | None]
"""An address and the key at a position; None for any."""
_ANY_KEY = -1


def terms(subscription: Subscription) -> int:
    """How much there is to keep of a filter: its addresses and keys, and itself."""
    return 1 + len(subscription.addresses) + sum(map(len, subscription.keys))


def position(subscription: Subscription) -> int:
    """The position whose keys a filter is looked up by: the last that has some, for the first selects least."""
    return max((at for at, keys in enumerate(subscription.keys) if keys), default=_ANY_KEY)


def slots(subscription: Subscription) -> Iterator[Place]:
    """Where a filter is to be found for what it may let through."""
    addresses: Iterable[str | None] = subscription.addresses or (None,)
    at = position(subscription)
    if at == _ANY_KEY:
        yield from ((address, _ANY_KEY, None) for address in addresses)
        return
    keys = subscription.keys[at]
    if len(keys) * len(subscription.addresses) > _MAX_PAIRS:
        addresses = (None,)
    for address in addresses:
        yield from ((address, at, key) for key in keys)


def places_of(item: Item, positions: Iterable[int]) -> Iterator[Place]:
    """Where filters that may let this through are to be found. Each filter is in at most one of these.

    `positions` are those that filters are looked up by.
    """
    address, keys = item.address, item.keys
    for at in positions:
        if at == _ANY_KEY:
            yield address, _ANY_KEY, None
            yield None, _ANY_KEY, None
        elif at < len(keys):
            yield address, at, keys[at]
            yield None, at, keys[at]
