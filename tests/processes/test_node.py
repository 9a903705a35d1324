"""A node's sign of life: it is listed, sees the others, and leaves when it is stopped."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tollgate.core.nodes import ALL_ROLES, GATEWAY, GONE_SECONDS, Node
from tollgate.processes import node as node_module
from tollgate.processes.bootstrap import Bootstrap, prepare
from tollgate.processes.node import LOOK_SECONDS, Heartbeat, node_id
from tollgate.settings.model import Settings
from tollgate.shm.metrics import Regions
from tollgate.store import engines


class Clock:
    def __init__(self) -> None:
        self.now = time.time()

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(node_module, "time", made)
    return made


@pytest.fixture
def bootstrap(tmp_path: Path) -> Bootstrap:
    return prepare(Settings(data_dir=str(tmp_path)))


async def listed(bootstrap: Bootstrap, *more: Node) -> list[Node]:
    store = engines.open_store(bootstrap.store_url)
    try:
        async with store.changing() as records:
            for node in more:
                await records.nodes.add(node)
            return list(await records.nodes.page(10))
    finally:
        await store.close()


def test_identity_is_the_same_for_processes_that_read_it_at_the_same_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others: list[str] = []

    def meanwhile(count: int) -> str:
        monkeypatch.undo()
        others.append(node_id(tmp_path))
        return "ab" * count

    monkeypatch.setattr("tollgate.processes.node.secrets.token_hex", meanwhile)
    assert [node_id(tmp_path)] == others
    assert len(others[0]) == 16


async def test_nodes_are_counted_by_their_last_sign_of_life_once_a_minute(
    bootstrap: Bootstrap, clock: Clock
) -> None:
    regions = Regions(1)
    dead = Node("b", clock.now, "b", "1", "all", clock.now - GONE_SECONDS, 0)
    alive = Node("c", clock.now, "c", "1", "all", clock.now, 0)
    await listed(bootstrap, dead)
    heart = Heartbeat(bootstrap, ALL_ROLES, regions.writer(0))
    await heart.beat()
    counted = {("tollgate_nodes", "up"): 1, ("tollgate_nodes", "gone"): 1}
    assert regions.totals() == counted
    await listed(bootstrap, alive)
    clock.now += 1
    await heart.beat()
    assert regions.totals() == counted, "looked again too soon"
    clock.now += LOOK_SECONDS
    await heart.beat()
    assert regions.totals() == {("tollgate_nodes", "up"): 1, ("tollgate_nodes", "gone"): 2}
    await heart.close()
    assert [node.id for node in await listed(bootstrap)] == ["b", "c"]


async def test_node_without_a_collector_shows_what_waits_in_its_spool(bootstrap: Bootstrap) -> None:
    regions = Regions(1)
    heart = Heartbeat(bootstrap, frozenset({GATEWAY}), regions.writer(0))
    await heart.beat()
    assert regions.totals()["tollgate_ledger_lag_bytes",] == 0
    await heart.close()
