"""The status of transactions: asked for at each head and every other second, told when it changes."""

import json
from collections.abc import AsyncIterator

import pytest
from msgspec import Raw
from tests.gateway.fakes import Clock, turns
from tests.gateway.feeds.forks import Ear, Pace

from tollgate.chains.heads import NodeCall
from tollgate.chains.subscriptions import Subscription, Topic
from tollgate.core.shapes import Reply
from tollgate.errors import UpstreamUnavailable
from tollgate.gateway.feeds.source import StarknetSource
from tollgate.gateway.feeds.statuses import ASK_SECONDS, SETTLED_SECONDS, Statuses
from tollgate.gateway.feeds.subscribers import Subscriber


class Office:
    """Nodes that know statuses by hash."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}
        self.down = False
        self.asked: list[str] = []
        self.clock = Clock()
        self.pace = Pace(self.clock)
        self.head = 10
        source = StarknetSource(self.fetch)
        self.statuses = Statuses("starknet/mainnet", source, lambda: self.head, self.clock, self.pace.sleep)

    async def fetch(self, call: NodeCall) -> Reply:
        assert isinstance(call.params, dict)
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


@pytest.fixture
async def office() -> AsyncIterator[Office]:
    opened = Office()
    yield opened
    opened.statuses.close()
    await turns()


async def test_status_is_told_at_first_and_when_it_changes(office: Office) -> None:
    office.known["0x1"] = "RECEIVED"
    _, ear = await office.join("0x1")
    assert told(ear) == ["RECEIVED"]
    assert ear.results()[0]["transaction_hash"] == "0x1"
    await office.turn(ASK_SECONDS)
    assert told(ear) == ["RECEIVED"]
    office.known["0x1"] = "ACCEPTED_ON_L2"
    office.head += 1
    await office.turn()
    assert told(ear) == ["RECEIVED", "ACCEPTED_ON_L2"]


async def test_transaction_that_nobody_knows_yet_is_waited_for(office: Office) -> None:
    _, ear = await office.join("0x1")
    office.down = True
    await office.turn(ASK_SECONDS)
    office.down = False
    office.known["0x1"] = "RECEIVED"
    await office.turn(ASK_SECONDS)
    assert told(ear) == ["RECEIVED"]


async def test_one_question_serves_all_and_who_comes_later_is_told_at_once(office: Office) -> None:
    office.known["0x1"] = "RECEIVED"
    ears = [(await office.join("0x1"))[1] for _ in range(3)]
    assert [told(ear) for ear in ears] == [["RECEIVED"]] * 3
    assert office.asked == ["0x1"]


async def test_settled_transaction_is_asked_for_less_often_and_a_final_one_no_more(office: Office) -> None:
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


async def test_nothing_is_asked_when_nobody_waits(office: Office) -> None:
    listener, _ = await office.join("0x1")
    office.statuses.leave(listener)
    office.statuses.leave(listener)
    office.asked.clear()
    await office.turn(ASK_SECONDS)
    assert office.asked == []
