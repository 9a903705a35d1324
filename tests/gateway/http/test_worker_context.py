"""What all connections of a worker share: gauges, the sweep for late calls, the outbox, bounds that change."""

from __future__ import annotations

from typing import Any

import pytest
from tests.gateway.fake_gateway import FakeGateway, open_gateway
from tests.gateway.fakes import run_pending

from tollgate.gateway.http.outbox import Answered, Outgoing
from tollgate.gateway.http.under_way import HEDGE_SWEEP_SECONDS
from tollgate.gateway.memory_budget import SMALL
from tollgate.settings.model import LimitSettings
from tollgate.shm import metrics


class Call:
    """A straight call that counts how often it was looked at."""

    def __init__(self) -> None:
        self.looks: list[float] = []

    def hedge_if_late(self, now: float) -> None:
        self.looks.append(now)

    def stop(self) -> None:
        """Nothing is under way."""


class Caller:
    """A connection that keeps what leaves."""

    def __init__(self, *, broken: bool = False) -> None:
        self.left: list[tuple[bytes, bool]] = []
        self.broken = broken
        self.checked: list[float] = []

    def leave(self, answer: Outgoing) -> None:
        if self.broken:
            raise ZeroDivisionError
        self.left.append((answer.data, answer.close))

    def check(self, now: float) -> None:
        self.checked.append(now)


@pytest.fixture
async def scheduled() -> FakeGateway:
    return await open_gateway()


async def test_late_calls_are_looked_for_while_there_are_any_and_then_no_more(scheduled: FakeGateway) -> None:
    context = scheduled.context
    assert not context.under_way.sweeping
    call: Any = Call()
    context.calls.add(call)
    context.under_way.sweep_later()
    seen = [context.under_way.sweeping]
    for _ in range(2):
        await scheduled.loop.advance(HEDGE_SWEEP_SECONDS)
    seen.append(context.under_way.sweeping)
    assert len(call.looks) == 2
    context.calls.clear()
    await scheduled.loop.advance(HEDGE_SWEEP_SECONDS)
    assert [*seen, context.under_way.sweeping] == [True, True, False], "the next call begins it again"
    assert not scheduled.loop.timers


async def test_gauges_show_connections_requests_and_bytes(gateway: FakeGateway) -> None:
    context = gateway.context
    callers: list[Any] = [Caller(), Caller()]
    context.connections.update(callers)
    context.calls.add(Call())  # type: ignore[arg-type] # only counted
    gateway.budget.hold(77)
    gateway.clock.advance(5.0)
    context.tick()
    shown = [gateway.counted(spec) for spec in (metrics.CONNECTIONS, metrics.IN_FLIGHT, metrics.BUFFERED_BYTES)]
    assert shown == [2, 1, 77]
    assert context.clock == gateway.clock()
    assert [each.checked for each in callers] == [[gateway.clock()]] * 2
    assert context.heads.date.startswith(b"date: ")


async def test_one_connection_that_fails_does_not_keep_the_answers_of_others(gateway: FakeGateway) -> None:
    broken, good = Caller(broken=True), Caller()
    gateway.context.outbox.put(Answered(broken, b"a"))
    gateway.context.outbox.put(Answered(good, b"b", close=True))
    gateway.context.outbox.put(Answered(good, b"c"))
    assert good.left == [], "at the end of the loop turn"
    await run_pending()
    assert good.left == [(b"b", True), (b"c", False)]
    gateway.context.outbox.put(Answered(good, b"d"))
    await run_pending()
    assert good.left[-1] == (b"d", False)


@pytest.mark.parametrize(("size", "held"), [(SMALL, 0), (SMALL + 1, SMALL + 1)])
async def test_large_answer_counts_until_the_end_of_the_loop_turn(
    size: int, held: int, gateway: FakeGateway
) -> None:
    gateway.context.outbox.count_large(bytes(size))
    assert gateway.budget.held == held
    await run_pending()
    assert gateway.budget.held == 0


async def test_limits_that_change_hold_from_then_on(gateway: FakeGateway) -> None:
    context, epoch = gateway.context, gateway.context.epoch
    context.change([gateway.network], LimitSettings(body_bytes=1_000, buffer_bytes=5_000, in_flight=7))
    assert (context.max_bytes, context.counted_from, context.max_in_flight) == (1_000, 1_000, 7)
    assert (gateway.budget.max_bytes, context.epoch) == (5_000, epoch + 1)
    context.change([gateway.network], LimitSettings(body_bytes=1_000_000))
    assert (context.counted_from, context.epoch) == (SMALL, epoch + 2)
    context.drain()
    assert (context.draining, context.epoch) == (True, epoch + 3)
