"""Starknet: its names for what is reported, and listeners that begin in the past."""

import pytest
from tests.gateway.feeds.scripted_chain import FeedSetup, hashes

from tollgate.chains.subscriptions import Wrong
from tollgate.errors import RateLimited
from tollgate.gateway.feeds.catch_up import MAX_AT_ONCE, STRIDE
from tollgate.gateway.feeds.follower import AHEAD


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
    stands: list[str] = []
    for message in sink.received:
        result = message["params"]["result"]
        if message["method"] == "starknet_subscriptionReorg":
            assert stands[-1] == result["ending_block_hash"]
            stands = stands[: stands.index(result["starting_block_hash"])]
        else:
            stands.append(result["block_hash"])
    assert stands == setup.chain.hashes(25)
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
    setup = FeedSetup("starknet", height=400)
    sinks = [(await setup.listen("starknet_subscribeNewHeads", [{"block_number": 1}]))[1] for _ in range(60)]
    await setup.turn(40, loops=400)
    assert all(len(sink.received) == 400 for sink in sinks)
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


async def test_client_that_does_not_read_the_past_is_given_up_in_the_end() -> None:
    setup = FeedSetup("starknet", height=30)
    _, sink = await setup.listen("starknet_subscribeNewHeads", [{"block_number": 1}])
    sink.room = 0
    await setup.turn()
    # Others keep up.
    await setup.listen("starknet_subscribeNewTransactions", [])
    for _ in range(2):
        setup.mine(1_000)
        await setup.turn(3, loops=3_000)
    assert sink.lost == []
    setup.mine(1_000)
    await setup.turn(3, loops=3_000)
    why = sink.lost[0]
    assert "subscribe again" in why
    setup.feed.close()


async def test_blocks_of_the_past_count_against_the_limits_of_who_requests_them() -> None:
    def refuse(_: int) -> None:
        raise RateLimited

    setup = FeedSetup("starknet")
    setup.mine(30)
    charged: list[int] = []
    past = [None, None, {"block_number": 20}]
    await setup.listen("starknet_subscribeEvents", past, charge=charged.append)
    assert charged == [20]
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
    setup.feed.close()
