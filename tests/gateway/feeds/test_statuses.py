"""The status of transactions: asked for at each head and every other second, told when it changes."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

from msgspec import Raw
from tests.gateway.fakes import Clock, turns
from tests.gateway.feeds.forks import Ear, Pace

from tollgate.chains.subscriptions import Call, Subscription, Topic
from tollgate.core.shapes import Reply
from tollgate.errors import RateLimited, UpstreamUnavailable
from tollgate.gateway.feeds.source import StarknetSource
from tollgate.gateway.feeds.statuses import ASK_SECONDS, SETTLED_SECONDS, Statuses
from tollgate.gateway.feeds.subscribers import Subscriber


class Office:
    """Nodes that know statuses by hash."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}
        self.down = False
        self.asked: list[str] = []
        self.blocks: dict[int, list[str]] = {}
        self.blocks_asked: list[int] = []
        self.clock = Clock()
        self.pace = Pace(self.clock)
        self.head = 10
        source = StarknetSource(self.fetch)
        self.statuses = Statuses("starknet/mainnet", source, lambda: self.head, self.clock, self.pace.sleep)

    async def fetch(self, call: Call) -> Reply:
        assert isinstance(call.params, dict)
        if "block_id" in call.params:
            number = call.params["block_id"]["block_number"]  # type: ignore[index]
            self.blocks_asked.append(number)
            return Reply(Raw(json.dumps({"transactions": self.blocks.get(number, [])}).encode()))
        name = str(call.params["transaction_hash"])
        self.asked.append(name)
        if self.down:
            raise UpstreamUnavailable
        if name not in self.known:
            return Reply(error=Raw(b'{"code":29,"message":"Transaction hash not found"}'))
        return Reply(Raw(json.dumps({"finality_status": self.known[name]}).encode()))

    async def join(self, name: str) -> tuple[Subscriber, Ear]:
        ear = Ear()
        listener = Subscriber(Subscription(Topic.STATUS, hash=name), "1", "starknet", ear)
        listener.open()
        self.statuses.join(listener)
        await turns()
        return listener, ear

    async def turn(self, seconds: float = 0.0) -> None:
        self.clock.advance(seconds)
        await self.pace.turn(20)


def told(ear: Ear) -> list[str]:
    return [each["status"]["finality_status"] for each in ear.results()]


def run(test: Callable[[Office], Coroutine[Any, Any, None]]) -> None:
    async def inside() -> None:
        office = Office()
        await test(office)
        office.statuses.close()
        await turns()

    asyncio.run(inside())


def test_status_is_told_at_first_and_when_it_changes() -> None:
    async def test(office: Office) -> None:
        office.known["0x1"] = "RECEIVED"
        _, ear = await office.join("0x1")
        assert told(ear) == ["RECEIVED"]
        assert ear.results()[0]["transaction_hash"] == "0x1"
        await office.turn(ASK_SECONDS)
        assert told(ear) == ["RECEIVED"]
        office.known["0x1"] = "ACCEPTED_ON_L2"
        office.head += 1
        office.blocks[office.head] = ["0x7", "0x0001"]
        await office.turn()
        assert told(ear) == ["RECEIVED", "ACCEPTED_ON_L2"]
        assert office.blocks_asked == [office.head]

    run(test)


def test_transaction_that_nobody_knows_yet_is_waited_for() -> None:
    async def test(office: Office) -> None:
        _, ear = await office.join("0x1")
        office.down = True
        await office.turn(ASK_SECONDS)
        office.down = False
        office.known["0x1"] = "RECEIVED"
        await office.turn(4 * ASK_SECONDS)
        assert told(ear) == ["RECEIVED"]

    run(test)


def test_many_transactions_that_do_not_move_are_asked_for_seldom() -> None:
    """100 subscriptions were 60 upstream calls a second, for ever."""

    async def test(office: Office) -> None:
        for number in range(100):
            await office.join(hex(number))
        for _ in range(120):
            await office.turn(1.0)
        office.asked.clear()
        office.blocks_asked.clear()
        for _ in range(60):
            office.head += 1
            await office.turn(1.0)
        assert len(office.asked) <= 60 * 10
        assert len(office.asked) <= 100 * (60 / SETTLED_SECONDS + 1)
        assert set(office.asked) == {hex(number) for number in range(100)}, "everybody has a turn"
        assert len(office.blocks_asked) == 60, "one question for a block, whoever waits"

    run(test)


def test_questions_count_against_the_limits_of_somebody_who_waits() -> None:
    async def test(office: Office) -> None:
        charged: list[int] = []

        def refuse(_: int) -> None:
            raise RateLimited

        poor, rich = (Subscriber(Subscription(Topic.STATUS, hash="0x1"), n, "starknet", Ear()) for n in "12")
        poor.charge, rich.charge = refuse, charged.append
        office.statuses.join(poor)
        await turns()
        await office.turn(100.0)
        assert office.asked == []
        office.statuses.join(rich)
        await office.turn(100.0)
        assert (office.asked, charged) == (["0x1"], [1])

    run(test)


def test_one_question_serves_all_and_who_comes_later_is_told_at_once() -> None:
    async def test(office: Office) -> None:
        office.known["0x1"] = "RECEIVED"
        ears = [(await office.join("0x1"))[1] for _ in range(3)]
        assert [told(ear) for ear in ears] == [["RECEIVED"]] * 3
        assert office.asked == ["0x1"]

    run(test)


def test_settled_transaction_is_asked_for_less_often_and_a_final_one_no_more() -> None:
    async def test(office: Office) -> None:
        office.known["0x1"] = "ACCEPTED_ON_L2"
        _, ear = await office.join("0x1")
        office.asked.clear()
        for _ in range(5):
            office.head += 1
            await office.turn(ASK_SECONDS)
        assert office.asked == []
        office.known["0x1"] = "ACCEPTED_ON_L1"
        await office.turn(SETTLED_SECONDS)
        assert told(ear) == ["ACCEPTED_ON_L2", "ACCEPTED_ON_L1"]
        office.asked.clear()
        await office.turn(SETTLED_SECONDS)
        assert office.asked == []

    run(test)


def test_nothing_is_asked_when_nobody_waits() -> None:
    async def test(office: Office) -> None:
        listener, _ = await office.join("0x1")
        office.statuses.leave(listener)
        office.statuses.leave(listener)
        office.asked.clear()
        await office.turn(ASK_SECONDS)
        assert office.asked == []

    run(test)
