"""The states in which upstreams are found, and what is final."""

from __future__ import annotations

from tests.gateway.prober.nodes import BASE, BROKEN, PROBE, REFUSED, Scene, block

from tollgate.core.health import NOTHING
from tollgate.shm import metrics


async def test_down_after_two_failures_in_a_row_and_up_after_one_answer() -> None:
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


async def test_down_after_one_refused_connection() -> None:
    scene = await Scene(BASE, BASE).start()
    scene.nodes["b"].fault = REFUSED
    await scene.rounds()
    assert (scene.states, scene["b"].verdict.reason) == ("up down", "refuses connections")


async def test_chain_id_is_probed_at_the_start_every_minute_and_of_who_comes_back() -> None:
    scene = await Scene(BASE, BASE).start()
    await scene.rounds(119)
    probed = [index for index, wanted in enumerate(scene.nodes["a"].probes) if wanted.chain_id]
    assert probed == [0]
    await scene.rounds()
    assert scene.nodes["a"].probes[-1].chain_id
    node = scene.nodes["b"]
    node.fault, node.chain_id = REFUSED, "0x2"
    await scene.rounds(2)
    node.fault = None
    await scene.rounds()
    assert scene.states == "up wrong_chain", "never in rotation on another chain, not for one probe"
    assert scene["b"].verdict.reason == "reports chain id 0x2, not 0x1"


async def test_chain_id_of_the_settings_counts_however_it_is_written() -> None:
    scene = Scene(BASE, BASE, chain_id="2")
    scene.nodes["b"].chain_id = "0x2"
    await scene.start()
    assert scene.states == "wrong_chain up"


async def test_head_of_the_wrong_chain_is_not_the_networks() -> None:
    scene = Scene(BASE, BASE, "w" * 5_000, chain_id="0x1")
    scene.nodes["c"].chain_id = "0x2"
    await scene.start()
    await scene.rounds(2)
    assert (scene.states, scene.row.head, scene.reorgs) == ("up up wrong_chain", 99, (0, None))
    assert scene.nodes["c"].fetched == []


async def test_an_upstream_that_does_not_know_its_chain_id_is_probed_again_now_and_then() -> None:
    scene = Scene(BASE)
    scene.nodes["a"].chain_id = None
    await scene.start()
    await scene.rounds(20)
    assert scene.states == "up"
    assert sum(wanted.chain_id for wanted in scene.nodes["a"].probes) == 3


async def test_syncing_is_out_of_rotation_until_it_shows_otherwise() -> None:
    scene = await Scene(BASE, BASE).start()
    scene.nodes["b"].syncing = True
    await scene.rounds(4)
    assert scene.states == "up syncing"
    scene.nodes["b"].syncing = False
    await scene.rounds()
    assert scene.states == "up up"


async def test_lagging_and_back() -> None:
    scene = await Scene(BASE, BASE, lag_blocks=5).start()
    scene.nodes["a"].word += "abcdef"
    await scene.rounds(2)
    assert (scene.states, scene["b"].verdict.reason) == ("up lagging", "6 blocks behind")
    scene.nodes["b"].word += "a"
    await scene.rounds()
    assert scene.states == "up up"


async def test_on_a_fast_chain_nobody_lags_who_was_called_earlier() -> None:
    scene = await Scene(BASE, BASE, lag_blocks=0).start()
    scene.apply(scene.upstream("a", ws_url="ws://a"), scene.upstream("b"))
    (listener,) = scene.listeners
    for _ in range(8):
        for _ in range(4):
            scene.clock.advance(PROBE / 4)
            scene.nodes["a"].word += "a"
            scene.nodes["b"].word += "a"
            listener.receive(block(scene.nodes["a"].word))
            assert scene.states == "up up"
        await scene.tick()
    assert scene.states == "up up"


async def test_finality_is_probed_in_every_fourth_probe_and_never_goes_back() -> None:
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


async def test_finality_above_the_head_is_the_head() -> None:
    scene = Scene(BASE)
    scene.nodes["a"].finalized = 5_000
    await scene.start()
    assert scene.row.finalized == 99


async def test_a_family_that_cannot_be_called_is_left_alone() -> None:
    scene = await Scene(BASE, family="other").start()
    await scene.rounds(3)
    assert (scene.states, scene.watch.warm, scene.row.head) == ("unknown", True, NOTHING)
    assert scene.nodes["a"].probes == []
    assert scene["a"].verdict.reason == "its family cannot be probed"
