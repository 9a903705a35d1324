"""What a worker serves, changed in place: nothing that stays the same is lost, nothing under way is dropped."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.gateway.callers import call, summary
from tests.gateway.calls import send
from tests.gateway.fake_gateway import FakeGateway, open_gateway
from tests.gateway.fakes import run_pending

from tollgate.errors import UpstreamUnavailable
from tollgate.settings import model
from tollgate.shm import metrics
from tollgate.shm.upstream_status import assign_slots

READ = "eth_chainId"


def upstream(index: int, **more: Any) -> model.UpstreamSettings:
    return model.UpstreamSettings(
        **{"name": f"up{index}", "url": f"http://up{index}:8545", "priority": index, **more}
    )


def reload(gateway: FakeGateway, *upstreams: model.UpstreamSettings, bytes_: int = 0, **network: Any) -> None:
    """Take over other settings; without upstreams the network is gone."""
    named = {"mainnet": model.NetworkSettings(upstreams=upstreams, **network)} if upstreams else {}
    settings = replace(gateway.settings, families={"eth": named}, cache=model.CacheSettings(bytes=bytes_))
    gateway.slots = assign_slots(gateway.slots, {"eth/mainnet": [each.name for each in upstreams]})
    gateway.networks.apply(settings, gateway.slots)


async def test_upstream_that_stays_keeps_its_connections_and_what_is_known_of_it(gateway: FakeGateway) -> None:
    await gateway.call(READ)
    first = gateway["up0"]
    reload(gateway, upstream(0, priority=7, weight=3), upstream(2, priority=1))
    assert gateway["up0"] is first
    assert (first.priority, first.settings.weight, first.calls, first.pool.size) == (7, 3, 1, 1)
    assert [each.name for each in gateway.exchange.upstreams] == ["up2", "up0"]
    assert gateway.resolver is gateway.networks.all["eth/mainnet"]


async def test_upstream_keeps_its_row_and_a_new_one_gets_another(gateway: FakeGateway) -> None:
    reload(gateway, upstream(1), upstream(2))
    assert {upstream.name: upstream.slot for upstream in gateway.exchange.upstreams} == {"up1": 1, "up2": 2}


@pytest.mark.parametrize("gone", [True, False])
async def test_call_under_way_is_answered_by_an_upstream_that_is_taken_away_or_moved(
    gone: bool, gateway: FakeGateway
) -> None:
    gateway.nodes[0].holds = True
    pending = gateway.send(READ)
    await run_pending()
    pool = gateway["up0"].pool
    reload(gateway, *([] if gone else [upstream(0, url="http://elsewhere:1")]), upstream(1))
    gateway.networks.sweep()
    gateway.nodes[0].release()
    assert summary(await pending) == "up0"
    await run_pending()
    assert pool.size == 0, "and its connection is not kept"


async def test_call_under_way_at_an_upstream_that_was_taken_away_still_has_its_deadline(
    gateway: FakeGateway,
) -> None:
    gateway.nodes[0].holds = True
    pending = gateway.send(READ, seconds=5.0)
    await run_pending(1)
    reload(gateway, upstream(1))
    for _ in range(3):
        gateway.networks.sweep()
    # Before a hedge is free.
    await gateway.advance(1.9)
    assert not pending.done()
    gateway.save_hedges(0.0)
    await gateway.advance(0.8)
    assert summary(await pending) == "up1"
    assert gateway.attempts("up0", "timeout") == 1


async def test_retired_pools_are_dropped_once_nothing_refers_to_them(gateway: FakeGateway) -> None:
    await gateway.call(READ)
    reload(gateway, upstream(1))
    await run_pending()
    await gateway.advance(29.0)
    assert len(gateway.networks._leaving) == 1
    await gateway.advance(2.0)
    assert gateway.networks._leaving == []


async def test_network_that_is_taken_away_answers_what_it_was_sent(gateway: FakeGateway) -> None:
    gateway.nodes[0].holds = True
    pending = gateway.send(READ)
    await run_pending()
    pool = gateway["up0"].pool
    reload(gateway)
    assert gateway.networks.all == {}
    gateway.networks.sweep()
    gateway.nodes[0].release()
    assert summary(await pending) == "up0"
    await run_pending()
    assert pool.size == 0, "and its connection is not kept"


async def test_cache_stays_where_its_size_changes_and_goes_where_it_is_turned_off() -> None:
    gateway = await open_gateway({}, cache_bytes=1_000_000)
    gateway.publish_heads(100)
    await gateway.call(READ)
    reload(gateway, upstream(0), bytes_=500_000)
    await gateway.call(READ)
    assert gateway.trace.cache == "hit"
    reload(gateway, upstream(0), bytes_=500_000, cache=False)
    await gateway.call(READ)
    assert gateway.trace.cache == "bypass"
    assert gateway.counts() == [2]


async def test_memory_is_shared_out_among_networks() -> None:
    gateway = await open_gateway({})
    networks = {name: model.NetworkSettings(upstreams=(upstream(0),)) for name in ("a", "b", "c", "mainnet")}
    settings = replace(gateway.settings, families={"eth": networks}, cache=model.CacheSettings(bytes=4_000))
    slots = assign_slots(gateway.slots, {f"eth/{name}": ["up0"] for name in networks})
    gateway.networks.apply(settings, slots)
    caches = [each.cache for each in gateway.networks.all.values()]
    assert [cache._max_bytes for cache in caches if cache is not None] == [1_000] * 4
    assert len({each.exchange.upstreams[0].slot for each in gateway.networks.all.values()}) == 4


async def test_size_of_batches_and_lists_follow_the_settings(gateway: FakeGateway) -> None:
    reload(gateway, upstream(0, batch_calls=2, deny_methods=(READ,)), upstream(1, batch_calls=9))
    assert gateway.resolver.batch_calls == 2
    assert await gateway.call(READ) == "up1"
    reload(gateway, upstream(0, deny_methods=(READ,)))
    with pytest.raises(UpstreamUnavailable):
        await gateway.send(READ)


async def test_rules_of_a_network_are_taken_over_by_the_pipeline(gateway: FakeGateway) -> None:
    await gateway.directory.refresh()
    pipeline = gateway.pipeline
    assert (await send(gateway, call(1)))[0] == 200
    reload(gateway, upstream(0), deny_methods=(READ,))
    pipeline.change(1, 30.0)
    (gateway.network,) = gateway.networks.served
    assert (await send(gateway, call(1)))[0] == 403
    assert (await send(gateway, [call(1), call(2)]))[0] == 413
    reload(gateway)
    assert (await send(gateway, call(1)))[0] == 404


async def test_gauges_and_how_calls_fared_are_reported() -> None:
    gateway = await open_gateway({}, cache_bytes=1_000_000)
    gateway.publish_heads(100)
    await gateway.call(READ)
    gateway.networks.report()
    assert gateway.counted(metrics.UPSTREAM_CONNECTIONS, "eth", "mainnet", "up0") == 1
    assert gateway.counted(metrics.CACHE_BYTES, "eth", "mainnet") > 0
    assert gateway.statuses[0].worker_stats()[0].calls == 1


async def test_end_closes_everything(gateway: FakeGateway) -> None:
    for node in gateway.nodes:
        node.holds = True
    pending = gateway.send("foo_bar")
    await run_pending()
    reload(gateway, upstream(1))
    gateway.networks.close()
    await run_pending()
    with pytest.raises(Exception, match="carried out"):
        await pending


async def test_end_closes_the_connections_of_upstreams_that_are_in_use(gateway: FakeGateway) -> None:
    await gateway.send("eth_chainId")
    assert gateway.exchange.upstreams[0].pool.size == 1
    gateway.networks.close()
    await run_pending()
    assert [upstream.pool.size for upstream in gateway.exchange.upstreams] == [0] * len(gateway.nodes)
