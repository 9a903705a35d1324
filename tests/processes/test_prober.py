"""The prober as a whole: settings in, board, metrics and file out. Scripted nodes, manual clocks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.gateway.fakes import Clock, run_pending
from tests.gateway.prober.nodes import REFUSED, FakeListener, Node

from tollgate.chains.heads import Block
from tollgate.core.health import NOTHING, State
from tollgate.core.upstreams import FILE
from tollgate.gateway.prober.publish import _breaker
from tollgate.processes.prober import SHOW_SECONDS, SWEEP_SECONDS, Prober
from tollgate.settings import model
from tollgate.settings.model import HealthSettings, NetworkSettings, Settings
from tollgate.shm import metrics
from tollgate.shm.upstream_status import SharedStatus, StatusSlots, WorkerStats, assign_slots

BASE = "g" * 100

# As quick without calls as with them.
HEALTH = HealthSettings(probe_seconds=0.25, idle_probe_seconds=0.25)


class ProberSetup:
    """A prober whose upstreams are scripted; the word of a chain is in their address."""

    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self.shared_status = SharedStatus(2, now=self.clock)
        self.slots = StatusSlots()
        self.regions = metrics.Regions(1)
        self.nodes: dict[str, Node] = {}
        self.listeners: list[FakeListener] = []
        self.file = folder / FILE
        self.prober = Prober(
            self.shared_status,
            self.regions.writer(0),
            folder,
            make_client=self._asker,
            make_listener=self._listener,
            now=self.clock,
            wall=lambda: self.clock() + 1_000_000.0,
        )

    def _asker(self, family: str, upstream: model.UpstreamSettings) -> Node:
        self.nodes[upstream.name] = Node(upstream.url.removeprefix("http://"), self.clock)
        return self.nodes[upstream.name]

    def _listener(
        self, family: str, upstream: model.UpstreamSettings, on_head: Callable[[Block], None]
    ) -> FakeListener:
        self.listeners.append(FakeListener(family, upstream, on_head))
        return self.listeners[-1]

    def apply(self, **networks: dict[str, str]) -> None:
        """Networks of `eth`: upstreams and their chains."""
        made = {
            name: NetworkSettings(
                upstreams=tuple(
                    model.UpstreamSettings(name=each, url=f"http://{word}") for each, word in members.items()
                )
            )
            for name, members in networks.items()
        }
        self.slots = assign_slots(self.slots, {f"eth/{name}": list(members) for name, members in networks.items()})
        self.prober.apply(Settings(families={"eth": made}, health=HEALTH), self.slots)

    async def tick(self, seconds: float = 0.0) -> None:
        self.clock.advance(seconds)
        self.prober.tick()
        await run_pending(60)

    async def second(self) -> None:
        for _ in range(4):
            await self.tick(0.25)
        await self.tick(0.02)

    @property
    def left(self) -> list[str]:
        """What lies in the data folder."""
        return [each.name for each in self.file.parent.iterdir()]

    @property
    def shown(self) -> dict[str, Any]:
        return {each["network"]: each for each in json.loads(self.file.read_bytes())["networks"]}

    def gauge(self, spec: metrics.Spec, *labels: str) -> int:
        return self.regions.totals().get((spec.name, "eth", *labels), -1)


async def test_what_is_known_is_written_down_once_a_second(tmp_path: Path) -> None:
    setup = ProberSetup(tmp_path)
    setup.apply(main={"a": BASE + "abcdefgh", "b": BASE}, test={"c": BASE})
    setup.nodes["a"].finalized = 64
    await setup.tick()
    setup.nodes["c"].fault = REFUSED
    await setup.second()
    await setup.second()
    shown = setup.shown["eth/main"]
    assert (shown["head"], shown["finalized"], shown["chain_id"]) == (107, 64, "0x1")
    a, b = shown["upstreams"]
    assert (a["name"], a["state"], a["reason"], a["head"], a["behind"]) == ("a", "up", "", 107, 0)
    assert (b["name"], b["state"], b["reason"], b["head"]) == ("b", "lagging", "8 blocks behind", 99)
    assert b["behind"] == 8
    assert (a["calls"], a["error_rate"], a["latency_ms"], a["breaker"]) == (0, None, None, "closed")
    assert (a["probe_ms"], a["listening"]) == (10.0, False)
    (c,) = setup.shown["eth/test"]["upstreams"]
    assert (c["state"], c["reason"]) == ("down", "refuses connections")
    assert 1_001_000.0 < c["since"] < json.loads(setup.file.read_bytes())["at"]
    assert [each["chain_id"] for each in (a, b, c)] == ["0x1"] * 3
    assert setup.file.stat().st_mode & 0o777 == 0o600
    assert sorted(setup.left) == sorted([FILE, "upstream-history.json"])
    assert "http" not in setup.file.read_text()
    history = json.loads((setup.file.parent / "upstream-history.json").read_bytes())
    assert [each["upstream"] for each in history] == ["a", "b", "c"]
    for _ in range(2):
        setup.prober.close()
        assert not setup.file.exists()
    assert all(node.closed for node in setup.nodes.values())


async def test_how_calls_fared_is_added_up_over_workers(tmp_path: Path) -> None:
    setup = ProberSetup(tmp_path)
    setup.apply(main={"a": BASE})
    rows = [setup.shared_status.upstream(0, worker) for worker in range(2)]
    await setup.second()
    rows[0].report(WorkerStats(10, 1, 5_000, 9_000, 0.0, 2))
    rows[1].report(WorkerStats(30, 3, 7_128, 20_000, setup.clock() + 10.0, 1))
    await setup.second()
    (a,) = setup.shown["eth/main"]["upstreams"]
    assert (a["calls"], a["failures"], a["error_rate"]) == (40, 4, 0.1)
    assert (a["latency_ms"], a["p95_ms"], a["in_flight"]) == (7.13, 20.0, 3)
    assert (a["breaker"], a["open_workers"]) == ("open", 1)
    setup.clock.advance(10.0)
    await setup.second()
    (a,) = setup.shown["eth/main"]["upstreams"]
    assert (a["breaker"], a["open_workers"]) == ("half_open", 0)


async def test_gauges_follow(tmp_path: Path) -> None:
    setup = ProberSetup(tmp_path)
    setup.apply(main={"a": BASE, "b": BASE + "a"})
    setup.nodes["a"].finalized = 64
    await setup.second()
    await setup.second()
    assert setup.gauge(metrics.NETWORK_HEAD, "main") == 100
    assert setup.gauge(metrics.NETWORK_FINALIZED, "main") == 64
    assert setup.gauge(metrics.UPSTREAM_HEAD, "main", "a") == 99
    assert setup.gauge(metrics.UPSTREAM_STATE, "main", "a", "up") == 1
    assert setup.gauge(metrics.UPSTREAM_STATE, "main", "a", "down") == 0
    setup.nodes["a"].fault = REFUSED
    await setup.second()
    await setup.second()
    assert setup.gauge(metrics.UPSTREAM_STATE, "main", "a", "up") == 0
    assert setup.gauge(metrics.UPSTREAM_STATE, "main", "a", "down") == 1
    setup.apply(main={"b": BASE + "a"})
    assert setup.gauge(metrics.UPSTREAM_STATE, "main", "a", "down") == metrics.GONE
    assert setup.gauge(metrics.UPSTREAM_HEAD, "main", "a") == metrics.GONE
    setup.apply(main={"a": BASE, "b": BASE + "a"})
    await setup.second()
    states = [setup.gauge(metrics.UPSTREAM_STATE, "main", "a", each.name.lower()) for each in State]
    assert sorted(states) == [0] * (len(State) - 1) + [1], "shown again"


async def test_networks_come_and_go_and_those_that_stay_notice_nothing(tmp_path: Path) -> None:
    setup = ProberSetup(tmp_path)
    setup.apply(main={"a": BASE}, test={"c": BASE})
    warm = [setup.prober.warm]
    await setup.second()
    await setup.second()
    assert [*warm, setup.prober.warm] == [False, True]
    assert setup.gauge(metrics.NETWORK_HEAD, "test") == 99
    row = setup.shared_status.network(setup.slots.networks["eth/main"])
    version, stays = row.version, setup.prober.monitors["eth/main"]
    setup.apply(main={"a": BASE}, other={"d": BASE})
    assert list(setup.prober.monitors) == ["eth/main", "eth/other"]
    assert setup.prober.monitors["eth/main"] is stays
    assert setup.nodes["c"].closed
    await setup.second()
    assert (row.version, row.head) == (version, 99)
    assert list(setup.shown) == ["eth/main", "eth/other"]
    assert setup.gauge(metrics.NETWORK_HEAD, "test") == metrics.GONE


async def test_a_network_that_comes_back_is_taken_over_from_the_board(tmp_path: Path) -> None:
    setup = ProberSetup(tmp_path)
    setup.apply(main={"a": BASE}, test={"c": BASE})
    await setup.second()
    setup.apply(main={"a": BASE})
    await setup.second()
    setup.apply(main={"a": BASE}, test={"c": BASE[:-1] + "x"})
    await setup.second()
    gone, stayed = (setup.shared_status.network(setup.slots.networks[f"eth/{name}"]) for name in ("test", "main"))
    assert (gone.head, gone.reorgs, gone.ancestor(0)) == (99, 1, NOTHING)
    assert stayed.reorgs == 0


async def test_deadlines_are_looked_after_ten_times_a_second(tmp_path: Path) -> None:
    setup = ProberSetup(tmp_path)
    setup.apply(main={"a": BASE})
    for _ in range(50):
        await setup.tick(0.02)
    assert 8 <= setup.nodes["a"].swept <= 11


async def test_a_disk_that_refuses_the_file_is_no_reason_to_stop(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    setup = ProberSetup(folder)
    setup.apply(main={"a": BASE})
    with capture_logs() as lines:
        await setup.second()
        await setup.second()
        assert setup.shared_status.network(0).head == 99
        folder.mkdir()
        await setup.second()
        assert setup.file.exists()
        shutil.rmtree(folder)
        await setup.second()
        await setup.second()
    failures = [line for line in lines if line["event"] == "the state of upstreams cannot be written"]
    assert len(failures) == 2, "once each time"


def test_breaker_is_open_until_its_time() -> None:
    stats = WorkerStats(1, 1, 0, 0, 12.5, 0)
    assert [_breaker([stats], now) for now in (12.4, 12.5)] == ["open", "half_open"]
    assert _breaker([], 1.0) == "closed"


async def test_upstream_without_a_head_is_not_behind(tmp_path: Path) -> None:
    setup = ProberSetup(tmp_path)
    setup.apply(main={"a": BASE, "b": BASE})
    setup.nodes["b"].fault = REFUSED
    await setup.tick()
    await setup.second()
    await setup.second()
    a, b = setup.shown["eth/main"]["upstreams"]
    assert (a["head"], a["behind"]) == (99, 0)
    assert (b["head"], b["behind"], b["state"]) == (None, 0, "down")


async def test_what_a_predecessor_knew_holds_at_the_start_and_not_for_who_comes_later(tmp_path: Path) -> None:
    setup = ProberSetup(tmp_path)
    rows = [setup.shared_status.upstream(row) for row in range(2)]
    for row in rows:
        row.publish(State.UP, 50)
    setup.apply(main={"a": BASE})
    assert rows[0].state == State.UP
    setup.apply(main={"a": BASE, "b": BASE})
    assert [row.state for row in rows] == [State.UP, State.UNKNOWN]


async def test_deadlines_and_the_file_have_intervals_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = ProberSetup(tmp_path)
    setup.apply(main={"a": BASE})
    shown: list[float] = []
    monkeypatch.setattr(setup.prober._publisher, "show", lambda _: shown.append(setup.clock()))
    started = setup.clock()
    for seconds in (0.0, SHOW_SECONDS / 2, SHOW_SECONDS / 2):
        await setup.tick(seconds)
    assert shown == [started, started + SHOW_SECONDS]
    before = setup.nodes["a"].swept
    for _ in range(3):
        await setup.tick(SWEEP_SECONDS)
    assert setup.nodes["a"].swept == before + 3
