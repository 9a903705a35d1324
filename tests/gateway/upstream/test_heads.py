"""Reads of the tip: who may answer them, what is noted of the head, what is never returned."""

from __future__ import annotations

from typing import Any

import pytest
from tests.gateway.fakes import turns
from tests.gateway.scene import DROP, LAGGING, Scene, open_scene, summary

from tollgate.errors import UpstreamUnavailable
from tollgate.shm.upstream_status import NOTHING, SILENCE_SECONDS, State

KEPT = {"cache_bytes": 1_000_000}
BALANCE = "eth_getBalance"


# --- The head --------------------------------------------------------------------------------------------------


async def test_tip_is_requested_from_who_is_at_the_head(scene: Scene) -> None:
    scene.up(99, 100)
    assert await scene.call(BALANCE, "0xa", "latest") == "up1"
    assert await scene.call(BALANCE, "0xa", "0x1") == "up0"


async def test_tip_waits_until_somebody_comes_along(scene: Scene) -> None:
    scene.up(99, 99)
    scene.row.publish(100, NOTHING, changed=True)
    pending = scene.send(BALANCE, "0xa", "latest")
    await scene.later(3.0)
    assert (pending.done(), scene.counts()) == (False, [0, 0])
    scene.state(1, State.UP, 100)
    await scene.later(0.1)
    assert summary(await pending) == "up1"


async def test_block_by_its_number_is_requested_from_who_has_it(scene: Scene) -> None:
    scene.up(99, 100)
    for block, who in (("0x63", "up0"), ("0x64", "up1"), ("0x65", "up0")):
        assert await scene.call(BALANCE, "0xa", block) == who, "what nobody has seen yet anybody may answer"
    scene.state(1, State.DOWN, 100)
    pending = scene.send(BALANCE, "0xa", "0x64")
    await scene.later(0.5)
    assert (pending.done(), scene.counts()) == (False, [2, 1]), "the first will have it in a moment"
    scene.state(0, State.UP, 100)
    await scene.later(0.1)
    assert summary(await pending) == "up0"


async def test_highest_block_of_a_batch_shows_who_may_answer_it(scene: Scene) -> None:
    scene.up(99, 100)
    await scene.resolve_many((BALANCE, ["0xa", "0x5"]), (BALANCE, ["0xa", "0x64"]))
    assert scene.counts() == [0, 2]


async def test_block_that_an_answer_shows_is_the_floor_from_then_on(scene: Scene) -> None:
    scene.up(100, 100)
    scene.nodes[0].always("0x65")
    assert await scene.call("eth_blockNumber") == "0x65"
    assert (scene.row.floor, scene.row.seen, scene.worker.rows[0].head) == (101, 101, 101)
    scene.nodes[0].always(DROP)
    pending = scene.send(BALANCE, "0xa", "latest")
    await scene.later(0.5)
    assert (pending.done(), scene.counts()[1]) == (False, 0), "the other may not have it"
    scene.up(101, 101)
    await scene.later(0.1)
    assert summary(await pending) == "up1"


@pytest.mark.parametrize(
    ("family", "method", "result", "number"),
    [
        ("eth", "eth_blockNumber", "0x65", 101),
        ("eth", "eth_getBlockByNumber", {"number": "0x65"}, 101),
        ("starknet", "starknet_blockNumber", 101, 101),
        ("starknet", "starknet_blockHashAndNumber", {"block_hash": "0x1", "block_number": 101}, 101),
        ("eth", "eth_gasPrice", "0x65", 100),
        ("eth", "eth_getBalance", "0x65", 100),
    ],
)
async def test_answers_that_show_the_head_are_noted(family: str, method: str, result: Any, number: int) -> None:
    async with open_scene({}, family=family) as scene:
        scene.up(100)
        scene.nodes[0].always(result)
        params = ["latest", False] if method == "eth_getBlockByNumber" else []
        await scene.call(method, *params)
        assert scene.row.floor == number


async def test_answer_from_before_a_reorganisation_is_not_noted_after_it() -> None:
    async with open_scene({}) as scene:
        scene.up(100)
        scene.nodes[0].always("0x64")
        scene.nodes[0].holds = True
        pending = scene.send("eth_blockNumber")
        await turns()
        scene.row.publish_reorg(97)
        scene.up(98)
        scene.nodes[0].let()
        assert summary(await pending) == "0x64"
        assert (scene.row.floor, scene.worker.rows[0].head) == (98, 98)


async def test_answer_that_is_behind_what_callers_have_seen_is_retried_elsewhere(scene: Scene) -> None:
    scene.up(100, 100)
    scene.nodes[0].always("0x63")
    scene.nodes[1].always("0x64")
    assert await scene.call("eth_blockNumber") == "0x64"
    assert scene.trace.upstream == "up1"


async def test_answer_that_is_behind_is_never_given_however_long_it_stays_so() -> None:
    async with open_scene({}) as scene:
        scene.up(100)
        scene.nodes[0].always("0x63")
        pending = scene.send("eth_blockNumber")
        await scene.later(3.0)
        with pytest.raises(UpstreamUnavailable, match="behind"):
            await pending
        assert scene.counts() == [6]
        assert scene.upstream(0).in_rotation(scene.clock())


async def test_service_of_several_nodes_that_goes_back_for_a_moment_is_called_again() -> None:
    async with open_scene({}) as scene:
        scene.up(100)
        scene.nodes[0].in_turn("0x63", "0x63", "0x64")
        pending = scene.send("eth_blockNumber")
        await scene.later(0.5)
        assert summary(await pending) == "0x64"


async def test_after_a_reorganisation_a_lower_block_is_an_answer() -> None:
    async with open_scene({}) as scene:
        scene.up(100)
        scene.nodes[0].always("0x62")
        pending = scene.send("eth_blockNumber")
        await scene.later(0.03)
        scene.row.publish_reorg(97)
        scene.up(98)
        await scene.later(0.1)
        assert summary(await pending) == "0x62"


async def test_question_that_the_prober_overtook_is_answered() -> None:
    async with open_scene({}) as scene:
        scene.up(100)
        scene.nodes[0].always("0x64")
        scene.nodes[0].holds = True
        pending = scene.send("eth_blockNumber")
        await turns()
        scene.up(101)
        scene.nodes[0].let()
        assert summary(await pending) == "0x64"


async def test_answer_that_was_overtaken_by_another_is_requested_again() -> None:
    async with open_scene({}) as scene:
        scene.up(100)
        scene.nodes[0].holds = True
        scene.nodes[0].in_turn("0x65", "0x64", "0x65")
        first, second = scene.send("eth_blockNumber"), scene.send("eth_blockNumber")
        await turns()
        scene.nodes[0].let(1)
        assert summary(await second) == "0x65"
        scene.nodes[0].let()
        await scene.later(0.1)
        assert not first.done()
        scene.nodes[0].let()
        assert summary(await first) == "0x65"


async def test_head_that_cannot_be_is_not_believed(scene: Scene) -> None:
    scene.up(100, 100)
    scene.nodes[0].always("0xffffffff")
    scene.nodes[1].always("0x64")
    assert await scene.call("eth_blockNumber") == "0x64"
    assert scene.row.floor == 100


async def test_while_the_prober_is_silent_everybody_is_called_but_nobody_is_shown_less_than_before(
    scene: Scene,
) -> None:
    scene.up(100, 90)
    scene.state(1, State.LAGGING, 90)
    scene.nodes[0].always("0x64")
    assert await scene.call("eth_blockNumber") == "0x64"
    scene.clock.advance(SILENCE_SECONDS + 1)
    scene.nodes[0].always(DROP)
    scene.nodes[1].always("0x63")
    pending = scene.send("eth_blockNumber")
    await scene.later(3.0)
    with pytest.raises(UpstreamUnavailable, match="behind"):
        await pending
    scene.nodes[1].always("0x70")
    scene.clock.advance(30)
    assert await scene.call("eth_blockNumber") == "0x70"


async def test_words_of_a_lagging_node_go_elsewhere_and_stand_at_last(scene: Scene) -> None:
    scene.up(100, 100)
    scene.nodes[0].always(LAGGING)
    assert await scene.call(BALANCE, "0xa", "0x64") == "up1"
    scene.nodes[1].always(LAGGING)
    assert await scene.call(BALANCE, "0xa", "0x64") == LAGGING
