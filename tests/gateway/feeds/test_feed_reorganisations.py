"""Blocks that are replaced: the new branch is told, and what was told of the old one is taken back."""

from tests.gateway.feeds.forks import ADDRESSES, TOPICS, House, hashes, numbers

from tollgate.chains.heads import NodeCall
from tollgate.gateway.feeds import history


async def test_heads_of_the_new_branch_are_told() -> None:
    house = House()
    _, ear = await house.listen("eth_subscribe", ["newHeads"])
    await house.turn()
    house.mine(3)
    await house.turn()
    told = house.chain.hashes(11)
    house.reorganise(2, 3)
    await house.turn(2)
    assert hashes(ear.results()) == told + house.chain.hashes(12)
    house.feed.close()


async def test_block_that_is_replaced_at_the_same_height_is_told_at_once() -> None:
    house = House()
    _, ear = await house.listen("eth_subscribe", ["newHeads"])
    await house.turn()
    house.mine()
    await house.turn()
    house.reorganise(1, 1)
    await house.turn(2)
    assert numbers(ear.results()) == [11, 11]
    assert ear.results()[-1]["hash"] == house.chain.hash(11)
    house.feed.close()


async def test_chain_that_became_shorter_takes_nothing_back_before_it_differs() -> None:
    house = House()
    _, ear = await house.listen("eth_subscribe", ["logs"])
    await house.turn()
    house.mine(3)
    await house.turn()
    before = len(ear.heard)
    house.chain.forks = house.chain.forks[:-2]
    house.row.publish_reorg(house.chain.height)
    house.publish()
    await house.turn(2)
    assert len(ear.heard) == before
    house.mine(2)
    await house.turn(2)
    assert len(ear.heard) == before
    house.mine()
    await house.turn(2)
    assert len(ear.heard) == before + 2
    house.feed.close()


async def test_logs_of_replaced_blocks_are_told_again_as_removed() -> None:
    house = House()
    _, ear = await house.listen("eth_subscribe", ["logs", {"address": ADDRESSES[1], "topics": [TOPICS[1]]}])
    await house.turn()
    house.mine(2)
    await house.turn()
    old = house.chain.hashes(11)
    house.reorganise(2, 2)
    await house.turn(2)
    new = house.chain.hashes(11)
    told = [(each["blockHash"], each["removed"]) for each in ear.results()]
    assert told == [
        (old[0], False),
        (old[1], False),
        (old[0], True),
        (old[1], True),
        (new[0], False),
        (new[1], False),
    ]
    house.feed.close()


async def test_who_came_later_is_not_told_that_older_logs_were_removed() -> None:
    house = House()
    await house.listen("eth_subscribe", ["logs"])
    await house.turn()
    house.mine(2)
    await house.turn()
    _, late = await house.listen("eth_subscribe", ["logs"])
    house.reorganise(1, 2)
    await house.turn(2)
    told = [(each["blockHash"], each["removed"]) for each in late.results()]
    new = house.chain.hashes(12)
    assert told == [(block, False) for block in new for _ in range(2)]
    house.feed.close()


async def test_reorganisation_below_the_first_block_is_followed_as_deep_as_the_board_knows() -> None:
    house = House()
    _, ear = await house.listen("eth_subscribe", ["newHeads"])
    await house.turn()
    house.mine()
    await house.turn()
    told = house.chain.hashes(11)
    house.reorganise(4, 5)
    await house.turn(3)
    assert hashes(ear.results()) == told + house.chain.hashes(8)
    assert ear.lost == []
    house.feed.close()


async def test_listeners_are_given_up_when_no_kept_block_is_left() -> None:
    house = House(height=400)
    _, ear = await house.listen("eth_subscribe", ["newHeads"])
    await house.turn()
    house.mine(history.MAX_KEPT + 10)
    await house.turn(3)
    house.reorganise(history.MAX_KEPT + 5, history.MAX_KEPT + 6)
    await house.turn(3)
    assert len(ear.lost) == 1


async def test_nodes_that_disagree_about_the_parent_are_asked_until_they_agree() -> None:
    house = House()
    _, ear = await house.listen("eth_subscribe", ["newHeads"])
    await house.turn()
    before = list(house.chain.forks)
    house.mine(1)
    await house.turn()
    other = [*before, 7, 7]
    house.mine(1)

    def newest_from_another_fork(call: NodeCall) -> list[int] | None:
        return other if list(call.params)[:1] == ["0xc"] else None

    house.chain.older = newest_from_another_fork
    await house.turn(3)
    assert numbers(ear.results()) == [11]
    house.chain.older = lambda _: None
    await house.turn(2)
    assert hashes(ear.results()) == house.chain.hashes(11)
    house.feed.close()
