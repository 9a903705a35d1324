"""The sweep for late calls."""

from __future__ import annotations

from typing import Any

import pytest
from tests.gateway.fake_gateway import FakeGateway, open_gateway

from tollgate.gateway.http.under_way import HEDGE_SWEEP_SECONDS


class Call:
    """A call that counts how often the sweep checks it."""

    def __init__(self) -> None:
        self.looks: list[float] = []

    def hedge_if_late(self, now: float) -> None:
        self.looks.append(now)

    def stop(self) -> None:
        """Nothing is under way."""


@pytest.fixture
async def scheduled() -> FakeGateway:
    return await open_gateway()


async def test_late_calls_are_swept_while_there_are_any(scheduled: FakeGateway) -> None:
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
    assert [*seen, context.under_way.sweeping] == [True, True, False], "the next call starts it again"
    assert not scheduled.loop.timers
