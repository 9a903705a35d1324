"""Those who listen to one network's blocks, and who of them is told what.

Equal filters are matched once for all who have them. A filter is looked up by address and key, so that a log costs
those whom it may concern, not all. Others have their turn after a few milliseconds, whatever there is to do:
thousands of listeners must not hold up the calls of others.
"""

from __future__ import annotations

import asyncio
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

# After so long others have their turn; looked at after so many steps.
TURN_SECONDS = 0.004
_STEPS = 32
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
        self, subscription: Subscription, subscription_id: str, family: str, sink: NotificationSink
    ) -> None:
        self.subscription = subscription
        self.topic = subscription.topic
        self.id = subscription_id
        self.family = family
        self._words: ModuleType = FAMILIES[family]
        self._sink = sink
        self.since: int | None = None
        """The newest block that is not told; None: not known yet."""
        self.gone = False
        """Set when it listens no more."""
        self._held: list[bytes] | None = []
        """What waits for the subscription's own answer to leave."""
        self._held_bytes = 0
        self.begin: Callable[[], None] | None = None
        """What is to be done when that has left."""
        self.charge: Callable[[int], None] = _for_nothing
        """Counts calls to upstreams that are made for this one alone, or refuses them."""
        self.number = 0
        """Counts those who came to listen: what is under way does not concern who comes later."""

    def tell(self, result: bytes) -> None:
        """Tell one thing."""
        self._send(self._words.notification(self.topic, self.id, result))

    def tell_replaced(self, first: Head, last: Head) -> None:
        """Tell that blocks were replaced (Starknet)."""
        self._send(subscriptions_starknet.reorganisation(self.id, first, last))

    @property
    def has_room(self) -> bool:
        """Whether its connection keeps up with what it is told."""
        return self._sink.has_room

    def lose(self, why: str) -> None:
        """Give up."""
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


def _for_nothing(_calls: int) -> None:
    """Count no calls."""


class _Pace:
    """Lets others have their turn when one has taken too long."""

    def __init__(self) -> None:
        self._steps = 0
        self._began = time.monotonic()

    async def step(self) -> None:
        self._steps += 1
        if not self._steps % _STEPS and time.monotonic() - self._began > TURN_SECONDS:
            await asyncio.sleep(0)
            self._began = time.monotonic()


class _Group:
    """Those whose filters are equal."""

    __slots__ = ("listeners", "subscription")

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self.listeners: dict[Subscriber, None] = {}


Filter = tuple[Topic, frozenset[str], tuple[frozenset[str], ...], int]


class Subscribers:
    """All listeners of one network that have come up to its newest block."""

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
        """Note that a listener is on its way, and what it will need."""
        self._wanted[topic] += 1

    def unwant(self, topic: Topic) -> None:
        """Note that it does not come."""
        self._wanted[topic] -= 1

    def add(self, listener: Subscriber) -> None:
        """Let somebody listen."""
        self._count += 1
        listener.number = self._count
        self._all[listener] = None
        self.want(listener.topic)
        if listener.topic not in self._by_place:
            return
        key = _filter(listener.subscription)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group(listener.subscription)
            self._positions[listener.topic][position(listener.subscription)] += 1
            by_place = self._by_place[listener.topic]
            for place in slots(listener.subscription):
                by_place.setdefault(place, {})[group] = None
        group.listeners[listener] = None

    def discard(self, listener: Subscriber) -> None:
        """Let somebody go."""
        if listener not in self._all:
            return
        del self._all[listener]
        self.unwant(listener.topic)
        if listener.topic not in self._by_place:
            return
        group = self._groups[_filter(listener.subscription)]
        del group.listeners[listener]
        if group.listeners:
            return
        del self._groups[_filter(group.subscription)]
        positions = self._positions[listener.topic]
        positions[position(group.subscription)] -= 1
        if not positions[position(group.subscription)]:
            del positions[position(group.subscription)]
        by_place = self._by_place[listener.topic]
        for place in slots(group.subscription):
            del by_place[place][group]
            if not by_place[place]:
                del by_place[place]

    # --- What `follower.py` asks for ---------------------------------------------------------------------

    def topics(self) -> Collection[Topic]:
        """What listeners need of a block."""
        return frozenset(topic for topic in FILTERED if self._wanted[topic] > 0)

    async def tell(self, page: EventPage) -> Sequence[Item]:
        """Hand a block on; return the logs that were told to somebody."""
        pace, newest = _Pace(), self._count
        for listener in list(self._all):
            if listener.topic is Topic.HEADS and _hears(listener, page.head):
                listener.tell(page.head.result)
            await pace.step()
        told = [
            (topic, item)
            for topic, items in page.items.items()
            for item in items
            if await self._tell_item(topic, item, item.result, page.head, newest, pace)
        ]
        return [item for topic, item in told if topic is Topic.LOGS]

    async def _tell_item(
        self, topic: Topic, item: Item, result: bytes, head: Head, newest: int, pace: _Pace
    ) -> bool:
        """Hand on one thing of a block; whether somebody was told."""
        is_told = False
        for group in self._concerned(topic, item):
            if passes(group.subscription, item):
                for listener in list(group.listeners):
                    if listener.number <= newest and _hears(listener, head):
                        listener.tell(result)
                        is_told = True
                    await pace.step()
            await pace.step()
        return is_told

    def _concerned(self, topic: Topic, item: Item) -> list[_Group]:
        by_place = self._by_place[topic]
        return [group for place in places_of(item, self._positions[topic]) for group in by_place.get(place, ())]

    async def take_back(self, replaced: Sequence[Kept]) -> None:
        """Tell that blocks were replaced."""
        if not replaced:
            return
        pace = _Pace()
        for listener in self:
            since = -1 if listener.since is None else listener.since
            seen = [kept for kept in replaced if kept.head.number > since]
            if seen and self._is_eth:
                if listener.topic is Topic.LOGS and any(kept.forgotten for kept in seen):
                    listener.lose(
                        "The chain was reorganised too deeply to tell which logs were removed: subscribe again."
                    )
            elif seen and listener.topic is not Topic.STATUS:
                listener.tell_replaced(seen[0].head, seen[-1].head)
            await pace.step()
        newest = self._count
        for kept in replaced if self._is_eth else ():
            for item in kept.logs:
                removed = subscriptions_eth.removed(item.result)
                await self._tell_item(Topic.LOGS, item, removed, kept.head, newest, pace)
        for listener in self:
            since = -1 if listener.since is None else listener.since
            listener.since = min(since, replaced[0].head.number - 1)


def _filter(subscription: Subscription) -> Filter:
    return subscription.topic, subscription.addresses, subscription.keys, subscription.least_keys


def _hears(listener: Subscriber, head: Head) -> bool:
    """Whether a block is one that a listener is told of."""
    if listener.gone or listener.since is None or head.number <= listener.since:
        return False
    subscription = listener.subscription
    return subscription.first <= head.number and (subscription.last is None or head.number <= subscription.last)
