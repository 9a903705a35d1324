"""What probing costs: seldom where nobody calls or a feed reports heads, at once where somebody does."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.gateway.prober.nodes import BASE, BROKEN, PROBE, Node, Scene, block

from tollgate.gateway.prober.watch import IDLE_SECONDS, USE_SECONDS
from tollgate.settings.model import HealthSettings

MAX_A_MINUTE = 12


def probe_count(node: Node) -> int:
    """How many calls it was sent."""
    return sum(wanted.calls for wanted in node.probes) + len(node.fetched)


async def minutes(scene: Scene, count: int, each_second: str = "") -> None:
    """Let minutes pass, with so many new blocks a second."""
    for _ in range(count * 120):
        scene.nodes["a"].word += each_second
        await scene.tick(0.5)


@pytest.mark.parametrize("blocks", ["", "x", "xyz"])
async def test_an_idle_upstream_gets_at_most_twelve_calls_a_minute(blocks: str) -> None:
    """However fast its chain is."""
    scene = Scene(BASE)
    scene.in_use = False
    await scene.start()
    before = probe_count(scene.nodes["a"])
    assert before <= MAX_A_MINUTE
    await minutes(scene, 10, blocks)
    assert (probe_count(scene.nodes["a"]) - before) / 10 <= MAX_A_MINUTE
    assert scene.states == "up"
    assert scene.row.is_fresh
    assert scene.reorgs == (0, None)


async def test_an_upstream_with_a_feed_gets_at_most_twelve_calls_a_minute_while_it_is_in_use() -> None:
    scene = Scene(BASE)
    scene.apply(scene.upstream("a", ws_url="ws://a"), at_start=True)
    await scene.tick()
    before = probe_count(scene.nodes["a"])
    for number in range(1_200):
        if number % 24 == 0:
            scene.nodes["a"].word += "x"
            scene.listeners[0].receive(block(scene.nodes["a"].word))
            assert scene.row.head == len(scene.nodes["a"].word) - 1
        scene.row.request_probe()
        await scene.tick(0.5)
        assert scene.row.is_fresh
    assert (probe_count(scene.nodes["a"]) - before) / 10 <= MAX_A_MINUTE


async def test_a_feed_that_misses_a_block_is_not_relied_on_until_it_shows_one_again() -> None:
    scene = Scene(BASE)
    scene.apply(scene.upstream("a", ws_url="ws://a"), at_start=True)
    await scene.tick()
    scene.nodes["a"].word += "x"
    for _ in range(40):
        await scene.tick(0.5)
    assert scene.row.head == 100
    before = len(scene.nodes["a"].probes)
    for _ in range(10):
        await scene.tick(PROBE)
    assert len(scene.nodes["a"].probes) - before >= 8
    scene.listeners[0].receive(block(scene.nodes["a"].word))
    await scene.tick(1.5)
    before = len(scene.nodes["a"].probes)
    for _ in range(10):
        await scene.tick(PROBE)
    assert len(scene.nodes["a"].probes) - before <= 1


async def test_whoever_calls_after_a_pause_is_not_served_an_old_tip() -> None:
    scene = await Scene(BASE).start()
    await scene.rounds(3)
    version = scene.row.version
    scene.in_use = False
    for _ in range(int(IDLE_SECONDS / PROBE) + 9):
        await scene.tick(PROBE)
    assert scene.row.version == version + 1, "what was read of the tip still holds while nobody looks"
    scene.nodes["a"].word += "x"
    await scene.tick(0.5)
    assert scene.row.head == 99
    scene.row.mark_active()
    await scene.tick(1.0)
    assert scene.row.head == 100, "the first call is followed by a probe at once"
    before = len(scene.nodes["a"].probes)
    await scene.rounds(4)
    assert len(scene.nodes["a"].probes) - before >= 4


async def test_a_nudge_wakes_at_once() -> None:
    scene = Scene(BASE)
    scene.in_use = False
    await scene.start()
    await scene.tick(1.5)
    scene.nodes["a"].word += "x"
    scene.row.request_probe()
    await scene.tick(0.02)
    await scene.tick(1.0)
    assert scene.row.head == 100


async def test_a_spare_upstream_rests_while_the_others_are_well_and_wakes_when_one_is_not() -> None:
    scene = await Scene(BASE, BASE).start()
    scene.in_use = False
    before = probe_count(scene.nodes["b"])
    for _ in range(600):
        scene.row.mark_active()
        scene["a"].used_at = scene.clock()
        await scene.tick(0.5)
    rested = probe_count(scene.nodes["b"]) - before
    assert rested <= 30 / PROBE * 1.5 + 4.5 * MAX_A_MINUTE
    assert probe_count(scene.nodes["a"]) > 800
    assert scene["b"].is_resting
    scene.nodes["a"].fault = BROKEN
    scene.row.mark_active()
    for _ in range(8):
        await scene.tick(0.5)
    assert not scene["b"].is_resting


async def test_an_upstream_may_have_an_interval_of_its_own() -> None:
    scene = Scene(BASE, BASE)
    scene.apply(scene.upstream("a", probe_seconds=4.0), scene.upstream("b"), at_start=True)
    await scene.tick()
    for _ in range(80):
        await scene.tick(0.5)
    assert len(scene.nodes["a"].probes) == 11
    assert len(scene.nodes["b"].probes) == 81


def test_the_default_keeps_the_bound() -> None:
    assert 60 / HealthSettings().idle_probe_seconds <= MAX_A_MINUTE


async def test_of_an_idle_upstream_one_block_before_its_head_is_fetched_at_the_start() -> None:
    scene = Scene(BASE)
    scene.in_use = False
    await scene.start()
    assert scene.nodes["a"].fetched == [98]


@pytest.mark.parametrize("names", ["a", "ab"])
async def test_an_upstream_rests_from_the_moment_on_that_it_is_idle(names: str) -> None:
    scene = await Scene(*[BASE] * len(names)).start()
    scene.in_use = False
    scene.row.mark_active()
    for each in scene.watch.watched:
        each.used_at = scene.clock()
    await scene.tick(IDLE_SECONDS - USE_SECONDS)
    if len(names) > 1:
        # The network is in use, by others.
        scene.row.mark_active()
    assert not scene["a"].is_resting
    await scene.tick(USE_SECONDS)
    assert scene["a"].is_resting


async def test_use_is_looked_at_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = await Scene(BASE).start()
    looked: list[float] = []
    monkeypatch.setattr(scene.watch, "_look_at_use", looked.append)
    await scene.tick(USE_SECONDS / 2)
    assert looked == []
    await scene.tick(USE_SECONDS / 2)
    assert looked == [scene.clock()]


async def test_a_network_that_nobody_has_used_yet_has_no_tip_to_forget() -> None:
    idle, busy = Scene(BASE), await Scene(BASE).start()
    idle.in_use = False
    await idle.start()
    assert idle.row.version == busy.row.version


async def test_an_idle_upstream_that_shows_other_blocks_is_probed_until_that_is_settled() -> None:
    scene = await Scene(BASE).start()
    scene.in_use = False
    for disagreements, rests in ((0, True), (1, False), (2, False), (3, True)):
        scene["a"].sight = msgspec.structs.replace(scene["a"].sight, disagreements=disagreements)
        scene.watch._look_at_use(scene.clock() + IDLE_SECONDS)
        assert scene["a"].is_resting is rests


async def test_heads_expire_where_upstreams_in_use_do_not_answer() -> None:
    scene = await Scene(BASE).start()
    scene.nodes["a"].gate = asyncio.Event()
    for _ in range(40):
        await scene.tick(PROBE)
    assert (scene.states, scene.row.is_fresh) == ("up", False)


async def test_an_idle_upstream_that_fails_once_is_probed_again_soon() -> None:
    scene = Scene(BASE)
    scene.in_use = False
    await scene.start()
    await scene.tick(1.5)
    node = scene.nodes["a"]
    node.fault = BROKEN
    counts = []
    await scene.tick(scene["a"].next_at - scene.clock())
    for seconds in (0.0, 0.0, PROBE, PROBE):
        before = len(node.probes)
        await scene.tick(seconds)
        counts.append(len(node.probes) - before)
    assert counts == [0, 0, 1, 0], "until it is known whether it is down"
    assert scene.states == "down"


async def test_blocks_of_an_idle_upstream_make_its_next_probe_wait_for_each() -> None:
    scene = Scene(BASE)
    scene.in_use = False
    await scene.start()
    await scene.tick(1.5)
    before = scene["a"].next_at
    assert scene["a"].is_resting
    scene.watch._fetch(scene["a"], [90, 91, 92])
    assert scene["a"].next_at == before + 3 * HealthSettings().idle_probe_seconds
    await scene.tick()
