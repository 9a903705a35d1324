"""How long callers wait: one duration for each request, in the bucket of its network and outcome."""

from bisect import bisect_left
from typing import Any

import pytest
from tests.gateway.callers import call, sent
from tests.gateway.calls import recorded
from tests.gateway.fake_gateway import FakeGateway, open_gateway
from tests.gateway.fake_node import echo, http

from tollgate.gateway.recording import latencies
from tollgate.gateway.recording.latencies import CallerLatencies
from tollgate.shm import metrics
from tollgate.shm.metrics import BUCKETS_MICROSECONDS, Regions


def seconds(gateway: FakeGateway, outcome: str) -> dict[str, int]:
    """The buckets that are not empty."""
    gateway.journal.tick()
    names = (*map(str, BUCKETS_MICROSECONDS), "+Inf", "sum")
    found = {name: gateway.counted(metrics.REQUEST_SECONDS, "eth", "mainnet", outcome, name) for name in names}
    return {name: value for name, value in found.items() if value}


@pytest.mark.parametrize("fast_path", [True, False])
async def test_time_of_an_answered_call_is_counted_once(fast_path: bool) -> None:
    clock: list[Any] = []

    def node(body: bytes) -> bytes:
        clock[0].advance(0.25)
        return echo(body)

    gateway = await open_gateway(node=node, fast_path=fast_path)
    clock.append(gateway.clock)
    for _ in range(2):
        await recorded(gateway, sent(call(1)))
    assert seconds(gateway, "ok") == {"250000": 2, "sum": 500_000}


@pytest.mark.parametrize("fast_path", [True, False])
async def test_batch_counts_once(fast_path: bool) -> None:
    gateway = await open_gateway(fast_path=fast_path)
    await recorded(gateway, sent(call(1)))  # opens the connection that a batch on the fast path needs
    await recorded(gateway, sent([call(1), call(2), call(3)]))
    assert seconds(gateway, "ok") == {"250": 2}


async def test_errors_of_nodes_and_refusals_are_apart() -> None:
    failing = b'{"jsonrpc":"2.0","id":1,"error":{"code":3,"message":"execution reverted"}}'
    gateway = await open_gateway(node=lambda _: http(failing))
    await recorded(gateway, sent(call(1)))
    await recorded(gateway, sent(call(1, "admin_peers")))
    assert seconds(gateway, "node_error") == {"250": 1}
    assert seconds(gateway, "refused") == {"250": 1}
    assert seconds(gateway, "ok") == {}


async def test_batch_with_one_good_call_is_ok(gateway: FakeGateway) -> None:
    await recorded(gateway, sent([call(1), call(2, "admin_peers")]))
    assert seconds(gateway, "ok") == {"250": 1}


@pytest.mark.parametrize("micros", [0, 249, 250, 251, 25_000, 25_001, 10_000_000, 10_000_001])
def test_a_duration_stands_in_the_bucket_that_others_find_too(micros: int) -> None:
    regions = Regions(2)
    kept = CallerLatencies(regions.writer(0))
    kept.durations("eth/mainnet", "ok").append(micros)
    kept.fold()
    bounds = [*map(str, BUCKETS_MICROSECONDS), "+Inf"]
    bucket = bounds[bisect_left(BUCKETS_MICROSECONDS, micros)]
    assert {key[-1]: value for key, value in regions.totals().items() if value} == {
        name: value for name, value in ((bucket, 1), ("sum", micros)) if value
    }


def test_durations_do_not_wait_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latencies, "_MAX_WAITING", 3)
    regions = Regions(1)
    kept = CallerLatencies(regions.writer(0))
    durations = kept.durations("eth/mainnet", "ok")
    for _ in range(4):
        durations.append(1_000)
        kept.appended(1)
    assert durations == []
    assert kept.durations("eth/mainnet", "ok") is durations
    durations += [1_000] * 3
    kept.appended(3)
    assert len(durations) == 3, "as many may wait again"
    durations.clear()
    assert regions.totals()["tollgate_request_seconds", "eth", "mainnet", "ok", "sum"] == 4_000


async def test_names_that_callers_invent_are_counted_together_and_not_remembered(gateway: FakeGateway) -> None:
    for number in range(3):
        gateway.counters.called(gateway.network, f"invented_{number}", "ok")
        gateway.counters.called(gateway.network, "eth_chainId", "ok")
    assert list(gateway.counters._calls) == [("eth/mainnet", "eth_chainId", "ok")]
    counted = {key[3]: value for key, value in gateway.regions.totals().items() if key[0] == metrics.CALLS.name}
    assert counted == {"other": 3, "eth_chainId": 3}
