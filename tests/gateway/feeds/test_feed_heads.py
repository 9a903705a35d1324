"""New heads: told in order and once, fetched only while somebody listens, and not before the answer has left."""

import pytest
from tests.gateway.feeds.forks import House, hashes, numbers

from tollgate.errors import MethodNotAllowed


async def test_new_heads_are_told_in_order_without_what_is_in_the_body() -> None:
    house = House()
    _, ear = await house.listen("eth_subscribe", ["newHeads"])
    await house.turn()
    assert ear.heard == []
    house.mine(3)
    await house.turn()
    assert hashes(ear.results()) == house.chain.hashes(11)
    assert set(ear.results()[0]) == {"number", "hash", "parentHash", "logsBloom"}
    assert ear.heard[0]["method"] == "eth_subscription"
    house.feed.close()


async def test_blocks_that_come_before_the_feed_has_begun_are_told() -> None:
    house = House()
    house.chain.fail = lambda _: True
    _, ear = await house.listen("eth_subscribe", ["newHeads"])
    await house.turn()
    house.mine(2)
    await house.turn(2)
    house.chain.fail = lambda _: False
    await house.turn(2)
    assert numbers(ear.results()) == [11, 12]
    house.feed.close()


async def test_without_the_board_the_upstreams_are_asked_for_their_head() -> None:
    house = House(probed=False)
    _, ear = await house.listen("eth_subscribe", ["newHeads"])
    await house.turn()
    house.chain.mine(2)
    await house.turn(2)
    assert numbers(ear.results()) == [11, 12]
    house.feed.close()


async def test_only_what_somebody_needs_is_fetched() -> None:
    house = House()
    await house.listen("eth_subscribe", ["newHeads"])
    house.mine(3)
    await house.turn(2)
    assert {call.method for call in house.chain.calls} == {"eth_getBlockByNumber"}
    assert len(house.chain.calls) == 4
    house.feed.close()


async def test_nothing_is_asked_when_nobody_listens_any_more() -> None:
    house = House()
    listener, ear = await house.listen("eth_subscribe", ["newHeads"])
    await house.turn()
    house.feed.leave(listener)
    house.chain.calls.clear()
    house.mine(3)
    await house.turn(3)
    assert house.chain.calls == []
    assert ear.heard == []


async def test_feed_that_was_left_begins_anew_with_the_next_listener() -> None:
    house = House()
    first, _ = await house.listen("eth_subscribe", ["newHeads"])
    await house.turn()
    house.feed.leave(first)
    house.mine(5)
    _, ear = await house.listen("eth_subscribe", ["newHeads"])
    house.mine(1)
    await house.turn(2)
    assert numbers(ear.results()) == [16]
    house.feed.close()


async def test_what_others_send_is_no_reason_to_look_again() -> None:
    house = House()
    await house.listen("eth_subscribe", ["newHeads"])
    await house.turn(2)
    house.chain.calls.clear()
    house.row.nudge()
    await house.turn()
    assert house.chain.calls == []
    house.feed.close()


async def test_notifications_wait_for_the_answer_to_the_subscription() -> None:
    house = House()
    listener, ear = await house.listen("eth_subscribe", ["newHeads"], opened=False)
    house.mine(2)
    await house.turn(2)
    assert ear.heard == []
    listener.open()
    assert numbers(ear.results()) == [11, 12]
    house.feed.close()


async def test_pending_transactions_are_refused_where_no_upstream_can_be_listened_to() -> None:
    house = House()
    with pytest.raises(MethodNotAllowed, match="ws_url"):
        await house.listen("eth_subscribe", ["newPendingTransactions"])
