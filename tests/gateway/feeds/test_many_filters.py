"""Very many filters: a block is matched without holding up anybody, and equal filters are matched once."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from tollgate.chains.subscriptions import Head, Item, Subscription, Topic, passes
from tollgate.gateway.feeds import subscribers
from tollgate.gateway.feeds.history import Kept
from tollgate.gateway.feeds.source import EventPage
from tollgate.gateway.feeds.subscribers import Subscriber, Subscribers

TOKEN, TRANSFER = "0xtoken", "0xtransfer"
HEAD = Head(10, "0xa", "0x9")


class Sink:
    has_room = True

    def __init__(self) -> None:
        self.received: list[bytes] = []

    def notify(self, data: bytes) -> None:
        self.received.append(data)

    def lose(self, why: str) -> None:
        raise AssertionError(why)


def subscriber(subscription: Subscription, sink: Sink) -> Subscriber:
    made = Subscriber(subscription, "1", "eth", sink)
    made.open()
    made.since = 9
    return made


def wanting(*keys: str) -> Subscription:
    chosen = tuple(frozenset({key} if key else ()) for key in keys)
    return Subscription(Topic.LOGS, frozenset({TOKEN}), chosen, min_keys=len(keys))


class Comparisons:
    """Counts them, and lets each take ten microseconds of a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(subscribers, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(subscribers, "passes", self._passes)

    def _passes(self, subscription: Subscription, item: Item) -> bool:
        self.now += 0.000_01
        return passes(subscription, item)

    async def longest_stall(self, work: asyncio.Future[object]) -> float:
        """How long nothing else had a turn."""
        longest, before = 0.0, self.now
        while not work.done():
            await asyncio.sleep(0)
            longest, before = max(longest, self.now - before), self.now
        return longest


@pytest.mark.parametrize("taken_back", [False, True])
def test_many_filters_that_match_every_log_block_no_other_call(
    taken_back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    comparisons = Comparisons(monkeypatch)

    async def test() -> None:
        everybody, sink = Subscribers("eth"), Sink()
        for number in range(1_000):
            # All under the same address, and the key that they are looked up by is one that every log has.
            subscription = Subscription(
                Topic.LOGS, frozenset({TOKEN}), (frozenset({f"0x{number}"}), frozenset({TRANSFER})), min_keys=2
            )
            everybody.add(subscriber(subscription, sink))
        logs = [Item(TOKEN, ("0xother", TRANSFER), b"{}") for _ in range(20)]
        if taken_back:
            work: asyncio.Future[object] = asyncio.ensure_future(everybody.take_back([Kept(HEAD, logs)]))
        else:
            work = asyncio.ensure_future(everybody.publish(EventPage(HEAD, {Topic.LOGS: logs})))
        stall = await comparisons.longest_stall(work)
        assert comparisons.now == pytest.approx(0.2)
        assert stall < 2 * subscribers.TURN_SECONDS
        assert sink.received == []

    asyncio.run(test())


def test_log_is_compared_with_those_whom_it_may_concern_and_once_for_equal_filters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared = 0

    def counted(subscription: Subscription, item: Item) -> bool:
        nonlocal compared
        compared += 1
        return passes(subscription, item)

    monkeypatch.setattr(subscribers, "passes", counted)

    async def test() -> None:
        everybody, sink, others = Subscribers("eth"), Sink(), Sink()
        for _ in range(500):
            everybody.add(subscriber(wanting(TRANSFER, "", "0xme"), sink))
        for number in range(500):
            everybody.add(subscriber(wanting(TRANSFER, "", f"0x{number}"), others))
        item = Item(TOKEN, (TRANSFER, "0xyou", "0xme"), b"{}")
        assert await everybody.publish(EventPage(HEAD, {Topic.LOGS: [item]})) == [item]
        assert (len(sink.received), len(others.received), compared) == (500, 0, 1)
        unmatched = Item(TOKEN, (TRANSFER, "0xyou"), b"{}")
        assert await everybody.publish(EventPage(HEAD, {Topic.LOGS: [unmatched]})) == []

    asyncio.run(test())


def test_who_comes_while_a_block_is_handed_on_is_not_notified_of_it() -> None:
    async def test() -> None:
        everybody, sink, late = Subscribers("eth"), Sink(), Sink()
        for _ in range(300):
            everybody.add(subscriber(wanting(TRANSFER), sink))
        logs = [Item(TOKEN, (TRANSFER,), b"{}") for _ in range(500)]
        work = asyncio.ensure_future(everybody.publish(EventPage(HEAD, {Topic.LOGS: logs})))
        await asyncio.sleep(0)
        assert not work.done()
        gone = next(iter(everybody))
        gone.gone = True
        everybody.discard(gone)
        everybody.add(subscriber(wanting(TRANSFER), late))
        await work
        assert late.received == []
        assert 299 * 500 <= len(sink.received) < 300 * 500

    asyncio.run(test())


def test_nothing_is_left_when_everybody_has_gone() -> None:
    everybody = Subscribers("eth")
    made = [subscriber(wanting(TRANSFER, f"0x{number % 7}"), Sink()) for number in range(50)]
    for each in made:
        everybody.add(each)
    for each in made:
        everybody.discard(each)
    assert not everybody._groups
    assert not any(everybody._by_place.values())
    assert not any(everybody._positions.values())


@pytest.mark.parametrize("what", ["heads", "equal filters", "replaced"])
def test_many_subscribers_block_no_other_call(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    comparisons = Comparisons(monkeypatch)

    class SlowSink(Sink):
        def notify(self, data: bytes) -> None:
            comparisons.now += 0.000_01
            self.received.append(data)

    async def test() -> None:
        family = "starknet" if what == "replaced" else "eth"
        everybody, sink = Subscribers(family), SlowSink()
        subscription = wanting(TRANSFER) if what == "equal filters" else Subscription(Topic.HEADS)
        for _ in range(2_000):
            made = Subscriber(subscription, "1", family, sink)
            made.open()
            made.since = 9
            everybody.add(made)
        page = EventPage(HEAD, {Topic.LOGS: [Item(TOKEN, (TRANSFER,), b"{}")]})
        given = everybody.take_back([Kept(HEAD)]) if what == "replaced" else everybody.publish(page)
        work: asyncio.Future[object] = asyncio.ensure_future(given)
        assert await comparisons.longest_stall(work) < 2 * subscribers.TURN_SECONDS
        assert len(sink.received) == 2_000

    asyncio.run(test())


async def test_filter_of_one_stays_when_another_goes() -> None:
    everybody, sink = Subscribers("eth"), Sink()
    gone, stays = subscriber(wanting("0xother"), Sink()), subscriber(wanting(TRANSFER), sink)
    everybody.add(gone)
    everybody.add(stays)
    everybody.discard(gone)
    await everybody.publish(EventPage(HEAD, {Topic.LOGS: [Item(TOKEN, (TRANSFER,), b"{}")]}))
    assert len(sink.received) == 1


async def test_blocks_outside_of_a_subscription_are_not_sent() -> None:
    everybody, sink = Subscribers("eth"), Sink()
    everybody.add(subscriber(Subscription(Topic.HEADS, first=11, last=12), sink))
    for number in range(9, 15):
        await everybody.publish(EventPage(Head(number, "0xa", "0x9", b"%d" % number)))
    assert [b'"result":%d' % number in data for number, data in zip((11, 12), sink.received, strict=True)] == [
        True,
        True,
    ]


async def test_replaced_blocks_are_reported_from_the_first_that_was_sent() -> None:
    everybody, sinks = Subscribers("starknet"), [Sink(), Sink(), Sink()]
    made = [Subscriber(Subscription(Topic.HEADS), "1", "starknet", sink) for sink in sinks]
    for since, each in zip((9, 11, 12), made, strict=True):
        each.open()
        each.since = since
        everybody.add(each)
    await everybody.take_back([Kept(Head(number, f"0x{number}", "")) for number in (11, 12)])
    assert [
        [b'"starting_block_number":%d' % first in data for data in sink.received]
        for first, sink in zip((11, 12, 13), sinks, strict=True)
    ] == [[True], [True], []]
    assert [each.since for each in made] == [9, 10, 10], "what comes in their place is sent to all"
