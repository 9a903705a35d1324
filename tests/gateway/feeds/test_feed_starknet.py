"""Starknet: its names for what is told, and listeners that begin in the past."""

import pytest
from tests.gateway.feeds.forks import House, hashes, run

from tollgate.chains.subscriptions import Wrong
from tollgate.errors import RateLimited
from tollgate.gateway.feeds.catch_up import MAX_AT_ONCE, STRIDE
from tollgate.gateway.feeds.follower import AHEAD


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


# --- Many at once, and slow ones ---------------------------------------------------------------------------


def test_many_who_begin_in_the_past_do_not_ask_all_at_once() -> None:
    async def test() -> None:
        house = House("starknet", height=400)
        ears = [(await house.listen("starknet_subscribeNewHeads", [{"block_number": 1}]))[1] for _ in range(60)]
        await house.turn(40, loops=400)
        assert all(len(ear.heard) == 400 for ear in ears)
        assert house.chain.max_at_once <= (MAX_AT_ONCE + 1) * AHEAD
        house.feed.close()

    run(test)


def test_who_begins_with_the_newest_does_not_wait_for_those_with_a_long_way() -> None:
    async def test() -> None:
        house = House("starknet", height=1_000)
        for _ in range(2 * MAX_AT_ONCE):
            await house.listen("starknet_subscribeNewHeads", [{"block_number": 1}])
        _, ear = await house.listen("starknet_subscribeNewHeads", [])
        await house.turn(2, loops=150)
        assert hashes(ear.results(), "block_hash") == [house.chain.hash(1_000)]
        house.feed.close()

    run(test)


def test_past_is_told_as_fast_as_the_client_reads() -> None:
    async def test() -> None:
        house = House("starknet", height=200)
        _, ear = await house.listen("starknet_subscribeNewHeads", [{"block_number": 1}])
        ear.room = 20
        await house.turn(3)
        told = len(ear.heard)
        assert 20 <= told <= 20 + STRIDE
        await house.turn(3)
        assert len(ear.heard) == told
        ear.room = 1_000
        house.mine()
        await house.turn(6)
        assert hashes(ear.results(), "block_hash") == house.chain.hashes(1)
        house.feed.close()

    run(test)


def test_client_that_does_not_read_the_past_is_given_up_in_the_end() -> None:
    async def test() -> None:
        house = House("starknet", height=30)
        _, ear = await house.listen("starknet_subscribeNewHeads", [{"block_number": 1}])
        ear.room = 0
        await house.turn()
        # Others keep up.
        await house.listen("starknet_subscribeNewTransactions", [])
        for _ in range(2):
            house.mine(1_000)
            await house.turn(3, loops=3_000)
        assert ear.lost == []
        house.mine(1_000)
        await house.turn(3, loops=3_000)
        why = ear.lost[0]
        assert "subscribe again" in why
        house.feed.close()

    run(test)


def test_blocks_of_the_past_count_against_the_limits_of_who_asks_for_them() -> None:
    def refuse(_: int) -> None:
        raise RateLimited

    async def test() -> None:
        house = House("starknet")
        house.mine(30)
        charged: list[int] = []
        past = [None, None, {"block_number": 20}]
        await house.listen("starknet_subscribeEvents", past, charge=charged.append)
        assert charged == [20]
        with pytest.raises(RateLimited):
            await house.listen("starknet_subscribeEvents", past, charge=refuse)
        await house.listen("starknet_subscribeEvents", [], charge=refuse)
        house.feed.close()

    run(test)
