"""Blocks that are replaced: the new branch is reported, and what was reported of the old one is taken back."""

import pytest
from tests.gateway.feeds.scripted_chain import ADDRESSES, TOPICS, FeedSetup, hashes, numbers

from tollgate.chains.heads import NodeCall
from tollgate.gateway.feeds import history


async def test_heads_of_the_new_branch_are_reported() -> None:
    setup = FeedSetup()
    _, sink = await setup.listen("eth_subscribe", ["newHeads"])
    await setup.turn()
    setup.mine(3)
    await setup.turn()
    notified = setup.chain.hashes(11)
    setup.reorganise(2, 3)
    await setup.turn(2)
    assert hashes(sink.results()) == notified + setup.chain.hashes(12)
    setup.feed.close()


async def test_block_that_is_replaced_at_the_same_height_is_reported_at_once() -> None:
    setup = FeedSetup()
    _, sink = await setup.listen("eth_subscribe", ["newHeads"])
    await setup.turn()
    setup.mine()
    await setup.turn()
    setup.reorganise(1, 1)
    await setup.turn(2)
    assert numbers(sink.results()) == [11, 11]
    assert sink.results()[-1]["hash"] == setup.chain.hash(11)
    setup.feed.close()


async def test_chain_that_became_shorter_takes_nothing_back_before_it_differs() -> None:
    setup = FeedSetup()
    _, sink = await setup.listen("eth_subscribe", ["logs"])
    await setup.turn()
    setup.mine(3)
    await setup.turn()
    before = len(sink.received)
    setup.chain.scripted_chain = setup.chain.scripted_chain[:-2]
    setup.row.publish_reorg(setup.chain.height)
    setup.publish()
    await setup.turn(2)
    assert len(sink.received) == before
    setup.mine(2)
    await setup.turn(2)
    assert len(sink.received) == before
    setup.mine()
    await setup.turn(2)
    assert len(sink.received) == before + 2
    setup.feed.close()


async def test_logs_of_replaced_blocks_are_reported_again_as_removed() -> None:
    setup = FeedSetup()
    _, sink = await setup.listen("eth_subscribe", ["logs", {"address": ADDRESSES[1], "topics": [TOPICS[1]]}])
    await setup.turn()
    setup.mine(2)
    await setup.turn()
    old = setup.chain.hashes(11)
    setup.reorganise(2, 2)
    await setup.turn(2)
    new = setup.chain.hashes(11)
    notified = [(each["blockHash"], each["removed"]) for each in sink.results()]
    assert notified == [
        (old[0], False),
        (old[1], False),
        (old[0], True),
        (old[1], True),
        (new[0], False),
        (new[1], False),
    ]
    setup.feed.close()


async def test_who_came_later_is_not_reported_that_older_logs_were_removed() -> None:
    setup = FeedSetup()
    await setup.listen("eth_subscribe", ["logs"])
    await setup.turn()
    setup.mine(2)
    await setup.turn()
    _, late = await setup.listen("eth_subscribe", ["logs"])
    setup.reorganise(1, 2)
    await setup.turn(2)
    notified = [(each["blockHash"], each["removed"]) for each in late.results()]
    new = setup.chain.hashes(12)
    assert notified == [(block, False) for block in new for _ in range(2)]
    setup.feed.close()


async def test_reorganisation_below_the_first_block_is_followed_as_deep_as_the_status_shows() -> None:
    setup = FeedSetup()
    _, sink = await setup.listen("eth_subscribe", ["newHeads"])
    await setup.turn()
    setup.mine()
    await setup.turn()
    notified = setup.chain.hashes(11)
    setup.reorganise(4, 5)
    await setup.turn(3)
    assert hashes(sink.results()) == notified + setup.chain.hashes(8)
    assert sink.lost == []
    setup.feed.close()


async def test_listeners_are_given_up_when_no_kept_block_is_left() -> None:
    setup = FeedSetup(height=400)
    _, sink = await setup.listen("eth_subscribe", ["newHeads"])
    await setup.turn()
    setup.mine(history.MAX_KEPT + 10)
    await setup.turn(3)
    setup.reorganise(history.MAX_KEPT + 5, history.MAX_KEPT + 6)
    await setup.turn(3)
    assert len(sink.lost) == 1


async def test_nodes_that_disagree_about_the_parent_are_called_until_they_agree() -> None:
    setup = FeedSetup()
    _, sink = await setup.listen("eth_subscribe", ["newHeads"])
    await setup.turn()
    before = list(setup.chain.scripted_chain)
    setup.mine(1)
    await setup.turn()
    other = [*before, 7, 7]
    setup.mine(1)

    def newest_from_another_fork(call: NodeCall) -> list[int] | None:
        return other if list(call.params)[:1] == ["0xc"] else None

    setup.chain.older = newest_from_another_fork
    await setup.turn(3)
    assert numbers(sink.results()) == [11]
    setup.chain.older = lambda _: None
    await setup.turn(2)
    assert hashes(sink.results()) == setup.chain.hashes(11)
    setup.feed.close()


async def test_reorganisation_of_unknown_depth_is_followed_block_by_block() -> None:
    setup = FeedSetup()
    _, sink = await setup.listen("eth_subscribe", ["newHeads"])
    await setup.turn()
    setup.mine()
    await setup.turn()
    notified = setup.chain.hashes(11)
    setup.chain.reorganise(4, 5)
    setup.publish()
    await setup.turn(3)
    assert hashes(sink.results()) == notified + setup.chain.hashes(10), "from the first that is kept"
    setup.feed.close()


async def test_reorganisation_down_to_the_first_block_of_a_chain_is_followed() -> None:
    setup = FeedSetup(height=2)
    _, sink = await setup.listen("eth_subscribe", ["newHeads"])
    await setup.turn()
    setup.reorganise(2, 3)
    await setup.turn(3)
    assert hashes(sink.results()) == setup.chain.hashes(1)
    setup.feed.close()


@pytest.mark.parametrize("height", [0, 1])
async def test_chain_that_was_begun_anew_is_followed(height: int) -> None:
    setup = FeedSetup(height=height)
    _, sink = await setup.listen("eth_subscribe", ["newHeads"])
    await setup.turn()
    setup.chain.scripted_chain = [1] * (height + 2)
    setup.publish()
    await setup.turn(3)
    assert hashes(sink.results()) == setup.chain.hashes(height)
    setup.feed.close()
