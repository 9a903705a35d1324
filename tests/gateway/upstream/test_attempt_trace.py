"""The attempts at a call as its record shows them: when each started and ended, and why it was not the last."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import astuple
from tests.gateway.callers import summary
from tests.gateway.fake_gateway import FakeGateway, open_gateway
from tests.gateway.fake_node import BROKEN, DROP, QUOTA, REVERTED, Http
from tests.gateway.fakes import run_pending
from tests.gateway.transactions import plays, sent

from tollgate.api.logs import MAX_ATTEMPTS_KEPT, AttemptVerdict
from tollgate.core.entries import AttemptEntry, pack, read_record
from tollgate.errors import UpstreamError, UpstreamUnavailable

READ = "eth_chainId"


def tries(gateway: FakeGateway) -> list[tuple[str, str]]:
    return [(each.upstream, each.verdict.label) for each in gateway.trace.trace]


@pytest.mark.parametrize(
    ("failure", "verdict"),
    [
        (Http(503), "status"),
        (Http(429), "quota"),
        (QUOTA, "quota"),
        (BROKEN, "node_error"),
        (DROP, "connection"),
        (Http(404), "invalid"),
    ],
)
async def test_attempt_that_was_retried_elsewhere_has_its_reason(
    failure: Any, verdict: str, gateway: FakeGateway
) -> None:
    gateway.nodes[0].always(failure)
    assert await gateway.call(READ) == "up1"
    assert tries(gateway) == [("up0", verdict), ("up1", "answered")]
    assert gateway.trace.trace[0].status == (503 if verdict == "status" else 0)


async def test_refused_connection_is_one_about_the_connection(gateway: FakeGateway) -> None:
    gateway.loop.refusing = True
    pending = gateway.send(READ)
    await gateway.advance(1.0)
    with pytest.raises(UpstreamUnavailable):
        await pending
    assert set(tries(gateway)) == {("up0", "connection"), ("up1", "connection")}


async def test_times_are_those_of_the_attempts() -> None:
    gateway = await open_gateway({"timeout_seconds": 3.0}, {}, network={"hedge": False})
    gateway.nodes[0].holds = True
    pending = gateway.send(READ)
    await gateway.advance(3.2)
    assert summary(await pending) == "up1"
    first, second = gateway.trace.trace
    assert (first.upstream, first.verdict.label, first.start_micros) == ("up0", "timeout", 0)
    assert first.end_micros == pytest.approx(3_000_000, abs=200_000)
    assert second.start_micros == pytest.approx(first.end_micros, abs=200_000)


async def test_error_that_is_the_answer_is_one_of_the_node(gateway: FakeGateway) -> None:
    gateway.nodes[0].always(Http(503))
    gateway.nodes[1].always(REVERTED)
    assert await gateway.call("eth_call", {}) == REVERTED
    assert tries(gateway) == [("up0", "status"), ("up1", "node_error")]


@pytest.mark.parametrize("hedge_answers", [True, False])
async def test_of_a_call_and_its_hedge_one_has_lost(hedge_answers: bool, gateway: FakeGateway) -> None:
    first, second = gateway.nodes
    first.holds = second.holds = True
    pending = gateway.send(READ)
    await gateway.advance(2.5)
    assert gateway.counts() == [1, 1]
    (second if hedge_answers else first).release()
    await run_pending()
    assert summary(await pending) == ("up1" if hedge_answers else "up0")
    expected = (
        [("up0", "hedge_lost"), ("up1", "hedge_won")]
        if hedge_answers
        else [("up0", "answered"), ("up1", "hedge_lost")]
    )
    assert tries(gateway) == expected
    (first if hedge_answers else second).release()
    await run_pending()
    assert tries(gateway) == expected, "the end of a loser comes after the record"


async def test_transaction_that_the_first_upstream_did_not_take_has_both_attempts(gateway: FakeGateway) -> None:
    plays(gateway, Http(502), "hash by node")
    assert await sent(gateway) == "hash by node"
    assert tries(gateway) == [("up0", "status"), ("up1", "answered")]


async def test_call_of_a_batch_that_is_retried_alone_shows_why(gateway: FakeGateway) -> None:
    gateway.nodes[0].respond = lambda method, _: BROKEN if method == "eth_gasPrice" else "up0"
    items = await gateway.resolve_many((READ, []), ("eth_gasPrice", []))
    assert [[(each.upstream, each.verdict.label) for each in item.route.trace] for item in items] == [
        [("up0", "answered")],
        [("up0", "node_error"), ("up1", "answered")],
    ]


# --- What the record keeps -------------------------------------------------------------------------------------


async def test_only_attempt_whose_verdict_follows_from_the_outcome_is_a_count(gateway: FakeGateway) -> None:
    assert await gateway.call(READ) == "up0"
    assert gateway.trace.kept == 1
    gateway.nodes[0].always(REVERTED)
    assert await gateway.call("eth_call", {}) == REVERTED
    assert gateway.trace.kept == 1


async def test_only_attempt_that_failed_is_kept_whole() -> None:
    gateway = await open_gateway({})
    gateway.nodes[0].always(Http(503))
    # Without an upstream to try next; an unknown method may be anything, so it is sent once.
    pending = gateway.send("foo_bar")
    with pytest.raises(UpstreamError):
        await pending
    assert gateway.trace.kept == (AttemptEntry("up0", 0, 0, AttemptVerdict.STATUS, 503),)


async def test_attempts_are_kept_by_their_start_and_read_back() -> None:
    gateway = await open_gateway({}, {"priority": 1})
    gateway.nodes[0].holds = True
    pending = gateway.send(READ)
    await gateway.advance(2.5)
    await pending
    assert tries(gateway) == [("up0", "hedge_lost"), ("up1", "hedge_won")]
    kept = gateway.trace.kept
    record = read_record(pack((1.0, b"", 750_000, [], 0, b"", "up1", kept)))
    assert record.attempts == tuple(AttemptEntry(*astuple(each)) for each in gateway.trace.trace)


async def test_of_many_attempts_the_first_seven_and_the_last_are_kept() -> None:
    gateway = await open_gateway({"logs_blocks": 10})
    gateway.nodes[0].respond = lambda _, params: [int(params[0]["toBlock"], 16)]
    await gateway.call("eth_getLogs", {"fromBlock": "0x0", "toBlock": "0x12b"})
    assert gateway.trace.attempts == 30
    assert len(gateway.trace.trace) == MAX_ATTEMPTS_KEPT
    assert gateway.trace.kept is gateway.trace.trace
