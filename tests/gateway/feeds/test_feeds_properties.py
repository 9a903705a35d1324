"""A chain that grows and forks at random, behind nodes that fail and lag: what listeners see is one chain."""

from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.gateway.feeds.forks import Ear, House

from tollgate.chains.heads import NodeCall

Move = tuple[str, int, int]
moves = st.lists(
    st.one_of(
        st.tuples(st.just("mine"), st.integers(1, 12), st.just(0)),
        st.tuples(st.just("reorganise"), st.integers(1, 6), st.integers(0, 7)),
        # Few turns of the loop leave the feed in the midst of its work.
        st.tuples(st.just("turn"), st.integers(1, 3), st.sampled_from([1, 2, 3, 5, 8, 13, 150])),
        st.tuples(st.just("join"), st.integers(0, 1), st.integers(0, 20)),
        st.tuples(st.just("leave"), st.integers(0, 5), st.just(0)),
    ),
    max_size=25,
)
weathers = st.lists(st.sampled_from(["well", "well", "well", "fails", "behind", "old fork"]), max_size=60)


class Weather:
    """How the next calls fare."""

    def __init__(self, house: House, days: list[str]) -> None:
        self._days: Iterator[str] = iter(days)
        self._today = "well"
        self._chain = house.chain
        self._older = list(house.chain.forks)
        house.chain.fail = self.fails
        house.chain.older = self.older

    def fails(self, _: NodeCall) -> bool:
        self._today = next(self._days, "well")
        return self._today == "fails"

    def older(self, _: NodeCall) -> list[int] | None:
        if self._today == "behind":
            return self._chain.forks[:-1]
        if self._today == "old fork":
            return self._older
        self._older = list(self._chain.forks)
        return None


async def play(
    family: str, script: list[Move], days: list[str], subscriptions: list[tuple[str, list[Any]]]
) -> Any:
    """Play a script to its end in fair weather; return who still listens, and what it has heard."""
    house = House(family, 25)
    weather = Weather(house, days)
    listening = []
    highest = house.chain.height
    for move, first, second in [("join", 0, 0), *script]:
        if move == "mine":
            house.mine(first)
        elif move == "reorganise":
            house.reorganise(first, second)
        elif move == "turn":
            await house.turn(first, second)
        elif move == "join":
            method, params = subscriptions[first % len(subscriptions)]
            begins = None
            if family == "starknet" and second:
                begins = max(0, house.chain.height - second)
                params = [*params, {"block_number": begins}]
            house.chain.fail = lambda _: False
            listening.append((*await house.listen(method, params), begins, method, params))
            house.chain.fail = weather.fails
        highest = max(highest, house.chain.height)
        if move == "leave" and listening:
            listener = listening.pop(first % len(listening))[0]
            house.feed.leave(listener)
    house.chain.fail = lambda _: False
    house.chain.older = lambda _: None
    # A chain that is shorter than what was told of it says nothing of that until it has grown again.
    house.mine(highest + 1 - house.chain.height)
    await house.turn(20, 60)
    house.feed.close()
    return house, listening


def fold(ear: Ear, begins: int | None) -> list[tuple[int, str]]:
    """The chain that a listener to heads has in the end, checked on the way."""
    stands: list[tuple[int, str]] = []
    for said in ear.heard:
        head = said["params"]["result"]
        if said["method"] == "starknet_subscriptionReorg":
            assert stands[-1] == (head["ending_block_number"], head["ending_block_hash"])
            while stands and stands[-1][0] >= head["starting_block_number"]:
                last = stands.pop()
            assert last[1] == head["starting_block_hash"]
            continue
        if "block_number" in head:
            number, own, parent = head["block_number"], head["block_hash"], head["parent_hash"]
        else:
            number, own, parent = int(head["number"], 16), head["hash"], head["parentHash"]
            while stands and stands[-1][0] >= number:
                stands.pop()
        if stands:
            assert stands[-1] == (number - 1, parent), "a gap, a double or a wrong order"
        elif begins is not None:
            assert number <= begins
        stands.append((number, own))
    return stands


@given(moves, weathers)
async def test_heads_and_logs_are_those_of_one_chain_without_gap_or_double(
    script: list[Move], days: list[str]
) -> None:
    kinds = [("eth_subscribe", ["newHeads"]), ("eth_subscribe", ["logs"])]
    house, listening = await play("eth", script, days, kinds)
    for listener, ear, _, _, params in listening:
        assert not ear.lost
        first = listener.since + 1
        stands = logs(ear) if params == ["logs"] else [own for number, own in fold(ear, None) if number >= first]
        assert stands == house.chain.hashes(first)


def logs(ear: Ear) -> list[str]:
    """The blocks whose logs a listener has in the end; there are two in each."""
    stands: list[tuple[str, str]] = []
    for log in ear.results():
        key = (log["blockHash"], log["logIndex"])
        if log["removed"]:
            stands.remove(key)
        else:
            assert key not in stands
            stands.append(key)
    blocks = [block for block, index in stands if index == "0x0"]
    assert stands == [(block, hex(at)) for block in blocks for at in range(2)]
    return blocks


@given(moves, weathers)
async def test_starknet_heads_and_events_follow_reorganisations(script: list[Move], days: list[str]) -> None:
    house, listening = await play(
        "starknet",
        script,
        days,
        [("starknet_subscribeNewHeads", []), ("starknet_subscribeEvents", ["0x1", None])],
    )
    for listener, ear, begins, method, _ in listening:
        if ear.lost:
            # Only a reorganisation below what is kept, and who began in the past, may end so.
            assert begins is not None
            continue
        first = listener.since + 1
        if method == "starknet_subscribeNewHeads":
            stands = [own for number, own in fold(ear, begins) if number >= first]
        else:
            stands = events(ear)
        assert stands == house.chain.hashes(first)


def events(ear: Ear) -> list[str]:
    """The blocks whose events a listener has in the end; it listens to one event a block."""
    stands: list[str] = []
    for said in ear.heard:
        result = said["params"]["result"]
        if said["method"] == "starknet_subscriptionReorg":
            assert stands[-1] == result["ending_block_hash"]
            stands = stands[: stands.index(result["starting_block_hash"])]
        else:
            assert result["block_hash"] not in stands
            stands.append(result["block_hash"])
    return stands
