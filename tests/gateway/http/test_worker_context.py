"""What all connections of a worker share: gauges, and bounds that change."""

from __future__ import annotations

from typing import Any

from tests.gateway.fake_gateway import FakeGateway

from tollgate.gateway.memory_budget import SMALL
from tollgate.settings.model import LimitSettings
from tollgate.shm import metrics


class Connection:
    """A connection that notes when it is checked."""

    def __init__(self) -> None:
        self.checked: list[float] = []

    def check(self, now: float) -> None:
        self.checked.append(now)


async def test_gauges_show_connections_requests_and_bytes(gateway: FakeGateway) -> None:
    context = gateway.context
    connections = [Connection(), Connection()]
    context.connections.update(connections)
    call: Any = object()
    context.calls.add(call)
    gateway.budget.hold(77)
    gateway.clock.advance(5.0)
    context.tick()
    shown = [gateway.counted(spec) for spec in (metrics.CONNECTIONS, metrics.IN_FLIGHT, metrics.BUFFERED_BYTES)]
    assert shown == [2, 1, 77]
    assert context.clock == gateway.clock()
    assert [each.checked for each in connections] == [[gateway.clock()]] * 2
    assert context.heads.date.startswith(b"date: ")


async def test_limits_that_change_hold_from_then_on(gateway: FakeGateway) -> None:
    context, epoch = gateway.context, gateway.context.epoch
    context.change([gateway.network], LimitSettings(body_bytes=1_000, buffer_bytes=5_000, in_flight=7))
    assert (context.max_bytes, context.counted_from, context.max_in_flight) == (1_000, 1_000, 7)
    assert (gateway.budget.max_bytes, context.epoch) == (5_000, epoch + 1)
    context.change([gateway.network], LimitSettings(body_bytes=1_000_000))
    assert (context.counted_from, context.epoch) == (SMALL, epoch + 2)
    context.drain()
    assert (context.draining, context.epoch) == (True, epoch + 3)
