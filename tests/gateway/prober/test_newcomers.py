"""Upstreams that are new: at the start, after a reload, under a successor. They are judged together."""

from __future__ import annotations

import asyncio

from tests.gateway.prober.nodes import BASE, Scene

from tollgate.core.health import NOTHING


async def test_nothing_is_published_before_everybody_was_probed() -> None:
    scene = Scene(BASE, BASE + "abc")
    scene.nodes["b"].gate = asyncio.Event()
    await scene.start()
    assert (scene.row.head, scene.watch.warm) == (NOTHING, False)
    scene.nodes["b"].gate.set()
    await scene.tick()
    assert (scene.row.head, scene.watch.warm) == (102, True)


async def test_one_that_hangs_holds_up_the_start_for_a_second_and_then_nobody() -> None:
    scene = Scene(BASE, BASE)
    scene.nodes["b"].gate = asyncio.Event()
    await scene.start()
    await scene.rounds(2)
    assert (scene.row.head, scene.states) == (99, "up unknown")
    for _ in range(5):
        scene.nodes["a"].word += "a"
        await scene.rounds()
    assert scene.row.head == 104
    assert len(scene.nodes["b"].probes) == 1, "nobody is called twice at once"


async def test_what_was_received_by_then_is_shown_when_the_time_is_over_however_seldom_upstreams_are_probed() -> (
    None
):
    scene = Scene(BASE, BASE)
    scene.probe_seconds = 60.0
    scene.nodes["b"].gate = asyncio.Event()
    await scene.start()
    await scene.tick(0.98)
    assert (scene.row.is_fresh, scene.watch.warm, scene.states) == (False, False, "unknown unknown")
    await scene.tick(0.02)
    assert (scene.row.head, scene.watch.warm, scene.states) == (99, True, "up unknown")
    assert len(scene.nodes["a"].probes) == 1


# ---- after a reload


async def reloaded(old: str, **new: tuple[str, str]) -> tuple[Scene, dict[str, asyncio.Event]]:
    """A network of upstream `d` that gets others, of these chain ids and chains, who answer when they are let."""
    scene = Scene(*(new.get(name, ("", old))[1] for name in "abcd"))
    scene.apply(scene.upstream("d"), at_start=True)
    await scene.tick()
    assert (scene.states, scene.row.head) == ("up", len(old) - 1)
    gates = {name: asyncio.Event() for name in new}
    for name, (chain_id, _) in new.items():
        scene.nodes[name].chain_id, scene.nodes[name].gate = chain_id, gates[name]
    return scene, gates


async def test_one_that_is_added_is_judged_by_its_first_answer() -> None:
    scene, gates = await reloaded(BASE, a=("0x1", BASE[:50]))
    scene.apply(scene.upstream("a"), scene.upstream("d"))
    await scene.tick()
    assert scene.states == "unknown up"
    gates["a"].set()
    await scene.tick()
    assert scene.states == "lagging up"


async def test_those_that_are_added_are_considered_together() -> None:
    scene, gates = await reloaded(BASE, a=("0x2", "w" * 500), b=("0x1", BASE))
    scene.apply(scene.upstream("a"), scene.upstream("b"), scene.upstream("d"))
    gates["a"].set()
    await scene.tick()
    assert (scene.states, scene.watch.chain_id) == ("wrong_chain unknown up", "0x1"), "first, but not right"
    gates["b"].set()
    await scene.tick()
    assert (scene.states, scene.watch.chain_id) == ("wrong_chain up up", "0x1")
    assert (scene.row.head, scene.reorgs) == (99, (0, None))


async def test_one_that_is_added_and_hangs_delays_those_that_were_there_not_at_all_and_the_new_a_second() -> None:
    scene, gates = await reloaded(BASE, a=("0x1", BASE), b=("0x1", BASE))
    scene.apply(scene.upstream("a"), scene.upstream("b"), scene.upstream("d"))
    gates["a"].set()
    scene.nodes["d"].word += "a"
    await scene.rounds()
    assert (scene.states, scene.row.head, scene.row.is_fresh) == ("unknown unknown up", 100, True)
    await scene.rounds()
    assert scene.states == "up unknown up"


async def test_when_all_are_replaced_the_first_to_answer_does_not_turn_the_network_over() -> None:
    scene, gates = await reloaded(BASE, a=("0x2", "w" * 500), b=("0x1", BASE + "a"), c=("0x1", BASE + "a"))
    scene.apply(*map(scene.upstream, "abc"))
    gates["a"].set()
    await scene.tick()
    assert (scene.states, scene.row.head) == ("unknown unknown unknown", 99)
    gates["b"].set()
    gates["c"].set()
    await scene.tick()
    assert (scene.states, scene.row.head, scene.reorgs) == ("wrong_chain up up", 100, (0, None))
