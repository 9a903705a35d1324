"""Starknet: its names for what is reported, and listeners that begin in the past."""

import asyncio
from collections.abc import Collection
from typing import Any

import pytest
from tests.gateway.feeds.scripted_chain import Chain, FeedSetup, RecordingSink, hashes

from tollgate.chains import subscriptions_starknet
from tollgate.chains.subscriptions import Head, Subscription, Topic, Wrong
from tollgate.errors import RateLimited
from tollgate.gateway.feeds import catch_up, feed
from tollgate.gateway.feeds.catch_up import MAX_AT_ONCE, MAX_BEHIND, STRIDE, TOO_DEEP, CatchUp, FairSlots
from tollgate.gateway.feeds.follower import AHEAD, ChainFollower
from tollgate.gateway.feeds.source import EventPage, StarknetSource
from tollgate.gateway.feeds.subscribers import Subscriber, Subscribers


async def test_starknet_heads_events_receipts_and_transactions_are_reported_under_their_names() -> None:
    setup = FeedSetup("starknet")
    sinks = {
        method: (await setup.listen(f"starknet_{method}", []))[1]
        for method in (
            "subscribeNewHeads",
            "subscribeEvents",
            "subscribeNewTransactionReceipts",
            "subscribeNewTransactions",
        )
    }
    await setup.turn(3)
    setup.mine()
    await setup.turn(3)
    # Heads and events begin with the newest block that is there already.
    assert [each["method"] for sink in sinks.values() for each in sink.received] == [
        *["starknet_subscriptionNewHeads"] * 2,
        *["starknet_subscriptionEvents"] * 6,
        "starknet_subscriptionNewTransactionReceipts",
        "starknet_subscriptionNewTransaction",
    ]
    first, head = sinks["subscribeNewHeads"].results()
    assert (first["block_number"], head["block_number"]) == (10, 11)
    assert set(head) == {"block_number", "block_hash", "parent_hash"}
    assert [each["keys"] for each in sinks["subscribeEvents"].results()] == [["0x1"], ["0x2"], ["0x3"]] * 2
    assert {each["finality_status"] for each in sinks["subscribeEvents"].results()} == {"ACCEPTED_ON_L2"}
    (receipt,) = sinks["subscribeNewTransactionReceipts"].results()
    assert (receipt["block_number"], receipt["block_hash"]) == (11, setup.chain.hash(11))
    (transaction,) = sinks["subscribeNewTransactions"].results()
    assert transaction["transaction_hash"] == receipt["transaction_hash"]
    assert transaction["finality_status"] == "ACCEPTED_ON_L2"
    setup.feed.close()


async def test_starknet_listeners_are_shown_which_blocks_were_replaced() -> None:
    setup = FeedSetup("starknet")
    _, sink = await setup.listen("starknet_subscribeNewHeads", [])
    await setup.turn(3)
    setup.mine(3)
    await setup.turn(3)
    old = setup.chain.hashes(12)
    setup.reorganise(2, 1)
    await setup.turn(4)
    reorg = sink.received[4]
    assert reorg["method"] == "starknet_subscriptionReorg"
    assert reorg["params"]["result"] == {
        "starting_block_hash": old[0],
        "starting_block_number": 12,
        "ending_block_hash": old[1],
        "ending_block_number": 13,
    }
    assert hashes(sink.results()[5:], "block_hash") == setup.chain.hashes(12)
    setup.feed.close()


@pytest.mark.parametrize("by_hash", [False, True])
async def test_listener_that_begins_in_the_past_comes_up_to_the_others(by_hash: bool) -> None:
    setup = FeedSetup("starknet", height=60)
    block_id = {"block_hash": setup.chain.hash(20)} if by_hash else {"block_number": 20}
    _, sink = await setup.listen("starknet_subscribeEvents", [None, None, block_id])
    await setup.turn(4)
    setup.mine(2)
    await setup.turn(4)
    blocks = [each["block_hash"] for each in sink.results()]
    assert blocks == [block for block in setup.chain.hashes(20) for _ in range(3)]
    setup.feed.close()


async def test_listener_may_begin_with_the_first_block_of_all() -> None:
    setup = FeedSetup("starknet", height=3)
    _, sink = await setup.listen("starknet_subscribeNewHeads", [{"block_number": 0}])
    await setup.turn(4)
    assert hashes(sink.results(), "block_hash") == setup.chain.hashes(0)
    setup.feed.close()


async def test_past_is_reported_only_after_the_answer_to_the_subscription() -> None:
    setup = FeedSetup("starknet")
    subscriber, sink = await setup.listen("starknet_subscribeNewHeads", [{"block_number": 5}], opened=False)
    await setup.turn(3)
    assert sink.received == []
    assert {"block_id": {"block_number": 5}} not in [call.params for call in setup.chain.calls], (
        "not fetched either"
    )
    subscriber.open()
    await setup.turn(4)
    assert hashes(sink.results(), "block_hash") == setup.chain.hashes(5)
    setup.feed.close()


async def test_listener_on_its_way_follows_a_reorganisation_by_itself() -> None:
    setup = FeedSetup("starknet", height=30)
    _, sink = await setup.listen("starknet_subscribeNewHeads", [{"block_number": 25}])
    await setup.turn(1)
    setup.reorganise(3, 4)
    await setup.turn(6)
    canonical: list[str] = []
    for message in sink.received:
        result = message["params"]["result"]
        if message["method"] == "starknet_subscriptionReorg":
            assert canonical[-1] == result["ending_block_hash"]
            canonical = canonical[: canonical.index(result["starting_block_hash"])]
        else:
            canonical.append(result["block_hash"])
    assert canonical == setup.chain.hashes(25)
    setup.feed.close()


async def test_listener_whose_blocks_are_all_replaced_before_it_has_come_up_begins_again() -> None:
    setup = FeedSetup("starknet", height=30)
    _, sink = await setup.listen("starknet_subscribeNewHeads", [{"block_number": 28}])
    setup.chain.fail = lambda call: call.params == {"block_id": {"block_number": 29}}
    await setup.turn(3)
    old = hashes(sink.results(), "block_hash")
    assert old == [setup.chain.hash(28)]
    setup.reorganise(6, 8)
    setup.chain.fail = lambda _: False
    await setup.turn(8)
    reorg = sink.received[len(old)]
    assert reorg["method"] == "starknet_subscriptionReorg"
    assert reorg["params"]["result"]["starting_block_hash"] == old[0]
    assert reorg["params"]["result"]["ending_block_hash"] == old[-1]
    assert hashes(sink.results()[len(old) + 1 :], "block_hash") == setup.chain.hashes(28)
    assert sink.lost == []
    setup.feed.close()


@pytest.mark.parametrize(
    ("block_id", "code"),
    [
        ({"block_number": 2001}, 24),
        ({"block_hash": "0x123"}, 24),
        ({"block_number": 2000 - 1025}, 68),
    ],
)
async def test_block_that_is_not_there_or_too_far_back_is_refused(block_id: dict[str, object], code: int) -> None:
    setup = FeedSetup("starknet", height=2000)
    with pytest.raises(Wrong) as caught:
        await setup.listen("starknet_subscribeNewHeads", [block_id])
    assert caught.value.code == code


# --- Many at once, and slow ones ---------------------------------------------------------------------------


async def test_many_who_begin_in_the_past_do_not_fetch_all_at_once() -> None:
    setup = FeedSetup("starknet", height=100)
    sinks = [(await setup.listen("starknet_subscribeNewHeads", [{"block_number": 1}]))[1] for _ in range(20)]
    await setup.turn(10, loops=400)
    assert all(len(sink.received) == 100 for sink in sinks)
    assert setup.chain.max_at_once <= (MAX_AT_ONCE + 1) * AHEAD
    setup.feed.close()


async def test_who_begins_with_the_newest_does_not_wait_for_those_with_a_long_way() -> None:
    setup = FeedSetup("starknet", height=1_000)
    for _ in range(2 * MAX_AT_ONCE):
        await setup.listen("starknet_subscribeNewHeads", [{"block_number": 1}])
    _, sink = await setup.listen("starknet_subscribeNewHeads", [])
    await setup.turn(2, loops=150)
    assert hashes(sink.results(), "block_hash") == [setup.chain.hash(1_000)]
    setup.feed.close()


async def test_who_waits_for_a_place_gets_one_in_turns_by_team() -> None:
    slots, order = FairSlots(1), []
    release = asyncio.Event()

    async def work(team: str, name: int) -> None:
        async with slots.slot(team):
            order.append((team, name))
            await release.wait()

    tasks = [asyncio.create_task(work("many", number)) for number in range(5)]
    await asyncio.sleep(0)
    tasks += [asyncio.create_task(work(team, 9)) for team in ("one", "two")]
    await asyncio.sleep(0)
    tasks[3].cancel()
    release.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == [("many", 0), ("many", 1), ("one", 9), ("two", 9), ("many", 2), ("many", 4)]
    async with asyncio.timeout(30), slots.slot("later"):
        pass


async def test_place_that_was_given_to_one_that_is_gone_goes_to_the_next() -> None:
    slots = FairSlots(1)

    async def work() -> None:
        async with slots.slot("acme"):
            await asyncio.sleep(0)

    async with slots.slot("acme"):
        first, second = asyncio.create_task(work()), asyncio.create_task(work())
        await asyncio.sleep(0)
    first.cancel()
    async with asyncio.timeout(30):
        await second
        async with slots.slot("acme"):
            pass


async def test_thousands_of_one_team_from_the_past_do_not_hold_up_another_team() -> None:
    setup = FeedSetup("starknet", height=1_000)
    for _ in range(20 * MAX_AT_ONCE):
        await setup.listen("starknet_subscribeNewHeads", [{"block_number": 1}], team="many")
    await setup.turn(1, loops=20)
    _, sink = await setup.listen("starknet_subscribeNewHeads", [], team="other")
    await setup.turn(1, loops=80)
    assert hashes(sink.results(), "block_hash") == [setup.chain.hash(1_000)]
    setup.feed.close()


@pytest.mark.parametrize("probed", [True, False])
async def test_blocks_of_the_past_count_also_where_no_prober_shows_the_head(probed: bool) -> None:
    setup = FeedSetup("starknet", height=30, probed=probed)
    charged: list[int] = []
    await setup.listen("starknet_subscribeNewHeads", [{"block_number": 10}], charge=charged.append)
    assert charged == [20]
    setup.feed.close()


async def test_client_that_does_not_read_is_not_looked_at_all_the_time() -> None:
    setup = FeedSetup("starknet", height=200)
    _, sink = await setup.listen("starknet_subscribeNewHeads", [{"block_number": 1}])
    sink.room = 0
    await setup.turn(3)
    setup.pace.pauses.clear()
    await setup.turn(8)
    # One step of the feed for each turn, and every second one of the slow client.
    assert setup.pace.pauses.count(catch_up._ROOM_SECONDS) == 4
    setup.feed.close()


async def test_past_is_reported_as_fast_as_the_client_reads() -> None:
    setup = FeedSetup("starknet", height=200)
    _, sink = await setup.listen("starknet_subscribeNewHeads", [{"block_number": 1}])
    sink.room = 20
    await setup.turn(3)
    notified = len(sink.received)
    assert 20 <= notified <= 20 + STRIDE
    await setup.turn(3)
    assert len(sink.received) == notified
    sink.room = 1_000
    setup.mine()
    await setup.turn(6)
    assert hashes(sink.results(), "block_hash") == setup.chain.hashes(1)
    setup.feed.close()


async def test_client_that_does_not_read_the_past_is_given_up_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catch_up, "MAX_BEHIND", 40)
    setup = FeedSetup("starknet", height=10)
    _, sink = await setup.listen("starknet_subscribeNewHeads", [{"block_number": 1}])
    sink.room = 0
    await setup.turn()
    # Others keep up.
    await setup.listen("starknet_subscribeNewTransactions", [])
    setup.mine(20)
    await setup.turn(3)
    assert sink.lost == []
    setup.mine(20)
    await setup.turn(3)
    why = sink.lost[0]
    assert "subscribe again" in why
    setup.feed.close()


@pytest.mark.parametrize("pages", [range(31), range(12, 16)])
async def test_past_in_the_cache_that_was_replaced_is_fetched_from_nodes(pages: range) -> None:
    setup, stale = FeedSetup("starknet", height=30), Chain("starknet", 30)
    stale.reorganise(20, 20)
    cached, nodes = StarknetSource(stale.fetch), setup.feed._past

    class Past(StarknetSource):
        async def page(self, number: int, topics: Collection[Topic]) -> EventPage:
            return await (cached if number in pages else nodes).page(number, topics)

    setup.feed._past = Past(setup.chain.fetch)
    _, sink = await setup.listen("starknet_subscribeNewHeads", [{"block_number": 5}])
    await setup.turn(20)
    canonical: dict[int, str] = {}
    for each in sink.results():
        if "block_hash" in each:
            canonical[each["block_number"]] = each["block_hash"]
    assert list(canonical.values()) == setup.chain.hashes(5)
    assert sink.lost == []
    notified = len(sink.received)
    await setup.turn(5)
    assert len(sink.received) == notified
    setup.feed.close()


async def test_past_comes_from_the_cache_where_nothing_was_replaced() -> None:
    setup = FeedSetup("starknet", height=30)
    cached: list[int] = []

    class Past(StarknetSource):
        async def page(self, number: int, topics: Collection[Topic]) -> EventPage:
            cached.append(number)
            return await super().page(number, topics)

    setup.feed._past = Past(setup.chain.fetch)
    await setup.listen("starknet_subscribeNewHeads", [{"block_number": 5}])
    await setup.turn(20)
    # With the first one the walk begins: it is needed as a block alone, or as a page.
    assert sorted({*cached, 5}) == list(range(5, 31))
    setup.feed.close()


async def test_who_was_notified_of_more_than_is_kept_is_lost_in_a_reorganisation_below_it() -> None:
    way = Way(400, 10)
    while way.late._follower is None or way.late._follower.history.last.number < 390:
        await way.step()
    way.chain.reorganise(395, 395)
    way.others = way.at(400)
    await way.late.step()
    assert way.sink.lost == [TOO_DEEP]


async def test_blocks_of_the_past_count_against_the_limits_of_who_requests_them() -> None:
    def refuse(_: int) -> None:
        raise RateLimited

    setup = FeedSetup("starknet")
    setup.mine(30)
    charged: list[int] = []
    past = [None, None, {"block_number": 20}]
    await setup.listen("starknet_subscribeEvents", past, charge=charged.append)
    assert charged == [2 * 20], "a block and its events"
    with pytest.raises(RateLimited):
        await setup.listen("starknet_subscribeEvents", past, charge=refuse)
    await setup.listen("starknet_subscribeEvents", [], charge=refuse)
    setup.feed.close()


async def test_reorganisation_below_all_that_is_kept_is_reported_to_who_began_with_the_first_block() -> None:
    setup = FeedSetup("starknet")
    _, sink = await setup.listen("starknet_subscribeNewHeads", [])
    await setup.turn(3)
    setup.mine()
    await setup.turn(3)
    setup.reorganise(4, 5)
    await setup.turn(6)
    assert sink.lost == []
    notified = [each for each in sink.results() if "block_number" in each]
    assert hashes(notified, "block_hash")[-5:] == setup.chain.hashes(8)
    (reorg,) = [each for each in sink.results() if "block_number" not in each]
    assert (reorg["starting_block_number"], reorg["ending_block_number"]) == (10, 11)
    setup.feed.close()


async def test_reorganisation_below_all_that_is_kept_ends_who_was_sent_older_blocks() -> None:
    setup = FeedSetup("starknet")
    _, newest = await setup.listen("starknet_subscribeNewHeads", [])
    await setup.turn(3)
    _, older = await setup.listen("starknet_subscribeNewHeads", [{"block_number": 9}])
    await setup.turn(3)
    assert len(older.received) == 2
    setup.reorganise(4, 5)
    await setup.turn(3)
    assert (newest.lost, older.lost) == ([], [catch_up.TOO_DEEP])
    setup.feed.close()


async def test_what_no_subscriber_needs_any_more_is_not_fetched() -> None:
    setup = FeedSetup("starknet")
    await setup.listen("starknet_subscribeNewHeads", [])
    past = [None, None, {"block_number": 8}]
    arrived, sink = await setup.listen("starknet_subscribeEvents", past)
    on_its_way, _ = await setup.listen("starknet_subscribeEvents", past, opened=False)
    now, _ = await setup.listen("starknet_subscribeNewTransactions", [])
    await setup.turn(4)
    assert len(sink.received) == 3 * 3
    for subscriber in (arrived, on_its_way, now):
        setup.feed.leave(subscriber)
    setup.chain.calls.clear()
    setup.mine()
    await setup.turn(3)
    assert {call.method for call in setup.chain.calls} == {"starknet_getBlockWithTxHashes"}
    setup.feed.close()


async def test_feed_that_gave_up_goes_on_for_who_is_still_in_the_past(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "MAX_BEHIND", 20)
    setup = FeedSetup("starknet")
    _, lost = await setup.listen("starknet_subscribeNewTransactions", [])
    subscriber, sink = await setup.listen("starknet_subscribeNewHeads", [{"block_number": 8}], opened=False)
    await setup.turn()
    setup.mine(21)
    await setup.turn()
    assert len(lost.lost) == 1
    subscriber.open()
    await setup.turn(4)
    assert hashes(sink.results(), "block_hash") == setup.chain.hashes(8)
    setup.feed.close()


# --- The way alone, step by step ---------------------------------------------------------------------------


class Way:
    """One who begins at a block of a chain, and the others, who are where the test puts them."""

    def __init__(self, height: int, number: int) -> None:
        self.chain = Chain("starknet", height)
        self.sink = RecordingSink()
        self.source = StarknetSource(self.chain.fetch)
        parsed = subscriptions_starknet.parse("starknet_subscribeNewHeads", [])
        assert isinstance(parsed, Subscription)
        subscriber = Subscriber(parsed, "1", "starknet", self.sink)
        self.arrived: list[Subscriber] = []
        self.others = self.at(height)
        # What was fetched for them so far lacks what this one needs.
        self.others.reached = height + 1
        self.late = CatchUp(
            subscriber, number, self.source, lambda: self.others, self.arrived.append, FairSlots(1), asyncio.sleep
        )
        subscriber.open()

    def at(self, number: int) -> ChainFollower:
        """A walk that has come to this block."""
        head = Head(number, self.chain.hash(number), self.chain.hash(number - 1))
        return ChainFollower(self.source, head, Subscribers("starknet"))

    async def step(self) -> list[Any]:
        """What is reported by one step: numbers of blocks, and first and last of those that were replaced."""
        before = len(self.sink.received)
        assert await self.late.step() is bool(self.arrived)
        return [
            each.get("block_number", (each.get("starting_block_number"), each.get("ending_block_number")))
            for each in self.sink.results()[before:]
        ]


async def test_block_that_is_replaced_at_the_same_height_is_taken_back_on_the_way() -> None:
    way = Way(12, 10)
    assert await way.step() == [10, 11, 12]
    assert await way.step() == []
    way.chain.reorganise(1, 1)
    way.others = way.at(12)
    assert await way.step() == [(12, 12), 12]
    assert way.sink.results()[-1]["block_hash"] == way.chain.hash(12)
    way.chain.mine()
    way.others = way.at(13)
    assert await way.step() == [13]
    assert len(way.arrived) == 1


async def test_chain_that_ends_with_another_parent_of_the_first_block_makes_it_begin_again() -> None:
    way = Way(12, 10)
    await way.step()
    way.chain.reorganise(4, 1)
    way.others = way.at(9)
    assert await way.step() == [(10, 12)]


async def test_who_begins_again_waits_for_the_next_step() -> None:
    way = Way(12, 10)
    await way.step()
    way.chain.reorganise(6, 6)
    way.others = way.at(12)
    assert await way.step() == [(10, 12)]
    assert await way.step() == [10, 11, 12]


async def test_subscriber_does_not_join_others_that_have_restarted_meanwhile() -> None:
    way = Way(12, 10)
    way.late._known = 0
    walks = [way.others, way.at(12), way.at(12)]
    way.late._together = lambda: walks.pop(0)
    assert await way.step() == [10, 11, 12]
    assert way.arrived == []
    way.late._together = lambda: way.others
    assert await way.step() == []
    assert len(way.arrived) == 1


@pytest.mark.parametrize(("blocks", "is_lost"), [(MAX_BEHIND, False), (MAX_BEHIND + 1, True)])
async def test_who_is_too_far_behind_is_given_up_and_goes_no_further(blocks: int, is_lost: bool) -> None:
    way = Way(MAX_BEHIND + 20, 10)
    way.others = way.at(10 + blocks)
    way.sink.room = 1
    reported = await way.step()
    assert bool(way.sink.lost) is is_lost
    assert bool(reported) is not is_lost


async def test_place_that_is_free_again_is_one() -> None:
    slots = FairSlots(1)
    inside: list[str] = []

    async def work(name: str) -> None:
        async with slots.slot("team"):
            inside.append(name)
            await asyncio.sleep(0)
            inside.remove(name)

    await work("first")
    seen = []
    working = asyncio.gather(*(work(name) for name in "abc"))
    for _ in range(12):
        await asyncio.sleep(0)
        seen.append(len(inside))
    await working
    assert max(seen) == 1
