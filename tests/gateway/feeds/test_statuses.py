"""The status of transactions: requested at each head and every other second, reported when it changes."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from msgspec import Raw
from tests.gateway.fakes import Clock, run_pending
from tests.gateway.feeds.scripted_chain import Pace, RecordingSink

from tollgate.chains.heads import NodeCall
from tollgate.chains.subscriptions import Subscription, Topic
from tollgate.core.shapes import Reply
from tollgate.errors import RateLimited, UpstreamUnavailable
from tollgate.gateway.feeds.source import StarknetSource
from tollgate.gateway.feeds.statuses import _MAX_BLOCKS, PER_SECOND, POLL_SECONDS, SETTLED_SECONDS, Statuses
from tollgate.gateway.feeds.subscribers import Subscriber


class StatusNodes:
    """Nodes that know statuses by hash."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}
        self.down = False
        self.queried: list[str] = []
        self.blocks: dict[int, list[str]] = {}
        self.blocks_queried: list[int] = []
        self.clock = Clock()
        self.pace = Pace(self.clock)
        self.head = 10
        source = StarknetSource(self.fetch)
        self.statuses = Statuses("starknet/mainnet", source, lambda: self.head, self.clock, self.pace.sleep)

    async def fetch(self, call: NodeCall) -> Reply:
        assert isinstance(call.params, dict)
        if "block_id" in call.params:
            number = call.params["block_id"]["block_number"]  # type: ignore[index]
            self.blocks_queried.append(number)
            return Reply(Raw(json.dumps({"transactions": self.blocks.get(number, [])}).encode()))
        name = str(call.params["transaction_hash"])
        self.queried.append(name)
        if self.down:
            raise UpstreamUnavailable
        if name not in self.known:
            return Reply(error=Raw(b'{"code":29,"message":"Transaction hash not found"}'))
        return Reply(Raw(json.dumps({"finality_status": self.known[name]}).encode()))

    async def join(self, name: str) -> tuple[Subscriber, RecordingSink]:
        sink = RecordingSink()
        subscriber = Subscriber(Subscription(Topic.STATUS, hash=name), "1", "starknet", sink)
        subscriber.open()
        self.statuses.join(subscriber)
        await run_pending()
        return subscriber, sink

    async def turn(self, seconds: float = 0.0) -> None:
        self.clock.advance(seconds)
        await self.pace.turn(20)


def notified(sink: RecordingSink) -> list[str]:
    return [each["status"]["finality_status"] for each in sink.results()]


@pytest.fixture
async def nodes() -> AsyncIterator[StatusNodes]:
    opened = StatusNodes()
    yield opened
    opened.statuses.close()
    await run_pending()


async def test_status_is_reported_at_first_and_when_it_changes(nodes: StatusNodes) -> None:
    nodes.known["0x1"] = "RECEIVED"
    _, sink = await nodes.join("0x1")
    assert notified(sink) == ["RECEIVED"]
    assert sink.results()[0]["transaction_hash"] == "0x1"
    await nodes.turn(POLL_SECONDS)
    assert notified(sink) == ["RECEIVED"]
    nodes.known["0x1"] = "ACCEPTED_ON_L2"
    nodes.head += 1
    nodes.blocks[nodes.head] = ["0x7", "0x0001"]
    await nodes.turn()
    assert notified(sink) == ["RECEIVED", "ACCEPTED_ON_L2"]
    assert nodes.blocks_queried == [nodes.head]


async def test_transaction_that_no_upstream_knows_yet_is_waited_for(nodes: StatusNodes) -> None:
    _, sink = await nodes.join("0x1")
    nodes.down = True
    await nodes.turn(POLL_SECONDS)
    nodes.down = False
    nodes.known["0x1"] = "RECEIVED"
    await nodes.turn(4 * POLL_SECONDS)
    assert notified(sink) == ["RECEIVED"]


async def test_many_transactions_that_do_not_move_are_requested_seldom(nodes: StatusNodes) -> None:
    """100 subscriptions were 60 upstream calls a second, for ever."""
    for number in range(100):
        await nodes.join(hex(number))
    for _ in range(120):
        await nodes.turn(1.0)
    nodes.queried.clear()
    nodes.blocks_queried.clear()
    for _ in range(60):
        nodes.head += 1
        await nodes.turn(1.0)
    assert len(nodes.queried) <= 60 * 10
    assert len(nodes.queried) <= 100 * (60 / SETTLED_SECONDS + 1)
    assert set(nodes.queried) == {hex(number) for number in range(100)}, "each has a turn"
    assert len(nodes.blocks_queried) == 60, "one call for a block, however many wait"


async def test_calls_count_against_the_limits_of_a_subscriber_that_waits(nodes: StatusNodes) -> None:
    charged: list[int] = []

    def refuse(_: int) -> None:
        raise RateLimited

    poor, rich = (Subscriber(Subscription(Topic.STATUS, hash="0x1"), n, "starknet", RecordingSink()) for n in "12")
    poor.charge, rich.charge = refuse, charged.append
    nodes.statuses.join(poor)
    await run_pending()
    await nodes.turn(100.0)
    assert nodes.queried == []
    nodes.statuses.join(rich)
    await nodes.turn(100.0)
    assert (nodes.queried, charged) == (["0x1"], [1])


async def test_one_question_serves_all_and_who_comes_later_is_informed_at_once(nodes: StatusNodes) -> None:
    nodes.known["0x1"] = "RECEIVED"
    sinks = [(await nodes.join("0x1"))[1] for _ in range(3)]
    assert [notified(sink) for sink in sinks] == [["RECEIVED"]] * 3
    assert nodes.queried == ["0x1"]


async def test_settled_transaction_is_requested_less_often_and_a_final_one_no_more(nodes: StatusNodes) -> None:
    nodes.known["0x1"] = "ACCEPTED_ON_L2"
    _, sink = await nodes.join("0x1")
    nodes.queried.clear()
    for _ in range(5):
        nodes.head += 1
        await nodes.turn(POLL_SECONDS)
    assert nodes.queried == []
    nodes.known["0x1"] = "ACCEPTED_ON_L1"
    await nodes.turn(SETTLED_SECONDS)
    assert notified(sink) == ["ACCEPTED_ON_L2", "ACCEPTED_ON_L1"]
    nodes.queried.clear()
    await nodes.turn(SETTLED_SECONDS)
    assert nodes.queried == []


async def test_nothing_is_requested_without_subscribers(nodes: StatusNodes) -> None:
    subscriber, _ = await nodes.join("0x1")
    nodes.statuses.leave(subscriber)
    nodes.statuses.leave(subscriber)
    nodes.queried.clear()
    await nodes.turn(POLL_SECONDS)
    assert nodes.queried == []


async def test_blocks_from_before_a_subscription_are_not_looked_into(nodes: StatusNodes) -> None:
    subscriber, _ = await nodes.join("0x1")
    nodes.statuses.leave(subscriber)
    nodes.head += 5
    await nodes.turn(POLL_SECONDS)
    await nodes.join("0x1")
    assert nodes.blocks_queried == []
    nodes.head += 1
    await nodes.turn()
    assert nodes.blocks_queried == [nodes.head]


async def test_head_that_jumps_has_its_newest_blocks_looked_into(nodes: StatusNodes) -> None:
    await nodes.join("0x1")
    nodes.head += 1_000
    await nodes.turn()
    assert nodes.blocks_queried == list(range(nodes.head - _MAX_BLOCKS + 1, nodes.head + 1))


async def test_transactions_are_requested_within_the_rate_of_a_worker(nodes: StatusNodes) -> None:
    for number in range(2 * PER_SECOND):
        await nodes.join(hex(number))
    nodes.queried.clear()
    await nodes.turn(100.0)
    assert len(nodes.queried) == PER_SECOND
    await nodes.turn(1.0)
    assert len(set(nodes.queried)) == 2 * PER_SECOND, "the others have their turn"


async def test_transaction_is_requested_soon_after_a_change_and_then_at_growing_intervals(
    nodes: StatusNodes,
) -> None:
    nodes.known["0x1"] = "RECEIVED"
    await nodes.join("0x1")
    seconds = []
    for second in range(1, 101):
        nodes.queried.clear()
        await nodes.turn(1.0)
        seconds += [second] * len(nodes.queried)
    assert seconds == [2, 6, 14, 30, 60, 90]


async def test_who_was_due_first_is_requested_first(nodes: StatusNodes) -> None:
    names = [hex(number) for number in range(2 * PER_SECOND)]
    for name in names:
        await nodes.join(name)
    now = nodes.clock()
    for place, waiting in enumerate(nodes.statuses._waited_for.values()):
        is_first = place >= PER_SECOND
        waiting.queried_at, waiting.wait = (now - 50.0, 5.0) if is_first else (now - 60.0, 40.0)
    nodes.queried.clear()
    await nodes.turn(10.0)
    assert nodes.queried == names[PER_SECOND:]


async def test_first_block_after_the_beginning_of_a_chain_is_looked_into(nodes: StatusNodes) -> None:
    nodes.head = 0
    await nodes.join("0x1")
    nodes.head = 1
    await nodes.turn()
    assert nodes.blocks_queried == [1]


async def test_end_leaves_nothing_behind(nodes: StatusNodes) -> None:
    before = asyncio.all_tasks()
    await nodes.join("0x1")
    nodes.statuses.close()
    await run_pending()
    assert asyncio.all_tasks() == before
