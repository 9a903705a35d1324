"""Those who listen to one network's blocks, and who of them is told what.

A filter is looked up by address and first key, so that a log costs those whom it concerns, not all. What is told
is worked out first and handed on then, with pauses: thousands of listeners must not hold up the calls of others.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from types import ModuleType
from typing import Protocol

from tollgate.chains import subscriptions_eth, subscriptions_starknet
from tollgate.chains.subscriptions import Head, Item, Place, Subscription, Topic, passes, places_of, slots
from tollgate.gateway.feeds.history import Kept
from tollgate.gateway.feeds.source import EventPage

# After so many notifications others have their turn.
_IN_A_ROW = 200
# What may wait for the answer to a subscription to leave: in a batch that takes as long as its slowest call.
_MAX_HELD_BYTES = 1_048_576
FILTERED = (Topic.LOGS, Topic.EVENTS, Topic.RECEIPTS, Topic.TRANSACTIONS)


class NotificationSink(Protocol):
    """The connection of a listener."""

    @property
    def has_room(self) -> bool:
        """Whether it keeps up with what it is told."""
        ...

    def notify(self, data: bytes) -> None:
        """Send a notification, or let it wait for its turn."""
        ...

    def lose(self, why: str) -> None:
        """Close: what was subscribed to cannot go on."""
        ...


class Subscriber:
    """One subscription of one connection."""

    def __init__(
        self, subscription: Subscription, subscription_id: str, family: str, ear: NotificationSink
    ) -> None:
        self.subscription = subscription
        self.topic = subscription.topic
        self.id = subscription_id
        self.family = family
        self._words: ModuleType = FAMILIES[family]
        self._ear = ear
        self.since: int | None = None
        """The newest block that is not told; None: not known yet."""
        self.gone = False
        """Set when it listens no more."""
        self._held: list[bytes] | None = []
        """What waits for the subscription's own answer to leave."""
        self._held_bytes = 0
        self.begin: Callable[[], None] | None = None
        """What is to be done when that has left."""

    def tell(self, result: bytes) -> None:
        """Tell one thing."""
        self._send(self._words.notification(self.topic, self.id, result))

    def tell_replaced(self, first: Head, last: Head) -> None:
        """Tell that blocks were replaced (Starknet)."""
        self._send(subscriptions_starknet.reorganisation(self.id, first, last))

    @property
    def has_room(self) -> bool:
        """Whether its connection keeps up with what it is told."""
        return self._ear.has_room

    def lose(self, why: str) -> None:
        """Give up."""
        if not self.gone:
            self._ear.lose(why)

    def open(self) -> None:
        """Begin to send: the caller knows the subscription's id."""
        held, self._held = self._held or [], None
        for data in held:
            self._send(data)
        if self.begin is not None and not self.gone:
            self.begin()

    def _send(self, data: bytes) -> None:
        if self.gone:
            return
        if self._held is None:
            self._ear.notify(data)
        elif self._held_bytes > _MAX_HELD_BYTES:
            self.lose(
                "Too much happened before the subscription was answered: subscribe outside of large batches."
            )
        else:
            self._held.append(data)
            self._held_bytes += len(data)


FAMILIES: dict[str, ModuleType] = {"eth": subscriptions_eth, "starknet": subscriptions_starknet}


class Subscribers:
    """All listeners of one network that have come up to its newest block."""

    def __init__(self, family: str) -> None:
        self._is_eth = family == "eth"
        self._all: dict[Subscriber, None] = {}
        self._by_place: dict[Topic, dict[Place, dict[Subscriber, None]]] = {topic: {} for topic in FILTERED}
        self._wanted: Counter[Topic] = Counter()

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Subscriber]:
        return iter(list(self._all))

    def want(self, topic: Topic) -> None:
        """Note that a listener is on its way, and what it will need."""
        self._wanted[topic] += 1

    def unwant(self, topic: Topic) -> None:
        """Note that it does not come."""
        self._wanted[topic] -= 1

    def add(self, listener: Subscriber) -> None:
        """Let somebody listen."""
        self._all[listener] = None
        self.want(listener.topic)
        if listener.topic in self._by_place:
            by_place = self._by_place[listener.topic]
            for place in slots(listener.subscription):
                by_place.setdefault(place, {})[listener] = None

    def discard(self, listener: Subscriber) -> None:
        """Let somebody go."""
        if listener not in self._all:
            return
        del self._all[listener]
        self.unwant(listener.topic)
        if listener.topic in self._by_place:
            by_place = self._by_place[listener.topic]
            for place in slots(listener.subscription):
                by_place[place].pop(listener, None)
                if not by_place[place]:
                    del by_place[place]

    # --- What `follower.py` asks for ---------------------------------------------------------------------

    def topics(self) -> Collection[Topic]:
        """What listeners need of a block."""
        return frozenset(topic for topic in FILTERED if self._wanted[topic] > 0)

    async def tell(self, page: EventPage) -> Sequence[Item]:
        """Hand a block on; return the logs that were told to somebody."""
        told = [
            (listener, page.head.result)
            for listener in self._all
            if listener.topic is Topic.HEADS and _hears(listener, page.head)
        ]
        logs: list[Item] = []
        for topic, items in page.items.items():
            for item in items:
                found = [listener for listener in self._concerned(topic, item) if _hears(listener, page.head)]
                told += [(listener, item.result) for listener in found]
                if found and topic is Topic.LOGS:
                    logs.append(item)
        for count, (listener, result) in enumerate(told, 1):
            listener.tell(result)
            if not count % _IN_A_ROW:
                await asyncio.sleep(0)
        return logs

    def _concerned(self, topic: Topic, item: Item) -> Iterator[Subscriber]:
        by_place = self._by_place[topic]
        for place in places_of(item):
            for listener in by_place.get(place, ()):
                if passes(listener.subscription, item):
                    yield listener

    def take_back(self, replaced: Sequence[Kept]) -> None:
        """Tell that blocks were replaced."""
        if not replaced:
            return
        for listener in self:
            since = -1 if listener.since is None else listener.since
            seen = [kept for kept in replaced if kept.head.number > since]
            if seen and self._is_eth:
                _take_back_logs(listener, seen)
            elif seen and listener.topic is not Topic.STATUS:
                listener.tell_replaced(seen[0].head, seen[-1].head)
            listener.since = min(since, replaced[0].head.number - 1)


def _hears(listener: Subscriber, head: Head) -> bool:
    """Whether a block is one that a listener is told of."""
    if listener.gone or listener.since is None or head.number <= listener.since:
        return False
    subscription = listener.subscription
    return subscription.first <= head.number and (subscription.last is None or head.number <= subscription.last)


def _take_back_logs(listener: Subscriber, seen: Sequence[Kept]) -> None:
    if listener.topic is not Topic.LOGS:
        return
    if any(kept.forgotten for kept in seen):
        listener.lose("The chain was reorganised too deeply to know which logs were removed: subscribe again.")
        return
    for kept in seen:
        for item in kept.logs:
            if passes(listener.subscription, item) and _hears(listener, kept.head):
                listener.tell(subscriptions_eth.removed(item.result))
