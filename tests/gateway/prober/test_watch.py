"""One network under watch: its first head, what workers and listeners bring about, settings that change."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs
from tests.gateway.prober.nodes import BASE, PROBE, REFUSED, Scene, block

from tollgate.core.health import NOTHING, State
from tollgate.gateway.prober.watch import HASTE_SECONDS


async def test_first_heads_are_published_with_states_and_finality() -> None:
    scene = Scene(BASE, BASE + "a")
    scene.nodes["a"].finalized = 40
    await scene.start()
    assert scene.states == "up up"
    assert (scene.row.head, scene.row.finalized, scene.row.is_fresh) == (100, 40, True)
    assert [scene.upstream_row(name).head for name in "ab"] == [99, 100]
    assert scene.reorgs == (0, None)
    assert scene.nodes["a"].timeout_seconds == 3.0


async def test_each_new_head_changes_the_version_once() -> None:
    scene = await Scene(BASE, BASE).start()
    version = scene.row.version
    await scene.rounds(3)
    assert scene.row.version == version
    scene.nodes["a"].word += "a"
    await scene.rounds()
    scene.nodes["b"].word += "a"
    await scene.rounds(2)
    assert (scene.row.head, scene.row.version) == (100, version + 1)


# ---- workers


async def test_a_nudge_probes_everybody_at_once_twenty_times_a_second_at_most() -> None:
    scene = await Scene(BASE, BASE).start()
    before = len(scene.nodes["a"].probes)
    scene.nodes["a"].word += "a"
    scene.row.request_probe()
    await scene.tick(0.02)
    assert (scene.row.head, len(scene.nodes["b"].probes)) == (100, before + 1)
    for _ in range(50):
        scene.row.request_probe()
        await scene.tick(0.02)
    assert 15 <= len(scene.nodes["a"].probes) - before - 1 <= 20


async def test_what_a_worker_sees_right_after_a_nudge_is_not_forgotten() -> None:
    scene = await Scene(BASE).start()
    scene.row.request_probe()
    await scene.tick(0.02)
    probed = len(scene.nodes["a"].probes)
    scene.row.observe_head(100)
    for _ in range(3):
        await scene.tick(0.02)
    assert len(scene.nodes["a"].probes) == probed + 1


async def test_a_nudge_while_an_answer_is_awaited_probes_once_more_after_it() -> None:
    scene = await Scene(BASE).start()
    node = scene.nodes["a"]
    node.gate = asyncio.Event()
    await scene.rounds()
    scene.row.request_probe()
    await scene.tick(0.02)
    node.word += "a"
    node.gate.set()
    before = len(node.probes)
    await scene.tick(0.02)
    await scene.tick(0.02)
    assert (len(node.probes), scene.row.head) == (before + 1, 100)


async def test_what_a_worker_saw_of_an_upstream_is_not_taken_back_by_an_older_answer() -> None:
    scene = await Scene(BASE, BASE).start()
    node, row = scene.nodes["b"], scene.upstream_row("b")
    node.gate = asyncio.Event()
    await scene.rounds()
    row.observe_head(100)
    node.gate.set()
    await scene.tick()
    assert row.head == 100
    await scene.rounds()
    assert row.head == 99, "probed after it was seen, it must know"


# ---- heads that are reported


async def test_a_head_that_is_reported_is_published_at_once() -> None:
    scene = await Scene(BASE, BASE).start()
    scene.apply(scene.upstream("a", ws_url="ws://a"), scene.upstream("b"))
    (listener,) = scene.listeners
    listener.receive(block(BASE + "a"))
    assert (scene.row.head, scene.upstream_row("a").head) == (100, 100)
    listener.receive(block(BASE))
    assert scene.row.head == 100
    listener.receive(block(BASE + "x"))
    assert (scene.row.head, scene.reorgs) == (100, (1, 99)), "another block of the same number"


async def test_a_head_that_is_reported_before_the_first_answer_is_not_believed() -> None:
    scene = Scene(BASE)
    scene.nodes["a"].gate = asyncio.Event()
    scene.apply(scene.upstream("a", ws_url="ws://a"))
    await scene.rounds(4)
    scene.listeners[0].receive(block(BASE + "a"))
    assert (scene.row.head, scene.states) == (NOTHING, "unknown"), "its chain id is not known yet"


async def test_a_head_that_is_reported_by_somebody_who_is_down_is_not_believed() -> None:
    scene = Scene(BASE, BASE)
    scene.apply(scene.upstream("a", ws_url="ws://a"), scene.upstream("b"))
    await scene.tick()
    scene.nodes["a"].fault = REFUSED
    await scene.tick(30.0)
    scene.listeners[0].receive(block(BASE + "a"))
    assert (scene.row.head, scene.states) == (99, "down up")


# ---- settings that change


async def test_what_is_known_of_an_upstream_that_stays_is_kept() -> None:
    scene = await Scene(BASE, BASE).start()
    version = scene.row.version
    scene.apply(scene.upstream("b", priority=0, weight=7), scene.upstream("a", priority=9), lag_blocks=1)
    assert [each.name for each in scene.watch.watched] == ["b", "a"]
    assert (scene.states, scene.row.head, scene.row.version) == ("up up", 99, version)
    assert scene.made == ["a", "b"]
    assert len(scene.nodes["a"].probes) == 1


async def test_upstreams_come_and_go() -> None:
    scene = await Scene(BASE, BASE, BASE).start()
    scene.apply(scene.upstream("a"), scene.upstream("b"))
    assert scene.nodes["c"].closed
    assert scene.upstream_row("c").state == State.UP, "calls may be under way"
    scene.apply(scene.upstream("a"), scene.upstream("b"), scene.upstream("c"))
    assert scene.states == "up up unknown"
    assert scene.upstream_row("c").head == NOTHING
    await scene.tick()
    assert scene.states == "up up up"


async def test_another_address_is_another_node() -> None:
    scene = await Scene(BASE, BASE).start()
    scene.apply(scene.upstream("a"), scene.upstream("b", url="http://elsewhere"))
    assert scene.states == "up unknown"
    assert scene.made == ["a", "b", "b"]


async def test_listening_follows_the_settings() -> None:
    scene = await Scene(BASE).start()
    scene.apply(scene.upstream("a", ws_url="ws://one"))
    scene.apply(scene.upstream("a", ws_url="ws://one", weight=3))
    assert [listener.stopped for listener in scene.listeners] == [False]
    scene.apply(scene.upstream("a", ws_url="ws://two"))
    assert [listener.stopped for listener in scene.listeners] == [True, False]
    scene.apply(scene.upstream("a"))
    assert [listener.stopped for listener in scene.listeners] == [True, True]
    assert scene.made == ["a"]


# ---- defects


async def test_a_defect_ends_the_process() -> None:
    scene = await Scene(BASE).start()
    scene.nodes["a"].fault = ZeroDivisionError("a defect")  # type: ignore[assignment]
    with pytest.raises(ZeroDivisionError):
        await scene.rounds()


async def test_settings_that_are_taken_over_do_not_probe_before_the_time() -> None:
    scene = await Scene(BASE, BASE).start()
    before = [len(node.probes) for node in scene.nodes.values()]
    for _ in range(5):
        scene.apply(scene.upstream("a"), scene.upstream("b"))
        await scene.tick(0.01)
    assert [len(node.probes) for node in scene.nodes.values()] == before


async def test_a_newcomer_is_probed_often_from_the_first() -> None:
    scene = Scene(BASE)
    scene.apply(scene.upstream("a"), at_start=True)
    assert not scene["a"].is_resting
    assert scene.watch.calls_a_minute(scene["a"]) > 60


async def test_nudges_are_followed_as_often_as_they_may_be() -> None:
    scene = await Scene(BASE).start()
    before = len(scene.nodes["a"].probes)
    for _ in range(3):
        scene.row.request_probe()
        await scene.tick(HASTE_SECONDS)
    assert len(scene.nodes["a"].probes) - before == 3


async def test_a_head_that_went_back_is_probed_again_after_a_moment() -> None:
    scene = await Scene(BASE).start()
    scene.nodes["a"].word = BASE[:-1]
    await scene.tick(PROBE)
    counts = []
    for seconds in (0.0, HASTE_SECONDS):
        before = len(scene.nodes["a"].probes)
        await scene.tick(seconds)
        counts.append(len(scene.nodes["a"].probes) - before)
    assert counts == [0, 1]


async def test_nothing_is_concluded_where_nothing_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = await Scene(BASE).start()
    settled: list[object] = []
    monkeypatch.setattr(scene.watch, "_settle", lambda probed=None: settled.append(probed))
    await scene.tick(PROBE / 2)
    assert settled == []


async def test_changes_of_state_are_logged() -> None:
    scene = await Scene(BASE).start()
    with capture_logs() as lines:
        scene.nodes["a"].fault = REFUSED
        await scene.rounds(2)
        scene.nodes["a"].fault = None
        await scene.rounds(2)
    assert [(line["log_level"], line["upstream"], line["state"]) for line in lines] == [
        ("warning", "a", "down"),
        ("info", "a", "up"),
    ]
