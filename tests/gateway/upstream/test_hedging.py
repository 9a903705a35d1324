"""Second attempts at reads that take longer than usual, driven over scripted nodes."""

from __future__ import annotations

import pytest
from tests.gateway.fakes import turns
from tests.gateway.scene import BROKEN, DROP, LAGGING, PRUNED, Error, Http, Scene, open_scene, summary

from tollgate.errors import UpstreamError
from tollgate.shm import metrics

READ, UNKNOWN = "eth_chainId", "foo_bar"
USUAL = 0.1


async def used(scene: Scene, times: int = 20, seconds: float = USUAL) -> None:
    """Let the first upstream become known as one that takes so long; nothing is saved for hedges but this."""
    first = scene.nodes[0]
    first.holds = True
    for _ in range(times):
        pending = scene.send(READ)
        await turns()
        await scene.loop.later(seconds)
        first.let()
        await pending
    assert scene.upstream(0).p95 == pytest.approx(seconds, rel=0.1)
    first.calls.clear()


def hedges(scene: Scene) -> int:
    return scene.worker.counted(metrics.UPSTREAM_HEDGES, "eth", "mainnet")


async def test_second_upstream_is_called_after_the_p95_and_its_answer_wins(scene: Scene) -> None:
    await used(scene)
    pending = scene.send(READ)
    await scene.loop.later(USUAL * 0.8)
    assert scene.counts() == [1, 0]
    await scene.loop.later(USUAL * 0.4)
    assert scene.counts() == [1, 1]
    assert summary(await pending) == "up1"
    assert (scene.trace.upstream, scene.trace.attempts, hedges(scene)) == ("up1", 2, 1)


async def test_call_that_is_answered_in_time_is_not_sent_a_second_time(scene: Scene) -> None:
    await used(scene)
    scene.nodes[0].holds = False
    for _ in range(30):
        assert await scene.call(READ) == "up0"
    await scene.loop.later(5.0)
    assert (scene.counts(), hedges(scene)) == ([30, 0], 0)


async def test_upstream_of_which_little_is_known_is_hedged_after_half_a_second(scene: Scene) -> None:
    for _ in range(20):
        await scene.call("foo_bar")
    scene.nodes[0].holds = True
    scene.exchange.upstreams[0].failures += 10
    pending = scene.send(READ)
    await scene.loop.later(0.45)
    assert scene.nodes[1].calls == []
    await scene.loop.later(0.1)
    assert summary(await pending) == "up1"


async def test_hedge_that_could_not_be_paid_for_begins_when_it_can(scene: Scene) -> None:
    await used(scene, 20)
    scene.save_hedges(0.5)
    pending = scene.send(READ)
    await scene.loop.later(0.5)
    assert scene.counts() == [1, 0]
    scene.save_hedges(1.0)
    await scene.loop.later(0.05)
    assert summary(await pending) == "up1"


async def test_single_call_at_a_silent_upstream_is_hedged_in_a_while_though_nobody_else_calls(
    scene: Scene,
) -> None:
    await used(scene, 20)
    scene.save_hedges(0.0)
    pending = scene.send(READ)
    await scene.loop.later(2.5)
    assert summary(await pending) == "up1"
    assert hedges(scene) == 1


async def test_late_answer_of_the_loser_is_dropped_and_its_connection_stays_good(scene: Scene) -> None:
    await used(scene)
    pending = scene.send(READ)
    await scene.loop.later(0.2)
    await pending
    opened = len(scene.loop.transports)
    assert scene.upstream(0).in_flight == 1
    scene.nodes[0].let()
    await turns()
    assert scene.upstream(0).in_flight == 0
    scene.nodes[0].holds = False
    assert await scene.call(READ) == "up0"
    assert len(scene.loop.transports) == opened


async def test_first_upstream_may_still_win_after_the_hedge_began(scene: Scene) -> None:
    await used(scene)
    scene.nodes[1].holds = True
    pending = scene.send(READ)
    await scene.loop.later(0.2)
    assert scene.counts() == [1, 1]
    scene.nodes[0].let()
    assert summary(await pending) == "up0"
    assert scene.trace.upstream == "up0"
    scene.nodes[1].drop()
    await turns()
    assert [scene.upstream(index).in_flight for index in range(2)] == [0, 0]


@pytest.mark.parametrize("options", [{"network": {"hedge": False}}, {}])
async def test_hedging_can_be_turned_off_and_needs_a_second_upstream(options: dict[str, object]) -> None:
    async with open_scene(*([{}, {}] if options else [{}]), **options) as scene:
        await used(scene)
        pending = scene.send(READ)
        await scene.loop.later(5.0)
        assert (sum(scene.counts()), hedges(scene)) == (1, 0)
        scene.nodes[0].let()
        assert summary(await pending) == "up0"


async def test_what_may_be_a_write_is_never_hedged(scene: Scene) -> None:
    await used(scene)
    pending = scene.send(UNKNOWN)
    await scene.loop.later(5.0)
    assert scene.counts() == [1, 0]
    scene.nodes[0].let()
    assert summary(await pending) == "up0"


async def test_hedges_are_one_in_twenty_calls() -> None:
    async with open_scene({"connections": 300}, {}) as scene:
        await used(scene)
        pending = [scene.send(READ) for _ in range(200)]
        await scene.loop.later(1.0)
        assert hedges(scene) == scene.counts()[1] == 11, "of 220 calls"
        while scene.nodes[0].held:
            scene.nodes[0].let()
        assert {summary(await each) for each in pending} == {"up0", "up1"}


@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize(("first", "second"), [(PRUNED, BROKEN), (BROKEN, PRUNED), (PRUNED, DROP), (DROP, PRUNED)])
async def test_where_both_are_bad_the_words_of_a_node_stand(
    first: object, second: object, late: bool, scene: Scene
) -> None:
    await used(scene)
    scene.nodes[0].always(first)
    scene.nodes[1].always(second)
    scene.nodes[1].holds = True
    pending = scene.send(READ)
    await scene.loop.later(0.2)
    nodes = scene.nodes if late else scene.nodes[::-1]
    for node in nodes:
        node.holds = False
        node.let()
        await turns()
    await scene.later(1.0)
    answer = summary(await pending)
    assert isinstance(answer, Error)
    assert answer in (first, second)
    if DROP not in (first, second):
        assert answer == (second if late else first), "the last ones"


async def test_where_both_break_off_it_is_a_failure_after_one_more_try(scene: Scene) -> None:
    await used(scene)
    for node in scene.nodes:
        node.always(DROP)
    pending = scene.send(READ)
    await scene.loop.later(0.2)
    scene.nodes[0].holds = False
    scene.nodes[0].let()
    await scene.later(1.0)
    with pytest.raises(UpstreamError):
        await pending
    assert scene.trace.attempts == 4


async def test_bad_hedge_does_not_end_the_first_attempt(scene: Scene) -> None:
    await used(scene)
    scene.nodes[1].always(DROP)
    pending = scene.send(READ)
    await scene.loop.later(0.2)
    assert not pending.done()
    scene.nodes[0].let()
    assert summary(await pending) == "up0"


async def test_hedge_takes_from_the_rate_of_whom_it_calls() -> None:
    async with open_scene({"connections": 300}, {"requests_per_second": 1}) as scene:
        await used(scene)
        pending = [scene.send(READ) for _ in range(40)]
        await scene.loop.later(0.5)
        assert scene.counts() == [40, 1]
        while scene.nodes[0].held:
            scene.nodes[0].let()
        for each in pending:
            await each


# --- A silent upstream -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [PRUNED, BROKEN, LAGGING, DROP, Http(503)])
async def test_where_the_hedge_fares_badly_the_next_is_called_and_nobody_waits_for_the_silent_one(
    bad: object,
) -> None:
    async with open_scene({}, {}, {}) as scene:
        await used(scene)
        scene.nodes[1].always(bad)
        pending = scene.send(READ)
        await scene.later(0.3)
        assert scene.counts() == [1, 1, 1]
        assert summary(await pending) == "up2"
        assert (scene.trace.upstream, scene.trace.attempts, hedges(scene)) == ("up2", 3, 1)


async def test_where_the_hedge_meets_one_that_is_behind_it_is_called_again_while_the_first_is_silent(
    scene: Scene,
) -> None:
    scene.up(100, 100)
    await used(scene)
    scene.nodes[1].in_turn("0x63", "0x63", "0x64")
    pending = scene.send("eth_blockNumber")
    await scene.later(1.0)
    assert summary(await pending) == "0x64"
    assert scene.counts() == [1, 3]


async def test_answer_of_the_silent_one_still_counts_while_others_are_called() -> None:
    async with open_scene({}, {}, {}) as scene:
        await used(scene)
        scene.nodes[1].always(BROKEN)
        scene.nodes[2].holds = True
        pending = scene.send(READ)
        await scene.later(0.3)
        assert scene.counts() == [1, 1, 1]
        scene.nodes[0].let()
        assert summary(await pending) == "up0"
        scene.nodes[2].let()


async def test_where_nobody_else_is_left_the_silent_one_is_waited_for(scene: Scene) -> None:
    await used(scene)
    scene.nodes[1].always(BROKEN)
    pending = scene.send(READ)
    await scene.later(2.0)
    assert (scene.counts(), pending.done()) == ([1, 1], False)
    scene.nodes[0].let()
    assert summary(await pending) == "up0"
