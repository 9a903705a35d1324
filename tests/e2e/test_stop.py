"""SIGTERM: what was read whole is answered whole, and says that the connection ends; the rest is refused."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING

import pytest

from parts.load import load
from parts.ports import accepts
from parts.processes import alive, descendants, eventually
from parts.road import Road, open_road, reason
from parts.tollgate import linux_only
from parts.upstream import Reply
from parts.wire import request

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.e2e, linux_only]


@pytest.fixture
def road(tmp_path: Path) -> Iterator[Road]:
    with open_road(tmp_path, {"server": {"workers": 2, "grace_seconds": 10.0}}) as it:
        yield it


def test_calls_under_way_are_answered_and_new_ones_refused(road: Road) -> None:
    gate = threading.Event()
    road.node.on("eth_call", Reply(gate=gate))
    program = road.gateway.program
    children = descendants(program.pid)
    with road.gateway.spread(5) as held:
        wires = [wire for each in held.values() for wire in each]
        for number, wire in enumerate(wires):
            wire.send(road.request(number, "eth_call"))
        eventually(lambda: len(road.node.bodies("eth_call")) == len(wires), what="all calls upstream")
        program.send(signal.SIGTERM)
        eventually(lambda: not accepts(road.gateway.port), what="the door shut")
        assert program.running, "it waits for the calls"
        gate.set()
        for number, wire in enumerate(wires):
            answer = wire.read()
            assert (answer.status, answer.json()["id"]) == (200, number)
            assert answer.headers["connection"] == "close"
            assert wire.ended()
    assert program.popen.wait(10) == 0
    assert not any(map(alive, children))


def test_no_call_is_cut_under_load(road: Road) -> None:
    with road.gateway.spread(4) as held:
        wires = [wire for each in held.values() for wire in each]
        with load(wires, road.request()) as callers:
            eventually(lambda: len(callers) > 200, what="load")
            road.gateway.program.send(signal.SIGTERM)
            callers.join()
    assert {outcome.status for outcome in callers.outcomes} == {200}
    for caller in range(len(wires)):
        mine = [outcome for outcome in callers.outcomes if outcome.caller == caller]
        assert mine[-1].closing
        assert not any(outcome.closing for outcome in mine[:-1])
    assert road.gateway.program.popen.wait(10) == 0


@pytest.mark.parametrize("between", [b"", request("/healthz", headers={}, method="GET")])
def test_calls_that_wait_in_line_are_answered_too(road: Road, between: bytes) -> None:
    """Pipelined requests were read whole, so they are answered; the last answer ends the connection."""
    gate = threading.Event()
    road.node.on("eth_call", Reply(gate=gate))
    with road.gateway.wire() as wire:
        wire.send(road.request(1, "eth_call") + road.request(2) + between + road.request(3))
        eventually(lambda: road.node.bodies("eth_call"), what="the call upstream")
        road.gateway.program.send(signal.SIGTERM)
        eventually(lambda: not accepts(road.gateway.port), what="the door shut")
        gate.set()
        assert wire.read().json()["id"] == 1
        assert wire.read().json()["id"] == 2
        if between:
            assert wire.read().json() == {"status": "ok"}
        last = wire.read()
        assert (last.json()["id"], last.headers["connection"]) == (3, "close")
        assert wire.ended()


def test_idle_connections_do_not_hold_it_up(road: Road) -> None:
    with road.gateway.spread(2) as held:
        wires = [wire for each in held.values() for wire in each]
        assert wires[0].ask("/healthz", method="GET").status == 200
        road.gateway.program.send(signal.SIGTERM)
        assert road.gateway.program.popen.wait(5) == 0
        for wire in wires:
            assert wire.ended()


def test_call_that_outlasts_the_grace_is_told(tmp_path: Path) -> None:
    with open_road(tmp_path, {"server": {"grace_seconds": 1.0}}) as road:
        road.node.on("eth_call", Reply(hang=True))
        with road.gateway.wire() as wire:
            wire.send(road.request(1, "eth_call"))
            eventually(lambda: road.node.bodies("eth_call"), what="the call upstream")
            road.gateway.program.send(signal.SIGTERM)
            answer = wire.read()
            assert (answer.status, reason(answer)) == (503, "overloaded")
            assert answer.headers["connection"] == "close"
        assert road.gateway.program.popen.wait(10) == 0


def test_second_signal_does_not_cut_calls(road: Road) -> None:
    gate = threading.Event()
    road.node.on("eth_call", Reply(gate=gate))
    with road.gateway.wire() as wire:
        wire.send(road.request(1, "eth_call"))
        eventually(lambda: road.node.bodies("eth_call"), what="the call upstream")
        for _ in range(3):
            road.gateway.program.send(signal.SIGTERM)
        eventually(lambda: not accepts(road.gateway.port), what="the door shut")
        gate.set()
        assert wire.read().json()["id"] == 1
    assert road.gateway.program.popen.wait(10) == 0
