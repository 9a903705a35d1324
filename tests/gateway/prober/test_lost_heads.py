"""Heads that no upstream shows any more, and how long the prober waits for them."""

from __future__ import annotations

from tests.gateway.prober.nodes import BASE, REFUSED, ProbedNetwork

from tollgate.shm import metrics


async def test_a_head_whose_upstream_is_gone_is_given_up_after_five_seconds() -> None:
    network = await ProbedNetwork(BASE + "abc", BASE + "a").start()
    network.nodes["a"].fault = REFUSED
    for _ in range(10):
        await network.rounds()
        assert (network.row.head, network.states, network.reorgs) == (102, "down up", (0, None))
    await network.rounds(2)
    assert (network.row.head, network.reorgs) == (100, (1, 100))
    assert (network.counted(metrics.REORGS), network.counted(metrics.HEADS_LOST)) == (0, 1)
    network.nodes["a"].fault = None
    await network.rounds()
    assert (network.row.head, network.reorgs[0]) == (102, 1), "it is back, on the same chain"


async def test_a_head_that_an_upstream_reaches_in_time_is_kept() -> None:
    network = await ProbedNetwork(BASE + "abc", BASE + "a").start()
    network.nodes["a"].fault = REFUSED
    await network.rounds(6)
    network.nodes["b"].word = BASE + "abcd"
    await network.rounds(20)
    assert (network.row.head, network.reorgs) == (103, (0, None))


async def test_the_rest_may_be_far_behind() -> None:
    network = await ProbedNetwork("g" * 1_000, BASE).start()
    await network.rounds()
    assert network.states == "up lagging"
    network.nodes["a"].fault = REFUSED
    await network.rounds(12)
    assert (network.row.head, network.reorgs, network.states) == (99, (1, 99), "down up")
    network.nodes["b"].word += "g"
    await network.rounds()
    assert network.row.head == 100


async def test_no_head_is_given_up_while_all_upstreams_are_down() -> None:
    network = await ProbedNetwork(BASE + "a").start()
    network.nodes["a"].fault = REFUSED
    await network.rounds(30)
    assert (network.row.head, network.row.is_fresh, network.reorgs) == (100, False, (0, None))


async def test_a_block_that_only_a_worker_has_seen_is_looked_for_and_then_given_up() -> None:
    network = await ProbedNetwork(BASE).start()
    network.row.observe_head(120)
    probed = len(network.nodes["a"].probes)
    await network.tick(0.02)
    assert len(network.nodes["a"].probes) == probed + 1
    await network.rounds(8)
    assert (network.row.floor, network.row.is_fresh) == (120, True)
    await network.rounds(3)
    assert (network.row.floor, network.row.head, network.reorgs) == (99, 99, (1, 99))


async def test_a_head_that_no_upstream_shows_is_overdue_after_five_seconds_and_not_before() -> None:
    network = await ProbedNetwork(BASE + "abc", BASE + "a").start()
    following = network.monitor._following
    assert not following.is_overdue(network.clock())
    network.nodes["a"].fault = REFUSED
    await network.rounds(2)
    started = following._short_since
    assert started is not None
    assert not following.is_overdue(started + 4.999)
    assert following.is_overdue(started + 5.0)
