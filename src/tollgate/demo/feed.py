"""What the subscribers of a network are told: the difference between two looks at its chain.

Owns the comparison and the list of subscribers. Nothing is told twice or left out however seldom `tick` is
called: the look that was told last is kept, and compared with the present one. What a family makes of a
difference is its own business; how bytes reach a subscriber is the session's.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

import msgspec

from tollgate.demo.chain import Transfer
from tollgate.demo.chain_params import Method, RpcError
from tollgate.demo.chain_view import View

_ID_BYTES = 8


class Note(NamedTuple):
    """One notification, without the name of its subscription."""

    method: str
    result: object


class Change(NamedTuple):
    """What happened to a chain between two looks at it."""

    old: View
    new: View
    orphaned: range
    """The heights of blocks that the old look had and the new one has not."""
    added: range
    """The heights of blocks that are new."""
    received: tuple[Transfer, ...]
    """Transactions submitted meanwhile, whether or not they are in a block already."""


class Subscription(Protocol):
    """What one subscriber wants to be told."""

    def start(self, _view: View, /) -> Iterable[Note]:
        """Tell what is told at once."""

    def changed(self, change: Change) -> Iterable[Note]:
        """Tell what is new."""


class Subscribing(NamedTuple):
    """How a family's callers subscribe: the methods, whose answers are a `Subscription`, and the names."""

    methods: Mapping[str, Method]
    unsubscribe: str
    id_name: str
    """The parameter that holds the name of a subscription, in calls and notifications."""
    id_is_hex: bool
    unknown: RpcError
    """The error for a name that no subscription has."""


def compare(old: View, new: View, known: Mapping[bytes, int]) -> Change:
    """Return what happened between two looks; `known` are the submitted transactions of the old one."""
    lowest = min(old.head, new.head)
    common = lowest
    if new.chain is not old.chain:
        while common >= 0 and old.chain.block_hash(common) != new.chain.block_hash(common):
            common -= 1
    # A head that went back without another block in its place is a node that lags: nothing is gone.
    orphaned = range(common + 1, old.head + 1) if common < lowest else range(0)
    received: tuple[Transfer, ...] = ()
    if new.slots is not known:
        arrived = (new.waiting(name) or new.find(name) for name in new.slots if name not in known)
        received = tuple(move for move in arrived if move is not None)
    return Change(old, new, orphaned, range(common + 1, new.head + 1), received)


class _Subscriber(NamedTuple):
    subscription: Subscription
    deliver: Callable[[bytes], None]


class Feed:
    """The subscribers of one network."""

    def __init__(self, subscribing: Subscribing, look: Callable[[float], View]) -> None:
        self.subscribing = subscribing
        self._look = look
        self._told: View | None = None
        self._known: Mapping[bytes, int] = {}
        self._subscribers: dict[str, _Subscriber] = {}

    @property
    def size(self) -> int:
        """How many subscribers there are."""
        return len(self._subscribers)

    def open(
        self, subscription: Subscription, deliver: Callable[[bytes], None], now: float
    ) -> tuple[str, list[bytes]]:
        """Add a subscriber; return its name and what it is told at once."""
        self.tick(now)
        view = self._told
        if view is None or not self._subscribers:
            view = self._told = self._look(now)
            self._known = view.slots
        number = secrets.randbits(8 * _ID_BYTES)
        name = f"{number:#018x}" if self.subscribing.id_is_hex else str(number)
        self._subscribers[name] = _Subscriber(subscription, deliver)
        return name, [self._message(name, note) for note in subscription.start(view)]

    def close(self, name: str) -> bool:
        """Remove a subscriber; tell whether there was one."""
        return self._subscribers.pop(name, None) is not None

    def tick(self, now: float) -> None:
        """Tell every subscriber what has happened since the last time."""
        if not self._subscribers or self._told is None:
            return
        view = self._look(now)
        if view.head == self._told.head and view.chain is self._told.chain and view.slots is self._known:
            return
        change = compare(self._told, view, self._known)
        self._known = view.slots
        if change.added:
            self._told = view
        elif view.chain is self._told.chain:
            self._told = self._told._replace(sent=view.sent, slots=view.slots)
        if change.added or change.received:
            for name, subscriber in list(self._subscribers.items()):
                for note in subscriber.subscription.changed(change):
                    subscriber.deliver(self._message(name, note))

    def _message(self, name: str, note: Note) -> bytes:
        params = {self.subscribing.id_name: name, "result": note.result}
        return msgspec.json.encode({"jsonrpc": "2.0", "method": note.method, "params": params})
