"""What a feed does around its chain: what it lets the prober know, how it ends, at which bounds it gives up."""

from __future__ import annotations

import asyncio

import pytest
from tests.gateway.fakes import turns
from tests.gateway.feeds.scripted_chain import ADDRESSES, FeedSetup, numbers

from tollgate.chains.subscriptions import Wrong
from tollgate.errors import UpstreamUnavailable
from tollgate.gateway.feeds import feed as feed_module
from tollgate.gateway.feeds import history as history_module
from tollgate.gateway.feeds import subscribers as subscribers_module
from tollgate.gateway.feeds.feed import MAX_BEHIND, POLL_SECONDS, Feed, Feeds, repeat
from tollgate.gateway.feeds.source import NotNow

HEADS = ("eth_subscribe", ["newHeads"])


async def test_prober_learns_of_subscribers_of_every_feed_and_of_no_others() -> None:
    setups = {"eth/one": FeedSetup(), "eth/other": FeedSetup()}
    made: list[str] = []

    def make(path: str) -> Feed:
        made.append(path)
        return setups[path].feed

    feeds = Feeds(make)
    for path in ("eth/one", "eth/other", "eth/one"):
        assert feeds.feed(path) is setups[path].feed
    assert made == ["eth/one", "eth/other"], "each once"
    feeds.tick()
    assert [setup.row.wanted_at for setup in setups.values()] == [0.0, 0.0]
    await setups["eth/other"].listen(*HEADS)
    feeds.tick()
    assert [setup.row.wanted_at for setup in setups.values()] == [0.0, setups["eth/other"].clock()]
    feeds.close()


async def test_prober_learns_of_those_who_are_still_in_the_past() -> None:
    setup = FeedSetup("starknet")
    await setup.listen("starknet_subscribeNewHeads", [{"block_number": 2}], opened=False)
    setup.feed.tick()
    assert setup.row.wanted_at == setup.clock()
    setup.feed.close()


async def test_end_of_all_feeds_ends_their_subscriptions() -> None:
    setup = FeedSetup()
    feeds = Feeds(lambda _: setup.feed)
    subscriber, sink = await setup.listen(*HEADS)
    feeds.feed("eth/mainnet")
    feeds.close()
    assert subscriber.gone
    setup.mine()
    await setup.turn(2)
    assert sink.received == []


async def test_statuses_of_transactions_are_joined_and_left() -> None:
    setup = FeedSetup("starknet")
    subscriber, _ = await setup.listen("starknet_subscribeTransactionStatus", ["0x5"])
    await setup.turn(2)
    calls = len(setup.chain.calls)
    assert calls > 0
    setup.feed.leave(subscriber)
    await setup.turn(5)
    assert len(setup.chain.calls) == calls
    setup.feed.close()


@pytest.mark.parametrize(("blocks", "gives_up"), [(MAX_BEHIND, False), (MAX_BEHIND + 1, True)])
async def test_feed_gives_up_beyond_its_bound_and_not_at_it(blocks: int, gives_up: bool) -> None:
    setup = FeedSetup()
    _, sink = await setup.listen(*HEADS)
    await setup.turn()
    setup.mine(blocks)
    await setup.turn(6, loops=4_000)
    assert bool(sink.lost) is gives_up
    assert numbers(sink.results()) == ([] if gives_up else list(range(11, 11 + blocks)))
    setup.feed.close()


async def test_feed_that_gave_up_goes_on_for_who_subscribes_again() -> None:
    setup = FeedSetup()
    await setup.listen(*HEADS)
    await setup.turn()
    setup.mine(MAX_BEHIND + 1)
    await setup.turn()
    _, sink = await setup.listen(*HEADS)
    await setup.turn()
    setup.mine()
    await setup.turn(2)
    assert numbers(sink.results()) == [setup.chain.height]
    setup.feed.close()


async def test_without_the_board_upstreams_are_called_once_in_a_while_and_what_they_show_is_seen() -> None:
    setup = FeedSetup(probed=False)
    await setup.listen(*HEADS)

    def calls() -> int:
        return sum(call.method == "eth_blockNumber" for call in setup.chain.calls)

    await turns(50)
    assert (calls(), setup.row.shown) == (1, setup.chain.height)
    setup.clock.advance(POLL_SECONDS - 0.01)
    await setup.pace.turn(50)
    assert calls() == 1
    setup.clock.advance(0.01)
    await setup.pace.turn(50)
    assert calls() == 2
    setup.feed.close()


async def test_notifications_before_the_answer_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscribers_module, "_MAX_HELD_BYTES", 300)
    setup = FeedSetup()
    subscriber, sink = await setup.listen(*HEADS, opened=False)
    await setup.turn()
    for _ in range(3):
        setup.mine()
        await setup.turn()
    assert (sink.received, len(sink.lost)) == ([], 1)
    assert "outside of large batches" in sink.lost[0]
    setup.feed.leave(subscriber)
    setup.feed.close()


@pytest.mark.parametrize("probed", [True, False])
async def test_start_that_nobody_knows_is_refused(probed: bool) -> None:
    setup = FeedSetup("starknet", probed=probed)
    setup.chain.fail = lambda _: True
    with pytest.raises(UpstreamUnavailable):
        await setup.listen("starknet_subscribeNewHeads", [{"block_hash": "0x5"}])
    setup.feed.close()


@pytest.mark.parametrize(("back", "fits"), [(1_024, True), (1_025, False)])
async def test_start_may_be_as_far_back_as_the_bound(back: int, fits: bool) -> None:
    setup = FeedSetup("starknet", height=1_100)
    start = [{"block_number": 1_100 - back}]
    if fits:
        await setup.listen("starknet_subscribeNewHeads", start, opened=False)
    else:
        with pytest.raises(Wrong, match="1024"):
            await setup.listen("starknet_subscribeNewHeads", start)
    setup.feed.close()


async def test_start_may_be_a_moment_ahead_of_the_board_but_not_of_the_nodes() -> None:
    setup = FeedSetup("starknet")
    setup.chain.mine()
    await setup.listen("starknet_subscribeNewHeads", [{"block_number": 11}], opened=False)
    with pytest.raises(Wrong, match="not found"):
        await setup.listen("starknet_subscribeNewHeads", [{"block_number": 12}])
    setup.feed.close()


async def test_reorganisation_ends_subscriptions_to_logs_that_were_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(history_module, "MAX_KEPT_BYTES", 10)
    setup = FeedSetup()
    _, logs = await setup.listen("eth_subscribe", ["logs", {"address": ADDRESSES[0]}])
    _, heads = await setup.listen(*HEADS)
    await setup.turn()
    setup.mine(3)
    await setup.turn(2)
    setup.reorganise(2, 3)
    await setup.turn(3)
    assert len(logs.lost) == 1
    assert "reorganised too deeply" in logs.lost[0]
    assert heads.lost == []
    setup.feed.close()


# --- Again and again -----------------------------------------------------------------------------------------


class Steps:
    """A job that does what the script has, on sleeps that are written down."""

    def __init__(self, *script: object) -> None:
        self.script = list(script)
        self.slept: list[float] = []

    async def step(self) -> bool:
        what = self.script.pop(0)
        if isinstance(what, Exception):
            raise what
        return bool(what)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)


async def test_job_is_repeated_until_it_is_done_and_waits_longer_after_each_failure() -> None:
    late = NotNow("no")
    job = Steps(False, *[late] * 8, False, late, True)
    await repeat("eth/mainnet", job.step, job.sleep)
    soon = feed_module.LOOK_SECONDS
    assert job.slept == [soon, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, soon, 0.05]


async def test_defect_does_not_end_a_job() -> None:
    job = Steps(ZeroDivisionError("a defect"), True)
    await repeat("eth/mainnet", job.step, job.sleep)
    assert job.slept == [2.0]
