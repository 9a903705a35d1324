"""The chain of a network that has gaps, is replaced, goes back, or is not the same for everybody."""

from __future__ import annotations

from tests.gateway.prober.nodes import BASE, Scene

from tollgate.core.health import NOTHING
from tollgate.shm import metrics


async def test_a_gap_is_filled_before_the_head_is_reported() -> None:
    scene = await Scene(BASE).start()
    scene.nodes["a"].fetched.clear()
    scene.nodes["a"].word += "abcdef"
    await scene.rounds()
    assert (scene.row.head, scene.reorgs) == (105, (0, None))
    assert sorted(scene.nodes["a"].fetched) == [100, 101, 102, 103, 104]


async def test_a_jump_that_is_too_wide_to_be_filled_is_checked_at_the_old_head() -> None:
    scene = await Scene(BASE).start()
    scene.nodes["a"].fetched.clear()
    scene.nodes["a"].word += "a" * 500
    await scene.rounds()
    assert (scene.row.head, scene.reorgs) == (599, (0, None))
    assert len(scene.nodes["a"].fetched) == 2
    scene.nodes["a"].word = BASE + "a" * 400 + "x" * 300
    await scene.rounds()
    assert (scene.row.head, scene.reorgs[0]) == (799, 1)


async def test_blocks_that_do_not_belong_to_the_head_are_not_fetched_without_an_end() -> None:
    scene = await Scene(BASE, BASE, BASE).start()
    liar = scene.nodes["a"]
    liar.fetched.clear()
    liar.word, liar.shows = BASE + "x" * 20, BASE + "y" * 20
    await scene.rounds(20)
    assert len(liar.fetched) <= 3 * 20, "three times what is missing"
    assert (scene.row.head, scene.states) == (99, "forked up up")
    liar.word, liar.shows = BASE, None
    await scene.rounds(20)
    assert scene.states == "up up up"


async def test_another_block_at_the_tip_of_the_only_upstream_is_a_reorganisation_at_once() -> None:
    scene = await Scene(BASE + "abc").start()
    version = scene.row.version
    scene.nodes["a"].word = BASE + "axy"
    await scene.rounds()
    assert (scene.row.head, scene.reorgs, scene.states) == (102, (1, 100), "up")
    assert scene.row.version == version + 2, "for the reorganisation, and again for the new head"
    assert scene.counted(metrics.REORGS) == 1


async def test_a_deeper_and_longer_branch_is_followed_with_its_ancestor() -> None:
    scene = await Scene(BASE + "abcdef").start()
    scene.nodes["a"].word = BASE + "ab" + "xxxxxxxxxx"
    await scene.rounds()
    assert (scene.row.head, scene.reorgs) == (111, (1, 101))


async def test_a_reorganisation_that_is_deeper_than_anything_known_leaves_what_is_final() -> None:
    scene = Scene(BASE)
    scene.nodes["a"].finalized = 3
    await scene.start()
    scene.nodes["a"].word = "gg" + "x" * 98
    await scene.rounds()
    assert (scene.row.head, scene.reorgs, scene.row.finalized) == (99, (1, 3), 3)


async def test_a_reorganisation_that_is_deeper_than_anything_known_shows_that_nothing_there_was_final() -> None:
    scene = Scene(BASE)
    scene.nodes["a"].finalized = 95
    await scene.start()
    assert scene.watch._following._canonical.lowest == 91
    scene.nodes["a"].word = "gg" + "x" * 98
    await scene.rounds()
    assert (scene.row.head, scene.reorgs, scene.row.finalized) == (99, (1, 90), NOTHING)


async def test_what_is_final_stays_so_through_a_reorganisation_that_leaves_it_in_place() -> None:
    scene = Scene(BASE + "abcdef")
    scene.nodes["a"].finalized = 101
    await scene.start()
    published: list[int] = []
    publish = scene.row.publish

    def note(head: int, finalized: int, *, changed: bool) -> None:
        published.append(finalized)
        publish(head, finalized, changed=changed)

    scene.row.publish = note  # type: ignore[method-assign]
    scene.nodes["a"].word = BASE + "abxyz"
    await scene.rounds()
    assert (scene.reorgs, set(published)) == ((1, 101), {101})


async def test_two_of_three_are_followed_while_the_third_cannot_be_compared_yet() -> None:
    scene = await Scene(BASE + "a", BASE + "a", BASE + "a").start()
    scene.nodes["a"].word, scene.nodes["a"].hides = BASE + "abcdef", range(100, 110)
    scene.nodes["b"].word = scene.nodes["c"].word = BASE + "x"
    await scene.rounds()
    assert (scene.row.head, scene.reorgs) == (100, (1, 99))


async def test_one_that_disagrees_is_counted_by_its_own_answers() -> None:
    scene = await Scene(BASE + "a", BASE + "a", BASE + "a").start()
    scene.nodes["c"].word = BASE + "x"
    await scene.rounds()
    for _ in range(5):
        scene.watch._settle(scene["a"])
    assert scene["c"].sight.disagreements == 1
    scene.watch._settle(scene["c"])
    assert scene["c"].sight.disagreements == 2


async def test_a_shorter_chain_of_the_only_upstream_is_a_reorganisation_within_a_moment() -> None:
    scene = await Scene(BASE + "abcdef").start()
    version = scene.row.version
    scene.nodes["a"].word = BASE + "ab"
    await scene.rounds()
    assert scene.row.reorgs == 0
    await scene.tick(0.05)
    await scene.tick(0.05)
    assert (scene.row.head, scene.reorgs, scene.states) == (101, (1, 101), "up")
    assert scene.row.version == version + 2, "for what is gone, and again for the head that is left"
    assert scene.upstream_row("a").head == 101
    assert (scene.counted(metrics.REORGS), scene.counted(metrics.HEADS_LOST)) == (1, 0)
    scene.nodes["a"].word += "x"
    await scene.rounds()
    assert (scene.row.head, scene.reorgs[0]) == (102, 1)


async def test_a_chain_that_went_back_below_what_was_final_must_show_anew_what_is() -> None:
    scene = Scene(BASE + "abcdef")
    scene.nodes["a"].finalized = 103
    await scene.start()
    assert scene.row.finalized == 103
    scene.nodes["a"].word = BASE + "abx"
    scene.nodes["a"].finalized = 90
    await scene.rounds()
    assert (scene.row.head, scene.row.finalized) == (102, NOTHING)
    await scene.rounds(4)
    assert scene.row.finalized == 90


async def test_who_went_back_once_is_not_believed_sooner_the_next_time() -> None:
    scene = await Scene(BASE + "abcdef").start()
    scene.nodes["a"].word = BASE + "a"
    await scene.rounds(3)
    assert scene.reorgs == (1, 100)
    scene.nodes["a"].word = BASE + "ab"
    await scene.rounds()
    scene.nodes["a"].word = BASE + "a"
    await scene.rounds()
    assert (scene.row.head, scene.reorgs) == (101, (1, 100))


async def test_a_service_that_goes_back_for_one_answer_is_not_believed() -> None:
    scene = await Scene(BASE + "a").start()
    for _ in range(5):
        scene.nodes["a"].word = BASE
        await scene.rounds()
        scene.nodes["a"].word = BASE + "a"
        await scene.tick(0.05)
    assert (scene.row.head, scene.reorgs) == (100, (0, None))


async def test_a_shorter_and_different_chain_of_the_only_upstream_is_a_reorganisation_at_once() -> None:
    scene = await Scene(BASE + "abcdef").start()
    scene.nodes["a"].word = BASE + "abx"
    await scene.rounds()
    assert (scene.row.head, scene.reorgs) == (102, (1, 101))


async def test_a_short_disagreement_at_the_tip_is_waited_out() -> None:
    scene = await Scene(BASE + "a", BASE + "a").start()
    scene.nodes["b"].word = BASE + "xy"
    await scene.rounds()
    assert (scene.row.head, scene.reorgs, scene.states) == (100, (0, None), "up up")
    scene.nodes["a"].word = BASE + "xy"
    await scene.rounds()
    assert (scene.row.head, scene.reorgs, scene.states) == (101, (1, 99), "up up")


async def test_forked_after_more_than_two_probes_and_back() -> None:
    scene = await Scene(BASE + "a", BASE + "a", BASE + "a").start()
    scene.nodes["c"].word = BASE + "x"
    await scene.rounds(2)
    assert scene.states == "up up up"
    await scene.rounds()
    assert scene.states == "up up forked"
    for each in "abc":
        scene.nodes[each].word += "bcdefgh"
    await scene.rounds(2)
    assert (scene.states, scene.row.head, scene.reorgs) == ("up up forked", 107, (0, None))
    scene.nodes["c"].word = scene.nodes["a"].word
    await scene.rounds()
    assert scene.states == "up up up"


async def test_the_majority_decides_which_side_is_forked() -> None:
    scene = await Scene(BASE + "a", BASE + "a", BASE + "a").start()
    scene.nodes["b"].word = scene.nodes["c"].word = BASE + "xy"
    await scene.rounds()
    assert (scene.row.head, scene.reorgs) == (101, (1, 99))
    await scene.rounds(3)
    assert scene.states == "forked up up"


async def test_who_is_stuck_on_an_orphan_does_not_hold_up_the_network() -> None:
    scene = await Scene(BASE + "a", BASE + "a").start()
    scene.nodes["b"].word = BASE + "xx"
    await scene.rounds(4)
    assert (scene.row.head, scene.states) == (100, "up forked")
    scene.nodes["b"].word += "xx"
    await scene.rounds(4)
    assert (scene.row.head, scene.reorgs, scene.states) == (103, (1, 99), "forked up")


async def test_an_upstream_that_hides_its_blocks_is_followed_when_there_is_no_other() -> None:
    scene = await Scene(BASE).start()
    scene.nodes["a"].word += "abcdef"
    scene.nodes["a"].hides = range(100, 105)
    await scene.rounds()
    assert scene.row.head == 99
    await scene.rounds(3)
    assert (scene.row.head, scene.reorgs[0]) == (105, 1)
    scene.nodes["a"].hides = None
    scene.nodes["a"].word += "abcdef"
    await scene.rounds()
    assert (scene.row.head, scene.reorgs[0]) == (111, 1), "it is called for its blocks again"
