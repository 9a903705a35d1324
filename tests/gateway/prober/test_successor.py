"""A prober that takes over the status of another: it cannot know what happened to the chain meanwhile."""

from __future__ import annotations

import asyncio

import pytest
from tests.gateway.prober.nodes import BASE, REFUSED, ProbedNetwork

from tollgate.core.health import NOTHING
from tollgate.shm import metrics


async def died(*words: str, finalized: int | None = 40) -> ProbedNetwork:
    """A prober that has published its chain."""
    network = ProbedNetwork(*words)
    network.nodes["a"].finalized = finalized
    await network.start()
    assert network.row.reorgs == 0, "the first start has no predecessor"
    return network


def counts(network: ProbedNetwork) -> tuple[int, int]:
    """Reorganisations and lost heads that operators see."""
    return network.counted(metrics.REORGS), network.counted(metrics.HEADS_LOST)


@pytest.mark.parametrize(
    ("word", "head"),
    [(BASE + "abc", 102), (BASE + "abcde", 104), (BASE + "xyz", 102), (BASE[:50] + "x" * 60, 109)],
)
async def test_a_successors_first_word_is_that_only_what_is_final_is_the_same(word: str, head: int) -> None:
    first = await died(BASE + "abc")
    second = first.successor(word)
    assert second.row.reorgs == 0, "nothing is known yet"
    await second.start()
    assert (second.row.head, second.row.finalized, second.reorgs) == (head, 40, (1, 40))
    assert counts(second) == (0, 0), "there may have been no reorganisation"
    await second.rounds(3)
    assert (second.row.head, second.reorgs) == (head, (1, 40)), "it is published once"


async def test_where_nothing_is_final_nothing_is_known_to_be_the_same() -> None:
    first = await died(BASE, finalized=None)
    second = await first.successor(BASE).start()
    assert (second.row.head, second.reorgs) == (99, (1, NOTHING))


async def test_tips_that_were_kept_end_with_the_first_word_though_the_head_has_the_same_number() -> None:
    first = await died(BASE + "abc")
    version = first.row.version
    second = first.successor(BASE + "xyz")
    assert second.row.version == version
    await second.start()
    assert second.row.version > version


async def test_after_its_first_word_a_successor_knows_the_depth_of_a_reorganisation() -> None:
    first = await died(BASE + "abc")
    second = await first.successor(BASE + "abc").start()
    second.nodes["a"].word = BASE + "axyz"
    await second.rounds()
    assert (second.row.head, second.reorgs, counts(second)) == (103, (2, 100), (1, 0))


async def test_each_successor_reports_it_anew() -> None:
    network = await died(BASE)
    for count in range(1, 4):
        network = await network.successor(BASE).start()
        assert network.reorgs == (count, 40)


async def test_a_successor_that_dies_before_its_first_word_leaves_it_to_the_next() -> None:
    first = await died(BASE + "abc")
    second = first.successor(BASE + "xyz")
    second.nodes["a"].fault = REFUSED
    await second.start()
    await second.rounds(3)
    assert second.row.reorgs == 0
    third = await second.successor(BASE + "xyz").start()
    assert third.reorgs == (1, 40)


# ---- what callers were shown


async def test_a_block_that_callers_were_shown_is_not_forgotten_with_the_prober() -> None:
    first = await died(BASE + "abc")
    first.row.observe_head(104)
    second = await first.successor(BASE + "abc").start()
    for _ in range(4):
        await second.rounds()
        assert (second.row.floor, second.row.head, second.row.reorgs) == (104, 102, 0)
    second.nodes["a"].word = BASE + "abcde"
    await second.rounds()
    assert (second.row.floor, second.row.head, second.reorgs) == (104, 104, (1, 40))
    assert counts(second) == (0, 0)


async def test_a_served_block_that_no_upstream_has_is_given_up_down_to_the_final_one() -> None:
    first = await died(BASE + "abc")
    first.row.observe_head(104)
    second = await first.successor(BASE + "xyz").start()
    await second.rounds(11)
    assert (second.row.floor, second.row.head, second.reorgs) == (102, 102, (1, 40))
    assert counts(second) == (0, 1)


async def test_a_successor_that_finds_only_who_is_behind_waits_before_it_gives_up() -> None:
    first = await died(BASE + "abc")
    second = await first.successor(BASE + "a").start()
    await second.rounds(9)
    assert (second.row.head, second.row.reorgs) == (102, 0)
    await second.rounds(2)
    assert (second.row.head, second.reorgs) == (100, (1, 40)), "block 100 may be another one"


async def test_a_chain_that_became_shorter_than_what_was_final_leaves_nothing_above_its_head() -> None:
    first = await died(BASE)
    second = await first.successor(BASE[:30]).start()
    await second.rounds(11)
    assert (second.row.head, second.row.finalized, second.reorgs) == (29, NOTHING, (1, 29))


async def test_a_quarrel_among_those_who_are_behind_lowers_no_head() -> None:
    first = await died(BASE + "abcdef")
    second = await first.successor(BASE + "xyz", BASE + "ab", BASE + "ab").start()
    await second.rounds(2)
    assert (second.row.head, second.row.reorgs) == (105, 0)
    for name in "bc":
        second.nodes[name].word = BASE + "abcdefg"
    await second.rounds(3)
    assert (second.row.head, second.reorgs, second.states) == (106, (1, 40), "forked up up")
    assert counts(second) == (0, 0)


# ---- states


async def test_published_status_holds_until_the_successor_has_probed() -> None:
    first = ProbedNetwork(BASE, BASE, BASE)
    first.nodes["b"].chain_id, first.nodes["c"].fault = "0x2", REFUSED
    await first.start()
    assert first.states == "up wrong_chain down"
    second = first.successor(BASE, BASE, BASE)
    second.nodes["b"].gate = asyncio.Event()
    await second.start()
    assert second.states == "up wrong_chain down"
    await second.rounds(2)
    assert second.states == "up wrong_chain up"


async def test_who_is_on_the_wrong_chain_stays_out_though_it_answers_a_successor_first() -> None:
    first = ProbedNetwork(BASE, BASE, BASE)
    first.nodes["a"].chain_id = "0x2"
    await first.start()
    assert first.states == "wrong_chain up up"
    second = first.successor(BASE + "abc", BASE, BASE)
    second.nodes["a"].chain_id = "0x2"
    gates = [asyncio.Event(), asyncio.Event()]
    second.nodes["b"].gate, second.nodes["c"].gate = gates
    await second.start()
    assert (second.states, second.row.head, second.monitor.warm) == ("wrong_chain up up", 99, False)
    gates[0].set()
    await second.tick()
    assert second.states == "wrong_chain up up"
    gates[1].set()
    await second.tick()
    assert (second.states, second.row.head, second.monitor.warm) == ("wrong_chain up up", 99, True)
