"""Transactions that are sent to several upstreams at once, and what else follows from sending one."""

from __future__ import annotations

from typing import Any

import pytest
from tests.gateway.callers import summary
from tests.gateway.fake_gateway import FakeGateway, open_gateway
from tests.gateway.fake_node import BROKEN, DROP, KNOWN, NONCE, QUOTA, Http
from tests.gateway.fakes import run_pending
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
    gateway = await open_gateway(*THREE, network={"broadcast": 2})
    plays(gateway, "first", "second", "?")
    for node in gateway.nodes:
        node.holds = True
    pending = gateway.send(SEND, RAW)
    await run_pending()
    assert sends(gateway) == [1, 1, 0]
    gateway.nodes[1].release()
    assert summary(await pending) == "second"
    assert (gateway.trace.upstream, gateway.trace.attempts) == ("up1", 2)
    gateway.nodes[0].release()
    await run_pending()
    assert sends(gateway) == [1, 1, 0]


@pytest.mark.parametrize("bad", [KNOWN, NONCE, FUNDS, BROKEN, DROP, Http(500), QUOTA])
async def test_success_of_one_answers_whatever_the_others_answer(bad: Any) -> None:
    gateway = await open_gateway(*THREE, network={"broadcast": 3})
    plays(gateway, bad, "second", bad)
    assert await sent(gateway) == "second"
    assert sends(gateway)[1] == 1


async def test_first_that_fails_at_once_does_not_silence_the_others() -> None:
    gateway = await open_gateway({"connections": 1}, {}, network={"broadcast": 2, "hedge": False})
    plays(gateway, "?", "second")
    gateway.nodes[0].holds = True
    busy = [gateway.send("eth_chainId") for _ in range(17)]
    await run_pending()
    assert await sent(gateway) == "second"
    assert (sends(gateway)[1], gateway.attempts("up0", "full")) == (1, 1)
    while gateway.nodes[0].held:
        gateway.nodes[0].release()
        await run_pending()
    for each in busy:
        await each


async def test_known_by_everybody_before_is_passed_on() -> None:
    gateway = await open_gateway(*THREE, network={"broadcast": 3})
    plays(gateway, KNOWN, KNOWN, KNOWN)
    assert await sent(gateway) == KNOWN


async def test_where_all_of_a_broadcast_fail_the_rest_is_sent_it_one_by_one() -> None:
    gateway = await open_gateway(*THREE, {}, network={"broadcast": 2})
    plays(gateway, DROP, DROP, "third", "?")
    assert await sent(gateway) == "third"
    assert sends(gateway) == [1, 1, 1, 0]


async def test_broadcast_to_more_than_a_read_would_ever_call() -> None:
    gateway = await open_gateway(*[{}] * 10, network={"broadcast": 16})
    plays(gateway, *["x"] * 10)
    await sent(gateway)
    assert sends(gateway) == [1] * 10


async def test_after_a_broadcast_as_many_others_are_tried_as_for_one() -> None:
    gateway = await open_gateway(*[{}] * 10, network={"broadcast": 3})
    plays(gateway, *[DROP] * 10)
    await sent(gateway, 1.0)
    assert sum(sends(gateway)) == 3 + MAX_ATTEMPTS - 1


# --- What else follows -------------------------------------------------------------------------------------


async def test_upstream_whose_quota_is_used_up_is_spared(gateway: FakeGateway) -> None:
    plays(gateway, QUOTA, "second")
    assert await sent(gateway) == "second"
    await gateway.call("eth_chainId")
    assert [len(node.calls) for node in gateway.nodes] == [1, 2]


async def test_transaction_is_not_repeated_on_another_connection_to_the_same_upstream(
    gateway: FakeGateway,
) -> None:
    plays(gateway, DROP, "second")
    await gateway.call("eth_chainId")
    assert await sent(gateway) == "second"
    assert [len(node.calls) for node in gateway.nodes] == [2, 1]


@pytest.mark.parametrize("reply", ["x", NONCE, DROP])
async def test_tips_are_read_anew_after_a_transaction(reply: Any, gateway: FakeGateway) -> None:
    plays(gateway, reply, reply)
    before = gateway.status.probe_requests
    await sent(gateway, 1.0)
    assert gateway.status.probe_requests == before + 1


@pytest.mark.parametrize("in_batch", [True, False])
async def test_tips_are_read_anew_after_what_the_node_signs_itself(in_batch: bool, gateway: FakeGateway) -> None:
    if in_batch:
        await gateway.resolve_many(("eth_sendTransaction", [{}]), ("foo_bar", []))
    else:
        await gateway.call("eth_sendTransaction", {})
    assert gateway.status.probe_requests == 1
    await gateway.call("eth_call", {}, "latest")
    assert gateway.status.probe_requests == 1


async def test_what_the_node_signs_itself_is_sent_once(gateway: FakeGateway) -> None:
    gateway.nodes[0].always(DROP)
    pending = gateway.send("eth_sendTransaction", {})
    await gateway.advance(1.0)
    with pytest.raises(UpstreamError, match=DOUBT):
        await pending
    assert sends(gateway) == [1, 0]
