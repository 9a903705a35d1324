"""One network under watch, with scripted nodes and a manual clock: states, heads, reorganisations."""

from __future__ import annotations

import asyncio

import pytest
from tests.gateway.fakes import run
from tests.gateway.probing.nodes import BROKEN, PROBE, REFUSED, Scene, block

from tollgate import metrics
from tollgate.board import NOTHING, Board, State

BASE = "g" * 100
"""Blocks 0 to 99."""


def test_first_heads_are_published_with_states_and_finality() -> None:
    async def it() -> None:
        scene = Scene(BASE, BASE + "a")
        scene.nodes["a"].finalized = 40
        await scene.start()
        assert scene.states == "up up"
        assert (scene.row.head, scene.row.finalized, scene.row.heard) == (100, 40, True)
        assert [scene.upstream_row(name).head for name in "ab"] == [99, 100]
        assert scene.reorgs == (0, None)
        assert scene.nodes["a"].timeout_seconds == 3.0

    run(it)


def test_nothing_is_published_before_everybody_was_asked() -> None:
    async def it() -> None:
        scene = Scene(BASE, BASE + "abc")
        scene.nodes["b"].gate = asyncio.Event()
        await scene.start()
        assert (scene.row.head, scene.watch.warm) == (NOTHING, False)
        scene.nodes["b"].gate.set()
        await scene.tick()
        assert (scene.row.head, scene.watch.warm) == (102, True)

    run(it)


def test_one_that_hangs_holds_up_the_start_for_a_second_and_then_nobody() -> None:
    async def it() -> None:
        scene = Scene(BASE, BASE)
        scene.nodes["b"].gate = asyncio.Event()
        await scene.start()
        await scene.rounds(2)
        assert (scene.row.head, scene.states) == (99, "up unknown")
        for _ in range(5):
            scene.nodes["a"].word += "a"
            await scene.rounds()
        assert scene.row.head == 104
        assert len(scene.nodes["b"].probes) == 1, "nobody is asked twice at once"

    run(it)


def test_each_new_head_changes_the_version_once() -> None:
    async def it() -> None:
        scene = await Scene(BASE, BASE).start()
        version = scene.row.version
        await scene.rounds(3)
        assert scene.row.version == version
        scene.nodes["a"].word += "a"
        await scene.rounds()
        scene.nodes["b"].word += "a"
        await scene.rounds(2)
        assert (scene.row.head, scene.row.version) == (100, version + 1)

    run(it)


# ---- states


def test_down_after_two_failures_in_a_row_and_up_after_one_answer() -> None:
    async def it() -> None:
        scene = await Scene(BASE, BASE).start()
        node = scene.nodes["b"]
        node.fault = BROKEN
        await scene.rounds()
        assert scene.states == "up up"
        node.fault = None
        await scene.rounds()
        node.fault = BROKEN
        await scene.rounds()
        assert scene.states == "up up", "not in a row"
        await scene.rounds()
        assert (scene.states, scene["b"].verdict.reason) == ("up down", "breaks off")
        node.fault = None
        await scene.rounds()
        assert scene.states == "up up"
        assert scene.counted(metrics.UPSTREAM_PROBES, "b", "failed") == 3

    run(it)


def test_down_after_one_refused_connection() -> None:
    async def it() -> None:
        scene = await Scene(BASE, BASE).start()
        scene.nodes["b"].fault = REFUSED
        await scene.rounds()
        assert (scene.states, scene["b"].verdict.reason) == ("up down", "refuses connections")

    run(it)


def test_chain_id_is_asked_at_the_start_every_minute_and_of_who_comes_back() -> None:
    async def it() -> None:
        scene = await Scene(BASE, BASE).start()
        await scene.rounds(119)
        asked = [index for index, wanted in enumerate(scene.nodes["a"].probes) if wanted.chain_id]
        assert asked == [0]
        await scene.rounds()
        assert scene.nodes["a"].probes[-1].chain_id
        node = scene.nodes["b"]
        node.fault, node.chain_id = REFUSED, "0x2"
        await scene.rounds(2)
        node.fault = None
        await scene.rounds()
        assert scene.states == "up wrong_chain", "never in rotation on another chain, not for one probe"
        assert scene["b"].verdict.reason == "reports chain id 0x2, not 0x1"

    run(it)


def test_chain_id_of_the_settings_counts_however_it_is_written() -> None:
    async def it() -> None:
        scene = Scene(BASE, BASE, chain_id="2")
        scene.nodes["b"].chain_id = "0x2"
        await scene.start()
        assert scene.states == "wrong_chain up"

    run(it)


def test_head_of_the_wrong_chain_is_not_the_networks() -> None:
    async def it() -> None:
        scene = Scene(BASE, BASE, "w" * 5_000, chain_id="0x1")
        scene.nodes["c"].chain_id = "0x2"
        await scene.start()
        await scene.rounds(2)
        assert (scene.states, scene.row.head, scene.reorgs) == ("up up wrong_chain", 99, (0, None))
        assert scene.nodes["c"].fetched == []

    run(it)


def test_an_upstream_that_does_not_know_its_chain_id_is_asked_again_now_and_then() -> None:
    async def it() -> None:
        scene = Scene(BASE)
        scene.nodes["a"].chain_id = None
        await scene.start()
        await scene.rounds(20)
        assert scene.states == "up"
        assert sum(wanted.chain_id for wanted in scene.nodes["a"].probes) == 3

    run(it)


def test_syncing_is_out_of_rotation_until_it_says_otherwise() -> None:
    async def it() -> None:
        scene = await Scene(BASE, BASE).start()
        scene.nodes["b"].syncing = True
        await scene.rounds(4)
        assert scene.states == "up syncing"
        scene.nodes["b"].syncing = False
        await scene.rounds()
        assert scene.states == "up up"

    run(it)


def test_lagging_and_back() -> None:
    async def it() -> None:
        scene = await Scene(BASE, BASE, lag_blocks=5).start()
        scene.nodes["a"].word += "abcdef"
        await scene.rounds(2)
        assert (scene.states, scene["b"].verdict.reason) == ("up lagging", "6 blocks behind")
        scene.nodes["b"].word += "a"
        await scene.rounds()
        assert scene.states == "up up"

    run(it)


def test_on_a_fast_chain_nobody_lags_who_was_asked_earlier() -> None:
    async def it() -> None:
        scene = await Scene(BASE, BASE, lag_blocks=0).start()
        scene.apply(scene.upstream("a", ws_url="ws://a"), scene.upstream("b"))
        (ear,) = scene.ears
        for _ in range(8):
            for _ in range(4):
                scene.clock.advance(PROBE / 4)
                scene.nodes["a"].word += "a"
                scene.nodes["b"].word += "a"
                ear.hear(block(scene.nodes["a"].word))
                assert scene.states == "up up"
            await scene.tick()
        assert scene.states == "up up"

    run(it)


def test_finality_is_asked_in_every_fourth_probe_and_never_goes_back() -> None:
    async def it() -> None:
        scene = Scene(BASE, BASE)
        scene.nodes["a"].finalized, scene.nodes["b"].finalized = 10, 20
        await scene.start()
        await scene.rounds(7)
        assert sum(wanted.finalized for wanted in scene.nodes["a"].probes) == 2
        assert scene.row.finalized == 20
        scene.nodes["b"].fault = REFUSED
        scene.nodes["a"].finalized = 15
        await scene.rounds(8)
        assert scene.row.finalized == 20

    run(it)


def test_finality_above_the_head_is_the_head() -> None:
    async def it() -> None:
        scene = Scene(BASE)
        scene.nodes["a"].finalized = 5_000
        await scene.start()
        assert scene.row.finalized == 99

    run(it)


def test_a_family_that_cannot_be_asked_is_left_alone() -> None:
    async def it() -> None:
        scene = await Scene(BASE, family="other").start()
        await scene.rounds(3)
        assert (scene.states, scene.watch.warm, scene.row.head) == ("unknown", True, NOTHING)
        assert scene.nodes["a"].probes == []
        assert scene["a"].verdict.reason == "its family cannot be probed"

    run(it)


# ---- gaps and reorganisations


def test_a_gap_is_filled_before_the_head_is_told() -> None:
    async def it() -> None:
        scene = await Scene(BASE).start()
        scene.nodes["a"].fetched.clear()
        scene.nodes["a"].word += "abcdef"
        await scene.rounds()
        assert (scene.row.head, scene.reorgs) == (105, (0, None))
        assert sorted(scene.nodes["a"].fetched) == [100, 101, 102, 103, 104]

    run(it)


def test_a_jump_that_is_too_wide_to_be_filled_is_checked_at_the_old_head() -> None:
    async def it() -> None:
        scene = await Scene(BASE).start()
        scene.nodes["a"].fetched.clear()
        scene.nodes["a"].word += "a" * 500
        await scene.rounds()
        assert (scene.row.head, scene.reorgs) == (599, (0, None))
        assert len(scene.nodes["a"].fetched) == 2
        scene.nodes["a"].word = BASE + "a" * 400 + "x" * 300
        await scene.rounds()
        assert (scene.row.head, scene.reorgs[0]) == (799, 1)

    run(it)


def test_another_block_at_the_tip_of_the_only_upstream_is_a_reorganisation_at_once() -> None:
    async def it() -> None:
        scene = await Scene(BASE + "abc").start()
        version = scene.row.version
        scene.nodes["a"].word = BASE + "axy"
        await scene.rounds()
        assert (scene.row.head, scene.reorgs, scene.states) == (102, (1, 100), "up")
        assert scene.row.version > version
        assert scene.counted(metrics.REORGS) == 1

    run(it)


def test_a_deeper_and_longer_branch_is_followed_with_its_ancestor() -> None:
    async def it() -> None:
        scene = await Scene(BASE + "abcdef").start()
        scene.nodes["a"].word = BASE + "ab" + "xxxxxxxxxx"
        await scene.rounds()
        assert (scene.row.head, scene.reorgs) == (111, (1, 101))

    run(it)


def test_a_reorganisation_that_is_deeper_than_anything_known_leaves_what_is_final() -> None:
    async def it() -> None:
        scene = Scene(BASE)
        scene.nodes["a"].finalized = 3
        await scene.start()
        scene.nodes["a"].word = "gg" + "x" * 98
        await scene.rounds()
        assert (scene.row.head, scene.reorgs, scene.row.finalized) == (99, (1, 3), 3)

    run(it)


def test_a_shorter_chain_of_the_only_upstream_is_a_reorganisation_within_a_moment() -> None:
    async def it() -> None:
        scene = await Scene(BASE + "abcdef").start()
        scene.nodes["a"].word = BASE + "ab"
        await scene.rounds()
        assert scene.row.reorgs == 0
        await scene.tick(0.05)
        await scene.tick(0.05)
        assert (scene.row.head, scene.reorgs, scene.states) == (101, (1, 101), "up")
        assert scene.upstream_row("a").head == 101
        assert (scene.counted(metrics.REORGS), scene.counted(metrics.HEADS_LOST)) == (1, 0)
        scene.nodes["a"].word += "x"
        await scene.rounds()
        assert (scene.row.head, scene.reorgs[0]) == (102, 1)

    run(it)


def test_a_chain_that_went_back_below_what_was_final_must_say_anew_what_is() -> None:
    async def it() -> None:
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

    run(it)


def test_who_went_back_once_is_not_believed_sooner_the_next_time() -> None:
    async def it() -> None:
        scene = await Scene(BASE + "abcdef").start()
        scene.nodes["a"].word = BASE + "a"
        await scene.rounds(3)
        assert scene.reorgs == (1, 100)
        scene.nodes["a"].word = BASE + "ab"
        await scene.rounds()
        scene.nodes["a"].word = BASE + "a"
        await scene.rounds()
        assert (scene.row.head, scene.reorgs) == (101, (1, 100))

    run(it)


def test_a_service_that_goes_back_for_one_answer_is_not_believed() -> None:
    async def it() -> None:
        scene = await Scene(BASE + "a").start()
        for _ in range(5):
            scene.nodes["a"].word = BASE
            await scene.rounds()
            scene.nodes["a"].word = BASE + "a"
            await scene.tick(0.05)
        assert (scene.row.head, scene.reorgs) == (100, (0, None))

    run(it)


def test_a_shorter_and_different_chain_of_the_only_upstream_is_a_reorganisation_at_once() -> None:
    async def it() -> None:
        scene = await Scene(BASE + "abcdef").start()
        scene.nodes["a"].word = BASE + "abx"
        await scene.rounds()
        assert (scene.row.head, scene.reorgs) == (102, (1, 101))

    run(it)


def test_a_short_disagreement_at_the_tip_is_waited_out() -> None:
    async def it() -> None:
        scene = await Scene(BASE + "a", BASE + "a").start()
        scene.nodes["b"].word = BASE + "xy"
        await scene.rounds()
        assert (scene.row.head, scene.reorgs, scene.states) == (100, (0, None), "up up")
        scene.nodes["a"].word = BASE + "xy"
        await scene.rounds()
        assert (scene.row.head, scene.reorgs, scene.states) == (101, (1, 99), "up up")

    run(it)


def test_forked_after_more_than_two_probes_and_back() -> None:
    async def it() -> None:
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

    run(it)


def test_the_majority_decides_which_side_is_forked() -> None:
    async def it() -> None:
        scene = await Scene(BASE + "a", BASE + "a", BASE + "a").start()
        scene.nodes["b"].word = scene.nodes["c"].word = BASE + "xy"
        await scene.rounds()
        assert (scene.row.head, scene.reorgs) == (101, (1, 99))
        await scene.rounds(3)
        assert scene.states == "forked up up"

    run(it)


def test_who_is_stuck_on_an_orphan_does_not_hold_up_the_network() -> None:
    async def it() -> None:
        scene = await Scene(BASE + "a", BASE + "a").start()
        scene.nodes["b"].word = BASE + "xx"
        await scene.rounds(4)
        assert (scene.row.head, scene.states) == (100, "up forked")
        scene.nodes["b"].word += "xx"
        await scene.rounds(4)
        assert (scene.row.head, scene.reorgs, scene.states) == (103, (1, 99), "forked up")

    run(it)


def test_an_upstream_that_hides_its_blocks_is_followed_when_there_is_no_other() -> None:
    async def it() -> None:
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
        assert (scene.row.head, scene.reorgs[0]) == (111, 1), "it is asked for its blocks again"

    run(it)


# ---- heads that are gone


def test_a_head_whose_upstream_is_gone_is_given_up_after_five_seconds() -> None:
    async def it() -> None:
        scene = await Scene(BASE + "abc", BASE + "a").start()
        scene.nodes["a"].fault = REFUSED
        for _ in range(10):
            await scene.rounds()
            assert (scene.row.head, scene.states, scene.reorgs) == (102, "down up", (0, None))
        await scene.rounds(2)
        assert (scene.row.head, scene.reorgs) == (100, (1, 100))
        assert (scene.counted(metrics.REORGS), scene.counted(metrics.HEADS_LOST)) == (0, 1)
        scene.nodes["a"].fault = None
        await scene.rounds()
        assert (scene.row.head, scene.reorgs[0]) == (102, 1), "it is back, on the same chain"

    run(it)


def test_a_head_that_somebody_reaches_in_time_is_kept() -> None:
    async def it() -> None:
        scene = await Scene(BASE + "abc", BASE + "a").start()
        scene.nodes["a"].fault = REFUSED
        await scene.rounds(6)
        scene.nodes["b"].word = BASE + "abcd"
        await scene.rounds(20)
        assert (scene.row.head, scene.reorgs) == (103, (0, None))

    run(it)


def test_the_rest_may_be_far_behind() -> None:
    async def it() -> None:
        scene = await Scene("g" * 1_000, BASE).start()
        await scene.rounds()
        assert scene.states == "up lagging"
        scene.nodes["a"].fault = REFUSED
        await scene.rounds(12)
        assert (scene.row.head, scene.reorgs, scene.states) == (99, (1, 99), "down up")
        scene.nodes["b"].word += "g"
        await scene.rounds()
        assert scene.row.head == 100

    run(it)


def test_when_nobody_is_left_nothing_is_given_up() -> None:
    async def it() -> None:
        scene = await Scene(BASE + "a").start()
        scene.nodes["a"].fault = REFUSED
        await scene.rounds(30)
        assert (scene.row.head, scene.row.heard, scene.reorgs) == (100, False, (0, None))

    run(it)


def test_a_block_that_only_a_worker_has_seen_is_looked_for_and_then_given_up() -> None:
    async def it() -> None:
        scene = await Scene(BASE).start()
        scene.row.saw(120)
        asked = len(scene.nodes["a"].probes)
        await scene.tick(0.02)
        assert len(scene.nodes["a"].probes) == asked + 1
        await scene.rounds(8)
        assert (scene.row.floor, scene.row.heard) == (120, True)
        await scene.rounds(3)
        assert (scene.row.floor, scene.row.head, scene.reorgs) == (99, 99, (1, 99))

    run(it)


# ---- workers


def test_a_nudge_asks_everybody_at_once_twenty_times_a_second_at_most() -> None:
    async def it() -> None:
        scene = await Scene(BASE, BASE).start()
        before = len(scene.nodes["a"].probes)
        scene.nodes["a"].word += "a"
        scene.row.nudge()
        await scene.tick(0.02)
        assert (scene.row.head, len(scene.nodes["b"].probes)) == (100, before + 1)
        for _ in range(50):
            scene.row.nudge()
            await scene.tick(0.02)
        assert 15 <= len(scene.nodes["a"].probes) - before - 1 <= 20

    run(it)


def test_what_a_worker_sees_right_after_a_nudge_is_not_forgotten() -> None:
    async def it() -> None:
        scene = await Scene(BASE).start()
        scene.row.nudge()
        await scene.tick(0.02)
        asked = len(scene.nodes["a"].probes)
        scene.row.saw(100)
        for _ in range(3):
            await scene.tick(0.02)
        assert len(scene.nodes["a"].probes) == asked + 1

    run(it)


def test_a_nudge_while_an_answer_is_awaited_asks_once_more_after_it() -> None:
    async def it() -> None:
        scene = await Scene(BASE).start()
        node = scene.nodes["a"]
        node.gate = asyncio.Event()
        await scene.rounds()
        scene.row.nudge()
        await scene.tick(0.02)
        node.word += "a"
        node.gate.set()
        before = len(node.probes)
        await scene.tick(0.02)
        await scene.tick(0.02)
        assert (len(node.probes), scene.row.head) == (before + 1, 100)

    run(it)


def test_what_a_worker_saw_of_an_upstream_is_not_taken_back_by_an_older_answer() -> None:
    async def it() -> None:
        scene = await Scene(BASE, BASE).start()
        node, row = scene.nodes["b"], scene.upstream_row("b")
        node.gate = asyncio.Event()
        await scene.rounds()
        row.saw(100)
        node.gate.set()
        await scene.tick()
        assert row.head == 100
        await scene.rounds()
        assert row.head == 99, "asked after it was seen, it must know"

    run(it)


# ---- heads that are told


def test_a_head_that_is_told_is_published_at_once() -> None:
    async def it() -> None:
        scene = await Scene(BASE, BASE).start()
        scene.apply(scene.upstream("a", ws_url="ws://a"), scene.upstream("b"))
        (ear,) = scene.ears
        ear.hear(block(BASE + "a"))
        assert (scene.row.head, scene.upstream_row("a").head) == (100, 100)
        ear.hear(block(BASE))
        assert scene.row.head == 100
        ear.hear(block(BASE + "x"))
        assert (scene.row.head, scene.reorgs) == (100, (1, 99)), "another block of the same number"

    run(it)


def test_a_head_that_is_told_before_the_first_answer_is_not_believed() -> None:
    async def it() -> None:
        scene = Scene(BASE)
        scene.nodes["a"].gate = asyncio.Event()
        scene.apply(scene.upstream("a", ws_url="ws://a"))
        await scene.rounds(4)
        scene.ears[0].hear(block(BASE + "a"))
        assert (scene.row.head, scene.states) == (NOTHING, "unknown"), "its chain id is not known yet"

    run(it)


def test_a_head_that_is_told_by_somebody_who_is_down_is_not_believed() -> None:
    async def it() -> None:
        scene = Scene(BASE, BASE)
        scene.apply(scene.upstream("a", ws_url="ws://a"), scene.upstream("b"))
        await scene.tick()
        scene.nodes["a"].fault = REFUSED
        await scene.rounds()
        scene.ears[0].hear(block(BASE + "a"))
        assert (scene.row.head, scene.states) == (99, "down up")

    run(it)


# ---- settings that change


def test_what_is_known_of_an_upstream_that_stays_is_kept() -> None:
    async def it() -> None:
        scene = await Scene(BASE, BASE).start()
        version = scene.row.version
        scene.apply(scene.upstream("b", priority=0, weight=7), scene.upstream("a", priority=9), lag_blocks=1)
        assert [each.name for each in scene.watch.watched] == ["b", "a"]
        assert (scene.states, scene.row.head, scene.row.version) == ("up up", 99, version)
        assert scene.made == ["a", "b"]
        assert len(scene.nodes["a"].probes) == 1

    run(it)


def test_upstreams_come_and_go() -> None:
    async def it() -> None:
        scene = await Scene(BASE, BASE, BASE).start()
        scene.apply(scene.upstream("a"), scene.upstream("b"))
        assert scene.nodes["c"].closed
        assert scene.upstream_row("c").state == State.UP, "calls may be under way"
        scene.apply(scene.upstream("a"), scene.upstream("b"), scene.upstream("c"))
        assert scene.states == "up up unknown"
        assert scene.upstream_row("c").head == NOTHING
        await scene.tick()
        assert scene.states == "up up up"

    run(it)


def test_another_address_is_another_node() -> None:
    async def it() -> None:
        scene = await Scene(BASE, BASE).start()
        scene.apply(scene.upstream("a"), scene.upstream("b", url="http://elsewhere"))
        assert scene.states == "up unknown"
        assert scene.made == ["a", "b", "b"]

    run(it)


def test_listening_follows_the_settings() -> None:
    async def it() -> None:
        scene = await Scene(BASE).start()
        scene.apply(scene.upstream("a", ws_url="ws://one"))
        scene.apply(scene.upstream("a", ws_url="ws://one", weight=3))
        assert [ear.stopped for ear in scene.ears] == [False]
        scene.apply(scene.upstream("a", ws_url="ws://two"))
        assert [ear.stopped for ear in scene.ears] == [True, False]
        scene.apply(scene.upstream("a"))
        assert [ear.stopped for ear in scene.ears] == [True, True]
        assert scene.made == ["a"]

    run(it)


# ---- death


@pytest.mark.parametrize(
    ("word", "head", "reorgs"), [(BASE + "abc", 102, 0), (BASE + "abcde", 104, 0), (BASE + "xyz", 102, 0)]
)
def test_a_successor_goes_on_from_the_board_without_a_reorganisation(word: str, head: int, reorgs: int) -> None:
    async def it() -> None:
        first = await Scene(BASE + "abc").start()
        second = Scene(word, board=first.board)
        second.clock.now = first.clock.now
        await second.start()
        assert (second.row.head, second.row.reorgs) == (head, reorgs)

    run(it)


def test_what_is_on_the_board_holds_until_the_successor_has_asked() -> None:
    async def it() -> None:
        first = Scene(BASE, BASE, BASE)
        first.nodes["b"].chain_id, first.nodes["c"].fault = "0x2", REFUSED
        await first.start()
        assert first.states == "up wrong_chain down"
        first.watch.close()
        second = Scene(BASE, BASE, BASE, board=first.board)
        second.nodes["b"].gate = asyncio.Event()
        await second.start()
        assert second.states == "up wrong_chain up"

    run(it)


def test_a_successor_that_finds_only_who_is_behind_waits_before_it_gives_up() -> None:
    async def it() -> None:
        board = Board(2)
        first = await Scene(BASE + "abc", board=board).start()
        second = await Scene(BASE + "a", board=first.board).start()
        await second.rounds(9)
        assert (second.row.head, second.row.reorgs) == (102, 0)
        await second.rounds(2)
        assert (second.row.head, second.row.reorgs) == (100, 1)

    run(it)


def test_a_defect_ends_the_process() -> None:
    async def it() -> None:
        scene = await Scene(BASE).start()
        scene.nodes["a"].fault = ZeroDivisionError("a defect")  # type: ignore[assignment]
        with pytest.raises(ZeroDivisionError):
            await scene.rounds()

    run(it)
