"""Heads that nobody shows any more, and how long they are waited for."""

from __future__ import annotations

from tests.gateway.prober.nodes import BASE, REFUSED, Scene

from tollgate.shm import metrics


async def test_a_head_whose_upstream_is_gone_is_given_up_after_five_seconds() -> None:
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


async def test_a_head_that_somebody_reaches_in_time_is_kept() -> None:
    scene = await Scene(BASE + "abc", BASE + "a").start()
    scene.nodes["a"].fault = REFUSED
    await scene.rounds(6)
    scene.nodes["b"].word = BASE + "abcd"
    await scene.rounds(20)
    assert (scene.row.head, scene.reorgs) == (103, (0, None))


async def test_the_rest_may_be_far_behind() -> None:
    scene = await Scene("g" * 1_000, BASE).start()
    await scene.rounds()
    assert scene.states == "up lagging"
    scene.nodes["a"].fault = REFUSED
    await scene.rounds(12)
    assert (scene.row.head, scene.reorgs, scene.states) == (99, (1, 99), "down up")
    scene.nodes["b"].word += "g"
    await scene.rounds()
    assert scene.row.head == 100


async def test_when_nobody_is_left_nothing_is_given_up() -> None:
    scene = await Scene(BASE + "a").start()
    scene.nodes["a"].fault = REFUSED
    await scene.rounds(30)
    assert (scene.row.head, scene.row.is_fresh, scene.reorgs) == (100, False, (0, None))


async def test_a_block_that_only_a_worker_has_seen_is_looked_for_and_then_given_up() -> None:
    scene = await Scene(BASE).start()
    scene.row.observe_head(120)
    probed = len(scene.nodes["a"].probes)
    await scene.tick(0.02)
    assert len(scene.nodes["a"].probes) == probed + 1
    await scene.rounds(8)
    assert (scene.row.floor, scene.row.is_fresh) == (120, True)
    await scene.rounds(3)
    assert (scene.row.floor, scene.row.head, scene.reorgs) == (99, 99, (1, 99))


async def test_a_head_that_nobody_shows_is_overdue_after_five_seconds_and_not_before() -> None:
    scene = await Scene(BASE + "abc", BASE + "a").start()
    following = scene.watch._following
    assert not following.is_overdue(scene.clock())
    scene.nodes["a"].fault = REFUSED
    await scene.rounds(2)
    began = following._short_since
    assert began is not None
    assert not following.is_overdue(began + 4.999)
    assert following.is_overdue(began + 5.0)
