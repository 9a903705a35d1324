"""A chain that grows and forks at random, behind nodes that fail and lag: what listeners see is one chain."""

from collections.abc import Iterator
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from tests.gateway.feeds.scripted_chain import FeedSetup, RecordingSink

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

    def __init__(self, setup: FeedSetup, days: list[str]) -> None:
        self._days: Iterator[str] = iter(days)
        self._today = "well"
        self._chain = setup.chain
        self._older = list(setup.chain.scripted_chain)
        setup.chain.fail = self.fails
        setup.chain.older = self.older

    def fails(self, _: NodeCall) -> bool:
        self._today = next(self._days, "well")
        return self._today == "fails"

    def older(self, _: NodeCall) -> list[int] | None:
        if self._today == "behind":
            return self._chain.scripted_chain[:-1]
        if self._today == "old fork":
            return self._older
        self._older = list(self._chain.scripted_chain)
        return None


async def play(
    family: str, script: list[Move], days: list[str], subscriptions: list[tuple[str, list[Any]]]
) -> Any:
    """Play a script to its end in fair weather; return who still listens, and what it has received."""
    setup = FeedSetup(family, 25)
    weather = Weather(setup, days)
    listening = []
    highest = setup.chain.height
    for move, first, second in [("join", 0, 0), *script]:
        if move == "mine":
            setup.mine(first)
        elif move == "reorganise":
            setup.reorganise(first, second)
        elif move == "turn":
            await setup.turn(first, second)
        elif move == "join":
            method, params = subscriptions[first % len(subscriptions)]
            begins = None
            if family == "starknet" and second:
                begins = max(0, setup.chain.height - second)
                params = [*params, {"block_number": begins}]
            setup.chain.fail = lambda _: False
            listening.append((*await setup.listen(method, params), begins, method, params))
            setup.chain.fail = weather.fails
        highest = max(highest, setup.chain.height)
        if move == "leave" and listening:
            subscriber = listening.pop(first % len(listening))[0]
            setup.feed.leave(subscriber)
    setup.chain.fail = lambda _: False
    setup.chain.older = lambda _: None
    # A chain that is shorter than what was reported of it reports nothing new until it has grown again.
    setup.mine(highest + 1 - setup.chain.height)
    await setup.turn(20, 60)
    setup.feed.close()
    return setup, listening


def fold(sink: RecordingSink, begins: int | None) -> list[tuple[int, str]]:
    """The chain that a listener to heads has in the end, checked on the way."""
    canonical: list[tuple[int, str]] = []
    for message in sink.received:
        head = message["params"]["result"]
        if message["method"] == "starknet_subscriptionReorg":
            assert canonical[-1] == (head["ending_block_number"], head["ending_block_hash"])
            while canonical and canonical[-1][0] >= head["starting_block_number"]:
                last = canonical.pop()
            assert last[1] == head["starting_block_hash"]
            continue
        if "block_number" in head:
            number, own, parent = head["block_number"], head["block_hash"], head["parent_hash"]
        else:
            number, own, parent = int(head["number"], 16), head["hash"], head["parentHash"]
            while canonical and canonical[-1][0] >= number:
                canonical.pop()
        if canonical:
            assert canonical[-1] == (number - 1, parent), "a gap, a double or a wrong order"
        elif begins is not None:
            assert number <= begins
        canonical.append((number, own))
    return canonical


@given(moves, weathers)
async def test_heads_and_logs_are_those_of_one_chain_without_gap_or_double(
    script: list[Move], days: list[str]
) -> None:
    kinds = [("eth_subscribe", ["newHeads"]), ("eth_subscribe", ["logs"])]
    setup, listening = await play("eth", script, days, kinds)
    for subscriber, sink, _, _, params in listening:
        assert not sink.lost
        first = subscriber.since + 1
        canonical = (
            logs(sink) if params == ["logs"] else [own for number, own in fold(sink, None) if number >= first]
        )
        assert canonical == setup.chain.hashes(first)


def logs(sink: RecordingSink) -> list[str]:
    """The blocks whose logs a listener has in the end; there are two in each."""
    canonical: list[tuple[str, str]] = []
    for log in sink.results():
        key = (log["blockHash"], log["logIndex"])
        if log["removed"]:
            canonical.remove(key)
        else:
            assert key not in canonical
            canonical.append(key)
    blocks = [block for block, index in canonical if index == "0x0"]
    assert canonical == [(block, hex(at)) for block in blocks for at in range(2)]
    return blocks


@given(moves, weathers)
@example([("mine", 1, 0), ("turn", 1, 1), ("turn", 1, 8), ("reorganise", 2, 0)], [])
async def test_starknet_heads_and_events_follow_reorganisations(script: list[Move], days: list[str]) -> None:
    setup, listening = await play(
        "starknet",
        script,
        days,
        [("starknet_subscribeNewHeads", []), ("starknet_subscribeEvents", ["0x1", None])],
    )
    for subscriber, sink, begins, method, _ in listening:
        if sink.lost:
            # Only a reorganisation below what is kept, and a start in the past, may end so.
            assert begins is not None
            continue
        first = subscriber.since + 1
        if method == "starknet_subscribeNewHeads":
            canonical = [own for number, own in fold(sink, begins) if number >= first]
        else:
            canonical = events(sink)
        assert canonical == setup.chain.hashes(first)


def events(sink: RecordingSink) -> list[str]:
    """The blocks whose events a listener has in the end; it listens to one event a block."""
    canonical: list[str] = []
    for message in sink.received:
        result = message["params"]["result"]
        if message["method"] == "starknet_subscriptionReorg":
            assert canonical[-1] == result["ending_block_hash"]
            canonical = canonical[: canonical.index(result["starting_block_hash"])]
        else:
            assert result["block_hash"] not in canonical
            canonical.append(result["block_hash"])
    return canonical
