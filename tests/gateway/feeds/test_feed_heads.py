"""New heads: reported in order and once, fetched while there are subscribers, not before the answer is sent."""

import pytest
from tests.gateway.feeds.scripted_chain import FeedSetup, hashes, numbers

from tollgate.errors import MethodNotAllowed


async def test_new_heads_are_reported_in_order_without_what_is_in_the_body() -> None:
    setup = FeedSetup()
    _, sink = await setup.listen("eth_subscribe", ["newHeads"])
    await setup.turn()
    assert sink.received == []
    setup.mine(3)
    await setup.turn()
    assert hashes(sink.results()) == setup.chain.hashes(11)
    assert set(sink.results()[0]) == {"number", "hash", "parentHash", "logsBloom"}
    assert sink.received[0]["method"] == "eth_subscription"
    setup.feed.close()


async def test_blocks_that_come_before_the_feed_has_begun_are_reported() -> None:
    setup = FeedSetup()
    setup.chain.fail = lambda _: True
    _, sink = await setup.listen("eth_subscribe", ["newHeads"])
    await setup.turn()
    setup.mine(2)
    await setup.turn(2)
    setup.chain.fail = lambda _: False
    await setup.turn(2)
    assert numbers(sink.results()) == [11, 12]
    setup.feed.close()


async def test_without_a_shared_status_upstreams_are_queried_for_their_head() -> None:
    setup = FeedSetup(probed=False)
    _, sink = await setup.listen("eth_subscribe", ["newHeads"])
    await setup.turn()
    setup.chain.mine(2)
    await setup.turn(2)
    assert numbers(sink.results()) == [11, 12]
    setup.feed.close()


async def test_upstreams_are_queried_for_their_head_when_the_prober_falls_silent() -> None:
    setup = FeedSetup()
    _, sink = await setup.listen("eth_subscribe", ["newHeads"])
    await setup.turn()
    setup.probed = False
    setup.mine(2)
    await setup.turn(20)
    assert numbers(sink.results()) == [11, 12]
    setup.feed.close()


async def test_upstreams_are_queried_for_their_head_while_the_prober_has_not_seen_one() -> None:
    setup = FeedSetup(probed=False)
    setup.row.pulse()
    _, sink = await setup.listen("eth_subscribe", ["newHeads"])
    setup.probed = True
    await setup.turn()
    setup.chain.mine()
    await setup.turn(2)
    assert numbers(sink.results()) == [11]
    setup.feed.close()


async def test_only_what_a_subscriber_needs_is_fetched() -> None:
    setup = FeedSetup()
    await setup.listen("eth_subscribe", ["newHeads"])
    setup.mine(3)
    await setup.turn(2)
    assert {call.method for call in setup.chain.calls} == {"eth_getBlockByNumber"}
    assert len(setup.chain.calls) == 4
    setup.feed.close()


async def test_nothing_is_requested_after_the_last_subscriber_has_left() -> None:
    setup = FeedSetup()
    subscriber, sink = await setup.listen("eth_subscribe", ["newHeads"])
    await setup.turn()
    setup.feed.leave(subscriber)
    setup.chain.calls.clear()
    setup.mine(3)
    await setup.turn(3)
    assert setup.chain.calls == []
    assert sink.received == []


async def test_feed_that_was_left_begins_anew_with_the_next_listener() -> None:
    setup = FeedSetup()
    first, _ = await setup.listen("eth_subscribe", ["newHeads"])
    await setup.turn()
    setup.feed.leave(first)
    setup.mine(5)
    _, sink = await setup.listen("eth_subscribe", ["newHeads"])
    setup.mine(1)
    await setup.turn(2)
    assert numbers(sink.results()) == [16]
    setup.feed.close()


async def test_what_others_send_is_no_reason_to_look_again() -> None:
    setup = FeedSetup()
    await setup.listen("eth_subscribe", ["newHeads"])
    await setup.turn(2)
    setup.chain.calls.clear()
    setup.row.request_probe()
    await setup.turn()
    assert setup.chain.calls == []
    setup.feed.close()


async def test_notifications_wait_for_the_answer_to_the_subscription() -> None:
    setup = FeedSetup()
    subscriber, sink = await setup.listen("eth_subscribe", ["newHeads"], opened=False)
    setup.mine(2)
    await setup.turn(2)
    assert sink.received == []
    subscriber.open()
    assert numbers(sink.results()) == [11, 12]
    setup.feed.close()


async def test_pending_transactions_are_refused_where_no_upstream_can_be_listened_to() -> None:
    setup = FeedSetup()
    with pytest.raises(MethodNotAllowed, match="ws_url"):
        await setup.listen("eth_subscribe", ["newPendingTransactions"])
