"""What a worker serves, changed in place: nothing that stays the same is lost, nothing under way is dropped."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.gateway.calls import call, send
from tests.gateway.fakes import turns
from tests.gateway.scene import Scene, open_scene, summary

from tollgate.errors import UpstreamUnavailable
from tollgate.settings import model
from tollgate.shm import metrics
from tollgate.shm.upstream_status import assign_slots

READ = "eth_chainId"


def upstream(index: int, **more: Any) -> model.UpstreamSettings:
    return model.UpstreamSettings(
        **{"name": f"up{index}", "url": f"http://up{index}:8545", "priority": index, **more}
    )


def reload(scene: Scene, *upstreams: model.UpstreamSettings, bytes_: int = 0, **network: Any) -> None:
    """Take over other settings; without upstreams the network is gone."""
    worker = scene.worker
    named = {"mainnet": model.NetworkSettings(upstreams=upstreams, **network)} if upstreams else {}
    settings = replace(worker.settings, families={"eth": named}, cache=model.CacheSettings(bytes=bytes_))
    worker.slots = assign_slots(worker.slots, {"eth/mainnet": [each.name for each in upstreams]})
    worker.networks.apply(settings, worker.slots)


async def test_upstream_that_stays_keeps_its_connections_and_what_is_known_of_it(scene: Scene) -> None:
    await scene.call(READ)
    first = scene.upstream(0)
    reload(scene, upstream(0, priority=7, weight=3), upstream(2, priority=1))
    assert scene.upstream(0) is first
    assert (first.priority, first.settings.weight, first.calls, first.pool.size) == (7, 3, 1, 1)
    assert [each.name for each in scene.exchange.upstreams] == ["up2", "up0"]
    assert scene.resolver is scene.worker.networks.all["eth/mainnet"]


async def test_upstream_keeps_its_row_and_a_new_one_gets_another(scene: Scene) -> None:
    reload(scene, upstream(1), upstream(2))
    assert {upstream.name: upstream.slot for upstream in scene.exchange.upstreams} == {"up1": 1, "up2": 2}


@pytest.mark.parametrize("gone", [True, False])
async def test_call_under_way_is_answered_by_an_upstream_that_is_taken_away_or_moved(
    gone: bool, scene: Scene
) -> None:
    scene.nodes[0].holds = True
    pending = scene.send(READ)
    await turns()
    pool = scene.upstream(0).pool
    reload(scene, *([] if gone else [upstream(0, url="http://elsewhere:1")]), upstream(1))
    scene.worker.networks.sweep()
    scene.nodes[0].let()
    assert summary(await pending) == "up0"
    await turns()
    assert pool.size == 0, "and its connection is not kept"


async def test_call_under_way_at_an_upstream_that_was_taken_away_still_has_its_deadline(scene: Scene) -> None:
    scene.nodes[0].holds = True
    pending = scene.send(READ, seconds=5.0)
    await turns(1)
    reload(scene, upstream(1))
    for _ in range(3):
        scene.worker.networks.sweep()
    # Before a hedge is free.
    await scene.later(1.9)
    assert not pending.done()
    scene.save_hedges(0.0)
    await scene.later(0.8)
    assert summary(await pending) == "up1"
    assert scene.attempts(0, "timeout") == 1


async def test_retired_pools_are_forgotten_when_nobody_can_know_them(scene: Scene) -> None:
    await scene.call(READ)
    reload(scene, upstream(1))
    await turns()
    await scene.later(29.0)
    assert len(scene.worker.networks._leaving) == 1
    await scene.later(2.0)
    assert scene.worker.networks._leaving == []


async def test_network_that_is_taken_away_answers_what_it_was_sent(scene: Scene) -> None:
    scene.nodes[0].holds = True
    pending = scene.send(READ)
    await turns()
    pool = scene.upstream(0).pool
    reload(scene)
    assert scene.worker.networks.all == {}
    scene.worker.networks.sweep()
    scene.nodes[0].let()
    assert summary(await pending) == "up0"
    await turns()
    assert pool.size == 0, "and its connection is not kept"


async def test_cache_stays_where_its_size_changes_and_goes_where_it_is_turned_off() -> None:
    async with open_scene({}, cache_bytes=1_000_000) as scene:
        scene.up(100)
        await scene.call(READ)
        reload(scene, upstream(0), bytes_=500_000)
        await scene.call(READ)
        assert scene.trace.cache == "hit"
        reload(scene, upstream(0), bytes_=500_000, cache=False)
        await scene.call(READ)
        assert scene.trace.cache == "bypass"
        assert scene.counts() == [2]


async def test_memory_is_shared_out_among_networks() -> None:
    async with open_scene({}) as scene:
        networks = {name: model.NetworkSettings(upstreams=(upstream(0),)) for name in ("a", "b", "c", "mainnet")}
        settings = replace(
            scene.worker.settings, families={"eth": networks}, cache=model.CacheSettings(bytes=4_000)
        )
        slots = assign_slots(scene.worker.slots, {f"eth/{name}": ["up0"] for name in networks})
        scene.worker.networks.apply(settings, slots)
        caches = [each.cache for each in scene.worker.networks.all.values()]
        assert [cache._max_bytes for cache in caches if cache is not None] == [1_000] * 4
        assert len({each.exchange.upstreams[0].slot for each in scene.worker.networks.all.values()}) == 4


async def test_size_of_batches_and_lists_follow_the_settings(scene: Scene) -> None:
    reload(scene, upstream(0, batch_calls=2, deny_methods=(READ,)), upstream(1, batch_calls=9))
    assert scene.resolver.batch_calls == 2
    assert await scene.call(READ) == "up1"
    reload(scene, upstream(0, deny_methods=(READ,)))
    with pytest.raises(UpstreamUnavailable):
        await scene.send(READ)


async def test_rules_of_a_network_are_taken_over_by_the_pipeline(scene: Scene) -> None:
    await scene.worker.directory.refresh()
    pipeline = scene.worker.pipeline
    assert (await send(scene.worker, call(1)))[0] == 200
    reload(scene, upstream(0), deny_methods=(READ,))
    pipeline.change(1, 30.0)
    (scene.worker.network,) = scene.worker.networks.served
    assert (await send(scene.worker, call(1)))[0] == 403
    assert (await send(scene.worker, [call(1), call(2)]))[0] == 413
    reload(scene)
    assert (await send(scene.worker, call(1)))[0] == 404


async def test_gauges_and_how_calls_fared_are_reported() -> None:
    async with open_scene({}, cache_bytes=1_000_000) as scene:
        scene.up(100)
        await scene.call(READ)
        scene.worker.networks.report()
        assert scene.worker.counted(metrics.UPSTREAM_CONNECTIONS, "eth", "mainnet", "up0") == 1
        assert scene.worker.counted(metrics.CACHE_BYTES, "eth", "mainnet") > 0
        assert scene.worker.rows[0].worker_stats()[0].calls == 1


async def test_end_closes_everything(scene: Scene) -> None:
    for node in scene.nodes:
        node.holds = True
    pending = scene.send("foo_bar")
    await turns()
    reload(scene, upstream(1))
    scene.worker.networks.close()
    await turns()
    with pytest.raises(Exception, match="carried out"):
        await pending


async def test_end_closes_the_connections_of_upstreams_that_are_in_use(scene: Scene) -> None:
    await scene.send("eth_chainId")
    assert scene.exchange.upstreams[0].pool.size == 1
    scene.worker.networks.close()
    await turns()
    assert [upstream.pool.size for upstream in scene.exchange.upstreams] == [0] * len(scene.nodes)
