"""The feed of a network: every listener sees each block once, in order, whatever nodes do."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.gateway.feeds.forks import ADDRESSES, TOPICS, House

from tollgate.chains.subscriptions import Call, Wrong
from tollgate.errors import MethodNotAllowed
from tollgate.gateway.feeds import trail
from tollgate.gateway.feeds.feed import MOST_BEHIND


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


def numbers(results: list[Any]) -> list[int]:
    return [int(each["number"], 16) for each in results]


def hashes(results: list[Any], name: str = "hash") -> list[str]:
    return [each[name] for each in results]


# --- Heads -------------------------------------------------------------------------------------------------


def test_new_heads_are_told_in_order_without_what_is_in_the_body() -> None:
    async def test() -> None:
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

    run(test)


def test_blocks_that_come_before_the_feed_has_begun_are_told() -> None:
    async def test() -> None:
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

    run(test)


def test_without_the_board_the_upstreams_are_asked_for_their_head() -> None:
    async def test() -> None:
        house = House(probed=False)
        _, ear = await house.listen("eth_subscribe", ["newHeads"])
        await house.turn()
        house.chain.mine(2)
        await house.turn(2)
        assert numbers(ear.results()) == [11, 12]
        house.feed.close()

    run(test)


def test_only_what_somebody_needs_is_fetched() -> None:
    async def test() -> None:
        house = House()
        await house.listen("eth_subscribe", ["newHeads"])
        house.mine(3)
        await house.turn(2)
        assert {call.method for call in house.chain.calls} == {"eth_getBlockByNumber"}
        assert len(house.chain.calls) == 4
        house.feed.close()

    run(test)


def test_nothing_is_asked_when_nobody_listens_any_more() -> None:
    async def test() -> None:
        house = House()
        listener, ear = await house.listen("eth_subscribe", ["newHeads"])
        await house.turn()
        house.feed.leave(listener)
        house.chain.calls.clear()
        house.mine(3)
        await house.turn(3)
        assert house.chain.calls == []
        assert ear.heard == []

    run(test)


def test_feed_that_was_left_begins_anew_with_the_next_listener() -> None:
    async def test() -> None:
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

    run(test)


def test_what_others_send_is_no_reason_to_look_again() -> None:
    async def test() -> None:
        house = House()
        await house.listen("eth_subscribe", ["newHeads"])
        await house.turn(2)
        house.chain.calls.clear()
        house.row.nudge()
        await house.turn()
        assert house.chain.calls == []
        house.feed.close()

    run(test)


def test_notifications_wait_for_the_answer_to_the_subscription() -> None:
    async def test() -> None:
        house = House()
        listener, ear = await house.listen("eth_subscribe", ["newHeads"], opened=False)
        house.mine(2)
        await house.turn(2)
        assert ear.heard == []
        listener.open()
        assert numbers(ear.results()) == [11, 12]
        house.feed.close()

    run(test)


# --- Failures ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["eth_getBlockByNumber", "eth_getLogs"])
def test_failed_calls_are_made_again_with_longer_and_longer_pauses(method: str) -> None:
    async def test() -> None:
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

    run(test)


def test_node_that_is_behind_is_asked_again() -> None:
    async def test() -> None:
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

    run(test)


def test_logs_that_a_header_promises_are_waited_for_but_not_for_ever() -> None:
    async def test() -> None:
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

    run(test)


def test_feed_that_is_too_far_behind_gives_its_listeners_up() -> None:
    async def test() -> None:
        house = House()
        listener, ear = await house.listen("eth_subscribe", ["newHeads"])
        await house.turn()
        house.chain.fail = lambda _: True
        house.mine(MOST_BEHIND + 1)
        await house.turn(2)
        (why,) = ear.lost
        assert "subscribe again" in why
        assert listener.gone

    run(test)


def test_many_missing_blocks_are_fetched_together_and_told_in_order() -> None:
    async def test() -> None:
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

    run(test)


# --- Reorganisations ---------------------------------------------------------------------------------------


def test_heads_of_the_new_branch_are_told() -> None:
    async def test() -> None:
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

    run(test)


def test_block_that_is_replaced_at_the_same_height_is_told_at_once() -> None:
    async def test() -> None:
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

    run(test)


def test_chain_that_became_shorter_takes_nothing_back_before_it_differs() -> None:
    async def test() -> None:
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

    run(test)


def test_logs_of_replaced_blocks_are_told_again_as_removed() -> None:
    async def test() -> None:
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

    run(test)


def test_who_came_later_is_not_told_that_older_logs_were_removed() -> None:
    async def test() -> None:
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

    run(test)


def test_reorganisation_below_the_first_block_is_followed_as_deep_as_the_board_knows() -> None:
    async def test() -> None:
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

    run(test)


def test_listeners_are_given_up_when_no_kept_block_is_left() -> None:
    async def test() -> None:
        house = House(height=400)
        _, ear = await house.listen("eth_subscribe", ["newHeads"])
        await house.turn()
        house.mine(trail.MOST_KEPT + 10)
        await house.turn(3)
        house.reorganise(trail.MOST_KEPT + 5, trail.MOST_KEPT + 6)
        await house.turn(3)
        assert len(ear.lost) == 1

    run(test)


def test_nodes_that_disagree_about_the_parent_are_asked_until_they_agree() -> None:
    async def test() -> None:
        house = House()
        _, ear = await house.listen("eth_subscribe", ["newHeads"])
        await house.turn()
        before = list(house.chain.forks)
        house.mine(1)
        await house.turn()
        other = [*before, 7, 7]
        house.mine(1)

        def newest_from_another_fork(call: Call) -> list[int] | None:
            return other if list(call.params)[:1] == ["0xc"] else None

        house.chain.older = newest_from_another_fork
        await house.turn(3)
        assert numbers(ear.results()) == [11]
        house.chain.older = lambda _: None
        await house.turn(2)
        assert hashes(ear.results()) == house.chain.hashes(11)
        house.feed.close()

    run(test)


# --- Starknet ----------------------------------------------------------------------------------------------


def test_starknet_heads_events_receipts_and_transactions_are_told_under_their_names() -> None:
    async def test() -> None:
        house = House("starknet")
        ears = {
            method: (await house.listen(f"starknet_{method}", []))[1]
            for method in (
                "subscribeNewHeads",
                "subscribeEvents",
                "subscribeNewTransactionReceipts",
                "subscribeNewTransactions",
            )
        }
        await house.turn(3)
        house.mine()
        await house.turn(3)
        # Heads and events begin with the newest block that is there already.
        assert [each["method"] for ear in ears.values() for each in ear.heard] == [
            *["starknet_subscriptionNewHeads"] * 2,
            *["starknet_subscriptionEvents"] * 6,
            "starknet_subscriptionNewTransactionReceipts",
            "starknet_subscriptionNewTransaction",
        ]
        first, head = ears["subscribeNewHeads"].results()
        assert (first["block_number"], head["block_number"]) == (10, 11)
        assert set(head) == {"block_number", "block_hash", "parent_hash"}
        assert [each["keys"] for each in ears["subscribeEvents"].results()] == [["0x1"], ["0x2"], ["0x3"]] * 2
        assert {each["finality_status"] for each in ears["subscribeEvents"].results()} == {"ACCEPTED_ON_L2"}
        (receipt,) = ears["subscribeNewTransactionReceipts"].results()
        assert (receipt["block_number"], receipt["block_hash"]) == (11, house.chain.hash(11))
        (transaction,) = ears["subscribeNewTransactions"].results()
        assert transaction["transaction_hash"] == receipt["transaction_hash"]
        assert transaction["finality_status"] == "ACCEPTED_ON_L2"
        house.feed.close()

    run(test)


def test_starknet_listeners_are_told_which_blocks_were_replaced() -> None:
    async def test() -> None:
        house = House("starknet")
        _, ear = await house.listen("starknet_subscribeNewHeads", [])
        await house.turn(3)
        house.mine(3)
        await house.turn(3)
        old = house.chain.hashes(12)
        house.reorganise(2, 1)
        await house.turn(4)
        reorg = ear.heard[4]
        assert reorg["method"] == "starknet_subscriptionReorg"
        assert reorg["params"]["result"] == {
            "starting_block_hash": old[0],
            "starting_block_number": 12,
            "ending_block_hash": old[1],
            "ending_block_number": 13,
        }
        assert hashes(ear.results()[5:], "block_hash") == house.chain.hashes(12)
        house.feed.close()

    run(test)


@pytest.mark.parametrize("by_hash", [False, True])
def test_listener_that_begins_in_the_past_comes_up_to_the_others(by_hash: bool) -> None:
    async def test() -> None:
        house = House("starknet", height=60)
        block_id = {"block_hash": house.chain.hash(20)} if by_hash else {"block_number": 20}
        _, ear = await house.listen("starknet_subscribeEvents", [None, None, block_id])
        await house.turn(4)
        house.mine(2)
        await house.turn(4)
        blocks = [each["block_hash"] for each in ear.results()]
        assert blocks == [block for block in house.chain.hashes(20) for _ in range(3)]
        house.feed.close()

    run(test)


def test_listener_may_begin_with_the_first_block_of_all() -> None:
    async def test() -> None:
        house = House("starknet", height=3)
        _, ear = await house.listen("starknet_subscribeNewHeads", [{"block_number": 0}])
        await house.turn(4)
        assert hashes(ear.results(), "block_hash") == house.chain.hashes(0)
        house.feed.close()

    run(test)


def test_past_is_told_only_after_the_answer_to_the_subscription() -> None:
    async def test() -> None:
        house = House("starknet")
        listener, ear = await house.listen("starknet_subscribeNewHeads", [{"block_number": 5}], opened=False)
        await house.turn(3)
        assert ear.heard == []
        listener.open()
        await house.turn(4)
        assert hashes(ear.results(), "block_hash") == house.chain.hashes(5)
        house.feed.close()

    run(test)


def test_listener_on_its_way_follows_a_reorganisation_by_itself() -> None:
    async def test() -> None:
        house = House("starknet", height=30)
        _, ear = await house.listen("starknet_subscribeNewHeads", [{"block_number": 25}])
        await house.turn(1)
        house.reorganise(3, 4)
        await house.turn(6)
        stands: list[str] = []
        for said in ear.heard:
            result = said["params"]["result"]
            if said["method"] == "starknet_subscriptionReorg":
                assert stands[-1] == result["ending_block_hash"]
                stands = stands[: stands.index(result["starting_block_hash"])]
            else:
                stands.append(result["block_hash"])
        assert stands == house.chain.hashes(25)
        house.feed.close()

    run(test)


def test_listener_whose_blocks_are_all_replaced_before_it_has_come_up_begins_again() -> None:
    async def test() -> None:
        house = House("starknet", height=30)
        _, ear = await house.listen("starknet_subscribeNewHeads", [{"block_number": 28}])
        house.chain.fail = lambda call: call.params == {"block_id": {"block_number": 29}}
        await house.turn(3)
        old = hashes(ear.results(), "block_hash")
        assert old == [house.chain.hash(28)]
        house.reorganise(6, 8)
        house.chain.fail = lambda _: False
        await house.turn(8)
        reorg = ear.heard[len(old)]
        assert reorg["method"] == "starknet_subscriptionReorg"
        assert reorg["params"]["result"]["starting_block_hash"] == old[0]
        assert reorg["params"]["result"]["ending_block_hash"] == old[-1]
        assert hashes(ear.results()[len(old) + 1 :], "block_hash") == house.chain.hashes(28)
        assert ear.lost == []
        house.feed.close()

    run(test)


@pytest.mark.parametrize(
    ("block_id", "code"),
    [
        ({"block_number": 2001}, 24),
        ({"block_hash": "0x123"}, 24),
        ({"block_number": 2000 - 1025}, 68),
    ],
)
def test_block_that_is_not_there_or_too_far_back_is_refused(block_id: dict[str, object], code: int) -> None:
    async def test() -> None:
        house = House("starknet", height=2000)
        with pytest.raises(Wrong) as caught:
            await house.listen("starknet_subscribeNewHeads", [block_id])
        assert caught.value.code == code

    run(test)


def test_pending_transactions_are_refused_where_no_upstream_can_be_listened_to() -> None:
    async def test() -> None:
        house = House()
        with pytest.raises(MethodNotAllowed, match="ws_url"):
            await house.listen("eth_subscribe", ["newPendingTransactions"])

    run(test)
