"""Second attempts at reads that take longer than usual, driven over scripted nodes."""

from __future__ import annotations

import pytest
from tests.gateway.callers import summary
from tests.gateway.fake_gateway import FakeGateway, open_gateway
from tests.gateway.fake_node import BROKEN, DROP, LAGGING, PRUNED, Error, Http
from tests.gateway.fakes import run_pending

from tollgate.errors import UpstreamError
from tollgate.shm import metrics

READ, UNKNOWN = "eth_chainId", "foo_bar"
USUAL = 0.1


async def used(gateway: FakeGateway, times: int = 20, seconds: float = USUAL) -> None:
    """Let the first upstream become known as one that takes so long; nothing is saved for hedges but this."""
    first = gateway.nodes[0]
    first.holds = True
    for _ in range(times):
        pending = gateway.send(READ)
        await run_pending()
        await gateway.loop.advance(seconds)
        first.release()
        await pending
    assert gateway["up0"].hedge_after == pytest.approx(seconds, rel=0.1)
    first.calls.clear()


def hedges(gateway: FakeGateway) -> int:
    return gateway.counted(metrics.UPSTREAM_HEDGES, "eth", "mainnet")


async def test_second_upstream_is_called_after_the_p95_and_its_answer_wins(gateway: FakeGateway) -> None:
    await used(gateway)
    pending = gateway.send(READ)
    await gateway.loop.advance(USUAL * 0.8)
    assert gateway.counts() == [1, 0]
    await gateway.loop.advance(USUAL * 0.4)
    assert gateway.counts() == [1, 1]
    assert summary(await pending) == "up1"
    assert (gateway.trace.upstream, gateway.trace.attempts, hedges(gateway)) == ("up1", 2, 1)


async def test_call_that_is_answered_in_time_is_not_sent_a_second_time(gateway: FakeGateway) -> None:
    await used(gateway)
    gateway.nodes[0].holds = False
    for _ in range(30):
        assert await gateway.call(READ) == "up0"
    await gateway.loop.advance(5.0)
    assert (gateway.counts(), hedges(gateway)) == ([30, 0], 0)


async def test_upstream_of_which_little_is_known_is_hedged_after_half_a_second(gateway: FakeGateway) -> None:
    for _ in range(20):
        await gateway.call("foo_bar")
    gateway.nodes[0].holds = True
    gateway.exchange.upstreams[0].failures += 10
    pending = gateway.send(READ)
    await gateway.loop.advance(0.45)
    assert gateway.nodes[1].calls == []
    await gateway.loop.advance(0.1)
    assert summary(await pending) == "up1"


async def test_hedge_that_could_not_be_paid_for_begins_when_it_can(gateway: FakeGateway) -> None:
    await used(gateway, 20)
    gateway.save_hedges(0.5)
    pending = gateway.send(READ)
    await gateway.loop.advance(0.5)
    assert gateway.counts() == [1, 0]
    gateway.save_hedges(1.0)
    await gateway.loop.advance(0.05)
    assert summary(await pending) == "up1"


async def test_single_call_at_a_silent_upstream_is_hedged_in_a_while_without_other_calls(
    gateway: FakeGateway,
) -> None:
    await used(gateway, 20)
    gateway.save_hedges(0.0)
    pending = gateway.send(READ)
    await gateway.loop.advance(2.5)
    assert summary(await pending) == "up1"
    assert hedges(gateway) == 1


async def test_late_answer_of_the_loser_is_dropped_and_its_connection_stays_good(gateway: FakeGateway) -> None:
    await used(gateway)
    pending = gateway.send(READ)
    await gateway.loop.advance(0.2)
    await pending
    opened = len(gateway.loop.transports)
    assert gateway["up0"].in_flight == 1
    gateway.nodes[0].release()
    await run_pending()
    assert gateway["up0"].in_flight == 0
    gateway.nodes[0].holds = False
    assert await gateway.call(READ) == "up0"
    assert len(gateway.loop.transports) == opened


async def test_first_upstream_may_still_win_after_the_hedge_began(gateway: FakeGateway) -> None:
    await used(gateway)
    gateway.nodes[1].holds = True
    pending = gateway.send(READ)
    await gateway.loop.advance(0.2)
    assert gateway.counts() == [1, 1]
    gateway.nodes[0].release()
    assert summary(await pending) == "up0"
    assert gateway.trace.upstream == "up0"
    gateway.nodes[1].drop()
    await run_pending()
    assert [each.in_flight for each in gateway.upstreams] == [0, 0]


@pytest.mark.parametrize("options", [{"network": {"hedge": False}}, {}])
async def test_hedging_can_be_turned_off_and_needs_a_second_upstream(options: dict[str, object]) -> None:
    gateway = await open_gateway(*([{}, {}] if options else [{}]), **options)
    await used(gateway)
    pending = gateway.send(READ)
    await gateway.loop.advance(5.0)
    assert (sum(gateway.counts()), hedges(gateway)) == (1, 0)
    gateway.nodes[0].release()
    assert summary(await pending) == "up0"


async def test_what_may_be_a_write_is_never_hedged(gateway: FakeGateway) -> None:
    await used(gateway)
    pending = gateway.send(UNKNOWN)
    await gateway.loop.advance(5.0)
    assert gateway.counts() == [1, 0]
    gateway.nodes[0].release()
    assert summary(await pending) == "up0"


async def test_hedges_are_one_in_twenty_calls() -> None:
    gateway = await open_gateway({"connections": 300}, {})
    await used(gateway)
    pending = [gateway.send(READ) for _ in range(200)]
    await gateway.loop.advance(1.0)
    assert hedges(gateway) == gateway.counts()[1] == 11, "of 220 calls"
    while gateway.nodes[0].held:
        gateway.nodes[0].release()
    assert {summary(await each) for each in pending} == {"up0", "up1"}


@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize(("first", "second"), [(PRUNED, BROKEN), (BROKEN, PRUNED), (PRUNED, DROP), (DROP, PRUNED)])
async def test_where_both_are_bad_the_words_of_a_node_stand(
    first: object, second: object, late: bool, gateway: FakeGateway
) -> None:
    await used(gateway)
    gateway.nodes[0].always(first)
    gateway.nodes[1].always(second)
    gateway.nodes[1].holds = True
    pending = gateway.send(READ)
    await gateway.loop.advance(0.2)
    nodes = gateway.nodes if late else gateway.nodes[::-1]
    for node in nodes:
        node.holds = False
        node.release()
        await run_pending()
    await gateway.advance(1.0)
    answer = summary(await pending)
    assert isinstance(answer, Error)
    assert answer in (first, second)
    if DROP not in (first, second):
        assert answer == (second if late else first), "the last ones"


async def test_where_both_break_off_it_is_a_failure_after_one_more_try(gateway: FakeGateway) -> None:
    await used(gateway)
    for node in gateway.nodes:
        node.always(DROP)
    pending = gateway.send(READ)
    await gateway.loop.advance(0.2)
    gateway.nodes[0].holds = False
    gateway.nodes[0].release()
    await gateway.advance(1.0)
    with pytest.raises(UpstreamError):
        await pending
    assert gateway.trace.attempts == 4


async def test_bad_hedge_does_not_end_the_first_attempt(gateway: FakeGateway) -> None:
    await used(gateway)
    gateway.nodes[1].always(DROP)
    pending = gateway.send(READ)
    await gateway.loop.advance(0.2)
    assert not pending.done()
    gateway.nodes[0].release()
    assert summary(await pending) == "up0"


async def test_hedge_takes_from_the_rate_of_whom_it_calls() -> None:
    gateway = await open_gateway({"connections": 300}, {"requests_per_second": 1})
    await used(gateway)
    pending = [gateway.send(READ) for _ in range(40)]
    await gateway.loop.advance(0.5)
    assert gateway.counts() == [40, 1]
    while gateway.nodes[0].held:
        gateway.nodes[0].release()
    for each in pending:
        await each


# --- A silent upstream -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [PRUNED, BROKEN, LAGGING, DROP, Http(503)])
async def test_if_the_hedge_fails_the_next_upstream_is_called_without_waiting_for_the_silent_one(
    bad: object,
) -> None:
    gateway = await open_gateway({}, {}, {})
    await used(gateway)
    gateway.nodes[1].always(bad)
    pending = gateway.send(READ)
    await gateway.advance(0.3)
    assert gateway.counts() == [1, 1, 1]
    assert summary(await pending) == "up2"
    assert (gateway.trace.upstream, gateway.trace.attempts, hedges(gateway)) == ("up2", 3, 1)


async def test_where_the_hedge_meets_one_that_is_behind_it_is_called_again_while_the_first_is_silent(
    gateway: FakeGateway,
) -> None:
    gateway.publish_heads(100, 100)
    await used(gateway)
    gateway.nodes[1].in_turn("0x63", "0x63", "0x64")
    pending = gateway.send("eth_blockNumber")
    await gateway.advance(1.0)
    assert summary(await pending) == "0x64"
    assert gateway.counts() == [1, 3]


async def test_answer_of_the_silent_one_still_counts_while_others_are_called() -> None:
    gateway = await open_gateway({}, {}, {})
    await used(gateway)
    gateway.nodes[1].always(BROKEN)
    gateway.nodes[2].holds = True
    pending = gateway.send(READ)
    await gateway.advance(0.3)
    assert gateway.counts() == [1, 1, 1]
    gateway.nodes[0].release()
    assert summary(await pending) == "up0"
    gateway.nodes[2].release()


async def test_without_another_upstream_the_silent_one_is_waited_for(gateway: FakeGateway) -> None:
    await used(gateway)
    gateway.nodes[1].always(BROKEN)
    pending = gateway.send(READ)
    await gateway.advance(2.0)
    assert (gateway.counts(), pending.done()) == ([1, 1], False)
    gateway.nodes[0].release()
    assert summary(await pending) == "up0"
