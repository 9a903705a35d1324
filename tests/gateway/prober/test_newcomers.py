"""Upstreams that are new: at the start, after a reload, under a successor. They are assessed together."""

from __future__ import annotations

import asyncio

from tests.gateway.prober.nodes import BASE, ProbedNetwork

from tollgate.core.health import NOTHING


async def test_nothing_is_published_before_everybody_was_probed() -> None:
    network = ProbedNetwork(BASE, BASE + "abc")
    network.nodes["b"].gate = asyncio.Event()
    await network.start()
    assert (network.row.head, network.monitor.warm) == (NOTHING, False)
    network.nodes["b"].gate.set()
    await network.tick()
    assert (network.row.head, network.monitor.warm) == (102, True)


async def test_a_hanging_upstream_delays_the_start_by_a_second_and_nothing_afterwards() -> None:
    network = ProbedNetwork(BASE, BASE)
    network.nodes["b"].gate = asyncio.Event()
    await network.start()
    await network.rounds(2)
    assert (network.row.head, network.states) == (99, "up unknown")
    for _ in range(5):
        network.nodes["a"].word += "a"
        await network.rounds()
    assert network.row.head == 104
    assert len(network.nodes["b"].probes) == 1, "no upstream has two probes at once"


async def test_what_was_received_by_then_is_shown_when_the_time_is_over_however_seldom_upstreams_are_probed() -> (
    None
):
    network = ProbedNetwork(BASE, BASE)
    network.probe_seconds = 60.0
    network.nodes["b"].gate = asyncio.Event()
    await network.start()
    await network.tick(0.98)
    assert (network.row.is_fresh, network.monitor.warm, network.states) == (False, False, "unknown unknown")
    await network.tick(0.02)
    assert (network.row.head, network.monitor.warm, network.states) == (99, True, "up unknown")
    assert len(network.nodes["a"].probes) == 1


# ---- after a reload


async def reloaded(old: str, **new: tuple[str, str]) -> tuple[ProbedNetwork, dict[str, asyncio.Event]]:
    """A network of upstream `d` that gets others, of these chain ids and chains, who answer when they are let."""
    network = ProbedNetwork(*(new.get(name, ("", old))[1] for name in "abcd"))
    network.apply(network.upstream("d"), at_start=True)
    await network.tick()
    assert (network.states, network.row.head) == ("up", len(old) - 1)
    gates = {name: asyncio.Event() for name in new}
    for name, (chain_id, _) in new.items():
        network.nodes[name].chain_id, network.nodes[name].gate = chain_id, gates[name]
    return network, gates


async def test_one_that_is_added_is_judged_by_its_first_answer() -> None:
    network, gates = await reloaded(BASE, a=("0x1", BASE[:50]))
    network.apply(network.upstream("a"), network.upstream("d"))
    await network.tick()
    assert network.states == "unknown up"
    gates["a"].set()
    await network.tick()
    assert network.states == "lagging up"


async def test_those_that_are_added_are_considered_together() -> None:
    network, gates = await reloaded(BASE, a=("0x2", "w" * 500), b=("0x1", BASE))
    network.apply(network.upstream("a"), network.upstream("b"), network.upstream("d"))
    gates["a"].set()
    await network.tick()
    assert (network.states, network.monitor.chain_id) == ("wrong_chain unknown up", "0x1"), "first, but not right"
    gates["b"].set()
    await network.tick()
    assert (network.states, network.monitor.chain_id) == ("wrong_chain up up", "0x1")
    assert (network.row.head, network.reorgs) == (99, (0, None))


async def test_one_that_is_added_and_hangs_delays_those_that_were_there_not_at_all_and_the_new_a_second() -> None:
    network, gates = await reloaded(BASE, a=("0x1", BASE), b=("0x1", BASE))
    network.apply(network.upstream("a"), network.upstream("b"), network.upstream("d"))
    gates["a"].set()
    network.nodes["d"].word += "a"
    await network.rounds()
    assert (network.states, network.row.head, network.row.is_fresh) == ("unknown unknown up", 100, True)
    await network.rounds()
    assert network.states == "up unknown up"


async def test_when_all_are_replaced_the_first_to_answer_does_not_turn_the_network_over() -> None:
    network, gates = await reloaded(BASE, a=("0x2", "w" * 500), b=("0x1", BASE + "a"), c=("0x1", BASE + "a"))
    network.apply(*map(network.upstream, "abc"))
    gates["a"].set()
    await network.tick()
    assert (network.states, network.row.head) == ("unknown unknown unknown", 99)
    gates["b"].set()
    gates["c"].set()
    await network.tick()
    assert (network.states, network.row.head, network.reorgs) == ("wrong_chain up up", 100, (0, None))
