"""Connections that one caller may hold: half of what others leave free; and who waits while it has them."""

import pytest
from tests.gateway.fakes import run_pending
from tests.gateway.upstream.pooled_upstream import OK, SOON, PooledUpstream

from tollgate.gateway.upstream.connection import AttemptFailed, PoolFull
from tollgate.gateway.upstream.pool import MAX_QUEUE_SECONDS, PoolRequest


class Held(PoolRequest, eq=False, kw_only=True):
    """A request of a caller."""

    by: str
    status: int = 0
    failure: AttemptFailed | None = None

    @property
    def holder(self) -> str:
        return self.by

    @property
    def over(self) -> bool:
        return bool(self.status or self.failure)

    def received(self, status: int, body: bytes) -> None:
        self.status = status

    def abandoned(self, failure: AttemptFailed) -> None:
        self.failure = failure


class Callers:
    """Callers of one upstream, whose calls take as long as the test lets them."""

    def __init__(self, connections: int) -> None:
        self.harness = PooledUpstream(connections)

    async def call(self, holder: str, times: int = 1) -> list[Held]:
        pool = self.harness.pool
        made = [Held(pool, b"{}", self.harness.clock.now + SOON, repeatable=True, by=holder) for _ in range(times)]
        for each in made:
            pool.start(each)
        await run_pending()
        return made

    def sent(self, requests: list[Held]) -> int:
        waiting = {id(each) for each in self.harness.pool.waiters.requests()}
        return sum(id(each) not in waiting and each.failure is None for each in requests)

    async def answer(self, count: int = 1_000) -> None:
        for transport in self.harness.loop.transports:
            if count and not transport.closed and transport.take():
                transport.deliver(OK)
                count -= 1
        await run_pending()


async def test_one_caller_holds_half_of_the_connections_and_the_next_half_of_the_rest() -> None:
    callers = Callers(16)
    flood = await callers.call("team_1", 40)
    assert callers.sent(flood) == 8
    other = await callers.call("team_2", 40)
    assert callers.sent(other) == 4
    third = await callers.call("team_3", 1)
    assert callers.sent(third) == 1


async def test_domains_together_leave_half_of_the_connections_to_tokens() -> None:
    callers = Callers(16)
    held = [callers.sent(await callers.call(f"dom_{number}", 40)) for number in range(6)]
    assert held == [4, 2, 1, 1, 0, 0]
    assert callers.sent(await callers.call("team_1", 40)) == 4


async def test_requests_beyond_a_share_are_sent_when_its_others_are_answered() -> None:
    callers = Callers(16)
    flood = await callers.call("team_1", 20)
    for answered in (8, 16, 20):
        await callers.answer()
        callers.harness.pool.sweep()
        await run_pending()
        assert sum(each.status == 200 for each in flood) == answered


async def test_free_connection_goes_round_robin_and_to_tokens_first() -> None:
    callers = Callers(4)
    own = await callers.call("", 4)
    assert callers.sent(own) == 4
    waiting = [
        (await callers.call(holder))[0] for holder in ("dom_1", "team_1", "team_1", "team_2", "team_1", "dom_2")
    ]
    assert callers.sent(waiting) == 0
    order: list[Held] = []
    for _ in waiting:
        await callers.answer(1)
        order += [each for each in waiting if callers.sent([each]) and each not in order]
    assert [each.by for each in order] == ["team_1", "team_2", "team_1", "team_1", "dom_1", "dom_2"]


async def test_queue_of_one_caller_that_is_full_refuses_only_its_own() -> None:
    callers = Callers(4)
    flood = await callers.call("team_1", 4)
    assert callers.sent(flood) == 2
    callers.harness.clock.advance(MAX_QUEUE_SECONDS + 0.1)
    (refused,) = await callers.call("team_1")
    assert isinstance(refused.failure, PoolFull)
    (other,) = await callers.call("team_2")
    assert callers.sent([other]) == 1


@pytest.mark.parametrize(("connections", "held"), [(1, 1), (2, 1), (3, 2), (5, 3), (256, 128)])
async def test_half_is_rounded_up(connections: int, held: int) -> None:
    callers = Callers(connections)
    assert callers.sent(await callers.call("team_1", 300)) == held


async def test_calls_of_the_service_itself_have_no_share() -> None:
    callers = Callers(4)
    assert callers.sent(await callers.call("", 8)) == 4
