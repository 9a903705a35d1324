"""The chain of a network that has gaps, is replaced, goes back, or is not the same for everybody."""

from __future__ import annotations

from tests.gateway.prober.nodes import BASE, ProbedNetwork

from tollgate.core.health import NOTHING
from tollgate.shm import metrics


async def test_a_gap_is_filled_before_the_head_is_reported() -> None:
    network = await ProbedNetwork(BASE).start()
    network.nodes["a"].fetched.clear()
    network.nodes["a"].word += "abcdef"
    await network.rounds()
    assert (network.row.head, network.reorgs) == (105, (0, None))
    assert sorted(network.nodes["a"].fetched) == [100, 101, 102, 103, 104]


async def test_a_jump_that_is_too_wide_to_be_filled_is_checked_at_the_old_head() -> None:
    network = await ProbedNetwork(BASE).start()
    network.nodes["a"].fetched.clear()
    network.nodes["a"].word += "a" * 500
    await network.rounds()
    assert (network.row.head, network.reorgs) == (599, (0, None))
    assert len(network.nodes["a"].fetched) == 2
    network.nodes["a"].word = BASE + "a" * 400 + "x" * 300
    await network.rounds()
    assert (network.row.head, network.reorgs[0]) == (799, 1)


async def test_blocks_that_do_not_belong_to_the_head_are_not_fetched_without_an_end() -> None:
    network = await ProbedNetwork(BASE, BASE, BASE).start()
    liar = network.nodes["a"]
    liar.fetched.clear()
    liar.word, liar.shows = BASE + "x" * 20, BASE + "y" * 20
    await network.rounds(20)
    assert len(liar.fetched) <= 3 * 20, "three times what is missing"
    assert (network.row.head, network.states) == (99, "forked up up")
    liar.word, liar.shows = BASE, None
    await network.rounds(20)
    assert network.states == "up up up"


async def test_another_block_at_the_tip_of_the_only_upstream_is_a_reorganisation_at_once() -> None:
    network = await ProbedNetwork(BASE + "abc").start()
    version = network.row.version
    network.nodes["a"].word = BASE + "axy"
    await network.rounds()
    assert (network.row.head, network.reorgs, network.states) == (102, (1, 100), "up")
    assert network.row.version == version + 2, "for the reorganisation, and again for the new head"
    assert network.counted(metrics.REORGS) == 1


async def test_a_deeper_and_longer_branch_is_followed_with_its_ancestor() -> None:
    network = await ProbedNetwork(BASE + "abcdef").start()
    network.nodes["a"].word = BASE + "ab" + "xxxxxxxxxx"
    await network.rounds()
    assert (network.row.head, network.reorgs) == (111, (1, 101))


async def test_a_reorganisation_that_is_deeper_than_anything_known_leaves_what_is_final() -> None:
    network = ProbedNetwork(BASE)
    network.nodes["a"].finalized = 3
    await network.start()
    network.nodes["a"].word = "gg" + "x" * 98
    await network.rounds()
    assert (network.row.head, network.reorgs, network.row.finalized) == (99, (1, 3), 3)


async def test_a_reorganisation_that_is_deeper_than_anything_known_shows_that_nothing_there_was_final() -> None:
    network = ProbedNetwork(BASE)
    network.nodes["a"].finalized = 95
    await network.start()
    assert network.monitor._following._canonical.lowest == 91
    network.nodes["a"].word = "gg" + "x" * 98
    await network.rounds()
    assert (network.row.head, network.reorgs, network.row.finalized) == (99, (1, 90), NOTHING)


async def test_what_is_final_stays_so_through_a_reorganisation_that_leaves_it_in_place() -> None:
    network = ProbedNetwork(BASE + "abcdef")
    network.nodes["a"].finalized = 101
    await network.start()
    published: list[int] = []
    publish = network.row.publish

    def note(head: int, finalized: int, *, changed: bool) -> None:
        published.append(finalized)
        publish(head, finalized, changed=changed)

    network.row.publish = note  # type: ignore[method-assign]
    network.nodes["a"].word = BASE + "abxyz"
    await network.rounds()
    assert (network.reorgs, set(published)) == ((1, 101), {101})


async def test_two_of_three_are_followed_while_the_third_cannot_be_compared_yet() -> None:
    network = await ProbedNetwork(BASE + "a", BASE + "a", BASE + "a").start()
    network.nodes["a"].word, network.nodes["a"].hides = BASE + "abcdef", range(100, 110)
    network.nodes["b"].word = network.nodes["c"].word = BASE + "x"
    await network.rounds()
    assert (network.row.head, network.reorgs) == (100, (1, 99))


async def test_one_that_disagrees_is_counted_by_its_own_answers() -> None:
    network = await ProbedNetwork(BASE + "a", BASE + "a", BASE + "a").start()
    network.nodes["c"].word = BASE + "x"
    await network.rounds()
    for _ in range(5):
        network.monitor._settle(network["a"])
    assert network["c"].sight.disagreements == 1
    network.monitor._settle(network["c"])
    assert network["c"].sight.disagreements == 2


async def test_a_shorter_chain_of_the_only_upstream_is_a_reorganisation_within_a_moment() -> None:
    network = await ProbedNetwork(BASE + "abcdef").start()
    version = network.row.version
    network.nodes["a"].word = BASE + "ab"
    await network.rounds()
    assert network.row.reorgs == 0
    await network.tick(0.05)
    await network.tick(0.05)
    assert (network.row.head, network.reorgs, network.states) == (101, (1, 101), "up")
    assert network.row.version == version + 2, "for what is gone, and again for the head that is left"
    assert network.upstream_row("a").head == 101
    assert (network.counted(metrics.REORGS), network.counted(metrics.HEADS_LOST)) == (1, 0)
    network.nodes["a"].word += "x"
    await network.rounds()
    assert (network.row.head, network.reorgs[0]) == (102, 1)


async def test_a_chain_that_went_back_below_what_was_final_must_show_anew_what_is() -> None:
    network = ProbedNetwork(BASE + "abcdef")
    network.nodes["a"].finalized = 103
    await network.start()
    assert network.row.finalized == 103
    network.nodes["a"].word = BASE + "abx"
    network.nodes["a"].finalized = 90
    await network.rounds()
    assert (network.row.head, network.row.finalized) == (102, NOTHING)
    await network.rounds(4)
    assert network.row.finalized == 90


async def test_who_went_back_once_is_not_believed_sooner_the_next_time() -> None:
    network = await ProbedNetwork(BASE + "abcdef").start()
    network.nodes["a"].word = BASE + "a"
    await network.rounds(3)
    assert network.reorgs == (1, 100)
    network.nodes["a"].word = BASE + "ab"
    await network.rounds()
    network.nodes["a"].word = BASE + "a"
    await network.rounds()
    assert (network.row.head, network.reorgs) == (101, (1, 100))


async def test_a_service_that_goes_back_for_one_answer_is_not_believed() -> None:
    network = await ProbedNetwork(BASE + "a").start()
    for _ in range(5):
        network.nodes["a"].word = BASE
        await network.rounds()
        network.nodes["a"].word = BASE + "a"
        await network.tick(0.05)
    assert (network.row.head, network.reorgs) == (100, (0, None))


async def test_a_shorter_and_different_chain_of_the_only_upstream_is_a_reorganisation_at_once() -> None:
    network = await ProbedNetwork(BASE + "abcdef").start()
    network.nodes["a"].word = BASE + "abx"
    await network.rounds()
    assert (network.row.head, network.reorgs) == (102, (1, 101))


async def test_a_short_disagreement_at_the_tip_is_waited_out() -> None:
    network = await ProbedNetwork(BASE + "a", BASE + "a").start()
    network.nodes["b"].word = BASE + "xy"
    await network.rounds()
    assert (network.row.head, network.reorgs, network.states) == (100, (0, None), "up up")
    network.nodes["a"].word = BASE + "xy"
    await network.rounds()
    assert (network.row.head, network.reorgs, network.states) == (101, (1, 99), "up up")


async def test_forked_after_more_than_two_probes_and_back() -> None:
    network = await ProbedNetwork(BASE + "a", BASE + "a", BASE + "a").start()
    network.nodes["c"].word = BASE + "x"
    await network.rounds(2)
    assert network.states == "up up up"
    await network.rounds()
    assert network.states == "up up forked"
    for each in "abc":
        network.nodes[each].word += "bcdefgh"
    await network.rounds(2)
    assert (network.states, network.row.head, network.reorgs) == ("up up forked", 107, (0, None))
    network.nodes["c"].word = network.nodes["a"].word
    await network.rounds()
    assert network.states == "up up up"


async def test_the_majority_decides_which_side_is_forked() -> None:
    network = await ProbedNetwork(BASE + "a", BASE + "a", BASE + "a").start()
    network.nodes["b"].word = network.nodes["c"].word = BASE + "xy"
    await network.rounds()
    assert (network.row.head, network.reorgs) == (101, (1, 99))
    await network.rounds(3)
    assert network.states == "forked up up"


async def test_who_is_stuck_on_an_orphan_does_not_hold_up_the_network() -> None:
    network = await ProbedNetwork(BASE + "a", BASE + "a").start()
    network.nodes["b"].word = BASE + "xx"
    await network.rounds(4)
    assert (network.row.head, network.states) == (100, "up forked")
    network.nodes["b"].word += "xx"
    await network.rounds(4)
    assert (network.row.head, network.reorgs, network.states) == (103, (1, 99), "forked up")


async def test_an_upstream_that_hides_its_blocks_is_followed_when_there_is_no_other() -> None:
    network = await ProbedNetwork(BASE).start()
    network.nodes["a"].word += "abcdef"
    network.nodes["a"].hides = range(100, 105)
    await network.rounds()
    assert network.row.head == 99
    await network.rounds(3)
    assert (network.row.head, network.reorgs[0]) == (105, 1)
    network.nodes["a"].hides = None
    network.nodes["a"].word += "abcdef"
    await network.rounds()
    assert (network.row.head, network.reorgs[0]) == (111, 1), "it is called for its blocks again"
