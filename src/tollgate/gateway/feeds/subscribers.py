"""The subscribers of one network's blocks, and which of them gets which notification.

Equal filters are matched once for all who have them. A filter is looked up by address and key, so that the cost of
a log grows with the filters that may match, not with all. The loop is yielded every few milliseconds:
thousands of subscribers must not hold up calls.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from types import ModuleType
from typing import Protocol

from tollgate.chains import subscriptions_eth, subscriptions_starknet
from tollgate.chains.subscriptions import (
    Head,
    Item,
    Place,
    Subscription,
    Topic,
    passes,
    places_of,
    position,
    slots,
)
from tollgate.gateway.feeds.history import Kept
from tollgate.gateway.feeds.source import EventPage

# Yields to other tasks after so long; checked after so many steps.
TURN_SECONDS = 0.004
_STEPS = 32
# What may wait for the answer to a subscription to leave: in a batch that takes as long as its slowest call.
_MAX_HELD_BYTES = 1_048_576
# Where notifications begin while that is not known: after all blocks.
NOT_YET = sys.maxsize
FILTERED = (Topic.LOGS, Topic.EVENTS, Topic.RECEIPTS, Topic.TRANSACTIONS)


class NotificationSink(Protocol):
    """The connection of a subscriber."""

    @property
    def has_room(self) -> bool:
        """Whether it keeps up with its notifications."""

    def notify(self, data: bytes) -> None:
        """Send a notification, or queue it."""

    def lose(self, why: str) -> None:
        """Close: the subscription cannot continue."""


class Subscriber:
    """One subscription of one connection."""

    def __init__(
        self, subscription: Subscription, subscription_id: str, family: str, sink: NotificationSink
    ) -> None:
        self.subscription = subscription
        self.topic = subscription.topic
        self.id = subscription_id
        self.family = family
        self._protocol: ModuleType = FAMILIES[family]
        self._sink = sink
        self.since = NOT_YET
        """Notifications begin after this block."""
        self.gone = False
        """Set when the subscription has ended."""
        self._held: list[bytes] | None = []
        """What waits for the subscription's own answer to leave."""
        self._held_bytes = 0
        self.begin: Callable[[], None] | None = None
        """What is to be done when that has left."""
        self.charge: Callable[[int], None] = lambda _calls: None
        """Counts calls to upstreams that are made for this one alone, or refuses them."""
        self.team: object = None
        """Its team: work is scheduled round-robin by team."""
        self.number: int
        """The order of arrival: work in progress does not concern later ones."""

    def notify(self, result: bytes) -> None:
        self._send(self._protocol.notification(self.topic, self.id, result))

    def notify_reorg(self, first: Head, last: Head) -> None:
        """Send that blocks were replaced (Starknet)."""
        self._send(subscriptions_starknet.reorganisation(self.id, first, last))

    @property
    def has_room(self) -> bool:
        return self._sink.has_room

    def lose(self, why: str) -> None:
        if not self.gone:
            self._sink.lose(why)

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
            self._sink.notify(data)
        elif self._held_bytes > _MAX_HELD_BYTES:
            self.lose(
                "Too much happened before the subscription was answered: subscribe outside of large batches."
            )
        else:
            self._held.append(data)
            self._held_bytes += len(data)


FAMILIES: dict[str, ModuleType] = {"eth": subscriptions_eth, "starknet": subscriptions_starknet}


class _Pace:
    """Yields to other tasks when one has taken too long."""

    def __init__(self) -> None:
        self._steps = 0
        self._started = time.monotonic()

    async def step(self) -> None:
        self._steps += 1
        if not self._steps % _STEPS and time.monotonic() - self._started > TURN_SECONDS:
            await asyncio.sleep(0)
            self._started = time.monotonic()


class _Group:
    """Those whose filters are equal."""

    __slots__ = ("subscribers", "subscription")

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self.subscribers: dict[Subscriber, None] = {}


Filter = tuple[Topic, frozenset[str], tuple[frozenset[str], ...], int]


class Subscribers:
    """All subscribers of one network that have caught up to its newest block."""

    def __init__(self, family: str) -> None:
        self._is_eth = family == "eth"
        self._all: dict[Subscriber, None] = {}
        self._groups: dict[Filter, _Group] = {}
        self._by_place: dict[Topic, dict[Place, dict[_Group, None]]] = {topic: {} for topic in FILTERED}
        self._positions: dict[Topic, Counter[int]] = {topic: Counter() for topic in FILTERED}
        self._wanted: Counter[Topic] = Counter()
        self._count = 0

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Subscriber]:
        return iter(list(self._all))

    def want(self, topic: Topic) -> None:
        """Note that a subscriber is catching up, and what it will need."""
        self._wanted[topic] += 1

    def unwant(self, topic: Topic) -> None:
        """Note that it does not come."""
        self._wanted[topic] -= 1

    def add(self, subscriber: Subscriber) -> None:
        self._count += 1
        subscriber.number = self._count
        self._all[subscriber] = None
        self.want(subscriber.topic)
        if subscriber.topic not in self._by_place:
            return
        key = _filter(subscriber.subscription)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group(subscriber.subscription)
            self._positions[subscriber.topic][position(subscriber.subscription)] += 1
            by_place = self._by_place[subscriber.topic]
            for place in slots(subscriber.subscription):
                by_place.setdefault(place, {})[group] = None
        group.subscribers[subscriber] = None

    def discard(self, subscriber: Subscriber) -> None:
        if subscriber not in self._all:
            return
        del self._all[subscriber]
        self.unwant(subscriber.topic)
        if subscriber.topic not in self._by_place:
            return
        group = self._groups[_filter(subscriber.subscription)]
        del group.subscribers[subscriber]
        if group.subscribers:
            return
        del self._groups[_filter(group.subscription)]
        positions = self._positions[subscriber.topic]
        positions[position(group.subscription)] -= 1
        if not positions[position(group.subscription)]:
            del positions[position(group.subscription)]
        by_place = self._by_place[subscriber.topic]
        for place in slots(group.subscription):
            del by_place[place][group]
            if not by_place[place]:
                del by_place[place]

    # --- `BlockSink` of `follower.py` --------------------------------------------------------------------

    def topics(self) -> Collection[Topic]:
        return frozenset(topic for topic in FILTERED if self._wanted[topic] > 0)

    async def publish(self, page: EventPage) -> Sequence[Item]:
        """Notify of a block; return the logs that were sent to a subscriber."""
        pace, newest = _Pace(), self._count
        for subscriber in list(self._all):
            if subscriber.topic is Topic.HEADS and _receives(subscriber, page.head):
                subscriber.notify(page.head.result)
            await pace.step()
        sent = [
            (topic, item)
            for topic, items in page.items.items()
            for item in items
            if await self._notify_item(topic, item, item.result, page.head, newest, pace)
        ]
        return [item for topic, item in sent if topic is Topic.LOGS]

    async def _notify_item(
        self, topic: Topic, item: Item, result: bytes, head: Head, newest: int, pace: _Pace
    ) -> bool:
        """Notify of one item of a block; whether a subscriber got it."""
        notified = False
        by_place = self._by_place[topic]
        places = places_of(item, self._positions[topic])
        for group in [group for place in places for group in by_place.get(place, ())]:
            if passes(group.subscription, item):
                for subscriber in list(group.subscribers):
                    if subscriber.number <= newest and _receives(subscriber, head):
                        subscriber.notify(result)
                        notified = True
                    await pace.step()
            await pace.step()
        return notified

    async def take_back(self, replaced: Sequence[Kept]) -> None:
        if not replaced:
            return
        pace = _Pace()
        for subscriber in self:
            seen = [kept for kept in replaced if kept.head.number > subscriber.since]
            if seen and self._is_eth:
                if subscriber.topic is Topic.LOGS and any(kept.forgotten for kept in seen):
                    subscriber.lose(
                        "The chain was reorganised too deeply to tell which logs were removed: subscribe again."
                    )
            elif seen and subscriber.topic is not Topic.STATUS:
                subscriber.notify_reorg(seen[0].head, seen[-1].head)
            await pace.step()
        newest = self._count
        for kept in replaced if self._is_eth else ():
            for item in kept.logs:
                removed = subscriptions_eth.removed(item.result)
                await self._notify_item(Topic.LOGS, item, removed, kept.head, newest, pace)
        for subscriber in self:
            subscriber.since = min(subscriber.since, replaced[0].head.number - 1)


def _filter(subscription: Subscription) -> Filter:
    return subscription.topic, subscription.addresses, subscription.keys, subscription.min_keys


def _receives(subscriber: Subscriber, head: Head) -> bool:
    """Whether a subscriber gets notifications of a block."""
    if subscriber.gone or head.number <= subscriber.since:
        return False
    subscription = subscriber.subscription
    return subscription.first <= head.number and (subscription.last is None or head.number <= subscription.last)
