"""Nodes that fail, lag or leave something out: the feed waits and goes on where it was, or reports why not."""

import pytest
from tests.gateway.feeds.scripted_chain import ADDRESSES, FeedSetup, hashes, numbers

from tollgate.errors import UpstreamUnavailable
from tollgate.gateway.feeds.feed import MAX_BEHIND, PATIENCE_SECONDS, REFUSED_SECONDS


@pytest.mark.parametrize("method", ["eth_getBlockByNumber", "eth_getLogs"])
async def test_failed_calls_are_made_again_with_longer_and_longer_pauses(method: str) -> None:
    setup = FeedSetup()
    _, sink = await setup.listen("eth_subscribe", ["logs", {"address": ADDRESSES[0]}])
    await setup.turn()
    setup.chain.fail = lambda call: call.method == method
    setup.mine(2)
    setup.pace.pauses.clear()
    await setup.turn(8)
    assert setup.pace.pauses[:4] == [0.05, 0.1, 0.2, 0.4]
    assert max(setup.pace.pauses) == 2.0
    assert sink.received == []
    setup.chain.fail = lambda _: False
    await setup.turn(2)
    assert hashes(sink.results(), "blockHash") == setup.chain.hashes(11)
    setup.feed.close()


async def test_node_that_is_behind_is_called_again() -> None:
    setup = FeedSetup()
    _, sink = await setup.listen("eth_subscribe", ["newHeads"])
    await setup.turn()
    behind = list(setup.chain.scripted_chain)
    setup.mine(2)
    setup.chain.older = lambda _: behind
    await setup.turn(3)
    assert sink.received == []
    setup.chain.older = lambda _: None
    await setup.turn(2)
    assert numbers(sink.results()) == [11, 12]
    setup.feed.close()


async def test_logs_that_a_header_promises_are_waited_for_but_not_for_ever() -> None:
    setup = FeedSetup()
    _, sink = await setup.listen("eth_subscribe", ["logs"])
    _, heads = await setup.listen("eth_subscribe", ["newHeads"])
    await setup.turn()
    setup.chain.logs = lambda number, scripted_chain=None: []  # type: ignore[method-assign]
    setup.mine()
    await setup.turn(5)
    assert heads.received == []
    await setup.turn(2)
    assert numbers(heads.results()) == [11]
    assert sink.received == []
    setup.feed.close()


async def test_logs_that_are_missing_in_several_blocks_at_once_are_not_waited_for_for_ever_either() -> None:
    setup = FeedSetup()
    await setup.listen("eth_subscribe", ["logs"])
    _, heads = await setup.listen("eth_subscribe", ["newHeads"])
    await setup.turn()
    setup.chain.logs = lambda number, scripted_chain=None: []  # type: ignore[method-assign]
    setup.mine(4)
    await setup.turn(30)
    assert numbers(heads.results()) == [11, 12, 13, 14]
    setup.feed.close()


async def test_feed_that_is_too_far_behind_gives_its_listeners_up() -> None:
    setup = FeedSetup()
    subscriber, sink = await setup.listen("eth_subscribe", ["newHeads"])
    await setup.turn()
    setup.chain.fail = lambda _: True
    setup.mine(MAX_BEHIND + 1)
    await setup.turn(2)
    (why,) = sink.lost
    assert "subscribe again" in why
    assert subscriber.gone


async def test_many_missing_blocks_are_fetched_together_and_reported_in_order() -> None:
    setup = FeedSetup()
    _, sink = await setup.listen("eth_subscribe", ["newHeads"])
    await setup.turn()
    setup.chain.fail = lambda _: True
    setup.mine(40)
    await setup.turn()
    setup.chain.fail = lambda _: False
    await setup.turn(2)
    assert numbers(sink.results()) == list(range(11, 51))
    setup.feed.close()


@pytest.mark.parametrize(
    ("family", "failing", "needing"),
    [
        ("eth", "eth_getLogs", ("eth_subscribe", ["logs"])),
        ("starknet", "starknet_getEvents", ("starknet_subscribeEvents", [])),
        ("starknet", "starknet_getBlockWithReceipts", ("starknet_subscribeNewTransactionReceipts", [])),
    ],
)
async def test_nodes_that_give_blocks_and_not_what_belongs_to_them_hold_up_heads_for_seconds_only(
    family: str, failing: str, needing: tuple[str, list[object]]
) -> None:
    setup = FeedSetup(family)
    heads = ("eth_subscribe", ["newHeads"]) if family == "eth" else ("starknet_subscribeNewHeads", [])
    _, others = await setup.listen(*heads)
    lost, sink = await setup.listen(*needing)
    await setup.turn(2)
    setup.chain.fail = lambda call: call.method == failing
    received = len(others.received)
    setup.mine()
    await setup.turn(int(PATIENCE_SECONDS))
    assert len(others.received) == received
    assert not sink.lost
    await setup.turn(2)
    assert len(others.received) == received + 1
    (why,) = sink.lost
    assert "subscribe again later" in why
    assert lost.gone
    # A subscriber that returns at once would hold them up again.
    with pytest.raises(UpstreamUnavailable, match="later"):
        await setup.listen(*needing)
    setup.mine()
    await setup.turn()
    assert len(others.received) == received + 2
    setup.chain.fail = lambda _: False
    setup.clock.advance(REFUSED_SECONDS)
    _, sink = await setup.listen(*needing)
    await setup.turn(2)
    setup.mine()
    await setup.turn(2)
    assert len(others.received) == received + 3
    assert sink.received
    setup.feed.close()


async def test_blocks_whose_logs_come_slowly_lose_no_subscriber() -> None:
    setup = FeedSetup()
    _, sink = await setup.listen("eth_subscribe", ["logs"])
    await setup.turn()
    for _ in range(3):
        setup.chain.fail = lambda call: call.method == "eth_getLogs"
        setup.mine()
        await setup.turn(int(PATIENCE_SECONDS) - 1)
        setup.chain.fail = lambda _: False
        await setup.turn(2)
    assert not sink.lost
    assert sorted(set(hashes(sink.results(), "blockHash"))) == sorted(setup.chain.hashes(11))
    setup.feed.close()
