"""When upstreams are probed: seldom without calls or with a feed of heads, at once when a call arrives."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.gateway.prober.nodes import BASE, BROKEN, PROBE, Node, ProbedNetwork, block

from tollgate.gateway.prober.network_monitor import IDLE_SECONDS, USE_SECONDS
from tollgate.settings.model import HealthSettings

MAX_A_MINUTE = 12


def probe_count(node: Node) -> int:
    """How many calls it was sent."""
    return sum(wanted.calls for wanted in node.probes) + len(node.fetched)


async def minutes(network: ProbedNetwork, count: int, each_second: str = "") -> None:
    """Let minutes pass, with so many new blocks a second."""
    for _ in range(count * 120):
        network.nodes["a"].word += each_second
        await network.tick(0.5)


@pytest.mark.parametrize("blocks", ["", "x", "xyz"])
async def test_an_idle_upstream_gets_at_most_twelve_calls_a_minute(blocks: str) -> None:
    """However fast its chain is."""
    network = ProbedNetwork(BASE)
    network.in_use = False
    await network.start()
    before = probe_count(network.nodes["a"])
    assert before <= MAX_A_MINUTE
    await minutes(network, 10, blocks)
    assert (probe_count(network.nodes["a"]) - before) / 10 <= MAX_A_MINUTE
    assert network.states == "up"
    assert network.row.is_fresh
    assert network.reorgs == (0, None)


async def test_an_upstream_with_a_feed_gets_at_most_twelve_calls_a_minute_while_it_is_in_use() -> None:
    network = ProbedNetwork(BASE)
    network.apply(network.upstream("a", ws_url="ws://a"), at_start=True)
    await network.tick()
    before = probe_count(network.nodes["a"])
    for number in range(1_200):
        if number % 24 == 0:
            network.nodes["a"].word += "x"
            network.listeners[0].receive(block(network.nodes["a"].word))
            assert network.row.head == len(network.nodes["a"].word) - 1
        network.row.request_probe()
        await network.tick(0.5)
        assert network.row.is_fresh
    assert (probe_count(network.nodes["a"]) - before) / 10 <= MAX_A_MINUTE


async def test_a_feed_that_misses_a_block_is_not_relied_on_until_it_shows_one_again() -> None:
    network = ProbedNetwork(BASE)
    network.apply(network.upstream("a", ws_url="ws://a"), at_start=True)
    await network.tick()
    network.nodes["a"].word += "x"
    for _ in range(40):
        await network.tick(0.5)
    assert network.row.head == 100
    before = len(network.nodes["a"].probes)
    for _ in range(10):
        await network.tick(PROBE)
    assert len(network.nodes["a"].probes) - before >= 8
    network.listeners[0].receive(block(network.nodes["a"].word))
    await network.tick(1.5)
    before = len(network.nodes["a"].probes)
    for _ in range(10):
        await network.tick(PROBE)
    assert len(network.nodes["a"].probes) - before <= 1


async def test_call_after_a_pause_is_not_served_an_old_tip() -> None:
    network = await ProbedNetwork(BASE).start()
    await network.rounds(3)
    version = network.row.version
    network.in_use = False
    for _ in range(int(IDLE_SECONDS / PROBE) + 9):
        await network.tick(PROBE)
    assert network.row.version == version + 1, "what was read of the tip still holds while there are no calls"
    network.nodes["a"].word += "x"
    await network.tick(0.5)
    assert network.row.head == 99
    network.row.mark_active()
    await network.tick(1.0)
    assert network.row.head == 100, "the first call is followed by a probe at once"
    before = len(network.nodes["a"].probes)
    await network.rounds(4)
    assert len(network.nodes["a"].probes) - before >= 4


async def test_a_nudge_wakes_at_once() -> None:
    network = ProbedNetwork(BASE)
    network.in_use = False
    await network.start()
    await network.tick(1.5)
    network.nodes["a"].word += "x"
    network.row.request_probe()
    await network.tick(0.02)
    await network.tick(1.0)
    assert network.row.head == 100


async def test_a_spare_upstream_rests_while_the_others_are_well_and_wakes_when_one_is_not() -> None:
    network = await ProbedNetwork(BASE, BASE).start()
    network.in_use = False
    before = probe_count(network.nodes["b"])
    for _ in range(600):
        network.row.mark_active()
        network["a"].used_at = network.clock()
        await network.tick(0.5)
    rested = probe_count(network.nodes["b"]) - before
    assert rested <= 30 / PROBE * 1.5 + 4.5 * MAX_A_MINUTE
    assert probe_count(network.nodes["a"]) > 800
    assert network["b"].is_resting
    network.nodes["a"].fault = BROKEN
    network.row.mark_active()
    for _ in range(8):
        await network.tick(0.5)
    assert not network["b"].is_resting


async def test_an_upstream_may_have_an_interval_of_its_own() -> None:
    network = ProbedNetwork(BASE, BASE)
    network.apply(network.upstream("a", probe_seconds=4.0), network.upstream("b"), at_start=True)
    await network.tick()
    for _ in range(80):
        await network.tick(0.5)
    assert len(network.nodes["a"].probes) == 11
    assert len(network.nodes["b"].probes) == 81


def test_the_default_keeps_the_bound() -> None:
    assert 60 / HealthSettings().idle_probe_seconds <= MAX_A_MINUTE


async def test_of_an_idle_upstream_one_block_before_its_head_is_fetched_at_the_start() -> None:
    network = ProbedNetwork(BASE)
    network.in_use = False
    await network.start()
    assert network.nodes["a"].fetched == [98]


@pytest.mark.parametrize("names", ["a", "ab"])
async def test_an_upstream_rests_from_the_moment_on_that_it_is_idle(names: str) -> None:
    network = await ProbedNetwork(*[BASE] * len(names)).start()
    network.in_use = False
    network.row.mark_active()
    for each in network.monitor.upstreams:
        each.used_at = network.clock()
    await network.tick(IDLE_SECONDS - USE_SECONDS)
    if len(names) > 1:
        # The network is in use, by others.
        network.row.mark_active()
    assert not network["a"].is_resting
    await network.tick(USE_SECONDS)
    assert network["a"].is_resting


async def test_use_is_looked_at_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    network = await ProbedNetwork(BASE).start()
    looked: list[float] = []
    monkeypatch.setattr(network.monitor, "_look_at_use", looked.append)
    await network.tick(USE_SECONDS / 2)
    assert looked == []
    await network.tick(USE_SECONDS / 2)
    assert looked == [network.clock()]


async def test_a_network_without_calls_so_far_has_no_tip_to_forget() -> None:
    idle, busy = ProbedNetwork(BASE), await ProbedNetwork(BASE).start()
    idle.in_use = False
    await idle.start()
    assert idle.row.version == busy.row.version


async def test_an_idle_upstream_that_shows_other_blocks_is_probed_until_that_is_settled() -> None:
    network = await ProbedNetwork(BASE).start()
    network.in_use = False
    for disagreements, rests in ((0, True), (1, False), (2, False), (3, True)):
        network["a"].sight = msgspec.structs.replace(network["a"].sight, disagreements=disagreements)
        network.monitor._look_at_use(network.clock() + IDLE_SECONDS)
        assert network["a"].is_resting is rests


async def test_heads_expire_where_upstreams_in_use_do_not_answer() -> None:
    network = await ProbedNetwork(BASE).start()
    network.nodes["a"].gate = asyncio.Event()
    for _ in range(40):
        await network.tick(PROBE)
    assert (network.states, network.row.is_fresh) == ("up", False)


async def test_an_idle_upstream_that_fails_once_is_probed_again_soon() -> None:
    network = ProbedNetwork(BASE)
    network.in_use = False
    await network.start()
    await network.tick(1.5)
    node = network.nodes["a"]
    node.fault = BROKEN
    counts = []
    await network.tick(network["a"].next_at - network.clock())
    for seconds in (0.0, 0.0, PROBE, PROBE):
        before = len(node.probes)
        await network.tick(seconds)
        counts.append(len(node.probes) - before)
    assert counts == [0, 0, 1, 0], "until it is known whether it is down"
    assert network.states == "down"


async def test_blocks_of_an_idle_upstream_make_its_next_probe_wait_for_each() -> None:
    network = ProbedNetwork(BASE)
    network.in_use = False
    await network.start()
    await network.tick(1.5)
    before = network["a"].next_at
    assert network["a"].is_resting
    network.monitor._fetch(network["a"], [90, 91, 92])
    assert network["a"].next_at == before + 3 * HealthSettings().idle_probe_seconds
    await network.tick()
