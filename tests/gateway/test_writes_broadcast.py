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
    Error,
    Http,
    Scene,
    said,
    with_scene,
)

from tollgate.errors import Refusal, UpstreamError

SEND = "eth_sendRawTransaction"
# The example of EIP-155, and that of eth-account's documentation.
RAW = (
    "0xf86c098504a817c800825208943535353535353535353535353535353535353535880de0b6b3a76400008025"
    "a028ef61340bd939bc2195fe537567866003e1a15d3c71ff63e1590620aa636276"
    "a067cbe9d8997f761aecb703304b3800ccf555c9f3dc64214b297fb1966a3b6d83"
)
HASH = "0x33469b22e9f636356c4160a87eb19df52b7412e8eac32a4a55ffe88ea8350788"
OTHER_RAW = (
    "0xf86a8086d55698372431831e848094f0109fc8df283027b6285cc889f5aa624eac1f55843b9aca008025"
    "a009ebb6ca057a0535d6186462bc0b465b561c94a295bdb0621fc19208ab149a9c"
    "a0440ffd775ce91a833ab410777204d5341a6f9fa91216a6f3ee2c051fea6a0428"
)
OTHER_HASH = "0xd8f64a42b57be0d565f385378db2f6bf324ce14a594afc05de90436e9ce01f60"
FUNDS = Error(-32000, "insufficient funds for gas * price + value")
DUPLICATE = Error(59, "A transaction with the same hash already exists in the mempool")
DOUBT = "may have been carried out"
THREE: tuple[dict[str, Any], ...] = ({}, {}, {})


def plays(scene: Scene, *told: Any, found: Any = None) -> None:
    """What each upstream says to a transaction, and what all of them say when they are asked for it."""
    for node, each in zip(scene.nodes, told, strict=True):
        node.plays(lambda told, method, _: told if method == SEND else found, each)


def sends(scene: Scene) -> list[int]:
    """How often each upstream was sent a transaction."""
    return [sum(method != "eth_getTransactionByHash" for method, _ in node.calls) for node in scene.nodes]


def looks(scene: Scene) -> int:
    """How often the chain was asked."""
    return sum(method == "eth_getTransactionByHash" for node in scene.nodes for method, _ in node.calls)


async def sent(scene: Scene, seconds: float = 0.0, method: str = SEND, params: Any = (RAW,)) -> Any:
    """Send a transaction; what its sender is told."""
    asked = scene.ask(method, *params)
    await turns()
    if seconds:
        await scene.later(seconds)
    try:
        return said(await asked)
    except Refusal as refusal:
        return refusal


# --- Broadcast ---------------------------------------------------------------------------------------------


def test_transaction_is_sent_to_as_many_as_is_set_and_the_first_success_answers() -> None:
    async def test(scene: Scene) -> None:
        plays(scene, "first", "second", "?")
        for node in scene.nodes:
            node.holds = True
        asked = scene.ask(SEND, RAW)
        await turns()
        assert sends(scene) == [1, 1, 0]
        scene.nodes[1].let()
        assert said(await asked) == "second"
        assert (scene.trace.upstream, scene.trace.attempts) == ("up1", 2)
        scene.nodes[0].let()
        await turns()
        assert sends(scene) == [1, 1, 0]

    with_scene(test, *THREE, network={"broadcast": 2})


@pytest.mark.parametrize("bad", [KNOWN, NONCE, FUNDS, BROKEN, DROP, Http(500), QUOTA])
def test_success_of_one_answers_whatever_the_others_say(bad: Any) -> None:
    async def test(scene: Scene) -> None:
        plays(scene, bad, "second", bad)
        assert await sent(scene) == "second"
        assert sends(scene)[1] == 1

    with_scene(test, *THREE, network={"broadcast": 3})


def test_first_that_fails_at_once_does_not_silence_the_others() -> None:
    async def test(scene: Scene) -> None:
        plays(scene, "?", "second")
        scene.nodes[0].holds = True
        busy = [scene.ask("eth_chainId") for _ in range(17)]
        await turns()
        assert await sent(scene) == "second"
        assert (sends(scene)[1], scene.attempts(0, "full")) == (1, 1)
        while scene.nodes[0].held:
            scene.nodes[0].let()
            await turns()
        for each in busy:
            await each

    with_scene(test, {"connections": 1}, {}, network={"broadcast": 2, "hedge": False})


def test_known_by_everybody_before_is_passed_on() -> None:
    async def test(scene: Scene) -> None:
        plays(scene, KNOWN, KNOWN, KNOWN)
        assert await sent(scene) == KNOWN

    with_scene(test, *THREE, network={"broadcast": 3})


def test_where_all_of_a_broadcast_fail_the_rest_is_sent_it_one_by_one() -> None:
    async def test(scene: Scene) -> None:
        plays(scene, DROP, DROP, "third", "?")
        assert await sent(scene) == "third"
        assert sends(scene) == [1, 1, 1, 0]

    with_scene(test, *THREE, {}, network={"broadcast": 2})


def test_broadcast_to_more_than_a_read_would_ever_ask() -> None:
    async def test(scene: Scene) -> None:
        plays(scene, *["x"] * 10)
        await sent(scene)
        assert sends(scene) == [1] * 10

    with_scene(test, *[{}] * 10, network={"broadcast": 16})


# --- What else follows -------------------------------------------------------------------------------------


@pytest.mark.parametrize("told", ["x", NONCE, DROP])
def test_tips_are_read_anew_after_a_transaction(told: Any) -> None:
    async def test(scene: Scene) -> None:
        plays(scene, told, told)
        before = scene.row.nudges
        await sent(scene, 1.0)
        assert scene.row.nudges == before + 1

    with_scene(test)


@pytest.mark.parametrize("in_batch", [True, False])
def test_tips_are_read_anew_after_what_the_node_signs_itself(in_batch: bool) -> None:
    async def test(scene: Scene) -> None:
        if in_batch:
            await scene.ask_many(("eth_sendTransaction", [{}]), ("foo_bar", []))
        else:
            await scene.told("eth_sendTransaction", {})
        assert scene.row.nudges == 1
        await scene.told("eth_call", {}, "latest")
        assert scene.row.nudges == 1

    with_scene(test)


def test_what_the_node_signs_itself_is_sent_once() -> None:
    async def test(scene: Scene) -> None:
        scene.nodes[0].always(DROP)
        asked = scene.ask("eth_sendTransaction", {})
        await scene.later(1.0)
        with pytest.raises(UpstreamError, match=DOUBT):
            await asked
        assert sends(scene) == [1, 0]

    with_scene(test)
