"""Transactions that are sent to several upstreams at once, and what else follows from sending one."""

from __future__ import annotations

from typing import Any

import pytest
from tests.gateway.fakes import turns
from tests.gateway.scene import (
    BROKEN,
    DROP,
    KNOWN,
    NONCE,
    QUOTA,
    Http,
    Scene,
    open_scene,
    summary,
)
from tests.gateway.transactions import (
    DOUBT,
    FUNDS,
    RAW,
    SEND,
    THREE,
    plays,
    sends,
    sent,
)

from tollgate.errors import UpstreamError
from tollgate.gateway.upstream.failover import MAX_ATTEMPTS

# --- Broadcast ---------------------------------------------------------------------------------------------


async def test_transaction_is_sent_to_as_many_as_is_set_and_the_first_success_answers() -> None:
    async with open_scene(*THREE, network={"broadcast": 2}) as scene:
        plays(scene, "first", "second", "?")
        for node in scene.nodes:
            node.holds = True
        pending = scene.send(SEND, RAW)
        await turns()
        assert sends(scene) == [1, 1, 0]
        scene.nodes[1].let()
        assert summary(await pending) == "second"
        assert (scene.trace.upstream, scene.trace.attempts) == ("up1", 2)
        scene.nodes[0].let()
        await turns()
        assert sends(scene) == [1, 1, 0]


@pytest.mark.parametrize("bad", [KNOWN, NONCE, FUNDS, BROKEN, DROP, Http(500), QUOTA])
async def test_success_of_one_answers_whatever_the_others_answer(bad: Any) -> None:
    async with open_scene(*THREE, network={"broadcast": 3}) as scene:
        plays(scene, bad, "second", bad)
        assert await sent(scene) == "second"
        assert sends(scene)[1] == 1


async def test_first_that_fails_at_once_does_not_silence_the_others() -> None:
    async with open_scene({"connections": 1}, {}, network={"broadcast": 2, "hedge": False}) as scene:
        plays(scene, "?", "second")
        scene.nodes[0].holds = True
        busy = [scene.send("eth_chainId") for _ in range(17)]
        await turns()
        assert await sent(scene) == "second"
        assert (sends(scene)[1], scene.attempts(0, "full")) == (1, 1)
        while scene.nodes[0].held:
            scene.nodes[0].let()
            await turns()
        for each in busy:
            await each


async def test_known_by_everybody_before_is_passed_on() -> None:
    async with open_scene(*THREE, network={"broadcast": 3}) as scene:
        plays(scene, KNOWN, KNOWN, KNOWN)
        assert await sent(scene) == KNOWN


async def test_where_all_of_a_broadcast_fail_the_rest_is_sent_it_one_by_one() -> None:
    async with open_scene(*THREE, {}, network={"broadcast": 2}) as scene:
        plays(scene, DROP, DROP, "third", "?")
        assert await sent(scene) == "third"
        assert sends(scene) == [1, 1, 1, 0]


async def test_broadcast_to_more_than_a_read_would_ever_call() -> None:
    async with open_scene(*[{}] * 10, network={"broadcast": 16}) as scene:
        plays(scene, *["x"] * 10)
        await sent(scene)
        assert sends(scene) == [1] * 10


async def test_after_a_broadcast_as_many_others_are_tried_as_for_one() -> None:
    async with open_scene(*[{}] * 10, network={"broadcast": 3}) as scene:
        plays(scene, *[DROP] * 10)
        await sent(scene, 1.0)
        assert sum(sends(scene)) == 3 + MAX_ATTEMPTS - 1


# --- What else follows -------------------------------------------------------------------------------------


async def test_upstream_whose_quota_is_used_up_is_spared(scene: Scene) -> None:
    plays(scene, QUOTA, "second")
    assert await sent(scene) == "second"
    await scene.call("eth_chainId")
    assert [len(node.calls) for node in scene.nodes] == [1, 2]


async def test_transaction_is_not_repeated_on_another_connection_to_the_same_upstream(scene: Scene) -> None:
    plays(scene, DROP, "second")
    await scene.call("eth_chainId")
    assert await sent(scene) == "second"
    assert [len(node.calls) for node in scene.nodes] == [2, 1]


@pytest.mark.parametrize("reply", ["x", NONCE, DROP])
async def test_tips_are_read_anew_after_a_transaction(reply: Any, scene: Scene) -> None:
    plays(scene, reply, reply)
    before = scene.row.probe_requests
    await sent(scene, 1.0)
    assert scene.row.probe_requests == before + 1


@pytest.mark.parametrize("in_batch", [True, False])
async def test_tips_are_read_anew_after_what_the_node_signs_itself(in_batch: bool, scene: Scene) -> None:
    if in_batch:
        await scene.resolve_many(("eth_sendTransaction", [{}]), ("foo_bar", []))
    else:
        await scene.call("eth_sendTransaction", {})
    assert scene.row.probe_requests == 1
    await scene.call("eth_call", {}, "latest")
    assert scene.row.probe_requests == 1


async def test_what_the_node_signs_itself_is_sent_once(scene: Scene) -> None:
    scene.nodes[0].always(DROP)
    pending = scene.send("eth_sendTransaction", {})
    await scene.later(1.0)
    with pytest.raises(UpstreamError, match=DOUBT):
        await pending
    assert sends(scene) == [1, 0]
