"""What a feed does around its chain: what it lets the prober know, how it ends, at which bounds it gives up."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from msgspec import Raw
from structlog.testing import capture_logs
from tests.gateway.fakes import run_pending
from tests.gateway.feeds.scripted_chain import ADDRESSES, Chain, FeedSetup, RecordingSink, numbers, silence

from tollgate.chains import subscriptions_eth
from tollgate.chains import subscriptions_starknet as starknet
from tollgate.chains.heads import NodeCall
from tollgate.chains.subscriptions import Subscription, Topic, Wrong
from tollgate.core.shapes import Reply
from tollgate.errors import UpstreamUnavailable
from tollgate.gateway.feeds import feed as feed_module
from tollgate.gateway.feeds import follower as follower_module
from tollgate.gateway.feeds import history as history_module
from tollgate.gateway.feeds import source as source_module
from tollgate.gateway.feeds import subscribers as subscribers_module
from tollgate.gateway.feeds.feed import MAX_BEHIND, POLL_SECONDS, Feed, Feeds, repeat
from tollgate.gateway.feeds.follower import AHEAD, ChainFollower
from tollgate.gateway.feeds.pending import PendingTransactions
from tollgate.gateway.feeds.source import EthSource, NotNow, StarknetSource
from tollgate.gateway.feeds.subscribers import Subscriber, Subscribers
from tollgate.settings.model import UpstreamSettings

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
    assert [setup.row.active_at for setup in setups.values()] == [0.0, 0.0]
    await setups["eth/other"].listen(*HEADS)
    feeds.tick()
    assert [setup.row.active_at for setup in setups.values()] == [0.0, setups["eth/other"].clock()]
    feeds.close()


async def test_prober_learns_of_those_who_are_still_in_the_past() -> None:
    setup, before = FeedSetup("starknet"), asyncio.all_tasks()
    subscriber, _ = await setup.listen("starknet_subscribeNewHeads", [{"block_number": 2}], opened=False)
    await setup.turn()
    setup.feed.tick()
    assert setup.row.active_at == setup.clock()
    setup.feed.leave(subscriber)
    await run_pending()
    assert asyncio.all_tasks() == before


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
    before = asyncio.all_tasks()
    subscriber, _ = await setup.listen("starknet_subscribeTransactionStatus", ["0x5"])
    await setup.turn(2)
    calls = len(setup.chain.calls)
    assert {call.method for call in setup.chain.calls} == {"starknet_getTransactionStatus"}
    setup.feed.leave(subscriber)
    await setup.turn(5)
    assert len(setup.chain.calls) == calls
    await setup.listen("starknet_subscribeTransactionStatus", ["0x5"])
    setup.feed.close()
    await run_pending()
    assert asyncio.all_tasks() == before


async def test_pending_transactions_are_joined_and_left() -> None:
    setup = FeedSetup()
    node = UpstreamSettings(name="one", url="http://node", ws_url="ws://node")
    setup.feed._pending = PendingTransactions("eth/mainnet", lambda: [node], silence)
    before = asyncio.all_tasks()
    subscriber, _ = await setup.listen("eth_subscribe", ["newPendingTransactions"])
    await run_pending()
    assert len(asyncio.all_tasks()) == len(before) + 1
    setup.feed.leave(subscriber)
    await run_pending()
    assert asyncio.all_tasks() == before
    await setup.listen("eth_subscribe", ["newPendingTransactions"])
    setup.feed.close()
    await run_pending()
    assert asyncio.all_tasks() == before


@pytest.mark.parametrize(("blocks", "gives_up"), [(20, False), (21, True)])
async def test_feed_gives_up_beyond_its_bound_and_not_at_it(
    blocks: int, gives_up: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "MAX_BEHIND", 20)
    setup = FeedSetup()
    _, sink = await setup.listen(*HEADS)
    await setup.turn()
    setup.mine(blocks)
    await setup.turn(6)
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


async def test_without_a_shared_status_upstreams_are_polled_for_their_head() -> None:
    setup = FeedSetup(probed=False)
    await setup.listen(*HEADS)

    def calls() -> int:
        return sum(call.method == "eth_blockNumber" for call in setup.chain.calls)

    await run_pending(50)
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


def test_notifications_before_the_answer_wait_until_they_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = subscriptions_eth.parse("eth_subscribe", [Raw(b'"newHeads"')])
    assert isinstance(parsed, Subscription)
    sink = RecordingSink()
    subscriber = Subscriber(parsed, "1", "eth", sink)
    subscriber.notify(b"1")
    first = subscriptions_eth.notification(Topic.HEADS, "1", b"1")
    monkeypatch.setattr(subscribers_module, "_MAX_HELD_BYTES", len(first))
    subscriber.notify(b"2")
    assert sink.lost == []
    subscriber.notify(b"3")
    assert len(sink.lost) == 1
    subscriber.open()
    assert sink.results() == [1, 2]


async def test_others_have_their_turn_after_many_steps_that_took_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(subscribers_module, "time", SimpleNamespace(monotonic=lambda: now))
    pace, turn = subscribers_module._Pace(), 0

    async def others() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(others())
    seen = []
    for seconds in (subscribers_module.TURN_SECONDS, 0.001, 0.0, 0.0):
        now += seconds
        for steps in (subscribers_module._STEPS - 1, 1):
            for _ in range(steps):
                await pace.step()
            seen.append(turn)
    task.cancel()
    assert seen == [0, 0, 0, 1, 1, 1, 1, 1], "after a round of steps, where that took longer than it may"


async def test_blocks_whose_logs_are_doubted_are_bounded() -> None:
    chain = Chain("eth", 100)
    chain.logs = lambda number, scripted_chain=None: []  # type: ignore[method-assign]
    source = EthSource(chain.fetch)
    for number in range(80):
        with pytest.raises(NotNow, match="has logs by its header"):
            await source.page(number, {Topic.LOGS})
    assert list(source._doubts) == chain.hashes(0)[16:80]
    for _ in range(4):
        with pytest.raises(NotNow, match="has logs by its header"):
            await source.page(79, {Topic.LOGS})
    assert (await source.page(79, {Topic.LOGS})).items == {Topic.LOGS: []}, "not for ever"


@pytest.mark.parametrize("family", ["eth", "starknet"])
async def test_block_that_is_not_there_or_not_the_one_is_not_had_now(family: str) -> None:
    chain = Chain(family)
    source = EthSource(chain.fetch) if family == "eth" else StarknetSource(chain.fetch)
    assert (await source.block(5)).number == 5

    async def another(call: NodeCall) -> Reply:
        return await chain.fetch(subscriptions_eth.block_call(6) if family == "eth" else starknet.block_call(6))

    async def none(call: NodeCall) -> Reply:
        return Reply(Raw(b"null"))

    for fetch in (another, none):
        source._fetch = fetch
        with pytest.raises(NotNow):
            await source.block(5)


@pytest.mark.parametrize(
    ("topics", "items"),
    [
        ((), ()),
        ((Topic.EVENTS,), (Topic.EVENTS,)),
        ((Topic.RECEIPTS,), (Topic.RECEIPTS, Topic.TRANSACTIONS)),
        ((Topic.TRANSACTIONS,), (Topic.RECEIPTS, Topic.TRANSACTIONS)),
    ],
)
async def test_starknet_block_has_what_is_wanted_of_it(
    topics: tuple[Topic, ...], items: tuple[Topic, ...]
) -> None:
    chain = Chain("starknet")
    page = await StarknetSource(chain.fetch).page(5, topics)
    assert set(page.items) == set(items)


async def test_events_without_an_end_are_not_read_for_ever() -> None:
    chain = Chain("starknet")
    chain._events = lambda wanted, scripted_chain: {"events": [], "continuation_token": "2"}  # type: ignore[method-assign]
    with pytest.raises(NotNow, match="no end"):
        await StarknetSource(chain.fetch).page(5, {Topic.EVENTS})
    assert len(chain.calls) <= 1 + 32


async def test_events_of_a_block_are_read_up_to_a_bound_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = Chain("starknet")
    source = StarknetSource(chain.fetch)
    whole = await source.page(5, {Topic.EVENTS})
    monkeypatch.setattr(source_module, "MAX_EVENT_BYTES", whole.size)
    chain.calls.clear()
    event = {"from_address": "0x1", "keys": [], "data": ["0x1"] * 10, "block_hash": chain.hash(5)}
    chain._events = lambda wanted, scripted_chain: {"events": [event], "continuation_token": "2"}  # type: ignore[method-assign]
    with pytest.raises(NotNow, match="no end"):
        await source.page(5, {Topic.EVENTS})
    assert 2 < len(chain.calls) < 10


@pytest.mark.parametrize(("spare", "fits"), [(0, True), (-1, False)])
async def test_events_of_a_block_may_be_as_large_as_the_bound(
    spare: int, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = Chain("starknet")
    sizes: list[int] = []

    async def measured(call: NodeCall) -> Reply:
        reply = await chain.fetch(call)
        sizes.append(len(bytes(reply.result)) if call.method == "starknet_getEvents" else 0)
        return reply

    source = StarknetSource(measured)
    whole = await source.page(5, {Topic.EVENTS})
    monkeypatch.setattr(source_module, "MAX_EVENT_BYTES", sum(sizes) + spare)
    if fits:
        assert await source.page(5, {Topic.EVENTS}) == whole
    else:
        with pytest.raises(NotNow, match="no end"):
            await source.page(5, {Topic.EVENTS})


async def test_large_blocks_are_fetched_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = Chain("eth", 60)
    source = EthSource(chain.fetch)
    subscribers = Subscribers("eth")
    subscribers.want(Topic.LOGS)
    follower = ChainFollower(source, await source.block(10), subscribers)
    size = (await source.page(11, {Topic.LOGS})).size
    monkeypatch.setattr(follower_module, "LARGE_BYTES", size - 1)
    await follower.advance(30)
    assert chain.max_at_once == 1
    sizes = {(await source.page(number, {Topic.LOGS})).size for number in range(31, 61)}
    monkeypatch.setattr(follower_module, "LARGE_BYTES", max(sizes))
    await follower.advance(60)
    assert chain.max_at_once == AHEAD


async def test_blocks_are_fetched_ahead_as_far_as_the_bound_and_no_further_than_needed() -> None:
    chain = Chain("eth", 40)
    source = EthSource(chain.fetch)
    follower = ChainFollower(source, await source.block(10), Subscribers("eth"))
    chain.calls.clear()
    await follower.advance(12)
    assert [call.params[0] for call in chain.calls] == [hex(11), hex(12)]  # type: ignore[index]
    await follower.advance(40)
    assert (chain.max_at_once, follower.reached, follower.history.last.number) == (AHEAD, 40, 40)


async def test_what_is_fetched_ahead_counts_as_reached_until_it_fails() -> None:
    chain = Chain("eth", 40)
    source = EthSource(chain.fetch)
    follower = ChainFollower(source, await source.block(10), Subscribers("eth"))
    reached: list[int] = []

    def fail(call: NodeCall) -> bool:
        reached.append(follower.reached)
        return call.params[0] == hex(20)  # type: ignore[index]

    chain.fail = fail
    with pytest.raises(NotNow):
        await follower.advance(40)
    assert sorted(set(reached)) == [11, 13, 13 + AHEAD], "one, two, then all that may be"
    assert (follower.reached, follower.history.last.number) == (19, 19)


async def test_nothing_that_was_fetched_ahead_is_left_after_a_failure() -> None:
    chain = Chain("eth", 40)
    source = EthSource(chain.fetch)
    follower = ChainFollower(source, await source.block(10), Subscribers("eth"))
    before, fetch = asyncio.all_tasks(), chain.fetch

    async def scripted(call: NodeCall) -> Reply:
        if call.params[0] == hex(13):  # type: ignore[index]
            await asyncio.Event().wait()
        return await fetch(call)

    source._fetch = scripted
    chain.fail = lambda call: call.params[0] == hex(12)  # type: ignore[index]
    with pytest.raises(NotNow):
        await follower.advance(13)
    assert asyncio.all_tasks() == before


async def test_blocks_of_the_old_branch_that_were_fetched_ahead_are_fetched_again() -> None:
    chain = Chain("eth", 12)
    source = EthSource(chain.fetch)
    follower = ChainFollower(source, await source.block(9), Subscribers("eth"))
    olds = {hex(number): list(chain.scripted_chain) for number in (10, 12)}
    chain.reorganise(3, 3)
    chain.older = lambda call: olds.pop(str(next(iter(call.params))), None)
    await follower.advance(12)
    assert follower.history.last.hash == chain.hash(12)


async def test_block_whose_parent_no_node_has_is_not_waited_for_here() -> None:
    chain = Chain("eth", 12)
    source = EthSource(chain.fetch)
    follower = ChainFollower(source, await source.block(11), Subscribers("eth"))
    other = [*chain.scripted_chain[:11], 7, 7]
    chain.older = lambda call: other if call.params[0] == hex(12) else None  # type: ignore[index]
    chain.fail = lambda _: len(chain.calls) > 20
    with pytest.raises(NotNow, match="whose parent"):
        await follower.advance(12)


@pytest.mark.parametrize("probed", [True, False])
async def test_unknown_start_is_refused(probed: bool) -> None:
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


async def test_start_may_be_ahead_of_the_shared_status_but_not_of_the_nodes() -> None:
    setup = FeedSetup("starknet")
    setup.chain.mine()
    charged: list[int] = []
    ahead = [{"block_number": 11}]
    await setup.listen("starknet_subscribeNewHeads", ahead, opened=False, charge=charged.append)
    assert charged == [0]
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


async def test_job_that_fails_for_long_is_logged_once_each_time() -> None:
    late = NotNow("no")
    job = Steps(*[late] * 9, False, *[late] * 6, False, *[late] * 7, True)
    with capture_logs() as lines:
        await repeat("eth/mainnet", job.step, job.sleep)
    assert [line["event"] for line in lines] == ["blocks cannot be had; subscribers wait"] * 2


async def test_defect_does_not_end_a_job() -> None:
    job = Steps(ZeroDivisionError("a defect"), True)
    await repeat("eth/mainnet", job.step, job.sleep)
    assert job.slept == [2.0]
