"""Nodes that fail, lag or leave something out: the feed waits and goes on where it was, or says why not."""

import pytest
from tests.gateway.feeds.forks import ADDRESSES, House, hashes, numbers

from tollgate.gateway.feeds.feed import MAX_BEHIND


@pytest.mark.parametrize("method", ["eth_getBlockByNumber", "eth_getLogs"])
async def test_failed_calls_are_made_again_with_longer_and_longer_pauses(method: str) -> None:
    house = House()
    _, ear = await house.listen("eth_subscribe", ["logs", {"address": ADDRESSES[0]}])
    await house.turn()
    house.chain.fail = lambda call: call.method == method
    house.mine(2)
    house.pace.asked.clear()
    await house.turn(8)
    assert house.pace.asked[:4] == [0.05, 0.1, 0.2, 0.4]
    assert max(house.pace.asked) == 2.0
    assert ear.heard == []
    house.chain.fail = lambda _: False
    await house.turn(2)
    assert hashes(ear.results(), "blockHash") == house.chain.hashes(11)
    house.feed.close()


async def test_node_that_is_behind_is_asked_again() -> None:
    house = House()
    _, ear = await house.listen("eth_subscribe", ["newHeads"])
    await house.turn()
    behind = list(house.chain.forks)
    house.mine(2)
    house.chain.older = lambda _: behind
    await house.turn(3)
    assert ear.heard == []
    house.chain.older = lambda _: None
    await house.turn(2)
    assert numbers(ear.results()) == [11, 12]
    house.feed.close()


async def test_logs_that_a_header_promises_are_waited_for_but_not_for_ever() -> None:
    house = House()
    _, ear = await house.listen("eth_subscribe", ["logs"])
    _, heads = await house.listen("eth_subscribe", ["newHeads"])
    await house.turn()
    house.chain.logs = lambda number, forks=None: []  # type: ignore[method-assign]
    house.mine()
    await house.turn(5)
    assert heads.heard == []
    await house.turn(2)
    assert numbers(heads.results()) == [11]
    assert ear.heard == []
    house.feed.close()


async def test_logs_that_are_missing_in_several_blocks_at_once_are_not_waited_for_for_ever_either() -> None:
    house = House()
    await house.listen("eth_subscribe", ["logs"])
    _, heads = await house.listen("eth_subscribe", ["newHeads"])
    await house.turn()
    house.chain.logs = lambda number, forks=None: []  # type: ignore[method-assign]
    house.mine(4)
    await house.turn(30)
    assert numbers(heads.results()) == [11, 12, 13, 14]
    house.feed.close()


async def test_feed_that_is_too_far_behind_gives_its_listeners_up() -> None:
    house = House()
    listener, ear = await house.listen("eth_subscribe", ["newHeads"])
    await house.turn()
    house.chain.fail = lambda _: True
    house.mine(MAX_BEHIND + 1)
    await house.turn(2)
    (why,) = ear.lost
    assert "subscribe again" in why
    assert listener.gone


async def test_many_missing_blocks_are_fetched_together_and_told_in_order() -> None:
    house = House()
    _, ear = await house.listen("eth_subscribe", ["newHeads"])
    await house.turn()
    house.chain.fail = lambda _: True
    house.mine(40)
    await house.turn()
    house.chain.fail = lambda _: False
    await house.turn(2)
    assert numbers(ear.results()) == list(range(11, 51))
    house.feed.close()
