"""One network under watch: its first head, what workers and listeners bring about, settings that change."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs
from tests.gateway.prober.nodes import BASE, PROBE, REFUSED, ProbedNetwork, block

from tollgate.core.health import NOTHING, State
from tollgate.gateway.prober.network_monitor import HASTE_SECONDS


async def test_first_heads_are_published_with_states_and_finality() -> None:
    network = ProbedNetwork(BASE, BASE + "a")
    network.nodes["a"].finalized = 40
    await network.start()
    assert network.states == "up up"
    assert (network.row.head, network.row.finalized, network.row.is_fresh) == (100, 40, True)
    assert [network.upstream_row(name).head for name in "ab"] == [99, 100]
    assert network.reorgs == (0, None)
    assert network.nodes["a"].timeout_seconds == 3.0


async def test_each_new_head_changes_the_version_once() -> None:
    network = await ProbedNetwork(BASE, BASE).start()
    version = network.row.version
    await network.rounds(3)
    assert network.row.version == version
    network.nodes["a"].word += "a"
    await network.rounds()
    network.nodes["b"].word += "a"
    await network.rounds(2)
    assert (network.row.head, network.row.version) == (100, version + 1)


# ---- workers


async def test_a_nudge_probes_everybody_at_once_twenty_times_a_second_at_most() -> None:
    network = await ProbedNetwork(BASE, BASE).start()
    before = len(network.nodes["a"].probes)
    network.nodes["a"].word += "a"
    network.row.request_probe()
    await network.tick(0.02)
    assert (network.row.head, len(network.nodes["b"].probes)) == (100, before + 1)
    for _ in range(50):
        network.row.request_probe()
        await network.tick(0.02)
    assert 15 <= len(network.nodes["a"].probes) - before - 1 <= 20


async def test_what_a_worker_sees_right_after_a_nudge_is_not_forgotten() -> None:
    network = await ProbedNetwork(BASE).start()
    network.row.request_probe()
    await network.tick(0.02)
    probed = len(network.nodes["a"].probes)
    network.row.observe_head(100)
    for _ in range(3):
        await network.tick(0.02)
    assert len(network.nodes["a"].probes) == probed + 1


async def test_a_nudge_while_an_answer_is_awaited_probes_once_more_after_it() -> None:
    network = await ProbedNetwork(BASE).start()
    node = network.nodes["a"]
    node.gate = asyncio.Event()
    await network.rounds()
    network.row.request_probe()
    await network.tick(0.02)
    node.word += "a"
    node.gate.set()
    before = len(node.probes)
    await network.tick(0.02)
    await network.tick(0.02)
    assert (len(node.probes), network.row.head) == (before + 1, 100)


async def test_what_a_worker_saw_of_an_upstream_is_not_taken_back_by_an_older_answer() -> None:
    network = await ProbedNetwork(BASE, BASE).start()
    node, row = network.nodes["b"], network.upstream_row("b")
    node.gate = asyncio.Event()
    await network.rounds()
    row.observe_head(100)
    node.gate.set()
    await network.tick()
    assert row.head == 100
    await network.rounds()
    assert row.head == 99, "probed after it was seen, it must know"


# ---- heads that are reported


async def test_a_head_that_is_reported_is_published_at_once() -> None:
    network = await ProbedNetwork(BASE, BASE).start()
    network.apply(network.upstream("a", ws_url="ws://a"), network.upstream("b"))
    (listener,) = network.listeners
    listener.receive(block(BASE + "a"))
    assert (network.row.head, network.upstream_row("a").head) == (100, 100)
    listener.receive(block(BASE))
    assert network.row.head == 100
    listener.receive(block(BASE + "x"))
    assert (network.row.head, network.reorgs) == (100, (1, 99)), "another block of the same number"


async def test_a_head_that_is_reported_before_the_first_answer_is_not_believed() -> None:
    network = ProbedNetwork(BASE)
    network.nodes["a"].gate = asyncio.Event()
    network.apply(network.upstream("a", ws_url="ws://a"))
    await network.rounds(4)
    network.listeners[0].receive(block(BASE + "a"))
    assert (network.row.head, network.states) == (NOTHING, "unknown"), "its chain id is not known yet"


async def test_a_head_reported_by_an_upstream_that_is_down_is_ignored() -> None:
    network = ProbedNetwork(BASE, BASE)
    network.apply(network.upstream("a", ws_url="ws://a"), network.upstream("b"))
    await network.tick()
    network.nodes["a"].fault = REFUSED
    await network.tick(30.0)
    network.listeners[0].receive(block(BASE + "a"))
    assert (network.row.head, network.states) == (99, "down up")


# ---- settings that change


async def test_what_is_known_of_an_upstream_that_stays_is_kept() -> None:
    network = await ProbedNetwork(BASE, BASE).start()
    version = network.row.version
    network.apply(network.upstream("b", priority=0, weight=7), network.upstream("a", priority=9), lag_blocks=1)
    assert [each.name for each in network.monitor.upstreams] == ["b", "a"]
    assert (network.states, network.row.head, network.row.version) == ("up up", 99, version)
    assert network.made == ["a", "b"]
    assert len(network.nodes["a"].probes) == 1


async def test_upstreams_come_and_go() -> None:
    network = await ProbedNetwork(BASE, BASE, BASE).start()
    network.apply(network.upstream("a"), network.upstream("b"))
    assert network.nodes["c"].closed
    assert network.upstream_row("c").state == State.UP, "calls may be under way"
    network.apply(network.upstream("a"), network.upstream("b"), network.upstream("c"))
    assert network.states == "up up unknown"
    assert network.upstream_row("c").head == NOTHING
    await network.tick()
    assert network.states == "up up up"


async def test_another_address_is_another_node() -> None:
    network = await ProbedNetwork(BASE, BASE).start()
    network.apply(network.upstream("a"), network.upstream("b", url="http://elsewhere"))
    assert network.states == "up unknown"
    assert network.made == ["a", "b", "b"]


async def test_listening_follows_the_settings() -> None:
    network = await ProbedNetwork(BASE).start()
    network.apply(network.upstream("a", ws_url="ws://one"))
    network.apply(network.upstream("a", ws_url="ws://one", weight=3))
    assert [listener.stopped for listener in network.listeners] == [False]
    network.apply(network.upstream("a", ws_url="ws://two"))
    assert [listener.stopped for listener in network.listeners] == [True, False]
    network.apply(network.upstream("a"))
    assert [listener.stopped for listener in network.listeners] == [True, True]
    assert network.made == ["a"]


# ---- defects


async def test_a_defect_ends_the_process() -> None:
    network = await ProbedNetwork(BASE).start()
    network.nodes["a"].fault = ZeroDivisionError("a defect")  # type: ignore[assignment]
    with pytest.raises(ZeroDivisionError):
        await network.rounds()


async def test_settings_that_are_taken_over_do_not_probe_before_the_time() -> None:
    network = await ProbedNetwork(BASE, BASE).start()
    before = [len(node.probes) for node in network.nodes.values()]
    for _ in range(5):
        network.apply(network.upstream("a"), network.upstream("b"))
        await network.tick(0.01)
    assert [len(node.probes) for node in network.nodes.values()] == before


async def test_a_newcomer_is_probed_often_from_the_first() -> None:
    network = ProbedNetwork(BASE)
    network.apply(network.upstream("a"), at_start=True)
    assert not network["a"].is_resting
    assert network.monitor.calls_a_minute(network["a"]) > 60


async def test_nudges_are_followed_as_often_as_they_may_be() -> None:
    network = await ProbedNetwork(BASE).start()
    before = len(network.nodes["a"].probes)
    for _ in range(3):
        network.row.request_probe()
        await network.tick(HASTE_SECONDS)
    assert len(network.nodes["a"].probes) - before == 3


async def test_a_head_that_went_back_is_probed_again_after_a_moment() -> None:
    network = await ProbedNetwork(BASE).start()
    network.nodes["a"].word = BASE[:-1]
    await network.tick(PROBE)
    counts = []
    for seconds in (0.0, HASTE_SECONDS):
        before = len(network.nodes["a"].probes)
        await network.tick(seconds)
        counts.append(len(network.nodes["a"].probes) - before)
    assert counts == [0, 1]


async def test_nothing_is_concluded_where_nothing_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    network = await ProbedNetwork(BASE).start()
    settled: list[object] = []
    monkeypatch.setattr(network.monitor, "_settle", lambda probed=None: settled.append(probed))
    await network.tick(PROBE / 2)
    assert settled == []


async def test_changes_of_state_are_logged() -> None:
    network = await ProbedNetwork(BASE).start()
    with capture_logs() as lines:
        network.nodes["a"].fault = REFUSED
        await network.rounds(2)
        network.nodes["a"].fault = None
        await network.rounds(2)
    assert [(line["log_level"], line["upstream"], line["state"]) for line in lines] == [
        ("warning", "a", "down"),
        ("info", "a", "up"),
    ]
