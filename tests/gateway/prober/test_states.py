"""The states in which upstreams are found, and what is final."""

from __future__ import annotations

from tests.gateway.prober.nodes import BASE, BROKEN, PROBE, REFUSED, ProbedNetwork, block

from tollgate.core.health import NOTHING
from tollgate.shm import metrics


async def test_down_after_two_failures_in_a_row_and_up_after_one_answer() -> None:
    network = await ProbedNetwork(BASE, BASE).start()
    node = network.nodes["b"]
    node.fault = BROKEN
    await network.rounds()
    assert network.states == "up up"
    node.fault = None
    await network.rounds()
    node.fault = BROKEN
    await network.rounds()
    assert network.states == "up up", "not in a row"
    await network.rounds()
    assert (network.states, network["b"].verdict.reason) == ("up down", "breaks off")
    node.fault = None
    await network.rounds()
    assert network.states == "up up"
    assert network.counted(metrics.UPSTREAM_PROBES, "b", "failed") == 3


async def test_down_after_one_refused_connection() -> None:
    network = await ProbedNetwork(BASE, BASE).start()
    network.nodes["b"].fault = REFUSED
    await network.rounds()
    assert (network.states, network["b"].verdict.reason) == ("up down", "refuses connections")


async def test_chain_id_is_probed_at_the_start_every_minute_and_of_who_comes_back() -> None:
    network = await ProbedNetwork(BASE, BASE).start()
    await network.rounds(119)
    probed = [index for index, wanted in enumerate(network.nodes["a"].probes) if wanted.chain_id]
    assert probed == [0]
    await network.rounds()
    assert network.nodes["a"].probes[-1].chain_id
    node = network.nodes["b"]
    node.fault, node.chain_id = REFUSED, "0x2"
    await network.rounds(2)
    node.fault = None
    await network.rounds()
    assert network.states == "up wrong_chain", "never in rotation on another chain, not for one probe"
    assert network["b"].verdict.reason == "reports chain id 0x2, not 0x1"


async def test_chain_id_of_the_settings_counts_however_it_is_written() -> None:
    network = ProbedNetwork(BASE, BASE, chain_id="2")
    network.nodes["b"].chain_id = "0x2"
    await network.start()
    assert network.states == "wrong_chain up"


async def test_head_of_the_wrong_chain_is_not_the_networks() -> None:
    network = ProbedNetwork(BASE, BASE, "w" * 5_000, chain_id="0x1")
    network.nodes["c"].chain_id = "0x2"
    await network.start()
    await network.rounds(2)
    assert (network.states, network.row.head, network.reorgs) == ("up up wrong_chain", 99, (0, None))
    assert network.nodes["c"].fetched == []


async def test_an_upstream_that_does_not_know_its_chain_id_is_probed_again_now_and_then() -> None:
    network = ProbedNetwork(BASE)
    network.nodes["a"].chain_id = None
    await network.start()
    await network.rounds(20)
    assert network.states == "up"
    assert sum(wanted.chain_id for wanted in network.nodes["a"].probes) == 3


async def test_syncing_is_out_of_rotation_until_it_shows_otherwise() -> None:
    network = await ProbedNetwork(BASE, BASE).start()
    network.nodes["b"].syncing = True
    await network.rounds(4)
    assert network.states == "up syncing"
    network.nodes["b"].syncing = False
    await network.rounds()
    assert network.states == "up up"


async def test_lagging_and_back() -> None:
    network = await ProbedNetwork(BASE, BASE, lag_blocks=5).start()
    network.nodes["a"].word += "abcdef"
    await network.rounds(2)
    assert (network.states, network["b"].verdict.reason) == ("up lagging", "6 blocks behind")
    network.nodes["b"].word += "a"
    await network.rounds()
    assert network.states == "up up"


async def test_on_a_fast_chain_an_upstream_probed_earlier_does_not_lag() -> None:
    network = await ProbedNetwork(BASE, BASE, lag_blocks=0).start()
    network.apply(network.upstream("a", ws_url="ws://a"), network.upstream("b"))
    (listener,) = network.listeners
    for _ in range(8):
        for _ in range(4):
            network.clock.advance(PROBE / 4)
            network.nodes["a"].word += "a"
            network.nodes["b"].word += "a"
            listener.receive(block(network.nodes["a"].word))
            assert network.states == "up up"
        await network.tick()
    assert network.states == "up up"


async def test_finality_is_probed_in_every_fourth_probe_and_never_goes_back() -> None:
    network = ProbedNetwork(BASE, BASE)
    network.nodes["a"].finalized, network.nodes["b"].finalized = 10, 20
    await network.start()
    await network.rounds(7)
    assert sum(wanted.finalized for wanted in network.nodes["a"].probes) == 2
    assert network.row.finalized == 20
    network.nodes["b"].fault = REFUSED
    network.nodes["a"].finalized = 15
    await network.rounds(8)
    assert network.row.finalized == 20


async def test_finality_above_the_head_is_the_head() -> None:
    network = ProbedNetwork(BASE)
    network.nodes["a"].finalized = 5_000
    await network.start()
    assert network.row.finalized == 99


async def test_a_family_that_cannot_be_called_is_left_alone() -> None:
    network = await ProbedNetwork(BASE, family="other").start()
    await network.rounds(3)
    assert (network.states, network.monitor.warm, network.row.head) == ("unknown", True, NOTHING)
    assert network.nodes["a"].probes == []
    assert network["a"].verdict.reason == "its family cannot be probed"
